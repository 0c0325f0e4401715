"""One display for many runs: a bar for all and one for each in progress, or plain lines.

A display is called with every event of the runs, see `backends.base.Event`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from adaptask.experiments.backends.base import Event
from adaptask.report.run import Run
from adaptask.training.displays import duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SECONDS_BETWEEN_LINES = 30.0


class _Pace:
    """How far all runs are, in steps, and how long the rest will take."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.n_steps = {run.name: run.config.steps for run in runs}
        self.n_ended = 0
        self._done: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._start = time.monotonic()

    @property
    def total(self) -> int:
        return sum(self.n_steps.values())

    @property
    def done(self) -> int:
        return sum(self._done.values())

    def take(self, event: Event) -> None:
        step = event.step if event.kind == "advance" else self.n_steps[event.run]
        self._first.setdefault(event.run, step)  # a run that took no step was there before
        self._done[event.run] = step
        self.n_ended += event.kind == "end"

    def left(self) -> str:
        made = self.done - sum(self._first.values())
        if made <= 0:
            return ""
        seconds = (time.monotonic() - self._start) * (self.total - self.done) / made
        return f"{duration(seconds)} left"


class StudyLines:
    """Writes a line when a run ends, and now and then where things stand.

    Args:
        runs: All of them.
        stream: Where to.
    """

    def __init__(self, runs: Sequence[Run], stream: TextIO) -> None:
        self._stream = stream
        self._pace = _Pace(runs)
        self._next = time.monotonic() + _SECONDS_BETWEEN_LINES

    def __call__(self, event: Event) -> None:
        """Show an event."""
        name, pace = event.run, self._pace
        if event.kind == "advance":
            pace.take(event)
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + _SECONDS_BETWEEN_LINES
                self._write(f"{name}: step {event.step} of {pace.n_steps[name]}", pace.left())
        elif event.kind == "end":
            pace.take(event)
            result = "done" if event.text is None else f"failed: {event.text}"
            self._write(f"[{pace.n_ended}/{len(pace.n_steps)}] {name}: {result}", pace.left())
        elif event.kind == "warn":
            self._write(_warning(event))

    def close(self) -> None:
        """Do nothing."""

    def _write(self, *parts: str) -> None:
        self._stream.write("  ".join(part for part in parts if part) + "\n")
        self._stream.flush()


class StudyBars:
    """Draws a bar for all runs and one for each in progress.

    Args:
        runs: All of them.
        stream: A terminal.
    """

    def __init__(self, runs: Sequence[Run], stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._pace = _Pace(runs)
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._progress: Progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}", markup=False),
            console=self._console,
            expand=True,
            refresh_per_second=4,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._all: TaskID = self._progress.add_task("", total=self._pace.total, figures="")
        self._bars: dict[str, TaskID] = {}
        self._metrics: dict[str, dict[str, float]] = {}
        self._show_all()
        self._progress.start()

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if event.kind == "begin":
            self._begin(event.run)
        elif event.kind == "advance":
            self._pace.take(event)
            self._advance(event)
        elif event.kind == "warn":
            self._console.print(_warning(event), markup=False)
        else:
            self._pace.take(event)
            self._progress.remove_task(self._bars.pop(event.run))
            if event.text is not None:
                self._console.print(f"{event.run} failed: {event.text}", markup=False)
        self._show_all()

    def close(self) -> None:
        """Leave the terminal as it was."""
        for bar in self._bars.values():
            self._progress.remove_task(bar)
        self._progress.stop()

    def _begin(self, run: str) -> None:
        """Draw a bar for a run, in the place of the one it had, if it begins again."""
        if run in self._bars:
            self._progress.remove_task(self._bars[run])
        self._metrics[run] = {}
        n_steps = self._pace.n_steps[run]
        self._bars[run] = self._progress.add_task(run, total=n_steps, figures="starting")

    def _advance(self, event: Event) -> None:
        known, n_steps = self._metrics[event.run], self._pace.n_steps[event.run]
        known.update(event.metrics)
        figures = [f"{event.step}/{n_steps}"]
        if "loss" in known:
            figures.append(f"loss {known['loss']:.2f}")
        if "val_accuracy" in known:
            figures.append(f"val {100 * known['val_accuracy']:.1f} %")
        if event.step == n_steps:
            figures.append("testing")
        bar = self._bars[event.run]
        self._progress.update(bar, completed=event.step, figures="  ".join(figures))

    def _show_all(self) -> None:
        self._progress.update(
            self._all,
            completed=self._pace.done,
            description=f"{self._pace.n_ended} of {len(self._pace.n_steps)} runs",
            figures=self._pace.left(),
        )


def _warning(event: Event) -> str:
    return f"{event.run}: {event.text}" if event.run else str(event.text)


def choose_study_display(
    runs: Sequence[Run], *, stream: TextIO | None = None
) -> StudyBars | StudyLines:
    """Return what suits the output: bars on a terminal, else plain lines."""
    stream = stream or sys.stderr
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return StudyBars(runs, stream)
    return StudyLines(runs, stream)
