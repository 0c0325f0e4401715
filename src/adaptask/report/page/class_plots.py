"""What samplers learned and drew, class by class: pair potentials, pairs, tasks, a map."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptask.report.page.data import (
    Matrix,
    PairPotentials,
    Series,
    StudyData,
    Style,
    class_labels,
    has_pairs,
    log_potentials,
    shorten,
)
from adaptask.report.page.figures import FAINT, Legend, Plot, make_plot
from adaptask.report.run import Preview, Run, Snapshot, snapshot_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

N_CLASSES = 16
"""Classes with the highest potentials that are shown, as in the paper's Figures 5 and 7."""
N_PANELS = 15
"""Panels of the potentials over time, as in the paper's Figure 7."""
N_PAIRS = 12
N_SAMPLERS = 4
"""Samplers whose tasks are shown."""
N_TASKS = 4
THUMBNAIL = 40
"""Largest height and width of an image in the page, in its own pixels."""
SCALE = ("#f5f6fa", "#cdd6ec", "#93a8d6", "#5873b6", "#2f4088", "#131842")
"""Colors of potentials, from the lowest to the highest: darker is higher, as in the paper."""
MEANINGS = {
    "hard": "rises when the model confuses queries of the two",
    "easy": "rises when the model tells the two apart, since the strategy is easy",
    "uncertain": "rises when the model is uncertain between the two, as the strategy says",
}
"""What a high potential says, by the strategy of the sampler."""


@dataclass(frozen=True)
class Picture:
    """A class with some of its images."""

    name: str
    images: tuple[str, ...]
    """Data URIs; empty if there are no images."""


def potentials_plots(data: StudyData) -> list[Plot]:
    """Draw the pair potentials of the classes with the highest ones: at the end, and over time."""
    shown = data.potentials
    if shown is None:
        return []
    highest = confusion_rank(shown.last)[:N_CLASSES]
    return [_heatmap(data, shown, highest), _evolution(data, shown, highest)]


def _heatmap(data: StudyData, shown: PairPotentials, highest: NDArray[np.int64]) -> Plot:
    tasks = [(of, preview.tasks[:1]) for of, preview in shown.drawn]
    chosen = np.unique(np.concatenate([highest, *(task.flatten() for _, task in tasks)]))
    chosen = chosen[cluster_order(shown.last[np.ix_(chosen, chosen)])]
    place = {int(class_id): i for i, class_id in enumerate(chosen)}
    legend: Legend = tuple((of.name, _frame_style(data, of)) for of, _ in tasks)

    def draw(axes: Axes) -> None:
        from matplotlib.patches import Rectangle

        ticks = [shorten(shown.names[c], 24) for c in chosen]
        image = _draw_potentials(axes, shown.last[np.ix_(chosen, chosen)], shown.last)
        axes.set_yticks(range(len(chosen)), ticks, fontsize=7.5)
        axes.set_xticks(range(len(chosen)), ticks, fontsize=7.5, rotation=90)
        bar = axes.figure.colorbar(image, ax=axes, shrink=0.5, aspect=25)
        bar.set_label("log potential")
        for (of, task), (_, style) in zip(tasks, legend, strict=True):
            at = [place[int(c)] for c in task.flatten()]
            for row, column in ((a, b) for a in at for b in at if a != b):
                line: Any = "--" if of.is_baseline else "-"
                cell = (column - 0.5, row - 0.5)
                axes.add_patch(Rectangle(cell, 1, 1, fill=False, ec=style.color, lw=1.4, ls=line))

    means = [
        f"{of.name} {_mean_in_tasks(shown.last, preview.tasks):.3f} (in {len(preview.tasks)} tasks)"
        for of, preview in shown.drawn
        if len(preview.tasks)
    ]
    frames = (
        " Frames mark the pairs of the first task that was drawn after the last step, dashed for "
        "the baseline. A sampler that follows its potentials draws pairs with higher ones. Mean "
        f"log potential of all pairs that were drawn together then: {', '.join(means)}."
        if means
        else ""
    )
    meaning = MEANINGS.get(shown.series.strategy, MEANINGS["hard"])
    part = f"the {len(highest)} of {len(shown.last):,} classes with the highest potentials"
    side = 2.0 + 0.19 * len(chosen)
    return make_plot(
        data.plots,
        [("", draw)],
        name="potentials",
        title="Potentials of class pairs at the end",
        caption=f"The potential of a pair is the weight with which two classes are drawn into one "
        f"task. It starts at 1 (log 0) and {meaning}. Shown are {part} ({shown.title})"
        f"{', and those of the framed tasks' if means else ''}, ordered by clustering.{frames}",
        legend=legend if means else (),
        size=(side + 0.8, side),
    )


