"""Every Python block of README and docs runs, and every link inside the project leads somewhere."""

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from adaptask.backbones import BACKBONES, NORMS, WIDTHS
from adaptask.learners import LEARNERS
from adaptask.samplers import SAMPLERS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def python_blocks(page):
    return re.findall(r"^```python[^\n]*\n(.*?)^```$", page.read_text(), flags=re.M | re.S)


# Of Lightning: its own with newer versions of torch, and its advice for more than an example.
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize(
    "page", [p for p in PAGES if python_blocks(p)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch, glyphs_of_noise):
    monkeypatch.chdir(tmp_path)
    # As in a script, classes that a page defines belong to `__main__`.
    script = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    for block in python_blocks(page):
        exec(compile(block, str(page), "exec"), vars(script))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(("folder", "names"), [("samplers", SAMPLERS), ("learners", LEARNERS)])
def test_every_algorithm_has_a_page_and_the_overview_lists_all(folder, names):
    pages = {path.stem for path in (ROOT / "docs" / folder).glob("*.md")}
    missing = [f"docs/{folder}/{name}.md" for name in names if name not in pages]
    assert not missing, f"write the page {missing}"
    assert pages == {*names, "index"}
    # docs/site/algorithms.py puts the table there.
    assert f"<!-- {folder} -->" in (ROOT / "docs" / folder / "index.md").read_text()


@pytest.mark.parametrize(
    "page", [*(f"samplers/{n}.md" for n in SAMPLERS), *(f"learners/{n}.md" for n in LEARNERS)]
)
def test_the_page_of_an_algorithm_has_its_mathematics_and_our_decisions(page):
    text = (ROOT / "docs" / page).read_text()
    mathematics = text.split("\n## The mathematics\n")[1].split("\n## ")[0]
    assert "```math\n" in mathematics
    assert text.split("\n## Where we had to decide\n")[1].strip()


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_that_depends_on_the_order_of_classes_says_so(name):
    source = inspect.getsource(LEARNERS[name])
    if "order_free" in source:
        assert "`learner.order_free` is False" in (ROOT / f"docs/learners/{name}.md").read_text()


def test_every_backbone_norm_and_width_is_described():
    page = (ROOT / "docs" / "backbones.md").read_text()
    assert set(re.findall(r"^## (\w+)$", page, flags=re.M)) == set(BACKBONES)
    for name in [*NORMS, *WIDTHS]:
        assert f"`{name}`" in page
    for kind in BACKBONES.values():
        for argument in set(inspect.signature(kind).parameters) - {"image_shape"}:
            assert f"| `{argument}`" in page


@pytest.mark.parametrize("name", LEARNERS)
def test_every_argument_of_a_learner_is_described(name):
    page = (ROOT / f"docs/learners/{name}.md").read_text()
    for argument in set(inspect.signature(LEARNERS[name]).parameters) - {"backbone"}:
        assert f"`{argument}`" in page, argument


def test_the_pages_speak_of_the_project_alone():
    home = str(ROOT)
    for page in PAGES:
        assert home not in page.read_text()


def test_the_modules_that_the_architecture_names_exist():
    page = (ROOT / "docs" / "architecture.md").read_text()
    modules = [str(path) for path in (ROOT / "src" / "adaptask").rglob("*.py")]
    modules += [str(path) for path in (ROOT / "tests").rglob("*.py")]
    for name in set(re.findall(r"[\w/]+\.py", page)):
        assert any(module.endswith(name) for module in modules), name
