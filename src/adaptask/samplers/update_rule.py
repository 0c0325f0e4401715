"""The one rule by which all adaptive samplers learn, Eq. 2, 3 and 5 of the paper."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from adaptask.arguments import check_number, shown
from adaptask.errors import ArgumentError
from adaptask.samplers.arrays import Array
from adaptask.samplers.strategies import Strategy, find_strategy

LARGEST_ALPHA = 1e6
"""Above it, float32 log-weights could overflow within a realistic number of updates."""


@dataclass(frozen=True)
class UpdateRule:
    """The multiplicative update of a weight by a confusion p, in log space.

        w <- w^tau * exp(alpha * u(p))

    Args:
        alpha: Weight of the new observation, 0 to 1e6.
        tau: Memory, from 0 (none) to 1 (nothing is forgotten).
        strategy: What of p counts, u: `hard` p, `easy` 1 - p, `uncertain` p (1 - p).

    Raises:
        ArgumentError: If a value lies outside its range.
    """

    alpha: float
    tau: float
    strategy: str
    utility: Strategy = field(init=False, repr=False)

    def __post_init__(self) -> None:
        alpha = check_number("alpha", self.alpha, low=0, high=LARGEST_ALPHA)
        object.__setattr__(self, "alpha", alpha)
        object.__setattr__(self, "tau", check_number("tau", self.tau, low=0, high=1))
        object.__setattr__(self, "utility", find_strategy(self.strategy))

    def __call__(self, log_weights: Array, confusion: Array, xp: Any) -> Array:
        """Return the new log-weights; what is minus infinity stays so."""
        gained = self.alpha * self.utility(confusion)
        if self.tau > 0:
            return self.tau * log_weights + gained
        return xp.where(log_weights > -xp.inf, gained, log_weights)  # 0 times infinity is NaN

    def __str__(self) -> str:
        return f"alpha={self.alpha:g}, tau={self.tau:g}, strategy={self.strategy!r}"


def check_dtype(dtype: torch.dtype) -> None:
    """Refuse a precision too low, or no floating-point type, for what is learnt in log space."""
    if not isinstance(dtype, torch.dtype) or dtype not in (torch.float32, torch.float64):
        raise ArgumentError(f"dtype must be torch.float32 or torch.float64; got {shown(dtype)}.")
