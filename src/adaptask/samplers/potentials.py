"""Class-pair potentials: what cp- and gcp-sampling learn, Eq. 5 and 6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from adaptask.arguments import check_choice
from adaptask.errors import ArgumentError, StateError
from adaptask.samplers.arrays import Array, log_sum_exp, mean_by_key, namespace, view
from adaptask.samplers.base import Sampler
from adaptask.samplers.feedback import Feedback
from adaptask.samplers.update_rule import UpdateRule, check_dtype


class PairPotentialSampler(Sampler):
    """A sampler that keeps a potential C(i, j) for every pair of classes, in log space.

    After a task with the support set S and the query set Q, for each pair (i, j) of its classes,
    Eq. 5 and 6:

        C(i, j) <- C(i, j)^tau * exp(alpha * p(i, j)),
        p(i, j) = mean over the queries of j of p(i|q, S) + mean over those of i of p(j|q, S)

    with `p`, `1 - p` or `p (1 - p)` for the strategies hard, easy and uncertain.

    Decisions: only pairs that were in a task change, as in the paper's appendix, unless
    `forget="all"`; that costs O(n^2) an update instead of O(n K) a task. A pair in several tasks
    of one update is updated once, with the mean of its p, so that the order of tasks does not
    matter.
    The factor is alpha as in Eq. 5, not alpha^(1 / n_2) as the appendix writes.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes in a task, K.
        alpha: Weight of the new observation, 0 to 1e6.
        tau: Memory, from 0 (none) to 1 (nothing is forgotten).
        strategy: `hard`, `easy` or `uncertain`.
        confusion: `sum` of both directions as in Eq. 6, or their `mean` as in the code that the
            authors published.
        forget: Whether tau acts on the pairs that were `sampled`, or on `all`.
        seed: Seed of the random stream.
        dtype: Precision of the potentials.
        device: Where the sampler works.

    Raises:
        ArgumentError: If a value lies outside its range.
    """

    log_potentials: Tensor
    """`classes x classes`, log C: symmetric, minus infinity on the diagonal, at first 0 (C = 1).

    It may be edited in place; draws follow. A pair that is never to be drawn gets a large negative
    number, not minus infinity. Edits through `.data` go unnoticed.
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
        strategy: str = "hard",
        confusion: str = "sum",
        forget: str = "sampled",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, device=device)
        self.rule = UpdateRule(alpha, tau, strategy)
        self.confusion = check_choice("confusion", confusion, ("sum", "mean"))
        self.forget = check_choice("forget", forget, ("sampled", "all"))
        check_dtype(dtype)
        potentials = torch.zeros(self.n_classes, self.n_classes, dtype=dtype, device=device)
        self.register_buffer("log_potentials", potentials.fill_diagonal_(-torch.inf))
        self.register_buffer("log_row_weights", potentials.logsumexp(-1), persistent=False)
        upper = torch.triu_indices(self.n_way, self.n_way, offset=1, device=device)
        self.register_buffer("_pair_positions", upper, persistent=False)
        self._mark_stale()

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the potentials."""
        return self.log_potentials.dtype

    def prepare(self) -> None:
        """Notice potentials that were edited, loaded or moved since they were last used."""
        self._follow_edits()

    def _learn(self, feedback: Feedback) -> None:
        self._follow_edits()
        xp, ids, potentials = self._xp, feedback.class_ids, self._potentials.reshape(-1)
        p = feedback.confusion + feedback.confusion.swapaxes(-1, -2)
        if self.confusion == "mean":
            p = p / 2
        p, seen = self._merge_tasks(ids, p, feedback.accepted, xp)
        # A task is a block of the matrix; each of its pairs stands there twice, with one value.
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
            The means, `tasks x way x way`, and where there was one to take; None for everywhere.
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

    def _log_noise(self, n_tasks: int) -> Array:
        """Logarithms of independent Exp(1) draws, `way x tasks x classes`."""
        shape = (self.n_way, n_tasks, self.n_classes)
        if self._xp is torch:
            return self._log_exponential(*shape, dtype=self.dtype)
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

    # Saving marks the derived values stale too: whoever goes on, the saved sampler or a restored
    # one, derives them anew from the same potentials and so draws the same, to the last bit.

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
