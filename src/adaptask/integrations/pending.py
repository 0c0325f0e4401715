"""Tasks that were drawn and wait for feedback, which takes effect at a fixed distance.

Batch b is drawn when the feedback of batches 0 to b - 1 - lag has been applied, and no other.
Feedback that arrives earlier waits for its turn; a batch without feedback by then is skipped.
Hence neither the order of arrival nor how far a loader reads ahead changes anything, and the
memory needed is bounded.
"""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adaptask.arguments import format_value
from adaptask.errors import ArgumentError, StateError
from adaptask.interfaces import TaskSampler

# Tasks without feedback, from the first on, by which it was forgotten rather than late.
_MANY = 50


@dataclass(frozen=True)
class FeedbackReport:
    """How many of the tasks drawn so far the sampler has learned from."""

    n_drawn: int
    """Tasks drawn."""
    n_applied: int
    """Tasks whose feedback the sampler has learned from."""
    n_waiting: int
    """Tasks whose feedback may still come, or waits for its turn."""
    n_missed: int
    """Tasks whose feedback did not come in time; they are skipped."""
    lag: int
    """Batches drawn after a batch before the sampler learns from it: how stale it is."""
    largest_delay: int
    """Largest number of batches drawn between a batch and its feedback: the smallest `lag` that
    would have been enough."""


@dataclass
class DrawnBatch:
    """The tasks that were drawn together, and the feedback on them that has come so far."""

    number: int
    """Its position among all batches, from 0."""
    class_ids: Tensor
    """`tasks x way` int64, on the CPU."""
    feedback: list[tuple[Tensor, ...] | None]
    """On each task, None until it has come: probabilities, `queries x way`, labels, `queries`, and
    class features, `way x d`, if the sampler uses them."""


