import copy

import pytest
import torch

from adaptask.backbones import build_backbone
from adaptask.conformance import LearnerSubject
from adaptask.errors import ArgumentError, StateError
from adaptask.learners import Ensemble, build_learner


def build(seed=0):
    torch.manual_seed(seed)
    backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=4)
    return build_learner("maml", backbone=backbone, n_way=4, inner_steps=1)


def test_probabilities_are_the_mean_of_the_members():
    learners = [build(seed).eval() for seed in range(3)]
    template = build(7).eval()
    before = copy.deepcopy(template.state_dict())
    ensemble = Ensemble(learner=template, states=[each.state_dict() for each in learners])
    episodes = LearnerSubject(build).episodes(0)
    with torch.no_grad():
        got = ensemble(episodes).softmax(-1)
        expected = torch.stack([each(episodes).softmax(-1) for each in learners]).mean(0)
    torch.testing.assert_close(got, expected)
    assert all(torch.equal(value, before[name]) for name, value in template.state_dict().items())
    assert not ensemble.training


def test_one_member_predicts_as_it_did_alone():
    learner = build().eval()
    ensemble = Ensemble(learner=learner, states=[learner.state_dict()])
    episodes = LearnerSubject(build).episodes(0)
    with torch.no_grad():
        torch.testing.assert_close(ensemble(episodes).softmax(-1), learner(episodes).softmax(-1))


def test_states_are_needed_and_must_fit():
    with pytest.raises(ArgumentError, match="at least one state"):
        Ensemble(learner=build(), states=[])
    with pytest.raises(StateError, match="head"):
        Ensemble(learner=build(), states=[{"head.weight": torch.zeros(1)}])
