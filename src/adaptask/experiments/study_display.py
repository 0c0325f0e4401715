"""One display for many runs: a bar for all and one for each in progress, or plain lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from adaptask.experiments.jobs import Job
from adaptask.training.displays import duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SECONDS_BETWEEN_LINES = 30.0


class _Pace:
    """How far all runs are, in steps, and how long the rest will take."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.total = sum(job.config.steps for job in jobs)
        self._done: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._start = time.monotonic()

    @property
    def done(self) -> int:
        return sum(self._done.values())

    def take(self, job: Job, step: int) -> None:
        self._first.setdefault(job.name, step)
        self._done[job.name] = step

    def end(self, job: Job) -> None:
        """Count a run as done; one that took no step was there before."""
        self._first.setdefault(job.name, job.config.steps)
        self._done[job.name] = job.config.steps

    def left(self) -> str:
        made = self.done - sum(self._first.values())
        if made <= 0:
            return ""
        seconds = (time.monotonic() - self._start) * (self.total - self.done) / made
        return f"{duration(seconds)} left"


class StudyLines:
    """Writes a line when a run ends, and now and then where things stand.

    Args:
        jobs: All runs.
        stream: Where to.
    """

    def __init__(self, jobs: Sequence[Job], stream: TextIO) -> None:
        self._stream = stream
        self._pace = _Pace(jobs)
        self._n_jobs, self._n_ended = len(jobs), 0
        self._next = time.monotonic() + _SECONDS_BETWEEN_LINES

    def begin_job(self, job: Job) -> None:
        """Do nothing."""

    def advance_job(self, job: Job, step: int, metrics: Mapping[str, float]) -> None:
        """Write a line if it is time."""
        self._pace.take(job, step)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _SECONDS_BETWEEN_LINES
            self._write(f"{job.name}: step {step} of {job.config.steps}", self._pace.left())

    def end_job(self, job: Job, failure: str | None) -> None:
        """Write how it ended."""
        self._pace.end(job)
        self._n_ended += 1
        result = "done" if failure is None else f"failed: {failure}"
        self._write(f"[{self._n_ended}/{self._n_jobs}] {job.name}: {result}", self._pace.left())

    def warn(self, text: str) -> None:
        """Write a line."""
        self._write(text)

    def close(self) -> None:
        """Do nothing."""

    def _write(self, *parts: str) -> None:
        self._stream.write("  ".join(part for part in parts if part) + "\n")
        self._stream.flush()


class StudyBars:
    """Draws a bar for all runs and one for each in progress.

    Args:
        jobs: All runs.
        stream: A terminal.
    """

    def __init__(self, jobs: Sequence[Job], stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._pace = _Pace(jobs)
        self._n_jobs, self._n_ended = len(jobs), 0
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

    def begin_job(self, job: Job) -> None:
        """Draw a bar for it, in the place of the one it had, if it begins again."""
        if job.name in self._bars:
            self._progress.remove_task(self._bars[job.name])
        self._metrics[job.name] = {}
        self._bars[job.name] = self._progress.add_task(
            job.name, total=job.config.steps, figures="starting"
        )

    def advance_job(self, job: Job, step: int, metrics: Mapping[str, float]) -> None:
        """Move its bar."""
        self._pace.take(job, step)
        known = self._metrics[job.name]
        known.update(metrics)
        figures = [f"{step}/{job.config.steps}"]
        if "loss" in known:
            figures.append(f"loss {known['loss']:.2f}")
        if "val_accuracy" in known:
            figures.append(f"val {100 * known['val_accuracy']:.1f} %")
        if step == job.config.steps:
            figures.append("testing")
        self._progress.update(self._bars[job.name], completed=step, figures="  ".join(figures))
        self._show_all()

    def end_job(self, job: Job, failure: str | None) -> None:
        """Remove its bar; a failure leaves a line."""
        self._pace.end(job)
        self._n_ended += 1
        self._progress.remove_task(self._bars.pop(job.name))
        if failure is not None:
            self.warn(f"{job.name} failed: {failure}")
        self._show_all()

    def warn(self, text: str) -> None:
        """Write a line above the bars."""
        self._console.print(text, markup=False)

    def close(self) -> None:
        """Leave the terminal as it was."""
        for bar in self._bars.values():
            self._progress.remove_task(bar)
        self._progress.stop()

    def _show_all(self) -> None:
        self._progress.update(
            self._all,
            completed=self._pace.done,
            description=f"{self._n_ended} of {self._n_jobs} runs",
            figures=self._pace.left(),
        )


def choose_study_display(
    jobs: Sequence[Job], *, stream: TextIO | None = None
) -> StudyBars | StudyLines:
    """Return what suits the output: bars on a terminal, else plain lines."""
    stream = stream or sys.stderr
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return StudyBars(jobs, stream)
    return StudyLines(jobs, stream)
