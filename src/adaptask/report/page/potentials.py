"""Potentials of class pairs: from a snapshot to an order of the classes, extremes and bytes."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptask.report.run import Snapshot

Matrix = NDArray[np.float32]
PairList = list[tuple[int, int, float]]
"""Two classes and their log potential, pair by pair."""

_LEVELS = 255


def has_pairs(snapshot: Snapshot) -> bool:
    """Return whether a snapshot has potentials of pairs, rather than weights of classes or none."""
    shape = () if snapshot.distribution is None else snapshot.distribution.shape
    return len(shape) == 2 and shape[0] == shape[1] and shape[0] > 1


def log_potentials(snapshot: Snapshot) -> Matrix:
    """Return the log potentials of a snapshot with 0 on the diagonal, all finite, symmetric."""
    matrix = np.array(snapshot.distribution, dtype=np.float32)
    np.fill_diagonal(matrix, 0.0)
    matrix = np.nan_to_num(matrix, nan=0.0, posinf=88.0, neginf=-88.0)
    return np.asarray((matrix + matrix.T) / 2, dtype=np.float32)


def cluster_order(matrix: Matrix) -> NDArray[np.int64]:
    """Return an order of the classes in which those with high potentials are together.

    Hierarchical clustering with average linkage; the distance of two classes is the highest
    potential less theirs. Of the orders that the tree allows, the one with the smallest sum of
    distances between neighbors (optimal leaf ordering).

    Args:
        matrix: Log potentials, `classes x classes`, symmetric.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage

    n_classes = len(matrix)
    if n_classes < 3:
        return np.arange(n_classes)
    above = np.triu_indices(n_classes, 1)
    distances = matrix[above].max() - matrix[above].astype(np.float64)
    tree = linkage(distances, method="average", optimal_ordering=True)
    return np.asarray(leaves_list(tree), dtype=np.int64)


def confusion_rank(matrix: Matrix) -> NDArray[np.int64]:
    """Return all classes, ordered by the highest potential that each has with another one."""
    others = np.where(np.eye(len(matrix), dtype=bool), -np.inf, matrix)
    return np.argsort(-others.max(axis=1), kind="stable")


def extreme_pairs(matrix: Matrix, n_pairs: int) -> tuple[PairList, PairList]:
    """Return the pairs with the highest and the lowest log potentials, the most extreme first.

    A pair that has never been in a task is where it started, at exactly 0; it is not called easy
    if others have other values.

    Args:
        matrix: Log potentials, `classes x classes`, symmetric.
        n_pairs: How many of each, at most; no pair is in both.
    """
    rows, columns = np.triu_indices(len(matrix), 1)
    values = matrix[rows, columns]
    ranked = np.argsort(-values, kind="stable")
    n_hardest = min(n_pairs, len(ranked) // 2)
    rest = ranked[n_hardest:][::-1]
    if np.any(values[rest] != 0):
        rest = rest[values[rest] != 0]

    def listed(chosen: NDArray[np.int64]) -> PairList:
        return [(int(rows[k]), int(columns[k]), float(values[k])) for k in chosen]

    return listed(ranked[:n_hardest]), listed(rest[:n_pairs])


def quantize(matrices: Sequence[Matrix]) -> dict[str, Any]:
    """Return symmetric matrices of one size as bytes over their common range.

    Returns:
        `data`, in base64: the upper triangles row by row, one matrix after another; `low`, the
        value of byte 0; `step` from one byte to the next. No entry is off by more than half a step.
    """
    above = np.triu_indices(len(matrices[0]), 1)
    values = np.stack([matrix[above] for matrix in matrices]).astype(np.float64)
    low, high = float(values.min()), float(values.max())
    step = (high - low) / _LEVELS or 1 / _LEVELS
    levels = np.clip(np.round((values - low) / step), 0, _LEVELS).astype(np.uint8)
    data = base64.b64encode(levels.tobytes()).decode("ascii")
    return {"data": data, "low": low, "step": step}


def mean_within(matrix: NDArray[np.floating], tasks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean over the pairs of each task, `tasks`.

    Args:
        matrix: Of the pairs of all classes, `classes x classes`.
        tasks: Classes, `tasks x way`.
    """
    rows, columns = np.triu_indices(tasks.shape[1], 1)
    return np.asarray(matrix[tasks[:, rows], tasks[:, columns]].mean(axis=1), dtype=np.float64)
