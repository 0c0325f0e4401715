"""The runs whose potentials of class pairs are shown: one of each arm that learns them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptask.report.page.data import (
    BACKGROUND,
    PALETTE,
    Panel,
    Series,
    Style,
    choose_styles,
    class_labels,
    read_panels,
)
from adaptask.report.run import Portrait, Run, Snapshot, snapshot_files
from adaptask.report.study import Study

Matrix = NDArray[np.float32]
"""Log potentials, `classes x classes`, symmetric, 0 on the diagonal."""

# These keep the page of a large dataset below 15 MB: a byte for each pair, frame and showcase.
MAX_SHOWCASES = 6
MAX_FRAMES = 25
MAX_CLASSES = 250


@dataclass(frozen=True, eq=False)
class Showcase:
    """A run whose potentials are shown, and the uniform run beside it.

    If the dataset has more than `MAX_CLASSES` classes, all of this is about a part of them.
    """

    title: str
    panel: Panel
    series: Series
    samplers: tuple[tuple[str, Portrait], ...]
    """Uniform and then the run itself, by name, as far as they have portraits."""
    names: tuple[str, ...]
    """Of the classes that are shown."""
    steps: tuple[int, ...]
    frames: tuple[Matrix, ...]
    """Log potentials after these steps."""
    order: NDArray[np.int64]
    """Of the classes, by clustering of the last potentials."""

    @property
    def portrait(self) -> Portrait | None:
        """Of the run itself, or else of the uniform one."""
        return self.samplers[-1][1] if self.samplers else None

    @property
    def seeks_hard(self) -> bool:
        """Whether a high potential means that two classes are confused."""
        return self.series.strategy == "hard"


@dataclass(frozen=True, eq=False)
class StudyData:
    """All that the sections of a page are made from."""

    folder: Path
    study: Study
    panels: list[Panel]
    styles: dict[str, Style]
    """By the names of the series."""
    showcases: list[Showcase]
    """Gcp with hard tasks first; close-ups are of the first."""
    n_hidden: int
    """How many further arms have pair potentials that are not shown."""

    @property
    def plots(self) -> Path:
        """Where plots are written."""
        return self.folder / "plots"

    def close_up_style(self, name: str) -> Style:
        """Return the style of a series that is shown alone: never that of the background."""
        return PALETTE[0] if self.styles[name] == BACKGROUND else self.styles[name]


def read_data(folder: Path, study: Study) -> StudyData:
    """Read what the page shows of a study from its folder."""
    panels = read_panels(study)
    arms = [(panel, series) for panel in panels for series in panel.series]
    arms.sort(key=lambda arm: (arm[1].sampler != "gcp", arm[1].strategy != "hard"))
    every = [(panel, series, _choose_record(series)) for panel, series in arms]
    found = [(panel, series, record) for panel, series, record in every if record]
    showcases = [_read_showcase(*one) for one in found[:MAX_SHOWCASES]]
    n_hidden = len(found) - len(showcases)
    return StudyData(folder, study, panels, choose_styles(panels), showcases, n_hidden)


def _choose_record(series: Series) -> Run | None:
    """Return the first run with a portrait, or else the one that has come farthest.

    None if it has no potentials of pairs.
    """

    def preference(record: Run) -> tuple[bool, int]:
        files = snapshot_files(record.path / "snapshots")
        return (record.path / "portrait.npz").exists(), files[-1][0] if files else 0

    record = max(series.records, key=preference, default=None)
    return record if record and _n_classes(record.last_snapshot) else None


def _n_classes(snapshot: Snapshot | None) -> int:
    """Return how many classes have potentials of pairs; 0 if a snapshot has no such potentials."""
    if snapshot is None or snapshot.distribution is None:
        return 0
    shape = snapshot.distribution.shape
    return shape[0] if len(shape) == 2 and shape[0] == shape[1] > 1 else 0


def _read_showcase(panel: Panel, series: Series, record: Run) -> Showcase:
    last = record.last_snapshot
    assert last is not None
    potentials = log_potentials(last)
    n_classes = len(potentials)
    uniform = panel.uniform_for(series)
    found = [(series.name, record.portrait)]
    if uniform:
        found.insert(0, (uniform.name, uniform.portrait(record.seed)))
    portraits = [(name, p) for name, p in found if p and len(p.class_names) == n_classes]
    names = class_labels(portraits[-1][1].class_names if portraits else [""] * n_classes)
    shown = _shown_classes(potentials, [portrait for _, portrait in portraits])
    steps, frames = [], []
    for snapshot in pair_snapshots(record, MAX_FRAMES):
        steps.append(snapshot.step)
        frames.append(log_potentials(snapshot)[np.ix_(shown, shown)])
    where = f"{panel.title}: " if panel.title else ""
    part = f", {len(shown):,} of {n_classes:,} classes" if len(shown) < n_classes else ""
    return Showcase(
        title=f"{where}{series.name}, seed {record.seed}{part}",
        panel=panel,
        series=series,
        samplers=tuple((name, _only(shown, portrait)) for name, portrait in portraits),
        names=tuple(names[c] for c in shown),
        steps=tuple(steps),
        frames=tuple(frames),
        order=cluster_order(frames[-1]),
    )


def _shown_classes(potentials: Matrix, portraits: Sequence[Portrait]) -> NDArray[np.int64]:
    """Return the classes of the first drawn tasks, and those with the highest potentials."""
    if len(potentials) <= MAX_CLASSES:
        return np.arange(len(potentials))
    turns = zip(*(portrait.tasks.tolist() for portrait in portraits), strict=False)
    drawn = dict.fromkeys(c for turn in turns for task in turn for c in task)
    # Half of the room at most: with many ways, tasks alone would fill it.
    first = list(drawn)[: MAX_CLASSES // 2]
    chosen = list(dict.fromkeys([*first, *confusion_rank(potentials).tolist()]))[:MAX_CLASSES]
    return np.sort(np.array(chosen, dtype=np.int64))


def _only(classes: NDArray[np.int64], portrait: Portrait) -> Portrait:
    """Return a portrait of some classes, with the first tasks, as far as they have no others."""
    # Later tasks that happen to fit would be those of classes that were chosen for confusion.
    inside = np.logical_and.accumulate(np.isin(portrait.tasks, classes).all(axis=1))
    names = class_labels(portrait.class_names)
    return Portrait(
        class_names=tuple(names[c] for c in classes),
        images=portrait.images[classes],
        similarity=portrait.similarity[np.ix_(classes, classes)],
        tasks=np.searchsorted(classes, portrait.tasks[inside]),
    )


def pair_snapshots(record: Run, at_most: int) -> Iterator[Snapshot]:
    """Yield snapshots of a run that have pair potentials, evenly spread; only these are read.

    Damaged ones are left out. With thousands of classes all of them would not fit into memory.
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
    """Return places of up to `at_most` of so many items, with the first and the last."""
    return np.unique(np.round(np.linspace(0, n_items - 1, min(n_items, at_most)))).astype(np.int64)


def log_potentials(snapshot: Snapshot) -> Matrix:
    """Return the log potentials of a snapshot with 0 on the diagonal, all finite, symmetric."""
    matrix = np.array(snapshot.distribution, dtype=np.float32)
    np.fill_diagonal(matrix, 0.0)
    matrix = np.nan_to_num(matrix, nan=0.0, posinf=88.0, neginf=-88.0)
    return np.asarray((matrix + matrix.T) / 2, dtype=np.float32)


def cluster_order(matrix: Matrix) -> NDArray[np.int64]:
    """Return an order of the classes in which those with high potentials are together.

    Hierarchical clustering with average linkage; the distance of two classes is the highest
    potential less theirs. Of the orders that the tree allows, the one with the smallest sum of
    distances between neighbors (optimal leaf ordering).
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
    """Return all classes, ordered by the highest potential that each has with another one."""
    others = np.where(np.eye(len(matrix), dtype=bool), -np.inf, matrix)
    return np.argsort(-others.max(axis=1), kind="stable")
