"""Checks of the values that users give, each with a message that says what to do."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from adaptask.errors import ArgumentError

LARGEST_SEED = 2**63 - 1
_LARGEST = 2**31 - 1
"""Of integers without a bound of their own: nothing here counts further, and torch takes no more
than twice as many digits."""
_LONGEST = 200


def check_integer(
    name: str,
    value: object,
    *,
    low: int,
    high: int | None = None,
    meaning: str = "",
    largest: int | None = _LARGEST,
) -> int:
    """Return `value` as an int between `low` and `high`, both included.

    Args:
        name: What the user calls the value.
        value: What came; any integer type, but no bool and no float.
        low: The least value allowed.
        high: The largest value allowed, if there is one.
        meaning: What `high` stands for, such as "the number of training classes".
        largest: The largest value where there is no `high`, of which nobody need know; None: any.

    Raises:
        ArgumentError: If it is no integer or lies outside.
    """
    expected = f"at least {low}" if high is None else f"between {low} and {high}"
    if meaning:
        expected += f", {meaning}"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except Exception:  # whatever the value's own code raises
        number = None
    if number is None or isinstance(value, bool):
        raise ArgumentError(f"{name} must be an integer {expected}; got {shown(value)}.")
    if number < low or (high is not None and number > high):
        raise ArgumentError(f"{name} must be {expected}; got {shown(number)}.")
    if high is None and largest is not None and number > largest:
        raise ArgumentError(f"{name} must be at most {largest}; got {shown(number)}.")
    return number


def check_seed(name: str, value: object) -> int:
    """Return `value` as a seed, an int from 0 to 2^63 - 1.

    Raises:
        ArgumentError: If it is none.
    """
    return check_integer(name, value, low=0, largest=LARGEST_SEED)


def check_flag(name: str, value: object) -> bool:
    """Return `value` if it is a bool: a text such as "no" would count as true.

    Raises:
        ArgumentError: If it is none.
    """
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} must be True or False; got {shown(value)}.")
    return value


def check_number(name: str, value: object, *, low: float, high: float) -> float:
    """Return `value` as a float between `low` and `high`, both included.

    Raises:
        ArgumentError: If it is no finite number or lies outside.
    """
    bounds = f"of at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
    expected = f"{name} must be a number {bounds}"
    try:
        number = float(value)  # type: ignore[arg-type]
    except Exception:  # whatever the value's own code raises
        raise ArgumentError(f"{expected}; got {shown(value)}.") from None
    if isinstance(value, (bool, str)) or not math.isfinite(number) or not low <= number <= high:
        raise ArgumentError(f"{expected}; got {shown(value)}.")
    return number


def check_choice(name: str, value: object, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`.

    Raises:
        ArgumentError: If it is not; the message lists the choices.
    """
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise ArgumentError(f"{name} must be one of {', '.join(known)}; got {shown(value)}.")
    return value


def check_members(name: str, part: object, *members: str) -> None:
    """Check that a part has what will be asked of it.

    Raises:
        ArgumentError: If something is missing; the message names it.
    """
    missing = [member for member in members if not hasattr(part, member)]
    if missing:
        raise ArgumentError(
            f"the {name} must have {', '.join(members)}; {type(part).__name__} has no "
            f"{', '.join(missing)}."
        )


def shown(value: object) -> str:
    """Return a value as a message shows it: in one line that is not too long."""
    try:
        text = repr(value)
    except Exception:  # such as of an integer of more than 4,300 digits
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def check_image_shape(image_shape: Any) -> tuple[int, int, int]:
    """Return channels, height and width of images.

    Raises:
        ArgumentError: If they are not three positive integers.
    """
    try:
        channels, height, width = image_shape
    except Exception:  # whatever the value's own code raises
        raise ArgumentError(
            f"image_shape must be (channels, height, width); got {shown(image_shape)}."
        ) from None
    return (
        check_integer("channels of image_shape", channels, low=1),
        check_integer("height of image_shape", height, low=1),
        check_integer("width of image_shape", width, low=1),
    )


def shown_count(count: int) -> str:
    """Return a count as a message shows it: in a few digits, also beyond the range of a float."""
    return f"{count:.3g}" if count < 10**300 else f"10^{math.log10(count):.0f}"
