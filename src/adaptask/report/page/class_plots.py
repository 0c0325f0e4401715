"""Plots and images of classes: how often drawn, test accuracy and confusion, map, tasks."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptask.report.page.arm_plots import Metric, lines_plot
from adaptask.report.page.data import StudyData
from adaptask.report.page.figures import FAINT, Plot, make_plot
from adaptask.report.page.series import Curve, Series, Style, aggregate, class_labels, shorten
from adaptask.report.run import Preview

if TYPE_CHECKING:
    from matplotlib.axes import Axes

N_TASKS = 4
N_MOST_DRAWN = 8
MAX_TEST_CLASSES = 32
"""Test classes in a plot; of more, those with the lowest accuracy."""
THUMBNAIL = 40
"""Largest height and width of an image in the page, in its own pixels."""

COUNTS = Metric(
    *("class-counts", "", "", 1.0),
    "How often each class was drawn",
    "times drawn / mean",
    "Number of tasks with a class, divided by the mean over classes, all seeds together. Classes "
    "are sorted separately for each sampler. Chance alone makes some more frequent than others: "
    "compare with the line of a uniform sampler.",
    x_label="class, from most to least often drawn",
)


@dataclass(frozen=True)
class Picture:
    """A class with some of its images."""

    name: str
    images: tuple[str, ...]
    """Data URIs; empty if there are no images."""


def counts_plot(data: StudyData) -> Plot | None:
    """Draw how often classes were drawn in one setting, and name the extremes of one sampler."""
    panel = data.potentials[0].panel if data.potentials else data.panels[0]
    subject = data.potentials[0].series if data.potentials else panel.series[-1]

    def sorted_counts(series: Series) -> Curve:
        counts = series.class_counts()
        if counts is None or not counts.any():
            return aggregate([])
        shares = np.sort(counts / counts.mean())[::-1]
        return Curve(np.arange(1, len(shares) + 1), shares, shares, shares)

    metric = COUNTS
    counts, preview = subject.class_counts(), subject.preview()
    if counts is not None and preview and len(preview.class_names) == len(counts):
        labels = class_labels(preview.class_names)
        names = [labels[c] for c in np.argsort(-counts, kind="stable")]
        most, least = names[:N_MOST_DRAWN], names[N_MOST_DRAWN:][-N_MOST_DRAWN:]
        named = f"{subject.name} drew most often: {', '.join(most)}; least often: "
        metric = replace(COUNTS, caption=f"{COUNTS.caption} {named}{', '.join(least)}.")
    return lines_plot(data, [panel], metric, sorted_counts)


def class_accuracy_plot(data: StudyData) -> Plot | None:
    """Draw the test accuracy of each class; None if no run recorded it."""
    found = _test_confusions(data)
    if not found:
        return None
    names = found[0][1]
    rates = [
        (series, np.diag(matrix) / np.maximum(1, matrix.sum(axis=1))) for series, _, matrix in found
    ]
    hardest = np.argsort(np.mean([rate for _, rate in rates], axis=0), kind="stable")
    chosen = hardest[:MAX_TEST_CLASSES][::-1]

    def draw(axes: Axes) -> None:
        for (series, rate), marker in zip(rates, "oD", strict=False):
            style = data.close_up_style(series.name)
            axes.plot(100 * rate[chosen], range(len(chosen)), marker, color=style.color, ms=5)
        axes.set_yticks(range(len(chosen)), [shorten(names[c], 30) for c in chosen])
        axes.set_ylim(-0.7, len(chosen) - 0.3)
        axes.set_xlabel("test accuracy, %")

    part = f" Shown are the {len(chosen)} of {len(names):,} classes with the lowest accuracy."
    return make_plot(
        data.plots,
        [("", draw)],
        name="test-accuracy",
        title="Test accuracy of each class",
        caption="Share of the queries of a test class that were classified correctly, over all "
        "test tasks and seeds, from the lowest accuracy to the highest."
        + (part if len(chosen) < len(names) else ""),
        legend=tuple((s.name, Style(data.close_up_style(s.name).color)) for s, _ in rates),
        size=(5.2, 1.0 + 0.21 * len(chosen)),
    )


def class_confusion_plot(data: StudyData) -> Plot | None:
    """Draw which test classes are taken for which; None if no run recorded it."""
    found = _test_confusions(data)
    if not found:
        return None
    names = found[0][1]
    rates = []
    for series, _, matrix in found:
        rate = 100 * matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True))
        np.fill_diagonal(rate, np.nan)
        rates.append((series, rate))
    worst = np.nanmax(rates[-1][1], axis=1) if len(names) > 1 else np.zeros(1)
    chosen = np.sort(np.argsort(-worst, kind="stable")[:MAX_TEST_CLASSES])
    high = max(1e-9, *(float(np.nanmax(rate, initial=0.0)) for _, rate in rates))

    def draw(axes: Axes, rate: NDArray[np.float64]) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        colors = LinearSegmentedColormap.from_list("confusion", ("#f7f4f0", "#e0a070", "#7a2b00"))
        masked = np.ma.masked_invalid(rate[np.ix_(chosen, chosen)])
        axes.grid(visible=False)
        image = axes.imshow(masked, cmap=colors.with_extremes(bad="#d9d9d9"), vmin=0, vmax=high)
        image.set_interpolation("none")
        ticks = [shorten(names[c], 18) for c in chosen]
        axes.set_yticks(range(len(chosen)), ticks, fontsize=7)
        axes.set_xticks(range(len(chosen)), ticks, fontsize=7, rotation=90)
        axes.set(xlabel="classified as", ylabel="class")

    side = 1.9 + 0.13 * len(chosen)
    return make_plot(
        data.plots,
        [(series.name, partial(draw, rate=rate)) for series, rate in rates],
        name="test-confusion",
        title="Confusion of test classes",
        caption="Share of the queries of a test class (row) that were classified as another "
        f"(column), over all test tasks and seeds, from 0 to {high:.1f} % (strongest color). The "
        "diagonal is left out. Two classes can be confused only in tasks that have both.",
        size=(side, side),
        columns=2,
    )


def _test_confusions(
    data: StudyData,
) -> list[tuple[Series, tuple[str, ...], NDArray[np.int64]]]:
    """Return the test classes and confusions of the series that are shown closely."""
    every = [(series, series.test_confusion()) for series in data.close_ups()]
    found = [(series, *confusion) for series, confusion in every if confusion]
    return [one for one in found if one[1] == found[0][1]]


def map_plot(data: StudyData) -> Plot | None:
    """Draw a map of the classes with tasks of the baseline and of another sampler.

    It is there only in studies that reproduce such a figure: where classes lie on a map of this
    kind says little by itself.
    """
    samplers = data.potentials[0].samplers if data.potentials else ()
    if data.study.first_section != "map" or len(samplers) < 2:
        return None
    places = map_classes(samplers[-1][1].similarity)
    if places is None:
        return None
    names = data.potentials[0].names

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
    for name, preview in samplers:
        tasks, style = preview.tasks[:3], data.close_up_style(name)
        panels.append((f"classes drawn by {name}", partial(draw, tasks=tasks, style=style)))
    return make_plot(
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
    """Return the values of `tasks.html.j2`, the first tasks of samplers; empty without any."""
    samplers = []
    for series in data.close_ups():
        if (preview := series.preview()) is None:
            continue
        names = class_labels(preview.class_names)
        drawn = [
            [class_picture(preview, names, class_id, 2) for class_id in task]
            for task in preview.tasks[:N_TASKS]
        ]
        samplers.append((series.name, data.close_up_style(series.name), drawn))
    return {"samplers": samplers} if samplers else {}


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
