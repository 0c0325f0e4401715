"""Weights, marginals and divergences against enumeration; estimates against their own errors."""

import itertools
import math

import pytest
import torch

from adaptask.errors import ArgumentError
from adaptask.samplers import (
    build_sampler,
    class_marginals,
    diagnostics,
    importance_weight,
    kl_from_uniform,
    pair_marginals,
)


def taught(tools, name, n_classes, n_way, *, spread=0.6, **settings):
    sampler = build_sampler(name, n_classes=n_classes, n_way=n_way, **settings)
    if name == "c":
        sampler.log_weights.copy_(torch.linspace(-spread, spread, n_classes))
    elif name != "uniform":
        potentials = tools.random_log_potentials(n_classes, seed=3, spread=spread)
        sampler.log_potentials.copy_(potentials)
    return sampler


@pytest.mark.parametrize("name", ["uniform", "c", "cp", "gcp"])
def test_marginals_and_kl_equal_sums_over_all_sets(tools, name):
    sampler = taught(tools, name, 7, 3)
    sets = list(itertools.combinations(range(7), 3))
    probs = sampler.log_prob(torch.tensor(sets)).exp().tolist()
    classes, pairs, kl = class_marginals(sampler), pair_marginals(sampler), kl_from_uniform(sampler)
    assert all(estimate.exact for estimate in (classes, pairs, kl))
    for c in range(7):
        expected = sum(p for s, p in zip(sets, probs, strict=True) if c in s)
        assert float(classes.value[c]) == pytest.approx(expected, abs=1e-9)
        for d in range(7):
            both = sum(p for s, p in zip(sets, probs, strict=True) if c in s and d in s and c != d)
            assert float(pairs.value[c, d]) == pytest.approx(both, abs=1e-9)
    assert float(classes.value.sum()) == pytest.approx(3)
    expected_kl = sum(p * math.log(p * 35) for p in probs)
    assert float(kl.value) == pytest.approx(expected_kl, abs=1e-9)
    assert float(kl.standard_error) == 0


@pytest.mark.parametrize("name", ["uniform", "c", "cp", "gcp"])
def test_estimates_lie_within_their_errors_of_the_truth(tools, name, monkeypatch):
    sampler = taught(tools, name, 9, 4)
    exact = [f(sampler) for f in (class_marginals, pair_marginals, kl_from_uniform)]
    monkeypatch.setattr(diagnostics, "LARGEST_EXACT", 0)
    for function, truth in zip(
        (class_marginals, pair_marginals, kl_from_uniform), exact, strict=True
    ):
        estimate = function(sampler, n_draws=20_000, seed=5)
        assert not estimate.exact
        assert ((estimate.value - truth.value).abs() <= 4.5 * estimate.standard_error + 1e-12).all()
        if name != "uniform" or function is not kl_from_uniform:
            assert estimate.standard_error.max() > 0


def test_the_divergence_of_cp_beyond_enumeration_uses_an_estimated_constant(tools, monkeypatch):
    from adaptask import theory

    sampler = taught(tools, "cp", 16, 5, method="gibbs")
    truth = kl_from_uniform(sampler).value
    log_partition = theory.cp_log_score(
        sampler.log_potentials, theory.category_sets(16, 5)
    ).logsumexp(0)
    estimated, error = sampler.estimate_log_partition(20_000)
    assert abs(estimated - float(log_partition)) < 4.5 * error
    monkeypatch.setattr(diagnostics, "LARGEST_EXACT", 0)
    monkeypatch.setattr(theory, "LARGEST_ENUMERATION", 0)
    estimate = kl_from_uniform(sampler, n_draws=5_000)
    assert abs(float(estimate.value - truth)) < 4.5 * float(estimate.standard_error)
    with pytest.raises(ArgumentError, match="estimate_log_partition"):
        sampler.log_prob(torch.arange(5).unsqueeze(0))


