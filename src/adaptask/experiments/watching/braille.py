"""Curves in characters: a braille sign holds two by four dots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], dtype=np.int64)
_BLANK = 0x2800

Curve = tuple[ArrayLike, ArrayLike]
Row = list[tuple[str, int | None]]


def draw_curves(
    curves: Sequence[Curve],
    *,
    width: int,
    height: int,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
) -> list[Row]:
    """Return rows of characters, from the top, each with the number of its curve.

    Where curves cross, the later one is seen.

    Args:
        curves: Their points, x ascending.
        width: Characters in a row.
        height: Number of rows.
        x_range: What the left and right edge stand for.
        y_range: What the lower and upper edge stand for.
    """
    cells = [_cells(_dots(curve, width, height, x_range, y_range)) for curve in curves]
    rows: list[Row] = []
    for y in range(height):
        row: Row = []
        for x in range(width):
            on_top = next((i for i in reversed(range(len(cells))) if cells[i][y, x]), None)
            code = 0 if on_top is None else int(cells[on_top][y, x])
            row.append((chr(_BLANK + code) if code else " ", on_top))
        rows.append(row)
    return rows


def _dots(
    curve: Curve,
    width: int,
    height: int,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
) -> NDArray[np.bool_]:
    """Return which dots a curve fills, `4 height x 2 width`."""
    dots = np.zeros((4 * height, 2 * width), dtype=bool)
    x, y = (np.asarray(values, dtype=float) for values in curve)
    if x.size == 0:
        return dots
    columns = _scaled(x, x_range, 2 * width)
    # Of the points that fall into one column, their mean.
    found, where = np.unique(columns, return_inverse=True)
    means = np.bincount(where, weights=y) / np.bincount(where)
    reached = np.arange(found[0], found[-1] + 1)
    levels = _scaled(np.interp(reached, found, means), y_range, 4 * height)
    before = levels[0]
    for column, level in zip(reached, levels, strict=True):
        # Up or down to the level of the column before, so that a steep curve has no gaps.
        low, high = sorted((level, before + np.sign(level - before)))
        dots[low : high + 1, column] = True
        before = level
    return dots[::-1]


def _scaled(values: NDArray[np.float64], span: tuple[float, float], n: int) -> NDArray[np.int64]:
    low, high = span
    share = (values - low) / (high - low) if high > low else np.full(values.shape, 0.5)
    return np.clip((share * (n - 1)).round(), 0, n - 1).astype(np.int64)


def _cells(dots: NDArray[np.bool_]) -> NDArray[np.int64]:
    height, width = dots.shape[0] // 4, dots.shape[1] // 2
    blocks = dots.reshape(height, 4, width, 2)
    codes: NDArray[np.int64] = np.einsum("hiwj,ij->hw", blocks.astype(np.int64), _BITS)
    return codes
