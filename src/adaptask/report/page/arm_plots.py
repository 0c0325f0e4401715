"""Plots that compare all arms: curves over time, accuracy against settings, counts of classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from adaptask.report.page.data import (
    BACKGROUND,
    NO_VALUE,
    PALETTE,
    Curve,
    Panel,
    Reading,
    Series,
    Style,
    aggregate,
    class_labels,
    describe,
)
from adaptask.report.page.figures import Legend, Plot, Section, make_plot
from adaptask.report.page.showcase import StudyData

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PANELS = 24
"""A plot has at most this many panels; tables have the others."""
SETTINGS = {
    "alpha": "how strongly a confusion raises a potential",
    "tau": "how much of a potential is kept at each update",
}
_N_MOST_DRAWN = 8

Lines = Sequence[tuple[Style, Curve]]

BANDS = (
    "Lines are means over seeds, as far as each has come; bands go from the lowest seed to the "
    "highest."
)


@dataclass(frozen=True)
class Metric:
    """A metric that is drawn over time."""

    name: str
    split: str
    key: str
    scale: float
    title: str
    label: str
    caption: str
    x_label: str = "step"


TRAINING = (
    Metric(
        *("validation", "val", "accuracy", 100.0),
        "Validation accuracy",
        "validation accuracy, %",
        "Accuracy on tasks of the validation classes, on which nothing is trained. "
        f"{BANDS} Where bands overlap, seeds differ as much as samplers do: the tables say which "
        "differences a test over seeds confirms.",
    ),
    Metric(
        *("training-loss", "train", "loss", 1.0),
        "Training loss",
        "training loss",
        "Loss on the tasks that were drawn to train on, mean since the previous point. A sampler "
        "that prefers hard tasks trains at a higher loss; that by itself is neither good nor bad.",
    ),
)
DISTRIBUTION = (
    Metric(
        *("difficulty", "train", "accuracy", 100.0),
        "Difficulty of the drawn tasks",
        "accuracy on drawn tasks, %",
        "Accuracy of the model on the tasks drawn to train on: lower is harder. A line below that "
        "of uniform means that harder tasks were drawn, provided that the two models do equally "
        f"well on the validation classes. {BANDS}",
    ),
    Metric(
        *("kl", "sampler", "kl", 1.0),
        "Divergence from uniform",
        "KL from uniform, nats",
        "How far the distribution over tasks is from the uniform one, as Kullback-Leibler "
        "divergence. At 0 all tasks are equally likely; the higher, the fewer tasks are preferred. "
        "It is estimated from drawn tasks where it cannot be summed, and so may scatter a little.",
    ),
)
COUNTS = Metric(
    *("class-counts", "", "", 1.0),
    "How often each class was drawn",
    "times drawn / mean",
    "In how many tasks a class was, divided by the mean over classes, all seeds together; classes "
    "are sorted separately for each sampler. Chance alone makes some come more often than others, "
    "as the line of uniform shows.",
    x_label="class, from most to least often drawn",
)


def curves_section(data: StudyData) -> Section:
    """Validation accuracy and training loss over time."""
    plots = [_curve_plot(data, metric) for metric in TRAINING]
    return Section(
        *("curves", "Curves", "Training and validation"),
        absent="No curves: no run has recorded anything yet.",
        plots=[plot for plot in plots if plot],
    )


def _curve_plot(data: StudyData, metric: Metric) -> Plot | None:
    """Draw a metric over time, one panel for each setting; None if nobody recorded it."""
    # Training metrics are noisy: fewer points, each the mean of more records.
    points = 40 if metric.split == "train" else 60

    def over_time(series: Series) -> Curve:
        runs = [record.curve(metric.split, metric.key) for record in series.records]
        return aggregate(runs, max_points=points)

    return _lines_plot(data, data.panels, metric, over_time)


def _lines_plot(
    data: StudyData, panels: Sequence[Panel], metric: Metric, curve_of: Callable[[Series], Curve]
) -> Plot | None:
    """Draw a curve of each series; None if all are empty."""
    drawn: list[tuple[Panel, Lines]] = []
    for panel in panels:
        found = [(data.styles[series.name], curve_of(series)) for series in panel.series]
        if lines := [(style, curve) for style, curve in found if not curve.is_empty]:
            drawn.append((panel, lines))
    if not drawn:
        return None
    caption = metric.caption
    if len(drawn) > MAX_PANELS:
        rest = len(drawn) - MAX_PANELS
        caption += f" {rest} further settings are left out here; the tables have them."
    shown = drawn[:MAX_PANELS]
    return make_plot(
        data.plots,
        [(panel.title, partial(draw_curves, lines=lines, metric=metric)) for panel, lines in shown],
        name=metric.name,
        title=metric.title,
        caption=caption,
        legend=_legend([panel for panel, _ in shown], data),
    )


def draw_curves(axes: Axes, lines: Lines, metric: Metric) -> None:
    """Draw means over seeds, and bands from the lowest seed to the highest."""
    # Lines in the background are drawn first, and without bands.
    for style, curve in sorted(lines, key=lambda line: line[0] != BACKGROUND):
        is_named = style != BACKGROUND
        low, high = curve.low * metric.scale, curve.high * metric.scale
        if is_named:
            axes.fill_between(curve.steps, low, high, color=style.color, alpha=0.16, lw=0)
        axes.plot(
            curve.steps,
            curve.mean * metric.scale,
            color=style.color,
            dashes=style.dashes or (None, None),
            lw=1.9 if is_named else 0.7,
            marker="o" if len(curve.steps) < 3 else None,
        )
    axes.set(xlabel=metric.x_label, ylabel=metric.label)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=5)


def _legend(panels: Sequence[Panel], data: StudyData) -> Legend:
    """Return names and styles of the lines in some panels; those in the background as one."""
    names = list(dict.fromkeys(series.name for panel in panels for series in panel.series))
    legend = [(name, data.styles[name]) for name in names if data.styles[name] != BACKGROUND]
    if len(legend) < len(names):
        legend.append((f"{len(names) - len(legend)} others", BACKGROUND))
    return tuple(legend)


def settings_section(data: StudyData) -> Section | None:
    """Accuracy against alpha and tau; left out if neither varies."""
    plots = [plot for setting in SETTINGS if (plot := _settings_plot(data, setting))]
    return (
        Section("settings", "Settings", "Settings of the sampler", plots=plots) if plots else None
    )


def _settings_plot(data: StudyData, setting: str) -> Plot | None:
    validation = data.study.by_validation
    kind = "validation" if validation else "test"
    every = [(panel, setting_lines(panel, setting, validation=validation)) for panel in data.panels]
    found = [(panel, lines) for panel, lines in every if lines][:MAX_PANELS]
    if not found:
        return None
    names = list(dict.fromkeys(name for _, lines in found for name in lines))
    # Without dashes, which would not show between few points.
    styles = {name: Style(PALETTE[i % len(PALETTE)].color) for i, name in enumerate(names)}
    for panel, lines in found:
        uniform = next((series for series in panel.series if series.is_uniform), None)
        level = uniform.reading(0.0, validation=validation) if uniform else None
        if uniform and level:
            # It has no such setting: a level over all values.
            values = [reading.value for line in lines.values() for reading in line]
            lines[uniform.name] = [replace(level, value=v) for v in (min(values), max(values))]
            styles[uniform.name] = Style(data.styles[uniform.name].color)

    def draw(axes: Axes, lines: Mapping[str, Sequence[Reading]]) -> None:
        for name, line in lines.items():
            axes.errorbar(
                [reading.value for reading in line],
                [reading.mean for reading in line],
                [reading.interval or 0.0 for reading in line],
                color=styles[name].color,
                marker="o",
                capsize=3,
                elinewidth=1,
                ls="-" if name else "none",
            )
        axes.set(xlabel=setting, ylabel=f"{kind} accuracy, %")

    return make_plot(
        data.plots,
        [(panel.title, partial(draw, lines=lines)) for panel, lines in found],
        name=f"settings-{setting}",
        title=f"Accuracy against {setting}",
        caption=f"{kind.capitalize()} accuracy for values of {setting}, {SETTINGS[setting]}. Dots "
        "are means over seeds, bars their 95 % intervals (Student's t; none for a single seed). "
        "The level line is uniform, which has no such setting. The paired tests in the tables say "
        "whether an arm differs from uniform; the highest dot of many is high partly by chance.",
        legend=tuple((name or "each arm", style) for name, style in styles.items()),
    )


def setting_lines(
    panel: Panel, setting: str, *, validation: bool = False
) -> dict[str, list[Reading]]:
    """Return the lines of a panel by name: arms that differ in the setting alone.

    If no two do so, as in a random search, all arms are points of one line without a name.
    """
    groups: dict[str, list[Reading]] = {}
    for series in panel.series:
        labels = series.arm.labels
        try:
            value = float(labels.get(setting, NO_VALUE))
        except ValueError:
            continue  # it has no such setting, or no number
        reading = series.reading(value, validation=validation)
        if reading is None or not math.isfinite(value):
            continue
        rest = [
            describe(key, item)
            for key, item in labels.items()
            if key not in (setting, *panel.labels) and item != NO_VALUE
        ]
        groups.setdefault(", ".join(rest), []).append(reading)
    lines = {
        name: sorted(line, key=lambda reading: reading.value)
        for name, line in groups.items()
        if len({reading.value for reading in line}) > 1
    }
    alone = [reading for line in groups.values() for reading in line]
    if not lines and len({reading.value for reading in alone}) > 1:
        lines = {"": alone}
    return lines


def distribution_section(data: StudyData) -> Section:
    """How hard the drawn tasks are, how far from uniform, and how often classes were drawn."""
    plots = [*(_curve_plot(data, metric) for metric in DISTRIBUTION), _counts_plot(data)]
    return Section(
        *("distribution", "Distribution", "The distribution over tasks"),
        absent="Nothing about the distribution over tasks has been recorded yet.",
        plots=[plot for plot in plots if plot],
    )


def _counts_plot(data: StudyData) -> Plot | None:
    """Draw how often classes were drawn in one setting, and name the extremes of one sampler."""
    shown = data.showcases[0] if data.showcases else None
    panel = shown.panel if shown else data.panels[0]
    subject = shown.series if shown else panel.series[-1]

    def sorted_counts(series: Series) -> Curve:
        counts = series.class_counts()
        if counts is None or not counts.any():
            return aggregate([])
        shares = np.sort(counts / counts.mean())[::-1]
        return Curve(np.arange(1, len(shares) + 1), shares, shares, shares)

    metric = COUNTS
    counts, portrait = subject.class_counts(), subject.portrait()
    if counts is not None and portrait and len(portrait.class_names) == len(counts):
        names = [class_labels(portrait.class_names)[c] for c in np.argsort(-counts, kind="stable")]
        most, least = names[:_N_MOST_DRAWN], names[_N_MOST_DRAWN:][-_N_MOST_DRAWN:]
        named = f"{subject.name} drew most often: {', '.join(most)}; least often: "
        metric = replace(COUNTS, caption=f"{COUNTS.caption} {named}{', '.join(least)}.")
    return _lines_plot(data, [panel], metric, sorted_counts)
