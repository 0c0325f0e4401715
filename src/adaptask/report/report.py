"""Make the report of a study from its folder: the page, its files, and the printed table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from adaptask.errors import ArgumentError
from adaptask.report.formats import clean, print_table
from adaptask.report.grouping import find_study
from adaptask.report.page.writer import write_report
from adaptask.report.run import FAILURE, Run
from adaptask.report.study import Study
from adaptask.report.summary import StudySummary, summarize
from adaptask.report.tables import Table, main_tables, tables_of
from adaptask.report.verdicts import verdicts


@dataclass(frozen=True)
class Report:
    """The results of a study."""

    summary: StudySummary
    tables: tuple[Table, ...]
    page: Path
    """The HTML file."""


def make_report(folder: Path, study: Study | None = None) -> Report:
    """Make the report of a study, of several runs in one folder, or of a single run.

    Args:
        folder: Of the study; the page is written there, with plots and tables beside it.
        study: The study; None reads `study.json`, or else the settings of the runs in the folder.

    Raises:
        ArgumentError: If there are no runs, or several studies, or the study has no arms.
        StateError: If `study.json` is damaged, or no run can be read.
        TrainingError: If something cannot be written.
    """
    study = study or find_study(folder)
    if not study.arms:
        raise ArgumentError(f"the study in {folder} has no arms: there is nothing to report.")
    summary = summarize(study)
    tables = tuple(tables_of(summary))
    return Report(summary, tables, write_report(folder, summary, tables))


def print_report(report: Report, failures: Mapping[str, str] = MappingProxyType({})) -> None:
    """Print the main tables, the verdicts, and the path of the page.

    Args:
        report: The report.
        failures: Why runs failed just now, by their names.
    """
    from rich.console import Console

    console = Console(highlight=False)
    console.print()
    for table in printed_tables(report.summary, failures):
        print_table(table, console)
        console.print()
    # A sweep chooses by validation, as a note says; test accuracies decide nothing.
    for verdict in () if report.summary.study.by_validation else verdicts(report.summary):
        console.print(clean(verdict), markup=False)
    if failures:
        console.print()
        for line in failure_lines(report.summary.study, failures):
            console.print(clean(line), markup=False, style="red", soft_wrap=True)
    console.print(f"\nThe report is {report.page.resolve()}", markup=False, soft_wrap=True)


def printed_tables(summary: StudySummary, failures: Mapping[str, str]) -> list[Table]:
    """Return the tables for a terminal, without notes on failures that are printed after them."""
    arms = []
    for found in summary.arms:
        told = {run.seed for run in found.arm.runs if run.name in failures}
        rest = {seed: why for seed, why in found.failures.items() if seed not in told}
        arms.append(replace(found, failures=rest))
    summary = replace(summary, arms=tuple(arms))
    return main_tables(tables_of(summary), summary)


def failure_lines(study: Study, failures: Mapping[str, str]) -> list[str]:
    """Return which runs failed, why, and where the traceback is.

    A reason that many runs share, such as a missing dataset, is there once.
    """
    runs = {run.name: run for arm in study.arms for run in arm.runs}
    lines = []
    for reason in dict.fromkeys(failures.values()):
        names = [name for name, why in failures.items() if why == reason]
        lines.append(f"{', '.join(names)} failed: {with_traceback(reason, runs[names[0]])}")
    return lines


def with_traceback(reason: str, run: Run) -> str:
    """Return why a run failed just now, and the path of the traceback if there is one."""
    has_one = (Run(run.path).failure or "").startswith("Traceback")
    return f"{reason}; the traceback is in {run.path / FAILURE}" if has_one else reason
