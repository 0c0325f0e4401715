"""What the laws share: how to run them, and how to say that one is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


def require(holds: bool, law: str, came: object = None) -> None:
    """Raise an `AssertionError` that says which law is broken, unless it holds."""
    if not holds:
        raise AssertionError(f"Broken: {law}." + ("" if came is None else f" Got {came}."))


def check_laws(laws: Iterable[Callable[[Any], None]], subject: Any) -> None:
    """Check that a subject obeys every law; an error of any kind breaks the law it ends.

    Raises:
        AssertionError: If a law is broken.
    """
    for law in laws:
        try:
            law(subject)
        except AssertionError:
            raise
        except Exception as error:
            came = f"{type(error).__name__}: {error}"
            raise AssertionError(f"Broken: {law.__name__} ended in {came}") from error


def equal(left: Any, right: Any) -> bool:
    """Compare states, NaN and minus infinity included, to the last bit."""
    if isinstance(left, Tensor):
        return isinstance(right, Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[k], right[k]) for k in left)
    return bool(left == right)
