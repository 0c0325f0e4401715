"""What one run's sampler has learned and draws: potentials, pairs, map and tasks, with images."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptask.report.page.data import Style, class_labels, shorten
from adaptask.report.page.figures import FAINT, Plot, Section, make_plot
from adaptask.report.page.showcase import Matrix, Showcase, StudyData, confusion_rank, evenly_spread
from adaptask.report.run import Portrait

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCALE = ("#f5f6fa", "#cdd6ec", "#93a8d6", "#5873b6", "#2f4088", "#131842")
"""Colors of potentials, from the lowest to the highest: darker is higher, as in the paper."""
N_PAIRS = 6
N_TASKS = 4
EVOLUTION = (16, 15)
"""Classes, and panels at most, as in the paper's appendix."""
THUMBNAIL = 40
"""Height and width of an image in a page at most, in its own pixels."""

PairList = list[tuple[int, int, float]]
"""Two classes and their log potential, pair by pair."""


@dataclass(frozen=True)
class Picture:
    """A class with some of its images."""

    name: str
    images: tuple[str, ...]
    """Data addresses; empty if there are no images."""


def potentials_section(data: StudyData) -> Section:
    """The heatmap of the potentials, and how the highest of them developed."""
    title = "What the sampler has learned: potentials of class pairs"
    if not data.showcases:
        absent = (
            "No potentials to show: none of these runs has a sampler that learns potentials of "
            "class pairs (gcp or cp) and has recorded a snapshot of them."
        )
        return Section("potentials", "Potentials", title, absent)
    return Section(
        *("potentials", "Potentials", title),
        plots=[_evolution_plot(data.plots, data.showcases[0])],
        template="heatmap.html.j2",
        values={
            "heatmap": _heatmap_data(data),
            "all_hard": all(shown.seeks_hard for shown in data.showcases),
            "n_hidden": data.n_hidden,
        },
    )


def _heatmap_data(data: StudyData) -> dict[str, object]:
    """Return what the page's heatmap is drawn from, ready for JSON."""
    # Names and images of classes, which many runs share, by the names.
    catalogs: dict[tuple[str, ...], dict[str, object]] = {}
    runs = []
    for shown in data.showcases:
        if shown.names not in catalogs:
            images = shown.portrait.images[:, :1] if shown.portrait else ()
            catalogs[shown.names] = {
                "names": shown.names,
                "images": [png_data_uri(image) for one in images for image in one],
            }
        tasks = [
            {
                "name": name,
                "uniform": name != shown.series.name,
                "color": data.close_up_style(name).color,
                "tasks": portrait.tasks.tolist(),
            }
            for name, portrait in shown.samplers
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
    return {"runs": runs, "catalogs": list(catalogs.values()), "scale": SCALE}


def quantize(matrices: Sequence[Matrix]) -> dict[str, Any]:
    """Return symmetric matrices of one size as bytes over their common range.

    Returns:
        `data`, in base64: the upper triangles row by row, one matrix after another; `low`, the
        value of byte 0; `step` from one byte to the next. No entry is off by more than half a step.
    """
    above = np.triu_indices(len(matrices[0]), 1)
    values = np.stack([matrix[above] for matrix in matrices]).astype(np.float64)
    low, high = float(values.min()), float(values.max())
    step = (high - low) / 255 or 1 / 255
    levels = np.round((values - low) / step).astype(np.uint8)
    return {"data": base64.b64encode(levels.tobytes()).decode("ascii"), "low": low, "step": step}


def _evolution_plot(folder: Path, shown: Showcase) -> Plot:
    """Draw the most confused classes over time, on a scale of colors that stays the same."""
    from matplotlib.colors import LinearSegmentedColormap

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
        folder,
        [(f"step {shown.steps[place]:,}", partial(draw, place=place)) for place in places],
        name="evolution",
        title="How they developed",
        caption=f"Potentials of the {len(chosen)} classes with the highest ones at the end "
        f"({shown.title}), over training time, on the heatmap's scale of colors. Chosen by their "
        "last state, they are bound to be dark there; what to look for is how early it shows and "
        "whether it stays. From top to bottom and left to right: "
        f"{', '.join(shown.names[c] for c in chosen)}.",
        size=(1.8, 2.0),
        columns=5,
    )


def pairs_section(data: StudyData) -> Section:
    """The pairs of classes with the highest and the lowest potentials, with images."""
    title, kinds = "The hardest and the easiest pairs", ("Hardest", "Easiest")
    if not data.showcases:
        absent = "No pairs to show: that takes potentials of class pairs, and there are none."
        return Section("pairs", "Pairs", title, absent)
    shown = data.showcases[0]
    if not shown.seeks_hard:
        title, kinds = "The pairs with the highest and the lowest potentials", ("Highest", "Lowest")
    lists = []
    for kind, pairs in zip(kinds, extreme_pairs(shown.frames[-1], N_PAIRS), strict=True):
        pictures = [
            (value, [_picture(shown.portrait, shown.names, c, 4) for c in pair])
            for *pair, value in pairs
        ]
        lists.append((kind, pictures))
    values = {"shown": shown, "lists": lists}
    return Section("pairs", "Pairs", title, template="pairs.html.j2", values=values)


