"""What a study says in the terminal when all its runs have been made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def conclude(folder: Path, failures: Mapping[str, str] | None = None) -> int:
    """Write the report, print the main table and what follows from it; return the exit status.

    Args:
        folder: The folder of a study, or of runs.
        failures: Why runs failed, by their names.

    Raises:
        AdaptaskError: If the report cannot be made.
    """
    from rich.console import Console

    from adaptask.report.formats import print_table
    from adaptask.report.making import make_report
    from adaptask.report.summary import verdicts
    from adaptask.report.tables import tables_of

    summary, page = make_report(folder)
    console = Console(highlight=False)
    console.print()
    print_table(tables_of(summary)[0], console)
    console.print()
    for verdict in verdicts(summary):
        console.print(verdict, markup=False)
    for name, failure in (failures or {}).items():
        console.print(f"{name} failed: {failure}", markup=False, style="red")
    console.print(f"\nThe report is {page.resolve()}", markup=False, soft_wrap=True)
    return 1 if failures else 0
