"""What every backend is given, runs, and what it tells while it makes them, events."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from adaptask.atomic_file import replace_file
from adaptask.errors import AdaptaskError
from adaptask.report.run import FAILURE, PRUNED, Run

_SECONDS_BETWEEN_EVENTS = 0.2


class RunPruned(Exception):  # noqa: N818, it is no error
    """Raised by a logger to give up a run; the message says why."""


@dataclass(frozen=True)
class Event:
    """What is told of a run while it is made, the same on every backend."""

    kind: Literal["begin", "advance", "warn", "end"]
    run: str
    """Name of the run; empty for a warning that concerns all of them."""
    step: int = 0
    """How many steps have been made, with `advance`."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What is new of `loss`, `accuracy` and `val_accuracy`, with `advance`."""
    text: str | None = None
    """A warning; with `end` why the run failed, None if it did not."""


Tell = Callable[[Event], None]
"""Is told every event, in the process that started the runs."""


class Backend(Protocol):
    """Makes runs."""

    def run(self, runs: Sequence[Run], tell: Tell) -> dict[str, str]:
        """Make all runs; those that are finished cost next to nothing.

        A run that fails does not stop the others; why it failed is also left in its folder.

        Returns:
            Why runs failed, by their names.

        Raises:
            KeyboardInterrupt: After Ctrl-C; runs in progress have saved where they are.
        """
        ...


def record_failure(run: Run, error: BaseException) -> str:
    """Leave in the folder of a run why it failed; return the message."""
    if isinstance(error, AdaptaskError):
        message = details = str(error)
    else:
        message = f"{type(error).__name__}: {error}"
        details = "".join(traceback.format_exception(error))
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        replace_file(run.path / FAILURE, details.encode())
    except (AdaptaskError, OSError):
        pass  # the message is returned; a full disk may be its reason
    return message


def record_pruning(run: Run, pruned: RunPruned) -> None:
    """Leave in the folder of a run why it was given up."""
    run.path.mkdir(parents=True, exist_ok=True)
    replace_file(run.path / PRUNED, str(pruned).encode())


class EventDisplay:
    """The display of a single run: passes its progress on as events, a few times a second.

    Args:
        run: The run.
        tell: Is told the events.
    """

    def __init__(self, run: Run, tell: Tell) -> None:
        self._run, self._tell = run, tell
        self._metrics: dict[str, float] = {}
        self._next = 0.0

    def begin(self, step: int, n_steps: int) -> None:
        """Tell where the run starts."""
        self._tell(Event("advance", self._run.name, step))

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
        self._tell(Event("warn", self._run.name, text=text))

    def end(self, step: int) -> None:
        """Tell where it ended."""
        self._advance(step)

    def _advance(self, step: int) -> None:
        self._tell(Event("advance", self._run.name, step, self._metrics))
        self._metrics = {}
        self._next = time.perf_counter() + _SECONDS_BETWEEN_EVENTS
