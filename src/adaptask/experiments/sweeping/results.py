"""What the trials of a sweep have come to: a table, a choice by validation, a study to report."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from adaptask.experiments.config import RunConfig
from adaptask.experiments.sweeping.plan import SweepTrial
from adaptask.report.run import Run
from adaptask.report.study import Arm, Study

_ORDER = {"finished": 0, "unfinished": 1, "pruned": 2, "failed": 3}


@dataclass(frozen=True)
class Result:
    """A trial as its folders show it."""

    trial: SweepTrial
    state: str
    """`finished`, `pruned`, `failed`, or `unfinished`."""
    validation: float | None
    """Best validation accuracy of each seed so far, their mean; None before the first."""
    test: float | None
    """Mean test accuracy of the weights best in validation; None unless all seeds have one."""
    why: str = ""
    """It failed or was given up."""

    @classmethod
    def read(cls, folder: Path, trial: SweepTrial, seeds: Sequence[int]) -> Result:
        """Return what is known of a trial.

        Raises:
            StateError: If a file is damaged.
        """
        records = [Run(folder / trial.run_folder(seed)) for seed in seeds]
        best = [float(np.max(c)) for r in records if (c := r.curve("val", "accuracy")[1]).size]
        tests = [float(r.test.accuracies.mean()) for r in records if r.test is not None]
        state, why = "unfinished", ""
        for name, reasons in (
            ("pruned", [r.pruned for r in records if r.pruned]),
            ("failed", [r.failure for r in records if r.failure]),
        ):
            if reasons:
                state, why = name, str(reasons[0])
        finished = len(tests) == len(seeds)
        return cls(
            trial,
            "finished" if finished else state,
            statistics.fmean(best) if best else None,
            statistics.fmean(tests) if finished else None,
            why,
        )


def ranked(results: Sequence[Result]) -> list[Result]:
    """Return the results, best by validation first; what was given up or failed comes last."""
    return sorted(results, key=lambda r: (_ORDER[r.state], -(r.validation or 0.0)))


def chosen(results: Sequence[Result]) -> Result | None:
    """Return the best by validation of those that finished; test accuracies have no say."""
    first = ranked(results)[0]
    return first if first.state == "finished" else None


def print_results(results: Sequence[Result], folder: Path) -> None:
    """Show all trials, best first, and which was chosen by what."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=False)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for name in results[0].trial.labels:
        table.add_column(name, justify="right")
    for name in ("validation %", "test %"):
        table.add_column(name, justify="right")
    table.add_column("")
    best = chosen(results)
    for result in ranked(results):
        figures = (_percent(result.validation), _percent(result.test))
        state = "chosen" if result is best else result.state
        style = "bold" if result is best else ""
        table.add_row(*result.trial.labels.values(), *figures, state, style=style)
    console.print(table)
    console.print()
    for note in notes(results):
        console.print(note, markup=False)
    console.print(f"The sweep is in {folder}", markup=False)


def notes(results: Sequence[Result]) -> tuple[str, ...]:
    """Return what must be said of the results."""
    said = []
    best = chosen(results)
    if best is not None:
        said.append(
            f"Chosen by validation: {_described(best.trial)}, with a validation accuracy of "
            f"{_percent(best.validation)} % and a test accuracy of {_percent(best.test)} %. The "
            "test accuracies of the others decide nothing: the highest of many is too high."
        )
        equals = sum(r.state == "finished" and r.validation == best.validation for r in results)
        if equals > 1:
            said.append(
                f"{equals} trials are equally good in validation; the first of them was taken."
            )
    counts = {state: sum(r.state == state for r in results) for state in _ORDER}
    if counts["pruned"]:
        said.append(
            f"{_trials(counts['pruned'])} given up early, below the median of those before; their "
            "validation accuracy is the best until then."
        )
    said += [
        f"Failed: {_described(result.trial)}: {result.why}"
        for result in results
        if result.state == "failed"
    ]
    if counts["unfinished"]:
        said.append(f"{_trials(counts['unfinished'])} not finished, or in another process's hands.")
    return tuple(said)


def study_of_sweep(
    base: RunConfig,
    plan: Sequence[SweepTrial],
    seeds: Sequence[int],
    folder: Path,
    *,
    command: str = "",
    results: Sequence[Result] = (),
) -> Study:
    """Return the sweep as a study; the trial with the values of `base`, if any, is the baseline."""
    baseline = next((trial.name for trial in plan if trial.config == base), None)
    arms = tuple(
        Arm(
            name=trial.name,
            labels=trial.labels,
            runs=tuple(Run(folder / trial.run_folder(seed), seed) for seed in seeds),
            baseline=None if trial.name == baseline else baseline,
        )
        for trial in plan
    )
    names = list(plan[0].labels)
    title = "Sweep of " + " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
    study = Study(title=title, arms=arms, command=command, by_validation=True)
    return replace(study, notes=notes(results)) if results else study


def _described(trial: SweepTrial) -> str:
    return ", ".join(f"{name} {text}" for name, text in trial.labels.items())


def _trials(n: int) -> str:
    return "1 trial was" if n == 1 else f"{n} trials were"


def _percent(accuracy: float | None) -> str:
    return "-" if accuracy is None else f"{100 * accuracy:.2f}"
