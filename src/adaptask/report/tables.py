"""The tables of a study: all results, the layout of the paper, and every seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from adaptask.report.statistics import MeanInterval, PairedDifference
from adaptask.report.study import Published
from adaptask.report.summary import ArmSummary, StudySummary
from adaptask.report.verdicts import choice, missing_runs, named, p_value, short_verdict, signed


@dataclass(frozen=True)
class Cell:
    """One entry: plain text, never markup."""

    text: str
    is_bold: bool = False


@dataclass(frozen=True)
class Table:
    """Headings, rows and notes."""

    name: str
    """Name of its files, such as `results`."""
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    n_labels: int = 1
    """Number of columns, from the left, that name a row; the others have figures."""
    notes: tuple[str, ...] = ()
    """Sentences below it."""
    heading: str = ""
    """Heading on the page, which has the title of the study already; empty: its title."""
    brief: tuple[int, ...] = ()
    """Columns that are printed in a terminal, which has no room for all; empty: all."""


def tables_of(summary: StudySummary) -> list[Table]:
    """Return the tables: `results`, `paper` if the study has columns, `hard-tasks`, and `seeds`.

    Without test results there is no `hard-tasks`, nor in a sweep, which chooses by validation.

    Args:
        summary: Of a study with at least one arm.
    """
    tables = [_results(summary)]
    if summary.study.columns:
        tables.append(_paper(summary))
    if not summary.study.by_validation and (hard := _hard_tasks(summary)) is not None:
        tables.append(hard)
    return [*tables, _seeds(summary)]


def main_tables(tables: Sequence[Table], summary: StudySummary) -> list[Table]:
    """Return the tables that are printed in a terminal.

    Hard tasks are among them if tasks within groups were asked for.
    """
    named = {table.name: table for table in tables}
    main = [named.get("paper") or named["results"]]
    return [*main, named["hard-tasks"]] if summary.within_group and "hard-tasks" in named else main


@dataclass(frozen=True)
class _Column:
    heading: str
    text: Callable[[ArmSummary], str]
    meaning: str = ""
    """A note below the table that explains it."""
    is_brief: bool = False
    """Whether it is printed in a terminal."""
    is_accuracy: bool = False
    """Whether it is bold where an arm is better than its baseline."""


def _results(summary: StudySummary) -> Table:
    table = _arm_table(summary, _columns(summary), "results", summary.study.title, "All arms")
    notes = (*missing_runs(summary), *summary.remarks, *choice(summary), *summary.study.notes)
    return replace(table, notes=(*table.notes, *notes))


def _arm_table(
    summary: StudySummary, columns: Sequence[_Column], name: str, title: str, heading: str
) -> Table:
    """Return a table with a row per arm: its labels, then columns that are not empty for all."""
    keys = list(summary.arms[0].arm.labels)
    columns = [c for c in columns if any(map(c.text, summary.arms))]
    rows = []
    for found in summary.arms:
        labels = [Cell(found.arm.labels[key]) for key in keys]
        is_bold = _is_better(summary, found)
        figures = [Cell(c.text(found), is_bold and c.is_accuracy) for c in columns]
        rows.append((*labels, *figures))
    brief = (i for i, column in enumerate(columns, start=len(keys)) if column.is_brief)
    return Table(
        name=name,
        title=title,
        headings=(*keys, *(column.heading for column in columns)),
        rows=tuple(rows),
        n_labels=len(keys),
        notes=tuple(f"{column.heading}: {column.meaning}" for column in columns if column.meaning),
        heading=heading,
        brief=(*range(len(keys)), *brief),
    )


def _columns(summary: StudySummary) -> list[_Column]:
    """Return all columns of figures that the table of results can have."""
    by_validation = summary.study.by_validation
    is_bold = any(_is_better(summary, found) for found in summary.arms)
    remark = "; bold: significantly better than its baseline" if is_bold else ""
    if by_validation:
        remark = "; nothing is chosen by it, and the highest of many is high by chance"
    # A corrected p-value above 0.05 may stand beside an interval without 0.
    holm = f", after Holm's correction for {summary.n_tests} tests, which the interval is not"
    validation = _Column(
        "validation (%)",
        lambda found: _decimals(found.validation),
        "best of each run, mean over the seeds.",
        is_brief=True,
    )
    tasks = " within groups" if summary.tasks == "within-group" else ""
    factor = _Column(
        "factor",
        lambda found: _time_factor(summary, found),
        "time of a step as a multiple of that of the baseline: the price of the sampler, and noise "
        "where runs share a machine.",
    )
    return [
        _Column("runs", lambda found: f"{found.n_finished}/{found.n_planned}", is_brief=True),
        *([validation] if by_validation else []),
        _Column(
            f"accuracy{tasks} (%)",
            lambda found: _mean_text(found.mean),
            f"mean over the seeds; ±: 95 % interval over test tasks, not seeds{remark}.",
            is_brief=True,
            is_accuracy=True,
        ),
        _Column("sd", lambda found: _decimals(found.spread), "standard deviation over the seeds."),
        _Column(
            _difference_heading(summary),
            lambda found: _difference_text(found.difference),
            "points, paired by seed; 95 % interval over seeds and test tasks.",
            is_brief=True,
        ),
        _Column(
            "p",
            _p_text,
            f"paired t-test over seeds and test tasks{holm if summary.n_tests > 1 else ''}.",
        ),
        _Column("verdict", short_verdict, is_brief=True),
        _Column(
            "ms per step",
            lambda found: _decimals(found.seconds_per_step, 1000),
            "median, with whatever else the machine did, such as other runs of the study.",
        ),
        *([] if by_validation else [factor]),
        _Column("paper (%)", lambda found: _printed(found.arm.published)),
        _Column("paper's gain", lambda found: _published_gain(summary, found)),
    ]


def _hard_tasks(summary: StudySummary) -> Table | None:
    """Return the table of hard test tasks; None if nothing was tested."""
    columns = [
        _Column(
            "hardest tenth (%)",
            _hardest_text,
            "mean over the tenth of the test tasks in which each run did worst, other tasks for "
            "each run; in brackets the difference to the baseline, paired by seed, not tested.",
            is_brief=True,
        ),
        *([] if summary.within_group is None else _within_group_columns(summary.within_group)),
    ]
    title = f"{summary.study.title}: hard test tasks"
    table = _arm_table(summary, columns, "hard-tasks", title, "Hard test tasks")
    return table if len(table.headings) > table.n_labels else None


def _within_group_columns(within: StudySummary) -> list[_Column]:
    """Return the columns of test tasks within groups."""

    def of(text: Callable[[ArmSummary], str]) -> Callable[[ArmSummary], str]:
        return lambda found: text(within.arm(found.arm.name))

    holm = f", after Holm's correction for {within.n_tests} tests" if within.n_tests > 1 else ""
    return [
        _Column(
            "within groups (%)",
            of(lambda found: _mean_text(found.mean)),
            "accuracy in test tasks with classes of one group each, such as an alphabet.",
            is_brief=True,
        ),
        _Column(
            _difference_heading(within),
            of(lambda found: _difference_text(found.difference)),
            "within groups, in points, paired by seed; 95 % interval over seeds and test tasks.",
            is_brief=True,
        ),
        _Column("p", of(_p_text), f"of that difference, by a paired t-test{holm}."),
        _Column("verdict", of(short_verdict)),
    ]


def _hardest_text(found: ArmSummary) -> str:
    if not found.hardest:
        return ""
    mean, difference = fmean(found.hardest.values()), found.hardest_difference
    return f"{mean:.2f}" + (f" ({signed(difference.mean)})" if difference else "")


def _p_text(found: ArmSummary) -> str:
    return "" if found.p is None else p_value(found.p)


def _difference_heading(summary: StudySummary) -> str:
    """Return the heading, with the name of the baseline's sampler if there is only one."""
    names = {
        summary.arm(found.arm.baseline).arm.labels.get("sampler", "baseline")
        for found in summary.arms
        if found.arm.baseline is not None
    }
    return f"difference to {names.pop() if len(names) == 1 else 'baseline'}"


