"""Samplers, learners, backbones and the theory: whatever values come, they work or are refused.

`CALLS` has arguments that are in order for every constructor, function and method that is public,
`NOT_CALLED` the reasons why some are not called.
"""

import inspect
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adaptask import backbones, learners, samplers, theory
from adaptask.data import open_episodes
from adaptask.errors import AdaptaskError
from adaptask.interfaces import Episodes
from adaptask.randomness import RandomModule

often = settings.get_profile("bad values")
PACKAGES = ("samplers", "learners", "backbones", "theory")
IDS = torch.tensor([[0, 1, 2], [3, 4, 5]])


def gcp():
    return samplers.build_sampler("gcp", n_classes=6, n_way=3)


def instances():
    return samplers.InstanceSampler(n_instances=7)


def potentials():
    return torch.zeros(6, 6).fill_diagonal_(-torch.inf)


def backbone():
    return backbones.Conv4(image_shape=(1, 16, 16), filters=2, n_pooled=2)


def protonet():
    return learners.build_learner("protonet", backbone=backbone())


def drawn():
    return open_episodes("tiny", "train").draw(IDS[:1], n_shot=1, n_query=1)


def sample(sampler, odd):
    if sampler.device.type == "cpu":
        assert sampler.sample(2).dtype == torch.int64
        sampler.state_dict()


def embed(made, odd):
    if made.image_shape == (1, 16, 16):
        assert made(torch.zeros(1, 2, 1, 16, 16)).isfinite().all()


def classify(learner, odd):
    if isinstance(odd.get("backbone"), nn.Module):
        return
    steps = [getattr(learner, "inner_steps", 0), getattr(learner, "evaluation_steps", 0)]
    if max(steps) < 20 and getattr(learner, "n_way", 3) == 3:
        with suppress(AdaptaskError):  # features that a learner cannot use
            assert learner.eval()(drawn()).shape == (1, 3, 3)


def feedback():
    return {"probabilities": torch.full((2, 3, 3), 1 / 3), "labels": torch.arange(3).expand(2, 3)}


def arguments_of(learner):
    way = {"n_way": 3} if "n_way" in inspect.signature(learner).parameters else {}
    return lambda: {"backbone": backbone(), **way}


def checked_episodes(**parts):
    """`Episodes` hold what they are given; what takes them looks at it."""
    return learners.check_shapes(Episodes(**parts))


def sets():
    return {"log_potentials": potentials(), "class_ids": IDS}


def sizes():
    return {"n_classes": 6, "n_way": 3}


def draws():
    return {"sampler": gcp(), "n_draws": 10}


def some_instances():
    return {"self": instances(), "instance_ids": torch.arange(3)}


def outcomes():
    return {"probabilities": torch.full((3, 2), 0.5), "labels": torch.zeros(3).long()}


