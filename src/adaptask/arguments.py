"""Checks of the values that users give, each with a message that says what to do."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from adaptask.errors import ArgumentError

_LARGEST_SEED = 2**63 - 1
_LARGEST = 2**31 - 1
"""Largest integer if there is no other bound: nothing here counts further, and torch fails with
larger ones in many places."""
_LONGEST = 200


def check_integer(
    name: str,
    value: object,
    *,
    low: int,
    high: int | None = None,
    meaning: str = "",
    largest: int = _LARGEST,
) -> int:
    """Return `value` as an int between `low` and `high`, both included.

    Args:
        name: What the user calls the value.
        value: Any integer type, but not a bool or a float.
        low: The smallest value allowed.
        high: The largest value allowed, if there is one.
        meaning: What `high` stands for, such as "the number of training classes".
        largest: Bound if `high` is None; it is mentioned only to those who exceed it.

    Raises:
        ArgumentError: If it is not an integer or is out of range.
    """
    expected = f"at least {low}" if high is None else f"between {low} and {high}"
    if meaning:
        expected += f", {meaning}"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ArgumentError(f"{name} must be an integer {expected}; got {format_value(value)}.")
    if number < low or (high is not None and number > high):
        raise ArgumentError(f"{name} must be {expected}; got {number}.")
    if high is None and number > largest:
        raise ArgumentError(f"{name} must be at most {largest}; got {number}.")
    return number


def check_seed(name: str, value: object) -> int:
    """Return `value` as a seed, an int from 0 to 2^63 - 1.

    Raises:
        ArgumentError: If it is not.
    """
    return check_integer(name, value, low=0, largest=_LARGEST_SEED)


def check_flag(name: str, value: object) -> bool:
    """Return `value` if it is a bool; a string such as "no" would count as true.

    Raises:
        ArgumentError: If it is not.
    """
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} must be True or False; got {format_value(value)}.")
    return value


def check_number(
    name: str, value: object, *, low: float, high: float, excludes_low: bool = False
) -> float:
    """Return `value` as a float between `low` and `high`, both included.

    Args:
        name: What the user calls the value.
        value: Any number, but not a bool.
        low: The smallest value allowed.
        high: The largest value allowed; infinity if any finite one is.
        excludes_low: Whether the value must be above `low`; for an infinite `high`.

    Raises:
        ArgumentError: If it is not a finite number or is out of range.
    """
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    is_low = number <= low if excludes_low else number < low
    if not math.isfinite(number) or is_low or number > high:
        least = f"above {low:g}" if excludes_low else f"of at least {low:g}"
        bounds = least if math.isinf(high) else f"between {low:g} and {high:g}"
        raise ArgumentError(f"{name} must be a number {bounds}; got {format_value(value)}.")
    return number


def check_choice(name: str, value: object, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`.

    Raises:
        ArgumentError: If it is not; the message lists the choices and has the nearest one.
    """
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        near = difflib.get_close_matches(str(value), known, n=1)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        raise ArgumentError(
            f"{name} must be one of {', '.join(known)}; got {format_value(value)}.{guess}"
        )
    return value


def check_members(name: str, part: object, *members: str) -> None:
    """Check that an object has the attributes that will be needed.

    Raises:
        ArgumentError: If some are missing; the message names them. Or if it is a class or a name.
    """
    if isinstance(part, str | type):
        got = f"the name {part!r}" if isinstance(part, str) else f"the class {part.__name__}"
        raise ArgumentError(f"the {name} must be an object; got {got}. Build one from it first.")
    missing = [member for member in members if not hasattr(part, member)]
    if missing:
        raise ArgumentError(
            f"the {name} must have {', '.join(members)}; {type(part).__name__} has no "
            f"{', '.join(missing)}."
        )


def check_image_shape(image_shape: Any) -> tuple[int, int, int]:
    """Return channels, height and width of images.

    Raises:
        ArgumentError: If they are not three positive integers.
    """
    try:
        channels, height, width = image_shape
    except (TypeError, ValueError):
        raise ArgumentError(
            f"image_shape must be (channels, height, width); got {format_value(image_shape)}."
        ) from None
    return (
        check_integer("channels of image_shape", channels, low=1),
        check_integer("height of image_shape", height, low=1),
        check_integer("width of image_shape", width, low=1),
    )


def format_value(value: object) -> str:
    """Return a value as a message shows it: in one line that is not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def format_count(count: int) -> str:
    """Return a count in a few digits, also beyond the range of a float."""
    return f"{count:.3g}" if count < 10**300 else f"10^{math.log10(count):.0f}"


def format_names(names: Sequence[str], most: int = 5) -> str:
    """Return the first of some names, and how many more there are.

    >>> format_names(["a", "b", "c", "d"], most=3)
    'a, b, c and 1 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
