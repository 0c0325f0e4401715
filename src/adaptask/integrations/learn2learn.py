"""Adaptive tasks for a `Taskset` of learn2learn.

    tasks = AdaptiveTasks(dataset, sampler, n_shot=1, n_query=1)
    taskset = l2l.data.Taskset(dataset, task_transforms=[tasks])
    images, labels = taskset.sample()
    predictions = ...                                      # of the queries, queries x way
    tasks.feedback(predictions, query_labels)

Nothing of learn2learn is imported: a task transform is any function that describes a task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from torch import Tensor
from torch.utils.data import get_worker_info

from adaptask.errors import ArgumentError
from adaptask.integrations.torch import EpisodeBatchSampler
from adaptask.interfaces import TaskSampler


class IndexedDataset(Protocol):
    """What learn2learn calls a `MetaDataset`: items are an image and a label, and maybe more."""

    indices_to_labels: Mapping[int, Any]

    def __getitem__(self, index: int, /) -> Any: ...

    def __len__(self) -> int: ...


@dataclass
class ItemDescription:
    """One item of a task as learn2learn describes it: its index, and what is done with it."""

    index: int
    transforms: list[Callable[[Any], Any]] = field(default_factory=list)


class AdaptiveTasks:
    """The task transform that replaces `NWays`, `KShots`, `LoadData` and `RemapLabels`.

    The items of a task come class by class, `n_shot + n_query` of each, with labels 0 to way - 1 in
    the order in which the sampler drew the classes. The tasks of a `Taskset` must be new every time
    (`num_tasks=-1`, its default), and be drawn in the process of the loop.

    Args:
        dataset: A `MetaDataset`.
        sampler: Chooses the classes; `n_classes` must be the number of labels in the dataset.
        n_shot: Support images per class.
        n_query: Query images per class.
        tasks_per_batch: Tasks per meta-batch; the sampler learns from them together.
        lag: Meta-batches drawn after one before the sampler learns from it.
        seed: Decides which images are drawn of a class.

    Raises:
        ArgumentError: If an argument cannot be used.
        DataError: If a class has fewer than `n_shot + n_query` images.
    """

    def __init__(
        self,
        dataset: IndexedDataset,
        sampler: TaskSampler,
        n_shot: int,
        n_query: int,
        *,
        tasks_per_batch: int = 1,
        lag: int = 0,
        seed: int = 0,
    ) -> None:
        if not hasattr(dataset, "indices_to_labels"):
            raise ArgumentError(
                f"the dataset must be a MetaDataset of learn2learn; got {type(dataset).__name__}. "
                "Wrap it: l2l.data.MetaDataset(dataset)."
            )
        self.dataset = dataset
        self.episodes = EpisodeBatchSampler(
            [dataset.indices_to_labels[i] for i in range(len(dataset))],
            sampler,
            n_shot,
            n_query,
            n_tasks=tasks_per_batch,
            tasks_per_batch=tasks_per_batch,
            lag=lag,
            seed=seed,
        )
        self.task_id: int | None = None
        """The task that was loaded last."""
        self._left: list[tuple[int, list[int]]] = []

    def __call__(self, task_description: Any = None) -> list[ItemDescription]:
        """Describe a new task.

        Args:
            task_description: None, which learn2learn gives to the first transform.

        Raises:
            ArgumentError: If another transform came before, or this is a worker of a DataLoader.
        """
        if task_description is not None:
            raise ArgumentError("AdaptiveTasks chooses the items: make it the first transform.")
        if get_worker_info() is not None:
            raise ArgumentError(
                "AdaptiveTasks draws in the process of the loop; a worker of a DataLoader has a "
                "copy that gets no feedback. Use num_workers=0, or EpisodeBatchSampler with a "
                "DataLoader over the dataset."
            )
        if not self._left:
            drawn = self.episodes.draw()
            size = len(drawn) // len(drawn.task_ids)
            self._left = [(task, drawn[i * size :][:size]) for i, task in enumerate(drawn.task_ids)]
        task_id, indices = self._left.pop(0)
        each = self.episodes.n_shot + self.episodes.n_query
        return [
            ItemDescription(index, [partial(self._load, task_id=task_id, label=i // each)])
            for i, index in enumerate(indices)
        ]

    def feedback(
        self,
        logits: Tensor,
        labels: Tensor | None = None,
        *,
        class_features: Tensor | None = None,
    ) -> None:
        """Give the outcome of the task that was loaded last.

        Args:
            logits: `queries x way`; never differentiated.
            labels: The right answers, `queries`; needed only if queries are not class by class.
            class_features: The mean feature of every class, `way x d`, if the sampler uses them.

        Raises:
            ArgumentError: If no task was loaded, it was answered before, or shapes do not fit.
        """
        if self.task_id is None:
            raise ArgumentError("no task has been loaded yet: call sample() of the Taskset first.")
        self.episodes.feedback(self.task_id, logits, labels, class_features=class_features)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue with the next meta-batch."""
        return self.episodes.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue with the meta-batch after the one in which `state_dict` was called.

        Raises:
            StateError: If it does not fit; nothing is then changed.
        """
        self.episodes.load_state_dict(state_dict)
        self._left, self.task_id = [], None

    def _load(self, index: int, *, task_id: int, label: int) -> list[Any]:
        """Load an item, with its label in the task."""
        self.task_id = task_id
        image, _, *rest = self.dataset[index]
        return [image, label, *rest]
