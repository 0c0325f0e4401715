"""What one run's sampler has learned and draws: potentials, pairs, map and tasks, with images."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptask.report.page.data import Style, class_labels, shorten
from adaptask.report.page.figures import (
    FAINT,
    Plot,
    Section,
    look,
    make_plot,
    new_figure,
    write_figure,
)
from adaptask.report.page.potentials import (
    Matrix,
    PairList,
    confusion_rank,
    evenly_spread,
    extreme_pairs,
    mean_within,
    most_confused,
    quantize,
)
from adaptask.report.page.showcase import Showcase, StudyData
from adaptask.report.run import Portrait

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCALE = ("#f5f6fa", "#cdd6ec", "#93a8d6", "#5873b6", "#2f4088", "#131842")
"""Colors of potentials, from the lowest to the highest: darker is higher, as in the paper."""
N_PAIRS = 6
N_TASKS = 4
MAX_WAY = 10
"""Classes of a task in the files of a plot, at most; the page has them all."""
EVOLUTION = (16, 15)
"""Classes, and panels at most, as in the paper's appendix."""
THUMBNAIL = 40
"""Height and width of an image in a page at most, in its own pixels."""
_MAX_NAMED = 80

Images = NDArray[np.uint8]


@dataclass(frozen=True)
class Picture:
    """Some images of a class, side by side."""

    name: str
    pixels: Images | None
    """`height x width x 4`; None if there are no images."""

    @cached_property
    def image(self) -> str | None:
        """A data address."""
        return None if self.pixels is None else png_data_uri(self.pixels)


def potentials_section(data: StudyData) -> Section:
    """The heatmap of the potentials, and how the highest of them developed."""
    values: dict[str, Any] = {}
    plots = []
    if data.showcases:
        values = {
            "heatmap": _heatmap_data(data),
            "all_hard": all(shown.seeks_hard for shown in data.showcases),
            "n_hidden": data.n_hidden,
            "partial": any(len(shown.names) < shown.n_classes for shown in data.showcases),
        }
        _write_potentials(data.plots, data.showcases[0])
        plots = [_evolution_plot(data.plots, data.showcases[0])]
    return Section(
        *("potentials", "Potentials", "What the sampler has learned: potentials of class pairs"),
        absent="No potentials to show: none of these runs has a sampler that learns potentials of "
        "class pairs (gcp or cp) and has recorded a snapshot of them.",
        plots=plots,
        template="heatmap.html.j2",
        values=values,
    )


def _heatmap_data(data: StudyData) -> dict[str, object]:
    """Return what the page's heatmap is drawn from, ready for JSON."""
    catalogs: list[dict[str, object]] = []
    runs = []
    for shown in data.showcases:
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
                "catalog": _catalog(shown, catalogs),
                "steps": list(shown.steps),
                "order": shown.order.tolist(),
                "rank": confusion_rank(shown.frames[-1]).tolist(),
                "tasks": tasks,
                **quantize(shown.frames),
            }
        )
    return {"runs": runs, "catalogs": catalogs, "scale": SCALE}


def _catalog(shown: Showcase, catalogs: list[dict[str, object]]) -> int:
    """Return the place of the names and images of a run's classes; many runs share them."""
    names = list(shown.names)
    for place, known in enumerate(catalogs):
        if known["names"] == names:
            return place
    images = []
    if shown.portrait and shown.portrait.images.size:
        images = [png_data_uri(image) for image in thumbnails(shown.portrait.images[:, 0])]
    catalogs.append({"names": names, "images": images})
    return len(catalogs) - 1


def _write_potentials(folder: Path, shown: Showcase) -> None:
    """Write the last potentials as files, with the classes of the first tasks marked."""
    order = shown.order
    if len(order) > _MAX_NAMED:
        order = most_confused(shown.frames[-1], order, _MAX_NAMED // 2)
    marks: dict[int, str] = {}
    for name, portrait in shown.samplers:
        for class_id in portrait.tasks[:1].flat:
            marks[int(class_id)] = "◆ " if name == shown.series.name else "○ "
    names = [marks.get(c, "") + shorten(shown.names[c], 20) for c in order.tolist()]
    size = max(3.5, min(9, 320 / len(names)))
    with look():
        figure = new_figure(9, 8.4)
        axes = figure.add_subplot()
        image = _draw_matrix(axes, shown.frames[-1][np.ix_(order, order)], shown.limits)
        axes.set_title(shown.title)
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=size)
        axes.set_yticks(range(len(names)), names, fontsize=size)
        figure.colorbar(image, ax=axes, label="log potential", shrink=0.6)
        write_figure(folder, "potentials", figure)


