"""Every learner learns: on glyphs, with a fixed seed, an accuracy that it must pass with margin.

Nearest neighbors on raw pixels get 34 % of these tasks right, guesses 20 %.
"""

from dataclasses import dataclass, field

import pytest
import torch

from adaptask.backbones import build_backbone
from adaptask.data import open_episodes
from adaptask.learners import LEARNERS, build_learner
from adaptask.samplers import build_sampler
from adaptask.training import Evaluator, Trainer, build_optimizer


@dataclass(frozen=True)
class Case:
    must_pass: float
    n_steps: int
    learner: dict = field(default_factory=dict)
    backbone: dict = field(default_factory=lambda: {"filters": 16})
    tasks: dict = field(default_factory=lambda: {"n_query": 5})
    optimizer: str = "adam"
    lr: float = 1e-3


INNER = {"n_way": 5, "inner_steps": 2, "inner_lr": 0.1}
FOUR = {"n_query": 4, "n_tasks": 4}
CASES = {
    "protonet": Case(0.52, 400, backbone={"filters": 32}),
    "matchingnet": Case(0.58, 400, backbone={"filters": 32}),
    "relationnet": Case(0.48, 500, backbone={"filters": 16, "n_pooled": 2}),
    "maml": Case(0.50, 200, INNER, tasks=FOUR, lr=0.01),
    "maml++": Case(0.48, 200, INNER, tasks=FOUR, lr=0.01),
    "anil": Case(
        0.52,
        200,
        {"n_way": 5, "inner_steps": 3, "inner_lr": 0.5},
        backbone={"filters": 16, "norm": "task"},
        tasks=FOUR,
        lr=0.01,
    ),
    "metaoptnet-ridge": Case(0.45, 150, tasks=FOUR),
    "metaoptnet-svm": Case(0.42, 150, tasks=FOUR),
    "r2d2": Case(0.45, 150, {"scale": 1.0, "regularization": 1.0}, tasks=FOUR),
    "classifier": Case(0.45, 300, {"n_classes": 192}, tasks=FOUR),
    "reptile": Case(
        0.48,
        200,
        {
            **INNER,
            "inner_steps": 5,
            "evaluation_steps": 10,
            "inner_optimizer": "sgd",
            "inner_lr": 0.2,
        },
        tasks={"n_shot": 5, "n_query": 1, "n_tasks": 4},
        optimizer="sgd",
        lr=1.0,
    ),
}


def default_case(kind):
    """What a learner without a row above must do with its defaults."""
    backbone = {"filters": 16, "n_pooled": 2} if kind.needs_feature_maps else {"filters": 16}
    learner = {"n_way": 5} if kind.has_fixed_way else {}
    return Case(0.45, 300, learner, backbone, tasks=FOUR)


@pytest.mark.parametrize("name", LEARNERS)
def test_it_learns_glyphs(name, glyphs_cache, monkeypatch):
    monkeypatch.setenv("ADAPTASK_CACHE", str(glyphs_cache))
    case = CASES.get(name) or default_case(LEARNERS[name])
    source = open_episodes("glyphs", "train", seed=0)
    torch.manual_seed(0)
    backbone = build_backbone("conv4", image_shape=source.image_set.image_shape, **case.backbone)
    learner = build_learner(name, backbone=backbone, **case.learner)
    optimizer = build_optimizer(case.optimizer, learner.parameters(), lr=case.lr, momentum=0)
    sampler = build_sampler("gcp", n_classes=source.n_classes, n_way=5, seed=0)
    test = open_episodes("glyphs", "test")
    evaluate = Evaluator(test, n_way=5, n_shot=1, n_query=5, n_episodes=200)
    untrained = evaluate(learner).accuracy
    Trainer(learner, sampler, source, optimizer=optimizer, **case.tasks).fit(case.n_steps)
    # Reptile's ten steps on a task get 39 % without training.
    assert untrained < case.must_pass - 0.08
    assert evaluate(learner).accuracy > case.must_pass
