"""What is repeated is repeated, and what is not is uniform."""

import itertools
from collections import Counter

import pytest
import torch

from adaptask.errors import ArgumentError, StateError
from adaptask.samplers import RepeatSampler


def sets_of(drawn):
    return [tuple(sorted(row)) for row in drawn.tolist()]


def build(seed=0, **settings):
    return RepeatSampler(n_classes=30, n_way=4, seed=seed, **settings)


def test_one_task_is_repeated_in_all_orders():
    sampler = build(repeats="task")
    drawn = sampler.sample(2_000)
    assert len(set(sets_of(drawn))) == 1
    counts = Counter(tuple(row) for row in drawn.tolist())
    assert len(counts) == 24
    assert sets_of(sampler.sample(1))[0] == sets_of(drawn)[0]


def test_one_batch_is_repeated_in_another_order():
    sampler = build(n_fixed=6)
    batches = [sets_of(sampler.sample(6)) for _ in range(5)]
    assert len(set(batches[0])) == 6
    assert all(sorted(batch) == sorted(batches[0]) for batch in batches)
    assert len({tuple(batch) for batch in batches}) > 1


def test_smaller_and_larger_batches_have_the_tasks_equally_often():
    sampler = build(n_fixed=6)
    fixed = set(sets_of(sampler.fixed_tasks))
    assert set(Counter(sets_of(sampler.sample(12))).values()) == {2}
    singles = Counter(sets_of(torch.cat([sampler.sample(1) for _ in range(3_000)])))
    assert set(singles) == fixed
    assert all(abs(n - 500) < 6 * 500**0.5 for n in singles.values())


def test_every_batch_has_one_new_task_and_it_is_uniform(tools):
    sampler = RepeatSampler(n_classes=6, n_way=2, repeats="batches")
    first = []
    for _ in range(3_000):
        drawn = sampler.sample(3)
        assert len(set(sets_of(drawn))) == 1
        first.append(drawn[0])
    uniform = dict.fromkeys(itertools.combinations(range(6), 2), 1 / 15)
    assert tools.chi_square_p_value(torch.stack(first), uniform) > 1e-4


def test_fixed_tasks_are_uniform_over_seeds(tools):
    drawn = [RepeatSampler(n_classes=6, n_way=2, n_fixed=20, seed=s).sample(20) for s in range(200)]
    uniform = dict.fromkeys(itertools.combinations(range(6), 2), 1 / 15)
    assert tools.chi_square_p_value(torch.cat(drawn), uniform) > 1e-4


def test_a_new_stream_keeps_the_tasks():
    sampler = build(n_fixed=3)
    assert set(sets_of(sampler.fork(9).sample(9))) == set(sets_of(sampler.sample(9)))


def test_what_cannot_be_is_refused():
    with pytest.raises(ArgumentError, match="repeats"):
        build(repeats="support")
    state = build().state_dict()
    state["fixed_tasks"] = torch.zeros_like(state["fixed_tasks"])
    with pytest.raises(StateError, match="damaged"):
        build().load_state_dict(state)