def _frame_style(data: StudyData, series: Series) -> Style:
    style = data.close_up_style(series.name)
    return Style(style.color, (3, 2) if series.is_baseline else ())


def _mean_in_tasks(matrix: Matrix, tasks: NDArray[np.int64]) -> float:
    """Return the mean log potential of the pairs in some tasks, `tasks x way`."""
    rows, columns = np.triu_indices(tasks.shape[1], 1)
    return float(matrix[tasks[:, rows], tasks[:, columns]].mean()) if len(rows) else 0.0


def _evolution(data: StudyData, shown: PairPotentials, highest: NDArray[np.int64]) -> Plot:
    cells = np.ix_(highest, highest)
    order = cluster_order(shown.last[cells])
    # With thousands of classes, memory would not hold all of them for every snapshot.
    frames = [(s.step, log_potentials(s)[cells]) for s in pair_snapshots(shown.run, N_PANELS)]

    def draw(axes: Axes, matrix: Matrix) -> None:
        _draw_potentials(axes, matrix[np.ix_(order, order)], shown.last)
        axes.set(xticks=[], yticks=[])

    return make_plot(
        data.plots,
        [(f"step {step:,}", partial(draw, matrix=matrix)) for step, matrix in frames],
        name="evolution",
        title="Potentials over time",
        caption=f"Potentials over training time of the {len(highest)} classes with the highest "
        f"ones at the end ({shown.title}). They are high in the last panel since they were chosen "
        "by it; what matters is how early they rise and whether they stay high. From left to "
        f"right: {', '.join(shown.names[c] for c in highest[order])}.",
        size=(1.8, 2.0),
        columns=5,
    )


def _draw_potentials(axes: Axes, matrix: Matrix, of: Matrix) -> Any:
    """Draw potentials in the colors for the range of a matrix; return the image."""
    masked = np.ma.array(matrix, mask=np.eye(len(matrix), dtype=bool))
    axes.grid(visible=False)
    # Without interpolation an SVG holds one pixel per cell, and the browser scales it sharply.
    return axes.imshow(
        masked, cmap=_colors(), vmin=float(of.min()), vmax=float(of.max()), interpolation="none"
    )


def _colors() -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("potentials", SCALE).with_extremes(bad="#d9d9d9")


def pair_snapshots(run: Run, at_most: int) -> Iterator[Snapshot]:
    """Yield evenly spread snapshots of a run that have pair potentials; only these are read.

    Damaged ones are left out.
    """
    last = run.last_snapshot
    if last is None or not has_pairs(last):
        return
    files = [file for file in snapshot_files(run.path / "snapshots") if file[0] <= last.step]
    for place in evenly_spread(len(files), at_most):
        snapshot = run.snapshot(*files[place])
        if snapshot and np.shape(snapshot.distribution) == np.shape(last.distribution):
            yield snapshot


def evenly_spread(n_items: int, at_most: int) -> NDArray[np.int64]:
    """Return up to `at_most` indices of `n_items`, including the first and the last."""
    return np.unique(np.round(np.linspace(0, n_items - 1, min(n_items, at_most)))).astype(np.int64)


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


def pairs_values(data: StudyData) -> dict[str, Any]:
    """Return the values of `pairs.html.j2`; empty if there are no pair potentials."""
    shown = data.potentials
    if shown is None:
        return {}
    pairs = [
        (value, [class_picture(shown.preview, shown.names, c, 4) for c in pair])
        for *pair, value in highest_pairs(shown.last, N_PAIRS)
    ]
    return {"title": shown.title, "pairs": pairs}


