"""Which arms stand in one plot, what they are called there, and in which colour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adaptask.report.page.names import clean
from adaptask.report.run import Run
from adaptask.report.study import Arm, Study

SAMPLER_KEYS = (
    *("sampler", "strategy", "alpha", "tau"),
    *("confusion", "forget", "exploration", "method", "n_sweeps"),
)
"""Labels that say how tasks are drawn; all others say what is trained on what."""

NO_VALUE = "-"
MAX_SERIES = 8
"""How many lines of their own colour a plot can have."""


@dataclass(frozen=True)
class Style:
    """How a line looks: never by its colour alone."""

    colour: str
    dashes: tuple[float, ...] = ()
    marker: str = "o"
    """As matplotlib names it: one of o, s, D, ^, v, P, X, d."""


# The palette of Okabe and Ito (2008), which people with any colour vision can tell apart. Green and
# red are the colours of random and adaptive sampling in the paper's Figure 5.
_KNOWN = {
    "uniform": Style("#009e73", (4, 1.6), "o"),
    "gcp": Style("#d55e00", (), "D"),
    "c": Style("#0072b2", (1.2, 1.4), "s"),
    "cp": Style("#cc79a7", (6, 1.4, 1.2, 1.4), "^"),
}
_KNOWN["random"] = _KNOWN["uniform"]
_OTHERS = (
    Style("#d55e00", (), "D"),
    Style("#0072b2", (6, 1.4), "s"),
    Style("#e69f00", (1.2, 1.4), "v"),
    Style("#56b4e9", (6, 1.4, 1.2, 1.4), "P"),
    Style("#cc79a7", (3, 1.2), "^"),
    Style("#7f6a00", (8, 2), "X"),
    Style("#666666", (2, 2), "d"),
)
BACKGROUND = Style("#9aa0a6")
"""Of lines that are too many to have colours of their own."""


@dataclass(frozen=True, eq=False)
class Series:
    """An arm as a line in a plot, with those of its runs that have begun and can be read."""

    name: str
    sampler: str
    arm: Arm
    records: tuple[Run, ...]

    @property
    def strategy(self) -> str:
        """Which tasks its sampler seeks: `hard` unless the configuration says otherwise."""
        configs = (record.settings.get("sampler", {}) for record in self.records)
        return next((str(found.get("strategy", "hard")) for found in configs), "hard")


@dataclass(frozen=True, eq=False)
class Panel:
    """What is trained on what, with all ways to draw its tasks."""

    title: str
    labels: Mapping[str, str]
    series: tuple[Series, ...]

    def uniform_beside(self, series: Series) -> Series | None:
        """Return the arm with uniform tasks that another is seen against."""
        others = [other for other in self.series if other.sampler in ("uniform", "random")]
        named = [other for other in others if other.arm.name == series.arm.baseline]
        return next(iter([*named, *others]), None)


def panels_of(study: Study) -> list[Panel]:
    """Return the plots of a study, in its order."""
    varying = {
        key
        for key in set().union(*(arm.labels for arm in study.arms))
        if len({arm.labels.get(key) for arm in study.arms}) > 1
    }
    groups: dict[tuple[tuple[str, str], ...], list[Series]] = {}
    for arm in study.arms:
        key = tuple((k, v) for k, v in arm.labels.items() if k not in SAMPLER_KEYS)
        groups.setdefault(key, []).append(_series(arm, varying))
    return [
        # A plot that is alone needs no title: the page says what was trained on what.
        Panel(_title(dict(key), varying), dict(key), _with_unlike_names(series))
        for key, series in groups.items()
    ]


def _series(arm: Arm, varying: set[str]) -> Series:
    begun = tuple(run for run in arm.runs if run.is_readable)
    sampler = arm.labels.get("sampler", "")
    if not sampler and begun:
        sampler = str(begun[0].settings.get("sampler", {}).get("name", ""))
    parts = [sampler] if sampler else []
    for key in SAMPLER_KEYS[1:]:
        value = arm.labels.get(key, NO_VALUE)
        if key in varying and value != NO_VALUE:
            parts.append(value if key == "strategy" else f"{key} {value}")
    return Series(clean(", ".join(parts)) or clean(arm.name), clean(sampler), arm, begun)


def _with_unlike_names(series: list[Series]) -> tuple[Series, ...]:
    names = [one.name for one in series]
    return tuple(
        one
        if names.count(one.name) == 1
        else Series(clean(one.arm.name), one.sampler, one.arm, one.records)
        for one in series
    )


def _title(labels: Mapping[str, str], varying: Iterable[str]) -> str:
    shown = {key: value for key, value in labels.items() if key in varying and value != NO_VALUE}
    return ", ".join(describe(key, value) for key, value in shown.items())


def describe(key: str, value: str) -> str:
    """Return a label in words.

    >>> describe("shots", "1"), describe("learner", "protonet"), describe("filters", "64")
    ('1-shot', 'protonet', 'filters 64')
    """
    if key in ("shots", "n_shot", "shot"):
        return clean(f"{value}-shot")
    if key in ("ways", "n_way", "way"):
        return clean(f"{value}-way")
    named = key in ("learner", "dataset", "backbone", "sampler", "strategy", "method", "name")
    return clean(value if named else f"{key} {value}")


def close_up_style(name: str, styles: Mapping[str, Style]) -> Style:
    """Return the look of a series that is shown alone: never that of the background."""
    return _KNOWN["gcp"] if styles[name] == BACKGROUND else styles[name]


def styles_of(panels: Iterable[Panel]) -> dict[str, Style]:
    """Return the look of every series by its name: the same throughout a report."""
    names = list(dict.fromkeys(series.name for panel in panels for series in panel.series))
    styles = {name: _KNOWN[name] for name in names if name in _KNOWN}
    free = [style for style in _OTHERS if style.colour not in {s.colour for s in styles.values()}]
    if len(names) > MAX_SERIES and styles:
        free = []  # which of many would get the few colours, would be chance
    for name in names:
        if name not in styles:
            styles[name] = free.pop(0) if free else BACKGROUND
    return styles
