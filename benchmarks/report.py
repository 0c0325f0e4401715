"""Making the report of a study of 200 runs of 10,000 steps: how long it takes, how large it is.

    python benchmarks/report.py

The runs are made up, in a temporary folder that is removed again: records every 50 steps,
validation and snapshots every 500, 64 classes in 16 groups, portraits with 4 images per class of
32 x 32 x 3. To reach: under 60 s, under 15 MB.

Measured on two cores (AMD EPYC), matplotlib 3.11, statistics and tables included; plots are beside
the page, and the pixels of the images are noise, which no PNG file makes smaller. Nearly all of
the time is matplotlib's: every panel is drawn for a PNG, an SVG and the page. Time is that of the
processor: the machine was shared.

      20 arms x  10 seeds    8.2 s, page  1.5 MB, plots  2.2 MB, memory  175 MB
     100 arms x   2 seeds   17.4 s, page  2.4 MB, plots  4.8 MB, memory  201 MB
       2 arms x 100 seeds    2.3 s, page  1.0 MB, plots  0.5 MB, memory  201 MB
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adaptask.report.report import make_report
from adaptask.report.run import Run
from adaptask.report.study import Arm, Study

N_CLASSES, N_GROUPS, N_STEPS, SIZE = 64, 16, 10_000, 32
CONFIG = """format = 2
steps = {steps}
seed = {seed}
[data]
dataset = "made-up"
[task]
n_way = 5
n_shot = {shots}
[learner]
name = "{learner}"
[backbone]
name = "conv4"
[sampler]
name = "{sampler}"
"""


def write_run(folder: Path, labels: Mapping[str, str], seed: int) -> None:
    """Write all files of a run that might have been."""
    random = np.random.default_rng(seed)
    (folder / "snapshots").mkdir(parents=True)
    settings = {"steps": N_STEPS, "seed": seed, **labels}
    (folder / "config.toml").write_text(CONFIG.format(**settings))
    (folder / "environment.json").write_text(json.dumps([{"step": 0, "python": "3.11"}]))
    adaptive = labels["sampler"] != "uniform"
    records = []
    for step in range(50, N_STEPS + 1, 50):
        level = 0.6 - 0.4 * np.exp(-step / 2000) - 0.05 * adaptive
        accuracy = float(level + random.normal(0, 0.02))
        records.append({"step": step, "split": "train", "loss": 2 - accuracy, "accuracy": accuracy})
        records[-1] |= {"lr": 0.001, "seconds": step * 0.01}
        if step % 500 == 0:
            kl = 0.4 * adaptive + random.normal(0, 0.01)
            records.append({"step": step, "split": "sampler", "kl": kl, "entropy": 15.8 - kl})
            records.append({"step": step, "split": "val", "accuracy": accuracy, "loss": 1.0})
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "metrics.jsonl").write_text(lines)
    accuracies = random.normal(0.55, 0.1, 600).tolist()
    test = {"accuracies": accuracies, "loss": 1.0, "steps": [N_STEPS]}
    (folder / "test.json").write_text(json.dumps(test))
    write_arrays(folder, random, pairs=labels["sampler"] == "gcp")


def write_arrays(folder: Path, random: np.random.Generator, *, pairs: bool) -> None:
    """Write snapshots and portrait: classes of one group are alike, and are confused."""
    groups = np.arange(N_CLASSES) % N_GROUPS
    alike = np.equal.outer(groups, groups)
    for step in range(500, N_STEPS + 1, 500):
        parts: dict[str, Any] = {"class_counts": random.poisson(step * 5 / N_CLASSES, N_CLASSES)}
        if pairs:
            half = np.triu(0.8 * alike + random.exponential(0.15, alike.shape), 1)
            potentials = (half + half.T).astype(np.float32)
            np.fill_diagonal(potentials, -np.inf)
            parts["distribution"] = potentials
        np.savez_compressed(folder / "snapshots" / f"step-{step:07d}.npz", **parts)
    features = np.eye(N_GROUPS)[groups] + 0.4 * random.normal(size=(N_CLASSES, N_GROUPS))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    images = random.integers(0, 256, (N_CLASSES, 4, SIZE, SIZE, 3), dtype=np.uint8)
    np.savez_compressed(
        folder / "portrait.npz",
        class_names=np.array([f"class {i} of group {g}" for i, g in enumerate(groups)]),
        images=images,
        similarity=(features @ features.T).astype(np.float32),
        tasks=np.stack([random.permutation(N_CLASSES)[:5] for _ in range(24)]),
    )


def make_study(folder: Path, n_settings: int, n_seeds: int) -> None:
    """Write a study with uniform and gcp in so many settings."""
    arms = []
    for setting in range(n_settings):
        for sampler in ("uniform", "gcp"):
            labels = {"learner": f"learner-{setting // 2}", "shots": "15"[setting % 2]}
            labels["sampler"] = sampler
            name = "-".join(labels.values())
            runs = tuple(Run(folder / f"runs/{name}/seed-{s}", s) for s in range(n_seeds))
            for run in runs:
                write_run(run.path, labels, run.seed)
            baseline = None if sampler == "uniform" else name.replace("gcp", "uniform")
            arms.append(Arm(name, labels, runs, baseline))
    Study(title="Made up", arms=tuple(arms), command="adaptask compare").write(folder)


def measure(n_settings: int, n_seeds: int) -> None:
    """Make a study and its report, and print what that took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_study(folder, n_settings, n_seeds)
        start, started = time.perf_counter(), time.process_time()
        page = make_report(folder).page
        seconds, busy = time.perf_counter() - start, time.process_time() - started
        beside = sum(path.stat().st_size for path in (folder / "plots").iterdir())
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        size = page.stat().st_size
        print(
            f"{2 * n_settings:4} arms x {n_seeds:3} seeds {seconds:6.1f} s, {busy:5.1f} s busy, "
            f"page {size / 1e6:4.1f} MB, plots {beside / 1e6:4.1f} MB, memory {memory:4.0f} MB"
        )


if __name__ == "__main__":
    shapes = [(10, 10), (50, 2), (1, 100)]
    for n_settings, n_seeds in shapes if len(sys.argv) == 1 else [shapes[int(sys.argv[1])]]:
        measure(n_settings, n_seeds)