def _time_factor(summary: StudySummary, found: ArmSummary) -> str:
    if found.arm.baseline is None or found.seconds_per_step is None:
        return ""
    baseline = summary.arm(found.arm.baseline).seconds_per_step
    return _decimals(found.seconds_per_step / baseline if baseline else None)


def _published_gain(summary: StudySummary, found: ArmSummary) -> str:
    if found.arm.baseline is None:
        return ""
    ours, theirs = found.arm.published, summary.arm(found.arm.baseline).arm.published
    return "" if ours is None or theirs is None else signed(ours.accuracy - theirs.accuracy)


def _seeds(summary: StudySummary) -> Table:
    def text(seed: int, found: ArmSummary) -> str:
        if seed in found.accuracies:
            return f"{found.accuracies[seed]:.2f}"
        states = {
            "failed": found.failures,
            "unfinished": found.unfinished,
            "not tested": found.untested,
        }
        return next((word for word, seeds in states.items() if seed in seeds), "")

    seeds = sorted({run.seed for found in summary.arms for run in found.arm.runs})
    columns = [_Column(f"seed {seed}", partial(text, seed), is_brief=True) for seed in seeds]
    title = f"{summary.study.title}: test accuracy of each run, %"
    return _arm_table(summary, columns, "seeds", title, "Test accuracy of each run, %")


