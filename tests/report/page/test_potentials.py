"""The potentials: order, bytes, extremes, and which files are read."""

import base64

import numpy as np
import pytest

from adaptask.report.page.data import (
    cluster_order,
    confusion_rank,
    log_potentials,
    pair_snapshots,
)
from adaptask.report.page.potential_plots import extreme_pairs, quantize
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


def decoded(packed, n_classes, frame):
    """Read the bytes as the page does, pair by pair."""
    data = base64.b64decode(packed["data"])
    n_pairs = n_classes * (n_classes - 1) // 2
    matrix = np.zeros((n_classes, n_classes))
    for a in range(n_classes):
        for b in range(a + 1, n_classes):
            pair = a * n_classes - a * (a + 1) // 2 + b - a - 1
            matrix[a, b] = packed["low"] + packed["step"] * data[frame * n_pairs + pair]
    return matrix + matrix.T


def test_no_entry_is_off_by_more_than_half_a_step():
    frames = [symmetric(11, seed) * (seed + 1) for seed in range(4)]
    packed = quantize(frames)
    assert len(base64.b64decode(packed["data"])) == 4 * 55
    for number, frame in enumerate(frames):
        error = np.abs(decoded(packed, 11, number) - frame)
        assert error.max() <= packed["step"] / 2 + 1e-9
    values = np.concatenate([frame[np.triu_indices(11, 1)] for frame in frames])
    assert packed["step"] == pytest.approx((values.max() - values.min()) / 255)


def test_equal_potentials_are_kept_exactly():
    matrix = np.full((4, 4), 0.7, np.float32)
    packed = quantize([matrix])
    assert decoded(packed, 4, 0)[0, 1] == pytest.approx(0.7)


def test_the_extremes_are_the_highest_and_the_lowest():
    matrix = symmetric(8)
    hardest, easiest = extreme_pairs(matrix, 5)
    values = np.sort(matrix[np.triu_indices(8, 1)])
    assert [value for _, _, value in hardest] == pytest.approx(values[::-1][:5])
    assert [value for _, _, value in easiest] == pytest.approx(values[:5])
    for i, j, value in hardest + easiest:
        assert i < j
        assert matrix[i, j] == pytest.approx(value)


def test_a_pair_that_was_never_drawn_is_not_called_easy():
    matrix = np.zeros((5, 5), np.float32)
    matrix[0, 1] = matrix[1, 0] = 0.2
    matrix[2, 3] = matrix[3, 2] = 0.9
    _, easiest = extreme_pairs(matrix, 1)
    assert easiest == [(0, 1, pytest.approx(0.2))]


def test_no_pair_is_hard_and_easy_at_once():
    matrix = symmetric(3)
    hardest, easiest = extreme_pairs(matrix, 6)
    assert not {pair[:2] for pair in hardest} & {pair[:2] for pair in easiest}


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
