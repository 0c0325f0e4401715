"""The display of a study: a line per event, and progress bars in a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from adaptask.experiments.backends import Event
from adaptask.report.run import Run
from adaptask.training.displays import format_duration

if TYPE_CHECKING:
    from rich.progress import TaskID

_SECONDS_BETWEEN_LINES = 30.0


class StudyDisplay:
    """Shows the events of the runs of a study; call it with every event.

    A line says how a run ended. A terminal also shows a bar for all runs and one for each run in
    progress; other output gets a line every half minute instead.

    Args:
        runs: All runs.
        stream: Where to write; standard error by default.
    """

    def __init__(self, runs: Sequence[Run], stream: TextIO | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console(file=stream or sys.stderr, highlight=False, soft_wrap=True)
        self._has_bars = self._console.is_terminal and not self._console.is_dumb_terminal
        self._n_steps = {run.name: run.config.steps for run in runs}
        self._first: dict[str, int] = {}
        """The step at which each run began here."""
        self._done: dict[str, int] = {}
        """Steps that each run has made, here or earlier."""
        self._warnings: set[str | None] = set()
        self._n_ended = 0
        self._start = time.monotonic()
        self._next_line = self._start + _SECONDS_BETWEEN_LINES
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}", markup=False),
            console=self._console,
            disable=not self._has_bars,
            expand=True,
            refresh_per_second=4,
            # What is printed goes above the bars, unless it was sent elsewhere.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        total = sum(self._n_steps.values())
        self._all = self._progress.add_task(f"0 of {len(runs)} runs", total=total, figures="")
        self._bars: dict[str, TaskID] = {}
        self._progress.start()

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if event.kind == "begin":
            self._begin(event.run)
        elif event.kind == "advance":
            self._advance(event)
        elif event.kind == "end":
            self._end(event)
        else:
            self._warn(event)

    def close(self) -> None:
        """Remove the bars."""
        for bar in self._bars.values():
            self._progress.remove_task(bar)
        self._progress.stop()

    def _warn(self, event: Event) -> None:
        """Print a warning, once if several runs have the same."""
        if event.text not in self._warnings:
            self._warnings.add(event.text)
            self._write(f"{event.run}: {event.text}" if event.run else str(event.text))

    def _begin(self, run: str) -> None:
        """Draw a bar for a run; it replaces the earlier one if the run begins again."""
        if run in self._bars:
            self._progress.remove_task(self._bars[run])
        n_steps = self._n_steps[run]
        self._bars[run] = self._progress.add_task(run, total=n_steps, figures="starting")

    def _advance(self, event: Event) -> None:
        run, step, n_steps = event.run, event.step, self._n_steps[event.run]
        self._count(run, step)
        figures = [f"{step}/{n_steps}"]
        if "loss" in event.metrics:
            figures.append(f"loss {event.metrics['loss']:.2f}")
        if "val_accuracy" in event.metrics:
            figures.append(f"val {100 * event.metrics['val_accuracy']:.1f} %")
        if event.text is not None:
            figures.append(event.text)
        self._progress.update(self._bars[run], completed=step, figures="  ".join(figures))
        if not self._has_bars and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            self._write(f"{run}: step {step} of {n_steps}", event.text or "", self._left())

    def _end(self, event: Event) -> None:
        run = event.run
        self._n_ended += 1
        ended = "done" if run in self._first else "kept"
        self._count(run, self._n_steps[run])
        self._progress.remove_task(self._bars.pop(run))
        result = ended if event.text is None else f"failed: {event.text}"
        self._write(f"[{self._n_ended}/{len(self._n_steps)}] {run}: {result}", self._left())

    def _count(self, run: str, step: int) -> None:
        self._first.setdefault(run, step)  # a finished run takes no step
        self._done[run] = step
        self._progress.update(
            self._all,
            completed=sum(self._done.values()),
            description=f"{self._n_ended} of {len(self._n_steps)} runs",
            figures=self._left(),
        )

    def _left(self) -> str:
        """Return the time left, at the speed of the steps that were made here."""
        done = sum(self._done.values())
        made = done - sum(self._first.values())
        if made <= 0:
            return ""
        rest = sum(self._n_steps.values()) - done
        return f"{format_duration((time.monotonic() - self._start) * rest / made)} left"

    def _write(self, *parts: str) -> None:
        self._console.print("  ".join(part for part in parts if part), markup=False)
