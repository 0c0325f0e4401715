"""What the laws share: how to say that one is broken, and when two states are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adaptask.arguments import shown
from adaptask.errors import ArgumentError


def check_factory(build: object) -> None:
    """Check that something can build parts.

    Raises:
        ArgumentError: If it cannot be called.
    """
    if not callable(build):
        raise ArgumentError(
            f"build must be a function of a seed that returns a fresh part; got {shown(build)}."
        )


def require(holds: bool, law: str, came: object = None) -> None:
    """Raise an `AssertionError` that says which law is broken, unless it holds."""
    if not holds:
        raise AssertionError(f"Broken: {law}." + ("" if came is None else f" Got {came}."))


def first_of(build: Callable[[int], Any]) -> Any:
    """Build a part, or raise an `AssertionError` that says why it cannot be built."""
    try:
        return build(0)
    except Exception as error:
        came = f"{type(error).__name__}: {error}"
        raise AssertionError(f"Broken: build(0) returns a part. It ended in {came}") from error


def equal(left: Any, right: Any) -> bool:
    """Compare states, NaN and minus infinity included, to the last bit."""
    if isinstance(left, Tensor):
        return isinstance(right, Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[k], right[k]) for k in left)
    return bool(left == right)
