"""The potentials of class pairs made fit to be looked at: order, bytes, extremes."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptask.report.run import Run, Snapshot, snapshot_files

Matrix = NDArray[np.float32]

_LEVELS = 255


@dataclass(frozen=True, eq=False)
class Quantised:
    """Symmetric matrices as bytes: the parts above the diagonals, row by row, one after another."""

    data: bytes
    low: float
    """Value of byte 0."""
    step: float
    """From one byte to the next; no entry is off by more than half of it."""

    @property
    def base64(self) -> str:
        """The bytes as text."""
        return base64.b64encode(self.data).decode("ascii")


def spread(items: Sequence[tuple[int, Path]], at_most: int) -> list[tuple[int, Path]]:
    """Return up to so many items, evenly spread, with the first and the last."""
    if len(items) <= at_most:
        return list(items)
    places = np.unique(np.round(np.linspace(0, len(items) - 1, at_most)).astype(int))
    return [items[place] for place in places]


def pair_snapshots(record: Run, at_most: int) -> list[Snapshot]:
    """Return snapshots of a run that have pair potentials, evenly spread; only these are read.

    Those that are damaged are left out.
    """
    last = record.last_snapshot
    if last is None or not has_pairs(last):
        return []
    files = [file for file in snapshot_files(record.path / "snapshots") if file[0] <= last.step]
    read = (record.snapshot(*file) for file in spread(files, at_most))
    found = [snapshot for snapshot in read if snapshot is not None]
    n_classes = len(_matrix(found[-1]))
    return [snapshot for snapshot in found if _shape(snapshot) == (n_classes, n_classes)]


def has_pairs(snapshot: Snapshot) -> bool:
    """Return whether a snapshot has potentials of pairs, rather than weights of classes or none."""
    shape = _shape(snapshot)
    return len(shape) == 2 and shape[0] == shape[1] and shape[0] > 1


def _shape(snapshot: Snapshot) -> tuple[int, ...]:
    return () if snapshot.distribution is None else snapshot.distribution.shape


def _matrix(snapshot: Snapshot) -> Matrix:
    assert snapshot.distribution is not None
    return snapshot.distribution


def log_potentials(snapshot: Snapshot) -> Matrix:
    """Return the log potentials of a snapshot with 0 on the diagonal, all finite, symmetric."""
    matrix = np.array(_matrix(snapshot), dtype=np.float32)
    np.fill_diagonal(matrix, 0.0)
    matrix = np.nan_to_num(matrix, nan=0.0, posinf=88.0, neginf=-88.0)
    return np.asarray((matrix + matrix.T) / 2, dtype=np.float32)


def cluster_order(matrix: Matrix) -> NDArray[np.int64]:
    """Return an order of the classes in which those with high potentials stand together.

    Hierarchical clustering with average linkage; the distance of two classes is the highest
    potential less theirs. Of the orders that the tree allows, the one with the least sum of
    distances between neighbours (optimal leaf ordering).

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
    """Return all classes, in the order in which they come when pairs go from high to low."""
    return np.array(list(dict.fromkeys(_ranked_pairs(matrix).ravel().tolist())), dtype=np.int64)


def most_confused(matrix: Matrix, order: NDArray[np.int64], n_classes: int) -> NDArray[np.int64]:
    """Return the classes of the highest pairs, at most so many, in the given order."""
    chosen = confusion_rank(matrix)[:n_classes]
    return order[np.isin(order, chosen)]


def extreme_pairs(
    matrix: Matrix, counts: NDArray[np.int64] | None, n_pairs: int
) -> tuple[list[tuple[int, int, float]], list[tuple[int, int, float]]]:
    """Return the pairs with the highest and the lowest log potentials, the most extreme first.

    A pair that has never been in a task stands where it started, at exactly 0; where others have
    lower or other values it is not called easy. Of equal pairs those of classes seen often come
    first among the lowest: what little they are confused is known best.

    Args:
        matrix: Log potentials, `classes x classes`, symmetric.
        counts: In how many tasks each class has been, `classes`; None if that is not known.
        n_pairs: How many of each, at most; no pair is in both.
    """
    ranked = _ranked_pairs(matrix)
    hardest = ranked[: min(n_pairs, len(ranked) // 2)]
    rest = ranked[len(hardest) :]
    values = matrix[rest[:, 0], rest[:, 1]]
    touched = rest[values != 0] if np.any(values != 0) else rest
    seen = np.zeros(len(matrix), np.int64) if counts is None else counts
    rarity = -np.minimum(seen[touched[:, 0]], seen[touched[:, 1]])
    lowest = touched[np.lexsort((rarity, matrix[touched[:, 0], touched[:, 1]]))][:n_pairs]
    return _listed(matrix, hardest), _listed(matrix, lowest)


def _ranked_pairs(matrix: Matrix) -> NDArray[np.int64]:
    """Return all pairs, the highest first, `pairs x 2`."""
    rows, columns = np.triu_indices(len(matrix), 1)
    order = np.argsort(-matrix[rows, columns], kind="stable")
    return np.stack([rows[order], columns[order]], axis=1)


def _listed(matrix: Matrix, pairs: NDArray[np.int64]) -> list[tuple[int, int, float]]:
    return [(int(i), int(j), float(matrix[i, j])) for i, j in pairs]


def quantise(matrices: Sequence[Matrix]) -> Quantised:
    """Return matrices of one size as bytes over their common range.

    Args:
        matrices: Each `classes x classes`, symmetric, finite.
    """
    above = np.triu_indices(len(matrices[0]), 1)
    values = np.stack([matrix[above] for matrix in matrices]).astype(np.float64)
    low, high = float(values.min()), float(values.max())
    step = (high - low) / _LEVELS or 1.0
    levels = np.clip(np.round((values - low) / step), 0, _LEVELS).astype(np.uint8)
    return Quantised(levels.tobytes(), low, step)


def mean_within(matrix: NDArray[np.floating], tasks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean over the pairs of each task, `tasks`.

    Args:
        matrix: Of the pairs of all classes, `classes x classes`.
        tasks: Classes, `tasks x way`.
    """
    rows, columns = np.triu_indices(tasks.shape[1], 1)
    return np.asarray(matrix[tasks[:, rows], tasks[:, columns]].mean(axis=1), dtype=np.float64)
