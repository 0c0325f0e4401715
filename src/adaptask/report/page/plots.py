"""What is drawn: curves, counts, settings, maps, matrices.

Every `draw_...` fills one pair of axes, so that a page can lay panels out by its width; `grid`
puts several into one figure for a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptask.report.page.curves import Curve
from adaptask.report.page.figures import FAINT, INK, new_figure
from adaptask.report.page.labels import MAP_SPAN, free_places
from adaptask.report.page.names import shorten
from adaptask.report.page.panels import BACKGROUND, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = (4.7, 2.9)
"""Inches of a panel: as large as a phone shows it, with its text at its own size."""
SCALE = ("#f5f6fa", "#cdd6ec", "#93a8d6", "#5873b6", "#2f4088", "#131842")
"""Colours of potentials, from the lowest to the highest: darker is higher, as in the paper."""

MAX_WITH_SEEDS = 4
"""With more lines than that, the seeds of each would hide them."""

Draw = Callable[["Axes"], None]


@dataclass(frozen=True, eq=False)
class Line:
    """A curve and how it is drawn."""

    name: str
    style: Style
    curve: Curve


@dataclass(frozen=True)
class Reading:
    """An accuracy at a value of a setting, in percent."""

    value: float
    mean: float
    interval: float | None
    """Half the width of the 95 % interval over seeds; None of a single seed."""
    seeds: tuple[float, ...]


def single(draw: Draw, size: tuple[float, float] = PANEL, *, fit: bool = False) -> Figure:
    """Return a figure with one panel.

    Args:
        draw: Fills it.
        size: Inches.
        fit: Whether room must be made for long names beside the axes.
    """
    return _panels([draw], size, 1, 0.0, fit=fit)


def grid(
    draws: Sequence[Draw],
    *,
    styles: Sequence[tuple[str, Style]] = (),
    size: tuple[float, float] = PANEL,
    fit: bool = False,
    marked: bool = False,
    columns: int = 3,
) -> Figure:
    """Return a figure with several panels and one legend above them, with marks if they matter."""
    figure = _panels(draws, size, columns, 0.4 if styles else 0.0, fit=fit)
    if styles:
        from matplotlib.lines import Line2D

        handles = [
            Line2D(
                *([], []),
                color=style.colour,
                dashes=style.dashes or (None, None),
                marker=style.marker if marked else None,
                label=shorten(name, 40),
            )
            for name, style in styles
        ]
        place: Any = "outside upper left" if fit else "upper left"
        figure.legend(handles=handles, loc=place, ncols=min(2 * columns, len(handles)))
    return figure


def _panels(
    draws: Sequence[Draw], size: tuple[float, float], columns: int, above: float, *, fit: bool
) -> Figure:
    columns = min(columns, len(draws))
    rows = math.ceil(len(draws) / columns)
    width, height = size[0] * columns, size[1] * rows + above
    figure = new_figure(width, height, fit=fit)
    for number, draw in enumerate(draws):
        draw(figure.add_subplot(rows, columns, number + 1))
    if not fit:
        titled = any(axes.get_title(loc="left") for axes in figure.axes)
        for number, axes in enumerate(figure.axes):
            row, column = divmod(number, columns)
            left, bottom = column * size[0] + 0.8, (rows - row - 1) * size[1] + 0.5
            inside = size[0] - 0.92, size[1] - (0.85 if titled else 0.6)
            axes.set_position(
                (left / width, bottom / height, inside[0] / width, inside[1] / height)
            )
    return figure


def draw_curves(axes: Axes, lines: Sequence[Line], *, title: str, label: str, scale: float) -> None:
    """Draw metrics over time: the mean over seeds, and from the lowest to the highest.

    Where some runs have not come as far as others, the mean is of those that have: it is drawn
    thin.
    """
    for line in sorted(lines, key=lambda line: line.style != BACKGROUND):
        curve, style = line.curve, line.style
        if curve.is_empty:
            continue
        steps, mean = curve.steps, curve.mean * scale
        behind = style == BACKGROUND
        if curve.n_runs.max() > 1 and not behind:
            axes.fill_between(
                steps, curve.low * scale, curve.high * scale, color=style.colour, alpha=0.16, lw=0
            )
        dashes: Any = (None, None) if behind or not style.dashes else style.dashes
        common = {"color": style.colour, "dashes": dashes}
        axes.plot(steps, mean, lw=0.7 if behind else 0.9, alpha=0.6 if behind else 0.8, **common)
        if not behind:
            whole = np.where(curve.is_whole, mean, np.nan)
            marker = "o" if len(steps) < 3 else None
            axes.plot(steps, whole, lw=1.9, marker=marker, ms=4, **common)
    axes.set_title(shorten(title, 46))
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    axes.margins(x=0.02)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=5)


def draw_ranks(
    axes: Axes, shares: Sequence[tuple[str, Style, NDArray[np.float64]]], expected: float | None
) -> None:
    """Draw how often classes were drawn against the mean, from the most often to the least.

    Args:
        axes: Where.
        shares: Name, look, and times drawn relative to the mean, `classes`.
        expected: Standard deviation that chance alone gives uniform draws, relative to the mean.
    """
    n_classes = max(len(share) for _, _, share in shares)
    if expected is not None:
        axes.axhspan(1 - 2 * expected, 1 + 2 * expected, color=FAINT, alpha=0.18, lw=0)
    axes.axhline(1, color=FAINT, lw=0.8)
    for _, style, share in shares:
        dashes: Any = style.dashes or (None, None)
        ranks = np.arange(1, len(share) + 1)
        axes.plot(ranks, np.sort(share)[::-1], color=style.colour, dashes=dashes)
    axes.set_xlim(1, n_classes)
    axes.set_ylim(bottom=0)
    axes.set_title("How unequally classes were drawn")
    axes.set_xlabel("class, from most to least often drawn")
    axes.set_ylabel("times drawn / mean")


def draw_counts(
    axes: Axes,
    names: Sequence[str],
    shares: Sequence[tuple[str, Style, NDArray[np.float64]]],
    classes: NDArray[np.int64],
) -> None:
    """Draw by name how often some classes were drawn, relative to the mean, first at the top."""
    places = np.arange(len(classes))[::-1]
    axes.axvline(1, color=FAINT, lw=0.8)
    for _, style, share in shares:
        axes.plot(
            *(share[classes], places, style.marker), color=style.colour, ms=5, ls="none", alpha=0.9
        )
    axes.set_yticks(places, [shorten(names[c], 24) for c in classes])
    axes.set_xlim(left=0)
    axes.set_title("The most and the least drawn")
    axes.set_xlabel("times drawn / mean")


def draw_settings(
    axes: Axes,
    readings: Sequence[tuple[str, Style, Sequence[Reading]]],
    *,
    title: str,
    label: str,
    baseline: tuple[Style, Reading] | None,
    kind: str = "test",
) -> None:
    """Draw accuracy against a setting: means with 95 % intervals over seeds, and each seed.

    Args:
        axes: Where.
        readings: Name, look and what was measured, of each line.
        title: What is trained on what.
        label: Name of the setting.
        baseline: Look and accuracy of uniform.
        kind: Of tasks the accuracy is on.
    """
    if baseline is not None:
        style, level = baseline
        axes.axhline(level.mean, color=style.colour, dashes=style.dashes or (None, None), lw=1.4)
        half = level.interval or 0.0
        axes.axhspan(level.mean - half, level.mean + half, color=style.colour, alpha=0.1, lw=0)
    every = [reading.value for _, _, line in readings for reading in line]
    for number, (name, style, line) in enumerate(readings):
        # A little apart, so that bars at one value do not cover each other.
        shift = (number - (len(readings) - 1) / 2) * 0.012 * (max(every) - min(every))
        values = np.array([reading.value for reading in line]) + shift
        means = [reading.mean for reading in line]
        errors = [reading.interval or 0.0 for reading in line]
        joined = "-" if name else "none"
        axes.errorbar(values, means, errors, color=style.colour, marker="o", ms=4.5, ls=joined,
                      lw=1.4, elinewidth=1, capsize=3)  # fmt: skip
        if len(readings) <= MAX_WITH_SEEDS:
            for value, reading in zip(values, line, strict=True):
                at = np.full(len(reading.seeds), value)
                axes.plot(at, reading.seeds, "_", color=style.colour, ms=6, alpha=0.5)
    axes.set_title(shorten(title, 46))
    axes.set_xlabel(label)
    axes.set_ylabel(f"{kind} accuracy, %")
    axes.margins(x=0.08)


def draw_map(
    axes: Axes,
    places: NDArray[np.float64],
    names: Sequence[str],
    tasks: NDArray[np.int64],
    style: Style,
    title: str,
) -> None:
    """Draw classes as dots, and those of some tasks with a mark and a hull a task.

    Args:
        axes: Where.
        places: Of the classes, `classes x 2`, each from 0 to 1.
        names: Of the classes.
        tasks: Their classes, `tasks x way`.
        style: Its colour is that of the sampler.
        title: Name of the sampler.
    """
    axes.scatter(places[:, 0], places[:, 1], s=10, color=FAINT, alpha=0.55, lw=0)
    for task, marker in zip(tasks, "oDs^v", strict=False):
        centre = places[task].mean(axis=0)
        for class_id in task:
            line = np.stack([centre, places[class_id]])
            axes.plot(*line.T, color=style.colour, lw=0.8, alpha=0.45)
        axes.scatter(
            places[task, 0], places[task, 1], s=36, marker=marker, color=style.colour, zorder=3
        )
    marked = list(dict.fromkeys(int(c) for c in tasks.flat))
    texts = [shorten(names[c], 18) for c in marked]
    for text, where in zip(texts, free_places(places[marked], texts), strict=True):
        if where is not None:
            axes.text(*where, text, fontsize=7.5, va="center", color=INK)
    axes.set(xlim=MAP_SPAN, ylim=MAP_SPAN, xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[["top", "right"]].set_visible(True)
    axes.set_title(title)


def draw_matrix(
    axes: Axes,
    matrix: NDArray[np.floating],
    limits: tuple[float, float],
    *,
    title: str = "",
    names: Sequence[str] = (),
) -> Any:
    """Draw potentials, with names where they are given; return what a scale is made from."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("potentials", SCALE).with_extremes(bad="#d9d9d9")
    shown = np.ma.array(matrix, mask=np.eye(len(matrix), dtype=bool))
    image = axes.imshow(shown, cmap=colours, vmin=limits[0], vmax=limits[1])
    axes.set(xticks=[], yticks=[], title=title)
    axes.grid(visible=False)
    if names:
        short = [shorten(name, 20) for name in names]
        size = max(3.5, min(9, 320 / len(names)))
        axes.set_xticks(range(len(names)), short, rotation=90, fontsize=size)
        axes.set_yticks(range(len(names)), short, fontsize=size)
    return image


def draw_images(
    axes: Axes, head: str, strips: Sequence[NDArray[np.uint8]], texts: Sequence[str]
) -> None:
    """Draw strips of images in a row, each under its text.

    Args:
        axes: Where.
        head: What the row is, left of it.
        strips: Of one size, `height x width x 4`.
        texts: One for each.
    """
    height, width, _ = strips[0].shape
    gap = np.zeros((height, height // 3, 4), dtype=np.uint8)
    axes.imshow(np.hstack([part for one in strips for part in (one, gap)]))
    axes.text(-height / 4, height / 2, head, fontsize=7.5, ha="right", va="center")
    for number, text in enumerate(texts):
        axes.text(number * (width + gap.shape[1]), -2, text, fontsize=6.5, va="bottom")
    axes.axis("off")
