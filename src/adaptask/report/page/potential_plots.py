"""What samplers have learned: pair potentials as a heatmap and over time, and extreme pairs."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptask.report.page.class_plots import class_picture, png_data_uri
from adaptask.report.page.data import Matrix, StudyData, confusion_rank, evenly_spread
from adaptask.report.page.figures import Plot, make_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCALE = ("#f5f6fa", "#cdd6ec", "#93a8d6", "#5873b6", "#2f4088", "#131842")
"""Colors of potentials, from the lowest to the highest: darker is higher, as in the paper."""
DARK_SCALE = ("#1d2029", "#2a3461", "#40549c", "#6d87cf", "#a9bff0", "#f1f5ff")
"""The same for a page in dark mode: brighter is higher."""
N_PAIRS = 6
EVOLUTION = (16, 15)
"""Classes, and panels at most, as in the paper's appendix."""

PairList = list[tuple[int, int, float]]
"""Two classes and their log potential, pair by pair."""


def heatmap_values(data: StudyData) -> dict[str, Any]:
    """Return the values of `heatmap.html.j2`; empty if there are no pair potentials."""
    if not data.potentials:
        return {}
    return {
        "heatmap": _heatmap_data(data),
        "all_hard": all(shown.seeks_hard for shown in data.potentials),
        "n_hidden": data.n_hidden,
    }


def _heatmap_data(data: StudyData) -> dict[str, object]:
    """Return the data of the page's heatmap, ready for JSON."""
    # Names and images of classes, which many runs share, by the names.
    catalogs: dict[tuple[str, ...], dict[str, object]] = {}
    runs = []
    for shown in data.potentials:
        if shown.names not in catalogs:
            images = shown.preview.images[:, :1] if shown.preview else ()
            catalogs[shown.names] = {
                "names": shown.names,
                "images": [png_data_uri(image) for one in images for image in one],
            }
        tasks = [
            {
                "name": name,
                "baseline": name != shown.series.name,
                "color": data.close_up_style(name).color,
                "tasks": preview.tasks.tolist(),
            }
            for name, preview in shown.samplers
        ]
        runs.append(
            {
                "title": shown.title,
                "catalog": list(catalogs).index(shown.names),
                "steps": shown.steps,
                "order": shown.order.tolist(),
                "rank": confusion_rank(shown.frames[-1]).tolist(),
                "tasks": tasks,
                **quantize(shown.frames),
            }
        )
    scales = {"light": SCALE, "dark": DARK_SCALE}
    return {"runs": runs, "catalogs": list(catalogs.values()), "scales": scales}


def quantize(matrices: Sequence[Matrix]) -> dict[str, Any]:
    """Return symmetric matrices of one size as bytes over their common range.

    Returns:
        `data`: the upper triangles row by row, one matrix after another, in base64. `low`: the
        value of byte 0. `step`: from one byte to the next. The error is at most half a step.
    """
    above = np.triu_indices(len(matrices[0]), 1)
    values = np.stack([matrix[above] for matrix in matrices]).astype(np.float64)
    low, high = float(values.min()), float(values.max())
    step = (high - low) / 255 or 1 / 255
    levels = np.round((values - low) / step).astype(np.uint8)
    return {"data": base64.b64encode(levels.tobytes()).decode("ascii"), "low": low, "step": step}


def evolution_plot(data: StudyData) -> Plot | None:
    """Draw the classes with the highest potentials over time; None without pair potentials."""
    if not data.potentials:
        return None
    from matplotlib.colors import LinearSegmentedColormap

    shown = data.potentials[0]
    n_classes, n_panels = EVOLUTION
    highest = confusion_rank(shown.frames[-1])[:n_classes]
    chosen = shown.order[np.isin(shown.order, highest)]
    low, high = float(np.min(shown.frames)), float(np.max(shown.frames))
    colors = LinearSegmentedColormap.from_list("potentials", SCALE).with_extremes(bad="#d9d9d9")

    def draw(axes: Axes, place: int) -> None:
        matrix = shown.frames[place][np.ix_(chosen, chosen)]
        masked = np.ma.array(matrix, mask=np.eye(len(chosen), dtype=bool))
        axes.set(xticks=[], yticks=[])
        # Without interpolation an SVG holds one pixel per cell, and the browser scales it sharply.
        axes.imshow(masked, cmap=colors, vmin=low, vmax=high, interpolation="none")

    places = evenly_spread(len(shown.frames), n_panels).tolist()
    return make_plot(
        data.plots,
        [(f"step {shown.steps[place]:,}", partial(draw, place=place)) for place in places],
        name="evolution",
        title="Potentials over time",
        caption=f"Potentials over training time of the {len(chosen)} classes with the highest ones "
        f"at the end ({shown.title}), in the colors of the heatmap. They are high in the last "
        "panel since they were chosen by it; what matters is how early they rise and whether they "
        f"stay high. From left to right: {', '.join(shown.names[c] for c in chosen)}.",
        size=(1.8, 2.0),
        columns=5,
    )


def pairs_values(data: StudyData) -> dict[str, Any]:
    """Return the values of `pairs.html.j2`; empty if there are no pair potentials."""
    if not data.potentials:
        return {}
    shown = data.potentials[0]
    kinds = ("Hardest", "Easiest") if shown.seeks_hard else ("Highest", "Lowest")
    lists = []
    for kind, pairs in zip(kinds, extreme_pairs(shown.frames[-1], N_PAIRS), strict=True):
        pictures = [
            (value, [class_picture(shown.preview, shown.names, c, 4) for c in pair])
            for *pair, value in pairs
        ]
        lists.append((kind, pictures))
    return {"shown": shown, "lists": lists}


def extreme_pairs(matrix: Matrix, n_pairs: int) -> tuple[PairList, PairList]:
    """Return the pairs with the highest and the lowest log potentials, the most extreme first.

    A pair that was never in a task is still at exactly 0; it is not among the lowest if others have
    other values. There are at most `n_pairs` of each, and no pair is in both.
    """
    rows, columns = np.triu_indices(len(matrix), 1)
    values = matrix[rows, columns]
    ranked = np.argsort(-values, kind="stable")
    n_hardest = min(n_pairs, len(ranked) // 2)
    rest = ranked[n_hardest:][::-1]
    if np.any(values[rest] != 0):
        rest = rest[values[rest] != 0]

    def listed(chosen: NDArray[np.int64]) -> PairList:
        return [(int(rows[k]), int(columns[k]), float(values[k])) for k in chosen]

    return listed(ranked[:n_hardest]), listed(rest[:n_pairs])
