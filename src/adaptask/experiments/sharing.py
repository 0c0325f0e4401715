"""How many runs are made at once, and whether in processes or together on one GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from adaptask.arguments import check_integer
from adaptask.experiments.config import RunConfig
from adaptask.learners import LEARNERS, EmbeddingLearner

_MOST_PROCESSES = 8
# On an H200: one takes 0.47 ms a step, four 0.24 ms a step and run, eight to sixteen 0.20. Beyond
# eight they fill the gaps while others validate.
_MOST_TOGETHER = 12
_MOST_STREAMS = 32
_SPEEDUP_TOGETHER = 2.2
# Images of a step that leave most of a GPU idle.
_IMAGES_THAT_FILL = 700


@dataclass(frozen=True)
class Sharing:
    """How runs share a machine."""

    n_at_once: int
    """Runs at a time."""
    together: bool = False
    """Whether small runs are threads of this process, each on a stream of its own, on one GPU, and
    others are made one after the other."""
    threads: int | None = None
    """CPU threads of each; None: no matter."""

    @property
    def speedup(self) -> float:
        """How much sooner all are done than one after the other, about."""
        return min(self.n_at_once, _SPEEDUP_TOGETHER) if self.together else self.n_at_once


def share(workers: int | None, configs: Sequence[RunConfig], device: str) -> Sharing:
    """Return how runs share the machine.

    On a CPU they are processes: small networks gain little from a second thread, and lose much
    where cores are busy. Small steps leave most of a GPU idle, and are made together there;
    others have it for themselves.

    Args:
        workers: How many at a time were asked for; None chooses.
        configs: Of all runs.
        device: `cpu`, or `cuda`.

    Raises:
        ArgumentError: If `workers` is no positive integer, or more than a GPU has streams.
    """
    n_small = sum(map(is_small, configs)) if device == "cuda" else 0
    together = n_small > 1
    if workers is None:
        most = _MOST_TOGETHER if together else min(_cores(), _MOST_PROCESSES)
        workers = most if together or device == "cpu" else 1
        workers = min(workers, n_small or len(configs))
    check_integer("workers", workers, low=1, high=_MOST_STREAMS if together else None)
    shares_cores = device == "cpu" and workers > 1
    return Sharing(
        n_at_once=workers,
        together=together and workers > 1,
        threads=max(1, _cores() // workers) if shares_cores else None,
    )


def is_small(config: RunConfig) -> bool:
    """Return whether steps of a run fill no GPU, and draw nothing from what threads share.

    Steps that are launched kernel by kernel keep Python busy, of which threads have but one.
    """
    task, learner = config.task, LEARNERS[config.model.learner]
    n_images = task.n_tasks * task.n_way * (task.n_shot + task.n_query)
    return (
        config.model.backbone == "conv4"
        and issubclass(learner, EmbeddingLearner)
        and not learner.draws_in_evaluation
        and n_images <= _IMAGES_THAT_FILL
        and config.machine.engine != "eager"
        and config.data.storage != "host"
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
