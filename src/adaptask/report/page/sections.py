"""The plots of a report, each with the words that say how to read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptask.report.page.curves import Curve, curve_of
from adaptask.report.page.figures import inline_svg, look, write_figure
from adaptask.report.page.names import class_labels
from adaptask.report.page.panels import BACKGROUND, Panel, Series, Style, close_up_style
from adaptask.report.page.plots import (
    PANEL,
    Draw,
    Line,
    draw_counts,
    draw_curves,
    draw_ranks,
    grid,
    single,
)
from adaptask.report.page.showcase import Showcase, portrait_of

MAX_PANELS = 24
"""So many of a kind are drawn; tables have the others."""
_NAMED = 8

BANDS = (
    "Lines are means over seeds; bands reach from the lowest seed to the highest. Where a line is "
    "thin, not all of its runs have come that far."
)


@dataclass(frozen=True)
class Plot:
    """What a page shows of a plot, and the name of its files."""

    name: str
    title: str
    caption: str
    panels: tuple[str, ...]
    """SVG elements."""
    legend: tuple[tuple[str, Style], ...] = ()
    marked: bool = False
    """Whether marks tell series apart, and belong into the legend."""
    note: str = ""
    """What is left out."""


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

    def of(self, series: Series) -> Curve:
        """Return it over time; what is noisy on fewer points, each the mean of more records."""
        points = 40 if self.split == "train" else 60
        return curve_of(series.records, self.split, self.key, max_points=points)


TRAINING = (
    Metric(
        *("validation", "val", "accuracy", 100.0),
        "Validation accuracy",
        "validation accuracy, %",
        "Accuracy on tasks of the validation classes, on which nothing is trained. "
        f"{BANDS} Where bands overlap, seeds differ as much as samplers do: the tables say which "
        "differences a test over seeds bears out.",
    ),
    Metric(
        *("training-loss", "train", "loss", 1.0),
        "Training loss",
        "training loss",
        "Loss on the tasks that were drawn to train on, mean since the point before. A sampler "
        "that seeks hard tasks trains at a higher loss; that by itself is neither good nor bad.",
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
    Metric(
        *("entropy", "sampler", "entropy", 1.0),
        "Entropy of the task distribution",
        "entropy, nats",
        "The same seen from the other side: with entropy H the draws are as varied as if exp(H) "
        "tasks were equally likely. The highest possible value, that of uniform, is the logarithm "
        "of the number of all tasks.",
    ),
)


def legend_of(panels: Sequence[Panel], styles: dict[str, Style]) -> tuple[tuple[str, Style], ...]:
    """Return names and looks of the lines in some panels; those in the background as one."""
    names = list(dict.fromkeys(series.name for panel in panels for series in panel.series))
    legend = [(name, styles[name]) for name in names if styles[name] != BACKGROUND]
    n_others = len(names) - len(legend)
    if n_others:
        legend.append((f"{n_others} others" if legend else f"all {n_others}", BACKGROUND))
    return tuple(legend)


def make_plot(
    folder: Path,
    draws: Sequence[Draw],
    *,
    name: str,
    title: str,
    caption: str,
    describe: str,
    legend: tuple[tuple[str, Style], ...] = (),
    size: tuple[float, float] = PANEL,
    fit: bool = False,
    marked: bool = False,
    note: str = "",
) -> Plot:
    """Write a plot's files, and return what the page shows of it."""
    with look():
        write_figure(folder, name, grid(draws, styles=legend, size=size, fit=fit, marked=marked))
        panels = tuple(
            inline_svg(single(draw, size, fit=fit), f"{name}-{number}", describe)
            for number, draw in enumerate(draws, start=1)
        )
    return Plot(name, title, caption, panels, legend, marked, note)


def curve_plot(
    folder: Path, metric: Metric, panels: Sequence[Panel], styles: dict[str, Style]
) -> Plot | None:
    """Draw a metric over time, a panel for each setting; None where nobody recorded it."""
    lines = [(panel, _lines(metric, panel, styles)) for panel in panels]
    drawn = [(panel, found) for panel, found in lines if found]
    if not drawn:
        return None
    draws: list[Draw] = [
        partial(draw_curves, lines=found, title=panel.title, label=metric.label, scale=metric.scale)
        for panel, found in drawn[:MAX_PANELS]
    ]
    rest = len(drawn) - MAX_PANELS
    legend = legend_of([panel for panel, _ in drawn[:MAX_PANELS]], styles)
    notes = []
    if BACKGROUND in (style for _, style in legend):
        notes.append("Arms that are too many to have colours are grey and without bands.")
    if rest > 0:
        notes.append(f"{rest} further settings are left out here; the tables have them.")
    return make_plot(
        folder,
        draws,
        name=metric.name,
        title=metric.title,
        caption=metric.caption,
        describe=f"{metric.title} over training steps; the caption says how to read it.",
        legend=legend,
        note=" ".join(notes),
    )


