"""What neighbor sampling is worth: the comparisons of docs/neighbor-results.md.

Run: python benchmarks/neighbor.py --only 1 2a --folder runs/neighbor       (on a GPU)
     python benchmarks/neighbor.py --picture                                (draws the records)

Makes the runs of some comparisons, several at a time on one GPU, and prints one line per run, in
the columns of docs/reproduction/neighbor.csv. Omniglot and CIFAR-FS must have been prepared. On one
H200, torch 2.11, 130 of these runs took seven minutes in four processes that shared the GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from scipy import stats
from torch import Tensor

from _records import DOCS, digest, late_training, read_rows
from adaptask.data.datasets import load
from adaptask.data.images import EvaluationTasks
from adaptask.experiments.backends.interleaved import Interleaved
from adaptask.experiments.config import (
    DataConfig,
    EvaluationConfig,
    MachineConfig,
    OptimizerConfig,
    RunConfig,
    TaskConfig,
)
from adaptask.experiments.options import configure
from adaptask.intervals import Intervals
from adaptask.report.run import Run
from adaptask.report.study import Arm
from adaptask.samplers import NeighborSampler

RECORDS = DOCS / "reproduction" / "neighbor.csv"
PICTURE = DOCS / "images" / "neighbor-differences.png"
LABELS = {
    "1": "ProtoNet, 5-way",
    "2a": "ProtoNet, best of 30 images per step",
    "2b": "ProtoNet, best of 120 images per step",
    "3a": "Matching Network, 5-way",
    "3b": "ANIL, 5-way",
    "5a": "ProtoNet, 5-way, class ids permuted",
    "5b": "ProtoNet, 5-way, neighbors by pixels",
    "4": "ProtoNet on CIFAR-FS, beta 1",
    "6": "ProtoNet, 5-way, default options",
    "7": "ProtoNet on CIFAR-FS, default options",
}


class PermutedNeighbor(NeighborSampler):
    """Gives every feature to another class, always the same one."""

    permutation: Tensor

    def __init__(self, *, n_classes: int, n_way: int, seed: int = 0, **options: Any) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, **options)
        order = torch.randperm(n_classes, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("permutation", order.to(self.device), persistent=False)

    def update(
        self,
        class_ids: Tensor,
        probabilities: Tensor,
        labels: Tensor,
        *,
        class_features: Tensor | None = None,
    ) -> None:
        """Learn about other classes."""
        others = self.permutation[class_ids]
        super().update(others, probabilities, labels, class_features=class_features)


class PixelNeighbor(NeighborSampler):
    """Takes the mean of the images of a class for its feature, 64 principal components."""

    def __init__(self, *, n_classes: int, n_way: int, n_features: int, **options: Any) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, n_features=n_features, **options)
        means = load("omniglot", "train").images.view(n_classes, -1, 784).float().mean(1)
        u, s, _ = torch.linalg.svd(means - means.mean(0), full_matrices=False)
        unit = torch.nn.functional.normalize(u[:, :n_features] * s[:n_features])
        self.class_features.copy_(unit)
        self.seen.fill_(True)

    def update(self, *feedback: Tensor, class_features: Tensor | None = None) -> None:
        """Learn nothing."""


def arms() -> dict[str, list[tuple[Arm, range]]]:
    """Return the arms of every comparison and their seeds; the first is uniform."""

    def pair(
        name: str,
        way: int,
        queries: int,
        options: dict[str, Any],
        other: tuple[int, int] | None = None,
        **settings: Any,
    ) -> list[tuple[Arm, range]]:
        uniform = arm(f"{name}-uniform", "uniform", way, queries, {}, **settings)
        way, queries = other or (way, queries)
        return [
            (uniform, range(10)),
            (arm(f"{name}-neighbor", "neighbor", way, queries, options, **settings), range(10)),
        ]

    controls = {"5a": ("permuted", "PermutedNeighbor"), "5b": ("pixels", "PixelNeighbor")}
    fixed = {"target_accuracy": None}
    return {
        "1": pair("1", 5, 5, {"beta": 3.0, **fixed}),
        "2a": pair("2a", 15, 1, {"beta": 2.0, **fixed}),
        "2b": pair("2b", 60, 1, {"beta": 1.0, **fixed}, other=(40, 2)),
        "3a": pair(
            "3a", 5, 5, {"beta": 3.0, **fixed}, learner="matchingnet", steps=10_000, tested=5
        ),
        "3b": pair(
            "3b", 5, 5, {"beta": 3.0, **fixed}, learner="anil", steps=8_000, tested=5, tasks=4
        ),
        "4": pair("4", 5, 15, {"beta": 1.0, **fixed}, dataset="cifar-fs", tested=5),
        **{
            name: [
                (
                    arm(f"{name}-{label}", f"{__name__}:{kind}", 5, 5, {"beta": 3.0, **fixed}),
                    range(5),
                )
            ]
            for name, (label, kind) in controls.items()
        },
        # The default of that time, whatever the number of classes.
        "6": pair("6", 5, 5, {"beta": 2.0}),
        "7": pair("7", 5, 15, {"beta": 2.0}, dataset="cifar-fs", tested=5),
    }


def arm(
    name: str,
    sampler: str,
    way: int,
    queries: int,
    options: dict[str, Any],
    *,
    dataset: str = "omniglot",
    learner: str = "protonet",
    steps: int = 20_000,
    tasks: int = 1,
    tested: int = 20,
) -> Arm:
    """Return one arm."""
    within: tuple[EvaluationTasks, ...] = ("uniform",)
    if dataset == "omniglot":
        within = ("uniform", "within-group")
    config = RunConfig(
        steps=steps,
        data=DataConfig(dataset=dataset),
        task=TaskConfig(n_way=way, n_shot=1, n_query=queries, n_tasks=tasks),
        sampler=configure("sampler", sampler, **options),
        learner=configure("learner", learner),
        optimizer=OptimizerConfig(schedule="cosine"),
        evaluation=EvaluationConfig(
            n_way=tested, n_query=5, n_episodes=2000, n_validation=100, tasks=within
        ),
        # Validated once, at the end: the last weights are the best ones.
        every=Intervals(log=1000, validate=steps, checkpoint=steps, snapshot=steps),
        machine=MachineConfig(compile="yes" if torch.cuda.is_available() else "no"),
    )
    return Arm(name, {}, config=config)


def record(run: Run, name: str) -> dict[str, Any]:
    """Return what is kept of a run that has ended."""
    result = json.loads((run.path / "test.json").read_text())
    config: RunConfig = run.config
    within = result.get("within-group")
    comparison, _, label = name.partition("-")
    return {
        "comparison": comparison,
        "sampler": label,
        "beta": getattr(config.sampler, "beta", ""),
        "seed": run.seed,
        "dataset": config.data.dataset,
        "learner": config.learner.name,
        "n_way": config.task.n_way,
        "n_query": config.task.n_query,
        "n_tasks": config.task.n_tasks,
        "steps": config.steps,
        "accuracy": f"{100 * result['accuracy']:.4f}",
        "hardest_tenth": f"{100 * result['hardest_tenth']:.4f}",
        "within_group": f"{100 * within['accuracy']:.4f}" if within else "",
        "within_group_hardest_tenth": f"{100 * within['hardest_tenth']:.4f}" if within else "",
        **late_training(run, after=0.8 * config.steps),
    }


def make_runs(comparisons: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    """Make the runs of some comparisons, and return the record of each."""
    planned = [part for name in comparisons for part in arms()[name]]
    made = [(one.with_runs(folder, seeds).runs, one.name) for one, seeds in planned]
    runs = [run for some, _ in made for run in some]
    failures = Interleaved(min(10, len(runs))).run(runs, lambda event: None)
    for name, reason in failures.items():
        print(f"{name}: {reason}")
    for some, name in made:
        yield from (record(run, name) for run in some if run.name not in failures)


def paired_differences(field: str) -> dict[str, list[float]]:
    """Return the differences to uniform, seed by seed, of every comparison that has the field."""
    rows = [row for row in read_rows(RECORDS) if row[field]]
    value = {(r["comparison"], r["sampler"], r["seed"]): float(r[field]) for r in rows}
    found: dict[str, list[float]] = {}
    for (comparison, sampler, seed), accuracy in value.items():
        if sampler != "uniform":
            baseline = "1" if comparison.startswith("5") else comparison
            difference = accuracy - value[baseline, "uniform", seed]
            found.setdefault(comparison, []).append(difference)
    return found


def draw() -> Figure:
    """Return the picture: every pair, the mean and its 95 % interval by Student's t."""
    figure = Figure(figsize=(8.4, 4.2), dpi=150)
    axes = figure.add_axes((0.34, 0.12, 0.64, 0.86))
    lines = (
        (0.17, paired_differences("accuracy"), "#1f4e9c", "uniform test tasks"),
        (-0.17, paired_differences("within_group"), "#c4570f", "tasks within an alphabet"),
    )
    for shift, differences, color, label in lines:
        for y, name in enumerate(LABELS):
            if not (some := differences.get(name)):
                continue
            at = -y + shift
            mean = statistics.fmean(some)
            half = float(stats.t.ppf(0.975, len(some) - 1) * stats.sem(some))
            axes.plot([mean - half, mean + half], [at, at], color=color, lw=2)
            axes.plot(some, [at] * len(some), "|", color=color, ms=6, alpha=0.5)
            axes.plot([mean], [at], "o", color=color, ms=5, label=label if y == 0 else None)
    axes.axvline(0, color="#767676", lw=1, zorder=0)
    axes.set_yticks([-y for y in range(len(LABELS))], LABELS.values())
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("accuracy with neighbor minus accuracy with uniform, points")
    axes.legend(loc="upper right", frameon=False)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    return figure


def main() -> None:
    """Make runs, or draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=LABELS, default=list(LABELS))
    parser.add_argument("--folder", type=Path, default=Path("runs/neighbor"))
    parser.add_argument("--picture", action="store_true", help="draw the records instead")
    arguments = parser.parse_args()
    if arguments.picture:
        mpl.rcParams["font.size"] = 10
        # A test compares it with the records, so that it is drawn again when they change.
        draw().savefig(PICTURE, metadata={"Records": digest(RECORDS)})
        return
    for row in make_runs(arguments.only, arguments.folder):
        print(",".join(map(str, row.values())), flush=True)


if __name__ == "__main__":
    main()
