"""Adaptive tasks in the loops of easyfsl: a replacement for its `TaskSampler`.

    task_sampler = AdaptiveTaskSampler(dataset, sampler, n_shot=1, n_query=15, n_tasks=500)
    loader = DataLoader(
        dataset, batch_sampler=task_sampler, collate_fn=task_sampler.episodic_collate_fn
    )
    for support_images, support_labels, query_images, query_labels, class_ids in loader:
        scores = ...                                                        # queries x way
        task_sampler.feedback(task_sampler.find(class_ids), scores)

Nothing of easyfsl is imported: it does not have to be installed, and its version does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from adaptask.errors import ArgumentError
from adaptask.integrations.torch import EpisodeBatchSampler
from adaptask.interfaces import TaskSampler

EpisodeTuple = tuple[Tensor, Tensor, Tensor, Tensor, list[int]]


class LabeledDataset(Protocol):
    """What easyfsl calls a `FewShotDataset`: items are an image and a label."""

    def get_labels(self) -> Sequence[int]:
        """Return the label of every item, in the order of the dataset."""
        ...


class AdaptiveTaskSampler(EpisodeBatchSampler):
    """A batch sampler with one task per batch, and the collate function of easyfsl's sampler.

    Args:
        dataset: Has `get_labels()`, as a `FewShotDataset` of easyfsl.
        sampler: Chooses the classes of each task.
        n_shot: Support images per class.
        n_query: Query images per class.
        n_tasks: Tasks per epoch.
        lag: Batches drawn after a task before the sampler learns from it; at least
            `num_workers * prefetch_factor` of the DataLoader.
        seed: Decides which images are drawn of a class.

    Raises:
        ArgumentError: If an argument cannot be used.
        DataError: If a class has fewer than `n_shot + n_query` images.
    """

    def __init__(
        self,
        dataset: LabeledDataset,
        sampler: TaskSampler,
        n_shot: int,
        n_query: int,
        n_tasks: int,
        *,
        lag: int = 16,
        seed: int = 0,
    ) -> None:
        if not hasattr(dataset, "get_labels"):
            raise ArgumentError(
                "the dataset must have get_labels(), as a FewShotDataset of easyfsl; "
                f"{type(dataset).__name__} does not. Wrap it: WrapFewShotDataset(dataset)."
            )
        labels = dataset.get_labels()
        super().__init__(labels, sampler, n_shot, n_query, n_tasks, lag=lag, seed=seed)

    @property
    def episodic_collate_fn(self) -> EpisodicCollate:
        """The collate function for the DataLoader: items of a task as easyfsl's loops expect."""
        return EpisodicCollate(self.n_way, self.n_shot, self.n_query)


@dataclass(frozen=True)
class EpisodicCollate:
    """Makes a task of its items; small, since it is sent to every worker."""

    n_way: int
    n_shot: int
    n_query: int

    def __call__(self, items: Sequence[tuple[Tensor, int | Tensor]]) -> EpisodeTuple:
        """Return what easyfsl's loops unpack.

        Args:
            items: Images and labels, class by class, `way * (shot + query)`.

        Returns:
            Support images, `(way * shot) x ...`, their labels in the task, query images,
            `(way * query) x ...`, their labels in the task, and the labels of the classes in the
            dataset, `way`: label k of the task is the k-th of them.
        """
        each = self.n_shot + self.n_query
        images = torch.unflatten(torch.stack([image for image, _ in items]), 0, (self.n_way, each))
        positions = torch.arange(self.n_way)
        return (
            images[:, : self.n_shot].flatten(0, 1),
            positions.repeat_interleave(self.n_shot),
            images[:, self.n_shot :].flatten(0, 1),
            positions.repeat_interleave(self.n_query),
            [int(label) for _, label in items[::each]],
        )
