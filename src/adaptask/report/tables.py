"""The tables of a study: all results, the table as its paper prints it, and every seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from adaptask.report.statistics import MeanInterval, PairedDifference
from adaptask.report.study import Published
from adaptask.report.summary import ArmSummary, StudySummary
from adaptask.report.verdicts import named, p_value, short_verdict, shortfalls, signed


@dataclass(frozen=True)
class Cell:
    """One entry: plain text, never markup."""

    text: str
    is_best: bool = False
    """Whether it is set in bold."""


@dataclass(frozen=True)
class Table:
    """Headings, rows and what must be said of them."""

    name: str
    """Of its files, such as `results`."""
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    n_labels: int = 1
    """How many columns, from the left, say what a row is; the others are figures."""
    notes: tuple[str, ...] = ()
    """Sentences below it."""
    heading: str = ""
    """What it is called on a page that has the title of the study already; empty: its title."""
    brief: tuple[int, ...] = ()
    """The columns that are shown in a terminal, which has no room for all; empty: all."""


def tables_of(summary: StudySummary) -> list[Table]:
    """Return the tables: `results`, `paper` where the study has columns, and `seeds`.

    Args:
        summary: Of a study with at least one arm.
    """
    best = _best_arms(summary)
    tables = [_results(summary, best)]
    if summary.study.columns:
        tables.append(_paper(summary, best))
    return [*tables, _seeds(summary)]


_ACCURACY = "accuracy (%)"
_VALIDATION = "validation (%)"


@dataclass(frozen=True)
class _Column:
    heading: str
    text: Callable[[ArmSummary], str]
    meaning: str = ""
    """What a note below the table says of it."""
    is_brief: bool = False
    """Whether it is shown in a terminal."""


def _results(summary: StudySummary, best: set[str]) -> Table:
    # What is known of no arm has no column.
    columns = [c for c in _columns(summary, best) if any(map(c.text, summary.arms))]
    table = _arm_table(summary, columns, best, name="results", title=summary.study.title)
    meanings = (f"{column.heading}: {column.meaning}" for column in columns if column.meaning)
    brief = (i for i, c in enumerate(columns, start=table.n_labels) if c.is_brief)
    return replace(
        table,
        heading="Results",
        notes=(*meanings, *shortfalls(summary), *summary.study.notes),
        brief=(*range(table.n_labels), *brief),
    )


def _arm_table(
    summary: StudySummary, columns: Sequence[_Column], best: set[str], *, name: str, title: str
) -> Table:
    """Return a table with a row per arm: its labels, then the columns."""
    keys = list(summary.arms[0].arm.labels)
    judged = _VALIDATION if summary.study.by_validation else _ACCURACY
    rows = []
    for found in summary.arms:
        labels = [Cell(found.arm.labels[key]) for key in keys]
        is_best = found.arm.name in best
        figures = [Cell(c.text(found), is_best and c.heading == judged) for c in columns]
        rows.append((*labels, *figures))
    headings = (*keys, *(column.heading for column in columns))
    return Table(name, title, headings, tuple(rows), n_labels=len(keys))


def _columns(summary: StudySummary, best: set[str]) -> list[_Column]:
    """Return all columns of figures that the table of results can have."""
    by_validation = summary.study.by_validation
    bold = "; bold: the highest of its group, significant or not" if best else ""
    if by_validation:
        bold = "; nothing is chosen by it, and the highest of many is high by chance"
    # A corrected p-value above 0.05 may stand beside an interval without 0.
    holm = f", after Holm's correction for {summary.n_tests} tests, which the interval is not"
    validation = _Column(
        _VALIDATION,
        lambda found: _decimals(found.validation),
        "best of each run, mean of the seeds; bold: the highest of those that have finished.",
        is_brief=True,
    )
    return [
        _Column("runs", lambda found: f"{found.n_finished}/{found.n_planned}", is_brief=True),
        *([validation] if by_validation else []),
        _Column(
            _ACCURACY,
            lambda found: _mean_text(found.mean),
            f"mean over the seeds; ±: 95 % interval over test tasks, not seeds{bold}.",
            is_brief=True,
        ),
        _Column(
            "sd",
            lambda found: _decimals(found.spread),
            "standard deviation over the seeds.",
        ),
        _Column(
            _difference_heading(summary),
            lambda found: _difference_text(found.difference),
            "points, paired by seed; 95 % interval by Student's t over the seeds.",
            is_brief=True,
        ),
        _Column(
            "p",
            lambda found: "" if found.p is None else p_value(found.p),
            f"paired t-test over the seeds{holm if summary.n_tests > 1 else ''}.",
        ),
        _Column("verdict", short_verdict, is_brief=True),
        _Column("ms per step", lambda found: _decimals(found.seconds_per_step, 1000)),
        _Column(
            "factor",
            lambda found: _decimals(found.factor),
            "time of a step over that of the baseline, median over seeds that were run on machines "
            "of one kind.",
        ),
        _Column("paper (%)", lambda found: _printed(found.arm.published)),
        _Column("paper's gain", lambda found: _published_gain(summary, found)),
    ]


def _difference_heading(summary: StudySummary) -> str:
    """Name the baseline where all arms have the same one but for other labels."""
    names = {
        summary.arm(found.arm.baseline).arm.labels.get("sampler", "baseline")
        for found in summary.arms
        if found.arm.baseline is not None
    }
    return f"difference to {names.pop() if len(names) == 1 else 'baseline'}"


def _published_gain(summary: StudySummary, found: ArmSummary) -> str:
    if found.arm.baseline is None:
        return ""
    ours, theirs = found.arm.published, summary.arm(found.arm.baseline).arm.published
    return "" if ours is None or theirs is None else signed(ours.accuracy - theirs.accuracy)


def _seeds(summary: StudySummary) -> Table:
    def text(seed: int, found: ArmSummary) -> str:
        if seed in found.accuracies:
            return f"{found.accuracies[seed]:.2f}"
        if seed in found.failures:
            return "failed"
        return "unfinished" if seed in found.unfinished else ""

    seeds = sorted({run.seed for found in summary.arms for run in found.arm.runs})
    columns = [_Column(f"seed {seed}", partial(text, seed)) for seed in seeds]
    title = f"{summary.study.title}: test accuracy of each run, %"
    table = _arm_table(summary, columns, set(), name="seeds", title=title)
    return replace(table, heading="Test accuracy of each run, %")


def _paper(summary: StudySummary, best: set[str]) -> Table:
    """Return a table with some labels side by side, as `Study.columns` says.

    Rows that are only cited come first.
    """
    study = summary.study
    keys = [key for key in study.arms[0].labels if key not in study.columns]

    def place(labels: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return in which row and column something stands."""
        row = tuple(labels.get(key, "") for key in keys)
        return row, tuple(labels.get(key, "") for key in study.columns)

    ours = {place(found.arm.labels): found for found in summary.arms}
    cited = {place(c.labels): c.published for c in study.citations}
    ran = {row for row, _ in ours}
    rows = dict.fromkeys([*(row for row, _ in cited if row not in ran), *(row for row, _ in ours)])
    columns = dict.fromkeys(column for _, column in [*ours, *cited])
    names = [named(dict(zip(study.columns, c, strict=True)), study.columns) for c in columns]
    has_paper = bool(study.citations) or any(arm.published for arm in study.arms)
    legend = (
        "ours (paper): what was measured here, and what the paper prints; rows without runs have "
        "the paper's figures alone."
    )
    return Table(
        name="paper",
        title=f"{study.title} (test accuracy, %)",
        heading="Side by side (test accuracy, %)",
        headings=(*keys, *names),
        rows=tuple(
            (
                *map(Cell, row),
                *(_paper_cell(ours.get((row, c)), cited.get((row, c)), best) for c in columns),
            )
            for row in rows
        ),
        n_labels=len(keys),
        notes=(*([legend] if has_paper else []), *shortfalls(summary), *study.notes),
    )


