"""Weights by difficulty against densities of SciPy and a loop in plain Python."""

import math

import pytest
import torch
from scipy import stats

from adaptask.errors import ArgumentError, StateError
from adaptask.samplers import DifficultySampler
from adaptask.samplers.difficulty import effective_number

WIDTH = 2.58
TARGETS = ("uniform", "easy", "hard", "curriculum")


def build(**options):
    return DifficultySampler(n_classes=9, n_way=3, seed=0, **options)


def target_density(target, z, progress):
    if target == "uniform":
        return stats.uniform.pdf(z, -WIDTH, 2 * WIDTH)
    if target == "easy":
        return stats.uniform.pdf(z, -WIDTH, WIDTH)
    if target == "hard":
        return stats.uniform.pdf(z, 0, WIDTH)
    mean = (2 * progress - 1) * WIDTH
    return stats.truncnorm.pdf(z, -WIDTH - mean, WIDTH - mean, mean, 1)


def importance_by_hand(target, z, progress=0.0):
    if abs(z) > WIDTH:
        return 1.0
    proposal = stats.truncnorm.pdf(z, -WIDTH, WIDTH)
    return float(target_density(target, z, progress) / proposal)


def by_hand(steps, target, *, momentum, warmup, curriculum_steps):
    """Yield the weights of each step, from lists of losses, in plain Python."""
    mean = variance = None
    n_seen = 0
    for number, losses in enumerate(steps):
        if number < warmup or n_seen < 2:
            yield [1.0] * len(losses)
        else:
            progress = min(1, number / curriculum_steps)
            zs = [(loss - mean) / math.sqrt(variance) for loss in losses]
            ws = [importance_by_hand(target, z, progress) for z in zs]
            squares = sum(w * w for w in ws)
            # Each loss counts w / effective number; the step takes the mean over its tasks.
            n_effective = sum(ws) ** 2 / squares if squares else 1.0
            yield [w * len(losses) / n_effective for w in ws]
        kept = momentum ** len(losses)
        new = sum(losses) / len(losses)
        center = new if mean is None else mean
        new_variance = sum((loss - center) ** 2 for loss in losses) / len(losses)
        mean = new if mean is None else kept * mean + (1 - kept) * new
        is_first = n_seen < 2
        variance = new_variance if is_first else kept * variance + (1 - kept) * new_variance
        n_seen += len(losses)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n_tasks", [1, 5])
def test_weights_are_those_of_a_loop_written_out(target, n_tasks):
    options = {"momentum": 0.8, "warmup": 3, "curriculum_steps": 30}
    sampler = build(target=target, **options).double()
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(40, n_tasks, generator=generator, dtype=torch.float64).mul(0.3).exp()
    expected = list(by_hand(rows.tolist(), target, **options))
    for losses, weights in zip(rows, expected, strict=True):
        found = sampler.weigh(losses)
        torch.testing.assert_close(found, torch.tensor(weights).double(), rtol=1e-6, atol=1e-9)
    assert len({round(weight, 6) for row in expected for weight in row}) > 5


def test_one_task_per_step_is_the_sequential_rule_of_the_original():
    sampler = build(momentum=0.9, warmup=0).double()
    mean, variance = 2.0, None
    sampler.weigh(torch.tensor([2.0]).double())
    for loss in (1.0, 1.5, 0.2, 2.2):
        square = (loss - mean) ** 2
        variance = square if variance is None else 0.9 * variance + 0.1 * square
        mean = 0.9 * mean + 0.1 * loss
        sampler.weigh(torch.tensor([loss]).double())
        assert sampler.mean.item() == pytest.approx(mean, rel=1e-6)
        assert sampler.variance.item() == pytest.approx(variance, rel=1e-6)


