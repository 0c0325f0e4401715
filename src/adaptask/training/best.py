"""The best weights of a run by validation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from adaptask.arguments import check_integer
from adaptask.training.evaluation import Evaluation


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The weights of a learner after a step, and how well they did in validation."""

    step: int
    accuracy: float
    interval: float
    learner: dict[str, Any]
    """Its `state_dict`, on the CPU."""


def checkpoint_of(state: Mapping[str, Any]) -> Checkpoint:
    """Return the checkpoint whose `vars` were saved.

    Raises:
        TypeError: If they were not.
    """
    checkpoint = Checkpoint(**state)
    if (
        type(checkpoint.step) is not int
        or not isinstance(checkpoint.learner, Mapping)
        or not math.isfinite(checkpoint.accuracy + checkpoint.interval)
    ):
        raise TypeError("this is no checkpoint")
    return checkpoint


class BestCheckpoints:
    """Keeps the few best of many, best first; of equals the earliest.

    Args:
        n_kept: How many, at least 1.

    Raises:
        ArgumentError: If `n_kept` is no positive integer.
    """

    def __init__(self, n_kept: int) -> None:
        self.n_kept = check_integer("keep_best", n_kept, low=1)
        self.checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def first(self) -> Checkpoint | None:
        """The best of all, if there is one."""
        return self.checkpoints[0] if self.checkpoints else None

    def offer(self, step: int, evaluation: Evaluation, learner: nn.Module) -> bool:
        """Take in a learner if it is among the best; return whether it is."""
        full = len(self.checkpoints) == self.n_kept
        if full and evaluation.accuracy <= self.checkpoints[-1].accuracy:
            return False
        found = Checkpoint(step, evaluation.accuracy, evaluation.interval, _on_cpu(learner))
        return self.merge((found,))

    def merge(self, checkpoints: Iterable[Checkpoint]) -> bool:
        """Take in those that are among the best; return whether any is."""
        before = self.checkpoints
        by_step = {kept.step: kept for kept in (*before, *checkpoints)}
        ranked = sorted(by_step.values(), key=lambda kept: (-kept.accuracy, kept.step))
        self.checkpoints = tuple(ranked[: self.n_kept])
        return self.checkpoints != before


def _on_cpu(learner: nn.Module) -> dict[str, Any]:
    return {
        name: value.detach().cpu().clone() if isinstance(value, Tensor) else value
        for name, value in learner.state_dict().items()
    }
