"""Greedy class-pair sampling (gcp-sampling), Algorithm 1, and the potentials that it learns.

`PairPotentialSampler` learns a potential for every pair of classes; `cp` draws from them too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from adaptask import theory
from adaptask.arguments import check_choice, check_number
from adaptask.errors import ArgumentError, StateError
from adaptask.samplers.base import Sampler, class_pairs, of_category_sets
from adaptask.samplers.feedback import Feedback
from adaptask.samplers.update_rule import (
    Array,
    Strategy,
    UpdateRule,
    log_sum_exp,
    mean_by_key,
    namespace,
    view,
)


class PairPotentialSampler(Sampler):
    """A sampler that keeps a potential C(i, j) for every pair of classes, in log space.

    After a task with the support set S and the query set Q, for each pair (i, j) of its classes,
    Eq. 5 and 6:

        C(i, j) <- C(i, j)^tau * exp(alpha * p(i, j)),
        p(i, j) = mean over the queries of j of p(i|q, S) + mean over those of i of p(j|q, S)

    with `p`, `1 - p` or `p (1 - p)` for the strategies hard, easy and uncertain.

    Decisions: only pairs that were in a task change, as in the paper's appendix, unless
    `forget="all"`, which costs O(n^2) per update instead of O(n K) per task. A pair in several
    tasks of one update is updated once, with the mean of its p, so that the order of tasks does
    not matter. The factor is alpha as in Eq. 5, not alpha^(1 / n_2) as the appendix writes.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        alpha: How strongly a confusion raises a potential, 0 to 1e6.
        tau: How much of a potential is kept at each update, 0 (nothing) to 1 (everything).
        strategy: Which tasks are preferred: `hard`, `easy` or `uncertain` ones.
        confusion: Confusion of a pair: the `sum` of both directions as in Eq. 6, or their `mean` as
            in the code that the authors published.
        forget: Which potentials decay: those of the pairs that were `sampled`, or `all`.
        seed: Seed of the random stream.
        device: Where the sampler works.

    Raises:
        ArgumentError: If a value is outside its range.
    """

    beside_graph = ("_seen_version",)

    log_potentials: Tensor
    """`classes x classes`, log C: symmetric, minus infinity on the diagonal, at first 0 (C = 1).

    You may edit it in place, and draws follow. To exclude a pair, give it a large negative number,
    not minus infinity. Edits through `.data` are not noticed.
    """
    log_row_weights: Tensor
    """`classes`, log of the row sums of C: the weight of a class as first of a pair."""
    _pair_positions: Tensor
    _xp: Any
    _potentials: Array
    _row_weights: Array
    _seen_potentials: Any
    _seen_version: int

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        alpha: float = 1.0,
        tau: float = 0.5,
        strategy: Strategy = "hard",
        confusion: Literal["sum", "mean"] = "sum",
        forget: Literal["sampled", "all"] = "sampled",
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, device=device)
        self.rule = UpdateRule(alpha, tau, strategy)
        self.confusion = check_choice("confusion", confusion, ("sum", "mean"))
        self.forget = check_choice("forget", forget, ("sampled", "all"))
        potentials = class_pairs(self.n_classes, "potential", device=self.device)
        self.register_buffer("log_potentials", potentials.fill_diagonal_(-torch.inf))
        self.register_buffer("log_row_weights", potentials.logsumexp(-1), persistent=False)
        upper = torch.triu_indices(self.n_way, self.n_way, offset=1, device=device)
        self.register_buffer("_pair_positions", upper, persistent=False)
        self._mark_stale()

    def prepare(self) -> None:
        """Notice potentials that were edited, loaded or moved since they were last used."""
        self._follow_edits()

    def learn(self, feedback: Feedback) -> None:
        """Update the potentials of the pairs that were in a task, Eq. 5 and 6."""
        self._follow_edits()
        xp, ids, potentials = self._xp, feedback.class_ids, self._potentials.reshape(-1)
        p = feedback.confusion + feedback.confusion.swapaxes(-1, -2)
        if self.confusion == "mean":
            p = p / 2
        p, seen = self._merge_tasks(ids, p, feedback.accepted, xp)
        # A task is a block of the matrix; each of its pairs appears there twice, with one value.
        at = ids[:, :, None] * self.n_classes + ids[:, None, :]
        old = potentials[at]
        new = self.rule(old, p, xp)
        if self.forget == "all":
            tau, accepted = self.rule.tau, feedback.accepted
            factor = tau if accepted is None else torch.where(accepted.any(), tau, 1.0)
            self.log_potentials.mul_(factor).fill_diagonal_(-torch.inf)
            old = potentials[at]
        potentials[at] = new if seen is None else xp.where(seen, new, old)
        touched = ids.reshape(-1)
        everything = self.forget == "all" or len(touched) >= self.n_classes
        self._refresh(slice(None) if everything else touched)
        if xp is torch or self.forget == "all":  # NumPy leaves the version as it is
            self._seen_version = _version(self._seen_potentials)

    def _merge_tasks(
        self, ids: Array, p: Array, accepted: Tensor | None, xp: Any
    ) -> tuple[Array, Array | None]:
        """Replace each p by its mean over the accepted tasks that contain the pair.

        Returns:
            The means, `tasks x way x way`, and which of them have an accepted task; None for all.
        """
        if len(ids) == 1:
            return p, None if accepted is None else accepted[:, None, None]
        first, second = view(self._pair_positions)
        rows, columns = ids[:, first], ids[:, second]
        keys = xp.minimum(rows, columns) * self.n_classes + xp.maximum(rows, columns)
        means, seen = mean_by_key(keys, p[:, first, second], accepted, xp)
        p[:, first, second] = p[:, second, first] = means
        if seen is None:
            return p, None
        both = xp.zeros_like(p, dtype=xp.bool)
        both[:, first, second] = both[:, second, first] = seen
        return p, both

    def _draw_greedily(self, n_tasks: int) -> Tensor:
        """Return tasks drawn by Algorithm 1, `tasks x way`."""
        noise = self._log_noise(n_tasks)
        drawn = greedy_draw(self._potentials, self._row_weights, noise, self._xp)
        return drawn if self._xp is torch else torch.from_numpy(drawn)

    def _log_noise(self, n_tasks: int) -> Array:
        """Return logarithms of independent Exp(1) draws, `way x tasks x classes`."""
        shape = (self.n_way, n_tasks, self.n_classes)
        if self._xp is torch:
            return self.gumbel_noise(*shape, dtype=self.dtype).neg_()
        uniform = self._seen_potentials.new_empty(shape).uniform_(generator=self._generator)
        # NumPy would warn of the logarithm of 0, a draw that is as good as any.
        array = uniform.log_().numpy()
        np.negative(array, out=array)
        return np.log(array, out=array)

    def _refresh(self, rows: Array | slice) -> None:
        """Bring what is derived from those rows of the potentials up to date."""
        self._row_weights[rows] = log_sum_exp(self._potentials[rows], self._xp)

    def _follow_edits(self) -> None:
        """Notice potentials that were edited, loaded or moved since they were last used."""
        potentials: Any = self._buffers["log_potentials"]  # quicker than the attribute
        if potentials is self._seen_potentials and _version(potentials) == self._seen_version:
            return
        if potentials.device.type == "cpu" and (problem := _problem_of(potentials)):
            raise ArgumentError(f"log_potentials {problem}. Undo the edit, or load a good state.")
        if not potentials.is_contiguous():
            self.log_potentials = potentials = potentials.contiguous()
        self._xp = namespace(potentials)
        self._potentials, self._row_weights = view(potentials), view(self.log_row_weights)
        self._refresh(slice(None))
        self._seen_potentials, self._seen_version = potentials, _version(potentials)

    def _mark_stale(self) -> None:
        # Views of the buffers, in the library to compute with; `_follow_edits` makes them.
        self._xp = self._potentials = self._row_weights = self._seen_potentials = None
        self._seen_version = -1

    # Saving marks the derived values stale too: both the saved sampler and a restored one recompute
    # them from the same potentials, and so draw the same, to the last bit.

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._save_to_state_dict(*args, **kwargs)
        self._mark_stale()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._mark_stale()

    def __getstate__(self) -> dict[str, Any]:
        self._mark_stale()
        return super().__getstate__()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._mark_stale()
        return super()._apply(fn, recurse)

    def _check_buffers(self, buffers: dict[str, Tensor]) -> None:
        if problem := _problem_of(buffers["log_potentials"]):
            raise StateError(f"log_potentials of the state {problem}; the state is damaged.")

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        return (
            f"{super().extra_repr()}, {self.rule}, "
            f"confusion={self.confusion!r}, forget={self.forget!r}"
        )


class GCPSampler(PairPotentialSampler):
    """Draw a pair in proportion to its potential, then add one class after the other.

    With the classes L chosen so far, Eq. 7:

        p(i, j) is proportional to C(i, j) for the first two,
        p(c | L) is proportional to the product over j in L of C(c, j) for each further one.

    All tasks are drawn at once, in O(n K) per task. The classes of a row are in the order in which
    they were drawn. `PairPotentialSampler` describes how the potentials are learned.

    The state has one potential per pair of classes, whatever the number of ways: a state of
    `n_way=5` loads into a sampler with `n_way=4` and the same `n_classes`.

    Deviation: the paper's Proposition 1, that this is the distribution of Eq. 4, does not hold
    for K >= 3, since each step divides by another constant. For Eq. 4 use `cp`.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        alpha: How strongly a confusion raises a potential, 0 to 1e6.
        tau: How much of a potential is kept at each update, 0 (nothing) to 1 (everything).
        strategy: Which tasks are preferred: `hard`, `easy` or `uncertain` ones.
        confusion: Confusion of a pair: the `sum` of both directions as in Eq. 6, or their `mean`.
        forget: Which potentials decay: those of the pairs that were `sampled`, or `all`.
        exploration: Share of the tasks that are drawn uniformly instead, 0 to 1.
        seed: Seed of the random stream.
        device: Where the sampler works.

    Reference: Liu et al., Adaptive Task Sampling for Meta-Learning, ECCV 2020, section 4.3.
    """

    description = (
        "prefers classes that the learner confuses with each other, chosen greedily pair by pair "
        "(Algorithm 1)"
    )

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        alpha: float = 1.0,
        tau: float = 0.5,
        strategy: Strategy = "hard",
        confusion: Literal["sum", "mean"] = "sum",
        forget: Literal["sampled", "all"] = "sampled",
        exploration: float = 0.0,
        seed: int = 0,
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
            device=device,
        )
        self.exploration = check_number("exploration", exploration, low=0, high=1)

    def draw(self, n_tasks: int) -> Tensor:
        """Return the classes of new tasks in the order in which they were drawn, `tasks x way`."""
        self._follow_edits()
        kernels = self._kernels()
        if kernels is None:
            class_ids = self._draw_greedily(n_tasks)
        else:
            noise = self.exponential_noise(self.n_way, n_tasks, self.n_classes)
            class_ids = kernels.greedy_draw(self._potentials, self._row_weights, noise)
        if self.exploration == 0:
            return class_ids
        uniform = self.uniform_noise(n_tasks, self.n_classes, dtype=self.dtype)
        explores = self.uniform_noise(n_tasks, 1, dtype=self.dtype) < self.exploration
        return torch.where(explores, uniform.topk(self.n_way).indices, class_ids)

    def _learn_by_kernels(
        self,
        kernels: Any,
        class_ids: Tensor,
        probabilities: Tensor,
        labels: Tensor,
        tolerance: float,
        class_features: Tensor | None,
    ) -> bool:
        if self.forget == "all":
            return False
        self._follow_edits()
        kernels.learn(
            self._potentials,
            self._row_weights,
            self._refusals,
            class_ids,
            probabilities,
            labels,
            share=1.0 if self.confusion == "sum" else 0.5,
            tolerance=tolerance,
            alpha=self.rule.alpha,
            tau=self.rule.tau,
            strategy=self.rule.strategy,
        )
        return True

    @of_category_sets
    def log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of each category set, `tasks` float64; up to K = 12."""
        log_greedy = theory.gcp_log_prob(self.log_potentials, class_ids)
        if self.exploration == 0:
            return log_greedy
        log_share = math.log1p(-self.exploration) if self.exploration < 1 else -math.inf
        log_uniform = -math.log(math.comb(self.n_classes, self.n_way))
        return torch.logaddexp(
            log_greedy + log_share,
            torch.full_like(log_greedy, log_uniform + math.log(self.exploration)),
        )

    def log_prob_ordered(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of drawing the classes in this order, `tasks` float64; any K.

        Raises:
            ArgumentError: If `class_ids` do not fit, or some tasks are drawn uniformly.
        """
        if self.exploration > 0:
            raise ArgumentError("log_prob_ordered is for a 'gcp' sampler without exploration.")
        self._which_are_sets(class_ids)
        return theory.gcp_log_prob_ordered(self.log_potentials, class_ids)

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
        log_noise: `way x tasks x classes`, logarithms of independent Exp(1) draws, which are
            negative Gumbel variables: the largest of log-weight plus Gumbel is a draw in
            proportion to the weights.
        xp: `numpy` or `torch`, the library of the arrays.

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
    if xp is torch:
        return torch.stack(chosen, -1)
    columns = np.array(chosen)
    return np.ascontiguousarray(columns.T) if columns.ndim == 2 else columns[None]


def _version(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place; tensors of inference mode do not count."""
    return 0 if tensor.is_inference() else tensor._version


def _problem_of(log_potentials: Tensor) -> str | None:
    """Say what keeps a matrix from being log-potentials, if anything does."""
    if not (log_potentials.diagonal() == -torch.inf).all():
        return "must have minus infinity on the diagonal"
    n_infinite = int((~log_potentials.isfinite()).sum())
    if n_infinite > len(log_potentials):
        return "must be finite off the diagonal"
    if not torch.equal(log_potentials, log_potentials.mT):
        return "must be symmetric"
    return None
