"""What samplers learned and drew, class by class: pair potentials, pairs, tasks, a map."""

from __future__ import annotations

import base64
import io
import itertools
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
    StudyData,
    Style,
    class_labels,
    count_paired,
    log_potentials,
    shorten,
)
from adaptask.report.page.figures import FAINT, Plot, make_plot
from adaptask.report.run import Preview, Run, Snapshot, snapshot_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes

N_CLASSES = 16
"""Classes with the highest potentials that are shown, as in the paper's Figures 5 and 7."""
N_PANELS = 15
"""Panels of the potentials over time, as in the paper's Figure 7."""
N_PAIRS = 12
N_FRAMED = 10
"""Classes of a task at most whose pairs have frames."""
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
    """Draw the potentials at the end, with frames around the pairs of a task of each sampler."""
    tasks, styles = {}, {}
    for series, preview in shown.drawn:
        if len(preview.tasks):
            tasks[series.name] = preview.tasks[0, :N_FRAMED]
            color = data.close_up_style(series.name).color
            styles[series.name] = Style(color, (3, 2) if series.is_baseline else ())
    chosen = np.unique(np.concatenate([highest, *tasks.values()]))
    chosen = chosen[cluster_order(shown.last[np.ix_(chosen, chosen)])]

    def draw(axes: Axes) -> None:
        image = _draw_potentials(axes, shown.last[np.ix_(chosen, chosen)], shown.last)
        axes.figure.colorbar(image, ax=axes, shrink=0.5, aspect=25, label="log potential")
        ticks = [shorten(shown.names[c], 24) for c in chosen]
        axes.set_yticks(range(len(chosen)), ticks, fontsize=7.5)
        axes.set_xticks(range(len(chosen)), ticks, fontsize=7.5, rotation=90)
        for name, task in tasks.items():
            _draw_frames(axes, np.flatnonzero(np.isin(chosen, task)).tolist(), styles[name])

    caption = (
        "The potential of a pair is the weight with which two classes are drawn into one task. It "
        f"starts at 1 (log 0) and {MEANINGS.get(shown.series.strategy, MEANINGS['hard'])}. Shown "
        f"are the {len(highest)} of {len(shown.last):,} classes with the highest potentials "
        f"({shown.title}), ordered by clustering."
    )
    if tasks:
        means = (
            f"{series.name} {_mean_in_tasks(shown.last, preview.tasks):.3f} "
            f"(in {len(preview.tasks)} tasks)"
            for series, preview in shown.drawn
            if len(preview.tasks)
        )
        caption += (
            " Frames mark the pairs of the first task after the last step, whose classes are added "
            "here. A sampler that follows its potentials draws pairs with higher ones. Mean log "
            f"potential of the pairs in the tasks after the last step: {', '.join(means)}."
        )
    side = 2.0 + 0.19 * len(chosen)
    return make_plot(
        data.plots,
        [("", draw)],
        name="potentials",
        title="Potentials of class pairs at the end",
        caption=caption,
        legend=tuple(styles.items()),
        size=(side + 0.8, side),
    )


def _draw_frames(axes: Axes, places: Sequence[int], style: Style) -> None:
    from matplotlib.patches import Rectangle

    line: Any = (0, style.dashes) if style.dashes else "-"
    for x, y in itertools.permutations(places, 2):
        cell = (x - 0.5, y - 0.5)
        axes.add_patch(Rectangle(cell, 1, 1, fill=False, ec=style.color, lw=1.4, ls=line))


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
        _draw_potentials(axes, matrix[np.ix_(order, order)], np.stack([m for _, m in frames]))
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


def _draw_potentials(axes: Axes, matrix: Matrix, every: NDArray[np.float32]) -> Any:
    """Draw potentials in colors that span the range of all; return the image."""
    from matplotlib.colors import LinearSegmentedColormap

    masked = np.ma.array(matrix, mask=np.eye(len(matrix), dtype=bool))
    axes.grid(visible=False)
    colors = LinearSegmentedColormap.from_list("potentials", SCALE).with_extremes(bad="#d9d9d9")
    low, high = float(every.min()), float(every.max())
    # Without interpolation an SVG holds one pixel per cell, and the browser scales it sharply.
    return axes.imshow(masked, cmap=colors, vmin=low, vmax=high, interpolation="none")


def pair_snapshots(run: Run, at_most: int) -> Iterator[Snapshot]:
    """Yield evenly spread snapshots of a run that have pair potentials; only these are read.

    Damaged ones are left out.
    """
    last = run.last_snapshot
    if last is None or not count_paired(last):
        return
    files = [file for file in snapshot_files(run.path / "snapshots") if file[0] <= last.step]
    for place in evenly_spread(len(files), at_most):
        snapshot = run.snapshot(*files[place])
        if snapshot and count_paired(snapshot) == count_paired(last):
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
