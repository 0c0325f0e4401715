"""The package works from its wheel, in an environment that has nothing but its dependencies."""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("wheel"),  # built once
    pytest.mark.skipif(
        not importlib.util.find_spec("hatchling"), reason="hatchling not installed: extra `dev`"
    ),
]


def run(*words, cwd):
    """Run a command that knows nothing of the source tree; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    # Hatchling is found where pytest found it, also by PYTHONPATH.
    words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """The folder of programs of an empty environment in which the wheel was installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps"),
        *("--no-index", "--quiet", "--disable-pip-version-check", wheel),
        cwd=folder,
    )
    # Dependencies are taken from here: downloading them is no test of ours.
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-c", "import adaptask; print(adaptask.__file__)", cwd=folder)
    assert Path(where.strip()).is_relative_to(site)
    return folder / "bin"


def test_the_wheel_has_every_file_of_the_package(wheel):
    source = ROOT / "src"
    expected = {
        str(path.relative_to(source))
        for path in (source / "adaptask").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == expected
    assert "adaptask/py.typed" in names


def test_the_command_lists_everything(environment, tmp_path):
    printed = run(environment / "adaptask", "list", cwd=tmp_path)
    for name in ("gcp", "protonet", "resnet12", "glyphs"):
        assert name in printed


def test_the_loop_of_the_readme_runs(environment, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    (loop,) = (block for block in blocks if "sampler.update" in block)
    (tmp_path / "loop.py").write_text(loop + "print(sampler.seen.float().mean() > 0.5)\n")
    assert run(environment / "python", "loop.py", cwd=tmp_path) == "tensor(True)\n"
