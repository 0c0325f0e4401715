"""The processes that make a run together; here there is one, which agrees with itself."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from adaptask.errors import TrainingError
from adaptask.interfaces import Episodes, TaskSampler
from adaptask.training.metrics import DivergenceWatch

T = TypeVar("T")


class TaskSource(Protocol):
    """Turns classes into episodes: `adaptask.data.EpisodeSource`, or anything with this method."""

    device: torch.device

    def draw(self, class_ids: Tensor, *, n_shot: int, n_query: int) -> Episodes:
        """Return new episodes of the classes given, `tasks x way`."""
        ...


class Group:
    """One process by itself; `distributed.DistributedGroup` is several.

    All processes of a group call the same methods in the same order: each of them waits for the
    others there. What is said of the processes holds of one.
    """

    rank: int = 0
    """Which of the processes this is."""
    size: int = 1
    """How many there are."""
    local_rank: int = 0
    """Which of the processes on its machine this is."""
    captures: bool = True
    """Whether what the processes tell each other within a step can be part of a device graph."""

    lost: TrainingError | None = None
    """Says which of the others is gone, once a message did not arrive."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def own_device(self, name: str) -> str:
        """Return which device of a kind this process takes.

        Raises:
            ArgumentError: If there are too few for all processes.
        """
        return name

    def settle_on(self, device: torch.device) -> None:
        """Take in on which device this process computes."""

    def draw(self, source: TaskSource, class_ids: Tensor, *, n_shot: int, n_query: int) -> Episodes:
        """Return the share of this process of the episodes that one process would draw.

        Args:
            source: Of the same state in all processes.
            class_ids: Classes of all tasks, `tasks x way`; shares are equal.
            n_shot: Support images a class.
            n_query: Query images a class.
        """
        return source.draw(class_ids, n_shot=n_shot, n_query=n_query)

    def exchange(
        self,
        sampler: TaskSampler,
        probabilities: Tensor,
        labels: Tensor,
        divergence: DivergenceWatch,
        *,
        n_parts: int,
    ) -> tuple[Tensor, Tensor]:
        """Return what a sampler is to learn from: the outcome of the tasks of all processes.

        What `divergence` found in any process is known in all of them afterwards.

        Args:
            sampler: What it is for.
            probabilities: Of the queries of this process, `share x queries x way`.
            labels: `share x queries`.
            divergence: What has looked at the losses.
            n_parts: In how many parts the step was computed; every process has a share of each.

        Returns:
            Probabilities and labels of all tasks, in the order in which they were drawn.
        """
        return probabilities, labels

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace gradients by their means over the processes, in one message."""

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace floating-point tensors by their means over the processes."""

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes, the same bits in all of them."""
        return tensor

    def gather(self, thing: T) -> list[T]:
        """Return what every process has, in the order of their ranks."""
        return [thing]

    def from_first(self, thing: T) -> T:
        """Return what the first process has."""
        return thing

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do something that may fail in some processes: then it fails in all, alike."""
        yield

    def agree_to_stop(
        self, received: signal.Signals | None, step: int, n_steps: int
    ) -> signal.Signals | None:
        """Return the signal that any of the processes has received, if they looked at this step.

        Args:
            received: By this process.
            step: How many steps have been made.
            n_steps: How many are to be made; after the last they look.
        """
        return received

    def check_same(self, name: str, tensors: Iterable[Tensor]) -> None:
        """Check that tensors have the same bits in all processes.

        Raises:
            TrainingError: If they have not; names what, and a process.
        """


ALONE = Group()
"""A process by itself."""
