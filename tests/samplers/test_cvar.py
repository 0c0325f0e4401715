"""The worst share of a pool against sorting."""

import math

import pytest
import torch

from adaptask.errors import ArgumentError
from adaptask.samplers import CVaRSampler, UniformSampler
from adaptask.samplers.diagnostics import kl_from_uniform


def build(**options):
    return CVaRSampler(n_classes=9, n_way=3, seed=0, **options)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("n_tasks", [1, 4, 7])
def test_the_worst_are_chosen_as_sorting_does(alpha, n_tasks):
    sampler = build(alpha=alpha)
    n_candidates = sampler.n_candidates(n_tasks)
    generator = torch.Generator().manual_seed(n_tasks)
    for _ in range(20):
        # Few different values, so that there are ties.
        losses = torch.randint(6, (n_candidates,), generator=generator) / 4
        values = losses.tolist()
        expected = sorted(range(n_candidates), key=lambda i: -values[i])[:n_tasks]
        found = sampler.choose(sampler.sample(n_candidates), losses, n_tasks)
        assert found.tolist() == expected
        worst = sum(sorted(values)[-n_tasks:]) / n_tasks
        assert losses[found].mean().item() == pytest.approx(worst)


def test_the_pool_is_as_large_as_the_share_demands():
    for alpha, n_tasks, expected in [(0.0, 5, 5), (0.5, 4, 8), (0.9, 1, 10), (0.7, 3, 10)]:
        assert build(alpha=alpha).n_candidates(n_tasks) == expected
        assert expected == math.ceil(n_tasks * 10 / round(10 * (1 - alpha)))


def test_candidates_are_uniform_and_the_tasks_trained_on_have_no_probability():
    uniform = UniformSampler(n_classes=9, n_way=3, seed=0)
    assert torch.equal(build().sample(50), uniform.sample(50))
    with pytest.raises(ArgumentError, match="depends on their losses"):
        kl_from_uniform(build(), n_draws=10)


@pytest.mark.parametrize("shape", [(7,), (8, 1)])
def test_losses_that_are_not_one_per_candidate_are_refused(shape):
    sampler = build(alpha=0.5)
    candidates = sampler.sample(sampler.n_candidates(4))
    with pytest.raises(ArgumentError, match="losses must have the shape 8; got"):
        sampler.choose(candidates, torch.zeros(shape), 4)


def test_bad_shares_are_refused():
    for alpha in (-0.1, 1.0, "half"):
        with pytest.raises(ArgumentError, match=r"alpha must be a number between 0 and 0\.99"):
            build(alpha=alpha)
