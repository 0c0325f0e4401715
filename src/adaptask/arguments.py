"""Checks of the values that users give, each with a message that says what to do."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable

from adaptask.errors import ArgumentError


def check_integer(
    name: str, value: object, *, low: int, high: int | None = None, meaning: str = ""
) -> int:
    """Return `value` as an int between `low` and `high`, both included.

    Args:
        name: What the user calls the value.
        value: What came; any integer type, but no bool and no float.
        low: The least value allowed.
        high: The largest value allowed, if there is one.
        meaning: What `high` stands for, such as "the number of training classes".

    Raises:
        ArgumentError: If it is no integer or lies outside.
    """
    expected = f"at least {low}" if high is None else f"between {low} and {high}"
    if meaning:
        expected += f", {meaning}"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ArgumentError(f"{name} must be an integer {expected}; got {value!r}.")
    if number < low or (high is not None and number > high):
        raise ArgumentError(f"{name} must be {expected}; got {number}.")
    return number


def check_number(name: str, value: object, *, low: float, high: float) -> float:
    """Return `value` as a float between `low` and `high`, both included.

    Raises:
        ArgumentError: If it is no finite number or lies outside.
    """
    expected = f"{name} must be a number between {low:g} and {high:g}"
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ArgumentError(f"{expected}; got {value!r}.") from None
    if isinstance(value, (bool, str)) or math.isnan(number) or not low <= number <= high:
        raise ArgumentError(f"{expected}; got {value!r}.")
    return number


def check_choice(name: str, value: object, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`.

    Raises:
        ArgumentError: If it is not; the message lists the choices.
    """
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise ArgumentError(f"{name} must be one of {', '.join(known)}; got {value!r}.")
    return value
