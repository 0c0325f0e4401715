import copy

import pytest
import torch

from adaptask.backbones import build_backbone
from adaptask.data import open_episodes
from adaptask.learners import build_learner
from adaptask.samplers import SAMPLERS, build_sampler
from adaptask.training import Evaluator, Trainer


@pytest.fixture
def build_trainer(tiny):
    """Builds a small trainer on `tiny`; the same one for the same arguments."""

    def build(*, seed=0, learner=None, sampler="gcp", n_way=3, validate=True, **settings):
        source = open_episodes(tiny, "train", seed=seed, augmentation="none")
        if learner is None:
            torch.manual_seed(seed)
            backbone = build_backbone("conv4", image_shape=source.image_set.image_shape, filters=4)
            learner = build_learner("protonet", backbone=backbone)
        validation = Evaluator(
            open_episodes(tiny, "val"), n_way=n_way, n_shot=1, n_query=5, n_episodes=6
        )
        if isinstance(sampler, str):
            sizes = {"n_classes": source.n_classes, "n_way": n_way}
            if SAMPLERS[sampler].uses_class_features:
                sizes["n_features"] = learner.n_features
            sampler = build_sampler(sampler, seed=seed, **sizes)
        return Trainer(
            learner,
            sampler,
            source,
            **{"n_query": 4, "validation": validation if validate else None, **settings},
        )

    return build


@pytest.fixture(scope="session")
def outcome():
    """Returns everything a run ends with, but for the time it took."""

    def read(trainer):
        state = trainer.state_dict()
        state.pop("seconds")
        return copy.deepcopy(state)

    return read
