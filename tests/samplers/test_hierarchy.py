"""Tasks of near classes against the enumeration of all orders, in plain Python."""

import itertools
import math

import pytest
import torch

from adaptask.errors import ArgumentError
from adaptask.samplers import HierarchySampler

GROUPS = ["a", "b", "a", "c", "b", "a", "b"]


def enumerate_orders(distances, alpha, n_way, variant_of=None):
    """{set: probability}, summed over all orders in which a set can be drawn."""
    n = len(distances)
    variant_of = variant_of or list(range(n))
    probs = dict.fromkeys(itertools.combinations(range(n), n_way), 0.0)
    for order in itertools.permutations(range(n), n_way):
        p = 1 / n
        for k in range(1, n_way):
            others = [c for c in range(n) if c not in order[:k]]
            fits = [c for c in others if all(variant_of[c] != variant_of[j] for j in order[:k])]
            weights = {
                c: math.exp(-alpha * sum(distances[j][c] for j in order[:k]))
                for c in fits or others
            }
            p *= weights.get(order[k], 0) / sum(weights.values())
        probs[tuple(sorted(order))] += p
    return probs


def check(tools, sampler, probs):
    found = sampler.log_prob(torch.tensor(list(probs))).exp()
    expected = torch.tensor(list(probs.values()), dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    possible = {s: p for s, p in probs.items() if p > 0}
    drawn = sampler.sample(20_000)
    assert {tuple(sorted(row)) for row in drawn.tolist()} <= set(possible)
    assert tools.chi_square_p_value(drawn, possible) > 1e-4


@pytest.mark.parametrize("alpha", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("n_way", [2, 3, 4])
def test_groups(tools, n_way, alpha):
    distances = [[float(a != b) for b in GROUPS] for a in GROUPS]
    sampler = HierarchySampler(n_classes=7, n_way=n_way, alpha=alpha, groups=GROUPS)
    check(tools, sampler, enumerate_orders(distances, alpha, n_way))


@pytest.mark.parametrize("n_way", [2, 4])
@pytest.mark.parametrize("variant_of", [None, [0, 0, 1, 1, 2, 3, 4], [0, 0, 0, 0, 1, 1, 1]])
def test_distances_and_classes_that_must_not_meet(tools, n_way, variant_of):
    places = torch.rand(7, 2, generator=torch.Generator().manual_seed(3))
    distances = torch.cdist(places, places)
    given = None if variant_of is None else torch.tensor(variant_of)
    sampler = HierarchySampler(
        n_classes=7, n_way=n_way, alpha=2.0, distances=distances, variant_of=given
    )
    check(tools, sampler, enumerate_orders(distances.tolist(), 2.0, n_way, variant_of))


def test_with_a_large_alpha_a_task_is_of_one_group_as_far_as_it_goes():
    groups = 20 * ["large"] + 3 * ["small"] + 20 * ["other"]
    sampler = HierarchySampler(n_classes=43, n_way=5, alpha=1000.0, groups=groups)
    for row in sampler.sample(2_000).tolist():
        first = groups[row[0]]
        n_near = min(5, groups.count(first))
        assert [groups[c] for c in row[:n_near]] == n_near * [first]


def test_without_groups_tasks_are_uniform():
    sampler = HierarchySampler(n_classes=9, n_way=3)
    sets = torch.combinations(torch.arange(9), 3)
    torch.testing.assert_close(sampler.log_prob(sets).exp(), torch.full((84,), 1 / 84).double())


def test_what_does_not_fit_is_refused():
    distances = torch.zeros(7, 7)
    sizes = {"n_classes": 7, "n_way": 3}
    with pytest.raises(ArgumentError, match="not both"):
        HierarchySampler(**sizes, groups=GROUPS, distances=distances)
    with pytest.raises(ArgumentError, match="each of the 7 classes; got 6"):
        HierarchySampler(**sizes, groups=GROUPS[1:])
    with pytest.raises(ArgumentError, match="each of the 7"):
        HierarchySampler(**sizes, groups="abacaba")
    with pytest.raises(ArgumentError, match="not negative"):
        HierarchySampler(**sizes, distances=distances - 1)
    with pytest.raises(ArgumentError, match="shape 7 x 7"):
        HierarchySampler(**sizes, distances=distances[1:])
    with pytest.raises(ArgumentError, match="variant_of"):
        HierarchySampler(**sizes, variant_of=torch.zeros(7))


def test_distances_of_any_size_give_complete_tasks():
    never = torch.finfo(torch.float32).max
    distances = torch.full((6, 6), never)
    for i in range(0, 6, 2):
        distances[i : i + 2, i : i + 2] = 0
    for given in (distances, torch.where(distances > 0, 20000.0, 0.0).half()):
        sampler = HierarchySampler(n_classes=6, n_way=4, distances=given)
        assert all(len(set(row)) == 4 for row in sampler.sample(50).tolist())
