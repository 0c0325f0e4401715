"""Shuffled lists are permutations, look random, and are the same in NumPy and torch."""

import numpy as np
import pytest
import torch
from scipy import stats

from adaptask.samplers.shuffle import derived_keys, mixed, round_keys, shuffled, table_of

REASONABLE = 1e-4


def lists(size, keys, places=None):
    """Some shuffled lists, `keys x places`."""
    keys = round_keys(np.asarray(keys), size, np)
    return shuffled(np.arange(size) if places is None else np.asarray(places), keys, size, np)


@pytest.mark.parametrize("size", [*range(2, 301), 1000, 4112, 65_537, 1_000_000])
def test_every_list_is_a_permutation(size):
    for row in lists(size, [0, 1, 12_345, 2**32 - 1] if size < 5000 else [7]):
        assert np.array_equal(np.sort(row), np.arange(size))


@pytest.mark.parametrize("size", [2, 7, 64, 65, 4112, 2**31 - 1])
def test_torch_and_numpy_give_the_same(size):
    places = np.random.default_rng(0).integers(size, size=(3, 50))
    keys = np.array([0, 99, 2**32 - 1])
    truth = shuffled(places, round_keys(keys, size, np), size, np)
    given = (torch.from_numpy(places), round_keys(torch.from_numpy(keys), size, torch))
    found = shuffled(*given, size, torch)
    assert found.dtype == torch.int64
    assert np.array_equal(found.numpy(), truth)
    assert truth.dtype == np.int64
    numbers = torch.tensor([0, 5, 2**31, 2**40])
    as_torch = derived_keys(torch.tensor(9), numbers, 3, torch)
    as_numpy = derived_keys(np.array(9), numbers.numpy(), 3, np)
    assert np.array_equal(as_torch.numpy(), as_numpy)


def test_a_hash_has_the_published_values():
    """Of lowbias32, computed here in plain Python."""

    def hashed(x):
        x ^= x >> 16
        x = x * 0x7FEB352D & 0xFFFFFFFF
        x ^= x >> 15
        x = x * 0x846CA68B & 0xFFFFFFFF
        return x ^ x >> 16

    numbers = [0, 1, 2, 1000, 2**31, 2**32 - 1]
    assert mixed(np.array(numbers), np).tolist() == [hashed(x) for x in numbers]


@pytest.mark.parametrize("size", [3, 5, 6, 7, 10, 37, 64, 65, 100])
def test_every_item_is_as_often_at_every_place(size):
    n_lists = 20_000
    found = lists(size, derived_keys(np.array(1), np.arange(n_lists), 1, np))
    counts = np.stack([np.bincount(column, minlength=size) for column in found.T])
    statistic = ((counts - n_lists / size) ** 2 / (n_lists / size)).sum()
    assert stats.chi2.sf(statistic, (size - 1) ** 2) > REASONABLE


@pytest.mark.parametrize("size", [5, 6, 7, 10, 37, 64, 65])
@pytest.mark.parametrize("pair", [(0, 1), (0, -1), (-2, -1)])
def test_every_pair_of_items_is_as_often_at_two_places(size, pair):
    n_lists = 40_000
    found = lists(size, derived_keys(np.array(2), np.arange(n_lists), 2, np))
    codes = found[:, pair[0]] * size + found[:, pair[1]]
    counts = np.bincount(codes, minlength=size**2).reshape(size, size)
    assert not counts.diagonal().any()
    counts = counts[~np.eye(size, dtype=bool)]
    assert stats.chisquare(counts).pvalue > REASONABLE


def test_a_long_list_has_no_trace_of_the_order():
    """The first places of lists of a million: uniform, and neighbors in place are unrelated."""
    size = 1_000_000
    found = lists(size, derived_keys(np.array(3), np.arange(200), 2, np), np.arange(1023))
    counts, _ = np.histogram(found, bins=1000, range=(0, size))
    assert stats.chisquare(counts).pvalue > REASONABLE
    steps = np.diff(found, axis=1) % size
    counts, _ = np.histogram(steps, bins=1000, range=(0, size))
    assert stats.chisquare(counts).pvalue > REASONABLE
    n_columns, *_ = table_of(size)
    for part in (found // n_columns, found % n_columns):
        same = (part[:, 1:] == part[:, :-1]).mean()
        assert abs(same - 1 / n_columns) < 5 * np.sqrt(1 / n_columns / found.size)