def extreme_pairs(matrix: Matrix, n_pairs: int) -> tuple[PairList, PairList]:
    """Return the pairs with the highest and the lowest log potentials, the most extreme first.

    A pair that has never been in a task is where it started, at exactly 0; it is not called easy
    if others have other values. There are at most `n_pairs` of each, and no pair is in both.
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


def map_section(data: StudyData) -> Section | None:
    """A map of the classes with tasks of uniform and an adaptive sampler; left out without both.

    Tasks of one sampler alone say nothing: whether they are close takes a comparison.
    """
    samplers = data.showcases[0].samplers if data.showcases else ()
    places = map_classes(samplers[-1][1].similarity) if len(samplers) > 1 else None
    if places is None:
        return None
    names = data.showcases[0].names

    def draw(axes: Axes, tasks: NDArray[np.int64], style: Style) -> None:
        axes.plot(*places.T, ".", color=FAINT, alpha=0.7)
        for task, marker in zip(tasks, "oDs", strict=False):
            # The space: matplotlib leaves labels that begin with an underscore out of a legend.
            text = " " + ", ".join(shorten(names[c], 14) for c in task[:5])
            axes.plot(*places[task].T, marker, color=style.color, label=text)
        axes.set(xticks=[], yticks=[])
        if len(tasks):
            axes.legend(loc="upper left", bbox_to_anchor=(-0.02, 0), fontsize=7, borderpad=0)

    panels = []
    for name, portrait in samplers:
        tasks, style = portrait.tasks[:3], data.close_up_style(name)
        panels.append((f"classes drawn by {name}", partial(draw, tasks=tasks, style=style)))
    plot = make_plot(
        data.plots,
        panels,
        name="class-map",
        title="Map of the classes",
        caption="t-SNE of the class prototypes, the mean features of the model trained with "
        f"{samplers[-1][0]}, by their cosine: classes that are close look alike to it. Distances "
        "between far groups mean nothing. Both panels are the same map; each marks the classes of "
        "the first three tasks that a sampler drew after the last step, one kind of mark per task.",
        size=(4.7, 4.7),
    )
    return Section("map", "Map", "Which classes look alike to the model", plots=[plot])


def map_classes(similarity: NDArray[np.floating]) -> NDArray[np.float64] | None:
    """Return places of the classes by t-SNE, `classes x 2`, with a fixed seed.

    The distance of two classes is 1 less their cosine. The perplexity, about the number of
    neighbors of a class, is the square root of the number of classes: the usual 30 is meant for
    thousands of points.

    Args:
        similarity: Cosines between the prototypes, `classes x classes`.

    Returns:
        None for fewer than five classes, or if some cosines are not finite.
    """
    if len(similarity) < 5 or not np.isfinite(similarity).all():
        return None
    from sklearn.manifold import TSNE

    distances = np.clip(1.0 - (similarity + similarity.T) / 2, 0.0, None).astype(np.float64)
    np.fill_diagonal(distances, 0.0)
    perplexity = math.sqrt(len(similarity))
    model = TSNE(
        metric="precomputed", init="random", perplexity=perplexity, random_state=0, n_jobs=1
    )
    return np.asarray(model.fit_transform(distances), dtype=np.float64)


def tasks_section(data: StudyData) -> Section:
    """The first tasks of each sampler that is shown, as images."""
    if data.showcases:
        portraits = data.showcases[0].samplers
    else:
        found = [(series.name, series.portrait()) for series in data.panels[0].series[:2]]
        portraits = tuple((name, portrait) for name, portrait in found if portrait is not None)
    samplers = []
    for name, portrait in portraits:
        names = class_labels(portrait.class_names)
        drawn = [
            [_picture(portrait, names, class_id, 2) for class_id in task]
            for task in portrait.tasks[:N_TASKS]
        ]
        samplers.append((name, data.close_up_style(name), drawn))
    return Section(
        *("tasks", "Tasks", "Tasks as they are drawn"),
        absent="No tasks to show: they are recorded when a run ends, and none has.",
        template="tasks.html.j2",
        values={"samplers": samplers} if samplers else {},
    )


def _picture(portrait: Portrait | None, names: Sequence[str], class_id: int, n: int) -> Picture:
    """Return a class with the first of its images."""
    images = portrait.images[class_id, :n] if portrait else ()
    return Picture(names[class_id], tuple(png_data_uri(image) for image in images))


def png_data_uri(pixels: NDArray[np.uint8]) -> str:
    """Return pixels, `height x width x 1 or 3`, as an address that holds a small PNG file."""
    from PIL import Image

    file = io.BytesIO()
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    image.save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
