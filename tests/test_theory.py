"""The closed forms against brute force."""

import itertools
import math

import pytest
import torch

from adaptask import theory
from adaptask.errors import ArgumentError


def random_log_potentials(n_classes, *, seed, spread=0.5):
    generator = torch.Generator().manual_seed(seed)
    noise = spread * torch.randn(n_classes, n_classes, generator=generator, dtype=torch.float64)
    return (noise.triu(1) + noise.triu(1).mT).fill_diagonal_(-torch.inf)


def greedy_orders(c, n_way):
    """Probability of every order of Algorithm 1, in plain Python."""
    n, total = len(c), sum(map(sum, c))
    for order in itertools.permutations(range(n), n_way):
        p = c[order[0]][order[1]] / total
        for k in range(2, n_way):
            weights = [math.prod(c[x][j] for j in order[:k]) for x in range(n)]
            p *= weights[order[k]] / sum(weights)
        yield order, p


def test_category_sets_are_all_combinations():
    expected = [list(s) for s in itertools.combinations(range(6), 3)]
    assert theory.category_sets(6, 3).tolist() == expected
    with pytest.raises(ArgumentError, match=r"7\.62e\+06 category sets"):
        theory.category_sets(64, 5)
    with pytest.raises(ArgumentError, match=r"10\^1503 category sets"):  # no float is so large
        theory.category_sets(5000, 2500)
    for n_classes, n_way in ((5, 0), (5, -1), (2.5, 1), (3, 5), (0, 1)):
        with pytest.raises(ArgumentError, match="must be"):
            theory.category_sets(n_classes, n_way)
    theory.category_sets(6, 3).zero_()  # the caller's own copy
    assert theory.category_sets(6, 3).tolist() == expected


@pytest.mark.parametrize("n_way", [2, 3, 4, 5])
def test_gcp_distribution_equals_the_sum_over_all_orders(n_way):
    log_potentials = random_log_potentials(6, seed=n_way)
    expected = dict.fromkeys(itertools.combinations(range(6), n_way), 0.0)
    orders = dict(greedy_orders(log_potentials.exp().tolist(), n_way))
    for order, p in orders.items():
        expected[tuple(sorted(order))] += p
    sets, log_probs = theory.gcp_distribution(log_potentials, n_way)
    assert sets.tolist() == [list(s) for s in expected]
    expected_log = torch.tensor(list(expected.values()), dtype=torch.float64).log()
    torch.testing.assert_close(log_probs, expected_log, atol=1e-12, rtol=0)
    ordered = theory.gcp_log_prob_ordered(log_potentials, torch.tensor(list(orders)))
    expected_log = torch.tensor(list(orders.values()), dtype=torch.float64).log()
    torch.testing.assert_close(ordered, expected_log, atol=1e-12, rtol=0)


def test_gcp_log_prob_is_the_same_in_chunks(monkeypatch):
    log_potentials = random_log_potentials(9, seed=0)
    sets, whole = theory.gcp_distribution(log_potentials, 4)
    monkeypatch.setattr(theory, "_CHUNK_ELEMENTS", 500)
    torch.testing.assert_close(theory.gcp_log_prob(log_potentials, sets), whole)


def test_gcp_log_prob_of_large_ways_is_refused():
    log_potentials = random_log_potentials(20, seed=1)
    task = torch.arange(13).unsqueeze(0)
    with pytest.raises(ArgumentError, match="gcp_log_prob_ordered"):
        theory.gcp_log_prob(log_potentials, task)
    with pytest.raises(ArgumentError, match="200! orders"):
        theory.gcp_log_prob(random_log_potentials(200, seed=1), torch.arange(200).unsqueeze(0))


@pytest.mark.parametrize("n_way", [2, 3, 4])
def test_cp_distribution_equals_eq_4(n_way):
    log_potentials = random_log_potentials(7, seed=n_way)
    c = log_potentials.exp().tolist()
    scores = [
        math.prod(c[i][j] for i, j in itertools.combinations(s, 2))
        for s in itertools.combinations(range(7), n_way)
    ]
    expected = torch.tensor([score / sum(scores) for score in scores], dtype=torch.float64)
    torch.testing.assert_close(theory.cp_distribution(log_potentials, n_way)[1].exp(), expected)


@pytest.mark.parametrize("n_classes", [5, 8, 12])
def test_proposition_1_fails_from_three_ways_on(n_classes):
    log_potentials = random_log_potentials(n_classes, seed=n_classes, spread=1.0)
    for n_way in (2, 3, 4):
        cp = theory.cp_distribution(log_potentials, n_way)[1]
        gcp = theory.gcp_distribution(log_potentials, n_way)[1]
        distance = theory.total_variation(cp, gcp)
        assert distance < 1e-12 if n_way == 2 else 0.01 < distance < 0.5


def test_kl_and_total_variation_on_known_distributions():
    fair = torch.full((4,), 0.25, dtype=torch.float64).log()
    certain = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64).log()
    half = torch.tensor([0.5, 0.5, 0, 0], dtype=torch.float64).log()
    assert theory.kl_from_uniform(fair) == pytest.approx(0, abs=1e-12)
    assert theory.kl_from_uniform(certain) == pytest.approx(math.log(4))
    assert theory.kl_from_uniform(half) == pytest.approx(math.log(2))
    assert theory.total_variation(fair, certain) == pytest.approx(0.75)
    assert math.isnan(theory.kl_from_uniform(torch.tensor([math.nan, 0.0])))
    with pytest.raises(ArgumentError, match="same outcomes"):
        theory.total_variation(fair, half[:1])


@pytest.mark.parametrize(
    ("log_potentials", "class_ids", "message"),
    [
        (torch.zeros(4, 3), torch.tensor([[0, 1]]), r"classes x classes; got .* \(4, 3\)"),
        (torch.zeros(4, 4).long(), torch.tensor([[0, 1]]), "log_potentials must be floating"),
        (torch.zeros(4, 4), torch.tensor([[0, 4]]), "between 0 and 3, .* got 0 to 4"),
        (torch.zeros(4, 4), torch.tensor([[0, -1]]), "got -1 to 0"),
        (torch.zeros(4, 4), torch.tensor([0, 1]), r"class_ids must be .* of shape \(2,\)"),
        (torch.zeros(4, 4), torch.tensor([[0]]), "at least 2 classes per row"),
    ],
)
def test_sets_that_do_not_go_with_the_potentials_are_refused(log_potentials, class_ids, message):
    for log_prob in (theory.gcp_log_prob, theory.gcp_log_prob_ordered):
        with pytest.raises(ArgumentError, match=message):
            log_prob(log_potentials, class_ids)


def test_a_class_is_never_drawn_twice():
    log_potentials, twice = random_log_potentials(6, seed=0), torch.tensor([[0, 1, 1]])
    for log_prob in (theory.cp_log_score, theory.gcp_log_prob, theory.gcp_log_prob_ordered):
        assert log_prob(log_potentials, twice).tolist() == [-math.inf]
