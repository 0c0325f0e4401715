"""Every learner learns: on glyphs, with a fixed seed, an accuracy that it must pass with margin.

Nearest neighbours on raw pixels get 34 % of these tasks right, guesses 20 %.
"""

import pytest
import torch

from adaptask.backbones import build_backbone
from adaptask.data import open_episodes
from adaptask.learners import LEARNERS, build_learner
from adaptask.samplers import build_sampler
from adaptask.training import Evaluator, Trainer

MUST_PASS = {
    # learner: steps, backbone options, accuracy
    "protonet": (400, {"filters": 32}, 0.52),
    "matchingnet": (400, {"filters": 32}, 0.58),
    "relationnet": (500, {"filters": 16, "n_pooled": 2}, 0.48),
}


def test_every_learner_is_here():
    assert set(MUST_PASS) == set(LEARNERS)


@pytest.mark.parametrize("name", MUST_PASS)
def test_it_learns_glyphs(name, glyphs_cache, monkeypatch):
    monkeypatch.setenv("ADAPTASK_CACHE", str(glyphs_cache))
    n_steps, options, must_pass = MUST_PASS[name]
    source = open_episodes("glyphs", "train", seed=0)
    torch.manual_seed(0)
    backbone = build_backbone("conv4", image_shape=source.image_set.image_shape, **options)
    learner = build_learner(name, backbone=backbone)
    sampler = build_sampler("gcp", n_classes=source.n_classes, n_way=5, seed=0)
    test = open_episodes("glyphs", "test")
    evaluate = Evaluator(test, n_way=5, n_shot=1, n_query=5, n_episodes=200)
    untrained = evaluate(learner).accuracy
    Trainer(learner, sampler, source, n_query=5).fit(n_steps)
    assert untrained < 0.34
    assert evaluate(learner).accuracy > must_pass
