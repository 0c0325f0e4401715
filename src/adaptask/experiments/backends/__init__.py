"""Backends make runs: interleaved in this process, in a pool of processes, or through Ray.

A backend receives runs, and reports what happens to them as events.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from adaptask.arguments import check_integer
from adaptask.atomic_file import replace_file
from adaptask.errors import AdaptaskError
from adaptask.report.run import FAILURE, PRUNED, Run
from adaptask.workers import n_cores

if TYPE_CHECKING:
    from adaptask.experiments.backends.interleaved import Interleaved
    from adaptask.experiments.backends.processes import ProcessPool
    from adaptask.experiments.config import RunConfig

_MOST_PROCESSES = 8
# On an H200: one run takes 0.47 ms per step, four 0.24 ms per step and run, eight to sixteen 0.20.
# Beyond eight they fill the gaps while others validate.
_MOST_INTERLEAVED = 12
_MOST_STREAMS = 32  # torch hands out the same ones again after so many
_NOT_OF_USERS = {"adaptask", "torch", "numpy", *sys.stdlib_module_names} - {"__main__"}


@dataclass(frozen=True)
class Event:
    """What happened to a run, the same on every backend."""

    kind: Literal["begin", "advance", "warn", "end"]
    run: str
    """Name of the run; empty for a warning about all of them."""
    step: int = 0
    """Number of steps made so far, with `advance`."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The last values of `loss`, `accuracy` and `val_accuracy`, with `advance`."""
    text: str | None = None
    """A warning; with `end` why the run failed, None if it did not; with `advance` what is being
    done if it is not training."""


OnEvent = Callable[[Event], None]
"""Is called with every event, in the process that started the runs."""


class Backend(Protocol):
    """Makes runs."""

    def run(self, runs: Sequence[Run], on_event: OnEvent) -> dict[str, str]:
        """Make all runs; those that are finished take almost no time.

        A run that fails does not stop the others. The reason is also written to its folder.

        Returns:
            Why runs failed, by their names.

        Raises:
            KeyboardInterrupt: After Ctrl-C; runs in progress have saved a checkpoint.
        """
        ...


class RunPruned(Exception):  # noqa: N818, it is no error
    """Raised by a logger to stop a run early; the message says why."""


def choose_backend(
    workers: int | None, configs: Sequence[RunConfig], device: str
) -> Interleaved | ProcessPool:
    """Return the backend for runs on this machine.

    Args:
        workers: Number of runs at a time; None chooses: on a CPU one per core, at most 8, and
            on a GPU several if their steps are small.
        configs: The configurations of all runs.
        device: `cpu`, or `cuda`.

    Raises:
        ArgumentError: If `workers` is not a positive integer, or more than a GPU has streams.
    """
    from adaptask.experiments.backends.interleaved import Interleaved, can_share_gpu
    from adaptask.experiments.backends.processes import ProcessPool

    n_small = sum(map(can_share_gpu, configs)) if device == "cuda" else 0
    if n_small > 1:
        workers = min(_MOST_INTERLEAVED, n_small) if workers is None else workers
        return Interleaved(check_integer("workers", workers, low=1, high=_MOST_STREAMS))
    if workers is None:
        most = min(n_cores(), _MOST_PROCESSES) if device == "cpu" else 1
        workers = min(most, len(configs))
    if check_integer("workers", workers, low=1) == 1:
        return Interleaved()
    return ProcessPool(workers, max(1, n_cores() // workers) if device == "cpu" else None)


def record_failure(run: Run, error: BaseException) -> str:
    """Write why a run failed to its folder; return the message."""
    if isinstance(error, AdaptaskError):
        message = details = str(error)
    else:
        message = f"{type(error).__name__}: {error}{_place(error)}"
        details = "".join(traceback.format_exception(error))
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        replace_file(run.path / FAILURE, details.encode())
    except (AdaptaskError, OSError):
        pass  # the message is returned; a full disk may be the reason
    return message


def _place(error: BaseException) -> str:
    """Return file and line that raised an error, in brackets: of the user, if any of theirs ran."""
    frames = list(traceback.walk_tb(error.__traceback__))
    modules = (str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in frames)
    own = [at for at, name in zip(frames, modules, strict=True) if name not in _NOT_OF_USERS]
    if not frames:
        return ""
    frame, line = (own or frames)[-1]
    return f" ({Path(frame.f_code.co_filename).name}:{line})"


def record_pruning(run: Run, pruned: RunPruned) -> None:
    """Write why a run was stopped early to its folder."""
    run.path.mkdir(parents=True, exist_ok=True)
    replace_file(run.path / PRUNED, str(pruned).encode())
