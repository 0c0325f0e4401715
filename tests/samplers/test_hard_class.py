"""The failed classes against a plain transcription, and the tasks that are made of them."""

import itertools
import math

import pytest
import torch

from adaptask.conformance import check_sampler
from adaptask.errors import ArgumentError, StateError
from adaptask.samplers import HardClassSampler


def failed_class(ids, probs, labels):
    """The class with the lowest mean probability of the right answer, in plain Python."""
    right = {}
    for row, y in zip(probs.tolist(), labels.tolist(), strict=True):
        right.setdefault(int(ids[y]), []).append(row[y])
    means = {class_id: sum(values) / len(values) for class_id, values in right.items()}
    return min(means, key=means.get)


@pytest.mark.parametrize("n_tasks", [1, 3])
def test_the_classes_that_failed_in_the_last_tasks_are_remembered(tools, n_tasks):
    sampler, failures = HardClassSampler(n_classes=30, n_way=4, memory=6), []
    for seed in range(20):
        feedback = tools.feedback(n_tasks, 4, 30, seed=seed)
        sampler.update(*feedback)
        failures += [failed_class(*task) for task in zip(*feedback, strict=True)]
        assert set(sampler.has_failed.nonzero()[:, 0].tolist()) == set(failures[-6:])


def test_all_tasks_of_a_large_update_count(tools):
    sampler = HardClassSampler(n_classes=30, n_way=4, memory=2)
    feedback = tools.feedback(8, 4, 30)
    sampler.update(*feedback)
    expected = {failed_class(*task) for task in zip(*feedback, strict=True)}
    assert set(sampler.has_failed.nonzero()[:, 0].tolist()) == expected


def test_refused_tasks_leave_no_failure_on_a_device(tools, as_on_a_device):
    sampler, other = (HardClassSampler(n_classes=30, n_way=4, memory=9) for _ in range(2))
    feedback = tools.feedback(5, 4, 30)
    other.update(*(part[1:] for part in feedback))
    feedback[1][0, 0] = torch.nan
    sampler.update(*feedback)
    with pytest.raises(ArgumentError, match="1 entries"):
        sampler.check()
    assert torch.equal(sampler.last_failures, other.last_failures)
    assert sampler.tasks_seen == other.tasks_seen == 4


def with_failures(failed, *, share=1.0, n_classes=8, n_way=3):
    sampler = HardClassSampler(n_classes=n_classes, n_way=n_way, share=share, seed=3)
    sampler.tasks_seen.fill_(10)
    sampler.last_failures[failed] = 10
    return sampler


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("failed", [[], [5], [0, 6], [1, 2, 7], [0, 1, 2, 3, 4], list(range(8))])
def test_hard_tasks_are_uniform_over_the_sets_that_hold_most_failed_classes(tools, failed, share):
    sampler = with_failures(failed, share=share)
    sets = list(itertools.combinations(range(8), 3))
    most = min(3, len(failed))
    hard = [s for s in sets if len(set(s) & set(failed)) == most]
    probs = {s: (1 - share) / len(sets) + share * (s in hard) / len(hard) for s in sets}
    log_probs = sampler.log_prob(torch.tensor(sets))
    torch.testing.assert_close(log_probs.exp(), torch.tensor([*probs.values()]).double())
    possible = {s: p for s, p in probs.items() if p > 0}
    drawn = sampler.sample(20_000)
    assert {tuple(row) for row in drawn.sort(-1).values.tolist()} <= set(possible)
    if len(possible) > 1:
        assert tools.chi_square_p_value(drawn, possible) > 1e-4
    assert math.isclose(float(log_probs.exp().sum()), 1)


def test_every_second_task_is_hard_whatever_the_batch():
    failed = [2, 11, 17, 23]
    for batch in (1, 2, 4):
        sampler = with_failures(failed, share=0.5, n_classes=500, n_way=4)
        drawn = torch.cat([sampler.sample(batch) for _ in range(16 // batch)])
        is_hard = [set(row) == set(failed) for row in drawn.tolist()]
        assert is_hard == [False, True] * 8


def test_the_laws_hold_with_a_short_memory():
    check_sampler(lambda seed: HardClassSampler(n_classes=9, n_way=3, memory=2, seed=seed))


def test_a_damaged_state_is_refused():
    sampler = HardClassSampler(n_classes=9, n_way=3)
    state = sampler.state_dict()
    state["last_failures"] = torch.arange(9)
    with pytest.raises(StateError, match="damaged"):
        sampler.load_state_dict(state)
