"""Accuracy against alpha or tau, where a study varies them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from adaptask.report.page.panels import NO_VALUE, Panel, Series, Style
from adaptask.report.page.plots import Draw, Reading, draw_settings
from adaptask.report.page.sections import MAX_PANELS, Plot, make_plot

SETTINGS = ("alpha", "tau")
_MEANING = {
    "alpha": "how strongly a confusion raises a potential",
    "tau": "how much of a potential is kept at each update",
}
_CAPTION = (
    "Dots are means over seeds, bars their 95 % intervals (Student's t; none of a single seed), "
    "short lines the seeds. The horizontal line is uniform, the band around it its interval. These "
    "intervals are wide where seeds are few; whether an arm differs from uniform is for the paired "
    "tests in the tables to say, and the highest dot of many is high partly by chance."
)
_LINES = (
    *(Style("#d55e00"), Style("#0072b2"), Style("#e69f00"), Style("#cc79a7")),
    *(Style("#56b4e9"), Style("#7f6a00"), Style("#666666")),
)


def reading_of(series: Series, value: float, *, validation: bool = False) -> Reading | None:
    """Return the accuracy of an arm over its seeds; None where no run has ended.

    Args:
        series: The arm.
        value: Of the setting.
        validation: Whether the best validation accuracy of each run is meant, not that in the test.
    """
    ended = [(record, test) for record in series.records if (test := record.test) is not None]
    if validation:
        curves = [record.curve("val", "accuracy")[1] for record, _ in ended]
        seeds = tuple(100 * float(curve.max()) for curve in curves if len(curve))
    else:
        seeds = tuple(100 * float(test.accuracies.mean()) for _, test in ended)
    if not seeds:
        return None
    interval = None
    if len(seeds) > 1:
        from scipy.stats import t

        error = np.std(seeds, ddof=1) / math.sqrt(len(seeds))
        interval = float(t.ppf(0.975, len(seeds) - 1) * error)
    return Reading(value, float(np.mean(seeds)), interval, seeds)


def lines_of(
    panel: Panel, setting: str, *, validation: bool = False
) -> list[tuple[str, list[Reading]]]:
    """Return the lines of a panel: arms that differ in the setting alone.

    Where no two do so, as in a random search, all arms make one line's points, of the empty name.
    """
    groups: dict[str, list[Reading]] = {}
    alone: list[Reading] = []
    for series in panel.series:
        value = _number(series.arm.labels.get(setting, NO_VALUE))
        reading = None
        if value is not None:
            reading = reading_of(series, value, validation=validation)
        if reading is None:
            continue
        rest = [
            f"{key} {item}" if key in SETTINGS else item
            for key, item in series.arm.labels.items()
            if key not in (setting, *panel.labels) and item != NO_VALUE
        ]
        groups.setdefault(", ".join(rest), []).append(reading)
        alone.append(reading)
    lines = [
        (name, sorted(line, key=lambda reading: reading.value))
        for name, line in groups.items()
        if len({reading.value for reading in line}) > 1
    ]
    if not lines and len({reading.value for reading in alone}) > 1:
        lines = [("", alone)]
    return lines


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def settings_plots(
    folder: Path, panels: Sequence[Panel], styles: dict[str, Style], *, validation: bool = False
) -> list[Plot]:
    """Draw accuracy against each setting that varies; none where none does.

    Args:
        folder: Of the plots.
        panels: What is trained on what.
        styles: By the names of the series.
        validation: Whether validation accuracy is drawn, by which a sweep chooses.
    """
    plots = (_settings_plot(folder, s, panels, styles, validation=validation) for s in SETTINGS)
    return [plot for plot in plots if plot]


def _settings_plot(
    folder: Path,
    setting: str,
    panels: Sequence[Panel],
    styles: dict[str, Style],
    *,
    validation: bool,
) -> Plot | None:
    every = [(panel, lines_of(panel, setting, validation=validation)) for panel in panels]
    found = [(panel, lines) for panel, lines in every if lines]
    kind = "validation" if validation else "test"
    found = found[:MAX_PANELS]
    if not found:
        return None
    names = list(dict.fromkeys(name for _, lines in found for name, _ in lines))
    looks = {name: _LINES[place % len(_LINES)] for place, name in enumerate(names)}
    draws: list[Draw] = []
    legend = {name or "each arm": look for name, look in looks.items()}
    for panel, lines in found:
        uniform = next((s for s in panel.series if s.sampler in ("uniform", "random")), None)
        level = None if uniform is None else reading_of(uniform, 0.0, validation=validation)
        baseline = None
        if uniform is not None and level is not None:
            baseline = (styles[uniform.name], level)
            legend |= {uniform.name: styles[uniform.name]}
        readings = [(name, looks[name], line) for name, line in lines]
        draws.append(
            partial(
                draw_settings,
                readings=readings,
                title=panel.title,
                label=setting,
                baseline=baseline,
                kind=kind,
            )
        )
    return make_plot(
        folder,
        draws,
        name=f"settings-{setting}",
        title=f"Accuracy against {setting}",
        caption=f"{kind.capitalize()} accuracy for values of {setting}, {_MEANING[setting]}. "
        + _CAPTION,
        describe=f"{kind.capitalize()} accuracy against {setting}.",
        legend=tuple(legend.items()),
    )
