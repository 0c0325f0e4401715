"""The picture of what gcp gains on CIFAR-FS: every pair of runs, beside what the paper reports.

Run: python benchmarks/differences_picture.py docs/reproduction/cifar-fs.csv docs/images

Draws each setting in which both samplers were run: the difference of every seed, their mean with
its 95 % interval by Student's t, and the paper's difference where it has one.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import statistics
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from adaptask.experiments.paper.published import METHODS, TABLE_3

OWN, PAPER, QUIET = "#1f4e9c", "#c4570f", "#767676"
NAMES = {"protonet": "ProtoNet", "matchingnet": "Matching Network"}

Setting = tuple[str, str, str, int]
"""Learner, augmentation, schedule and shots."""


def paired_differences(path: Path) -> dict[Setting, list[float]]:
    """Return gcp minus uniform, seed by seed, of every setting in the file that has both."""
    found: dict[Setting, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    with path.open() as file:
        for row in csv.DictReader(file):
            if row["precision"] == "bfloat16":
                setting = row["learner"], row["augmentation"], row["schedule"], int(row["shots"])
                found[setting][row["sampler"]][row["seed"]] = float(row["accuracy"])
    return {
        setting: [runs["gcp"][seed] - runs["uniform"][seed] for seed in sorted(runs["gcp"])]
        for setting, runs in found.items()
        if "gcp" in runs
    }


def paper_difference(setting: Setting) -> float | None:
    """Return what the paper reports, which has a constant learning rate."""
    learner, _, schedule, shots = setting
    if schedule != "constant":
        return None
    method = METHODS[learner]
    before, after = (
        TABLE_3.published(name, "cifar-fs", shots)
        for name in (method, f"{method} with gcp-sampling")
    )
    if before is None or before.accuracy is None or after is None or after.accuracy is None:
        return None
    return after.accuracy - before.accuracy


def draw_line(axes: Axes, y: float, differences: list[float], *, bold: bool = False) -> None:
    """Draw single pairs, their mean and its interval."""
    mean = statistics.fmean(differences)
    half = float(stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences))
    width = 3.0 if bold else 1.6
    axes.plot([mean - half, mean + half], [y, y], color=OWN, lw=width, solid_capstyle="round")
    if not bold:
        axes.plot(differences, [y] * len(differences), "|", color=OWN, ms=9, mew=1.2, alpha=0.6)
    axes.plot([mean], [y], "o", color=OWN, ms=9 if bold else 6)


def picture(pairs: dict[Setting, list[float]]) -> Figure:
    """Return the whole picture, settings with one shot above those with five."""
    order = sorted(pairs, key=lambda s: (s[3], s[1] == "none", s[0] != "protonet", s[2]))
    figure = Figure(figsize=(8.4, 5.1), dpi=150)
    axes = figure.add_axes((0.36, 0.1, 0.62, 0.89))
    y = 0.0
    ticks: list[float] = []
    labels: list[str] = []
    for shots in (1, 5):
        heading = "1 shot" if shots == 1 else f"{shots} shots"
        axes.text(-0.56, y + 0.6, heading, transform=axes.get_yaxis_transform(), weight="bold")
        for setting in (s for s in order if s[3] == shots):
            draw_line(axes, y, pairs[setting])
            if (paper := paper_difference(setting)) is not None:
                axes.plot([paper], [y], "D", color="white", mec=PAPER, mew=1.8, ms=7)
                if not ticks:
                    axes.text(paper, y + 0.45, "the paper", color=PAPER, ha="center")
            learner, augmentation, schedule, _ = setting
            bare = ", no augmentation" if augmentation == "none" else ""
            ticks.append(y)
            labels.append(f"{NAMES[learner]}, {schedule}{bare}")
            y -= 1
        y -= 0.9
    everything = [d for differences in pairs.values() for d in differences]
    by_seed = [statistics.fmean(d[seed] for d in pairs.values()) for seed in range(3)]
    for label, some in ((f"all {len(everything)} pairs", everything), ("three seeds", by_seed)):
        draw_line(axes, y, some, bold=True)
        ticks.append(y)
        labels.append(label)
        y -= 1
    axes.axvline(0, color=QUIET, lw=1, zorder=0)
    axes.set_yticks(ticks, labels)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("accuracy with gcp minus accuracy with uniform, points")
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.set_ylim(y + 0.3, 1.1)
    return figure


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path, help="cifar-fs.csv")
    parser.add_argument("folder", type=Path, help="where the picture goes")
    arguments = parser.parse_args()
    mpl.rcParams["font.size"] = 10
    figure = picture(paired_differences(arguments.records))
    # A test compares it with the records, so that the picture is drawn again when they change.
    digest = hashlib.sha256(arguments.records.read_bytes()).hexdigest()
    figure.savefig(arguments.folder / "cifar-fs-differences.png", metadata={"Records": digest})


if __name__ == "__main__":
    main()
