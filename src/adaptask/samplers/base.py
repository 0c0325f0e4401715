"""What every sampler shares: the checks around drawing and learning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from adaptask.arguments import check_integer
from adaptask.errors import ArgumentError
from adaptask.kernels import find_kernels
from adaptask.randomness import RandomModule
from adaptask.samplers.feedback import (
    PROBLEMS,
    Feedback,
    check_ids,
    check_predictions,
    classes_fit,
    condense,
    condense_quickly,
)


class FeedbackModule(RandomModule, ABC):
    """A module that takes feedback and refuses what is bad without making a device wait.

    On the CPU a bad value raises at once and nothing is applied. On other devices what is bad is
    left out and counted there, and the error is raised where the host next reads the module:
    in `check()` or `state_dict()`.
    """

    _problems: ClassVar[tuple[str, ...]]
    """What each check of values demands."""
    _refusals: Tensor

    def __init__(self, *, seed: int, device: torch.device | str | None) -> None:
        super().__init__(seed=seed, device=device)
        refusals = torch.zeros(1 + len(self._problems), dtype=torch.int64, device=device)
        self.register_buffer("_refusals", refusals, persistent=False)

    def _count_refusals(self, passed: Tensor) -> None:
        """Count what failed, given which entry passed which check, `entries x checks` bool."""
        passed = torch.cat((passed.all(-1, keepdim=True), passed), dim=-1)
        self._refusals += passed.logical_not().sum(0)

    def check(self) -> None:
        """Raise what `update` found wrong on the device since it was last asked.

        Raises:
            ArgumentError: If anything was refused; the count starts again from zero.
        """
        n_refused, *by_problem = self._refusals.tolist()
        if n_refused:
            self._refusals.zero_()
            found = zip(by_problem, self._problems, strict=True)
            raise ArgumentError(
                f"{n_refused} entries given to update() since the last check were refused and "
                "left no trace. " + "; ".join(f"{n} times: {text}" for n, text in found if n) + "."
            )

    def get_extra_state(self) -> dict[str, Any]:
        """Return identity and random stream, after reporting what was refused."""
        self.check()
        return super().get_extra_state()


class Sampler(FeedbackModule):
    """A task sampler: write `_draw`, `_learn` and `_log_prob`, and the rest is there.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes in a task, K.
        seed: Seed of the random stream.
        device: Where the sampler works.

    Raises:
        ArgumentError: If `n_way` lies outside 2 to `n_classes`, or the seed below 0.
    """

    learns = True
    """Whether feedback changes what it draws."""
    _problems = PROBLEMS

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(seed=seed, device=device)
        self.n_classes = check_integer("n_classes", n_classes, low=2)
        self.n_way = check_integer(
            "n_way", n_way, low=2, high=self.n_classes, meaning="the number of training classes"
        )

    @property
    def dtype(self) -> torch.dtype:
        """The precision in which the sampler draws and learns."""
        return torch.float32

    def prepare(self) -> None:
        """Bring what is derived from the buffers up to date, as `sample` does by itself.

        To be called before a device graph of `sample` and `update` is replayed.
        """

    def _kernels(self) -> Any:
        """Return the kernels to draw and learn with, on a GPU where Triton is installed."""
        if self.dtype != torch.float32:
            return None
        return find_kernels("adaptask.samplers.fused", self.device)

    @abstractmethod
    def _draw(self, n_tasks: int) -> Tensor:
        """Return the classes of new tasks, `tasks x way`, distinct within a row."""

    @abstractmethod
    def _learn(self, feedback: Feedback) -> None:
        """Take in the outcome of some tasks; leave out those that were not accepted."""

    @abstractmethod
    def _log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of each category set, `tasks` float64."""

    def _estimate_log_prob(self, class_ids: Tensor) -> tuple[Tensor, float]:
        """Return log-probabilities, exact or not, and the standard error they have in common."""
        return self._log_prob(class_ids), 0.0

    def sample(self, n_tasks: int = 1) -> Tensor:
        """Return the `class_ids` of new tasks, `tasks x way` int64, distinct within a row.

        Raises:
            ArgumentError: If `n_tasks` is no positive integer.
        """
        return self._draw(check_integer("n_tasks", n_tasks, low=1))

    def update(self, class_ids: Tensor, probabilities: Tensor, labels: Tensor) -> None:
        """Take in how the queries of some tasks were classified.

        On the CPU bad values raise at once and nothing is applied. On other devices types and
        shapes do; values are checked there without waiting: a task with a bad value is left out
        and counted, and `check()` or `state_dict()` raises.

        Args:
            class_ids: The classes of each task, `tasks x way` int64.
            probabilities: Query probabilities, `tasks x queries x way`, rows summing to one.
            labels: Right answers as positions in the task, 0 to way - 1, `tasks x queries`, or
                `queries` where all tasks share them. Every class needs at least one query.

        Raises:
            ArgumentError: If anything does not fit.
        """
        kernels = self._kernels()
        if (
            kernels is not None
            and kernels.fits(self.n_way, _n_queries(probabilities))
            and self._learn_by_kernels(kernels, class_ids, probabilities, labels)
        ):
            return
        feedback = None
        if self.device.type == "cpu":
            feedback = condense_quickly(
                class_ids, probabilities, labels, n_classes=self.n_classes, n_way=self.n_way
            )
        if feedback is None:
            feedback = self._check_feedback(class_ids, probabilities, labels)
        self._learn(feedback)

    def _learn_by_kernels(
        self, kernels: Any, class_ids: Tensor, probabilities: Tensor, labels: Tensor
    ) -> bool:
        """Do what `_learn` does, and the checks before it, by kernels; return whether it could."""
        del kernels, class_ids, probabilities, labels
        return False

    def _check_predictions(self, class_ids: Tensor, probabilities: Tensor, labels: Tensor) -> None:
        check_ids("class_ids", class_ids, (None, self.n_way), self.device)
        shape = (len(class_ids), None, self.n_way)
        check_predictions(probabilities, labels, shape, self.device)

    def _check_feedback(self, class_ids: Tensor, probabilities: Tensor, labels: Tensor) -> Feedback:
        self._check_predictions(class_ids, probabilities, labels)
        feedback, passed = condense(
            class_ids, probabilities, labels, n_classes=self.n_classes, dtype=self.dtype
        )
        if passed is not None:
            self._count_refusals(passed)
        return feedback

    def log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of drawing each category set, in any order.

        Args:
            class_ids: `tasks x way` int64, distinct within a row.

        Returns:
            `tasks` float64. On devices other than the CPU, where values are not read, NaN for a
            row that is no category set.

        Raises:
            ArgumentError: If `class_ids` do not fit, or the probability is out of reach; the
                message says what can be computed instead.
        """
        fits = self._which_are_sets(class_ids)
        positions = torch.arange(self.n_way, device=self.device)
        safe_ids = torch.where(fits.unsqueeze(-1), class_ids, positions)
        return self._log_prob(safe_ids).masked_fill(~fits, torch.nan)

    def _which_are_sets(self, class_ids: Tensor) -> Tensor:
        """Return which rows are category sets, `tasks` bool; on the CPU raise if one is not."""
        check_ids("class_ids", class_ids, (None, self.n_way), self.device)
        fits: Tensor = classes_fit(class_ids, self.n_classes)
        if self.device.type == "cpu" and not fits.all():
            raise ArgumentError(f"{PROBLEMS[0]}; got {class_ids[~fits][0].tolist()}.")
        return fits

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "n_classes": self.n_classes}

    def extra_repr(self) -> str:
        """Show the sizes in `print(sampler)`."""
        return f"n_classes={self.n_classes}, n_way={self.n_way}"


def _n_queries(probabilities: object) -> int:
    """Return how many queries there seem to be, before anything was checked."""
    return probabilities.shape[-2] if getattr(probabilities, "ndim", 0) == 3 else 1  # type: ignore[attr-defined]
