"""What a study says in the terminal when all its runs have been made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adaptask.experiments.backends.ray import ClusterOptions
    from adaptask.experiments.studies import StudyPlan


def run_and_conclude(
    plan: StudyPlan, folder: Path, *, workers: int | None, cluster: ClusterOptions
) -> int:
    """Make all runs of a study, here or on a cluster, and conclude it; return the exit status.

    Raises:
        AdaptaskError: If something cannot be used or done; the message says what to do.
        KeyboardInterrupt: After Ctrl-C.
    """
    from adaptask.experiments.studies import run_study

    backend = cluster.backend(folder, workers)
    status = conclude(folder, run_study(plan, folder, workers=workers, cluster=backend))
    if backend is not None:
        backend.upload()
    return status


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
    tables = {table.name: table for table in tables_of(summary)}
    print_table(tables.get("paper") or tables["results"], console)
    console.print()
    # Where validation chooses, a note of the study says what, and test accuracies have no say.
    for verdict in [] if summary.study.by_validation else verdicts(summary):
        console.print(verdict, markup=False)
    if failures:
        console.print()
        for failure, names in _by_reason(failures).items():
            console.print(f"{', '.join(names)} failed: {failure}", markup=False, style="red")
    console.print(f"\nThe report is {page.resolve()}", markup=False, soft_wrap=True)
    return 1 if failures else 0


def _by_reason(failures: Mapping[str, str]) -> dict[str, list[str]]:
    """Say what befell many runs, such as a dataset that is missing, once."""
    reasons: dict[str, list[str]] = {}
    for name, failure in failures.items():
        reasons.setdefault(failure, []).append(name)
    return reasons