def _evolution_plot(folder: Path, shown: Showcase) -> Plot:
    """Draw the most confused classes over time."""
    n_classes, n_panels = EVOLUTION
    chosen = most_confused(shown.frames[-1], shown.order, n_classes)
    places = evenly_spread(len(shown.frames), n_panels)
    matrices = [shown.frames[place][np.ix_(chosen, chosen)] for place in places]
    return make_plot(
        folder,
        [
            (f"step {shown.steps[place]:,}", partial(_draw_matrix, matrix=m, limits=shown.limits))
            for place, m in zip(places, matrices, strict=True)
        ],
        name="evolution",
        title="How they developed",
        caption=f"Potentials of the {len(chosen)} classes with the highest ones at the end "
        f"({shown.title}), over training time, on the heatmap's scale of colors. Chosen by their "
        "last state, they are bound to be dark there; what to look for is how early it shows and "
        "whether it stays. From top to bottom and left to right: "
        f"{', '.join(shown.names[c] for c in chosen)}.",
        size=(1.8, 2.0),
        columns=5,
        fit=True,
    )


def _draw_matrix(axes: Axes, matrix: Matrix, limits: tuple[float, float]) -> Any:
    """Draw potentials; return what a colorbar is made from."""
    from matplotlib.colors import LinearSegmentedColormap

    colors = LinearSegmentedColormap.from_list("potentials", SCALE).with_extremes(bad="#d9d9d9")
    shown = np.ma.array(matrix, mask=np.eye(len(matrix), dtype=bool))
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    # Without interpolation an SVG holds one pixel per cell, and the browser scales it sharply.
    return axes.imshow(shown, cmap=colors, vmin=limits[0], vmax=limits[1], interpolation="none")


def pairs_section(data: StudyData) -> Section:
    """The pairs of classes with the highest and the lowest potentials, with images."""
    absent = "No pairs to show: that takes potentials of class pairs, and there are none."
    if not data.showcases:
        return Section("pairs", "Pairs", "The hardest and the easiest pairs", absent)
    shown = data.showcases[0]

    def pictured(found: PairList) -> list[tuple[float, list[Picture]]]:
        return [
            (value, [_picture(shown.portrait, shown.names, c, 4) for c in pair])
            for *pair, value in found
        ]

    title, kinds = "The hardest and the easiest pairs", ("Hardest", "Easiest")
    if not shown.seeks_hard:
        title, kinds = "The pairs with the highest and the lowest potentials", ("Highest", "Lowest")
    extremes = extreme_pairs(shown.frames[-1], shown.counts, N_PAIRS)
    lists = [(kind, pictured(found)) for kind, found in zip(kinds, extremes, strict=True)]
    rows = [(f"{kind.lower()}\n{value:.2f}", p) for kind, found in lists for value, p in found]
    _write_strips(data.plots, "pairs", rows, columns=2)
    values = {"shown": shown, "lists": lists}
    return Section("pairs", "Pairs", title, absent, template="pairs.html.j2", values=values)


def map_section(data: StudyData) -> Section | None:
    """A map of the classes with tasks of uniform and an adaptive sampler; left out without both.

    Tasks of one sampler alone say nothing: whether they are close takes a comparison.
    """
    if not data.showcases or len(data.showcases[0].samplers) < 2:
        return None
    shown = data.showcases[0]
    mapped_name, mapped = shown.samplers[-1]
    places = map_classes(mapped.similarity)
    if places is None:
        return None
    panels = []
    for name, portrait in shown.samplers:
        draw = partial(_draw_map, tasks=portrait.tasks[:3], style=data.close_up_style(name))
        panels.append((f"classes drawn by {name}", partial(draw, places=places, names=shown.names)))
    closeness = "; ".join(
        f"{name} {mean_within(mapped.similarity, portrait.tasks).mean():.2f}"
        for name, portrait in shown.samplers
        if len(portrait.tasks)
    )
    plot = make_plot(
        data.plots,
        panels,
        name="class-map",
        title="Map of the classes",
        caption="t-SNE of the class prototypes, the mean features of the model trained with "
        f"{mapped_name}, by their cosine: classes that are close look alike to it. Distances "
        "between far groups mean nothing. Both panels are the same map; each marks the classes of "
        "the first three tasks that a sampler drew after the last step, one kind of mark per task. "
        "Mean cosine between the classes of a task, over all recorded ones (higher "
        f"is more alike): {closeness}.",
        size=(4.7, 4.7),
        fit=True,
    )
    return Section("map", "Map", "Which classes look alike to the model", plots=[plot])


