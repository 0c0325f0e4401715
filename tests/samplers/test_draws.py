"""Draws follow the distributions of the paper, by enumeration in plain Python."""

import itertools
import math

import pytest
import torch

from adaptask.samplers import build_sampler

N_DRAWS = 200_000
REASONABLE = 1e-4


def sampler_with(log_potentials, name, n_way, *, dtype=torch.float32, **settings):
    sampler = build_sampler(name, n_classes=len(log_potentials), n_way=n_way, **settings).to(dtype)
    sampler.log_potentials.copy_(log_potentials)
    return sampler


@pytest.mark.parametrize("seed", [0, 1])
def test_gcp_follows_algorithm_1(tools, seed):
    log_potentials = tools.random_log_potentials(7, seed=seed)
    draws = sampler_with(log_potentials, "gcp", 4).sample(N_DRAWS)
    assert tools.chi_square_p_value(draws, tools.enumerate_gcp(log_potentials, 4)) > REASONABLE


@pytest.mark.parametrize("method", ["enumerate", "reject", "gibbs", "auto"])
@pytest.mark.parametrize("seed", [0, 1])
def test_cp_follows_eq_4(tools, method, seed):
    log_potentials = tools.random_log_potentials(7, seed=seed)
    draws = sampler_with(log_potentials, "cp", 4, method=method).sample(N_DRAWS)
    assert tools.chi_square_p_value(draws, tools.enumerate_cp(log_potentials, 4)) > REASONABLE


@pytest.mark.parametrize("seed", [0, 1])
def test_gcp_does_not_follow_eq_4_so_proposition_1_is_wrong(tools, seed):
    log_potentials = tools.random_log_potentials(7, seed=seed)
    draws = sampler_with(log_potentials, "gcp", 4).sample(N_DRAWS)
    assert tools.chi_square_p_value(draws, tools.enumerate_cp(log_potentials, 4)) < 1e-12


def test_the_chi_square_test_tells_cp_from_gcp_in_the_other_direction_too(tools):
    log_potentials = tools.random_log_potentials(7, seed=0)
    draws = sampler_with(log_potentials, "cp", 4).sample(N_DRAWS)
    assert tools.chi_square_p_value(draws, tools.enumerate_gcp(log_potentials, 4)) < 1e-12


def test_gcp_equals_cp_for_two_ways(tools):
    log_potentials = tools.random_log_potentials(9, seed=3)
    expected = tools.enumerate_cp(log_potentials, 2)
    for name in ("gcp", "cp"):
        draws = sampler_with(log_potentials, name, 2).sample(N_DRAWS)
        assert tools.chi_square_p_value(draws, expected) > REASONABLE
    sampler = sampler_with(log_potentials, "gcp", 2, dtype=torch.float64)
    sets = torch.tensor(list(expected))
    expected_log = torch.tensor(list(expected.values()), dtype=torch.float64).log()
    torch.testing.assert_close(sampler.log_prob(sets), expected_log)


@pytest.mark.parametrize("level", [0.0, 5.0, -300.0])
@pytest.mark.parametrize(
    ("name", "settings"),
    [("gcp", {}), *(("cp", {"method": m}) for m in ("enumerate", "reject", "gibbs"))],
    ids=str,
)
def test_equal_potentials_give_uniform(tools, name, settings, level):
    equal = torch.full((7, 7), level, dtype=torch.float64).fill_diagonal_(-torch.inf)
    draws = sampler_with(equal, name, 3, **settings).sample(50_000)
    uniform = dict.fromkeys(itertools.combinations(range(7), 3), 1 / 35)
    assert tools.chi_square_p_value(draws, uniform) > REASONABLE


