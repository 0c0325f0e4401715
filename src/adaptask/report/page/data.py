"""The data of a page: the arms of a study, and the pair potentials that their samplers learned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptask.report.page.series import (
    BACKGROUND,
    PALETTE,
    Panel,
    Series,
    Style,
    choose_styles,
    class_labels,
    read_panels,
)
from adaptask.report.run import Preview, Run, Snapshot, snapshot_files
from adaptask.report.study import Study
from adaptask.report.summary import StudySummary, summarize

Matrix = NDArray[np.float32]
"""Log potentials, `classes x classes`, symmetric, 0 on the diagonal."""

# These keep the page of a large dataset below 15 MB: one byte per pair, snapshot and run.
MAX_RUNS = 6
MAX_FRAMES = 25
MAX_CLASSES = 250


@dataclass(frozen=True, eq=False)
class PairPotentials:
    """A run whose pair potentials are shown, and the baseline run beside it.

    If the dataset has more than `MAX_CLASSES` classes, everything here is about a part of them.
    """

    title: str
    panel: Panel
    series: Series
    samplers: tuple[tuple[str, Preview], ...]
    """The baseline and then the run itself, by name, if they have previews."""
    names: tuple[str, ...]
    """Names of the classes."""
    steps: tuple[int, ...]
    frames: tuple[Matrix, ...]
    """Log potentials after these steps."""
    order: NDArray[np.int64]
    """The classes in the order of a clustering of the last potentials."""

    @property
    def preview(self) -> Preview | None:
        """Of the run itself, or else of the baseline."""
        return self.samplers[-1][1] if self.samplers else None

    @property
    def seeks_hard(self) -> bool:
        """Whether a high potential means that two classes are confused."""
        return self.series.strategy == "hard"


@dataclass(frozen=True, eq=False)
class StudyData:
    """Everything that the sections of a page are made from."""

    folder: Path
    study: Study
    summary: StudySummary
    panels: list[Panel]
    styles: dict[str, Style]
    """By the names of the series."""
    potentials: list[PairPotentials]
    """Runs that prefer hard tasks first; pairs and evolution are those of the first run."""
    n_hidden: int
    """Number of further arms with pair potentials that are not shown."""

    @property
    def plots(self) -> Path:
        """Folder of the files of plots."""
        return self.folder / "plots"

    def close_up_style(self, name: str) -> Style:
        """Return the style of a series that is shown alone, never that of the background."""
        return PALETTE[0] if self.styles[name] == BACKGROUND else self.styles[name]

    def close_ups(self) -> list[Series]:
        """Return the series that are shown closely, by their classes: a baseline and another.

        They are those of the first run with pair potentials, or else the first two of the study.
        """
        if not self.potentials:
            return list(self.panels[0].series[:2])
        first = self.potentials[0]
        baseline = first.panel.baseline_for(first.series)
        return [baseline, first.series] if baseline else [first.series]


def read_data(folder: Path, study: Study) -> StudyData:
    """Read the data of a page from the runs of a study."""
    panels = read_panels(study)
    arms = [(panel, series) for panel in panels for series in panel.series]
    arms.sort(key=lambda arm: arm[1].strategy != "hard")
    every = [(panel, series, _choose_record(series)) for panel, series in arms]
    found = [(panel, series, record) for panel, series, record in every if record]
    return StudyData(
        folder=folder,
        study=study,
        summary=summarize(study),
        panels=panels,
        styles=choose_styles(panels),
        potentials=[_read_potentials(*one) for one in found[:MAX_RUNS]],
        n_hidden=max(0, len(found) - MAX_RUNS),
    )


def _choose_record(series: Series) -> Run | None:
    """Return the first run with a preview, or else the one with the most steps.

    None if it has no pair potentials.
    """

    def preference(record: Run) -> tuple[bool, int]:
        files = snapshot_files(record.path / "snapshots")
        return (record.path / "portrait.npz").exists(), files[-1][0] if files else 0

    record = max(series.records, key=preference, default=None)
    return record if record and _n_classes(record.last_snapshot) else None


def _n_classes(snapshot: Snapshot | None) -> int:
    """Return the number of classes with pair potentials; 0 if a snapshot has none."""
    if snapshot is None or snapshot.distribution is None:
        return 0
    shape = snapshot.distribution.shape
    return shape[0] if len(shape) == 2 and shape[0] == shape[1] > 1 else 0


def _read_potentials(panel: Panel, series: Series, record: Run) -> PairPotentials:
    last = record.last_snapshot
    assert last is not None
    potentials = log_potentials(last)
    n_classes = len(potentials)
    baseline = panel.baseline_for(series)
    found = [(series.name, record.preview)]
    if baseline:
        found.insert(0, (baseline.name, baseline.preview(record.seed)))
    previews = [(name, g) for name, g in found if g and len(g.class_names) == n_classes]
    names = class_labels(previews[-1][1].class_names if previews else [""] * n_classes)
    shown = _choose_classes(potentials, [preview for _, preview in previews])
    steps, frames = [], []
    for snapshot in pair_snapshots(record, MAX_FRAMES):
        steps.append(snapshot.step)
        frames.append(log_potentials(snapshot)[np.ix_(shown, shown)])
    where = f"{panel.title}: " if panel.title else ""
    part = f", {len(shown):,} of {n_classes:,} classes" if len(shown) < n_classes else ""
    return PairPotentials(
        title=f"{where}{series.name}, seed {record.seed}{part}",
        panel=panel,
        series=series,
        samplers=tuple((name, _only(shown, preview)) for name, preview in previews),
        names=tuple(names[c] for c in shown),
        steps=tuple(steps),
        frames=tuple(frames),
        order=cluster_order(frames[-1]),
    )


def _choose_classes(potentials: Matrix, previews: Sequence[Preview]) -> NDArray[np.int64]:
    """Return the classes of the first drawn tasks, and those with the highest potentials."""
    if len(potentials) <= MAX_CLASSES:
        return np.arange(len(potentials))
    turns = zip(*(preview.tasks.tolist() for preview in previews), strict=False)
    drawn = dict.fromkeys(c for turn in turns for task in turn for c in task)
    # At most half of them: with many ways, tasks alone would take all.
    first = list(drawn)[: MAX_CLASSES // 2]
    chosen = list(dict.fromkeys([*first, *confusion_rank(potentials).tolist()]))[:MAX_CLASSES]
    return np.sort(np.array(chosen, dtype=np.int64))


def _only(classes: NDArray[np.int64], preview: Preview) -> Preview:
    """Return the part of a preview for some classes, with the first tasks that have no others."""
    # Later tasks would be a biased choice: their classes are there since they are confused.
    inside = np.logical_and.accumulate(np.isin(preview.tasks, classes).all(axis=1))
    names, similarity = class_labels(preview.class_names), preview.similarity
    return Preview(
        class_names=tuple(names[c] for c in classes),
        images=preview.images[classes],
        similarity=similarity[np.ix_(classes, classes)] if similarity.size else similarity,
        tasks=np.searchsorted(classes, preview.tasks[inside]),
    )


def pair_snapshots(record: Run, at_most: int) -> Iterator[Snapshot]:
    """Yield evenly spread snapshots of a run that have pair potentials; only these are read.

    Damaged ones are left out. With thousands of classes, memory would not hold all of them.
    """
    last = record.last_snapshot
    n_classes = _n_classes(last)
    if last is None or not n_classes:
        return
    files = [file for file in snapshot_files(record.path / "snapshots") if file[0] <= last.step]
    for place in evenly_spread(len(files), at_most):
        snapshot = record.snapshot(*files[place])
        if snapshot and _n_classes(snapshot) == n_classes:
            yield snapshot


def evenly_spread(n_items: int, at_most: int) -> NDArray[np.int64]:
    """Return up to `at_most` indices of `n_items`, including the first and the last."""
    return np.unique(np.round(np.linspace(0, n_items - 1, min(n_items, at_most)))).astype(np.int64)


def log_potentials(snapshot: Snapshot) -> Matrix:
    """Return the log potentials of a snapshot with 0 on the diagonal, all finite, symmetric."""
    matrix = np.array(snapshot.distribution, dtype=np.float32)
    np.fill_diagonal(matrix, 0.0)
    matrix = np.nan_to_num(matrix, nan=0.0, posinf=88.0, neginf=-88.0)
    return np.asarray((matrix + matrix.T) / 2, dtype=np.float32)


def cluster_order(matrix: Matrix) -> NDArray[np.int64]:
    """Return an order of the classes that puts those with high potentials side by side.

    Hierarchical clustering with average linkage; the distance of two classes is the highest
    potential minus theirs. Of the orders that the tree allows, it is the one with the smallest sum
    of distances between neighbors (optimal leaf ordering).
    """
    from scipy.cluster.hierarchy import leaves_list, linkage

    n_classes = len(matrix)
    if n_classes < 3:
        return np.arange(n_classes)
    above = np.triu_indices(n_classes, 1)
    distances = matrix[above].max() - matrix[above].astype(np.float64)
    tree = linkage(distances, method="average", optimal_ordering=True)
    return np.asarray(leaves_list(tree), dtype=np.int64)


def confusion_rank(matrix: Matrix) -> NDArray[np.int64]:
    """Return all classes in the order of the highest potential that each has with another."""
    others = np.where(np.eye(len(matrix), dtype=bool), -np.inf, matrix)
    return np.argsort(-others.max(axis=1), kind="stable")