def _paper(summary: StudySummary) -> Table:
    """Return a table with the labels in `Study.columns` as columns."""
    study = summary.study
    keys = [key for key in study.arms[0].labels if key not in study.columns]

    def place(labels: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the row and the column of an arm."""
        row = tuple(labels[key] for key in keys)
        return row, tuple(labels[key] for key in study.columns)

    cells = {place(found.arm.labels): found for found in summary.arms}
    rows = dict.fromkeys(row for row, _ in cells)
    columns = dict.fromkeys(column for _, column in cells)
    names = [named(dict(zip(study.columns, c, strict=True)), study.columns) for c in columns]
    has_paper = any(arm.published for arm in study.arms)
    legend = "ours (paper): measured here, and printed in the paper."
    return Table(
        name="paper",
        title=f"{study.title} (test accuracy, %)",
        heading="Side by side (test accuracy, %)",
        headings=(*keys, *names),
        rows=tuple(
            (
                *map(Cell, row),
                *(_paper_cell(summary, cells.get((row, column))) for column in columns),
            )
            for row in rows
        ),
        n_labels=len(keys),
        notes=(
            *([legend] if has_paper else []),
            *missing_runs(summary),
            *summary.remarks,
            *study.notes,
        ),
    )


def _paper_cell(summary: StudySummary, found: ArmSummary | None) -> Cell:
    if found is None:
        return Cell("")
    # Without the published interval, which is in the long table: columns would be too wide.
    brief = _printed(found.arm.published).partition(" ±")[0]
    ours = _mean_text(found.mean) or "-"
    return Cell(f"{ours} (paper {brief})" if brief else ours, _is_better(summary, found))


def _is_better(summary: StudySummary, found: ArmSummary) -> bool:
    """Return whether an arm is significantly better than its baseline, which is printed in bold.

    A sweep has nothing in bold: it chooses by validation.
    """
    if summary.study.by_validation or found.difference is None:
        return False
    return found.is_significant and found.difference.mean > 0


def _mean_text(mean: MeanInterval | None) -> str:
    """Return a mean with its interval; empty if there is none.

    >>> _mean_text(MeanInterval(54.871, 0.72))
    '54.87 ± 0.72'
    """
    if mean is None:
        return ""
    return f"{mean.mean:.2f}" + ("" if mean.half_width is None else f" ± {mean.half_width:.2f}")


def _difference_text(difference: PairedDifference | None) -> str:
    """Return a difference with its interval, if it has one; empty if there is none."""
    if difference is None:
        return ""
    low, high = difference.low, difference.high
    interval = "" if low is None or high is None else f" [{signed(low)}, {signed(high)}]"
    return signed(difference.mean) + interval


def _decimals(value: float | None, factor: float = 1.0) -> str:
    return "" if value is None else f"{factor * value:.2f}"


def _printed(published: Published | None) -> str:
    """Return an accuracy as in a paper: mean and interval with the same number of decimals.

    >>> _printed(Published(55.0, 1.0)), _printed(Published(68.2, 0.66)), _printed(Published(61.9))
    ('55.0 ± 1.0', '68.20 ± 0.66', '61.9')
    """
    if published is None:
        return ""
    parts = [value for value in (published.accuracy, published.interval) if value is not None]
    decimals = max(len(repr(float(value)).partition(".")[2]) for value in parts)
    return " ± ".join(f"{value:.{decimals}f}" for value in parts)
