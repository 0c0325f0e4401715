"""A study as its runs leave it, and its page."""

import json

import numpy as np
import pytest

from adaptask.report.page.writer import write_report
from adaptask.report.run import Run
from adaptask.report.study import Arm, Study
from adaptask.report.summary import summarize
from adaptask.report.tables import Cell, Table

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    '" onmouseover="alert(3)',
    "' & \u2028 `${alert(4)}` $x$",
    "\u202eكلب",
    "very-long-" * 20,
    "unbroken" * 40,
    "",
    "]]> --> {{ 7 * 7 }}",
]
N_CLASSES, STEPS = 20, (50, 100, 150, 200)
CONFIG = """format = 2
steps = 200
seed = {seed}
[data]
dataset = "made-up"
[task]
n_way = 5
n_shot = {shots}
[learner]
name = "protonet"
[backbone]
name = "conv4"
[sampler]
name = "{sampler}"
"""


def potentials(step, seed, n_classes=N_CLASSES):
    """Classes in groups of four, which are the more confused the later it is."""
    random = np.random.default_rng(seed)
    groups = np.arange(n_classes) % 5
    half = np.triu(
        np.equal.outer(groups, groups) * step / 200 + random.exponential(0.1, (n_classes,) * 2), 1
    )
    matrix = (half + half.T).astype(np.float32)
    np.fill_diagonal(matrix, -np.inf)
    return matrix


def write_one(folder, *, sampler, seed, shots="1", names=None, until=200, accuracy=0.6):
    random = np.random.default_rng(seed)
    (folder / "snapshots").mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG.format(seed=seed, sampler=sampler, shots=shots))
    (folder / "environment.json").write_text(json.dumps([{"step": 0, "python": "3.11.0"}]))
    records = []
    for step in range(10, until + 1, 10):
        level = accuracy * (1 - np.exp(-step / 60)) + random.normal(0, 0.02)
        records.append({"step": step, "split": "train", "loss": 1 - level, "accuracy": level})
    for step in STEPS:
        if step <= until:
            kl = 0.0 if sampler == "uniform" else step / 500
            records.append({"step": step, "split": "sampler", "kl": kl, "entropy": 9.0 - kl})
            records.append({"step": step, "split": "val", "accuracy": accuracy, "loss": 1.0})
            parts = {"class_counts": random.poisson(step / 4, N_CLASSES)}
            if sampler == "gcp":
                parts["distribution"] = potentials(step, 10 * int(shots) + seed)
            np.savez(folder / "snapshots" / f"step-{step:07d}.npz", **parts)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "metrics.jsonl").write_text(lines)
    if until < STEPS[-1]:
        return
    test = {"accuracies": random.normal(accuracy, 0.1, 50).tolist(), "loss": 1.0, "steps": [200]}
    (folder / "test.json").write_text(json.dumps(test))
    features = np.eye(5)[np.arange(N_CLASSES) % 5] + 0.3 * random.normal(size=(N_CLASSES, 5))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    np.savez(
        folder / "portrait.npz",
        class_names=np.array(names or [f"class-{i}" for i in range(N_CLASSES)]),
        images=random.integers(0, 256, (N_CLASSES, 4, 12, 12, 3), dtype=np.uint8),
        similarity=(features @ features.T).astype(np.float32),
        tasks=np.stack([random.permutation(N_CLASSES)[:5] for _ in range(6)]),
    )


def write_arm(folder, name, labels, seeds, *, baseline=None, **options):
    runs = tuple(Run(folder / f"runs/{name}/seed-{seed}", seed) for seed in seeds)
    for run in runs:
        kept = {key: labels[key] for key in ("sampler", "shots") if key in labels}
        write_one(run.path, seed=run.seed, **{**kept, **options})
    return Arm(name, labels, runs, baseline)


def full_study(folder, names=None, title="Uniform against gcp"):
    """Two settings, two samplers, two seeds; a run that stopped, one that failed, one to come."""
    arms = [
        write_arm(
            *(folder, f"{sampler}-{shots}", {"shots": shots, "sampler": sampler}, (0, 1)),
            names=names,
            baseline=f"uniform-{shots}" if sampler == "gcp" else None,
        )
        for shots in "15"
        for sampler in ("uniform", "gcp")
    ]
    stopped = write_arm(folder, "c-1", {"shots": "1", "sampler": "c"}, (0, 1), until=100)
    (folder / "runs/c-1/seed-1/failure.txt").write_text("the loss is <b>no number</b>")
    to_come = Arm("c-5", {"shots": "5", "sampler": "c"}, (Run(folder / "runs/c-5/seed-0"),))
    return Study(
        title=title,
        arms=(*arms, stopped, to_come),
        command="adaptask compare --title '<b>'",
        notes=("A note with <i>markup</i>.",),
    )


TABLE = Table(
    name="results",
    title="Test accuracy <%>",
    headings=("sampler", "1-shot"),
    rows=((Cell("uniform"), Cell("60.0")), (Cell("gcp & co"), Cell("61.0 <b>", is_bold=True))),
    notes=("A note & more.",),
)


@pytest.fixture(scope="session")
def hostile():
    """Names of classes that try to be more than text."""
    return HOSTILE


@pytest.fixture(scope="session")
def table():
    """A table with markup in its words."""
    return TABLE


@pytest.fixture(scope="session")
def write_run():
    """Writes the files of a run, ended or not."""
    return write_one


@pytest.fixture(scope="session")
def arm():
    """Writes the runs of an arm, and returns it."""
    return write_arm


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """A full report, every name in it hostile."""
    folder = tmp_path_factory.mktemp("study")
    names = (HOSTILE + [f"class-{i}" for i in range(N_CLASSES)])[:N_CLASSES]
    study = full_study(folder, names, title="<script>alert(0)</script> & co")
    return write_report(folder, summarize(study), [TABLE])
