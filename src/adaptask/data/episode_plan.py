"""Plans of evaluation episodes: which images, decided in advance by a seed alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaptask.data.subsets import ordered_subsets
from adaptask.errors import ArgumentError


@dataclass(frozen=True)
class EpisodePlan:
    """The images of a number of episodes, by their positions in a split; made by `plan`.

    A plan is on the CPU and holds no pixels: the same one can be cut on any device, by any
    number of learners, in batches of any size.
    """

    class_ids: Tensor
    """Classes of each episode, `episodes x way` int64, distinct within a row."""
    image_ids: Tensor
    """Positions in the split, `episodes x way x (shot + query)` int64, the support set first."""
    n_shot: int
    """Support images per class."""

    @property
    def n_queries(self) -> int:
        """Queries per episode, of all its classes."""
        return (self.image_ids.shape[-1] - self.n_shot) * self.class_ids.shape[1]

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.class_ids)


def plan_episodes(
    class_starts: Tensor, *, n_episodes: int, n_way: int, n_shot: int, n_query: int, seed: int
) -> EpisodePlan:
    """Choose classes, and then images of each, uniformly and without replacement.

    Args:
        class_starts: Where the images of each class begin, and the last end, `classes + 1`
            int64 on the CPU; every class has `n_shot + n_query` images or more.
        n_episodes: Number of episodes.
        n_way: Classes per episode.
        n_shot: Support images per class.
        n_query: Query images per class.
        seed: Decides which classes and images, given the numbers above.
    """
    generator = torch.Generator().manual_seed(seed)
    counts = class_starts.diff()
    n_classes = torch.full((n_episodes,), len(counts))
    class_ids = ordered_subsets(n_classes, n_way, largest=len(counts), generator=generator)
    offsets = ordered_subsets(
        counts[class_ids].flatten(),
        n_shot + n_query,
        largest=int(counts.max()),
        generator=generator,
    )
    image_ids = class_starts[class_ids][..., None] + offsets.view(n_episodes, n_way, -1)
    return EpisodePlan(class_ids.contiguous(), image_ids, n_shot)


def take_episodes(
    plan: EpisodePlan, start: int, stop: int, class_starts: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the classes and images of episodes `start` to `stop - 1` of a plan.

    Raises:
        ArgumentError: If there are no such episodes, or the plan is of another split.
    """
    check_range(start, stop, len(plan))
    class_ids, image_ids = plan.class_ids[start:stop], plan.image_ids[start:stop]
    n_classes = len(class_starts) - 1
    fits = bool(((class_ids >= 0) & (class_ids < n_classes)).all())
    if fits:
        first, end = class_starts[class_ids, None], class_starts[class_ids + 1, None]
        fits = bool(((first <= image_ids) & (image_ids < end)).all())
    if not fits:
        raise ArgumentError(
            "the plan names images that do not belong to their classes in this split: it was made "
            "for another one. Make it with plan() of the source that cuts it."
        )
    return class_ids, image_ids


def check_range(start: int, stop: int, n_episodes: int) -> None:
    """Check that there are episodes `start` to `stop - 1`.

    Raises:
        ArgumentError: If there are none.
    """
    if not 0 <= start < stop <= n_episodes:
        raise ArgumentError(
            f"start and stop must satisfy 0 <= start < stop <= {n_episodes}, the number of "
            f"episodes; got {start} and {stop}."
        )
