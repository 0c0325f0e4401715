"""Plots that compare arms: differences by seed, curves, counts of classes, accuracy by option."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from adaptask.report.formats import clean
from adaptask.report.page.data import (
    BACKGROUND,
    PALETTE,
    Curve,
    Panel,
    Series,
    StudyData,
    Style,
    aggregate,
    sampler_labels,
    shorten,
)
from adaptask.report.page.figures import INK, PANEL, Legend, Plot, make_plot
from adaptask.report.study import NO_VALUE
from adaptask.report.summary import ArmSummary, StudySummary
from adaptask.report.verdicts import in_words, named

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PANELS = 24
"""A plot has at most this many panels; tables have the others."""
MAX_RANKS = 200
"""Points of a line over classes: the page of thousands of classes stays small."""
MAX_ROWS = 30
"""The plot of differences has at most this many rows."""

Lines = Sequence[tuple[Style, Curve]]
Line = list[tuple[float, list[float]]]
"""Values of an option, each with the accuracies of the seeds."""

_BANDS = (
    "Lines are means over the seeds that have got this far; bands reach from the lowest seed to "
    "the highest."
)


@dataclass(frozen=True)
class Metric:
    """A metric that is drawn over time."""

    name: str
    """Name of the plot's files."""
    split: str
    key: str
    """Where the metric is in the records of a run."""
    scale: float
    title: str
    label: str
    """Label of the y axis."""
    caption: str
    x_label: str = "step"


VALIDATION = Metric(
    *("validation", "val", "accuracy", 100.0),
    "Validation accuracy",
    "validation accuracy, %",
    f"Accuracy on tasks of the validation classes, which are not trained on. {_BANDS} Overlapping "
    "bands mean that seeds differ as much as samplers do; the tests above say which differences "
    "are significant.",
)
DIFFICULTY = Metric(
    *("difficulty", "train", "accuracy", 100.0),
    "Difficulty of the drawn tasks",
    "accuracy on drawn tasks, %",
    "Accuracy of the model on its training tasks: lower is harder. A line below the baseline means "
    "that harder tasks were drawn, if both models do equally well on the validation classes. "
    f"{_BANDS}",
)
DIVERGENCE = Metric(
    *("kl", "sampler", "kl", 1.0),
    "Divergence from uniform",
    "KL from uniform, nats",
    "Kullback-Leibler divergence of the distribution over tasks from the uniform one. At 0 all "
    "tasks are equally likely; the higher, the fewer tasks are preferred. If it cannot be computed "
    "exactly, it is estimated from drawn tasks and may scatter a little.",
)
COUNTS = Metric(
    *("class-counts", "", "", 1.0),
    "How often each class was drawn",
    "times drawn / mean",
    "Number of tasks with a class, divided by the mean over classes, all seeds together. Classes "
    "are sorted separately for each sampler. Chance alone makes some more frequent than others: "
    "compare with the line of a uniform sampler.",
    x_label="class, from most to least often drawn",
)


def differences_plot(data: StudyData) -> Plot | None:
    """Draw the difference to the baseline of every arm: each seed, the mean and its interval."""
    compared = [found for found in data.summary.arms if found.difference]
    if not compared or data.study.by_validation:
        return None
    rows = compared[:MAX_ROWS]

    def draw(axes: Axes) -> None:
        for y, found in enumerate(reversed(rows)):
            _draw_difference(axes, found, data.summary.arm(found.arm.baseline or ""), y)
        names = [shorten(_comparison_name(data.summary, found), 30) for found in reversed(rows)]
        axes.set_yticks(range(len(rows)), names)
        axes.set_ylim(-0.7, len(rows) - 0.4)
        axes.axvline(0, color=INK, lw=1.2)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("difference in test accuracy, points")

    caption = (
        "Difference in test accuracy between each arm and its baseline. Dots are seeds, paired "
        "with the same seed of the baseline. The diamond is their mean, and the line its 95 % "
        "interval over seeds and test tasks; orange if the difference is significant. An interval "
        "that contains 0 shows no difference."
    )
    if len(compared) > len(rows):
        caption += f" {len(compared) - len(rows)} further comparisons are only in the tables."
    return make_plot(
        data.plots,
        [("", draw)],
        name="differences",
        title="Difference to the baseline, seed by seed",
        caption=caption,
        size=(PANEL[0], 0.9 + 0.45 * len(rows)),
    )


def _draw_difference(axes: Axes, found: ArmSummary, baseline: ArmSummary, y: float) -> None:
    difference = found.difference
    assert difference is not None
    color = PALETTE[0].color if found.is_significant else PALETTE[1].color
    seeds = [found.accuracies[seed] - baseline.accuracies[seed] for seed in difference.seeds]
    axes.plot(seeds, [y - 0.32] * len(seeds), "o", color=color, ms=4.5, alpha=0.6, mew=0)
    if difference.low is not None and difference.high is not None:
        axes.plot([difference.low, difference.high], [y, y], color=color, lw=1.8)
    axes.plot([difference.mean], [y], "D", color=color, ms=6.5)