CALLS = {
    samplers.UniformSampler: sizes,
    samplers.ClassSampler: sizes,
    samplers.ClassPairSampler: sizes,
    samplers.GreedyClassPairSampler: sizes,
    samplers.InstanceSampler: lambda: {"n_instances": 7},
    samplers.build_sampler: lambda: {"name": "gcp", **sizes()},
    samplers.class_marginals: draws,
    samplers.pair_marginals: draws,
    samplers.kl_from_uniform: draws,
    samplers.importance_weight: lambda: {"sampler": gcp(), "class_ids": IDS},
    samplers.Sampler.sample: lambda: {"self": gcp(), "n_tasks": 2},
    samplers.Sampler.log_prob: lambda: {"self": gcp(), "class_ids": IDS},
    samplers.Sampler.update: lambda: {"self": gcp(), "class_ids": IDS, **feedback()},
    samplers.ClassPairSampler.estimate_log_partition: lambda: {
        "self": samplers.ClassPairSampler(**sizes()),
        "n_draws": 8,
    },
    samplers.InstanceSampler.sample: lambda: {"self": instances(), "n_draws": 2},
    samplers.InstanceSampler.log_prob: some_instances,
    samplers.InstanceSampler.importance_weight: some_instances,
    samplers.InstanceSampler.update: lambda: {**some_instances(), **outcomes()},
    RandomModule.fork: lambda: {"self": gcp(), "seed": 1},
    RandomModule.reseed: lambda: {"self": gcp(), "seed": 1},
    **{learner: arguments_of(learner) for learner in learners.LEARNERS.values()},
    learners.build_learner: lambda: {"name": "protonet", "backbone": backbone()},
    learners.Ensemble: lambda: {"learner": protonet(), "states": [protonet().state_dict()]},
    learners.check_shapes: lambda: {"episodes": drawn()},
    checked_episodes: lambda: vars(drawn()),
    backbones.Conv4: lambda: {"image_shape": (1, 16, 16), "filters": 4},
    backbones.ResNet12: lambda: {"image_shape": (1, 16, 16), "widths": (4, 4, 4, 4)},
    backbones.ConvBlock: lambda: {"n_in": 1, "n_out": 2},
    backbones.DropBlock: lambda: {"drop_rate": 0.1, "block_size": 3, "ramp": 2},
    backbones.TaskNorm: lambda: {"n_channels": 2},
    backbones.build_backbone: lambda: {"name": "conv4", "image_shape": (1, 16, 16)},
    theory.category_sets: sizes,
    theory.cp_log_score: sets,
    theory.gcp_log_prob: sets,
    theory.gcp_log_prob_ordered: sets,
    theory.gcp_log_prob_estimate: sets,
    theory.cp_distribution: lambda: {"log_potentials": potentials(), "n_way": 3},
    theory.gcp_distribution: lambda: {"log_potentials": potentials(), "n_way": 3},
    theory.kl_from_uniform: lambda: {"log_probs": torch.zeros(1)},
    theory.total_variation: lambda: {
        "log_probs": torch.zeros(1),
        "other_log_probs": torch.zeros(1),
    },
    theory.count_tasks: lambda: {**sizes(), "n_images": 9, "n_shot": 1, "n_query": 2},
    theory.generalization_bound: lambda: {"empirical_error": 0.1, "kl": 1, "n_tasks": 9},
}
"""What is called, and the arguments that are in order; of a method also `self`."""
THEN = {
    **dict.fromkeys(samplers.SAMPLERS.values(), sample),
    **dict.fromkeys(backbones.BACKBONES.values(), embed),
    **dict.fromkeys(learners.LEARNERS.values(), classify),
}
"""What is done with that which an odd call returned."""
NOT_CALLED = {
    **dict.fromkeys([samplers.Estimate, samplers.Feedback], "comes out of a function"),
    RandomModule.set_extra_state: "called by torch, with a state that was checked",
    **dict.fromkeys(
        [
            *(learners.Learner.forward, learners.Learner.training_step, learners.Learner.loss),
            *(learners.AdaptingLearner.forward, learners.EmbeddingLearner.forward),
            *(learners.Ensemble.forward, learners.MAML.training_step, learners.RelationNet.loss),
            *(learners.MAMLPlusPlus.forward, learners.MAMLPlusPlus.training_step),
            *(learners.Reptile.training_step, learners.Learner.begin_step),
            *(learners.MAMLPlusPlus.begin_step, learners.Reptile.begin_step),
            *(backbones.Backbone.forward, backbones.Backbone.feature_maps),
            *(backbones.ConvBlock.forward, backbones.ConvBlock.after_convolution),
            *(backbones.DropBlock.forward, backbones.TaskNorm.forward),
        ],
        "part of a step, where no value is looked at; `check_shapes` looks at shapes",
    ),
}
"""What is public and not called, and why."""


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
def test_a_call_in_order_works(call, tiny):
    call(**CALLS[call]())


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
@often
@given(data=st.data())
def test_an_odd_call_works_or_is_refused(call, data, try_call):
    try_call(call, CALLS[call], data, THEN.get(call))


def test_everything_public_is_called_or_there_is_a_reason(check_listed):
    check_listed(PACKAGES, CALLS, NOT_CALLED)