def _lines(metric: Metric, panel: Panel, styles: dict[str, Style]) -> list[Line]:
    """Return the curves of those arms that recorded a metric."""
    curves = [(series.name, metric.of(series)) for series in panel.series]
    return [Line(name, styles[name], curve) for name, curve in curves if not curve.is_empty]


def counts_plot(
    folder: Path, panels: Sequence[Panel], styles: dict[str, Style], shown: Showcase | None
) -> Plot | None:
    """Draw how often classes were drawn in one setting; None where nobody counted."""
    for panel in [*([shown.panel] if shown else []), *panels]:
        shares, totals = _shares(panel, styles, shown.series if shown else None)
        if shares:
            break
    else:
        return None
    names, n_way = _names_and_way(panel, len(shares[0][2]))
    # The class is in a uniform task with probability K / n: the standard deviation of the count,
    # relative to its mean. The one with the fewest draws has the widest.
    share = n_way / len(names) if n_way else None
    expected = None if share is None else float(np.sqrt((1 - share) * len(names) / min(totals)))
    by_name = {name: share for name, _, share in shares}
    # The last, where the run that is looked at closely is not among them.
    subject = shown.series.name if shown and shown.series.name in by_name else shares[-1][0]
    order = np.argsort(-by_name[subject], kind="stable")
    named = np.concatenate([order[:_NAMED], order[_NAMED:][-_NAMED:]])
    draws: list[Draw] = [
        partial(draw_ranks, shares=shares, expected=expected),
        partial(draw_counts, names=names, shares=shares, classes=named),
    ]
    where = f" ({panel.title})" if panel.title else ""
    return make_plot(
        folder,
        draws,
        name="class-counts",
        title=f"How often each class was drawn{where}",
        caption=_counts_caption(subject, banded=expected is not None),
        describe="How often classes were drawn, by rank and by name.",
        legend=tuple((name, style) for name, style, _ in shares),
        size=(PANEL[0], 3.6),
        fit=True,
        marked=True,
    )


def _counts_caption(subject: str, *, banded: bool) -> str:
    band = (
        "the grey band holds 95 % of classes under uniform draws, of which it takes as many as the "
        "sampler with the fewest made. "
    )
    return (
        "In how many tasks a class was, divided by the mean over classes, all seeds together. "
        "First: classes sorted anew for each sampler. Chance alone makes some come more often than "
        f"others{'; ' + band if banded else '. '}Second: the classes that {subject} drew most and "
        "least often."
    )


def _shares(
    panel: Panel, styles: dict[str, Style], shown: Series | None
) -> tuple[list[tuple[str, Style, NDArray[np.float64]]], list[float]]:
    """Return name, look and relative counts of the series with colours and of the one shown.

    Then the totals of their counts.
    """
    shares: list[tuple[str, Style, NDArray[np.float64]]] = []
    totals = []
    for series in panel.series:
        if styles[series.name] == BACKGROUND and series is not shown:
            continue
        counts = class_counts(series)
        if counts is None or not counts.sum() or (shares and len(counts) != len(shares[0][2])):
            continue
        style = close_up_style(series.name, styles)
        shares.append((series.name, style, counts / counts.mean()))
        totals.append(float(counts.sum()))
    return shares, totals


def class_counts(series: Series) -> NDArray[np.float64] | None:
    """Return in how many tasks each class has been over all runs of an arm; None if unknown."""
    found: list[NDArray[np.float64]] = []
    for record in series.records:
        last = record.last_snapshot
        counts = None if last is None else last.class_counts
        if counts is not None and (not found or len(counts) == len(found[0])):
            found.append(counts.astype(np.float64))
    return np.sum(found, axis=0) if found else None


def _names_and_way(panel: Panel, n_classes: int) -> tuple[tuple[str, ...], int | None]:
    portraits = (portrait_of(series) for series in panel.series)
    names: tuple[str, ...] = next(
        (p.class_names for p in portraits if p and len(p.class_names) == n_classes),
        ("",) * n_classes,
    )
    ways = {r.settings.get("task", {}).get("n_way") for s in panel.series for r in s.records}
    only = ways.pop() if len(ways) == 1 else None
    return class_labels(names), only if isinstance(only, int) else None
