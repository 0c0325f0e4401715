"""What a run asks of the processes that compute it together; for one process it does nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
from torch import Tensor

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
    """A run of one process. `distributed.DistributedGroup` is the one for several.

    All processes of a group call the same methods in the same order, since each call waits for the
    other processes.
    """

    rank: int = 0
    """Index of this process."""
    size: int = 1
    """Number of processes."""
    captures: bool = True
    """Whether the messages of a step can be part of a device graph."""
    is_restart: bool = False
    """Whether torchrun has started the processes again after one of them failed."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.rank == 0

    def own_device(self, name: str) -> str:
        """Return the device that this process uses, given what the user asked for.

        Raises:
            ArgumentError: If there are too few devices for all processes.
        """
        return name

    def settle_on(self, device: torch.device) -> None:
        """Set the device on which this process computes."""

    def draw(self, source: TaskSource, class_ids: Tensor, *, n_shot: int, n_query: int) -> Episodes:
        """Return this process's share of the episodes that one process would draw.

        Args:
            source: Must have the same state in all processes.
            class_ids: Classes of all tasks, `tasks x way`. All shares have the same size.
            n_shot: Support images per class.
            n_query: Query images per class.
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
        """Return the sampler's feedback: the outcome of the tasks of all processes.

        A loss that is not finite in any process is reported to all of them.

        Args:
            sampler: The sampler that gets the feedback.
            probabilities: Of the queries of this process, `share x queries x way`.
            labels: `share x queries`.
            divergence: The watch that has checked the losses of this process.
            n_parts: Number of parts of an accumulated step; each process has a share of each part.

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
        """Return the values of all processes, ordered by rank."""
        return [thing]

    def from_first(self, thing: T) -> T:
        """Return the value of the first process."""
        return thing

    @contextmanager
    def together(self) -> Iterator[None]:
        """If the body fails in one process, raise the same error in all of them."""
        yield

    def agree_to_stop(
        self, received: signal.Signals | None, step: int, n_steps: int
    ) -> signal.Signals | None:
        """Return the signal that any process has received, if they compare after this step.

        Args:
            received: The signal that this process has received.
            step: Number of steps made so far.
            n_steps: Total number of steps. The processes always compare after the last one.
        """
        return received

    def check_same(self, name: str, tensors: Iterable[Tensor]) -> None:
        """Check that tensors have the same bits in all processes.

        Raises:
            TrainingError: If they differ; names them and a process.
        """


ALONE = Group()
"""The group of a run of one process."""
