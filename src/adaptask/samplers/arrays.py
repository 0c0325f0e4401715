"""The samplers' arithmetic, written once for two libraries: NumPy on the CPU, torch elsewhere.

A sampler works on very small arrays. On the CPU a torch operation costs several microseconds
before it does anything, a NumPy operation a third of that, so CPU tensors are handed to NumPy,
which works on their memory. The functions that take an `xp` use only what both libraries call by
the same name; `tests/samplers/test_arrays.py` checks that they give the same results.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = Any
"""A NumPy array or a torch tensor."""

# Sums are taken over integers, so that they do not depend on the order of the tasks, on how they
# are spread over processes, or on the order in which a device happens to add.
_UNIT = 2.0**44


def namespace(tensor: Tensor) -> Any:
    """Return the library to compute with: `numpy` for a CPU tensor, `torch` for others."""
    return torch if tensor.device.type != "cpu" else np


def view(tensor: Tensor) -> Array:
    """Return what `namespace(tensor)` works on, sharing the tensor's memory."""
    return tensor if tensor.device.type != "cpu" else tensor.numpy()


def as_tensor(array: Array) -> Tensor:
    """Return a tensor that shares the array's memory."""
    return array if isinstance(array, Tensor) else torch.from_numpy(array)


def as_columns(columns: list[Array], xp: Any) -> Array:
    """Return `rows x columns` of arrays of `rows`, or of numbers for a single row."""
    if xp is torch:
        return torch.stack(columns, -1)
    rows = np.array(columns)
    return np.ascontiguousarray(rows.T) if rows.ndim == 2 else rows[None]


def log_sum_exp(rows: Array, xp: Any) -> Array:
    """Return the log of the sum of exponentials along the last dimension, without overflow."""
    shift = rows.amax(-1) if xp is torch else rows.max(-1)
    return shift + xp.log(xp.exp(rows - shift[..., None]).sum(-1))


def mean_by_key(
    keys: Array, values: Array, accepted: Array | None, xp: Any
) -> tuple[Array, Array | None]:
    """Return, at every entry, the mean over all accepted entries with the same key.

    Costs O(m log m) for m entries, whatever the range of the keys, and does not depend on the
    order of the entries, to the last bit.

    Args:
        keys: `tasks x entries` int64.
        values: `tasks x entries`, between -4 and 4 where accepted.
        accepted: Which tasks count, `tasks` bool; None for all.
        xp: `numpy` or `torch`.

    Returns:
        The means, `tasks x entries`, and where there was an accepted entry to take one of; None
        for everywhere.
    """
    ordered = keys.reshape(-1)
    order = ordered.argsort(stable=True)  # of integers, the quicker one in NumPy
    ordered = ordered[order]
    first = xp.searchsorted(ordered, keys, side="left")
    last = xp.searchsorted(ordered, keys, side="right") - 1

    def total(integers: Array) -> Array:
        in_order = integers.reshape(-1)[order]
        running = in_order.cumsum(0)
        return running[last] - running[first] + in_order[first]

    n_seen, seen = last - first + 1, None
    if accepted is not None:
        values = xp.where(accepted[:, None], values, xp.zeros_like(values))
        n_seen = total(xp.asarray(accepted[:, None] & (keys == keys), dtype=xp.int64))
        n_seen, seen = xp.clip(n_seen, 1, None), n_seen > 0
    sums = total(xp.asarray(xp.round(values * _UNIT), dtype=xp.int64))
    n_seen = xp.asarray(n_seen, dtype=values.dtype)
    return xp.asarray(sums, dtype=values.dtype) / (n_seen * _UNIT), seen
