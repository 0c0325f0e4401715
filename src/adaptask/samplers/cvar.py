"""Tail risk: train on the worst share of a pool of tasks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adaptask.arguments import check_number
from adaptask.errors import ArgumentError
from adaptask.samplers.base import check_tensor
from adaptask.samplers.uniform import UniformSampler


class CVaRSampler(UniformSampler):
    """Draw a pool of uniform tasks, and train on those with the largest losses.

    The learner then minimizes the conditional value at risk instead of the mean loss,

        CVaR_alpha = mean of the loss l over the worst 1 - alpha of all tasks
                   = E[l | l >= the alpha-quantile of l],

    which is estimated from a pool: of M = ceil(n_tasks / (1 - alpha)) candidates the `n_tasks` with
    the largest losses are trained on. With `alpha` 0 it is uniform sampling.

    The losses that candidates are ranked by are the cross-entropy of their queries, also if the
    learner minimizes something else, such as the squared error of RelationNet.

    Deviations: the original computes the losses of all M tasks with their gradients, and keeps the
    gradients of the worst. Here the pool is scored without gradient in training mode, and the worst
    go through the learner again, with the same images. Where normalization shares statistics among
    tasks, as the batch normalization of ProtoNet does, these are those of the pool for the scores
    and those of the worst tasks for the gradient. `n_tasks` is the number of tasks that are trained
    on; in the paper it is M. (The rule is also a baseline in the code of MPTS, "drm": the 16 worst
    of 32 tasks, which is `alpha` 0.5.) Its quantile is that of a batch, which is biased towards the
    mean for small pools: so is this one.

    Candidates with equal losses are chosen in the order in which they were drawn. `update` learns
    nothing: all that is used is in the losses.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        alpha: Share of the candidates that are left out, the easiest, 0 to 0.99.
        seed: Seed of the random stream.
        device: Where the sampler works.

    Raises:
        ArgumentError: If a value is outside its range.

    Reference: Wang et al., A Simple Yet Effective Strategy to Robustify the Meta Learning Paradigm,
    NeurIPS 2023.
    """

    description = "trains on the worst share of a pool of tasks (Wang et al. 2023)"
    learns = True

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        alpha: float = 0.5,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, device=device)
        self.alpha = check_number("alpha", alpha, low=0, high=0.99)

    def n_candidates(self, n_tasks: int) -> int:
        """Return the number of candidates from which `n_tasks` tasks are chosen."""
        # Rounded: 1 / (1 - 0.9) is a little more than 10.
        return math.ceil(round(n_tasks / (1 - self.alpha), 6))

    def choose(self, class_ids: Tensor, losses: Tensor, n_tasks: int) -> Tensor:
        """Return the positions of the `n_tasks` largest losses, the largest first.

        Args:
            class_ids: The classes of the candidates, `candidates x way`; not used.
            losses: The loss of each candidate, `candidates`.
            n_tasks: How many to choose.

        Raises:
            ArgumentError: If the losses are not one floating-point number per candidate.
        """
        check_tensor("losses", losses, "floating-point", self.device, (len(class_ids),))
        return losses.argsort(descending=True, stable=True)[:n_tasks]

    def log_prob(self, class_ids: Tensor) -> Tensor:
        """Raise: the probability of training on a task depends on its loss."""
        raise ArgumentError(
            "CVaRSampler does not compute probabilities: which tasks are trained on depends on "
            "their losses. Those of the candidates are those of UniformSampler."
        )
