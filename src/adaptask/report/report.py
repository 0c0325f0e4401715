"""From the folder of a study to its report: page and files, and what is printed in a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from adaptask.errors import ArgumentError
from adaptask.report.formats import plain, print_table, to_csv, to_latex, to_markdown
from adaptask.report.grouping import find_study
from adaptask.report.page.writer import write_report
from adaptask.report.study import Study
from adaptask.report.summary import StudySummary, summarize
from adaptask.report.tables import Table, tables_of
from adaptask.report.verdicts import headline, verdicts

FORMATS: Mapping[str, Callable[[Table], bytes]] = {
    "md": lambda table: to_markdown(table).encode(),
    # The mark at its start tells a spreadsheet that it is UTF-8.
    "csv": lambda table: to_csv(table).encode("utf-8-sig"),
    "tex": lambda table: to_latex(table).encode(),
}
"""How tables are written beside the page, by the ending of the file."""


@dataclass(frozen=True)
class Report:
    """What a study has come to."""

    summary: StudySummary
    tables: tuple[Table, ...]
    verdicts: tuple[str, ...]
    """What follows from them, a sentence for each comparison."""
    page: Path
    """Where it is written."""


def make_report(folder: Path, study: Study | None = None) -> Report:
    """Make or remake the report of a study, of runs that lie together, or of a single run.

    Args:
        folder: Of the study; the page is written there, with plots and tables beside it.
        study: What it has; None: what `study.json`, or else the runs in the folder, say.

    Raises:
        ArgumentError: If there are no runs, or the study has no arms.
        StateError: If the file of the study is damaged, or no configuration can be read.
        TrainingError: If something cannot be written.
    """
    study = study or find_study(folder)
    if not study.arms:
        raise ArgumentError(f"the study in {folder} has no arms: there is nothing to report.")
    with _alone_in(folder):
        summary = summarize(study)
        tables, said = tuple(tables_of(summary)), tuple(verdicts(summary))
        top = headline(summary)
        page = write_report(folder, study, tables, said, headline=top, formats=FORMATS)
    return Report(summary, tables, said, page)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process makes the report of a folder: both would write the same files."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def print_report(report: Report, failures: Mapping[str, str] | None = None) -> None:
    """Print the main table, what follows from it, and where the page is.

    Args:
        report: What came out.
        failures: Why runs failed just now, by their names.
    """
    from rich.console import Console

    console = Console(highlight=False)
    tables = {table.name: table for table in report.tables}
    console.print()
    print_table(tables.get("paper") or tables["results"], console)
    console.print()
    # Where validation chooses, a note of the study says what, and test accuracies have no say.
    for verdict in () if report.summary.study.by_validation else report.verdicts:
        console.print(plain(verdict), markup=False)
    if failures:
        console.print()
        # What befell many runs, such as a dataset that is missing, is said once.
        for reason in dict.fromkeys(failures.values()):
            names = ", ".join(name for name, why in failures.items() if why == reason)
            console.print(plain(f"{names} failed: {reason}"), markup=False, style="red")
    console.print(f"\nThe report is {report.page.resolve()}", markup=False, soft_wrap=True)
