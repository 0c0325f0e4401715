"""What the laws share: how to say that one is broken, and when two states are the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def require(holds: bool, law: str, came: object = None) -> None:
    """Raise an `AssertionError` that says which law is broken, unless it holds."""
    if not holds:
        raise AssertionError(f"Broken: {law}." + ("" if came is None else f" Got {came}."))


def equal(left: Any, right: Any) -> bool:
    """Compare states, NaN and minus infinity included, to the last bit."""
    if isinstance(left, Tensor):
        return isinstance(right, Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[k], right[k]) for k in left)
    return bool(left == right)
