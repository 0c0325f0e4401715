"""Number of classes or difficulty: when does `neighbor` help? The runs of docs/class-counts.md.

Run: python benchmarks/class_counts.py --part 1/2     (and 2/2 beside it: 50 minutes on two cores)
     python benchmarks/class_counts.py --choose       (strengths on validation classes: 40 minutes)
     python benchmarks/class_counts.py --write        (the tables and the picture of the page)

Every run trains on some of the training classes of Omniglot: characters drawn with the run's seed,
each with its four rotations. Those of a smaller number are among those of a larger one, and all
samplers of a seed have the same. A run that ends is appended to the records at once, and what is
there is not run again. Omniglot must have been prepared.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from _records import (
    DOCS,
    append,
    digest,
    fill_in,
    is_recorded,
    late_training,
    percentages,
    read_rows,
)
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
from adaptask.experiments.run import resolve_auto, run_steps
from adaptask.intervals import Intervals
from adaptask.report.run import Run
from adaptask.report.statistics import holm
from adaptask.training.device_steps import finish
from adaptask.training.displays import Quiet
from frozen_features import described, p_text, validate

PAGE = DOCS / "class-counts.md"
RECORDS = DOCS / "reproduction" / "class-counts.csv"
PICTURE = DOCS / "images" / "class-counts.png"
CHOSEN_FROM = DOCS / "reproduction" / "class-counts-validation.csv"

COUNTS = (64, 256, 1024, 4112)
UNIFORM, FIXED, DEFAULT = SAMPLERS = ("uniform", "neighbor 1", "neighbor")
"""`neighbor 1` has the fixed strength `beta` 1."""
EARLIER = "neighbor 0-2"
"""The default of before these runs, `beta` 2 for any number of classes; a few seeds have it."""
BETAS = (0.0, 0.5, 1.0, 2.0)
"""Fixed strengths that were validated."""
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

VALIDATED = {
    "turned": ((EASY, BETWEEN, HARD), (64, 128, 256, 512, 1024)),
    "upright": ((EASY, BETWEEN), (64, 128, 256, 512, 1028)),
    "glyphs": ((EASY,), (192,)),
}
"""Settings and numbers of classes: Omniglot with rotations as classes, without, and `glyphs`."""

Differences = Mapping[int, float]
"""Of the accuracies of a sampler and uniform, by seed."""


# Data ---------------------------------------------------------------------------------------------


def __getattr__(name: str) -> Callable[[str], ImageSet]:
    """Return the dataset of a name such as `turned_64_3`: 64 training classes, seed 3."""
    kind, *numbers = name.split("_")
    if kind not in ("turned", "upright"):
        raise AttributeError(name)
    n_classes, seed = map(int, numbers)
    return lambda split: some_classes(split, n_classes, seed, turned=kind == "turned")


def some_classes(split: str, n_classes: int, seed: int, *, turned: bool = True) -> ImageSet:
    """Return a split of Omniglot; of the training classes random characters.

    Args:
        split: `train`, `val` or `test`.
        n_classes: Number of training classes.
        seed: Decides which characters.
        turned: Whether each character is there in all four rotations, or upright alone.
    """
    found = load("omniglot", split)
    if split != "train":
        return found
    assert found.variant_of is not None
    is_kept = torch.tensor([turned or name.endswith("/rot000") for name in found.class_names])
    characters = found.variant_of.unique()  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(seed)
    n_characters = n_classes // 4 if turned else n_classes
    chosen = characters[torch.randperm(len(characters), generator=generator)][:n_characters]
    classes = (torch.isin(found.variant_of, chosen) & is_kept).nonzero().flatten().tolist()
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
            dataset=f"{Path(__file__).stem}:turned_{n_classes}_{seed}",
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
    """Return what identifies the runs: all of a seed before the next, those of Conv-4 last."""
    keys = [
        {"setting": name, "n_classes": n_classes, "sampler": sampler, "seed": seed}
        for seed in (range(10) if seeds is None else seeds)
        for name in settings
        if seeds is not None or seed < SETTINGS[name].seeds
        for n_classes in COUNTS
        for sampler in SAMPLERS
    ]
    return sorted(keys, key=lambda key: key["setting"] == CONV4)


def make_runs(keys: Iterable[Mapping[str, Any]], folder: Path, records: Path) -> None:
    """Make the runs that are not in the records."""
    for key in keys:
        if is_recorded(records, key):
            continue
        path = folder / "-".join(map(str, key.values())).replace(" ", "-")
        name, n_classes, sampler, seed = key.values()
        finish(
            run_steps(config_of(name, n_classes, sampler, seed), path, display=Quiet(sys.stderr))
        )
        found = measured(path)
        append(records, dict(key) | found)
        print(*key.values(), found["accuracy"], flush=True)
        shutil.rmtree(path)


def choose(records: Path) -> None:
    """Record the accuracy of strengths on validation classes that are not recorded yet."""
    for key in plan_validation():
        kind, name, n_classes, beta, seed = key.values()
        if is_recorded(records, key):
            continue
        some = f"{Path(__file__).stem}:{kind}_{n_classes}_{seed}"
        config = config_of(name, n_classes, FIXED, seed)
        config = replace(
            config,
            data=replace(config.data, dataset=kind if kind == "glyphs" else some),
            sampler=configure("sampler", "neighbor", beta=beta, target_accuracy=None),
        )
        accuracy = validate(resolve_auto(config, torch.device("cpu")))
        append(records, key | {"accuracy": f"{100 * accuracy:.2f}"})


def plan_validation() -> list[dict[str, Any]]:
    """Return what identifies the runs from which the default strength was chosen."""
    return [
        {"kind": kind, "setting": name, "n_classes": n_classes, "beta": beta, "seed": seed}
        for seed in (100, 101, 102)
        for kind, (names, counts) in VALIDATED.items()
        for name in names
        for n_classes in counts
        for beta in BETAS
        if kind != "upright" or beta != 0.5  # left out to save time
    ]


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


def facts(rows: Sequence[Mapping[str, str]]) -> str:
    """Return what the fixed strength gains by classes and by difficulty, as a list."""

    def gain(setting: str, n_classes: int) -> str:
        return f"{statistics.fmean(differences(rows, setting, n_classes, FIXED).values()):+.2f}"

    def right(setting: str, n_classes: int) -> str:
        return f"{mean(rows, setting, n_classes, UNIFORM, 'train_accuracy'):.0f} %"

    few, many = COUNTS[0], COUNTS[-1]
    by_classes = [f"{gain(EASY, n)} with {n:,}" for n in reversed(COUNTS)]
    by_pixels = [
        f"{gain(name, many)} at {name} ({right(name, many)})" for name in (EASY, BETWEEN, HARD)
    ]
    return "\n".join(
        (
            f"- **The number of classes counts.** At {EASY} pixels strength 1 gains, by the number "
            f"of classes: {', '.join(by_classes)}. But the training tasks of {few} classes are "
            f"solved best: {right(EASY, few)} of their queries are right, {right(EASY, many)} with "
            f"{many:,}.",
            f"- **Difficulty counts.** With all {many:,} classes it gains, by the number of pixels "
            f"(in brackets, how many queries of uniform training tasks are right): "
            f"{', '.join(by_pixels)}.",
            f"- **Solved is not learned.** {few} classes are {20 * few:,} images, which are soon "
            f"memorized: even at {HARD} pixels {right(HARD, few)} of the training queries are "
            f"right, and harder tasks lose most ({gain(HARD, few)}).",
        )
    )


def mean(
    rows: Iterable[Mapping[str, str]], setting: str, n_classes: int, sampler: str, field: str
) -> float:
    """Return the mean of a field over the seeds of an arm."""
    key = {"setting": setting, "n_classes": str(n_classes), "sampler": sampler}
    return statistics.fmean(float(row[field]) for row in rows if key.items() <= row.items())


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the table of all settings."""
    heads = ["images", "classes", "right in training: uniform", "fixed", "default"]
    heads += ["accuracy, uniform", "fixed strength", "default"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for setting in SETTINGS:
        for n_classes in COUNTS:
            cells = [setting, f"{n_classes:,}"]
            fields = [(name, "train_accuracy") for name in SAMPLERS] + [(UNIFORM, "accuracy")]
            cells += [f"{mean(rows, setting, n_classes, *field):.1f}" for field in fields]
            for sampler in (FIXED, DEFAULT):
                pairs = list(differences(rows, setting, n_classes, sampler).values())
                cells.append(described(pairs))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write(
    page: str, rows: Sequence[Mapping[str, str]], validated: Sequence[Mapping[str, str]]
) -> str:
    """Return the page with what is between its markers replaced."""
    made = {
        "primary": primary(rows),
        "facts": facts(rows),
        "settings": table(rows),
        "validation": validation_table(validated),
        "limits": limits(validated),
    }
    return fill_in(page, made)


# How the default was chosen -----------------------------------------------------------------------

Cell = tuple[str, str, int]
"""What the classes are, the setting, and the number of classes."""


def validated_gains(rows: Iterable[Mapping[str, str]]) -> dict[Cell, dict[float, float]]:
    """Return the mean difference of every strength to strength 0, by cell."""
    found: dict[Cell, dict[float, list[float]]] = {}
    for row in rows:
        cell = row["kind"], row["setting"], int(row["n_classes"])
        some = found.setdefault(cell, {}).setdefault(float(row["beta"]), [])
        some.append(float(row["accuracy"]))  # those of a cell have the same seeds, in order
    return {
        cell: {
            beta: statistics.fmean(some) - statistics.fmean(by_beta[0.0])
            for beta, some in by_beta.items()
        }
        for cell, by_beta in found.items()
    }


def validation_table(rows: Iterable[Mapping[str, str]]) -> str:
    """Return the table of the strengths that were validated."""
    kinds = {"turned": "Omniglot, turned", "upright": "Omniglot, upright", "glyphs": "glyphs"}
    gains = validated_gains(rows)
    lines = ["| classes are | images | number | 0.5 | 1 | 2 |", "|---|---|---|---|---|---|"]
    for kind, (names, counts) in VALIDATED.items():
        for name in names:
            for n_classes in counts:
                own = gains[kind, name, n_classes]
                cells = [f"{own[beta]:+.2f}" if beta in own else "" for beta in BETAS[1:]]
                lines.append(f"| {kinds[kind]} | {name} | {n_classes:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def limits(rows: Iterable[Mapping[str, str]]) -> str:
    """Return the table of limits of the strength: what they gain in the cells chosen from."""
    cells = {cell: own for cell, own in validated_gains(rows).items() if cell[0] == "turned"}
    lines = ["| classes left | mean gain | largest loss | cells that lose |", "|---|---|---|---|"]
    for n_left in (64, 100, 128, 160, 200, 256, 384, 512):
        found = []
        for (_, _, n_classes), own in cells.items():
            strength = min(2.0, math.sqrt(2 * math.log(max(1.0, n_classes / n_left))))
            found.append(float(np.interp(strength, BETAS, [own[beta] for beta in BETAS])))
        n_losing = sum(gain < 0 for gain in found)
        worst = f"{min(found):+.2f}" if n_losing else "none"
        lines.append(
            f"| {n_left} | {statistics.fmean(found):+.2f} | {worst} | {n_losing} of {len(found)} |"
        )
    return "\n".join(lines)


# The picture --------------------------------------------------------------------------------------


def draw(rows: Sequence[Mapping[str, str]]) -> Figure:
    """Return the picture: the gain over the number of classes, a line per setting."""
    figure = Figure(figsize=(7.2, 2.9), dpi=170, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    draw_gains(left, rows, FIXED)
    draw_gains(right, rows, DEFAULT)
    left.set_title("fixed strength 1", fontsize=9)
    right.set_title("default options", fontsize=9)
    left.set_ylabel("points above uniform", fontsize=8.5)
    right.legend(fontsize=8, frameon=False, loc="lower right")
    return figure


def draw_gains(axes: Axes, rows: Sequence[Mapping[str, str]], sampler: str) -> None:
    """Draw the means over seeds with their 95 % intervals."""
    axes.axhline(0, color="#767676", lw=1, zorder=0)
    colors = dict(zip(SETTINGS, ("#0b7a55", "#1f4e9c", "#7b3f9e", "#c4570f"), strict=True))
    for place, (name, color) in enumerate(colors.items()):
        gains = [list(differences(rows, name, n, sampler).values()) for n in COUNTS]
        half = [stats.t.ppf(0.975, len(some) - 1) * stats.sem(some) for some in gains]
        shifted = [n * 1.06 ** (place - 1.5) for n in COUNTS]  # intervals beside each other
        means = [statistics.fmean(some) for some in gains]
        label = name if name == CONV4 else f"{name} pixels"
        style = "o--" if name == CONV4 else "o-"
        axes.errorbar(shifted, means, half, fmt=style, color=color, ms=4, lw=1.4, label=label)
    axes.set_xscale("log")
    axes.set_xticks(COUNTS, [f"{n:,}" for n in COUNTS])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("training classes", fontsize=8.5)
    axes.tick_params(labelsize=8)
    for side in ("right", "top"):
        axes.spines[side].set_visible(False)


def main() -> None:
    """Make runs, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", nargs="+", type=int, help="by default those of the settings")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="which share of the runs")
    parser.add_argument("--folder", type=Path, default=Path("runs/class-counts"))
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--choose", action="store_true", help="validate strengths instead")
    parser.add_argument("--write", action="store_true", help="write the page instead")
    arguments = parser.parse_args()
    if arguments.write:
        rows = read_rows(RECORDS)
        PAGE.write_text(write(PAGE.read_text(), rows, read_rows(CHOSEN_FROM)))
        mpl.rcParams["font.size"] = 8
        draw(rows).savefig(PICTURE, metadata={"Records": digest(RECORDS)})
        return
    if arguments.choose:
        choose(CHOSEN_FROM)
        return
    part, n_parts = map(int, arguments.part.split("/"))
    keys = plan(arguments.only, arguments.seeds)[part - 1 :: n_parts]
    make_runs(keys, arguments.folder, arguments.records)


if __name__ == "__main__":
    main()
