"""The table as the paper prints it, with our figures beside the published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from adaptask.report.study import Published
from adaptask.report.summary import ArmSummary, StudySummary
from adaptask.report.table import Cell, Table
from adaptask.report.verdicts import shortfalls
from adaptask.report.wording import mean_text, milliseconds, named, printed, printed_factor

_Labels = tuple[str, ...]
_NOT_YET = "-"
_LEGEND = (
    "ours (paper): what was measured here, and what the paper prints; rows without runs have the "
    "paper's figures alone."
)


def paper_table(summary: StudySummary) -> Table:
    """Return a table with some labels side by side, as `Study.columns` says.

    A table of times has a further column for the factor of each arm that has a baseline. Rows
    that are only cited come first.
    """
    study, of_time = summary.study, _is_of_time(summary)
    best = set() if of_time else best_arms(summary)
    keys = [key for key in study.arms[0].labels if key not in study.columns] if study.arms else []
    ours = {_place(keys, study.columns, found.arm.labels): found for found in summary.arms}
    cited = {_place(keys, study.columns, c.labels): c.published for c in study.citations}
    ran = {row for row, _ in ours}
    rows = dict.fromkeys([*(row for row, _ in cited if row not in ran), *(row for row, _ in ours)])
    columns = dict.fromkeys(column for _, column in [*ours, *cited])
    compared = {column for (_, column), found in ours.items() if found.arm.baseline is not None}
    timed = [column for column in columns if of_time and column in compared]
    names = {
        column: named(dict(zip(study.columns, column, strict=True)), study.columns)
        for column in columns
    }
    has_paper = bool(study.citations) or any(arm.published for arm in study.arms)
    unit = "ms a step; paper: seconds an epoch" if of_time else "test accuracy, %"
    return Table(
        name="paper",
        title=study.title + (", as the paper prints it" if has_paper else "") + f" ({unit})",
        heading=("As the paper prints it" if has_paper else "Side by side") + f" ({unit})",
        headings=(*keys, *names.values(), *(f"factor of {names[column]}" for column in timed)),
        rows=tuple(
            (
                *map(Cell, row),
                *(_cell(ours.get((row, c)), cited.get((row, c)), of_time, best) for c in columns),
                *(Cell(_factor(summary, ours.get((row, c)))) for c in timed),
            )
            for row in rows
        ),
        n_labels=len(keys),
        notes=(*([_LEGEND] if has_paper else []), *shortfalls(summary), *study.notes),
    )


def _place(
    keys: Sequence[str], columns: Sequence[str], labels: Mapping[str, str]
) -> tuple[_Labels, _Labels]:
    """Return in which row and column something stands."""
    return tuple(labels.get(key, "") for key in keys), tuple(labels[key] for key in columns)


def _is_of_time(summary: StudySummary) -> bool:
    """Tell whether the paper prints times and no accuracies."""
    found = [arm.published for arm in summary.study.arms if arm.published is not None]
    return any(p.seconds is not None for p in found) and all(p.accuracy is None for p in found)


def _cell(found: ArmSummary | None, cited: Published | None, of_time: bool, best: set[str]) -> Cell:
    published = (found.arm.published if found is not None else None) or cited
    seconds = None if published is None else published.seconds
    paper = ("" if seconds is None else f"{seconds!r} s") if of_time else printed(published)
    if found is None:
        return Cell(f"paper {paper}" if paper else "")
    if of_time:
        time = milliseconds(found.seconds_per_step)
        ours = f"{time} ms" if time else _NOT_YET
    else:
        ours = mean_text(found.mean) or _NOT_YET
    # The published interval stands in the long table; here it would make the columns too wide.
    brief = paper.partition(" ±")[0]
    return Cell(f"{ours} (paper {brief})" if brief else ours, found.arm.name in best)


def _factor(summary: StudySummary, found: ArmSummary | None) -> str:
    if found is None or found.arm.baseline is None:
        return ""
    ours = _NOT_YET if found.overhead is None else f"{found.overhead.factor:.3f}"
    baseline = summary.study.arm(found.arm.baseline)
    paper = printed_factor(found.arm.published, baseline.published)
    return f"{ours} (paper {paper})" if paper else ours


def best_arms(summary: StudySummary) -> set[str]:
    """Return the names of the arms with the highest mean, as printed, of each group of several.

    A group is an arm and what is compared with it, or what differs by the sampler alone. As long
    as its arms have not finished the same seeds, none is the best. Where validation is to judge,
    the best is that of all that have finished.
    """
    if summary.study.by_validation:
        judged = {
            found.arm.name: round(found.validation, 2)
            for found in summary.arms
            if found.validation is not None and found.n_finished == found.n_planned
        }
        return {name for name, value in judged.items() if value == max(judged.values())}
    groups: dict[tuple[tuple[str, str], ...], list[ArmSummary]] = {}
    for found in summary.arms:
        of = found.arm if found.arm.baseline is None else summary.study.arm(found.arm.baseline)
        key = tuple(item for item in of.labels.items() if item[0] != "sampler")
        if found.mean is not None:
            groups.setdefault(key, []).append(found)

    def shown(found: ArmSummary) -> float:
        return round(found.mean.mean, 2) if found.mean is not None else 0.0

    return {
        found.arm.name
        for group in groups.values()
        if len(group) > 1 and len({frozenset(found.accuracies) for found in group}) == 1
        for found in group
        if shown(found) == max(map(shown, group))
    }
