"""Greedy class-pair sampling (gcp-sampling): Algorithm 1 of the paper."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from adaptask import theory
from adaptask.arguments import check_number
from adaptask.samplers.arrays import Array, as_columns, as_tensor
from adaptask.samplers.feedback import row_tolerance
from adaptask.samplers.potentials import PairPotentialSampler


class GreedyClassPairSampler(PairPotentialSampler):
    """Draw a pair in proportion to its potential, then add one class after the other.

    With the classes L chosen so far, Eq. 7:

        p(i, j) is proportional to C(i, j) for the first two,
        p(c | L) is proportional to the product over j in L of C(c, j) for each further one.

    All tasks are drawn at once, in O(n K) a task. The classes of a row stand in the order in
    which they were drawn. How the potentials are learnt is described in `PairPotentialSampler`.

    Deviation: the paper's Proposition 1, that this is the distribution of Eq. 4, does not hold
    for K >= 3, since each step divides by a constant of its own. For Eq. 4 take `cp`.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes in a task, K.
        alpha: Weight of the new observation, 0 to 1e6.
        tau: Memory, from 0 (none) to 1 (nothing is forgotten).
        strategy: `hard`, `easy` or `uncertain`.
        confusion: `sum` of both directions as in Eq. 6, or their `mean`.
        forget: Whether tau acts on the pairs that were `sampled`, or on `all`.
        exploration: Share of the tasks that are drawn uniformly instead, 0 to 1.
        seed: Seed of the random stream.
        dtype: Precision of the potentials, float32 or float64.
        device: Where the sampler works.

    Reference: Liu et al., Adaptive Task Sampling for Meta-Learning, ECCV 2020, section 4.3.
    """

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        alpha: float = 1.0,
        tau: float = 0.5,
        strategy: str = "hard",
        confusion: str = "sum",
        forget: str = "sampled",
        exploration: float = 0.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            n_classes=n_classes,
            n_way=n_way,
            alpha=alpha,
            tau=tau,
            strategy=strategy,
            confusion=confusion,
            forget=forget,
            seed=seed,
            dtype=dtype,
            device=device,
        )
        self.exploration = check_number("exploration", exploration, low=0, high=1)

    def _draw(self, n_tasks: int) -> Tensor:
        self._follow_edits()
        kernels = self._kernels()
        if kernels is None:
            noise = self._log_noise(n_tasks)
            class_ids = as_tensor(greedy_draw(self._potentials, self._row_weights, noise, self._xp))
        else:
            shape = (self.n_way, n_tasks, self.n_classes)
            noise = self._exponential(*shape, dtype=self.dtype)
            class_ids = kernels.greedy_draw(self._potentials, self._row_weights, noise)
        if self.exploration == 0:
            return class_ids
        uniform = self._uniform(n_tasks, self.n_classes, dtype=self.dtype)
        explores = self._uniform(n_tasks, 1, dtype=self.dtype) < self.exploration
        return torch.where(explores, uniform.topk(self.n_way).indices, class_ids)

    def _learn_by_kernels(
        self, kernels: Any, class_ids: Tensor, probabilities: Tensor, labels: Tensor
    ) -> bool:
        if self.forget == "all":
            return False
        self._check_predictions(class_ids, probabilities, labels)
        self._follow_edits()
        kernels.learn(
            self._potentials,
            self._row_weights,
            self._refusals,
            class_ids,
            probabilities,
            labels,
            share=1.0 if self.confusion == "sum" else 0.5,
            tolerance=row_tolerance(probabilities.dtype),
            alpha=self.rule.alpha,
            tau=self.rule.tau,
            strategy=self.rule.strategy,
        )
        return True

    def _log_prob(self, class_ids: Tensor) -> Tensor:
        return self._mix(theory.gcp_log_prob(self.log_potentials, class_ids))

    def _mix(self, log_greedy: Tensor) -> Tensor:
        """Allow for the share of tasks that are drawn uniformly."""
        if self.exploration == 0:
            return log_greedy
        log_share = math.log1p(-self.exploration) if self.exploration < 1 else -math.inf
        log_uniform = -math.log(math.comb(self.n_classes, self.n_way))
        return torch.logaddexp(
            log_greedy + log_share,
            torch.full_like(log_greedy, log_uniform + math.log(self.exploration)),
        )

    def _estimate_log_prob(self, class_ids: Tensor) -> tuple[Tensor, float]:
        if self.n_way <= theory.LARGEST_GREEDY_WAY:
            return self._log_prob(class_ids), 0.0
        log_probs, bias = theory.gcp_log_prob_estimate(self.log_potentials, class_ids)
        return self._mix(log_probs), float(bias.mean())

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        return f"{super().extra_repr()}, exploration={self.exploration:g}"


def greedy_draw(log_potentials: Array, log_row_weights: Array, log_noise: Array, xp: Any) -> Array:
    """Draw the classes of each task one after the other, all tasks at once.

    The diagonal of minus infinity keeps a class from being drawn twice.

    Args:
        log_potentials: `classes x classes`.
        log_row_weights: `classes`; they choose the first class, so that the first two are a pair
            drawn in proportion to its potential.
        log_noise: `way x tasks x classes`, logarithms of independent Exp(1) draws: minus them
            are Gumbel variables, and the largest of log-weight plus Gumbel is a draw in
            proportion to the weights.
        xp: `numpy` or `torch`, whichever the arrays are of.

    Returns:
        `tasks x way` int64.
    """
    if log_noise.shape[1] == 1 and xp is not torch:
        # NumPy is quicker without the dimension of tasks; torch would read the index on the host.
        log_noise = log_noise[:, 0]
    first = (log_row_weights - log_noise[0]).argmax(-1)
    log_weights = log_potentials[first]
    second = (log_weights - log_noise[1]).argmax(-1)
    chosen = [first, second]
    for step_noise in log_noise[2:]:
        log_weights = log_weights + log_potentials[chosen[-1]]
        chosen.append((log_weights - step_noise).argmax(-1))
    return as_columns(chosen, xp)
