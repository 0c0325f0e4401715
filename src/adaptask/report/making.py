"""From the folder of a study to its report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adaptask.errors import ArgumentError
from adaptask.report.formats import to_csv, to_latex, to_markdown
from adaptask.report.page.writer import Formats, write_report
from adaptask.report.study import find_study
from adaptask.report.summary import StudySummary, summarise, verdicts
from adaptask.report.tables import tables_of
from adaptask.report.verdicts import headline

FORMATS: Formats = {
    "md": lambda table: to_markdown(table).encode(),
    # The mark at its start tells a spreadsheet that it is UTF-8.
    "csv": lambda table: to_csv(table).encode("utf-8-sig"),
    "tex": lambda table: to_latex(table).encode(),
}
"""How tables are written beside the page, by the ending of the file."""


def make_report(folder: Path) -> tuple[StudySummary, Path]:
    """Make or remake the report of a study, of runs that lie together, or of a single run.

    Returns:
        What came out, and where the page is.

    Raises:
        ArgumentError: If there are no runs, or the study has no arms.
        StateError: If the file of the study is damaged, or no configuration can be read.
        TrainingError: If something cannot be written.
    """
    study = find_study(folder)
    if not study.arms:
        raise ArgumentError(f"the study in {folder} has no arms: there is nothing to report.")
    with _alone_in(folder):
        summary = summarise(study, folder)
        page = write_report(
            folder,
            study,
            tables_of(summary),
            verdicts(summary),
            headline=headline(summary),
            formats=FORMATS,
        )
    return summary, page


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process makes the report of a folder, as those that share a sweep may."""
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
