"""The tables of a study: all results, the table as its paper prints it, and every seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from adaptask.report.paper_table import best_arms, paper_table
from adaptask.report.study import Published
from adaptask.report.summary import ArmSummary, StudySummary
from adaptask.report.table import Cell, Table
from adaptask.report.verdicts import short_verdict, shortfalls
from adaptask.report.wording import (
    difference_text,
    mean_text,
    milliseconds,
    p_value,
    printed,
    printed_factor,
    signed,
)


def tables_of(summary: StudySummary) -> list[Table]:
    """Return the tables: `results`, `paper` where the study has columns, and `seeds`."""
    tables = [_results(summary)]
    if summary.study.columns:
        tables.append(paper_table(summary))
    return [*tables, _seeds(summary)]


@dataclass(frozen=True)
class _Column:
    heading: str
    text: Callable[[ArmSummary], str]
    expendable: int = 0
    """When it goes if there is no room, 1 first; 0 is never."""


def _results(summary: StudySummary) -> Table:
    columns = [_label_column(key) for key in _label_keys(summary)]
    n_labels = len(columns)
    columns += [column for column in _figures(summary) if any(map(column.text, summary.arms))]
    headings = [column.heading for column in columns]
    judged = _VALIDATION if summary.study.by_validation else _ACCURACY
    accuracy = headings.index(judged, n_labels) if judged in headings[n_labels:] else None
    best = best_arms(summary)
    rows = tuple(
        tuple(
            Cell(column.text(found), i == accuracy and found.arm.name in best)
            for i, column in enumerate(columns)
        )
        for found in summary.arms
    )
    goers = [i for i, column in enumerate(columns) if column.expendable]
    return Table(
        name="results",
        title=summary.study.title,
        heading="Results",
        headings=tuple(headings),
        rows=rows,
        n_labels=n_labels,
        notes=(
            *_explained(summary, headings[n_labels:], best),
            *shortfalls(summary),
            *summary.study.notes,
        ),
        expendable=tuple(sorted(goers, key=lambda i: columns[i].expendable)),
    )


_ACCURACY = "accuracy (%)"
_VALIDATION = "validation (%)"


def _label_column(key: str) -> _Column:
    return _Column(key, lambda found: found.arm.labels[key])


def _label_keys(summary: StudySummary) -> list[str]:
    return list(summary.arms[0].arm.labels) if summary.arms else []


def _figures(summary: StudySummary) -> list[_Column]:
    def baseline(found: ArmSummary) -> Published | None:
        return None if found.arm.baseline is None else summary.arm(found.arm.baseline).arm.published

    def gain(found: ArmSummary) -> str:
        ours, theirs = found.arm.published, baseline(found)
        if ours is None or theirs is None or ours.accuracy is None or theirs.accuracy is None:
            return ""
        return signed(ours.accuracy - theirs.accuracy)

    return [
        _Column("runs", lambda found: f"{found.n_finished}/{found.n_planned}", 4),
        *([_Column(_VALIDATION, _validation)] if summary.study.by_validation else []),
        _Column(_ACCURACY, lambda found: mean_text(found.mean)),
        _Column("sd", lambda found: "" if found.spread is None else f"{found.spread:.2f}", 3),
        _Column(_difference_heading(summary), lambda found: difference_text(found.difference)),
        _Column("p", lambda found: "" if found.p is None else p_value(found.p), 7),
        _Column("verdict", short_verdict),
        _Column("ms a step", lambda found: milliseconds(found.seconds_per_step), 2),
        _Column("factor", _factor, 6),
        _Column("paper (%)", lambda found: printed(found.arm.published), 9),
        _Column("paper's gain", gain, 8),
        _Column("paper (s an epoch)", lambda found: _epoch(found.arm.published), 1),
        _Column("paper's factor", lambda f: printed_factor(f.arm.published, baseline(f)), 5),
    ]


def _difference_heading(summary: StudySummary) -> str:
    """Name the baseline where all arms have the same one but for other labels."""
    names = {
        summary.arm(found.arm.baseline).arm.labels.get("sampler", "baseline")
        for found in summary.arms
        if found.arm.baseline is not None
    }
    return f"difference to {names.pop() if len(names) == 1 else 'baseline'}"


def _validation(found: ArmSummary) -> str:
    return "" if found.validation is None else f"{found.validation:.2f}"


def _factor(found: ArmSummary) -> str:
    return "" if found.overhead is None else f"{found.overhead.factor:.2f}"


def _epoch(published: Published | None) -> str:
    return "" if published is None or published.seconds is None else repr(published.seconds)


def _explained(summary: StudySummary, headings: Sequence[str], best: set[str]) -> list[str]:
    """Return what the columns mean, those that are there; each begins with the heading."""
    n_pairs = {found.overhead.n_pairs for found in summary.arms if found.overhead is not None}
    pairs = " to ".join(str(n) for n in sorted({min(n_pairs), max(n_pairs)})) if n_pairs else ""
    bold = "; bold: the highest of its group, significant or not" if best else ""
    if summary.study.by_validation:
        bold = "; nothing is chosen by it, and the highest of many is high by chance"
    holm = f", after Holm's correction for {summary.n_tests} tests" if summary.n_tests > 1 else ""
    # A corrected p-value above 0.05 may stand beside an interval without 0.
    alone = (
        "; each interval is for its comparison alone, p and verdict allow for all of them"
        if summary.n_tests > 1
        else ""
    )
    meanings = {
        _VALIDATION: "best of each run, mean of the seeds; bold: the highest of those that have "
        "finished.",
        _ACCURACY: f"mean over the seeds; ±: 95 % interval over test tasks, not seeds{bold}.",
        "sd": "standard deviation over the seeds.",
        _difference_heading(summary): "points, paired by seed; 95 % interval by Student's t over "
        f"the seeds{alone}.",
        "p": f"paired t-test over the seeds{holm}.",
        "factor": f"time a step over that of the baseline, median of {pairs} "
        f"{'seed' if pairs == '1' else 'seeds'}.",
    }
    return [f"{name}: {text}" for name, text in meanings.items() if name in headings]


def _seeds(summary: StudySummary) -> Table:
    keys = _label_keys(summary)
    seeds = sorted({run.seed for found in summary.arms for run in found.arm.runs})

    def cell(found: ArmSummary, seed: int) -> str:
        if seed in found.accuracies:
            return f"{found.accuracies[seed]:.2f}"
        if seed in found.failures:
            return "failed"
        return "unfinished" if seed in found.unfinished else ""

    return Table(
        name="seeds",
        title=f"{summary.study.title}: test accuracy of each run, %",
        heading="Test accuracy of each run, %",
        headings=(*keys, *(f"seed {seed}" for seed in seeds)),
        rows=tuple(
            tuple(
                Cell(text)
                for text in (
                    *(found.arm.labels[key] for key in keys),
                    *(cell(found, seed) for seed in seeds),
                )
            )
            for found in summary.arms
        ),
        n_labels=len(keys),
    )
