"""What one run's sampler has learned and draws: pairs, map, tasks, evolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptask.report.page.embedding import class_map
from adaptask.report.page.figures import look, new_figure, write_figure
from adaptask.report.page.names import class_labels, shorten
from adaptask.report.page.panels import Panel, Style, close_up_style
from adaptask.report.page.pictures import coloured, data_uri, png, strip, thumbnails
from adaptask.report.page.plots import SCALE, Draw, draw_images, draw_map, draw_matrix
from adaptask.report.page.potentials import extreme_pairs, mean_within, most_confused
from adaptask.report.page.sections import Plot, make_plot
from adaptask.report.page.showcase import Showcase, portrait_of, seeks_hard
from adaptask.report.run import Portrait

N_PAIRS = 6
N_TASKS = 4
MAPPED_TASKS = 3
MAX_WAY = 10
"""Classes of a task in a file, at most; the page has them all."""
EVOLUTION = (16, 15)
"""Classes, and panels at most, as in the paper's appendix."""
_NAMED_AT_MOST = 80


@dataclass(frozen=True)
class Picture:
    """Some images of a class, side by side."""

    name: str
    image: str | None
    """A data address; None where there are no images."""


@dataclass(frozen=True)
class Pair:
    """Two classes and their log potential."""

    first: Picture
    second: Picture
    value: float


@dataclass(frozen=True)
class DrawnTasks:
    """The first tasks that a sampler drew after the last step."""

    name: str
    style: Style
    tasks: tuple[tuple[Picture, ...], ...]


@dataclass(frozen=True)
class Frame:
    """A small heatmap."""

    step: int
    image: str


def picture(portrait: Portrait | None, names: Sequence[str], class_id: int, n: int) -> Picture:
    """Return the first images of a class side by side."""
    if portrait is None or not portrait.images.size:
        return Picture(names[class_id], None)
    return Picture(names[class_id], data_uri(png(strip(thumbnails(portrait.images[class_id, :n])))))


def pairs_of(folder: Path, shown: Showcase) -> tuple[list[Pair], list[Pair]]:
    """Return the hardest and the easiest pairs of a run, and write them as a plot."""
    source = shown.portrait or shown.uniform
    extremes = extreme_pairs(shown.frames[-1], shown.counts, N_PAIRS)
    if source is not None and source.images.size:
        _write_pairs(folder, shown, source, extremes)

    def made(pairs: list[tuple[int, int, float]]) -> list[Pair]:
        both = [(picture(source, shown.names, i, 4), picture(source, shown.names, j, 4), value)
                for i, j, value in pairs]  # fmt: skip
        return [Pair(*entry) for entry in both]

    return made(extremes[0]), made(extremes[1])


def _write_pairs(
    folder: Path,
    shown: Showcase,
    source: Portrait,
    extremes: Sequence[list[tuple[int, int, float]]],
) -> None:
    with look():
        figure = new_figure(9.5, 0.85 * N_PAIRS, fit=False)
        figure.subplots_adjust(left=0.07, right=0.98, bottom=0.01, top=0.94, hspace=0.6)
        kinds = ("hardest", "easiest") if seeks_hard(shown.series) else ("highest", "lowest")
        for column, (kind, pairs) in enumerate(zip(kinds, extremes, strict=True)):
            for row, (i, j, value) in enumerate(pairs):
                strips = [strip(thumbnails(source.images[c, :4])) for c in (i, j)]
                names = [shorten(shown.names[c], 24) for c in (i, j)]
                axes = figure.add_subplot(N_PAIRS, 2, 2 * row + column + 1)
                draw_images(axes, f"{kind}\n{value:.2f}", strips, names)
        write_figure(folder, "pairs", figure)


def drawn_tasks(
    folder: Path, panel: Panel, shown: Showcase | None, styles: dict[str, Style]
) -> list[DrawnTasks]:
    """Return the first tasks of each sampler that is shown, and write them as a plot."""
    portraits = _portraits(panel, shown)
    result = []
    for name, portrait in portraits:
        names = class_labels(portrait.class_names)
        tasks = tuple(
            tuple(picture(portrait, names, int(c), 2) for c in task)
            for task in portrait.tasks[:N_TASKS]
        )
        result.append(DrawnTasks(name, close_up_style(name, styles), tasks))
    if portraits and all(portrait.images.size for _, portrait in portraits):
        _write_tasks(folder, portraits)
    return result


def _portraits(panel: Panel, shown: Showcase | None) -> list[tuple[str, Portrait]]:
    """Return uniform and the adaptive run that is shown, or else the first arms of a panel."""
    if shown is not None:
        beside = shown.panel.uniform_beside(shown.series)
        pairs = [
            (beside.name if beside else "", shown.uniform),
            (shown.series.name, shown.portrait),
        ]
    else:
        pairs = [(series.name, portrait_of(series)) for series in panel.series[:2]]
    return [(name, portrait) for name, portrait in pairs if portrait is not None]