def map_classes(similarity: NDArray[np.floating]) -> NDArray[np.float64] | None:
    """Return places of the classes by t-SNE, `classes x 2`, with a fixed seed.

    The perplexity, about the number of neighbors of a class, is the square root of the number of
    classes: the usual 30 is meant for thousands of points.

    Args:
        similarity: Cosines between the prototypes, `classes x classes`; the distance of two
            classes is 1 less their cosine.

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


def _draw_map(
    axes: Axes,
    places: NDArray[np.float64],
    names: Sequence[str],
    tasks: NDArray[np.int64],
    style: Style,
) -> None:
    """Draw classes as dots; those of each task are joined, and named below."""
    axes.scatter(places[:, 0], places[:, 1], s=10, color=FAINT, alpha=0.55, lw=0)
    for task, marker in zip(tasks, "oDs^v", strict=False):
        center = places[task].mean(axis=0)
        for place in places[task]:
            axes.plot(*np.stack([center, place]).T, color=style.color, lw=0.8, alpha=0.45)
        # The space: matplotlib leaves labels that begin with an underscore out of a legend.
        text = " " + ", ".join(shorten(names[c], 14) for c in task[:5])
        x, y = places[task].T
        axes.scatter(x, y, s=36, marker=marker, color=style.color, zorder=3, label=text)
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[["top", "right"]].set_visible(True)
    if len(tasks):
        axes.legend(loc="upper left", bbox_to_anchor=(-0.02, 0), fontsize=7, borderpad=0)


def tasks_section(data: StudyData) -> Section:
    """The first tasks of each sampler that is shown, as images."""
    if data.showcases:
        portraits = data.showcases[0].samplers
    else:
        found = [(series.name, series.portrait()) for series in data.panels[0].series[:2]]
        portraits = tuple((name, portrait) for name, portrait in found if portrait is not None)
    samplers, rows = [], []
    for name, portrait in portraits:
        names = class_labels(portrait.class_names)
        drawn = [
            [_picture(portrait, names, int(class_id), 2) for class_id in task]
            for task in portrait.tasks[:N_TASKS]
        ]
        samplers.append((name, data.close_up_style(name), drawn))
        head = name.replace(", ", "\n")
        rows += [(f"{head}\n{place}", task[:MAX_WAY]) for place, task in enumerate(drawn, start=1)]
    if rows:
        _write_strips(data.plots, "tasks", rows)
    return Section(
        *("tasks", "Tasks", "Tasks as they are drawn"),
        absent="No tasks to show: they are recorded when a run ends, and none has.",
        template="tasks.html.j2",
        values={"samplers": samplers} if samplers else {},
    )


def _picture(portrait: Portrait | None, names: Sequence[str], class_id: int, n: int) -> Picture:
    """Return the first images of a class side by side."""
    if portrait is None or not portrait.images.size:
        return Picture(names[class_id], None)
    return Picture(names[class_id], strip(thumbnails(portrait.images[class_id, :n])))


def _write_strips(
    folder: Path, name: str, rows: Sequence[tuple[str, Sequence[Picture]]], columns: int = 1
) -> None:
    """Write rows of pictures as files, column by column; nothing if there are no images."""
    n_rows = math.ceil(len(rows) / columns)
    with look():
        figure = new_figure(9.5, 0.9 * n_rows, fit=False)
        figure.subplots_adjust(left=0.1, right=0.98, bottom=0.01, top=0.94, hspace=0.5)
        for number, (head, pictures) in enumerate(rows):
            strips = [picture.pixels for picture in pictures if picture.pixels is not None]
            if not strips:
                return
            column, row = divmod(number, n_rows)
            axes = figure.add_subplot(n_rows, columns, row * columns + column + 1)
            height, width, _ = strips[0].shape
            gap = np.zeros((height, height // 3, 4), dtype=np.uint8)
            axes.imshow(np.hstack([part for one in strips for part in (one, gap)]))
            axes.text(-height / 4, height / 2, head, fontsize=7.5, ha="right", va="center")
            for place, picture in enumerate(pictures):
                text = shorten(picture.name, 20 if len(pictures) < 3 else 14)
                axes.text(place * (width + height // 3), -2, text, fontsize=6.5, va="bottom")
            axes.axis("off")
        write_figure(folder, name, figure)


def thumbnails(images: Images, largest: int = THUMBNAIL) -> Images:
    """Return images, `... x height x width x channels`, at most `largest` high and wide.

    A pixel is the mean over a whole block of pixels.
    """
    height, width, channels = images.shape[-3:]
    block = -(-max(height, width) // largest)
    if block <= 1:
        return images
    height, width = height // block, width // block
    cut = images[..., : height * block, : width * block, :]
    blocks = cut.reshape(*images.shape[:-3], height, block, width, block, channels)
    return np.asarray(np.round(blocks.mean(axis=(-4, -2))), dtype=np.uint8)


def strip(images: Images, gap: int = 2) -> Images:
    """Return images side by side on a transparent background, `height x width x 4`."""
    count, height, width, _ = images.shape
    sheet = np.zeros((height, count * (width + gap) - gap, 4), dtype=np.uint8)
    for number, image in enumerate(images):
        left = number * (width + gap)
        sheet[:, left : left + width, :3] = image
        sheet[:, left : left + width, 3] = 255
    return sheet


def png_data_uri(pixels: Images) -> str:
    """Return pixels, `height x width x 1, 3 or 4`, as an address that holds a PNG file."""
    from PIL import Image

    file = io.BytesIO()
    single = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    Image.fromarray(np.ascontiguousarray(single)).save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
