"""Which runs are looked at closely: one of each arm that learns potentials of class pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptask.report.page.names import class_labels
from adaptask.report.page.panels import Panel, Series, Style, close_up_style
from adaptask.report.page.pictures import data_uri, png, sprite, thumbnails
from adaptask.report.page.plots import SCALE
from adaptask.report.page.potentials import (
    Matrix,
    cluster_order,
    confusion_rank,
    has_pairs,
    log_potentials,
    pair_snapshots,
    quantise,
)
from adaptask.report.run import Portrait, Run, snapshot_files

MAX_RUNS = 6
MAX_FRAMES = 25
MAX_BYTES = 3_000_000
"""Of all matrices in a page; what is left of it decides how many runs are shown."""
_SPRITE_COLUMNS = 32


@dataclass(frozen=True, eq=False)
class Showcase:
    """A run that is looked at closely, and the uniform one beside it."""

    panel: Panel
    series: Series
    record: Run
    portrait: Portrait | None
    uniform: Portrait | None
    """Of the uniform run with the same seed, or else of another."""
    steps: tuple[int, ...]
    frames: tuple[Matrix, ...]
    """Log potentials after these steps."""
    counts: NDArray[np.int64] | None
    """In how many tasks each class has been at the end."""
    order: NDArray[np.int64]
    """Of the classes, by clustering of the last potentials."""
    names: tuple[str, ...]

    @property
    def title(self) -> str:
        """What is shown."""
        where = f"{self.panel.title}: " if self.panel.title else ""
        return f"{where}{self.series.name}, seed {self.record.seed}"

    @property
    def limits(self) -> tuple[float, float]:
        """The range of the colours, the same at all times."""
        values = np.stack([frame[np.triu_indices(len(frame), 1)] for frame in self.frames])
        low, high = float(values.min()), float(values.max())
        return low, high if high > low else low + 1.0


def portrait_of(series: Series | None, seed: int | None = None) -> Portrait | None:
    """Return a portrait of an arm: of the run with that seed, or else of the first that has one."""
    if series is None:
        return None
    records = sorted(series.records, key=lambda record: record.seed != seed)
    return next((r.portrait for r in records if r.portrait is not None), None)


def seeks_hard(series: Series) -> bool:
    """Return whether high potentials mean confused classes, as they do unless it seeks others."""
    return series.strategy == "hard"


def find_showcases(panels: Sequence[Panel]) -> tuple[list[Showcase], int]:
    """Return the runs to look at, gcp with hard tasks first, and how many arms are left out."""
    candidates = [(panel, series) for panel in panels for series in panel.series]
    candidates.sort(key=lambda found: (found[1].sampler != "gcp", not seeks_hard(found[1])))
    chosen: list[Showcase] = []
    left_out, room = 0, MAX_BYTES
    for panel, series in candidates:
        record = _best_record(series)
        if record is None:
            continue
        if len(chosen) == MAX_RUNS or room <= 0:
            left_out += 1
            continue
        found = _showcase(panel, series, record)
        room -= len(found.frames) * len(found.order) * (len(found.order) - 1) // 2
        chosen.append(found)
    return chosen, left_out


def _best_record(series: Series) -> Run | None:
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


def _showcase(panel: Panel, series: Series, record: Run) -> Showcase:
    snapshots = pair_snapshots(record, MAX_FRAMES)
    frames = tuple(log_potentials(snapshot) for snapshot in snapshots)
    n_classes = len(frames[-1])

    def fitting(portrait: Portrait | None) -> Portrait | None:
        fits = portrait is not None and len(portrait.class_names) == n_classes
        return portrait if fits else None

    own = fitting(record.portrait)
    uniform = fitting(portrait_of(panel.uniform_beside(series), record.seed))
    source = own or uniform
    names = source.class_names if source else [""] * n_classes
    return Showcase(
        panel=panel,
        series=series,
        record=record,
        portrait=own,
        uniform=uniform,
        steps=tuple(snapshot.step for snapshot in snapshots),
        frames=frames,
        counts=snapshots[-1].class_counts,
        order=cluster_order(frames[-1]),
        names=class_labels(names),
    )


def heatmap_data(showcases: Sequence[Showcase], styles: dict[str, Style]) -> dict[str, object]:
    """Return what the page's heatmap is drawn from, fit for JSON."""
    catalogues: list[dict[str, object]] = []
    runs = []
    for shown in showcases:
        packed = quantise(shown.frames)
        low, high = shown.limits
        runs.append(
            {
                "title": shown.title,
                "catalogue": _catalogue(shown, catalogues),
                "steps": list(shown.steps),
                "order": shown.order.tolist(),
                "rank": confusion_rank(shown.frames[-1]).tolist(),
                "low": packed.low,
                "step": packed.step,
                "data": packed.base64,
                "limits": {"low": low, "high": high},
                "tasks": _tasks(shown, styles),
            }
        )
    return {"runs": runs, "catalogues": catalogues, "scale": SCALE}


def _tasks(shown: Showcase, styles: dict[str, Style]) -> list[dict[str, object]]:
    beside = shown.panel.uniform_beside(shown.series)
    uniform = beside.name if beside else "uniform"
    return [
        {
            "name": name,
            "uniform": name == uniform,
            "colour": close_up_style(name, styles).colour,
            "tasks": portrait.tasks.tolist(),
        }
        for name, portrait in ((uniform, shown.uniform), (shown.series.name, shown.portrait))
        if portrait is not None
    ]


def _catalogue(shown: Showcase, catalogues: list[dict[str, object]]) -> int:
    """Return the place of the names and images of a run's classes; many runs share them."""
    names = list(shown.names)
    for place, known in enumerate(catalogues):
        if known["names"] == names:
            return place
    source = shown.portrait or shown.uniform
    entry: dict[str, object] = {"names": names, "sprite": None}
    if source is not None and source.images.size:
        images = thumbnails(source.images[:, 0])
        _, height, width, _ = images.shape
        entry |= {"sprite": data_uri(png(sprite(images, _SPRITE_COLUMNS)))}
        entry |= {"width": width, "height": height, "columns": _SPRITE_COLUMNS}
    catalogues.append(entry)
    return len(catalogues) - 1
