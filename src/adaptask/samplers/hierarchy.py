"""Tasks of classes that are near to each other by what is known about them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adaptask import theory
from adaptask.arguments import check_number
from adaptask.errors import ArgumentError
from adaptask.samplers.base import Sampler, check_tensor, class_pairs, of_category_sets
from adaptask.samplers.feedback import Feedback


class HierarchySampler(Sampler):
    """Draw a class, then classes that are near to those chosen so far, by groups or distances.

    The first class is uniform. With L the classes so far and the distances D,

        p(c | L) is proportional to exp(-alpha * sum over j in L of D(j, c)).

    D is given, or it is 0 for two classes of one group and 1 for others. A group with fewer than
    K classes is filled up with random other ones. Nothing is learned, and with neither groups nor
    distances tasks are uniform.

    Classes with the same number in `variant_of` do not meet, unless nothing else is left.

    The table of distances takes n^2 numbers for n classes.

    Deviations: Meta-Dataset draws all classes of a task from one subtree of WordNet; with groups
    and a large `alpha` this sampler does the same for a tree of two levels. The rule is that of the
    training sampler in the history of the code of Bennequin et al., without its curricula of
    `alpha`. Their test tasks also prefer classes that were drawn rarely; training here does not.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        alpha: How strongly near classes are preferred, 0 (not at all) to 1000.
        groups: The name of the group of every class.
        distances: `classes x classes`, from 0, in place of groups.
        variant_of: `classes` int64: classes with the same number do not meet in a task.
        seed: Seed of the random stream.
        device: Where the sampler works.

    Raises:
        ArgumentError: If a value does not fit, or both groups and distances are given.

    Reference: Bennequin et al., Few-Shot Image Classification Benchmarks are Too Far From Reality,
    CVPR Workshops 2022; Triantafillou et al., Meta-Dataset, ICLR 2020.
    """

    description = "prefers classes of the same group of the dataset, such as an alphabet"
    learns = False

    _log_weights: Tensor
    """`classes x classes`: -alpha * D; the diagonal does not matter."""
    _conflicts: Tensor | None

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        alpha: float = 5.0,
        groups: Sequence[str] | None = None,
        distances: Tensor | None = None,
        variant_of: Tensor | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, device=device)
        self.alpha = check_number("alpha", alpha, low=0, high=1000)
        if distances is None:
            distances = self._distances_of(groups)
        elif groups is not None:
            raise ArgumentError("groups or distances must be given, not both; leave out one.")
        else:
            shape = (self.n_classes, self.n_classes)
            check_tensor("distances", distances, "floating-point", None, shape)
            if not (distances.isfinite() & (distances >= 0)).all():
                raise ArgumentError("distances must be finite and not negative.")
        # No product may overflow: a class with a weight of 0 could be chosen twice.
        log_weights = (-self.alpha * distances.double()).clamp_min(-1e30)
        log_weights = log_weights.to(self.device, torch.float32)
        self.register_buffer("_log_weights", log_weights, persistent=False)
        conflicts = None
        if variant_of is not None:
            check_tensor("variant_of", variant_of, "int64", None, (self.n_classes,))
            conflicts = (variant_of[:, None] == variant_of).to(self.device)
        self.register_buffer("_conflicts", conflicts, persistent=False)

    def _distances_of(self, groups: Sequence[str] | None) -> Tensor:
        """Return 0 for two classes of a group and 1 for others, `classes x classes`."""
        zeros = class_pairs(self.n_classes, "distance", device=torch.device("cpu"))
        if groups is None:
            return zeros
        if isinstance(groups, str) or len(groups) != self.n_classes:
            raise ArgumentError(
                f"groups must have one name for each of the {self.n_classes} classes; got "
                f"{len(groups)}."
            )
        number = {name: i for i, name in enumerate(dict.fromkeys(groups))}
        numbers = torch.tensor([number[name] for name in groups])
        return zeros + (numbers[:, None] != numbers)

    def draw(self, n_tasks: int) -> Tensor:
        """Return the classes of new tasks, `tasks x way`, in the order in which they were drawn."""
        noise = self.gumbel_noise(self.n_way, n_tasks, self.n_classes)
        newest = noise[0].argmax(-1)
        chosen = [newest]
        log_weights = torch.zeros_like(noise[0])
        is_free = torch.ones_like(log_weights, dtype=torch.bool)
        is_blocked = ~is_free
        for step_noise in noise[1:]:
            log_weights = log_weights + self._log_weights[newest]
            is_free = is_free.scatter(1, newest[:, None], False)
            allowed = is_free
            if self._conflicts is not None:
                is_blocked = is_blocked | self._conflicts[newest]
                others = is_free & ~is_blocked
                allowed = torch.where(others.any(-1, keepdim=True), others, is_free)
            keys = (log_weights + step_noise).masked_fill(~allowed, -torch.inf)
            newest = keys.argmax(-1)
            chosen.append(newest)
        return torch.stack(chosen, -1)

    def learn(self, feedback: Feedback) -> None:
        """Do nothing."""

    @of_category_sets
    def log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of each category set of at most 12 classes, float64."""
        return theory.neighbor_log_prob(self._log_weights, class_ids, conflicts=self._conflicts)

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        return f"{super().extra_repr()}, alpha={self.alpha:g}"
