"""Many runs, one after the other or in several processes; what fails does not stop the rest."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adaptask.atomic_file import replace_file
from adaptask.errors import AdaptaskError
from adaptask.experiments.backends.base import PRUNED, RunPruned
from adaptask.experiments.config import RunConfig
from adaptask.experiments.sharing import Sharing, is_small

if TYPE_CHECKING:
    from adaptask.training.loggers import Logger

_SECONDS_BETWEEN_REPORTS = 0.2
FAILURE = "failure.txt"
"""Why a run failed, in its folder."""


@dataclass(frozen=True)
class Job:
    """A run to be made."""

    name: str
    config: RunConfig
    path: Path
    open_logger: Callable[[], Logger] | None = None


class JobDisplay(Protocol):
    """Shows where many runs stand."""

    def begin_job(self, job: Job) -> None:
        """Take in that a run begins, or goes on."""
        ...

    def advance_job(self, job: Job, step: int, metrics: Mapping[str, float]) -> None:
        """Take in how far it is; what is not in `metrics` is as before."""
        ...

    def end_job(self, job: Job, failure: str | None) -> None:
        """Take in that it ended, and why it failed, if it did."""
        ...

    def warn(self, text: str) -> None:
        """Show what has gone wrong, though all goes on."""
        ...


class RunDisplay:
    """What a single run tells, handed on to the display of all; a few times a second."""

    def __init__(self, job: Job, display: JobDisplay) -> None:
        self._job, self._display = job, display
        self._metrics: dict[str, float] = {}
        self._next = 0.0

    def begin(self, step: int, n_steps: int) -> None:
        """Hand on where the run stands."""
        self._display.advance_job(self._job, step, {})

    def advance(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Hand on how far it is, if it is time."""
        self._metrics.update(metrics or {})
        if time.perf_counter() >= self._next:
            self._hand_on(step)

    def message(self, text: str) -> None:
        """Do nothing: the result is in the table."""

    def warn(self, text: str) -> None:
        """Hand on what has gone wrong."""
        self._display.warn(f"{self._job.name}: {text}")

    def end(self, step: int) -> None:
        """Hand on where it ended."""
        self._hand_on(step)

    def _hand_on(self, step: int) -> None:
        self._display.advance_job(self._job, step, self._metrics)
        self._metrics = {}
        self._next = time.perf_counter() + _SECONDS_BETWEEN_REPORTS


def run_jobs(
    jobs: Sequence[Job],
    display: JobDisplay,
    sharing: Sharing = Sharing(1),  # noqa: B008
) -> dict[str, str]:
    """Make all runs; return why those failed that did, by their names.

    A failure is also left in the run's folder, as `failure.txt`.

    Args:
        jobs: The runs; those that are finished cost next to nothing.
        display: Shows progress.
        sharing: How many at a time, and how.

    Raises:
        KeyboardInterrupt: After Ctrl-C; runs in progress have saved where they are.
    """
    n_at_once = min(sharing.n_at_once, len(jobs))
    if n_at_once == 1:
        return _in_this_process(jobs, display)
    if sharing.together:
        from adaptask.experiments.supervision import run_supervised

        small = [job for job in jobs if is_small(job.config)]
        failures = run_supervised(small, display, n_at_once) if small else {}
        return failures | _in_this_process([job for job in jobs if job not in small], display)
    from adaptask.experiments.pool import Pool

    return Pool(jobs, display, n_at_once).run()


def _in_this_process(jobs: Iterable[Job], display: JobDisplay) -> dict[str, str]:
    failures = {}
    for job in jobs:
        display.begin_job(job)
        failure = attempt(job, display)
        if failure is not None:
            failures[job.name] = failure
        display.end_job(job, failure)
    return failures


def attempt(job: Job, display: JobDisplay, *, loggers: Sequence[Logger] = ()) -> str | None:
    """Make a run; return why it failed, if it did."""
    from adaptask.experiments.running import run

    try:
        if job.open_logger is not None:
            loggers = [*loggers, job.open_logger()]
        run(job.config, job.path, display=RunDisplay(job, display), loggers=loggers)
    except RunPruned as pruned:
        if job.path.is_dir():
            replace_file(job.path / PRUNED, f"{pruned}\n".encode())
        display.warn(f"{job.name}: {pruned}")
    except AdaptaskError as error:
        return failed(job, str(error), str(error))
    except Exception as error:  # of one run, whatever it is; the others are not worse for it
        message = f"{type(error).__name__}: {error}"
        return failed(job, message, traceback.format_exc())
    return None


def failed(job: Job, message: str, details: str) -> str:
    """Leave in the folder of a run why it failed; return the message."""
    try:
        if job.path.is_dir():
            replace_file(job.path / FAILURE, details.encode())
    except AdaptaskError:
        pass  # the message is returned, and a disk that is full is its reason perhaps
    return message