def test_the_divergence_of_a_twenty_way_gcp_is_refused():
    with pytest.raises(ArgumentError, match="20! orders"):
        kl_from_uniform(build_sampler("gcp", n_classes=30, n_way=20))


@pytest.mark.parametrize("name", ["uniform", "c", "cp", "gcp"])
def test_importance_weights_turn_draws_into_uniform_ones(tools, name):
    """The weighted mean of any function of the task is its uniform mean (section 3.2)."""
    sampler = taught(tools, name, 8, 3)
    value = torch.rand(8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def loss(tasks):
        return value[tasks[:, :, None], tasks[:, None, :]].sum((1, 2))

    sets = torch.tensor(list(itertools.combinations(range(8), 3)))
    exact = (sampler.log_prob(sets).exp() * importance_weight(sampler, sets) * loss(sets)).sum()
    assert float(exact) == pytest.approx(float(loss(sets).mean()), rel=1e-9)
    draws = sampler.sample(50_000)
    weighted = importance_weight(sampler, draws) * loss(draws)
    error = float(weighted.std()) / math.sqrt(len(draws))
    assert abs(float(weighted.mean() - loss(sets).mean())) <= 4.5 * error + 1e-12


def test_ordered_importance_weights_are_unbiased_at_any_way(tools):
    sampler = taught(tools, "gcp", 24, 16, spread=0.15)
    draws = sampler.sample(20_000)
    weights = importance_weight(sampler, draws, ordered=True)
    error = float(weights.std()) / math.sqrt(len(draws))
    assert abs(float(weights.mean()) - 1) < 4.5 * error
    with pytest.raises(ArgumentError, match="gcp_log_prob_ordered"):
        importance_weight(sampler, draws[:2])
    with pytest.raises(ArgumentError, match="'gcp' sampler"):
        importance_weight(taught(tools, "c", 8, 3), torch.tensor([[0, 1, 2]]), ordered=True)


def test_diagnostics_do_not_disturb_the_sampler(tools):
    watched, alone = (taught(tools, "gcp", 60, 5, seed=1) for _ in range(2))
    for sampler in (watched, alone):
        sampler.sample(3)
    class_marginals(watched, n_draws=100)
    kl_from_uniform(watched, n_draws=100)
    assert torch.equal(watched.sample(10), alone.sample(10))


def test_what_is_no_task_or_no_task_sampler_is_refused(tools):
    sampler = taught(tools, "gcp", 8, 3)
    for wrong in ([[0, 1, 50]], [[0, 1, 1]]):
        with pytest.raises(ArgumentError, match="distinct classes"):
            importance_weight(sampler, torch.tensor(wrong), ordered=True)
    instances = build_sampler("instance", n_instances=5)
    for function in (class_marginals, pair_marginals, kl_from_uniform):
        with pytest.raises(ArgumentError, match="task samplers"):
            function(instances)
    with pytest.raises(ArgumentError, match="n_draws"):
        taught(tools, "cp", 8, 3).estimate_log_partition(n_draws=1)


def test_kl_of_a_sampler_that_changes_when_it_draws_is_that_of_what_is_drawn():
    """The kernel of `dpp` is made again when it draws: copy and original then differ."""
    sampler = build_sampler("dpp", n_classes=26, n_way=5, n_features=4, refresh=2, seed=0)
    for _ in range(4):
        ids = sampler.sample(8)
        labels = torch.arange(5)
        features = torch.randn(26, 4, generator=torch.Generator().manual_seed(1))[ids]
        sampler.update(ids, torch.full((8, 5, 5), 0.2), labels, class_features=features)
    before = kl_from_uniform(sampler, n_draws=2000)
    twin = sampler.fork(0)
    twin.sample(1)  # the next kernel, without disturbing the sampler
    after = kl_from_uniform(twin, n_draws=2000)
    error = math.hypot(float(before.standard_error), float(after.standard_error))
    assert float(before.value) == pytest.approx(float(after.value), abs=6 * error)