def _write_tasks(folder: Path, portraits: Sequence[tuple[str, Portrait]]) -> None:
    rows = N_TASKS * len(portraits)
    with look():
        figure = new_figure(8.5, 0.95 * rows, fit=False)
        figure.subplots_adjust(left=0.14, right=0.98, bottom=0.01, top=0.94, hspace=0.5)
        for block, (name, portrait) in enumerate(portraits):
            names = class_labels(portrait.class_names)
            for row, task in enumerate(portrait.tasks[:N_TASKS]):
                strips = [strip(thumbnails(portrait.images[c, :2])) for c in task[:MAX_WAY]]
                texts = [shorten(names[c], 16) for c in task[:MAX_WAY]]
                head = f"{name}, {row + 1}".replace(", ", "\n")
                axes = figure.add_subplot(rows, 1, block * N_TASKS + row + 1)
                draw_images(axes, head, strips, texts)
        write_figure(folder, "tasks", figure)


def map_plot(
    folder: Path, panel: Panel, shown: Showcase | None, styles: dict[str, Style]
) -> Plot | None:
    """Draw the map of the classes, once a sampler, with its tasks; None where there is none."""
    portraits = _portraits(panel, shown)
    if not portraits:
        return None
    mapped_name, mapped = portraits[-1]
    places = class_map(mapped.similarity)
    if places is None:
        return None
    draws: list[Draw] = [
        partial(
            draw_map,
            places=places,
            names=class_labels(mapped.class_names),
            tasks=portrait.tasks[:MAPPED_TASKS],
            style=close_up_style(name, styles),
            title=f"classes drawn by {name}",
        )
        for name, portrait in portraits
        if len(portrait.class_names) == len(places)
    ]
    return make_plot(
        folder,
        draws,
        name="class-map",
        title="Map of the classes",
        caption=_map_caption(mapped_name, mapped, portraits),
        describe="t-SNE map of the classes with those of the first drawn tasks marked.",
        size=(4.7, 4.3),
        fit=True,
    )


def _map_caption(
    mapped_name: str, mapped: Portrait, portraits: Sequence[tuple[str, Portrait]]
) -> str:
    closeness = "; ".join(
        f"{name} {mean_within(mapped.similarity, portrait.tasks).mean():.2f}"
        for name, portrait in portraits
        if len(portrait.tasks) and len(portrait.class_names) == len(mapped.class_names)
    )
    return (
        "t-SNE of the class prototypes, the mean features of the model trained with "
        f"{mapped_name}, by their cosine: classes that lie together look alike to it. Distances "
        "between far groups mean nothing. All panels are the same map; each marks the classes of "
        f"the first {MAPPED_TASKS} tasks that a sampler drew after the last step, one kind of mark "
        "a task. Mean cosine between the classes of a task, over all recorded ones (higher is more "
        "alike): "
        f"{closeness}."
    )


def evolution_of(folder: Path, shown: Showcase) -> tuple[list[Frame], list[str]]:
    """Return small heatmaps of the most confused classes over time, and the classes' names."""
    n_classes, n_panels = EVOLUTION
    chosen = most_confused(shown.frames[-1], shown.order, n_classes)
    places = np.unique(np.round(np.linspace(0, len(shown.frames) - 1, n_panels)).astype(int))
    parts = [(shown.steps[p], shown.frames[p][np.ix_(chosen, chosen)]) for p in places]
    low, high = shown.limits
    frames = []
    for step, part in parts:
        pixels = coloured((part - low) / (high - low), SCALE)
        pixels[np.eye(len(part), dtype=bool)] = 205
        frames.append(Frame(step, data_uri(png(pixels))))
    with look():
        figure = new_figure(9, 2 * -(-len(parts) // 5) + 0.3)
        for number, (step, part) in enumerate(parts, start=1):
            axes = figure.add_subplot(-(-len(parts) // 5), 5, number)
            image = draw_matrix(axes, part, (low, high), title=f"step {step}")
        figure.colorbar(image, ax=figure.axes, label="log potential", shrink=0.7)
        write_figure(folder, "evolution", figure)
    return frames, [shown.names[c] for c in chosen]


def write_potentials(folder: Path, shown: Showcase, styles: dict[str, Style]) -> None:
    """Write the last potentials as a plot, with the classes of the first tasks marked."""
    order: NDArray[np.int64] = shown.order
    if len(order) > _NAMED_AT_MOST:
        order = most_confused(shown.frames[-1], order, _NAMED_AT_MOST // 2)
    marked: dict[int, tuple[str, str]] = {}
    beside = shown.panel.uniform_beside(shown.series)
    for name, portrait, mark in (
        (beside.name if beside else "", shown.uniform, "○"),
        (shown.series.name, shown.portrait, "◆"),
    ):
        if portrait is not None and len(portrait.tasks):
            marked |= {
                int(c): (mark, close_up_style(name, styles).colour) for c in portrait.tasks[0]
            }
    with look():
        figure = new_figure(9, 8.4)
        axes = figure.add_subplot()
        marks = [f"{marked[c][0]} " if c in marked else "" for c in order.tolist()]
        names = [mark + shown.names[c] for mark, c in zip(marks, order, strict=True)]
        matrix = shown.frames[-1][np.ix_(order, order)]
        image = draw_matrix(axes, matrix, shown.limits, title=shown.title, names=names)
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            for label, class_id in zip(labels, order.tolist(), strict=True):
                if class_id in marked:
                    label.set(color=marked[class_id][1], fontweight="bold")
        figure.colorbar(image, ax=axes, label="log potential", shrink=0.6)
        write_figure(folder, "potentials", figure)
