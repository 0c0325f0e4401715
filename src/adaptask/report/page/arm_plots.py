"""Plots that compare all arms: curves over time, accuracy against settings, counts of classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptask.report.page.data import (
    BACKGROUND,
    NO_VALUE,
    PALETTE,
    Curve,
    Panel,
    Reading,
    Style,
    class_labels,
    shorten,
)
from adaptask.report.page.figures import FAINT, PANEL, Legend, Plot, Section, make_plot
from adaptask.report.page.showcase import StudyData

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PANELS = 24
"""A plot has at most this many panels; tables have the others."""
SETTINGS = {
    "alpha": "how strongly a confusion raises a potential",
    "tau": "how much of a potential is kept at each update",
}
_MAX_WITH_SEEDS = 4
"""With more lines than this, marks of single seeds would hide them."""
_N_MOST_DRAWN = 8

Lines = Sequence[tuple[Style, Curve]]

BANDS = (
    "Lines are means over seeds; bands go from the lowest seed to the highest. Where a line is "
    "thin, not all of its runs have come that far."
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
    drawn: list[tuple[Panel, Lines]] = []
    for panel in data.panels:
        found = [
            (data.styles[series.name], series.curve(metric.split, metric.key, max_points=points))
            for series in panel.series
        ]
        if lines := [(style, curve) for style, curve in found if not curve.is_empty]:
            drawn.append((panel, lines))
    if not drawn:
        return None
    legend = _legend([panel for panel, _ in drawn[:MAX_PANELS]], data)
    caption = metric.caption
    if BACKGROUND in (style for _, style in legend):
        caption += " Arms that are too many to have colors are gray and without bands."
    if len(drawn) > MAX_PANELS:
        rest = len(drawn) - MAX_PANELS
        caption += f" {rest} further settings are left out here; the tables have them."
    return make_plot(
        data.plots,
        [
            (panel.title, partial(draw_curves, lines=lines, metric=metric))
            for panel, lines in drawn[:MAX_PANELS]
        ],
        name=metric.name,
        title=metric.title,
        caption=caption,
        legend=legend,
    )


def draw_curves(axes: Axes, lines: Lines, metric: Metric) -> None:
    """Draw means over seeds, thin where some are missing, and from the lowest to the highest."""
    for style, curve in sorted(lines, key=lambda line: line[0] != BACKGROUND):
        steps, mean = curve.steps, curve.mean * metric.scale
        if style == BACKGROUND:
            axes.plot(steps, mean, lw=0.7, alpha=0.6, color=style.color)
            continue
        if curve.n_runs.max() > 1:
            low, high = curve.low * metric.scale, curve.high * metric.scale
            axes.fill_between(steps, low, high, color=style.color, alpha=0.16, lw=0)
        common: Any = {"color": style.color, "dashes": style.dashes or (None, None)}
        axes.plot(steps, mean, lw=0.9, alpha=0.8, **common)
        whole = np.where(curve.is_whole, mean, np.nan)
        axes.plot(steps, whole, lw=1.9, marker="o" if len(steps) < 3 else None, ms=4, **common)
    axes.set(xlabel="step", ylabel=metric.label)
    axes.margins(x=0.02)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=5)


def _legend(panels: Sequence[Panel], data: StudyData) -> Legend:
    """Return names and styles of the lines in some panels; those in the background as one."""
    names = list(dict.fromkeys(series.name for panel in panels for series in panel.series))
    legend = [(name, data.styles[name]) for name in names if data.styles[name] != BACKGROUND]
    n_others = len(names) - len(legend)
    if n_others:
        legend.append((f"{n_others} others" if legend else f"all {n_others}", BACKGROUND))
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
    legend = {name or "each arm": style for name, style in styles.items()}

    def draw(axes: Axes, panel: Panel, lines: dict[str, list[Reading]]) -> None:
        uniform = next((series for series in panel.series if series.is_uniform), None)
        level = uniform.reading(0.0, validation=validation) if uniform else None
        if uniform and level:
            _draw_level(axes, data.styles[uniform.name], level)
        values = [reading.value for line in lines.values() for reading in line]
        # A little apart, so that bars at one value do not cover each other.
        apart = 0.012 * (max(values) - min(values))
        for number, (name, line) in enumerate(lines.items()):
            shift = (number - (len(lines) - 1) / 2) * apart
            seeds = len(lines) <= _MAX_WITH_SEEDS
            _draw_readings(axes, styles[name], line, shift, joined=bool(name), seeds=seeds)
        axes.set(xlabel=setting, ylabel=f"{kind} accuracy, %")
        axes.margins(x=0.08)

    for panel, _ in found:
        for series in panel.series:
            if series.is_uniform and series.reading(0.0, validation=validation):
                legend[series.name] = data.styles[series.name]
    return make_plot(
        data.plots,
        [(panel.title, partial(draw, panel=panel, lines=lines)) for panel, lines in found],
        name=f"settings-{setting}",
        title=f"Accuracy against {setting}",
        caption=f"{kind.capitalize()} accuracy for values of {setting}, {SETTINGS[setting]}. Dots "
        "are means over seeds, bars their 95 % intervals (Student's t; none for a single seed), "
        "short lines the seeds. The horizontal line is uniform, the band around it its interval. "
        "These intervals are wide where seeds are few; the paired tests in the tables say whether "
        "an arm differs from uniform, and the highest dot of many is high partly by chance.",
        legend=tuple(legend.items()),
    )


def _draw_level(axes: Axes, style: Style, level: Reading) -> None:
    """Draw an accuracy that does not depend on the setting."""
    dashes: Any = style.dashes or (None, None)
    axes.axhline(level.mean, color=style.color, dashes=dashes, lw=1.4)
    half = level.interval or 0.0
    axes.axhspan(level.mean - half, level.mean + half, color=style.color, alpha=0.1, lw=0)


def _draw_readings(
    axes: Axes, style: Style, line: Sequence[Reading], shift: float, *, joined: bool, seeds: bool
) -> None:
    """Draw means with 95 % intervals, and each seed if there is room."""
    values = [reading.value + shift for reading in line]
    means = [reading.mean for reading in line]
    bars = [reading.interval or 0.0 for reading in line]
    axes.errorbar(values, means, bars, color=style.color, marker="o", ms=4.5, capsize=3,
                  ls="-" if joined else "none", lw=1.4, elinewidth=1)  # fmt: skip
    for value, reading in zip(values, line, strict=True) if seeds else ():
        at = np.full(len(reading.seeds), value)
        axes.plot(at, reading.seeds, "_", color=style.color, ms=6, alpha=0.5)


def setting_lines(
    panel: Panel, setting: str, *, validation: bool = False
) -> dict[str, list[Reading]]:
    """Return the lines of a panel by name: arms that differ in the setting alone.

    If no two do so, as in a random search, all arms are points of one line without a name.
    """
    groups: dict[str, list[Reading]] = {}
    for series in panel.series:
        labels = series.arm.labels
        value = _number(labels.get(setting, NO_VALUE))
        reading = None if value is None else series.reading(value, validation=validation)
        if reading is None:
            continue
        rest = [
            f"{key} {item}" if key in SETTINGS else item
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


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def distribution_section(data: StudyData) -> Section:
    """How hard the drawn tasks are, how far from uniform, and how often classes were drawn."""
    plots = [*(_curve_plot(data, metric) for metric in DISTRIBUTION), _counts_plot(data)]
    return Section(
        *("distribution", "Distribution", "The distribution over tasks"),
        absent="Nothing about the distribution over tasks has been recorded yet.",
        plots=[plot for plot in plots if plot],
    )


def _counts_plot(data: StudyData) -> Plot | None:
    """Draw how often classes were drawn in one panel; None if nobody counted."""
    panel, counts = _find_counts(data)
    if not counts:
        return None
    styles = {name: data.close_up_style(name) for name in counts}
    shares = {name: count / count.mean() for name, count in counts.items()}
    shown = data.showcases[0].series.name if data.showcases else ""
    subject = shown if shown in shares else list(shares)[-1]
    n_classes = len(shares[subject])
    order = np.argsort(-shares[subject], kind="stable")
    named = np.concatenate([order[:_N_MOST_DRAWN], order[_N_MOST_DRAWN:][-_N_MOST_DRAWN:]])
    names = _class_names(panel, n_classes)
    band = _band(panel, list(counts.values()))

    def draw_ranks(axes: Axes) -> None:
        if band is not None:
            axes.axhspan(1 - band, 1 + band, color=FAINT, alpha=0.18, lw=0)
        axes.axhline(1, color=FAINT, lw=0.8)
        for name, share in shares.items():
            dashes: Any = styles[name].dashes or (None, None)
            ranks = np.arange(1, n_classes + 1)
            axes.plot(ranks, np.sort(share)[::-1], color=styles[name].color, dashes=dashes)
        axes.set_xlim(1, n_classes)
        axes.set_ylim(bottom=0)
        axes.set(xlabel="class, from most to least often drawn", ylabel="times drawn / mean")

    def draw_names(axes: Axes) -> None:
        places = np.arange(len(named))[::-1]
        axes.axvline(1, color=FAINT, lw=0.8)
        for name, share in shares.items():
            marker, color = styles[name].marker, styles[name].color
            axes.plot(share[named], places, marker, color=color, ms=5, ls="none", alpha=0.9)
        axes.set_yticks(places, [shorten(names[c], 24) for c in named])
        axes.set_xlim(left=0)
        axes.set_xlabel("times drawn / mean")

    chance = (
        "; the gray band holds 95 % of classes under uniform draws, as many as those of the "
        "sampler that made the fewest"
    )
    where = f" ({panel.title})" if panel.title else ""
    return make_plot(
        data.plots,
        [
            ("How unequally classes were drawn", draw_ranks),
            ("The most and the least drawn", draw_names),
        ],
        name="class-counts",
        title=f"How often each class was drawn{where}",
        caption="In how many tasks a class was, divided by the mean over classes, all seeds "
        "together. First: classes sorted separately for each sampler. Chance alone makes some come "
        f"more often than others{'' if band is None else chance}. Second: the classes that "
        f"{subject} drew most and least often.",
        legend=tuple(styles.items()),
        size=(PANEL[0], 3.6),
        fit=True,
        marked=True,
    )


def _find_counts(data: StudyData) -> tuple[Panel, dict[str, NDArray[np.float64]]]:
    """Return the first panel with counts of classes, and these by the names of the series.

    The panel of the showcase comes first. Of many series only those with colors are taken, and
    that of the showcase.
    """
    shown = data.showcases[0] if data.showcases else None
    for panel in [*([shown.panel] if shown else []), *data.panels]:
        counts: dict[str, NDArray[np.float64]] = {}
        for series in panel.series:
            if data.styles[series.name] == BACKGROUND and not (shown and series is shown.series):
                continue
            found = series.class_counts()
            alike = found is not None and all(len(found) == len(c) for c in counts.values())
            if found is not None and alike and found.sum():
                counts[series.name] = found
        if counts:
            return panel, counts
    return data.panels[0], {}


def _class_names(panel: Panel, n_classes: int) -> tuple[str, ...]:
    for series in panel.series:
        portrait = series.portrait()
        if portrait and len(portrait.class_names) == n_classes:
            return class_labels(portrait.class_names)
    return class_labels([""] * n_classes)


def _band(panel: Panel, counts: Sequence[NDArray[np.float64]]) -> float | None:
    """Return two standard deviations of the counts that uniform draws give, relative to the mean.

    A class is in a uniform task with probability K / n. The fewest draws have the widest band.
    None if tasks have different numbers of classes.
    """
    ways = {r.settings.get("task", {}).get("n_way") for s in panel.series for r in s.records}
    n_way = ways.pop() if len(ways) == 1 else None
    if not isinstance(n_way, int):
        return None
    n_classes, fewest = len(counts[0]), min(count.sum() for count in counts)
    return 2 * math.sqrt((1 - n_way / n_classes) * n_classes / fewest)
