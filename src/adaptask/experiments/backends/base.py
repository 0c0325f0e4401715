"""What every backend is given, jobs, and what it tells while it makes them, events."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from adaptask.atomic_file import replace_file
from adaptask.errors import AdaptaskError
from adaptask.experiments.config import RunConfig

if TYPE_CHECKING:
    from adaptask.training.loggers import Logger

FAILURE = "failure.txt"
"""Why a run failed, in its folder."""
PRUNED = "pruned.txt"
"""Why a search has given up a run, in its folder."""

_SECONDS_BETWEEN_EVENTS = 0.2


@dataclass(frozen=True)
class Job:
    """A run to be made."""

    name: str
    """Unlike those of all other jobs."""
    config: RunConfig
    path: Path
    """The folder of the run; a run that was begun there goes on."""
    open_logger: Callable[[], Logger] | None = None
    """Makes a logger in the process that makes the run; it may raise `RunPruned` to end the run.
    It must be picklable."""


class RunPruned(Exception):  # noqa: N818, it is no error
    """Raised by a logger to give up a run; the message says why."""


@dataclass(frozen=True)
class Event:
    """What is told of a run while it is made, the same on every backend."""

    kind: Literal["begin", "advance", "warn", "end"]
    job: str
    """Name of the job; empty for a warning that concerns all of them."""
    step: int = 0
    """How many steps have been made, with `advance`."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What is new of `loss`, `accuracy` and `val_accuracy`, with `advance`."""
    text: str | None = None
    """A warning; with `end` why the run failed, None if it did not."""


Tell = Callable[[Event], None]
"""Is told every event, in the process that started the jobs."""


class Backend(Protocol):
    """Makes runs."""

    def run(self, jobs: Sequence[Job], tell: Tell) -> dict[str, str]:
        """Make all runs; those that are finished cost next to nothing.

        A run that fails does not stop the others; why it failed is also left in its folder.

        Returns:
            Why runs failed, by their names.

        Raises:
            KeyboardInterrupt: After Ctrl-C; runs in progress have saved where they are.
        """
        ...


def record_failure(job: Job, error: BaseException) -> str:
    """Leave in the folder of a run why it failed; return the message."""
    if isinstance(error, AdaptaskError):
        message = details = str(error)
    else:
        message = f"{type(error).__name__}: {error}"
        details = "".join(traceback.format_exception(error))
    try:
        if job.path.is_dir():
            replace_file(job.path / FAILURE, details.encode())
    except AdaptaskError:
        pass  # the message is returned; a full disk may be its reason
    return message


def record_pruning(job: Job, pruned: RunPruned) -> None:
    """Leave in the folder of a run why it was given up; a run that had not begun has none."""
    if job.path.is_dir():
        replace_file(job.path / PRUNED, str(pruned).encode())


class EventDisplay:
    """The display of a single run: passes its progress on as events, a few times a second.

    Args:
        job: The run.
        tell: Is told the events.
    """

    def __init__(self, job: Job, tell: Tell) -> None:
        self._job, self._tell = job, tell
        self._metrics: dict[str, float] = {}
        self._next = 0.0

    def begin(self, step: int, n_steps: int) -> None:
        """Tell where the run starts."""
        self._tell(Event("advance", self._job.name, step))

    def advance(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Tell how far it is, if it is time."""
        if metrics:
            self._metrics.update(metrics)
        if time.perf_counter() >= self._next:
            self._advance(step)

    def message(self, text: str) -> None:
        """Do nothing: the result is in the table."""

    def warn(self, text: str) -> None:
        """Tell a warning."""
        self._tell(Event("warn", self._job.name, text=text))

    def end(self, step: int) -> None:
        """Tell where it ended."""
        self._advance(step)

    def _advance(self, step: int) -> None:
        self._tell(Event("advance", self._job.name, step, self._metrics))
        self._metrics = {}
        self._next = time.perf_counter() + _SECONDS_BETWEEN_EVENTS
