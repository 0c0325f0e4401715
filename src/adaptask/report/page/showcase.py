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
from adaptask.report.page.potentials import (
    Matrix,
    cluster_order,
    confusion_rank,
    has_pairs,
    log_potentials,
)
from adaptask.report.run import Portrait, Run, Snapshot, snapshot_files
from adaptask.report.study import Study

# These keep the page of a large dataset below 15 MB: a byte for each pair, frame and showcase.
MAX_SHOWCASES = 4
MAX_FRAMES = 25
MAX_CLASSES = 400


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


def find_showcases(panels: Sequence[Panel]) -> tuple[list[Showcase], int]:
    """Return the runs to show, gcp with hard tasks first, and how many arms are left out.

    These are runs with potentials of class pairs, one per arm.
    """
    arms = [(panel, series) for panel in panels for series in panel.series]
    arms.sort(key=lambda arm: (arm[1].sampler != "gcp", arm[1].strategy != "hard"))
    every = [(panel, series, _choose_record(series)) for panel, series in arms]
    found = [(panel, series, record) for panel, series, record in every if record]
    showcases = [_read_showcase(*one) for one in found[:MAX_SHOWCASES]]
    return showcases, len(found) - len(showcases)


def _choose_record(series: Series) -> Run | None:
    """Return the first run with a portrait, or else the one that has come farthest."""

    def preference(record: Run) -> tuple[bool, int]:
        files = snapshot_files(record.path / "snapshots")
        return (record.path / "portrait.npz").exists(), files[-1][0] if files else 0

    record = max(series.records, key=preference, default=None)
    last = record.last_snapshot if record else None
    return record if last and has_pairs(last) else None


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


def evenly_spread(n_items: int, at_most: int) -> NDArray[np.int64]:
    """Return places of up to `at_most` of so many items, with the first and the last."""
    return np.unique(np.round(np.linspace(0, n_items - 1, min(n_items, at_most)))).astype(np.int64)


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
        n_classes=n_classes,
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
