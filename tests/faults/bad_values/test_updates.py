"""Whatever is given to `update` or loaded as a state: what was refused has changed nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptask.errors import AdaptaskError
from adaptask.samplers import SAMPLERS, build_sampler

often = settings.get_profile("bad values")


def needed(name):
    return {"n_instances": 7} if name == "instance" else {"n_classes": 6, "n_way": 3}


def good_feedback(name):
    if name == "instance":
        return [torch.arange(7), torch.full((7, 2), 0.5), torch.zeros(7, dtype=torch.int64)]
    ids = torch.tensor([[0, 1, 2], [3, 4, 5]])
    return [ids, torch.full((2, 3, 3), 1 / 3), torch.arange(3).expand(2, 3)]


def flat(state):
    """Everything in a state, as bytes."""
    if isinstance(state, torch.Tensor):
        return bytes(state.numpy().tobytes())
    return {k: flat(v) for k, v in state.items()} if isinstance(state, dict) else state


@pytest.mark.parametrize("name", SAMPLERS)
@often
@given(data=st.data())
def test_a_refused_update_leaves_no_trace(name, data, odd):
    sampler = build_sampler(name, **needed(name))
    sampler.update(*good_feedback(name))
    before = flat(sampler.state_dict())
    arguments = good_feedback(name)
    for i in data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True)):
        arguments[i] = data.draw(st.one_of(odd.values, odd.tensors))
    try:
        sampler.update(*arguments)
    except AdaptaskError:
        assert flat(sampler.state_dict()) == before
    assert sampler.sample(2).min() >= 0


@pytest.mark.parametrize("name", SAMPLERS)
@often
@given(data=st.data())
def test_a_refused_state_leaves_no_trace(name, data, odd):
    sampler = build_sampler(name, **needed(name))
    sampler.update(*good_feedback(name))
    before = sampler.state_dict()
    key = data.draw(st.sampled_from(list(before)))
    value = data.draw(st.one_of(odd.values, odd.tensors))
    changed = {**before, key: value}
    if isinstance(before[key], dict) and data.draw(st.booleans()):
        inner = data.draw(st.sampled_from(list(before[key])))
        changed[key] = {**before[key], inner: value}
    try:
        sampler.load_state_dict(changed)
    except AdaptaskError:
        assert flat(sampler.state_dict()) == flat(before)
    sampler.sample(1)