def test_every_candidate_is_accepted_when_potentials_are_equal():
    sampler = build_sampler("cp", n_classes=40, n_way=5, method="reject")
    sampler.sample(1)
    candidates = sampler._draw_greedily(1000)
    gap = sampler._log_importance(candidates) - sampler._log_largest_importance()
    torch.testing.assert_close(gap, torch.zeros_like(gap), atol=1e-4, rtol=0)


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("n_way", [3, 5, 8])
def test_no_acceptance_probability_is_above_one(tools, spread, n_way):
    log_potentials = tools.random_log_potentials(20, seed=5, spread=spread)
    sampler = sampler_with(log_potentials, "cp", n_way, method="reject", dtype=torch.float64)
    sampler._follow_edits()
    candidates = sampler._draw_greedily(20_000)
    gap = sampler._log_importance(candidates) - sampler._log_largest_importance()
    assert gap.max() <= 1e-9


def test_uniform_and_c_with_equal_weights_are_uniform(tools):
    uniform = dict.fromkeys(itertools.combinations(range(8), 3), 1 / 56)
    for name in ("uniform", "c"):
        draws = build_sampler(name, n_classes=8, n_way=3).sample(N_DRAWS)
        assert tools.chi_square_p_value(draws, uniform) > REASONABLE


def test_c_draws_without_replacement_in_proportion_to_weights(tools):
    sampler = build_sampler("c", n_classes=7, n_way=3).double()
    sampler.log_weights.copy_(torch.tensor([0.0, 1.0, -1.0, 0.5, 2.0, 0.2, -0.3]))
    weights = sampler.log_weights.exp().tolist()
    probs = {}
    for a in range(7):
        for b in set(range(7)) - {a}:
            for c in set(range(7)) - {a, b}:
                left = sum(weights)
                p = weights[a] / left * weights[b] / (left - weights[a])
                p *= weights[c] / (left - weights[a] - weights[b])
                key = tuple(sorted((a, b, c)))
                probs[key] = probs.get(key, 0.0) + p
    assert tools.chi_square_p_value(sampler.sample(N_DRAWS), probs) > REASONABLE
    exact = torch.tensor(list(probs.values()), dtype=torch.float64).log()
    torch.testing.assert_close(
        sampler.log_prob(torch.tensor(list(probs))), exact, atol=1e-10, rtol=0
    )


def test_exploration_mixes_with_uniform(tools):
    log_potentials = tools.random_log_potentials(7, seed=1, spread=1.5)
    greedy = tools.enumerate_gcp(log_potentials, 3)
    mixed = {s: 0.7 * p + 0.3 / len(greedy) for s, p in greedy.items()}
    sampler = sampler_with(log_potentials, "gcp", 3, exploration=0.3, dtype=torch.float64)
    assert tools.chi_square_p_value(sampler.sample(N_DRAWS), mixed) > REASONABLE
    exact = torch.tensor(list(mixed.values()), dtype=torch.float64).log()
    torch.testing.assert_close(sampler.log_prob(torch.tensor(list(mixed))), exact)
    alone = sampler_with(log_potentials, "gcp", 3, exploration=1.0)
    assert (
        tools.chi_square_p_value(alone.sample(50_000), dict.fromkeys(greedy, 1 / 35)) > REASONABLE
    )


def test_one_task_at_a_time_follows_the_same_distribution_as_many(tools):
    log_potentials = tools.random_log_potentials(6, seed=2)
    sampler = sampler_with(log_potentials, "gcp", 3)
    draws = torch.cat([sampler.sample(1) for _ in range(20_000)])
    assert tools.chi_square_p_value(draws, tools.enumerate_gcp(log_potentials, 3)) > REASONABLE


def test_edited_potentials_are_followed_at_once(tools):
    sampler = build_sampler("gcp", n_classes=6, n_way=2)
    sampler.sample(1)
    sampler.log_potentials[0, 1] = sampler.log_potentials[1, 0] = 50.0
    assert (sampler.sample(100).sort(-1).values == torch.tensor([0, 1])).all()
    sampler.log_potentials = torch.zeros(6, 6).fill_diagonal_(-torch.inf)
    assert len(set(map(tuple, sampler.sample(500).sort(-1).values.tolist()))) == 15


