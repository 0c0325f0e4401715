"""The potentials: order, highest pairs, and which files are read."""

import numpy as np
import pytest

from adaptask.report.page.class_plots import (
    cluster_order,
    confusion_rank,
    highest_pairs,
    pair_snapshots,
)
from adaptask.report.page.data import log_potentials
from adaptask.report.run import Run, Snapshot


def symmetric(n_classes, seed=0):
    half = np.triu(np.random.default_rng(seed).exponential(0.3, (n_classes, n_classes)), 1)
    return (half + half.T).astype(np.float32)


def blocks(n_blocks, size, seed=0):
    """Classes in hidden groups: high within, low between; returns the matrix and the groups."""
    random = np.random.default_rng(seed)
    groups = random.permutation(np.repeat(np.arange(n_blocks), size))
    matrix = symmetric(len(groups), seed) * 0.3 + 2.0 * np.equal.outer(groups, groups)
    np.fill_diagonal(matrix, 0.0)
    return matrix.astype(np.float32), groups


@pytest.mark.parametrize("seed", range(5))
def test_the_order_keeps_groups_together(seed):
    matrix, groups = blocks(6, 5, seed)
    order = cluster_order(matrix)
    assert sorted(order.tolist()) == list(range(30))
    assert np.count_nonzero(np.diff(groups[order])) == 5  # six runs of equal groups


def test_the_order_of_neighbors_is_the_best_that_the_tree_allows():
    # On a line each class is confused with the next alone: the order must be the line.
    place = np.random.default_rng(1).permutation(9)
    matrix = (3.0 - np.abs(np.subtract.outer(place, place))).clip(0).astype(np.float32)
    walked = place[cluster_order(matrix)]
    assert walked.tolist() in (list(range(9)), list(range(9))[::-1])


@pytest.mark.parametrize("n_classes", [1, 2, 3])
def test_few_classes_and_equal_potentials_have_an_order(n_classes):
    order = cluster_order(np.zeros((n_classes, n_classes), np.float32))
    assert sorted(order.tolist()) == list(range(n_classes))


@pytest.mark.parametrize("n_classes", [2, 3, 8, 40])
def test_the_highest_pairs_are_the_highest_of_all(n_classes):
    matrix = symmetric(n_classes)
    found = highest_pairs(matrix, 5)
    values = np.sort(matrix[np.triu_indices(n_classes, 1)])[::-1]
    assert [value for _, _, value in found] == pytest.approx(values[:5])
    assert len({pair[:2] for pair in found}) == len(found)
    for i, j, value in found:
        assert i < j
        assert matrix[i, j] == pytest.approx(value)


def test_equal_pairs_do_not_hide_a_higher_one():
    matrix = np.full((30, 30), 0.5, np.float32)
    matrix[28, 29] = matrix[29, 28] = 0.9
    assert highest_pairs(matrix, 1) == [(28, 29, pytest.approx(0.9))]


def test_the_first_in_rank_are_the_classes_of_the_highest_pairs():
    matrix = np.zeros((6, 6), np.float32)
    for (i, j), value in {(4, 1): 3.0, (5, 4): 2.0, (0, 2): 1.0}.items():
        matrix[i, j] = matrix[j, i] = value
    assert set(confusion_rank(matrix)[:3].tolist()) == {1, 4, 5}


def test_what_is_no_number_does_not_reach_the_page():
    wild = np.array([[-np.inf, np.nan], [np.inf, -np.inf]], np.float32)
    cleaned = log_potentials(Snapshot(1, wild, None))
    assert np.isfinite(cleaned).all()
    assert cleaned[0, 0] == cleaned[1, 1] == 0


def test_few_of_many_snapshots_are_read_with_the_first_and_the_last(tmp_path):
    folder = tmp_path / "snapshots"
    folder.mkdir()
    for step in range(1, 41):
        np.savez(folder / f"step-{step:07d}.npz", distribution=symmetric(4))
    (folder / "step-0000002.npz").write_bytes(b"never looked at")
    found = [snapshot.step for snapshot in pair_snapshots(Run(tmp_path), 5)]
    assert (found[0], found[-1], len(found)) == (1, 40, 5)
    assert np.ptp(np.diff(found)) <= 1


def test_weights_of_classes_are_no_pairs(tmp_path):
    folder = tmp_path / "snapshots"
    folder.mkdir()
    np.savez(folder / "step-0000001.npz", distribution=np.zeros(4, np.float32))
    assert list(pair_snapshots(Run(tmp_path), 5)) == []