def test_weighted_normal_losses_are_distributed_as_the_target():
    z = torch.randn(400_000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    z = z[z.abs() <= WIDTH]
    edges = torch.linspace(-WIDTH, WIDTH, 9, dtype=torch.float64)
    for target in TARGETS:
        sampler = build(target=target, curriculum_steps=4)
        sampler.steps_weighed.fill_(3)
        weights = sampler.importance(z)
        found = torch.histogram(z, bins=edges, weight=weights).hist / weights.sum()
        parts = [
            torch.linspace(low, high, 101, dtype=torch.float64)
            for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        ]
        density = [torch.as_tensor(target_density(target, part.numpy(), 0.75)) for part in parts]
        expected = torch.stack([d.mean() * (2 * WIDTH / 8) for d in density])
        torch.testing.assert_close(found, expected / expected.sum(), rtol=0, atol=0.01)


def test_a_hand_computed_weight():
    sampler = build(warmup=0)
    sampler.mean.fill_(1.0)
    sampler.variance.fill_(0.25)
    sampler.losses_seen.fill_(10)
    # z = 1: (1 / 5.16) / (0.24197 / 0.99012); one task, so its effective number is 1.
    assert sampler.weigh(torch.tensor([1.5])).item() == pytest.approx(0.19380 / 0.24439, rel=1e-3)


def test_the_effective_number():
    assert effective_number(torch.ones(6)).item() == pytest.approx(6)
    assert effective_number(torch.tensor([2.0, 0.0, 0.0])).item() == pytest.approx(1)
    assert effective_number(torch.tensor([1.0, 3.0])).item() == pytest.approx(16 / 10)
    assert effective_number(torch.zeros(4)).item() == 4


def test_the_curriculum_moves_from_easy_to_hard_and_stays_there():
    sampler = build(target="curriculum", curriculum_steps=100)
    z = torch.tensor([-2.0, 2.0])
    ratios = []
    for step in (0, 50, 100, 1000):
        sampler.steps_weighed.fill_(step)
        easy, hard = sampler.importance(z).tolist()
        ratios.append(hard / easy)
    assert ratios[0] < 1e-3
    assert ratios[1] == pytest.approx(1, rel=1e-4)
    assert ratios[2] > 1e3
    assert ratios[2] == ratios[3]


def test_weights_are_one_while_warming_up():
    sampler = build(warmup=4, target="hard")
    found = [sampler.weigh(torch.tensor([1.0, 2.0, 3.0])) for _ in range(5)]
    assert all(torch.equal(weights, torch.ones(3)) for weights in found[:4])
    assert not torch.equal(found[4], torch.ones(3))


def test_no_weight_at_all_is_no_error():
    sampler = build(warmup=0, target="hard")
    sampler.weigh(torch.tensor([1.0, 2.0]))
    assert sampler.weigh(torch.tensor([1.2, 1.3])).tolist() == [0.0, 0.0]


def test_a_loss_that_is_not_finite_teaches_nothing():
    sampler, other = build(), build()
    for losses in ([1.0, 2.0, 3.0], [2.0, 1.5, 1.0]):
        sampler.weigh(torch.tensor([*losses, math.nan, math.inf]))
        other.weigh(torch.tensor(losses))
    sampler.weigh(torch.tensor([math.nan]))
    assert sampler.mean == other.mean
    assert sampler.variance == other.variance
    assert sampler.losses_seen == 6


def test_bad_values_are_refused():
    for bad in ({"target": "medium"}, {"momentum": 1.5}, {"warmup": -1}, {"curriculum_steps": 0}):
        with pytest.raises(ArgumentError, match=next(iter(bad))):
            build(**bad)
    sampler = build()
    for losses in ([1.0], torch.ones(2, 2), torch.ones(3, dtype=torch.int64)):
        with pytest.raises(ArgumentError, match="losses must"):
            sampler.weigh(losses)
    good = sampler.state_dict()
    for bad in ({"variance": torch.tensor(-1.0)}, {"mean": torch.tensor(math.nan)}):
        with pytest.raises(StateError, match="mean and variance"):
            sampler.load_state_dict({**good, **bad})
