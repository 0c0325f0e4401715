"""Imports point one way, and the core needs nothing but torch, numpy and pillow."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "adaptask"

# What a part of the package may import of the others; what is not listed here, it may not.
FOUNDATION = {
    *("errors", "arguments", "atomic_file", "interfaces", "kernels", "randomness"),
    *("intervals", "parsing", "registry", "triton_names", "workers"),
}
MAY_IMPORT = {
    "errors": set(),
    "arguments": {"errors"},
    "atomic_file": {"errors"},
    "code_version": set(),
    "registry": {"errors", "code_version"},
    "interfaces": set(),
    "intervals": {"errors", "arguments"},
    "kernels": set(),
    "parsing": set(),
    "triton_names": set(),
    "workers": set(),
    "randomness": {"errors", "arguments"},
    "theory": FOUNDATION,
    "samplers": FOUNDATION | {"theory"},
    "data": FOUNDATION,
    "backbones": FOUNDATION,
    "learners": FOUNDATION | {"backbones"},
    "conformance": FOUNDATION,
    "training": FOUNDATION | {"samplers", "learners", "backbones", "data"},
    "integrations": FOUNDATION | {"data"},
    "report": {"errors", "arguments", "atomic_file", "parsing", "__init__"},
    "experiments": FOUNDATION
    | {"report", "theory", "samplers", "data", "conformance", "backbones", "learners", "training"},
    "cli": {"arguments", "errors", "experiments", "registry", "report"},
    "__main__": {"cli"},
    "saved_run": FOUNDATION | {"report", "experiments", "data", "training"},
    "comparison": FOUNDATION | {"report", "experiments"},
    "__init__": {
        *("errors", "interfaces", "registry", "theory", "samplers", "learners", "backbones"),
        *("data", "training", "conformance", "integrations", "comparison", "saved_run"),
    },
}
CORE = (
    *("arguments", "atomic_file", "code_version", "errors", "intervals", "kernels", "interfaces"),
    *("parsing", "randomness", "registry", "theory", "workers"),
    *("samplers", "learners", "backbones", "data", "training"),
)
# Those that need nothing of the library they are for.
INTEGRATIONS = {("integrations", path.stem) for path in (PACKAGE / "integrations").glob("*.py")} - {
    ("integrations", "lightning")
}
CORE_LIBRARIES = {"torch", "numpy", "PIL"}


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path, *, module_level_only=False):
    """Yield the dotted names that a module imports."""
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(outer, ast.If) and "TYPE_CHECKING" in ast.dump(outer.test))
        for node in ast.walk(outer)
    }
    for node in ast.walk(tree):
        if module_level_only and id(node) in inside:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            yield from (f"{base}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    part = part_of(path)
    assert part in MAY_IMPORT, f"say in MAY_IMPORT what {part} may import"
    for name in imports(path):
        if name.startswith("adaptask."):
            other = name.split(".")[1]
            if other in MAY_IMPORT and other != part:
                assert other in MAY_IMPORT[part], f"{part} must not import {other}"


def test_the_rule_would_catch_a_wrong_import(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "def f():\n    from adaptask.samplers import gcp\nimport adaptask.data.cache\n"
    )
    assert list(imports(wrong)) == ["adaptask.data.cache", "adaptask.samplers.gcp"]
    assert list(imports(wrong, module_level_only=True)) == ["adaptask.data.cache"]


@pytest.mark.parametrize(
    "path",
    [p for p in modules() if part_of(p) in CORE or (part_of(p), p.stem) in INTEGRATIONS],
    ids=lambda p: str(p.relative_to(PACKAGE)),
)
def test_the_core_imports_torch_numpy_and_pillow_alone(path):
    for name in imports(path, module_level_only=True):
        top = name.split(".")[0]
        allowed = top in sys.stdlib_module_names or top in CORE_LIBRARIES | {
            "adaptask",
            "__future__",
        }
        assert allowed, f"{path.name} imports {top} at module level"


def test_the_core_imports_with_everything_else_missing():
    missing = [
        "matplotlib",
        "rich",
        "tyro",
        "tomlkit",
        "scipy",
        "sklearn",
        "plotly",
        "hypothesis",
        "pytest",
        "lightning",
        "easyfsl",
    ]
    code = (
        f"import sys\nfor name in {missing}: sys.modules[name] = None\n"
        "import adaptask.samplers, adaptask.theory, adaptask.data, adaptask.conformance\n"
        "import adaptask.learners, adaptask.backbones, adaptask.training\n"
        "import adaptask.integrations.torch, adaptask.integrations.easyfsl\n"
        "from adaptask.samplers import build_sampler\n"
        "print(build_sampler('gcp', n_classes=9, n_way=3).sample(2).shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch.Size([2, 3])" in done.stdout


def test_no_module_is_over_700_lines():
    sizes = {path: len(path.read_text().splitlines()) for path in modules()}
    assert max(sizes.values()) <= 700, {p: n for p, n in sizes.items() if n > 700}


def test_the_constraints_pin_what_the_project_asks_for():
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(name for extra in extras.values() for name in extra)]
    for requirement in wanted:
        if not requirement.startswith("adaptask["):
            assert requirement.split(">=")[0].partition("[")[0] in pinned
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()
