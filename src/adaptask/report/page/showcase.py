"""The runs whose potentials of class pairs are shown: one of each arm that learns them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
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
from adaptask.report.page.potentials import (
    Matrix,
    cluster_order,
    confusion_rank,
    evenly_spread,
    has_pairs,
    log_potentials,
)
from adaptask.report.run import Portrait, Run, Snapshot, snapshot_files
from adaptask.report.study import Study

MAX_SHOWCASES = 6
MAX_FRAMES = 25
MAX_CLASSES = 400
"""A showcase has at most this many classes, so that the page of a large dataset stays small."""
MAX_BYTES = 3_000_000
"""No further showcase is added once the matrices of a page have this many bytes."""


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
    n_classes: int
    """Of the dataset."""
    names: tuple[str, ...]
    """Of the classes that are shown."""
    steps: tuple[int, ...]
    frames: tuple[Matrix, ...]
    """Log potentials after these steps."""
    counts: NDArray[np.int64] | None
    """In how many tasks each class has been at the end."""
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

    @cached_property
    def limits(self) -> tuple[float, float]:
        """The range of the colors, the same at all times."""
        values = np.stack([frame[np.triu_indices(len(frame), 1)] for frame in self.frames])
        low, high = float(values.min()), float(values.max())
        return low, high if high > low else low + 1.0


def find_showcases(panels: Sequence[Panel]) -> tuple[list[Showcase], int]:
    """Return the runs to show, gcp with hard tasks first, and how many arms are left out.

    These are runs with potentials of class pairs, one per arm.
    """
    candidates = [(panel, series) for panel in panels for series in panel.series]
    candidates.sort(key=lambda found: (found[1].sampler != "gcp", found[1].strategy != "hard"))
    chosen: list[Showcase] = []
    left_out, room = 0, MAX_BYTES
    for panel, series in candidates:
        record = _choose_record(series)
        if record is None:
            continue
        if len(chosen) == MAX_SHOWCASES or room <= 0:
            left_out += 1
            continue
        found = _read_showcase(panel, series, record)
        room -= len(found.frames) * len(found.order) * (len(found.order) - 1) // 2
        chosen.append(found)
    return chosen, left_out


def _choose_record(series: Series) -> Run | None:
    """Return the first run with a portrait, or else the one that has come farthest."""
    found = []
    for record in series.records:
        files = snapshot_files(record.path / "snapshots")
        if files:
            found.append((not (record.path / "portrait.npz").exists(), -files[-1][0], record))
    if not found:
        return None
    record = min(found, key=lambda entry: entry[:2])[2]
    last = record.last_snapshot
    return record if last is not None and has_pairs(last) else None


def pair_snapshots(record: Run, at_most: int) -> Iterator[Snapshot]:
    """Yield snapshots of a run that have pair potentials, evenly spread; only these are read.

    Damaged ones are left out. With thousands of classes all of them would not fit into memory.
    """
    last = record.last_snapshot
    if last is None or not has_pairs(last):
        return
    assert last.distribution is not None
    files = [file for file in snapshot_files(record.path / "snapshots") if file[0] <= last.step]
    for place in evenly_spread(len(files), at_most):
        snapshot = record.snapshot(*files[place])
        if snapshot is None or snapshot.distribution is None:
            continue
        if snapshot.distribution.shape == last.distribution.shape:
            yield snapshot


def _read_showcase(panel: Panel, series: Series, record: Run) -> Showcase:
    last = record.last_snapshot
    assert last is not None
    potentials = log_potentials(last)
    n_classes = len(potentials)
    uniform = panel.uniform_for(series)
    found = [
        (uniform.name, uniform.portrait(record.seed)) if uniform else ("", None),
        (series.name, record.portrait),
    ]
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
        n_classes=n_classes,
        names=tuple(names[c] for c in shown),
        steps=tuple(steps),
        frames=tuple(frames),
        counts=None if last.class_counts is None else last.class_counts[shown],
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


@dataclass(frozen=True, eq=False)
class StudyData:
    """All that the sections of a page are made from."""

    folder: Path
    study: Study
    panels: list[Panel]
    styles: dict[str, Style]
    """By the names of the series."""
    showcases: list[Showcase]
    """Close-ups are of the first."""
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
    showcases, n_hidden = find_showcases(panels)
    return StudyData(folder, study, panels, choose_styles(panels), showcases, n_hidden)
