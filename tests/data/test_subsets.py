from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from adaptask.data.subsets import ordered_subsets, subsets_by_codes, subsets_by_keys


def by_keys(sizes, n_drawn, generator):
    return subsets_by_keys(
        sizes, n_drawn, largest=int(sizes.max()) + 3, generator=generator
    )  # padding beyond the largest must not be drawn either


def by_codes(sizes, n_drawn, generator):
    return subsets_by_codes(sizes, n_drawn, generator=generator)


WAYS = pytest.mark.parametrize("draw", [by_keys, by_codes])


@WAYS
@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_numbers_are_distinct_and_below_the_size_of_their_row(draw, data, seed):
    n_drawn = data.draw(st.integers(1, 12))
    sizes = torch.tensor(data.draw(st.lists(st.integers(n_drawn, 40), min_size=1, max_size=6)))
    drawn = draw(sizes, n_drawn, torch.Generator().manual_seed(seed))
    assert drawn.shape == (len(sizes), n_drawn)
    assert drawn.dtype == torch.int64
    for row, size in zip(drawn.tolist(), sizes.tolist(), strict=True):
        assert len(set(row)) == n_drawn
        assert min(row) >= 0
        assert max(row) < size


@WAYS
@pytest.mark.parametrize("n_drawn", [1, 2, 3])
def test_every_ordered_subset_is_equally_likely_in_rows_of_unequal_size(draw, n_drawn):
    sizes, repeats = [3, 4, 6], 40_000
    rows = torch.tensor(sizes).repeat(repeats)
    drawn = draw(rows, n_drawn, torch.Generator().manual_seed(n_drawn))
    for place, size in enumerate(sizes):
        outcomes = list(permutations(range(size), n_drawn))
        counts = dict.fromkeys(outcomes, 0)
        for row in drawn[place :: len(sizes)].tolist():
            counts[tuple(row)] += 1
        assert chisquare(list(counts.values())).pvalue > 1e-3


@WAYS
def test_a_row_drawn_whole_is_a_permutation_and_all_orders_are_equally_likely(draw):
    drawn = draw(torch.full((24_000,), 4), 4, torch.Generator().manual_seed(1))
    counts = dict.fromkeys(permutations(range(4)), 0)
    for row in drawn.tolist():
        counts[tuple(row)] += 1
    assert chisquare(list(counts.values())).pvalue > 1e-3


@WAYS
def test_rows_are_independent_of_each_other(draw):
    drawn = draw(torch.full((30_000,), 5), 1, torch.Generator().manual_seed(2)).view(-1, 2)
    counts = torch.bincount(drawn[:, 0] * 5 + drawn[:, 1], minlength=25)
    assert chisquare(counts.numpy()).pvalue > 1e-3


def test_a_huge_class_is_drawn_evenly_at_no_more_cost():
    sizes = torch.full((20_000,), 10**6)
    drawn = ordered_subsets(sizes, 2, largest=10**6, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount((drawn // 50_000).flatten(), minlength=20)
    assert chisquare(counts.numpy()).pvalue > 1e-3
    assert bool((drawn[:, 0] != drawn[:, 1]).all())
