"""Adaptive tasks for a PyTorch DataLoader, over any map-style dataset.

    episodes = EpisodeBatchSampler(labels, sampler, n_shot=1, n_query=15, n_tasks=1000)
    for batch in DataLoader(episodes.wrap(dataset), batch_sampler=episodes, num_workers=4):
        query_logits = ...                                    # tasks x queries x way
        episodes.feedback(batch.task_ids, query_logits)

Everything random happens here, in the process of the loop: workers are told which images to load.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch.utils.data import Sampler as TorchSampler

from adaptask.arguments import check_integer, check_members, check_seed, shown
from adaptask.errors import ArgumentError, DataError, StateError
from adaptask.integrations.class_index import index_labels
from adaptask.integrations.episode_dataset import EpisodeBatch, EpisodeDataset, TaskIndices
from adaptask.integrations.pending import DrawnBatch, FeedbackReport, PendingTasks
from adaptask.interfaces import TaskSampler
from adaptask.randomness import derive_seed

_NO_STATE = "this is no state of an EpisodeBatchSampler, or it is damaged."

__all__ = ["EpisodeBatch", "EpisodeBatchSampler", "EpisodeDataset", "FeedbackReport", "TaskIndices"]


class EpisodeBatchSampler(TorchSampler[list[int]]):
    """The `batch_sampler` of a DataLoader whose batches are tasks that a sampler chooses.

    A batch is a list of positions in the dataset: task by task, class by class, support images
    before queries. `wrap(dataset)` makes an `EpisodeBatch` of them.

    Workers read ahead, so that feedback comes when later tasks have been drawn already. The
    sampler learns from a batch when `lag` further ones have been drawn, neither sooner nor later.
    So the same seed gives the same tasks whatever the number of workers, as long as they read no
    further ahead than `lag` batches: `num_workers * prefetch_factor <= lag`. Feedback on a batch
    that comes too late is refused with an error; feedback that never comes is done without.

    Args:
        labels: The label of every item of the dataset, in its order: integers or strings, in a
            list, an array or a tensor. Class ids are the positions of the labels in ascending
            order.
        sampler: Chooses the classes; `n_classes` must be the number of different labels.
        n_shot: Support images a class.
        n_query: Query images a class.
        n_tasks: Tasks an epoch, a multiple of `tasks_per_batch`.
        tasks_per_batch: Tasks a batch; the sampler learns from them together.
        lag: Batches drawn after a batch before the sampler learns from it; 0 is the paper's
            algorithm, and allows no workers.
        seed: Decides which images stand for a class. Which classes come is up to the sampler.

    Raises:
        ArgumentError: If an argument cannot be used.
        DataError: If a class has fewer than `n_shot + n_query` images.
    """

    def __init__(
        self,
        labels: Sequence[int] | Sequence[str] | np.ndarray | Tensor,
        sampler: TaskSampler,
        n_shot: int,
        n_query: int,
        n_tasks: int,
        *,
        tasks_per_batch: int = 1,
        lag: int = 16,
        seed: int = 0,
    ) -> None:
        # Without an argument: torch removed the only one it took.
        super().__init__()
        self.n_shot = check_integer("n_shot", n_shot, low=1)
        self.n_query = check_integer("n_query", n_query, low=1)
        self.n_tasks = check_integer("n_tasks", n_tasks, low=1)
        self.tasks_per_batch = check_integer("tasks_per_batch", tasks_per_batch, low=1)
        if self.n_tasks % self.tasks_per_batch:
            raise ArgumentError(
                f"n_tasks must be a multiple of tasks_per_batch, {tasks_per_batch}, so that all "
                f"batches are equal; got {n_tasks}."
            )
        self.seed = check_seed("seed", seed)
        self._index = index_labels(labels)
        _check_sampler(sampler, len(self.classes))
        self._index.check_counts(self.n_shot + self.n_query)
        lag = check_integer("lag", lag, low=0)
        self._pending = PendingTasks(sampler, tasks_per_batch=self.tasks_per_batch, lag=lag)
        self._epoch_start = 0
        self._resumed = False
        self._labels = torch.arange(self.n_way).repeat_interleave(self.n_query)

    @property
    def sampler(self) -> TaskSampler:
        """What chooses the classes."""
        return self._pending.sampler

    @property
    def n_way(self) -> int:
        """Classes a task."""
        return self.sampler.n_way

    @property
    def classes(self) -> tuple[int | str, ...]:
        """The labels by class id."""
        return self._index.classes

    @property
    def report(self) -> FeedbackReport:
        """What became of the tasks so far, and how stale the sampler is."""
        return self._pending.report

    def __len__(self) -> int:
        """Return the number of batches an epoch."""
        return self.n_tasks // self.tasks_per_batch

    def __iter__(self) -> Iterator[list[int]]:
        # A generator: a DataLoader with workers asks for an iterator twice and uses the second.
        again, n_left = self._begin_epoch()
        for batch in again:
            yield self._indices(batch)
        for _ in range(n_left):
            yield self.draw()

    def _begin_epoch(self) -> tuple[list[DrawnBatch], int]:
        """Return the batches to hand out again, and how many new ones the epoch has after them."""
        n_done, pending = self._n_done(), self._pending
        again = pending.since(self._epoch_start + n_done)
        if not self._resumed:
            # An epoch that was left early: what workers had read ahead comes first in the next, as
            # it does without workers. Where no feedback comes, nobody knows what was read.
            again = again if n_done > 0 else []
            self._epoch_start, n_done = pending.n_batches - len(again), 0
        self._resumed = False
        return again, len(self) - n_done - len(again)

    def _n_done(self) -> int:
        """Return how many batches of the epoch are done: up to the last one with feedback."""
        return max(self._pending.last_answered + 1 - self._epoch_start, 0)

    def draw(self) -> TaskIndices:
        """Draw the next batch, for a loop without a DataLoader."""
        return self._indices(self._pending.draw())

    def wrap(self, dataset: Dataset[Any], key: int | str | None = 0) -> EpisodeDataset:
        """Return the dataset in a form whose batches are `EpisodeBatch`es.

        Args:
            dataset: A map-style dataset, in the order of `labels`.
            key: Where in an item the image is, a position or a name; None if it is the item.

        Raises:
            ArgumentError: If it is no map-style dataset, or the key neither position nor name.
            DataError: If the dataset has another number of items than there are labels.
        """
        if isinstance(key, bool) or not isinstance(key, int | str | None):
            raise ArgumentError(f"key must be an integer, a string or None; got {shown(key)}.")
        n_items, n_labels = _count_items(dataset), len(self._index.images)
        if n_items != n_labels:
            raise DataError(
                f"the dataset has {n_items} items, but {n_labels} labels were given. Pass the "
                "labels of this very dataset, in its order."
            )
        return EpisodeDataset(dataset, key, self.n_way, self.n_shot, self.n_query)

    def feedback(
        self, task_ids: int | Sequence[int] | Tensor, logits: Tensor, labels: Tensor | None = None
    ) -> None:
        """Tell how the queries of some tasks were classified, in any order of tasks, once each.

        Args:
            task_ids: Which tasks, as they came with the batch: `tasks`, or one number.
            logits: `tasks x queries x way`, or `queries x way` of one task; never differentiated.
            labels: The right answers in the order of the logits, `tasks x queries` or `queries`,
                where that is not the order of the batch.

        Raises:
            ArgumentError: If a task is unknown, was answered before or is past its turn, or the
                logits are no finite numbers of that shape; nothing is then kept.
        """
        ids = _as_ids(task_ids)
        device = getattr(self.sampler, "device", torch.device("cpu"))
        logits = self._check_logits(logits, len(ids)).to(device)
        probabilities = logits.softmax(-1)
        # On an accelerator the sampler looks itself, without waiting.
        if device.type == "cpu" and not math.isfinite(float(probabilities.sum())):
            raise ArgumentError(f"the logits of tasks {ids} must be finite; got NaN or infinity.")
        if device.type == "cpu" and _are_probabilities(logits):
            raise ArgumentError(
                f"the logits of tasks {ids} are probabilities: every row is at least 0 and sums to "
                "1. Give what goes into the softmax."
            )
        self._pending.answer(ids, probabilities, self._check_labels(labels, len(ids)))

    def find(self, classes: Sequence[int] | Sequence[str] | Tensor) -> int:
        """Return the id of the oldest unanswered task of these classes, in this order.

        For loops whose batches carry no task ids, because the dataset is not wrapped.

        Args:
            classes: `way` labels of the dataset, in the order of the task.

        Raises:
            ArgumentError: If no such task waits for feedback.
        """
        try:
            wanted = classes.tolist() if isinstance(classes, Tensor) else list(classes)
            class_ids = [self.classes.index(label) for label in wanted]
        except Exception:  # no list at all, or one with labels that are not there
            wanted, class_ids = [shown(classes)], []
        task_id = self._pending.find(class_ids)
        if task_id is None:
            raise ArgumentError(
                f"no task of the classes {wanted}, in this order, waits for feedback: it came "
                f"before, or too late (lag={self.report.lag} batches), or the order is another."
            )
        return task_id

    def flush(self) -> None:
        """Let the sampler learn now from all feedback that waits for its turn.

        To be called when training is over, if the last `lag` batches are to be in the potentials.
        Tasks without feedback are given up.
        """
        self._pending.flush()

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on with the same tasks and images.

        A batch counts as done when feedback on it, or on a later one, has come. What workers had
        read ahead is handed out again, and the epoch goes on where it was.
        """
        return {
            "settings": self._settings(),
            "epoch_start": self._epoch_start,
            "pending": self._pending.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken; begin a new iteration of the loader then.

        Raises:
            StateError: If it is no such state, or of other labels or settings; everything is then
                as it was.
        """
        settings = state_dict.get("settings") if isinstance(state_dict, Mapping) else None
        if not isinstance(settings, Mapping):
            raise StateError(_NO_STATE)
        for name, expected in self._settings().items():
            found = settings.get(name)
            if type(found) is not type(expected) or found != expected:
                raise StateError(
                    f"the state was saved with {name} {shown(found)}, this has {expected!r}. Build "
                    f"the EpisodeBatchSampler with the same {name}."
                )
        epoch_start, pending = state_dict.get("epoch_start"), state_dict.get("pending")
        if type(epoch_start) is not int or not isinstance(pending, Mapping):
            raise StateError(_NO_STATE)
        n_batches = pending.get("n_batches")
        if type(n_batches) is not int or not 0 <= epoch_start <= n_batches:
            raise StateError(
                f"the state is damaged: its epoch begins at batch {epoch_start} of "
                f"{shown(n_batches)}."
            )
        self._pending.load_state_dict(pending)
        self._epoch_start = epoch_start
        self._resumed = self._n_done() < len(self)

    def _settings(self) -> dict[str, Any]:
        names = ("n_way", "n_shot", "n_query", "tasks_per_batch", "seed")
        return {**{name: getattr(self, name) for name in names}, "labels": self._index.digest}

    def _indices(self, batch: DrawnBatch) -> TaskIndices:
        """Choose the images of a batch, which depend on the seed, its number and classes alone."""
        # One for each batch: a generator that is kept cannot travel to a spawned process.
        seed = derive_seed(self.seed, f"images of batch {batch.number}")
        generator = torch.Generator().manual_seed(seed)
        chosen = self._index.choose(batch.class_ids, self.n_shot + self.n_query, generator)
        indices = TaskIndices(chosen.flatten().tolist())
        first = batch.number * self.tasks_per_batch
        indices.task_ids = list(range(first, first + self.tasks_per_batch))
        indices.class_ids = batch.class_ids.tolist()
        return indices

    def _check_logits(self, logits: Tensor, n_tasks: int) -> Tensor:
        """Return the logits, `tasks x queries x way`, in single precision at least."""
        shape = (n_tasks, self.n_way * self.n_query, self.n_way)
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            raise ArgumentError(f"logits must be a floating-point tensor; got {shown(logits)}.")
        if n_tasks == 1 and logits.ndim == 2:
            logits = logits.unsqueeze(0)
        if logits.shape != shape:
            raise ArgumentError(
                f"logits must be tasks x queries x way, {shape} for {n_tasks} tasks with "
                f"{self.n_query} queries a class; got {tuple(logits.shape)}."
            )
        return logits.detach().to(torch.promote_types(logits.dtype, torch.float32))

    def _check_labels(self, labels: Tensor | None, n_tasks: int) -> Tensor:
        """Return the labels of the queries, `tasks x queries`."""
        if labels is None:
            return self._labels.expand(n_tasks, -1)
        n_queries = len(self._labels)
        if (
            not isinstance(labels, Tensor)
            or labels.shape not in ((n_tasks, n_queries), (n_queries,))
            or labels.dtype != torch.int64
            or labels.layout is not torch.strided
        ):
            came = shown(labels)
            if isinstance(labels, Tensor):
                came = f"{labels.dtype} of shape {tuple(labels.shape)}, {labels.layout}"
            raise ArgumentError(
                f"labels must be a dense int64 tensor, tasks x queries, {(n_tasks, n_queries)}, or "
                f"queries; got {came}."
            )
        rows = labels.cpu().expand(n_tasks, -1).clone()
        if any(set(row) != set(range(self.n_way)) for row in rows.tolist()):
            raise ArgumentError(
                f"labels must be positions in the task, 0 to {self.n_way - 1}, with at least one "
                "query of each class."
            )
        return rows

    def __repr__(self) -> str:
        return (
            f"EpisodeBatchSampler({len(self.classes)} classes, n_way={self.n_way}, "
            f"n_shot={self.n_shot}, n_query={self.n_query}, n_tasks={self.n_tasks}, "
            f"tasks_per_batch={self.tasks_per_batch}, lag={self.report.lag}, seed={self.seed})"
        )


def _are_probabilities(logits: Tensor) -> bool:
    sums = logits.sum(-1)
    return bool((logits >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)


def _as_ids(task_ids: int | Sequence[int] | Tensor) -> list[int]:
    if isinstance(task_ids, int):
        return [task_ids]
    try:
        ids = torch.as_tensor(task_ids)
    except Exception:  # torch refuses in many ways what is no list of numbers
        ids = torch.empty(0)
    is_whole = not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    if ids.ndim > 1 or not is_whole or ids.numel() == 0:
        raise ArgumentError(
            f"task_ids must be one task id, or some in a row, as they came with a batch; got "
            f"{shown(task_ids)}."
        )
    flat: list[int] = ids.flatten().tolist()
    return flat


def _count_items(dataset: object) -> int:
    try:
        return len(dataset)  # type: ignore[arg-type]
    except Exception:  # whatever the dataset's own code raises
        raise ArgumentError(
            f"the dataset must be a map-style dataset, which has a length; got {shown(dataset)}."
        ) from None


def _check_sampler(sampler: object, n_labels: int) -> None:
    members = ("n_classes", "n_way", "sample", "update", "state_dict", "load_state_dict")
    check_members("sampler", sampler, *members)
    n_classes: int = sampler.n_classes  # type: ignore[attr-defined]
    if n_classes != n_labels:
        raise ArgumentError(
            f"the sampler was made for {n_classes} classes, but there are {n_labels} different "
            f"labels. Build it with n_classes={n_labels}."
        )