class PendingTasks:
    """Draws batches of tasks, and updates the sampler with their feedback in turn.

    Tasks are numbered in the order in which they are drawn, from 0.

    Args:
        sampler: Chooses the classes.
        tasks_per_batch: Tasks drawn together; the sampler learns from them together.
        lag: Batches drawn after a batch before the sampler learns from it.
    """

    def __init__(self, sampler: TaskSampler, *, tasks_per_batch: int, lag: int) -> None:
        self.sampler: Any = sampler
        self.tasks_per_batch, self.lag = tasks_per_batch, lag
        self.n_batches = 0
        """Batches drawn so far."""
        self.last_answered = -1
        """The latest batch on which feedback has come."""
        self._batches: deque[DrawnBatch] = deque()
        self._n_applied = self._n_missed = self._largest_delay = 0
        self._has_warned = False

    @property
    def report(self) -> FeedbackReport:
        """How many tasks were drawn, applied and missed."""
        return FeedbackReport(
            n_drawn=self.n_batches * self.tasks_per_batch,
            n_applied=self._n_applied,
            n_waiting=len(self._batches) * self.tasks_per_batch,
            n_missed=self._n_missed,
            lag=self.lag,
            largest_delay=self._largest_delay,
        )

    def draw(self) -> DrawnBatch:
        """Return the next batch, after the sampler has learned from those whose turn it is."""
        self._settle(before=self.n_batches - self.lag)
        class_ids = self.sampler.sample(self.tasks_per_batch).cpu()
        batch = DrawnBatch(self.n_batches, class_ids, [None] * self.tasks_per_batch)
        self._batches.append(batch)
        self.n_batches += 1
        return batch

    def since(self, number: int) -> list[DrawnBatch]:
        """Return the batches that wait, from this one on."""
        return [batch for batch in self._batches if batch.number >= number]

    def answer(self, task_ids: Sequence[int], *feedback: Tensor) -> None:
        """Keep the feedback on some tasks until it is their turn.

        Args:
            task_ids: Their numbers.
            *feedback: Probabilities, `tasks x queries x way`, labels, `tasks x queries`, and class
                features, `tasks x way x d`, if the sampler uses them; not copied.

        Raises:
            ArgumentError: If a task is unknown, was answered before or is past its turn; none of
                the feedback is then kept.
        """
        places = [self._place(task_id) for task_id in task_ids]
        if len(set(task_ids)) < len(task_ids):
            raise ArgumentError(f"task_ids must be distinct; got {list(task_ids)}.")
        for (batch, task), *rows in zip(places, *feedback, strict=True):
            batch.feedback[task] = tuple(rows)
            self.last_answered = max(self.last_answered, batch.number)
            self._largest_delay = max(self._largest_delay, self.n_batches - 1 - batch.number)

    def find(self, class_ids: Sequence[int]) -> int | None:
        """Return the oldest unanswered task of these classes in this order."""
        for batch in self._batches:
            for task, row in enumerate(batch.class_ids.tolist()):
                if batch.feedback[task] is None and row == list(class_ids):
                    return batch.number * self.tasks_per_batch + task
        return None

    def flush(self) -> None:
        """Let the sampler learn from all feedback that has come; skip the other tasks."""
        self._settle(before=self.n_batches)

    def _place(self, task_id: int) -> tuple[DrawnBatch, int]:
        number, task = divmod(task_id, self.tasks_per_batch)
        if not 0 <= number < self.n_batches:
            raise ArgumentError(
                f"task {format_value(task_id)} has not been drawn; task ids go from 0 to "
                f"{self.n_batches * self.tasks_per_batch - 1} so far. Pass the task ids of a batch "
                "as they came with it."
            )
        first = self._batches[0].number if self._batches else self.n_batches
        if number < first:
            raise ArgumentError(
                f"feedback on task {task_id} comes too late, or twice: with lag={self.lag} its "
                f"turn is over, {self.n_batches - 1 - number} batches were drawn after it. If a "
                "DataLoader reads that far ahead, build the EpisodeBatchSampler with a lag of "
                "num_workers * prefetch_factor (2 by default), or lower these."
            )
        batch = self._batches[number - first]
        if batch.feedback[task] is not None:
            raise ArgumentError(
                f"feedback on task {task_id} came before; it is applied once. Call feedback() once "
                "for every task."
            )
        return batch, task

    def _settle(self, *, before: int) -> None:
        """Update the sampler with the batches before this one, and remove them."""
        while self._batches and self._batches[0].number < before:
            batch = self._batches[0]
            tasks = zip(batch.class_ids, batch.feedback, strict=True)
            known = [(classes, *rows) for classes, rows in tasks if rows is not None]
            if known:
                device = getattr(self.sampler, "device", torch.device("cpu"))
                columns = (torch.stack(column).to(device) for column in zip(*known, strict=True))
                ids, probabilities, labels, *features = columns
                named = {"class_features": features[0]} if features else {}
                self.sampler.update(ids, probabilities, labels, **named)
            # Only now, so that a sampler that refuses leaves everything in place.
            self._batches.popleft()
            self._n_applied += len(known)
            self._n_missed += self.tasks_per_batch - len(known)
        n_done = self._n_applied + self._n_missed
        if n_done < _MANY or self._has_warned:
            return
        self._has_warned = True
        if hasattr(self.sampler, "steps_weighed"):  # it learns from losses, not from feedback
            if int(self.sampler.steps_weighed) == 0:
                warnings.warn(
                    f"{type(self.sampler).__name__} was not asked to weigh the losses of the first "
                    f"{n_done} tasks: it changes nothing. In every step compute one loss per task, "
                    "call weigh(losses) of the sampler, and follow the gradient of "
                    "(weights * losses).mean(). adaptask.Trainer does so by itself.",
                    stacklevel=2,
                )
        elif not self._n_applied and getattr(self.sampler, "learns", True):
            warnings.warn(
                f"no feedback came on the first {self._n_missed} tasks: the sampler learns "
                "nothing. Call feedback(task_ids, logits) after every batch.",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler, the tasks that wait and their feedback."""
        return {
            # Copied: a sampler learns in place, and all that is saved belongs to one moment.
            "sampler": copy.deepcopy(self.sampler.state_dict()),
            "n_batches": self.n_batches,
            "last_answered": self.last_answered,
            "counts": [self._n_applied, self._n_missed, self._largest_delay],
            "batches": [
                {**vars(batch), "feedback": list(batch.feedback)} for batch in self._batches
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state.

        Raises:
            StateError: If it is not such a state, or the sampler refuses its part; nothing is then
                changed.
        """
        try:
            n_batches, last_answered = state["n_batches"], state["last_answered"]
            applied, missed, delay = state["counts"]
            batches = [
                DrawnBatch(**{**saved, "feedback": list(saved["feedback"])})
                for saved in state["batches"]
            ]
            sampler_state = state["sampler"]
            self._check_saved((n_batches, last_answered, applied, missed, delay), batches)
            if not isinstance(sampler_state, Mapping):
                raise TypeError("the state of the sampler is not a dictionary")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(
                "this is no state of tasks, or it is damaged, or another version of adaptask "
                f"saved it: {error!r}."
            ) from error
        self.sampler.load_state_dict(sampler_state)
        self._batches, self.n_batches, self.last_answered = deque(batches), n_batches, last_answered
        self._n_applied, self._n_missed, self._largest_delay = applied, missed, delay

    def _check_saved(self, counters: Sequence[int], batches: Sequence[DrawnBatch]) -> None:
        """Raise an error for what could not be continued with, before anything is changed."""
        if not all(type(counter) is int for counter in counters):
            raise TypeError(f"counters must be integers; got {format_value(counters)}")
        n_batches = counters[0]
        waiting = range(n_batches - len(batches), n_batches)
        if waiting.start < 0 or [batch.number for batch in batches] != list(waiting):
            raise ValueError("the batches that wait are not the last ones that were drawn")
        size = (self.tasks_per_batch, self.sampler.n_way)
        for batch in batches:
            if batch.class_ids.shape != size or len(batch.feedback) != len(batch.class_ids):
                raise ValueError(f"batch {batch.number} must be tasks x way, {size}")
            for rows in batch.feedback:
                if rows is not None and not all(isinstance(row, Tensor) for row in rows):
                    raise TypeError(f"the feedback on batch {batch.number} must be tensors")
