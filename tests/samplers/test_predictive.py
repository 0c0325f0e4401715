"""Chosen tasks against sorting, a plain greedy choice and order statistics; risks by hand."""

import itertools
import math

import pytest
import torch
from scipy import integrate, stats

from adaptask.errors import ArgumentError, StateError
from adaptask.samplers import PredictiveSampler
from adaptask.samplers.predictive import choose_diverse


def some_candidates(n, n_classes=12, n_way=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    candidates = torch.rand(n, n_classes, generator=generator).argsort(-1)[:, :n_way]
    return candidates, torch.rand(n, generator=generator, dtype=torch.float64)


def test_without_diversity_the_riskiest_are_chosen():
    candidates, risks = some_candidates(40)
    chosen = choose_diverse(candidates, risks, 7, n_classes=12, diversity=0)
    assert chosen.tolist() == sorted(range(40), key=lambda i: -risks[i])[:7]


@pytest.mark.parametrize("diversity", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("n_tasks", [1, 2, 6, 40])
def test_with_diversity_the_choice_is_greedy(n_tasks, diversity):
    candidates, risks = some_candidates(40, seed=n_tasks)
    sets = [set(row) for row in candidates.tolist()]
    mean = sum(risks.tolist()) / 40
    spread = math.sqrt(sum((r - mean) ** 2 for r in risks.tolist()) / 40)
    expected = []
    for _ in range(n_tasks):

        def key(i):
            distances = [1 - len(sets[i] & sets[j]) / 4 for j in expected]
            novelty = sum(distances) / len(distances) if distances else 0
            return (float(risks[i]) - mean) / spread + diversity * novelty

        expected.append(max((i for i in range(40) if i not in expected), key=key))
    chosen = choose_diverse(candidates, risks, n_tasks, n_classes=12, diversity=diversity)
    assert chosen.tolist() == expected


def test_equal_risks_are_no_reason_to_fail():
    candidates, _ = some_candidates(10)
    chosen = choose_diverse(candidates, torch.full((10,), 0.3), 4, n_classes=12, diversity=1.0)
    assert len(set(chosen.tolist())) == 4


@pytest.mark.parametrize("pool", [1, 2, 4])
def test_a_single_task_is_the_riskiest_of_its_pool(tools, pool):
    """The largest of m uniform draws among N sets has rank r with (r^m - (r-1)^m) / N^m."""
    sampler = PredictiveSampler(n_classes=6, n_way=2, pool=pool, seed=1)
    sampler.risks.copy_(torch.tensor([0.0, 0.1, 0.2, 0.4, 0.6, 0.95]) ** 1.3)
    sampler.visits.fill_(10)
    sampler.variance.zero_()  # nothing is uncertain
    sets = list(itertools.combinations(range(6), 2))
    ranked = sorted(sets, key=lambda s: sum(sampler.risks[list(s)].tolist()))
    probs = {s: (r**pool - (r - 1) ** pool) / 15**pool for r, s in enumerate(ranked, start=1)}
    drawn = torch.cat([sampler.sample(1) for _ in range(4_000)])
    assert tools.chi_square_p_value(drawn, {s: probs[s] for s in sets}) > 1e-4


def test_risks_are_drawn_from_what_is_known():
    sampler = PredictiveSampler(n_classes=4, n_way=2)
    sampler.risks.copy_(torch.tensor([0.1, 0.9, 0.3, 0.0]))
    sampler.visits.copy_(torch.tensor([3, 1, 1_000, 0]))
    sampler.mean.fill_(0.4)
    sampler.variance.fill_(0.04)
    means, deviations = sampler.posterior()
    expected = [(3 * 0.1 + 0.4) / 4, (0.9 + 0.4) / 2, (50 * 0.3 + 0.4) / 51, 0.4]
    torch.testing.assert_close(means, torch.tensor(expected))
    errors = [0.2 / math.sqrt(n) for n in (4, 2, 51, 1)]
    torch.testing.assert_close(deviations, torch.tensor(errors))


def test_a_task_is_the_riskiest_for_one_draw_from_what_is_known(tools):
    """Of three classes in pairs the one with the lowest draw is left out."""
    sampler = PredictiveSampler(n_classes=3, n_way=2, pool=64, seed=3)  # all pairs are in the pool
    sampler.risks.copy_(torch.tensor([0.6, 0.5, 0.45]))
    sampler.visits.copy_(torch.tensor([2, 30, 8]))
    sampler.variance.fill_(0.04)
    known = [part.tolist() for part in sampler.posterior()]
    classes = [stats.norm(*pair) for pair in zip(*known, strict=True)]
    probs = {}
    for left_out, own in enumerate(classes):
        others = [other for at, other in enumerate(classes) if at != left_out]

        def density(x, own=own, others=others):
            return own.pdf(x) * others[0].sf(x) * others[1].sf(x)

        pair = tuple(at for at in range(3) if at != left_out)
        probs[pair] = integrate.quad(density, -2, 3, limit=200, points=[0.45, 0.5, 0.6])[0]
    assert min(probs.values()) > 0.1
    drawn = torch.cat([sampler.sample(1) for _ in range(4_000)])
    assert tools.chi_square_p_value(drawn, dict(sorted(probs.items()))) > 1e-4


def test_averages_by_hand(tools):
    sampler = PredictiveSampler(n_classes=6, n_way=3)
    risks, counts = dict.fromkeys(range(6), 0.0), dict.fromkeys(range(6), 0)
    mean, variance = 0.5, 1.0
    for seed in range(160):  # about 80 visits of a class
        ids, probs, labels = tools.feedback(1, 3, 6, seed=seed)
        sampler.update(ids, probs, labels)
        errors, squares = [], []
        for y, name in enumerate(ids[0].tolist()):
            right = probs[0, labels[0] == y, y].tolist()
            errors.append(1 - sum(right) / len(right))
            change = errors[-1] - risks[name]
            if counts[name]:
                squares.append(change**2)
            counts[name] += 1
            risks[name] += change / min(counts[name], 50)
        mean += 0.01 * (sum(errors) / 3 - mean)
        if squares:
            variance += 0.01 * (sum(squares) / len(squares) - variance)
    assert max(counts.values()) > 60
    assert sampler.visits.tolist() == list(counts.values())
    torch.testing.assert_close(sampler.risks, torch.tensor(list(risks.values())))
    assert float(sampler.mean) == pytest.approx(mean, abs=1e-5)
    assert float(sampler.variance) == pytest.approx(variance, abs=1e-5)


def test_a_class_in_several_tasks_of_an_update_is_visited_once_with_its_mean():
    sampler = PredictiveSampler(n_classes=4, n_way=2)
    probs = torch.tensor([[[0.8, 0.2], [0.4, 0.6]], [[0.4, 0.6], [0.5, 0.5]]])
    sampler.update(torch.tensor([[0, 1], [0, 2]]), probs, torch.tensor([0, 1]))
    torch.testing.assert_close(sampler.risks, torch.tensor([0.4, 0.4, 0.5, 0.0]))
    assert sampler.visits.tolist() == [1, 1, 1, 0]


def test_hard_classes_are_drawn_more_and_all_are_tried():
    """A learner that fails at three of twenty classes."""
    sampler, counts = PredictiveSampler(n_classes=20, n_way=5), torch.zeros(20)
    labels = torch.arange(5).repeat_interleave(3)
    for _ in range(400):
        class_ids = sampler.sample(2)
        right = torch.where(class_ids < 3, 0.3, 0.9)[:, labels]
        own = torch.nn.functional.one_hot(labels, 5)
        probs = own * right[..., None] + (1 - own) * (1 - right[..., None]) / 4
        sampler.update(class_ids, probs, labels)
        counts += torch.bincount(class_ids.flatten(), minlength=20)
    assert counts[:3].min() > 1.4 * counts[3:].max()
    assert counts.min() > 50


def test_tasks_of_a_batch_share_fewer_classes_with_diversity():
    def n_shared(diversity):
        sampler = PredictiveSampler(n_classes=40, n_way=5, diversity=diversity, seed=2)
        sampler.visits.fill_(50)
        sampler.risks.copy_(torch.linspace(0, 1, 40))
        sampler.variance.fill_(0.01)
        pairs = [
            len(set(a) & set(b))
            for _ in range(40)
            for a, b in itertools.combinations(sampler.sample(6).tolist(), 2)
        ]
        return sum(pairs) / len(pairs)

    assert n_shared(0.0) > 1.2 * n_shared(5.0) > 1.4 * n_shared(10.0)


def test_refused_tasks_change_nothing_on_a_device(tools, as_on_a_device):
    sampler, other = (PredictiveSampler(n_classes=9, n_way=3) for _ in range(2))
    for seed in range(3):
        feedback = tools.feedback(5, 3, 9, seed=seed)
        other.update(*(part[1:] for part in feedback))
        feedback[1][0, 0] = torch.nan
        sampler.update(*feedback)
    with pytest.raises(ArgumentError, match="3 entries"):
        sampler.check()
    for name in ("risks", "visits", "mean", "variance"):
        assert torch.equal(getattr(sampler, name), getattr(other, name)), name


def test_a_damaged_state_is_refused():
    sampler = PredictiveSampler(n_classes=9, n_way=3)
    with pytest.raises(StateError, match="between 0 and 1"):
        sampler.load_state_dict({**sampler.state_dict(), "risks": torch.full((9,), torch.nan)})