def highest_pairs(matrix: Matrix, n_pairs: int) -> list[tuple[int, int, float]]:
    """Return the pairs with the highest log potentials, the highest first, at most `n_pairs`."""
    # They have at most twice as many classes, which are those that rank first.
    chosen = np.sort(confusion_rank(matrix)[: 2 * n_pairs])
    rows, columns = np.triu_indices(len(chosen), 1)
    rows, columns = chosen[rows], chosen[columns]
    values = matrix[rows, columns]
    ranked = np.argsort(-values, kind="stable")[:n_pairs]
    return [(int(rows[k]), int(columns[k]), float(values[k])) for k in ranked]


def map_plot(data: StudyData) -> Plot | None:
    """Draw a map of the classes with tasks of the baseline and of another sampler.

    It is there only in studies that reproduce such a figure: where classes lie on a map of this
    kind says little by itself.
    """
    if data.study.first_section != "map" or (shown := data.potentials) is None:
        return None
    places = map_classes(shown.drawn[-1][1].similarity) if len(shown.drawn) > 1 else None
    if places is None:
        return None

    def draw(axes: Axes, tasks: NDArray[np.int64], style: Style) -> None:
        axes.plot(*places.T, ".", color=FAINT, alpha=0.7)
        for task, marker in zip(tasks, "oDs", strict=False):
            # The space: matplotlib leaves labels that begin with an underscore out of a legend.
            text = " " + ", ".join(shorten(shown.names[c], 14) for c in task[:5])
            axes.plot(*places[task].T, marker, color=style.color, label=text)
        axes.set(xticks=[], yticks=[])
        if len(tasks):
            axes.legend(loc="upper left", bbox_to_anchor=(-0.02, 0), fontsize=7, borderpad=0)

    panels = []
    for series, preview in shown.drawn:
        tasks, style = preview.tasks[:3], data.close_up_style(series.name)
        panels.append((f"classes drawn by {series.name}", partial(draw, tasks=tasks, style=style)))
    return make_plot(
        data.plots,
        panels,
        name="class-map",
        title="Map of the classes",
        caption="t-SNE of the class prototypes, the mean features of the model trained with "
        f"{shown.series.name}, by their cosine: classes that are close look alike to it. Distances "
        "between far groups mean nothing. Both panels are the same map; each marks the classes of "
        "the first three tasks that a sampler drew after the last step, one kind of mark per task.",
        size=(4.7, 4.7),
    )


def map_classes(similarity: NDArray[np.floating]) -> NDArray[np.float64] | None:
    """Return positions of the classes by t-SNE, `classes x 2`, with a fixed seed.

    The distance of two classes is 1 minus their cosine. The perplexity, about the number of
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


def tasks_values(data: StudyData) -> dict[str, Any]:
    """Return the values of `tasks.html.j2`, the first tasks of samplers; empty without any.

    The samplers are those of one setting, the baseline and the one with the potentials first.
    """
    shown = data.potentials
    every = (shown.panel if shown else data.panels[0]).series
    first = shown.series if shown else None
    samplers = []
    for series in sorted(every, key=lambda one: (not one.is_baseline, one is not first)):
        if (preview := series.preview()) is None:
            continue
        names = class_labels(preview.class_names)
        drawn = [
            [class_picture(preview, names, class_id, 2) for class_id in task]
            for task in preview.tasks[:N_TASKS]
        ]
        samplers.append((series.name, data.close_up_style(series.name), drawn))
    return {"samplers": samplers[:N_SAMPLERS]} if samplers else {}


def class_picture(
    preview: Preview | None, names: Sequence[str], class_id: int, n_images: int
) -> Picture:
    """Return a class with the first of its images."""
    images = preview.images[class_id, :n_images] if preview else ()
    return Picture(names[class_id], tuple(png_data_uri(image) for image in images))


def png_data_uri(pixels: NDArray[np.uint8]) -> str:
    """Return pixels, `height x width x 1 or 3`, as a data URI of a small PNG file."""
    from PIL import Image

    file = io.BytesIO()
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    image.save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