def _comparison_name(summary: StudySummary, found: ArmSummary) -> str:
    ours, _, context = in_words(summary, found)
    return clean(", ".join(filter(None, (ours, context))))


def curve_plot(data: StudyData, metric: Metric) -> Plot | None:
    """Draw a metric over time, one panel per setting; None if no run recorded it."""
    # Training metrics are noisy: fewer points, each the mean of more records.
    points = 40 if metric.split == "train" else 60

    def over_time(series: Series) -> Curve:
        runs = [run.curve(metric.split, metric.key) for run in series.runs]
        return aggregate(runs, max_points=points)

    return lines_plot(data, metric, over_time)


def lines_plot(data: StudyData, metric: Metric, curve_of: Callable[[Series], Curve]) -> Plot | None:
    """Draw a curve of each series; None if all are empty."""
    drawn: list[tuple[Panel, Lines]] = []
    for panel in data.panels:
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


def counts_plot(data: StudyData) -> Plot | None:
    """Draw how often classes were drawn, one panel per setting; None if no run recorded it."""

    def sorted_counts(series: Series) -> Curve:
        counts = series.class_counts()
        if counts is None or not counts.any():
            return aggregate([])
        shares = np.sort(counts / counts.mean())[::-1]
        ranks = np.unique(np.linspace(0, len(shares) - 1, MAX_RANKS).round().astype(np.int64))
        return Curve(ranks + 1, shares[ranks], shares[ranks], shares[ranks])

    return lines_plot(data, COUNTS, sorted_counts)


def settings_plots(data: StudyData) -> list[Plot]:
    """Draw accuracy against each numeric option of the sampler that varies."""
    plots = (_settings_plot(data, setting) for setting in sampler_labels(data.study))
    return [plot for plot in plots if plot]


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
        # A baseline without this option is a level line over all values.
        without = (s for s in panel.series if s.is_baseline and _number(s, setting) is None)
        baseline = next(without, None)
        level = _accuracies(baseline, validation) if baseline else []
        if baseline and level:
            values = [value for line in lines.values() for value, _ in line]
            lines[baseline.name] = [(value, level) for value in (min(values), max(values))]
            styles[baseline.name] = Style(data.styles[baseline.name].color)

    def draw(axes: Axes, lines: Mapping[str, Line]) -> None:
        for name, line in lines.items():
            for value, seeds in line:
                axes.plot([value] * len(seeds), seeds, ".", color=styles[name].color, alpha=0.6)
            means = [fmean(seeds) for _, seeds in line]
            values, ls = [value for value, _ in line], "-" if name else "none"
            axes.plot(values, means, color=styles[name].color, marker="D", ms=5, ls=ls)
        axes.set(xlabel=setting, ylabel=f"{kind} accuracy, %")

    return make_plot(
        data.plots,
        [(panel.title, partial(draw, lines=lines)) for panel, lines in found],
        name=f"settings-{setting}",
        title=f"Accuracy against {setting}",
        caption=f"{kind.capitalize()} accuracy for values of {setting}. Dots are seeds, diamonds "
        "their means. A baseline without this option is a level line. The paired tests in the "
        "tables say whether an arm differs from its baseline; the highest of many diamonds is high "
        "partly by chance.",
        legend=tuple((name or "each arm", style) for name, style in styles.items()),
    )


def setting_lines(panel: Panel, setting: str, *, validation: bool = False) -> dict[str, Line]:
    """Return the lines of a panel by name: arms that differ only in the setting.

    If no two do so, as in a random search, all arms are points of one line without a name.
    """
    groups: dict[str, Line] = {}
    for series in panel.series:
        value, accuracies = _number(series, setting), _accuracies(series, validation)
        if value is None or not accuracies:
            continue
        labels = series.arm.labels
        rest = clean(named(labels, [k for k in labels if k not in (setting, *panel.labels)]))
        groups.setdefault(rest, []).append((value, accuracies))
    lines = {
        name: sorted(line) for name, line in groups.items() if len({value for value, _ in line}) > 1
    }
    alone = [point for line in groups.values() for point in line]
    return lines or ({"": alone} if len({value for value, _ in alone}) > 1 else {})


def _accuracies(series: Series, validation: bool) -> list[float]:
    """Return the accuracies of the finished runs of an arm; runs that were stopped have none."""
    found = series.found
    of = found.validations if validation else found.accuracies
    # Without test classes a run finishes untested, and validation is all that it has.
    return [of[seed] for seed in (*found.accuracies, *found.untested) if seed in of]


def _number(series: Series, setting: str) -> float | None:
    """Return the value of a setting; None if the arm does not have it, or it is not a number."""
    try:
        value = float(series.arm.labels.get(setting, NO_VALUE))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
