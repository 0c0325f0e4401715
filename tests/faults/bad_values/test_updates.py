"""Whatever is given to `update` or loaded as a state: what was refused has changed nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptask.backbones import build_backbone
from adaptask.data import open_episodes
from adaptask.errors import AdaptaskError, StateError
from adaptask.learners import build_learner
from adaptask.samplers import SAMPLERS, build_sampler
from adaptask.training import Trainer

often = settings.get_profile("bad values")


def needed(name):
    if SAMPLERS[name].draws == "examples":
        return {"n_instances": 7}
    features = {"n_features": 4} if SAMPLERS[name].uses_class_features else {}
    return {"n_classes": 6, "n_way": 3, **features}


def update(sampler, class_ids, probabilities, labels, *features):
    named = {"class_features": features[0]} if features else {}
    sampler.update(class_ids, probabilities, labels, **named)


def good_feedback(name):
    if SAMPLERS[name].draws == "examples":
        return [torch.arange(7), torch.full((7, 2), 0.5), torch.zeros(7, dtype=torch.int64)]
    ids = torch.tensor([[0, 1, 2], [3, 4, 5]])
    features = [torch.ones(2, 3, 4)] if SAMPLERS[name].uses_class_features else []
    return [ids, torch.full((2, 3, 3), 1 / 3), torch.arange(3).expand(2, 3), *features]


def flat(state):
    """Everything in a state, as bytes."""
    if isinstance(state, torch.Tensor):
        return state.detach().numpy().tobytes()
    if isinstance(state, list | tuple):
        return [flat(value) for value in state]
    return {k: flat(v) for k, v in state.items()} if isinstance(state, dict) else state


@pytest.mark.parametrize("name", SAMPLERS)
@often
@given(data=st.data())
def test_a_refused_update_leaves_no_trace(name, data, odd):
    sampler = build_sampler(name, **needed(name))
    update(sampler, *good_feedback(name))
    before = flat(sampler.state_dict())
    arguments = good_feedback(name)
    places = st.integers(0, len(arguments) - 1)
    for i in data.draw(st.lists(places, min_size=1, max_size=2, unique=True)):
        arguments[i] = data.draw(st.one_of(odd.values, odd.tensors))
    try:
        update(sampler, *arguments)
    except AdaptaskError:
        assert flat(sampler.state_dict()) == before
    assert sampler.sample(2).min() >= 0


@pytest.mark.parametrize("name", SAMPLERS)
@often
@given(data=st.data())
def test_a_refused_state_leaves_no_trace(name, data, odd):
    sampler = build_sampler(name, **needed(name))
    update(sampler, *good_feedback(name))
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


def sampler_of(source):
    return build_sampler("gcp", n_classes=source.n_classes, n_way=3)


def trainer(source):
    backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=2)
    learner = build_learner("protonet", backbone=backbone)
    made = Trainer(learner, sampler_of(source), source, n_query=1)
    made.fit(1)
    return made


@pytest.mark.filterwarnings("ignore:The episodes were drawn on")  # says a state of elsewhere
@pytest.mark.filterwarnings("ignore:The state was saved on")
@pytest.mark.parametrize("build", [lambda source: source, trainer], ids=["source", "trainer"])
@often
@given(data=st.data())
def test_what_holds_a_sampler_is_as_it_was_too(build, data, odd, tiny):
    holder = build(open_episodes(tiny, "train", augmentation="none"))
    state = holder.state_dict()
    before = flat(state)
    changed = data.draw(odd.inside(state))
    try:
        holder.load_state_dict(changed)
    except StateError:
        assert flat(holder.state_dict()) == before
