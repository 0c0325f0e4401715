"""The examples run as a stranger runs them, on small data, and what they print is true."""

import json
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from adaptask.data.datasets import TURNED_GLYPHS
from adaptask.errors import ArgumentError

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs an example with some arguments, and returns what it printed."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def number(pattern, text):
    return float(re.search(pattern, text).group(1))


def test_every_example_is_run_here():
    tested = {name for name in globals() if name.startswith("test_") and name.endswith("_example")}
    assert {f"test_{path.stem}_example" for path in EXAMPLES.glob("*.py")} == tested


def test_pytorch_loop_example(run, tiny):
    printed = run("pytorch_loop", "--dataset", tiny, "--tasks", "120")
    assert number(r"accuracy on the last 50 tasks: ([\d.]+)", printed) > 0.5
    potentials = [float(p) for p in re.findall(r"train-\d+ and train-\d+ .*?([\d.]+)\)", printed)]
    assert len(potentials) == 3
    assert max(potentials) > 0.1
    assert "n_applied=103, n_waiting=17, n_missed=0" in printed
    helped = run("pytorch_loop", "--dataset", tiny, "--tasks", "120", "--workers", "2")
    assert helped.splitlines()[:-1] == printed.splitlines()[:-1]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_lightning_module_example(run, tiny):
    pytest.importorskip("lightning", reason="lightning is not installed")
    printed = run("lightning_module", "--dataset", tiny, "--tasks", "120")
    assert number(r"accuracy over the epoch: ([\d.]+)", printed) > 0.4
    assert number(r"largest log potential: ([\d.]+)", printed) > 0.1


def test_own_images_example(run, monkeypatch):
    monkeypatch.setenv("ADAPTASK_CACHE", "set by the example")
    printed = run("own_images", "--steps", "40")
    assert "'train': 13" in printed
    assert number(r"accuracy on new classes: ([\d.]+)", printed) > 50


def test_frozen_features_example(run, tmp_path):
    printed = run("frozen_features", "--steps", "150")
    frozen = number(r"as they are: ([\d.]+)", printed)
    assert number(r"after 150 steps: ([\d.]+)", printed) > frozen + 5 > 35
    features = np.random.default_rng(0).standard_normal((160, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", features)
    np.save(tmp_path / "y.npy", np.repeat([f"class-{i}" for i in range(8)], 20))
    files = ("--features", str(tmp_path / "x.npy"), "--labels", str(tmp_path / "y.npy"))
    with pytest.raises(ArgumentError, match="n_way"):  # 2 test classes
        run("frozen_features", *files, "--steps", "2")


def test_own_sampler_example(run, tiny):
    printed = run("own_sampler", "--dataset", tiny, "--steps", "30")
    assert "passes the checks" in printed
    shares = [float(share) for share in re.findall(r"\(([\d.]+) of its queries", printed)]
    assert len(shares) == 3
    assert 0 < min(shares) <= max(shares) < 1


def test_own_learner_example(run, tiny):
    printed = run("own_learner", "--dataset", tiny, "--steps", "60")
    assert "passes the checks" in printed
    assert number(r"accuracy on new classes: ([\d.]+)", printed) > 40


@pytest.fixture
def turned_glyphs_of_noise(tmp_path, monkeypatch, write_noise):
    """Makes `turned-glyphs` a dataset of noise, of so many classes that neighbor is not uniform."""
    write_noise(tmp_path / "cache", TURNED_GLYPHS, n_classes=300, n_images=20)
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path / "cache"))


def test_the_notebook(turned_glyphs_of_noise, tmp_path, monkeypatch, capsys):
    """Its cells run in order, with fewer steps; Jupyter itself is not needed for that."""
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "first_steps.ipynb").read_text())
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert "STEPS, SEEDS = 2000, 5" in cells[0]
    cells[0] = cells[0].replace("STEPS, SEEDS = 2000, 5", "STEPS, SEEDS = 4, 2")
    cells = [re.sub(r"(n_episodes\W+|n_validation\W+)\d+", r"\g<1>4", cell) for cell in cells]
    kernel = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", kernel)
    for cell in cells:
        exec(compile(cell, "first_steps.ipynb", "exec"), vars(kernel))
    printed = capsys.readouterr().out
    assert printed.count("FewClassesSampler against uniform") == 2  # with the table, and by itself
    assert not any(c.get("outputs") for c in notebook["cells"]), "clear its outputs"
