"""Plans of evaluation episodes: which images, decided in advance by a seed alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

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
    class_starts: Tensor,
    *,
    n_episodes: int,
    n_way: int,
    n_shot: int,
    n_query: int,
    seed: int,
    within: Groups | None = None,
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
        within: Groups, of which each episode has one; None: classes of the whole split.
    """
    generator = torch.Generator().manual_seed(seed)
    counts = class_starts.diff()
    if within is None:
        n_classes = torch.full((n_episodes,), len(counts))
        class_ids = ordered_subsets(n_classes, n_way, largest=len(counts), generator=generator)
    else:
        class_ids = within.draw(n_episodes, n_way, generator)
    offsets = ordered_subsets(
        counts[class_ids].flatten(),
        n_shot + n_query,
        largest=int(counts.max()),
        generator=generator,
    )
    image_ids = class_starts[class_ids][..., None] + offsets.view(n_episodes, n_way, -1)
    return EpisodePlan(class_ids.contiguous(), image_ids, n_shot)


@dataclass(frozen=True)
class Groups:
    """The groups of a split that have enough classes for a task, and the classes of each.

    Variants of one original, such as rotations, count as one class: they do not meet in a task.
    """

    starts: Tensor
    """Where the originals of each group begin, and the last end, `groups + 1` int64."""
    variant_starts: Tensor
    """Where the variants of each original begin, and the last end, `originals + 1` int64."""
    class_ids: Tensor
    """The variants of all originals, `classes` int64."""

    @classmethod
    def of(
        cls, groups: Sequence[str] | None, variant_of: Tensor | None, *, n_way: int, split: str
    ) -> Groups:
        """Return the groups with at least `n_way` classes.

        Args:
            groups: The group of every class, if the split has groups.
            variant_of: Classes with the same number are variants; None: there are none.
            n_way: Classes per episode.
            split: What messages call the split.

        Raises:
            ArgumentError: If there are no such groups.
        """
        if groups is None:
            raise ArgumentError(
                f"tasks within a group need classes with groups, and those of {split} have none. "
                "Test with uniform tasks, or name the classes group/class."
            )
        originals = range(len(groups)) if variant_of is None else variant_of.tolist()
        # A group is in the order of its first class, so that names decide nothing.
        first = {group: i for i, group in reversed(list(enumerate(groups)))}
        keys = [(first[group], i) for group, i in zip(groups, originals, strict=True)]
        sizes = Counter(group for group, _ in set(keys))
        largest = max(sizes, key=sizes.__getitem__)
        if sizes[largest] < n_way:
            once = "" if variant_of is None else ", variants of a class counted once"
            most = sizes[largest]
            fewer = f"at most {most} ways (--evaluation.n-way {most}), or " if most > 1 else ""
            raise ArgumentError(
                f"no group of {split} has {n_way} classes for a task within it; the largest, "
                f"{groups[largest]!r}, has {most}{once}. Test with {fewer}uniform tasks."
            )
        usable = (i for i, (group, _) in enumerate(keys) if sizes[group] >= n_way)
        order = sorted(usable, key=keys.__getitem__)
        n_variants = [len(list(classes)) for _, classes in groupby(order, key=keys.__getitem__)]
        kept = [sizes[group] for group in sorted(sizes) if sizes[group] >= n_way]
        return cls(_starts(kept), _starts(n_variants), torch.tensor(order))

    def draw(self, n_episodes: int, n_way: int, generator: torch.Generator) -> Tensor:
        """Draw a group in proportion to its size, then originals, then one variant of each.

        So every class of these groups is tested equally often.

        Returns:
            `episodes x way` int64.
        """
        sizes = self.starts.diff()
        anchor = torch.randint(int(self.starts[-1]), (n_episodes,), generator=generator)
        group = torch.searchsorted(self.starts, anchor, right=True) - 1
        members = ordered_subsets(
            sizes[group], n_way, largest=int(sizes.max()), generator=generator
        )
        originals = self.starts[group][:, None] + members
        n_variants = self.variant_starts.diff()[originals]
        chosen = torch.randint(1 << 62, originals.shape, generator=generator) % n_variants
        return self.class_ids[self.variant_starts[originals] + chosen]


def _starts(sizes: Sequence[int]) -> Tensor:
    return torch.tensor([0, *sizes]).cumsum(0)


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
