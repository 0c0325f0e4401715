"""Averages that do not depend on the order of what is averaged, to the last bit."""

from __future__ import annotations

from torch import Tensor

_UNIT = 2**24
"""Values are added up as integers, in units of 1 / _UNIT."""


def move_average(average: Tensor, values: Tensor, counted: Tensor, rate: float | Tensor) -> None:
    """Move averages, in place, towards the means of those values that count, if any do.

    Args:
        average: A scalar, or a vector.
        values: Of any shape, of a vector with one more dimension in front, between -4 and 4 where
            they count.
        counted: Of the same shape, bool.
        rate: How far, 0 (not at all) to 1 (all the way); a number or a scalar tensor.
    """
    total = (values * _UNIT).round().long().where(counted, 0).flatten(average.ndim).sum(-1)
    n_counted = counted.flatten(average.ndim).sum(-1)
    mean = total.to(average.dtype) / (n_counted.clamp_min(1) * _UNIT)
    average += rate * (mean - average) * (n_counted > 0)