def _paper_cell(found: ArmSummary | None, cited: Published | None, best: set[str]) -> Cell:
    if found is None:
        paper = _printed(cited)
        return Cell(f"paper {paper}" if paper else "")
    # The published interval stands in the long table; here it would make the columns too wide.
    brief = _printed(found.arm.published or cited).partition(" ±")[0]
    ours = _mean_text(found.mean) or "-"
    return Cell(f"{ours} (paper {brief})" if brief else ours, found.arm.name in best)


def _best_arms(summary: StudySummary) -> set[str]:
    """Return the names of the arms with the highest mean, as printed, of each group of several.

    A group is a baseline and what is compared with it. As long as its arms have not finished the
    same seeds, none is the best. Where validation is to judge, the best is that of all that have
    finished.
    """
    if summary.study.by_validation:
        finished = [found for found in summary.arms if found.n_finished == found.n_planned]
        return _highest({f.arm.name: f.validation for f in finished if f.validation is not None})
    groups: dict[str, list[ArmSummary]] = {}
    for found in summary.arms:
        if found.accuracies:
            groups.setdefault(found.arm.baseline or found.arm.name, []).append(found)
    best = set()
    for group in groups.values():
        if len(group) > 1 and len({frozenset(found.accuracies) for found in group}) == 1:
            best |= _highest({f.arm.name: fmean(f.accuracies.values()) for f in group})
    return best


def _highest(values: Mapping[str, float]) -> set[str]:
    printed = {name: round(value, 2) for name, value in values.items()}
    return {name for name, value in printed.items() if value == max(printed.values())}


def _mean_text(mean: MeanInterval | None) -> str:
    """Return a mean with its interval; empty where there is none.

    >>> _mean_text(MeanInterval(54.871, 0.72))
    '54.87 ± 0.72'
    """
    if mean is None:
        return ""
    return f"{mean.mean:.2f}" + ("" if mean.half_width is None else f" ± {mean.half_width:.2f}")


def _difference_text(difference: PairedDifference | None) -> str:
    """Return a difference with its interval, where it has one; empty where there is none."""
    if difference is None:
        return ""
    low, high = difference.low, difference.high
    interval = "" if low is None or high is None else f" [{signed(low)}, {signed(high)}]"
    return signed(difference.mean) + interval


def _decimals(value: float | None, factor: float = 1.0) -> str:
    return "" if value is None else f"{factor * value:.2f}"


def _printed(published: Published | None) -> str:
    """Return an accuracy as a paper prints it: mean and interval to the same number of decimals.

    >>> _printed(Published(55.0, 1.0)), _printed(Published(68.2, 0.66)), _printed(Published(61.9))
    ('55.0 ± 1.0', '68.20 ± 0.66', '61.9')
    """
    if published is None:
        return ""
    parts = [value for value in (published.accuracy, published.interval) if value is not None]
    decimals = max(len(repr(float(value)).partition(".")[2]) for value in parts)
    return " ± ".join(f"{value:.{decimals}f}" for value in parts)