def test_extreme_potentials_neither_overflow_nor_hang(tools):
    log_potentials = tools.random_log_potentials(30, seed=0, spread=1e5)
    for name, settings in (("gcp", {}), ("cp", {}), ("cp", {"method": "gibbs"})):
        draws = sampler_with(log_potentials, name, 5, **settings).sample(20)
        assert all(len(set(row)) == 5 for row in draws.tolist())


def test_reject_says_so_when_it_cannot_accept_and_auto_falls_back(tools, monkeypatch):
    import adaptask.samplers.cp as module
    from adaptask.errors import ArgumentError

    monkeypatch.setattr(module, "_PATIENCE", {"auto": 200, "reject": 200})
    log_potentials = tools.random_log_potentials(40, seed=0, spread=20)
    with pytest.raises(ArgumentError, match="method='gibbs'"):
        sampler_with(log_potentials, "cp", 5, method="reject").sample(4)
    auto = sampler_with(log_potentials, "cp", 5)
    auto.sample(4)
    assert auto.n_unaccepted > 0


@pytest.mark.parametrize(("n_classes", "n_way", "spread"), [(351, 5, 0.5), (64, 20, 0.3)])
def test_cp_at_scale_has_the_pair_marginals_of_a_long_gibbs_run(tools, n_classes, n_way, spread):
    log_potentials = block_potentials(n_classes, spread)
    n_draws = 2_000
    draws = sampler_with(log_potentials, "cp", n_way, seed=1).sample(n_draws)
    # One long chain of many independent walkers, started from uniform tasks, not from gcp.
    chain = sampler_with(log_potentials, "cp", n_way, method="gibbs", n_sweeps=40, seed=2)
    chain._follow_edits()
    start = build_sampler("uniform", n_classes=n_classes, n_way=n_way, seed=3).sample(n_draws)
    walked = chain._sweep(start)
    gap, error = compare_block_frequencies(draws, walked, n_classes)
    assert (gap.abs() < 5 * error).all()


def block_potentials(n_classes, spread):
    """Ten groups of classes; pairs within a group are drawn more often."""
    group = torch.arange(n_classes) % 10
    noise = torch.randn(n_classes, n_classes, generator=torch.Generator().manual_seed(0))
    noise = 0.3 * spread * (noise + noise.mT)
    same = (group[:, None] == group[None, :]).double()
    return (2 * spread * same + noise).fill_diagonal_(-torch.inf)


def compare_block_frequencies(draws, others, n_classes):
    """Difference of the pair frequencies between groups, and its standard error."""

    def frequencies(tasks):
        n_way = tasks.shape[1]
        members = torch.nn.functional.one_hot(tasks % 10, 10).double().sum(1)
        pairs = members[:, :, None] * members[:, None, :]
        same = torch.diag_embed(members)
        per_task = ((pairs - same) / (n_way * (n_way - 1))).flatten(1)
        return per_task.mean(0), per_task.std(0) / math.sqrt(len(tasks))

    (mean, error), (other_mean, other_error) = frequencies(draws), frequencies(others)
    return mean - other_mean, (error**2 + other_error**2).sqrt() + 1e-12


def test_the_comparison_at_scale_can_tell_gcp_from_cp(tools):
    log_potentials = block_potentials(64, 0.8)
    greedy = sampler_with(log_potentials, "gcp", 20).sample(4_000)
    exact = sampler_with(log_potentials, "cp", 20, method="gibbs").sample(4_000)
    gap, error = compare_block_frequencies(greedy, exact, 64)
    assert (gap.abs() > 5 * error).any()


def test_a_uniform_draw_of_exactly_zero_neither_warns_nor_wins(monkeypatch):
    sampler = build_sampler("gcp", n_classes=5, n_way=3)
    original = torch.Tensor.uniform_

    def with_zeros(tensor, *args, **kwargs):
        filled = original(tensor, *args, **kwargs)
        filled[..., :2] = 0.0
        return filled

    monkeypatch.setattr(torch.Tensor, "uniform_", with_zeros)
    for n_tasks in (1, 50):
        assert (sampler.sample(n_tasks) >= 2).all()
