"""Where names stand beside their points without covering each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAP_SPAN = (-0.08, 1.08)
"""Both axes of a map whose points are from 0 to 1."""

# Of a text of 7.5 points in a panel of about 4.4 inches, in units of the map.
_LETTER, _HEIGHT, _GAP = 0.0165, 0.032, 0.018

Place = tuple[float, float]


def free_places(points: NDArray[np.float64], texts: Sequence[str]) -> list[Place | None]:
    """Return for each text where its left end and middle may stand, or None where there is no room.

    Texts are placed in their order: right of their point, left, above, below, or a little farther;
    the first place that covers no point and no text before it.

    Args:
        points: What is named, `points x 2`.
        texts: Their names.
    """
    boxes = [(x - 0.012, y - 0.012, x + 0.012, y + 0.012) for x, y in points]
    found: list[Place | None] = []
    for (x, y), text in zip(points.tolist(), texts, strict=True):
        width = _LETTER * len(text)
        choice = None
        for left, middle in _candidates(x, y, width):
            box = (left, middle - _HEIGHT / 2, left + width, middle + _HEIGHT / 2)
            inside = box[0] > MAP_SPAN[0] and box[2] < MAP_SPAN[1] + 0.02
            if inside and not any(_overlap(box, other) for other in boxes):
                choice = (left, middle)
                boxes.append(box)
                break
        found.append(choice)
    return found


def _candidates(x: float, y: float, width: float) -> list[Place]:
    near = [(x + _GAP, y), (x - _GAP - width, y)]
    for lift in (0.034, 0.06, 0.09):
        near += [(x - width / 2, y + lift), (x - width / 2, y - lift)]
        near += [(x + _GAP / 2, y + lift), (x - width, y - lift)]
    return near


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
