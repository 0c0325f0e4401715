"""The rule by which all adaptive samplers learn, and its arithmetic.

A sampler works on very small arrays. On the CPU a torch operation costs several microseconds
before it does anything, and a NumPy operation a third of that. So CPU tensors are handed to NumPy,
which works on their memory. The functions that take an `xp` use only what both libraries call by
the same name; `tests/samplers/test_update_rule.py` checks that they give the same results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from adaptask.arguments import check_choice, check_number

Array = Any
"""A NumPy array or a torch tensor."""
Strategy = Literal["hard", "easy", "uncertain"]

STRATEGIES: dict[str, Callable[[Array], Array]] = {
    "hard": lambda p: p,
    "easy": lambda p: 1 - p,
    "uncertain": lambda p: p * (1 - p),
}
"""The utility u(p) of a confusion p, by strategy: what makes a task worth drawing again.

The paper (section 5.3, "Efficacy of different adaptive task sampling strategies") compares these.
With the paper's sum of both directions (Eq. 6) p is between 0 and 2, so `easy` and `uncertain`
can fall below zero for a pair that is confused more often than not; with `confusion="mean"` they
cannot.
"""

LARGEST_ALPHA = 1e6
"""Above it, float32 log-weights could overflow within a realistic number of updates."""

# Sums are taken over integers, so that they do not depend on the order of the tasks, on how they
# are spread over processes, or on the order in which a device happens to add.
_UNIT = 2.0**44
_AVERAGE_UNIT = 2**24  # of averages over any number of values


class UpdateRule:
    """The multiplicative update of a weight by a confusion p, in log space (Eq. 2, 3 and 5).

        w <- w^tau * exp(alpha * u(p))

    Args:
        alpha: Weight of the new observation, 0 to 1e6.
        tau: Memory, from 0 (none) to 1 (nothing is forgotten).
        strategy: Utility u of p: `hard` p, `easy` 1 - p, `uncertain` p (1 - p).

    Raises:
        ArgumentError: If a value is outside its range.
    """

    def __init__(self, alpha: float, tau: float, strategy: str) -> None:
        self.alpha = check_number("alpha", alpha, low=0, high=LARGEST_ALPHA)
        self.tau = check_number("tau", tau, low=0, high=1)
        self.strategy = check_choice("strategy", strategy, STRATEGIES)

    def __call__(self, log_weights: Array, confusion: Array, xp: Any) -> Array:
        """Return the new log-weights; minus infinity stays minus infinity."""
        gained = self.alpha * STRATEGIES[self.strategy](confusion)
        if self.tau > 0:
            return self.tau * log_weights + gained
        return xp.where(log_weights > -xp.inf, gained, log_weights)  # 0 times infinity is NaN

    def __str__(self) -> str:
        return f"alpha={self.alpha:g}, tau={self.tau:g}, strategy={self.strategy!r}"


def namespace(tensor: Tensor) -> Any:
    """Return the library to compute with: `numpy` for a CPU tensor, `torch` for others."""
    return np if tensor.is_cpu else torch


def view(tensor: Tensor) -> Array:
    """Return the array that `namespace(tensor)` works on; it shares the tensor's memory."""
    return tensor.numpy() if tensor.is_cpu else tensor


def count(size: int, like: Array, xp: Any) -> Array:
    """Return 0 to `size - 1`, int64, on the device of `like`; not to be written into."""
    return _numpy_count(size) if xp is np else torch.arange(size, device=like.device)


@functools.cache
def _numpy_count(size: int) -> Array:
    return np.arange(size)


def log_sum_exp(rows: Array, xp: Any) -> Array:
    """Return the log of the sum of exponentials along the last dimension, without overflow."""
    shift = rows.amax(-1) if xp is torch else rows.max(-1)
    return shift + xp.log(xp.exp(rows - shift[..., None]).sum(-1))


def mean_by_key(
    keys: Array, values: Array, accepted: Array | None, xp: Any
) -> tuple[Array, Array | None]:
    """Return, at every entry, the mean over all accepted entries with the same key.

    Costs O(m log m) for m entries, whatever the range of the keys. The order of the entries does
    not matter, to the last bit.

    Args:
        keys: `tasks x entries` int64.
        values: `tasks x entries`, or `tasks x entries x d`, between -4 and 4 if accepted.
        accepted: Which tasks count, `tasks` bool; None for all.
        xp: `numpy` or `torch`.

    Returns:
        The means, of the shape of the values, and which keys have an accepted entry, `tasks x
        entries`; None for all.
    """
    wide = values.ndim == keys.ndim + 1
    ordered = keys.reshape(-1)
    order = ordered.argsort(stable=True)  # of integers, the quicker one in NumPy
    ordered = ordered[order]
    first = xp.searchsorted(ordered, keys, side="left")
    last = xp.searchsorted(ordered, keys, side="right") - 1

    def total(integers: Array) -> Array:
        in_order = integers.reshape((len(order), *integers.shape[keys.ndim :]))[order]
        running = in_order.cumsum(0)
        return running[last] - running[first] + in_order[first]

    n_seen, seen = last - first + 1, None
    if accepted is not None:
        taken = accepted[:, None, None] if wide else accepted[:, None]
        values = xp.where(taken, values, xp.zeros_like(values))
        n_seen = total(xp.asarray(accepted[:, None] & (keys == keys), dtype=xp.int64))
        n_seen, seen = xp.clip(n_seen, 1, None), n_seen > 0
    sums = total(xp.asarray(xp.round(values * _UNIT), dtype=xp.int64))
    n_seen = xp.asarray(n_seen[..., None] if wide else n_seen, dtype=values.dtype)
    return xp.asarray(sums, dtype=values.dtype) / (n_seen * _UNIT), seen


def move_average(average: Tensor, values: Tensor, counted: Tensor, rate: float | Tensor) -> None:
    """Move averages, in place, towards the means of those values that count, if any do.

    The order of the values does not matter, to the last bit.

    Args:
        average: A scalar, or a vector.
        values: Of any shape, of a vector with one more dimension in front, between -4 and 4 where
            they count.
        counted: Of the same shape, bool.
        rate: How far, 0 (not at all) to 1 (all the way); a number or a scalar tensor.
    """
    units = (values * _AVERAGE_UNIT).round().long()
    total = units.where(counted, 0).flatten(average.ndim).sum(-1)
    n_counted = counted.flatten(average.ndim).sum(-1)
    mean = total.to(average.dtype) / (n_counted.clamp_min(1) * _AVERAGE_UNIT)
    average += rate * (mean - average) * (n_counted > 0)
