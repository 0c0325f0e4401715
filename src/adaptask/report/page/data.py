"""What a page shows: the arms of a study as series in plots, with styles, curves and accuracies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptask.report.formats import clean
from adaptask.report.run import Algorithm, Preview, Run, Snapshot, describe_name, snapshot_files
from adaptask.report.study import Arm, Study
from adaptask.report.summary import ArmSummary, StudySummary
from adaptask.report.verdicts import named

Matrix = NDArray[np.float32]
"""Log potentials, `classes x classes`, symmetric, finite, 0 on the diagonal."""

MAX_COLORS = 8
"""A plot can have this many lines in different colors."""


def shorten(text: str, length: int) -> str:
    """Return a text of at most `length` characters; a longer one loses its middle.

    >>> shorten("latin-small-letter-a", 11)
    'latin…ter-a'
    """
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[len(text) - tail :]}"


def class_labels(names: Iterable[str]) -> tuple[str, ...]:
    """Return cleaned names of classes; a class without a name gets its number."""
    return tuple(clean(name) or f"(class {number})" for number, name in enumerate(names))


@dataclass(frozen=True)
class Style:
    """The look of a line; lines never differ by color alone."""

    color: str
    dashes: tuple[float, ...] = ()


# The palette of Okabe and Ito (2008), which people with any color vision can tell apart. Green and
# red are the colors of random and adaptive sampling in the paper's Figure 5.
BASELINE = Style("#009e73", (4, 1.6))
"""Of what the others are compared with, in every report."""
PALETTE = (
    Style("#d55e00"),
    Style("#0072b2", (6, 1.4)),
    Style("#e69f00", (1.2, 1.4)),
    Style("#56b4e9", (6, 1.4, 1.2, 1.4)),
    Style("#cc79a7", (3, 1.2)),
    Style("#7f6a00", (8, 2)),
    Style("#666666", (2, 2)),
)
BACKGROUND = Style("#9aa0a6")
"""Of lines that are too many to have a color of their own."""


@dataclass(frozen=True, eq=False)
class Curve:
    """A metric over time; each array has one entry per point."""

    steps: NDArray[np.int64]
    mean: NDArray[np.float64]
    """Over the runs that have got this far."""
    low: NDArray[np.float64]
    """Of the lowest run."""
    high: NDArray[np.float64]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return len(self.steps) == 0


def aggregate(
    runs: Sequence[tuple[NDArray[np.int64], NDArray[np.float64]]], *, max_points: int = 60
) -> Curve:
    """Return mean and range over runs, each given by its steps in ascending order and its values.

    If the runs have more than `max_points` steps, the span is divided into that many intervals of
    equal length. The value of a run is the mean of its records in an interval, at its last step.
    """
    ends = np.unique(np.concatenate([np.empty(0, np.int64), *(steps for steps, _ in runs)]))
    if len(ends) > max_points:
        # From the whole span: runs of one length get the same intervals whatever they record.
        ends = np.unique(np.ceil(np.linspace(0, ends[-1], max_points + 1)[1:])).astype(np.int64)
    values = np.full((len(runs), len(ends)), np.nan)
    for row, (run_steps, run_values) in zip(values, runs, strict=True):
        place = np.searchsorted(ends, run_steps)
        counts = np.bincount(place, minlength=len(ends))
        sums = np.bincount(place, weights=run_values, minlength=len(ends))
        row[counts > 0] = sums[counts > 0] / counts[counts > 0]
    kept = ~np.isnan(values).all(axis=0)
    values = values[:, kept]
    low = np.fmin.reduce(values, axis=0, initial=np.inf)
    high = np.fmax.reduce(values, axis=0, initial=-np.inf)
    return Curve(ends[kept], np.nanmean(values, axis=0), low, high)


@dataclass(frozen=True, eq=False)
class Series:
    """An arm as a line in a plot, with those of its runs that have begun and can be read."""

    name: str
    found: ArmSummary
    runs: tuple[Run, ...]
    sampler: Algorithm
    is_baseline: bool
    """Whether others are compared with it, or its sampler does not learn."""

    @property
    def arm(self) -> Arm:
        """The arm."""
        return self.found.arm

    @property
    def strategy(self) -> str:
        """The tasks that its sampler prefers: `hard` unless the configuration says otherwise."""
        settings = self.runs[0].settings if self.runs else {}
        return str(settings.get("sampler", {}).get("strategy", "hard"))

    def class_counts(self) -> NDArray[np.int64] | None:
        """Return the number of tasks that each class was in, over all runs; None if unknown."""
        snapshots = (run.last_snapshot for run in self.runs)
        found = [s.class_counts for s in snapshots if s and s.class_counts is not None]
        found = [counts for counts in found if len(counts) == len(found[0])]
        return np.sum(found, axis=0) if found else None

    def preview(self, seed: int | None = None) -> Preview | None:
        """Return the preview of the run with that seed, or else the first that there is."""
        runs = sorted(self.runs, key=lambda run: run.seed != seed)
        return next((r.preview for r in runs if r.preview is not None), None)


@dataclass(frozen=True, eq=False)
class Panel:
    """All arms that differ only in how tasks are drawn."""

    title: str
    labels: Mapping[str, str]
    series: tuple[Series, ...]

    def baseline_for(self, series: Series) -> Series | None:
        """Return the series that another one is compared with."""
        others = [other for other in self.series if other.is_baseline and other is not series]
        others.sort(key=lambda other: other.arm.name != series.arm.baseline)
        return others[0] if others else None


@dataclass(frozen=True, eq=False)
class PairPotentials:
    """A run whose pair potentials are shown, and the baseline run beside it."""

    title: str
    panel: Panel
    series: Series
    run: Run
    drawn: tuple[tuple[Series, Preview], ...]
    """The baseline and the run itself, with their tasks, as far as they have previews."""
    names: tuple[str, ...]
    """Names of all classes."""
    last: Matrix
    """After the last snapshot."""

    @property
    def preview(self) -> Preview | None:
        """Of the run itself, or else of the baseline."""
        return self.drawn[-1][1] if self.drawn else None


def find_potentials(panels: Iterable[Panel]) -> PairPotentials | None:
    """Return the first run with pair potentials, of a sampler that prefers hard tasks if any does.

    Of the runs of an arm it is the first that has ended, or else the one with the most steps.
    """
    arms = [(panel, series) for panel in panels for series in panel.series]
    for panel, series in sorted(arms, key=lambda arm: arm[1].strategy != "hard"):
        run = max(series.runs, key=_progress, default=None)
        last = run.last_snapshot if run else None
        if run is None or last is None or not count_paired(last):
            continue
        potentials = log_potentials(last)
        baseline = panel.baseline_for(series)
        found = [(baseline, baseline.preview(run.seed))] if baseline else []
        found.append((series, run.preview))
        drawn = [(of, p) for of, p in found if p and len(p.class_names) == len(potentials)]
        names = drawn[-1][1].class_names if drawn else [""] * len(potentials)
        where = f"{panel.title}: " if panel.title else ""
        title = f"{where}{series.name}, seed {run.seed}"
        return PairPotentials(
            title, panel, series, run, tuple(drawn), class_labels(names), potentials
        )
    return None


def _progress(run: Run) -> tuple[bool, int]:
    files = snapshot_files(run.path / "snapshots")
    return (run.path / "portrait.npz").exists(), files[-1][0] if files else 0


def count_paired(snapshot: Snapshot | None) -> int:
    """Return the number of classes with potentials of pairs; 0 if a snapshot has none."""
    if snapshot is None or snapshot.distribution is None:
        return 0
    shape = snapshot.distribution.shape
    return shape[0] if len(shape) == 2 and shape[0] == shape[1] > 1 else 0


def log_potentials(snapshot: Snapshot) -> Matrix:
    """Return the log potentials of a snapshot with 0 on the diagonal, all finite, symmetric."""
    matrix = np.array(snapshot.distribution, dtype=np.float32)
    np.fill_diagonal(matrix, 0.0)
    matrix = np.nan_to_num(matrix, nan=0.0, posinf=88.0, neginf=-88.0)
    return np.asarray((matrix + matrix.T) / 2, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class StudyData:
    """Everything that the sections of a page are made from."""

    folder: Path
    summary: StudySummary
    panels: list[Panel]
    styles: dict[str, Style]
    """By the names of the series."""
    potentials: PairPotentials | None
    """Of one run; None if no sampler learns potentials of class pairs."""

    @property
    def study(self) -> Study:
        """The study."""
        return self.summary.study

    @property
    def plots(self) -> Path:
        """Folder of the files of plots."""
        return self.folder / "plots"

    def close_up_style(self, name: str) -> Style:
        """Return the style of a series that is shown alone, never that of the background."""
        return PALETTE[0] if self.styles[name] == BACKGROUND else self.styles[name]


def read_data(folder: Path, summary: StudySummary) -> StudyData:
    """Return the data of the page in a folder."""
    panels = read_panels(summary)
    return StudyData(folder, summary, panels, choose_styles(panels), find_potentials(panels))


def read_panels(summary: StudySummary) -> list[Panel]:
    """Return the panels of a study, in its order."""
    of_sampler, varying = sampler_labels(summary.study), summary.study.varying
    baselines = {found.arm.baseline for found in summary.arms}
    groups: dict[tuple[tuple[str, str], ...], list[Series]] = {}
    for found in summary.arms:
        key = tuple((k, v) for k, v in found.arm.labels.items() if k not in of_sampler)
        series = _read_series(found, [k for k in of_sampler if k in varying], baselines)
        groups.setdefault(key, []).append(series)
    panels = []
    for key, members in groups.items():
        # What is the same everywhere is at the top of the page.
        labels = dict(key)
        title = clean(named(labels, [k for k in labels if k in varying]))
        panels.append(Panel(title, labels, tuple(members)))
    return panels


def sampler_labels(study: Study) -> list[str]:
    """Return the labels that say how tasks are drawn: the sampler and its options in any run."""
    runs = (run for arm in study.arms for run in arm.runs)
    options = set().union(*(run.settings.get("sampler", {}) for run in runs)) | {"sampler"}
    return [key for key in study.arms[0].labels if key.removeprefix("sampler.") in options]


def _read_series(found: ArmSummary, keys: Iterable[str], baselines: set[str | None]) -> Series:
    arm = found.arm
    begun = tuple(run for run in arm.runs if run.is_readable)
    label = arm.labels.get("sampler", "")
    known = begun[0].algorithms.get("sampler") if begun else None
    sampler = known or describe_name(label)
    name = label or sampler.name
    options = named(arm.labels, [key for key in keys if key != "sampler"])
    return Series(
        name=clean(", ".join(filter(None, (name, options)))) or clean(arm.name),
        found=found,
        runs=begun,
        sampler=sampler,
        is_baseline=arm.name in baselines or (baselines == {None} and not sampler.learns),
    )


def choose_styles(panels: Iterable[Panel]) -> dict[str, Style]:
    """Return the style of every series by its name: the same throughout a report."""
    series = [one for panel in panels for one in panel.series]
    names = list(dict.fromkeys(one.name for one in series))
    baseline = next((one.name for one in series if one.is_baseline), None)
    others = [name for name in names if name != baseline]
    free = list(PALETTE)
    if len(names) > MAX_COLORS and baseline:
        free = []  # which of many arms got the few colors would be arbitrary
    styles = {name: free.pop(0) if free else BACKGROUND for name in others}
    return styles if baseline is None else {baseline: BASELINE, **styles}
