"""Adaptive tasks for a PyTorch DataLoader, over any map-style dataset.

    episodes = EpisodeBatchSampler(labels, sampler, n_shot=1, n_query=15, n_tasks=1000)
    for batch in DataLoader(episodes.wrap(dataset), batch_sampler=episodes, num_workers=4):
        query_logits = ...                                    # tasks x queries x way
        episodes.feedback(batch.task_ids, query_logits)

Everything random happens here, in the process of the loop: workers are told which images to load.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, distributed
from torch.utils.data import Dataset
from torch.utils.data import Sampler as TorchSampler

from adaptask.arguments import (
    check_integer,
    check_members,
    check_seed,
    format_names,
    format_value,
)
from adaptask.data.images import label_array
from adaptask.data.subsets import ordered_subsets
from adaptask.errors import ArgumentError, DataError, StateError
from adaptask.integrations.pending import DrawnBatch, FeedbackReport, PendingTasks
from adaptask.interfaces import TaskSampler
from adaptask.randomness import derive_seed

_NO_STATE = "this is no state of an EpisodeBatchSampler, or it is damaged."

__all__ = ["EpisodeBatch", "EpisodeBatchSampler", "EpisodeDataset", "FeedbackReport", "TaskIndices"]


class EpisodeBatch(NamedTuple):
    """A batch of tasks as it comes out of a DataLoader; learners take it as `Episodes`.

    The images of a class are together, classes in the order of `class_ids`.
    """

    class_ids: Tensor
    """Classes of each task, `tasks x way` int64: positions in `EpisodeBatchSampler.classes`."""
    support_images: Tensor
    """`tasks x (way * shot) x ...`."""
    support_labels: Tensor
    """`tasks x (way * shot)` int64, positions in the task, 0 to way - 1."""
    query_images: Tensor
    """`tasks x (way * query) x ...`."""
    query_labels: Tensor
    """`tasks x (way * query)` int64, positions in the task, 0 to way - 1."""
    task_ids: Tensor
    """`tasks` int64, for `EpisodeBatchSampler.feedback`."""


class TaskIndices(list[int]):
    """Positions in a dataset, with the tasks that they are for."""

    task_ids: list[int]
    class_ids: list[list[int]]
    drawn_for: dict[str, Any]
    """What the tasks are made of: classes, images and a hash of the labels."""


class EpisodeDataset(Dataset[EpisodeBatch]):
    """A dataset whose items a DataLoader stacks to `EpisodeBatch`es; see `wrap`."""

    def __init__(
        self,
        dataset: Dataset[Any],
        key: int | str | None,
        *,
        n_way: int,
        n_shot: int,
        n_query: int,
        labels: str,
    ) -> None:
        self.dataset, self.key = dataset, key
        self.n_shot, self.n_query = n_shot, n_query
        self._made_for = {"n_way": n_way, "n_shot": n_shot, "n_query": n_query, "labels": labels}
        self._support_labels, self._query_labels = (
            torch.arange(n_way).repeat_interleave(n) for n in (n_shot, n_query)
        )

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: list[int]) -> list[EpisodeBatch]:
        """Return the tasks of a batch one by one; the DataLoader stacks them."""
        if not isinstance(indices, TaskIndices):
            raise ArgumentError(
                "a wrapped dataset needs the EpisodeBatchSampler that wrapped it: "
                "DataLoader(episodes.wrap(dataset), batch_sampler=episodes)."
            )
        self._check_made_for(indices.drawn_for)
        fetch = getattr(self.dataset, "__getitems__", None)
        items = fetch(list(indices)) if fetch else [self.dataset[index] for index in indices]
        images = [_as_tensor(self._find_image(item)) for item in items]
        size = len(images) // len(indices.task_ids)
        parts = (images[start : start + size] for start in range(0, len(images), size))
        tasks = zip(indices.class_ids, indices.task_ids, parts, strict=True)
        return [self._task(*task) for task in tasks]

    def _check_made_for(self, drawn_for: dict[str, Any]) -> None:
        """Refuse tasks of another EpisodeBatchSampler: images would be cut into wrong tasks."""
        differing = [name for name in drawn_for if drawn_for[name] != self._made_for[name]]
        if differing:
            sizes = (f"{name} {self._made_for[name]}, not {drawn_for[name]}" for name in differing)
            found = "other labels" if "labels" in differing else ", ".join(sizes)
            raise ArgumentError(
                "the dataset was wrapped by another EpisodeBatchSampler than the one that draws: "
                f"by one with {found}. Give the DataLoader both from one: "
                "DataLoader(episodes.wrap(dataset), batch_sampler=episodes)."
            )

    def _find_image(self, item: Any) -> Any:
        try:
            return item if self.key is None else item[self.key]
        except (KeyError, IndexError, TypeError) as error:
            got = format_value(list(item)) if isinstance(item, Mapping) else type(item).__name__
            raise ArgumentError(
                f"an item of the dataset must have the image at {self.key!r}; got "
                f"{'the keys ' if isinstance(item, Mapping) else 'a '}{got}. Say where it is, such "
                "as wrap(dataset, key='image'); key=None if the item is the image."
            ) from error

    def _task(self, class_ids: list[int], task_id: int, images: list[Tensor]) -> EpisodeBatch:
        each = self.n_shot + self.n_query
        support = [image for i, image in enumerate(images) if i % each < self.n_shot]
        query = [image for i, image in enumerate(images) if i % each >= self.n_shot]
        return EpisodeBatch(
            class_ids=torch.tensor(class_ids),
            support_images=torch.stack(support),
            support_labels=self._support_labels,
            query_images=torch.stack(query),
            query_labels=self._query_labels,
            task_ids=torch.tensor(task_id),
        )


class EpisodeBatchSampler(TorchSampler[list[int]]):
    """The `batch_sampler` of a DataLoader whose batches are tasks that a sampler chooses.

    A batch is a list of positions in the dataset: task by task, class by class, support images
    before queries. `wrap(dataset)` makes an `EpisodeBatch` of them.

    Workers read ahead, so that feedback comes when later tasks have already been drawn. The
    sampler learns from a batch when exactly `lag` further ones have been drawn. So the same seed
    gives the same tasks with any number of workers, as long as they read no further ahead than
    `lag` batches: `num_workers * prefetch_factor <= lag`. Feedback that comes too late is refused
    with an error. Batches without feedback are skipped.

    It works in one process: with `DistributedDataParallel` each has tasks of its own, the same ones
    if the seeds are equal, and learns from them alone. A warning says so.

    Args:
        labels: The label of every item of the dataset, in its order: integers or strings, in a
            list, an array or a tensor. Class ids are the positions of the labels in ascending
            order.
        sampler: Chooses the classes; `n_classes` must be the number of different labels.
        n_shot: Support images per class.
        n_query: Query images per class.
        n_tasks: Tasks per epoch, a multiple of `tasks_per_batch`.
        tasks_per_batch: Tasks per batch; the sampler learns from them together.
        lag: Batches drawn after a batch before the sampler learns from it; 0 is the paper's
            algorithm, and allows no workers.
        seed: Decides which images are drawn of a class. The sampler has its own seed.

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
        members = ("n_classes", "n_way", "sample", "update", "state_dict", "load_state_dict")
        check_members("sampler", sampler, *members)
        if hasattr(sampler, "choose"):
            raise ArgumentError(
                f"{type(sampler).__name__} chooses tasks by the losses of candidates, which a "
                "DataLoader cannot score. Train with adaptask.Trainer, or call choose() yourself."
            )
        self._pending = PendingTasks(
            sampler,
            tasks_per_batch=self.tasks_per_batch,
            lag=check_integer("lag", lag, low=0),
        )
        if self.sampler.n_classes != len(self.classes):
            raise ArgumentError(
                f"the sampler was made for {self.sampler.n_classes} classes, but there are "
                f"{len(self.classes)} different labels. Build it with "
                f"n_classes={len(self.classes)}."
            )
        self._index.check_counts(self.n_shot + self.n_query)
        _warn_of_several_processes()
        if note := getattr(sampler, "note", None):
            warnings.warn(note, stacklevel=2)
        self._epoch_start = 0
        self._resumed = False
        self._n_loads = 0
        self._labels = torch.arange(self.n_way).repeat_interleave(self.n_query)

    @property
    def sampler(self) -> Any:
        """What chooses the classes."""
        return self._pending.sampler

    @property
    def n_way(self) -> int:
        """Classes per task."""
        return int(self.sampler.n_way)

    @property
    def classes(self) -> tuple[int | str, ...]:
        """The labels by class id."""
        return self._index.classes

    @property
    def report(self) -> FeedbackReport:
        """What became of the tasks so far, and how stale the sampler is."""
        return self._pending.report

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return self.n_tasks // self.tasks_per_batch

    def __iter__(self) -> Iterator[list[int]]:
        # A generator: a DataLoader with workers asks for an iterator twice and uses the second.
        again, n_left = self._begin_epoch()
        n_loads = self._n_loads
        for number in range(len(again) + n_left):
            if self._n_loads != n_loads:
                raise StateError(
                    "a state was loaded while a loop over the tasks was under way. Leave the loop, "
                    "and start a new one: for batch in loader."
                )
            yield self._indices(again[number]) if number < len(again) else self.draw()

    def _begin_epoch(self) -> tuple[list[DrawnBatch], int]:
        """Return the batches to hand out again, and how many new ones the epoch has after them."""
        n_done, pending = self._n_done(), self._pending
        again = pending.since(self._epoch_start + n_done)
        if not self._resumed:
            # An epoch that was left early: what workers had read ahead comes first in the next, as
            # it does without workers. Without feedback it is unknown what was read.
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
            ArgumentError: If it is not a map-style dataset.
            DataError: If the number of items is not the number of labels.
        """
        if not hasattr(dataset, "__len__"):
            raise ArgumentError(
                "the dataset must be a map-style dataset, which has a length; got "
                f"{type(dataset).__name__}."
            )
        n_items, n_labels = len(dataset), len(self._index.images)
        if n_items != n_labels:
            raise DataError(
                f"the dataset has {n_items} items, but {n_labels} labels were given. Pass the "
                "labels of this very dataset, in its order."
            )
        return EpisodeDataset(dataset, key, **self._task_settings())

    def feedback(
        self,
        task_ids: int | Sequence[int] | Tensor,
        logits: Tensor,
        labels: Tensor | None = None,
        *,
        class_features: Tensor | None = None,
    ) -> None:
        """Give the outcome of some tasks, in any order of tasks, once for each.

        Args:
            task_ids: Which tasks, as they came with the batch: `tasks`, or one number.
            logits: `tasks x queries x way`, or `queries x way` of one task; never differentiated.
            labels: The right answers in the order of the logits, `tasks x queries` or `queries`;
                needed only if that is not the order of the batch.
            class_features: The mean feature of every class of a task, `tasks x way x d`, or
                `way x d` of one task; never differentiated. Needed if the sampler
                `uses_class_features`; otherwise ignored.

        Raises:
            ArgumentError: If a task is unknown, was answered before or is past its turn, or logits
                or features are not finite or have another shape; nothing is then kept.
        """
        ids = _as_ids(task_ids)
        device = getattr(self.sampler, "device", torch.device("cpu"))
        logits = self._check_logits(logits, len(ids)).to(device)
        probabilities = logits.softmax(-1)
        # On an accelerator the sampler checks them itself, without waiting.
        if device.type == "cpu" and not math.isfinite(float(probabilities.sum())):
            raise ArgumentError(f"the logits of tasks {ids} must be finite; got NaN or infinity.")
        if device.type == "cpu" and _are_probabilities(logits):
            raise ArgumentError(
                f"the logits of tasks {ids} are probabilities: every row is at least 0 and sums to "
                "1. Give what goes into the softmax."
            )
        given = [probabilities, self._check_labels(labels, len(ids))]
        if getattr(self.sampler, "uses_class_features", False):
            features = self._check_features(class_features, len(ids)).to(device)
            if device.type == "cpu" and not features.isfinite().all():
                raise ArgumentError(f"class_features of tasks {ids} must be finite.")
            given.append(features)
        self._pending.answer(ids, *given)

    def find(self, classes: Sequence[int] | Sequence[str] | Tensor) -> int:
        """Return the id of the oldest unanswered task of these classes, in this order.

        For loops whose batches have no task ids, because the dataset is not wrapped.

        Args:
            classes: `way` labels of the dataset, in the order of the task.

        Raises:
            ArgumentError: If no such task waits for feedback.
        """
        wanted = classes.tolist() if isinstance(classes, Tensor) else list(classes)
        known = all(label in self.classes for label in wanted)
        class_ids = [self.classes.index(label) for label in wanted] if known else []
        task_id = self._pending.find(class_ids)
        if task_id is None:
            raise ArgumentError(
                f"no task of the classes {wanted}, in this order, waits for feedback: it came "
                f"before, or comes too late (lag={self.report.lag} batches), or the order differs."
            )
        return task_id

    def flush(self) -> None:
        """Let the sampler learn now from all feedback that waits for its turn.

        Call it when training is over, if the potentials are to include the last `lag` batches.
        Tasks without feedback are skipped.
        """
        self._pending.flush()

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue with the same tasks and images.

        A batch counts as done when feedback on it, or on a later one, has come. What workers had
        read ahead comes again, and the epoch continues where it was.
        """
        return {
            "settings": self._settings(),
            "epoch_start": self._epoch_start,
            "pending": self._pending.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state; start a new iteration of the loader after it.

        Raises:
            StateError: If it is not such a state, or has other labels or settings; nothing is then
                changed.
        """
        settings = state_dict.get("settings") if isinstance(state_dict, Mapping) else None
        if not isinstance(settings, Mapping):
            raise StateError(_NO_STATE)
        for name, expected in self._settings().items():
            found = settings.get(name)
            if found != expected:
                raise StateError(
                    f"the state was saved with {name} {format_value(found)}, this has "
                    f"{expected!r}. Build the EpisodeBatchSampler with the same {name}."
                )
        epoch_start, pending = state_dict.get("epoch_start"), state_dict.get("pending")
        if type(epoch_start) is not int or not isinstance(pending, Mapping):
            raise StateError(_NO_STATE)
        self._pending.load_state_dict(pending)
        self._epoch_start = epoch_start
        self._n_loads += 1
        self._resumed = self._n_done() < len(self)

    def _settings(self) -> dict[str, Any]:
        return {**self._task_settings(), "tasks_per_batch": self.tasks_per_batch, "seed": self.seed}

    def _task_settings(self) -> dict[str, Any]:
        names = ("n_way", "n_shot", "n_query")
        return {**{name: getattr(self, name) for name in names}, "labels": self._index.digest}

    def _indices(self, batch: DrawnBatch) -> TaskIndices:
        """Choose the images of a batch, which depend only on the seed, its number and classes."""
        # A new generator for each batch: one that is kept cannot be sent to a spawned process.
        seed = derive_seed(self.seed, f"images of batch {batch.number}")
        generator = torch.Generator().manual_seed(seed)
        chosen = self._index.choose(batch.class_ids, self.n_shot + self.n_query, generator)
        indices = TaskIndices(chosen.flatten().tolist())
        first = batch.number * self.tasks_per_batch
        indices.task_ids = list(range(first, first + self.tasks_per_batch))
        indices.class_ids = batch.class_ids.tolist()
        indices.drawn_for = self._task_settings()
        return indices

    def _check_logits(self, logits: Tensor, n_tasks: int) -> Tensor:
        """Return the logits, `tasks x queries x way`, in single precision at least."""
        shape = (n_tasks, self.n_way * self.n_query, self.n_way)
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            raise ArgumentError(
                f"logits must be a floating-point tensor; got {format_value(logits)}."
            )
        if n_tasks == 1 and logits.ndim == 2:
            logits = logits.unsqueeze(0)
        if logits.shape != shape:
            raise ArgumentError(
                f"logits must be tasks x queries x way, {shape} for {n_tasks} tasks with "
                f"{self.n_query} queries per class; got {tuple(logits.shape)}."
            )
        return logits.detach().to(torch.promote_types(logits.dtype, torch.float32))

    def _check_features(self, features: Tensor | None, n_tasks: int) -> Tensor:
        """Return a copy of the class features, `tasks x way x d`, in single precision at least."""
        if not isinstance(features, Tensor) or not features.is_floating_point():
            raise ArgumentError(
                f"{type(self.sampler).__name__} learns from class features: give feedback() "
                "class_features, the mean feature of every class of a task, a floating-point "
                f"tensor; got {format_value(features)}."
            )
        if n_tasks == 1 and features.ndim == 2:
            features = features.unsqueeze(0)
        size = getattr(self.sampler, "n_features", None) or features.shape[-1]
        shape = (n_tasks, self.n_way, size)
        if features.shape != shape:
            raise ArgumentError(
                f"class_features must be tasks x way x features, {shape} for {n_tasks} tasks; got "
                f"{tuple(features.shape)}."
            )
        # A copy: it waits, and the loop may write to the tensor in the meantime.
        return features.detach().to(torch.promote_types(features.dtype, torch.float32), copy=True)

    def _check_labels(self, labels: Tensor | None, n_tasks: int) -> Tensor:
        """Return the labels of the queries, `tasks x queries`."""
        if labels is None:
            return self._labels.expand(n_tasks, -1)
        n_queries = len(self._labels)
        shapes = ((n_tasks, n_queries), (n_queries,))
        is_tensor = isinstance(labels, Tensor)
        if not is_tensor or labels.shape not in shapes or labels.dtype != torch.int64:
            got = f"a {type(labels).__name__}"
            if is_tensor:
                got = f"{labels.dtype} of shape {tuple(labels.shape)}"
            raise ArgumentError(
                f"labels must be an int64 tensor, tasks x queries, {(n_tasks, n_queries)}, or "
                f"queries; got {got}."
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


def _warn_of_several_processes() -> None:
    if not distributed.is_available() or not distributed.is_initialized():
        return
    if (size := distributed.get_world_size()) > 1:
        warnings.warn(
            f"each of the {size} processes has an EpisodeBatchSampler of its own: with the same "
            "seed all train on the same tasks, and none learns from those of the others. "
            "docs/integrations.md, 'Several processes', has a loop that shares them.",
            stacklevel=3,
        )


def _are_probabilities(logits: Tensor) -> bool:
    sums = logits.sum(-1)
    return bool((logits >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)


def _as_ids(task_ids: int | Sequence[int] | Tensor) -> list[int]:
    ids = torch.as_tensor(task_ids)
    if ids.ndim > 1 or ids.is_floating_point() or ids.numel() == 0:
        raise ArgumentError(
            f"task_ids must be one task id or a list of them, as they came with a batch; got "
            f"{format_value(task_ids)}."
        )
    flat: list[int] = ids.flatten().tolist()
    return flat


def _as_tensor(image: Any) -> Tensor:
    if isinstance(image, Tensor):
        return image
    if not isinstance(image, np.ndarray):
        raise ArgumentError(
            "the images of a dataset must be tensors or arrays, to be stacked to a batch; got "
            f"{type(image).__name__}. Let the dataset transform them, or say where in an item they "
            "are: wrap(dataset, key=...)."
        )
    return torch.from_numpy(image)


@dataclass(frozen=True)
class ClassIndex:
    """Which images of a dataset belong to which class; made by `index_labels`."""

    classes: tuple[int | str, ...]
    """The labels in ascending order: the class id of a label is its position here."""
    images: Tensor
    """Positions in the dataset, those of a class together, classes in order, `images` int64."""
    starts: Tensor
    """Where each class begins in `images`, `classes` int64."""
    counts: Tensor
    """How many images each class has, `classes` int64."""
    digest: str
    """A hash that differs between the labels of different datasets."""

    def choose(self, class_ids: Tensor, n_images: int, generator: torch.Generator) -> Tensor:
        """Choose distinct images of each class, every ordered choice equally likely.

        Args:
            class_ids: `tasks x way` int64, on the CPU.
            n_images: How many of each class.
            generator: Source of randomness, on the CPU.

        Returns:
            Positions in the dataset, `tasks x way x images` int64.
        """
        flat = class_ids.flatten()
        sizes = self.counts.index_select(0, flat)
        offsets = ordered_subsets(sizes, n_images, largest=len(self.images), generator=generator)
        positions = offsets + self.starts.index_select(0, flat)[:, None]
        return self.images.take(positions).view(*class_ids.shape, n_images)

    def check_counts(self, n_images: int) -> None:
        """Check that every class has at least that many images.

        Raises:
            DataError: If some have fewer; the message names them.
        """
        short = (self.counts < n_images).nonzero().flatten().tolist()
        if short:
            named = format_names([f"{self.classes[c]!r} ({int(self.counts[c])})" for c in short])
            raise DataError(
                f"every class needs n_shot + n_query = {n_images} images, since they are drawn "
                f"without replacement; these have fewer: {named}. Ask for fewer images, or "
                "leave out those classes."
            )


def index_labels(labels: Sequence[int] | Sequence[str] | np.ndarray | Tensor) -> ClassIndex:
    """Sort a dataset by class.

    Args:
        labels: The label of every image, in the order of the dataset: integers or strings, in a
            list, an array or a tensor. Class ids are the positions of the labels in ascending
            order; labels 0 to n - 1 are their own class ids.

    Raises:
        ArgumentError: If they are neither.
    """
    if isinstance(labels, Dataset):  # an array of it would load every item
        raise ArgumentError(
            f"labels must be those of the dataset, not the dataset; got a {type(labels).__name__}. "
            "Many datasets have them as dataset.targets."
        )
    try:
        names = label_array(labels.numpy(force=True) if isinstance(labels, Tensor) else labels)
    except ValueError as error:
        raise ArgumentError(
            "labels must be one integer or string for every item of the dataset; got rows of "
            f"different lengths: {format_value(labels)}."
        ) from error
    if names.dtype == object:
        raise ArgumentError("labels must be all integers or all strings; got both, or others.")
    if names.ndim != 1 or names.size == 0 or names.dtype.kind not in "iuU":
        raise ArgumentError(
            "labels must be one integer or string for every item of the dataset; got "
            f"{names.dtype} of shape {names.shape}."
        )
    classes, class_ids = np.unique(names, return_inverse=True)
    counts = torch.from_numpy(np.bincount(class_ids))
    # Stable, so that images of a class stay in the order of the dataset on every platform.
    images = torch.from_numpy(np.argsort(class_ids, kind="stable"))
    identity = "\0".join(map(str, classes.tolist())).encode() + class_ids.astype("<i8").tobytes()
    return ClassIndex(
        classes=tuple(classes.tolist()),
        images=images,
        starts=counts.cumsum(0) - counts,
        counts=counts,
        digest=hashlib.sha256(identity).hexdigest(),
    )
