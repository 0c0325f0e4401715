"""Three ways to make runs: interleaved in this process, in a pool of processes, or through Ray."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from adaptask.arguments import check_integer

if TYPE_CHECKING:
    from adaptask.experiments.backends.interleaved import Interleaved
    from adaptask.experiments.backends.processes import ProcessPool
    from adaptask.experiments.config import RunConfig

_MOST_PROCESSES = 8
# On an H200: one run takes 0.47 ms per step, four 0.24 ms per step and run, eight to sixteen 0.20.
# Beyond eight they fill the gaps while others validate.
_MOST_INTERLEAVED = 12
_MOST_STREAMS = 32  # torch hands out the same ones again after so many


def choose_backend(
    workers: int | None, configs: Sequence[RunConfig], device: str
) -> Interleaved | ProcessPool:
    """Return what makes runs on this machine.

    Args:
        workers: How many at a time; None chooses: one per core on a CPU, and on a GPU several if
            their steps are small.
        configs: Of all runs.
        device: `cpu`, or `cuda`.

    Raises:
        ArgumentError: If `workers` is not a positive integer, or more than a GPU has streams.
    """
    from adaptask.experiments.backends.interleaved import Interleaved, is_small
    from adaptask.experiments.backends.processes import ProcessPool

    n_small = sum(map(is_small, configs)) if device == "cuda" else 0
    if n_small > 1:
        workers = min(_MOST_INTERLEAVED, n_small) if workers is None else workers
        return Interleaved(check_integer("workers", workers, low=1, high=_MOST_STREAMS))
    if workers is None:
        most = min(n_cores(), _MOST_PROCESSES) if device == "cpu" else 1
        workers = min(most, len(configs))
    if check_integer("workers", workers, low=1) == 1:
        return Interleaved()
    return ProcessPool(workers, max(1, n_cores() // workers) if device == "cpu" else None)


def n_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
