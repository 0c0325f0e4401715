"""Number of classes or difficulty: when does `neighbor` help? The runs of docs/class-counts.md.

Run: python benchmarks/class_counts.py --part 1/2     (and 2/2 beside it: 45 minutes on two cores)
     python benchmarks/class_counts.py --write        (the tables and the picture of the page)

Every run trains on some of the training classes of Omniglot: characters drawn with the run's seed,
each with its four rotations. Those of a smaller number are among those of a larger one, and all
samplers of a seed have the same. A run that ends is appended to the records at once, and what is
there is not run again. Omniglot must have been prepared.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from _records import DOCS, append, fill_in, late_training, percentages, read_rows
from adaptask.data import ImageSet
from adaptask.data.datasets import load
from adaptask.experiments.config import (
    DataConfig,
    EvaluationConfig,
    MachineConfig,
    OptimizerConfig,
    RunConfig,
    TaskConfig,
)
from adaptask.experiments.options import AlgorithmConfig, configure
from adaptask.experiments.run import run_steps
from adaptask.intervals import Intervals
from adaptask.report.run import Run
from adaptask.report.statistics import holm
from adaptask.training.device_steps import finish
from adaptask.training.displays import Quiet
from frozen_features import described, p_text

PAGE = DOCS / "class-counts.md"
RECORDS = DOCS / "reproduction" / "class-counts.csv"

COUNTS = (64, 256, 1024, 4112)
UNIFORM, FIXED, DEFAULT = SAMPLERS = ("uniform", "neighbor 1", "neighbor")
"""`neighbor 1` has the fixed strength `beta` 1."""
_MLP = configure("backbone", "mlp", norm="layer")


@dataclass(frozen=True)
class Setting:
    """What the classes look like to the learner."""

    backbone: AlgorithmConfig
    shrink: int
    """Images have 28 pixels divided by it."""
    n_tasks: int
    """Per step."""
    seeds: int


SETTINGS = {
    "14 x 14": Setting(_MLP, 2, 4, 10),
    "7 x 7": Setting(_MLP, 4, 4, 10),
    "4 x 4": Setting(_MLP, 7, 4, 10),
    "Conv-4": Setting(configure("backbone", "conv4", filters=32), 1, 1, 5),
}
EASY, BETWEEN, HARD, CONV4 = SETTINGS

Differences = Mapping[int, float]
"""Of the accuracies of a sampler and uniform, by seed."""


# Data ---------------------------------------------------------------------------------------------


def __getattr__(name: str) -> Callable[[str], ImageSet]:
    """Return the dataset of a name such as `omniglot_64_3`: 64 training classes, seed 3."""
    dataset, *numbers = name.split("_")
    if dataset != "omniglot":
        raise AttributeError(name)
    n_classes, seed = map(int, numbers)
    return lambda split: some_classes(split, n_classes, seed)


def some_classes(split: str, n_classes: int, seed: int) -> ImageSet:
    """Return a split of Omniglot; of the training classes random characters in all rotations."""
    found = load("omniglot", split)
    if split != "train":
        return found
    assert found.variant_of is not None
    characters = found.variant_of.unique()
    generator = torch.Generator().manual_seed(seed)
    chosen = characters[torch.randperm(len(characters), generator=generator)][: n_classes // 4]
    classes = torch.isin(found.variant_of, chosen).nonzero().flatten().tolist()
    assert len(classes) == n_classes, (len(classes), n_classes)
    bounds = found.class_starts.tolist()
    images = [found.images[bounds[c] : bounds[c + 1]] for c in classes]
    return ImageSet(
        dataset="omniglot",
        split=split,
        images=torch.cat(images),
        class_names=tuple(found.class_names[c] for c in classes),
        class_starts=torch.tensor([0, *np.cumsum([len(some) for some in images]).tolist()]),
    )


# Runs ---------------------------------------------------------------------------------------------


def config_of(name: str, n_classes: int, sampler: str, seed: int) -> RunConfig:
    """Return a run: ProtoNet, trained 5-way and tested 20-way; the last weights count."""
    setting, steps = SETTINGS[name], 4000
    fixed = {"beta": 1.0, "target_accuracy": None} if sampler == FIXED else {}
    return RunConfig(
        steps=steps,
        seed=seed,
        data=DataConfig(
            dataset=f"{Path(__file__).stem}:omniglot_{n_classes}_{seed}",
            augmentation="none",  # a flip turns a character into another
            shrink=setting.shrink,
        ),
        sampler=configure("sampler", sampler.split()[0], **fixed),
        task=TaskConfig(n_way=5, n_shot=1, n_query=5, n_tasks=setting.n_tasks),
        backbone=setting.backbone,
        optimizer=OptimizerConfig(schedule="cosine"),
        evaluation=EvaluationConfig(
            n_way=20, n_query=5, n_episodes=1000, n_validation=100, seed=seed
        ),
        every=Intervals(log=100, validate=steps, checkpoint=steps, snapshot=steps),
        machine=MachineConfig(threads=1),
    )


def plan(settings: Iterable[str], seeds: Sequence[int] | None) -> list[dict[str, Any]]:
    """Return what identifies the runs: all of a seed before the next."""
    return [
        {"setting": name, "n_classes": n_classes, "sampler": sampler, "seed": seed}
        for seed in (range(10) if seeds is None else seeds)
        for name in settings
        if seeds is not None or seed < SETTINGS[name].seeds
        for n_classes in COUNTS
        for sampler in SAMPLERS
    ]


def make_runs(keys: Iterable[Mapping[str, Any]], folder: Path, records: Path) -> None:
    """Make the runs that are not in the records."""
    for key in keys:
        text = {name: str(value) for name, value in key.items()}
        if any(text.items() <= row.items() for row in read_rows(records)):
            continue
        path = folder / "-".join(text.values()).replace(" ", "-")
        name, n_classes, sampler, seed = key.values()
        finish(
            run_steps(config_of(name, n_classes, sampler, seed), path, display=Quiet(sys.stderr))
        )
        found = measured(path)
        append(records, dict(key) | found)
        print(*text.values(), found["accuracy"], flush=True)
        shutil.rmtree(path)


def measured(folder: Path) -> dict[str, str]:
    """Return what is kept of a run that has ended."""
    run = Run(folder, 0)
    steps, seconds = run.curve("train", "seconds")
    return {
        **percentages(json.loads((folder / "test.json").read_text())),
        **late_training(run, after=0.8 * steps[-1]),
        "seconds": f"{seconds[-1]:.1f}",
    }


# Results ------------------------------------------------------------------------------------------


def differences(
    rows: Iterable[Mapping[str, str]], setting: str, n_classes: int, sampler: str
) -> Differences:
    """Return the differences to uniform of the seeds that both have."""
    found: dict[str, dict[int, float]] = {UNIFORM: {}, sampler: {}}
    for row in rows:
        if (row["setting"], row["n_classes"]) == (setting, str(n_classes)):
            found.setdefault(row["sampler"], {})[int(row["seed"])] = float(row["accuracy"])
    theirs = found[UNIFORM]
    return {seed: ours - theirs[seed] for seed, ours in found[sampler].items() if seed in theirs}


def contrasts(rows: Sequence[Mapping[str, str]]) -> dict[str, list[float]]:
    """Return the values by seed of the three primary comparisons."""

    def minus(ours: Differences, theirs: Differences) -> list[float]:
        return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]

    best = differences(rows, EASY, COUNTS[-1], FIXED)
    return {
        f"gain with 4,112 classes, {EASY} pixels": [best[seed] for seed in sorted(best)],
        f"the same, minus the gain with 64 classes, {EASY} pixels": minus(
            best, differences(rows, EASY, COUNTS[0], FIXED)
        ),
        f"the same, minus the gain with 4,112 classes, {HARD} pixels": minus(
            best, differences(rows, HARD, COUNTS[-1], FIXED)
        ),
    }


def primary(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the table of the primary comparisons."""
    lines = ["| | | points | p |", "|---|---|---|---|"]
    found = contrasts(rows)
    p_values = holm([float(stats.ttest_1samp(pairs, 0).pvalue) for pairs in found.values()])
    for number, (name, p) in enumerate(zip(found, p_values, strict=True), 1):
        lines.append(f"| {number} | {name} | {described(found[name])} | {p_text(p)} |")
    return "\n".join(lines)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the table of all settings."""

    def mean(setting: str, n_classes: int, sampler: str, field: str) -> str:
        key = {"setting": setting, "n_classes": str(n_classes), "sampler": sampler}
        return f"{statistics.fmean(float(r[field]) for r in rows if key.items() <= r.items()):.1f}"

    heads = ["images", "classes", "right in training: uniform", "fixed", "default"]
    heads += ["accuracy, uniform", "fixed strength", "default"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for setting in SETTINGS:
        for n_classes in COUNTS:
            cells = [setting, f"{n_classes:,}"]
            cells += [mean(setting, n_classes, name, "train_accuracy") for name in SAMPLERS]
            cells.append(mean(setting, n_classes, UNIFORM, "accuracy"))
            for sampler in (FIXED, DEFAULT):
                pairs = list(differences(rows, setting, n_classes, sampler).values())
                cells.append(described(pairs))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Make runs, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", nargs="+", type=int, help="by default those of the settings")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="which share of the runs")
    parser.add_argument("--folder", type=Path, default=Path("runs/class-counts"))
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--write", action="store_true", help="write the page instead")
    arguments = parser.parse_args()
    if arguments.write:
        rows = read_rows(RECORDS)
        made = {"primary": primary(rows), "settings": table(rows)}
        PAGE.write_text(fill_in(PAGE.read_text(), made))
        return
    part, n_parts = map(int, arguments.part.split("/"))
    keys = plan(arguments.only, arguments.seeds)[part - 1 :: n_parts]
    make_runs(keys, arguments.folder, arguments.records)


if __name__ == "__main__":
    main()
