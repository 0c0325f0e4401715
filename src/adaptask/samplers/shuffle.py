"""Pseudo-random permutations of any number of items that need no memory.

A shuffled list of a million classes can be read at any place without making the list: each place
is computed from a key by a Feistel network. The items are cells of a table of about sqrt(n) rows
and columns, read row by row, the last row perhaps incomplete. A round turns every row by a hash of
its number, then every column by a hash of its number, each within its own length. Each of these is
a permutation of the n cells, so all rounds together are one.

Only 32-bit integers are used, so that NumPy, torch and Triton give the same values.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from adaptask.samplers.update_rule import Array

_MASK = (1 << 32) - 1
# Constants of hash functions with little bias: Wellons' `lowbias32`, and the golden ratio.
MIX = (0x7FEB352D, 0x846CA68B)
GOLDEN = 0x9E3779B9


def table_of(size: int) -> tuple[int, int, int]:
    """Return columns and rows of the table that holds so many items, and the last row's length."""
    n_columns = math.isqrt(size - 1) + 1
    n_rows = -(-size // n_columns)
    return n_columns, n_rows, size - n_columns * (n_rows - 1)


def n_rounds_of(size: int) -> int:
    """Return how many rounds hide the order of so many items; the fewer rows, the more it takes."""
    return 4 if size > 64 else 8


def mixed(numbers: Array, xp: Any) -> Array:
    """Return a hash of integers, 0 to 2^32 - 1: uint32 in NumPy, int64 in torch."""
    numbers = _wrapped(numbers, xp)
    numbers = numbers ^ (numbers >> 16)
    numbers = _wrapped(numbers * MIX[0], xp)
    numbers = numbers ^ (numbers >> 15)
    numbers = _wrapped(numbers * MIX[1], xp)
    return numbers ^ (numbers >> 16)


def derived_keys(key: Array, numbers: Array, purpose: int, xp: Any) -> Array:
    """Return a key for each number, unrelated to those of other numbers and purposes."""
    offset = purpose * GOLDEN & _MASK
    return mixed(_wrapped(key, xp) ^ mixed(mixed(numbers, xp) + offset, xp), xp)


def round_keys(keys: Array, size: int, xp: Any) -> Array:
    """Return the keys of all turns of shuffled lists of that size, `... x turns`."""
    n_turns = 2 * n_rounds_of(size)
    turns = _arange(n_turns) if xp is np else xp.arange(n_turns, device=keys.device)
    return mixed(_wrapped(keys, xp)[..., None] + turns * GOLDEN, xp)


def shuffled(places: Array, keys: Array, size: int, xp: Any) -> Array:
    """Return the items at some places of shuffled lists.

    Args:
        places: `... x places`, integers from 0 to `size - 1`.
        keys: `... x turns`, `round_keys` of each list's key for this size.
        size: Length of the lists, at most 2^31 - 1.
        xp: `numpy` or `torch`.

    Returns:
        `... x places` int64, from 0 to `size - 1`; other places of a list hold other items.
    """
    n_columns, n_rows, rest = table_of(size)
    number: Any = np.uint32 if xp is np else int
    whole_row, missing, whole_column = number(n_columns), number(n_columns - rest), number(n_rows)
    places = _wrapped(places, xp)
    row, column = places // n_columns, places % n_columns
    for k in range(0, keys.shape[-1], 2):
        length = whole_row - (row == n_rows - 1) * missing
        column = _turned(column, length, row, keys[..., k, None], xp)
        length = whole_column - (column >= rest) * number(1)
        row = _turned(row, length, column, keys[..., k + 1, None], xp)
    return xp.asarray(row * n_columns + column, dtype=xp.int64)


def _turned(place: Array, length: Array, number: Array, key: Array, xp: Any) -> Array:
    """Return the place in a circle of that length after a turn by a hash of the number."""
    turn = (number + key) * MIX[0]
    if xp is not np:
        turn &= _MASK
    turn = (turn ^ (turn >> 15)) * MIX[1]
    if xp is not np:
        turn &= _MASK
    place = place + ((turn >> 16) * length >> 16)  # lengths are below 2^16, turns below them
    # If it is within the circle, the difference is below 0, that is: very large.
    return xp.minimum(place, _wrapped(place - length, xp))


def _wrapped(numbers: Array, xp: Any) -> Array:
    """Return integers modulo 2^32: NumPy has a type for them, torch needs a wider one."""
    return numbers & _MASK if xp is not np else np.asarray(numbers).astype(np.uint32, copy=False)


@functools.cache
def _arange(size: int) -> Array:
    return np.arange(size, dtype=np.uint32)
