"""Averages that do not depend on the order of what is averaged, to the last bit."""

from __future__ import annotations

from torch import Tensor

_UNIT = 2**24
"""Values are added up as integers, in units of 1 / _UNIT."""


def move_average(average: Tensor, values: Tensor, counted: Tensor, rate: float | Tensor) -> None:
    """Move a scalar, in place, towards the mean of those values that count, if any do.

    Args:
        average: Scalar.
        values: Of any shape, between -4 and 4 where they count.
        counted: Of the same shape, bool.
        rate: How far, 0 (not at all) to 1 (all the way); a number or a scalar tensor.
    """
    total = (values * _UNIT).round().long().where(counted, 0).sum()
    n_counted = counted.sum()
    mean = total.to(average.dtype) / (n_counted.clamp_min(1) * _UNIT)
    average += rate * (mean - average) * (n_counted > 0)
