"""What a DataLoader loads for a batch of tasks: a wrapped dataset, and the batch that comes out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from adaptask.errors import ArgumentError


class EpisodeBatch(NamedTuple):
    """A batch of tasks as it comes out of a DataLoader; learners take it as `Episodes`.

    The images of a class stand together, classes in the order of `class_ids`.
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


class EpisodeDataset(Dataset[EpisodeBatch]):
    """A dataset whose items a DataLoader puts together to `EpisodeBatch`es; see `wrap`."""

    def __init__(
        self, dataset: Dataset[Any], key: int | str | None, n_way: int, n_shot: int, n_query: int
    ) -> None:
        self.dataset, self.key = dataset, key
        self.n_shot, self.n_query = n_shot, n_query
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
                "a wrapped dataset is for the EpisodeBatchSampler that wrapped it: "
                "DataLoader(episodes.wrap(dataset), batch_sampler=episodes)."
            )
        fetch = getattr(self.dataset, "__getitems__", None)
        items = fetch(list(indices)) if fetch else [self.dataset[index] for index in indices]
        images = [_as_tensor(item if self.key is None else item[self.key]) for item in items]
        size = len(images) // len(indices.task_ids)
        parts = (images[start : start + size] for start in range(0, len(images), size))
        tasks = zip(indices.class_ids, indices.task_ids, parts, strict=True)
        return [self._task(*task) for task in tasks]

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


def _as_tensor(image: Any) -> Tensor:
    if isinstance(image, Tensor):
        return image
    if not isinstance(image, np.ndarray):
        raise ArgumentError(
            "the images of a dataset must be tensors or arrays, to be put together to a batch; got "
            f"{type(image).__name__}. Let the dataset transform them, or say where in an item they "
            "are: wrap(dataset, key=...)."
        )
    return torch.from_numpy(image)
