"""Heads that fit a linear machine to every task: they learn, and a run of theirs can be resumed."""

import copy

import pytest
import torch

from adaptask.backbones import build_backbone
from adaptask.data import open_episodes
from adaptask.learners import build_learner
from adaptask.samplers import build_sampler
from adaptask.training import Evaluator, Every, Trainer

HEADS = ["metaoptnet-ridge", "metaoptnet-svm", "r2d2"]
NEVER = Every(log=0, validate=0, checkpoint=0, snapshot=0)


@pytest.fixture(scope="module")
def glyphs_cache(tmp_path_factory):
    """A folder in which glyphs is made once."""
    return tmp_path_factory.mktemp("glyphs-cache")


def build_trainer(dataset, name, *, seed=0, n_way=5, **settings):
    source = open_episodes(dataset, "train", seed=seed)
    torch.manual_seed(seed)
    backbone = build_backbone("conv4", image_shape=source.image_set.image_shape, filters=16)
    learner = build_learner(name, backbone=backbone, **settings)
    sampler = build_sampler("gcp", n_classes=source.n_classes, n_way=n_way, seed=seed)
    optimizer = torch.optim.Adam(learner.parameters(), lr=3e-3)
    return Trainer(learner, sampler, source, n_query=5, n_tasks=2, optimizer=optimizer, every=NEVER)


@pytest.mark.parametrize("name", HEADS)
def test_it_learns_glyphs(name, glyphs_cache, monkeypatch):
    """New classes are told apart at 41 to 56 % after 100 steps, 21 to 27 % before."""
    monkeypatch.setenv("ADAPTASK_CACHE", str(glyphs_cache))
    trainer = build_trainer("glyphs", name)
    evaluate = Evaluator(
        open_episodes("glyphs", "val"), n_way=5, n_shot=1, n_query=5, n_episodes=100
    )
    before = evaluate(trainer.learner)
    trainer.fit(100)
    after = evaluate(trainer.learner)
    assert before.accuracy < 0.3
    assert after.accuracy > 0.35
    assert after.loss < before.loss


@pytest.mark.parametrize("name", HEADS)
def test_a_run_that_is_resumed_ends_as_one_that_was_not(name, tiny):
    whole, first, second = (
        build_trainer(tiny, name, seed=seed, n_way=3, label_smoothing=0.1) for seed in (0, 0, 5)
    )
    whole.fit(6)
    first.fit(3)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.fit(6)
    ends = [trainer.learner.state_dict() for trainer in (whole, second)]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(value, ends[1][key]) for key, value in ends[0].items())
