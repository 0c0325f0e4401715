"""Every learner of the registry is tested with its defaults, and some with further settings."""

import functools
import inspect
import re

import pytest
import torch
from torch import nn

from adaptask.backbones import build_backbone
from adaptask.conformance import LEARNER_LAWS, LearnerSubject, check_learner
from adaptask.interfaces import Outcome
from adaptask.learners import LEARNERS, Learner, build_learner

VARIANTS = {
    "protonet": [
        ({"learn_temperature": True, "temperature": 4.0}, {}),
        ({"scale_by_dimension": True}, {"norm": "task"}),
    ],
    "matchingnet": [
        ({"attention_scale": 1.0}, {"norm": "none"}),
        ({"full_context": True, "n_reads": 2}, {}),
        ({"full_context": True, "attention_scale": 10.0}, {"norm": "task"}),
    ],
    "relationnet": [
        ({"loss": "cross-entropy", "shots": "mean"}, {}),
        ({"norm": "task"}, {"norm": "task"}),
    ],
    "maml": [
        ({"inner_steps": 2, "evaluation_steps": 3, "first_order": True}, {"norm": "task"}),
        ({"inner_steps": 2, "learn_inner_lr": True}, {"n_pooled": 2}),
        ({"inner_steps": 1, "transductive": False}, {"norm": "none"}),
    ],
    "maml++": [
        ({"inner_steps": 2, "multi_step_loss": False, "anneal_order": False}, {"norm": "task"}),
        ({"inner_steps": 2, "evaluation_steps": 3}, {}),
        ({"inner_steps": 1, "per_step_norm": False, "per_layer_rates": False}, {}),
    ],
    "anil": [({"inner_steps": 2, "learn_inner_lr": True}, {}), ({"first_order": True}, {})],
    "reptile": [
        ({"inner_optimizer": "sgd", "inner_lr": 0.02, "evaluation_steps": 3}, {"norm": "task"}),
        ({"batch_size": 3, "evaluation_steps": 5, "anneal": False}, {}),
    ],
    "metaoptnet-ridge": [({"regularization": 1.0, "label_smoothing": 0.1}, {"norm": "task"})],
    "metaoptnet-svm": [({"penalty": 10.0, "label_smoothing": 0.1}, {"norm": "task"})],
    "meta-baseline": [
        ({"scale": 2.0, "label_smoothing": 0.1}, {"norm": "task"}),
        ({"learn_scale": False}, {"norm": "none"}),
    ],
    "classifier": [({"rotation": 0.5, "label_smoothing": 0.1}, {"norm": "task"})],
    "r2d2": [({"scale": 1.0, "learn_regularization": False}, {"norm": "task"})],
}
CASES = [(name, *case) for name in LEARNERS for case in [({}, {}), *VARIANTS.get(name, [])]]
IMAGE_SHAPE = (1, 16, 16)


def given(kind):
    """Return the arguments that a run passes to a learner; class ids of the laws are below 8."""
    parameters = inspect.signature(kind).parameters
    return {name: n for name, n in (("n_way", 4), ("n_classes", 8)) if name in parameters}


def build(seed, *, name, settings, backbone_settings, backbone="conv4"):
    sizes = {
        "conv4": {"filters": 8},
        "identity": {},
        "linear": {"out_features": 8},
        "mlp": {"hidden": 16, "out_features": 8},
        "resnet12": {"widths": (8, 8, 8, 8)},
    }[backbone]
    kind = LEARNERS[name]
    if backbone == "conv4" and kind.needs_feature_maps:
        sizes["n_pooled"] = 2
    features = build_backbone(backbone, image_shape=IMAGE_SHAPE, **sizes, **backbone_settings)
    needed = given(kind)
    steps = inspect.signature(kind).parameters.get("evaluation_steps")
    if steps is not None and (steps.default or 0) > 10:  # many of them take long
        needed["evaluation_steps"] = 10
    return build_learner(name, backbone=features, **needed | settings)


@pytest.mark.parametrize("law", LEARNER_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize(("name", "settings", "backbone_settings"), CASES, ids=str)
def test_every_learner_obeys_every_law(name, settings, backbone_settings, law):
    factory = functools.partial(
        build, name=name, settings=settings, backbone_settings=backbone_settings
    )
    tolerance = 0.05 if LEARNERS[name].supports_bfloat16 else 0.25
    law(LearnerSubject(factory, image_shape=IMAGE_SHAPE, bfloat16_tolerance=tolerance))


@pytest.mark.parametrize("name", ["protonet", "matchingnet"])
def test_a_deep_backbone_with_dropped_blocks_passes_too(name):
    factory = functools.partial(
        build, name=name, settings={}, backbone_settings={}, backbone="resnet12"
    )
    check_learner(factory, image_shape=IMAGE_SHAPE)


@pytest.mark.parametrize("norm", ["none", "batch", "task", "layer"])
@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_obeys_every_law_on_linear_layers(name, norm):
    factory = functools.partial(
        build, name=name, settings={}, backbone_settings={"norm": norm}, backbone="mlp"
    )
    tolerance = 0.05 if LEARNERS[name].supports_bfloat16 else 0.25
    check_learner(factory, image_shape=IMAGE_SHAPE, bfloat16_tolerance=tolerance)


# On the identity, these learn something of their own only if they are told to.
OF_THEIR_OWN = {"protonet": {"learn_temperature": True}, "matchingnet": {"full_context": True}}


@pytest.mark.parametrize("backbone", ["identity", "linear"])
@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_obeys_every_law_on_vectors(name, backbone):
    def build_on_vectors(seed):
        settings = OF_THEIR_OWN.get(name, {}) if backbone == "identity" else {}
        features = build_backbone(backbone, image_shape=(12, 1, 1))
        needed = given(LEARNERS[name])
        if name == "reptile":
            needed["evaluation_steps"] = 10
        return build_learner(name, backbone=features, **needed, **settings)

    tolerance = 0.05 if LEARNERS[name].supports_bfloat16 else 0.25
    check_learner(build_on_vectors, image_shape=(12, 1, 1), bfloat16_tolerance=tolerance)


@pytest.mark.parametrize("n_way", [2, 7])
def test_other_numbers_of_ways_pass_too(n_way):
    factory = functools.partial(build, name="protonet", settings={}, backbone_settings={})
    check_learner(factory, image_shape=IMAGE_SHAPE, n_way=n_way)


def test_full_context_is_right_not_to_claim_a_free_order():
    def claims_it(seed):
        settings = {"full_context": True}
        learner = build(seed, name="matchingnet", settings=settings, backbone_settings={})
        assert not learner.order_free
        learner.order_free = True
        return learner

    with pytest.raises(AssertionError, match="permuting the classes"):
        check_learner(claims_it)


class Linear(Learner):
    """A small learner that obeys: the nearest prototype after a linear map."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(256, 8)

    def embed(self, images):
        return self.map(images.flatten(2))

    def classify(self, support, query, n_way):
        prototypes = support.unflatten(1, (n_way, -1)).mean(2)
        return -(query.unsqueeze(2) - prototypes.unsqueeze(1)).square().sum(-1)

    def forward(self, episodes):
        support, query = self.embed(episodes.support_images), self.embed(episodes.query_images)
        return self.classify(support, query, episodes.class_ids.shape[1])


class KnowsWhereQueriesStand(Linear):
    def forward(self, episodes):
        n_way = episodes.class_ids.shape[1]
        rows = torch.arange(episodes.query_labels.shape[1]) % n_way
        return super().forward(episodes) + rows[:, None] * torch.arange(n_way)


class AddsARow(Linear):
    def forward(self, episodes):
        return torch.cat([super().forward(episodes)] * 2, dim=1)


class OverflowsWithoutNotice(Linear):
    def forward(self, episodes):
        return super().forward(episodes) * 1e38 * 1e38


class StaysInEvaluation(Linear):
    def forward(self, episodes):
        self.eval()
        return super().forward(episodes)


class KnowsFourWaysOnly(Linear):
    def forward(self, episodes):
        if episodes.class_ids.shape[1] != 4:
            raise KeyError("four")
        return super().forward(episodes)


class PrefersTheFirstClass(Linear):
    def forward(self, episodes):
        logits = super().forward(episodes)
        return logits + (torch.arange(logits.shape[-1]) == 0)


class LooksAtTheFirstShot(Linear):
    def classify(self, support, query, n_way):
        return super().classify(support.unflatten(1, (n_way, -1))[:, :, 0], query, n_way)


class ReadsTheAnswers(Linear):
    def forward(self, episodes):
        logits = super().forward(episodes)
        places = torch.arange(logits.shape[-1])
        return logits + (episodes.query_labels.unsqueeze(-1) == places)


class KnowsTheNames(Linear):
    def forward(self, episodes):
        return super().forward(episodes) + episodes.class_ids.unsqueeze(1) / 64


class IgnoresTheSupportSet(Linear):
    def classify(self, support, query, n_way):
        return query[..., :n_way]


class MixesTheTasks(Linear):
    def embed(self, images):
        features = super().embed(images)
        return features / (1 + features.std())


class LosesPerTask(Linear):
    def loss(self, query_logits, query_labels):
        return super().loss(query_logits, query_labels).repeat(len(query_logits))


class LosesNothing(Linear):
    def loss(self, query_logits, query_labels):
        return super().loss(query_logits, query_labels) * torch.nan


class KeepsTheGraph(Linear):
    def training_step(self, episodes):
        logits = self(episodes)
        return Outcome(loss=self.loss(logits, episodes.query_labels), query_logits=logits)


class CutsTheGraph(Linear):
    def training_step(self, episodes):
        outcome = super().training_step(episodes)
        return Outcome(loss=outcome.loss.detach(), query_logits=outcome.query_logits)


class HasAnIdleLayer(Linear):
    def __init__(self):
        super().__init__()
        self.idle = nn.Linear(3, 3)


class MultipliesByZero(Linear):
    def __init__(self):
        super().__init__()
        self.idle = nn.Parameter(torch.ones(3, 3))

    def forward(self, episodes):
        return super().forward(episodes) + 0 * self.idle.sum()


class TakesRootsOfZero(Linear):
    def forward(self, episodes):
        return super().forward(episodes) + (self.map.weight.sum() * 0).sqrt()


class ClimbsInstead(Linear):
    def loss(self, query_logits, query_labels):
        return -super().loss(query_logits, query_labels)


class DropsInEvaluation(Linear):
    def embed(self, images):
        return nn.functional.dropout(super().embed(images), 0.2)


class CountsInEvaluation(Linear):
    def __init__(self):
        super().__init__()
        self.register_buffer("n_calls", torch.zeros(()))

    def forward(self, episodes):
        self.n_calls += 1
        return super().forward(episodes)


class ChangesTheEpisodes(Linear):
    def forward(self, episodes):
        episodes.query_images.clamp_(-1, 1)
        return super().forward(episodes)


class LeavesGradients(Linear):
    def forward(self, episodes):
        with torch.enable_grad():
            logits = super().forward(episodes)
            if not self.training:
                logits.sum().backward(retain_graph=True)
        return logits


class ForgetsABuffer(Linear):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8), persistent=False)

    def embed(self, images):
        features = super().embed(images)
        if self.training:
            self.mean = features.detach().mean((0, 1))
        return (features - self.mean).square()


class ForgetsItsStep(Linear):
    def __init__(self):
        super().__init__()
        self.n_steps = 0

    def loss(self, query_logits, query_labels):
        self.n_steps += 1
        return super().loss(query_logits, query_labels) / self.n_steps


class IsCoarseInHalfPrecision(Linear):
    def classify(self, support, query, n_way):
        return super().classify(support, query, n_way) * (1.0 if query.dtype.itemsize > 2 else 0.1)


class StaysInSinglePrecision(Linear):
    def forward(self, episodes):
        return super().forward(episodes).float()


class AsksTheHost(Linear):
    def forward(self, episodes):
        logits = super().forward(episodes)
        return logits / max(1.0, logits.detach().abs().max().item())


BROKEN = {
    AddsARow: "logits are tasks x queries x way",
    OverflowsWithoutNotice: "logits are finite",
    StaysInEvaluation: "training or evaluation as it is",
    KnowsFourWaysOnly: "other_ways_work_or_are_refused ended in KeyError",
    PrefersTheFirstClass: "permuting the classes",
    LooksAtTheFirstShot: "the order of shots",
    KnowsWhereQueriesStand: "permuting the queries",
    ReadsTheAnswers: "do not depend on the query labels",
    KnowsTheNames: "names of the classes",
    IgnoresTheSupportSet: "predictions depend on the support set",
    MixesTheTasks: "what each gives alone",
    LosesPerTask: "the loss is a scalar",
    LosesNothing: "the loss is finite",
    KeepsTheGraph: "logits are detached",
    CutsTheGraph: "the loss can be differentiated",
    HasAnIdleLayer: r"the gradient reaches idle",
    MultipliesByZero: "the gradient of idle is not zero",
    TakesRootsOfZero: r"the gradient of map.* is finite",
    ClimbsInstead: "training lowers the loss",
    DropsInEvaluation: "repeat to the last bit",
    CountsInEvaluation: "no parameter and no buffer",
    ChangesTheEpisodes: "episodes are left as they were",
    LeavesGradients: "evaluation leaves no gradients",
    ForgetsABuffer: "predicts the same",
    ForgetsItsStep: "learns on exactly",
    IsCoarseInHalfPrecision: "bfloat16 agrees",
    StaysInSinglePrecision: "float64 stays float64",
    AsksTheHost: "read on the host",
}


def test_the_small_learner_obeys():
    check_learner(lambda seed: Linear())


@pytest.mark.parametrize("broken", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_learner_is_found_out(broken):
    """By the law that is about it, whatever other laws it breaks."""
    messages = []
    subject = LearnerSubject(lambda seed: broken())
    for law in LEARNER_LAWS:
        try:
            law(subject)
        except Exception as error:
            messages.append(f"{law.__name__} ended in {type(error).__name__}: {error}")
    assert any(re.search(BROKEN[broken], message) for message in messages), messages
    with pytest.raises(AssertionError):
        check_learner(lambda seed: broken())


def test_every_law_has_been_broken_by_somebody():
    broken_laws = set()
    for kind in BROKEN:
        subject = LearnerSubject(lambda seed, kind=kind: kind())
        for law in set(LEARNER_LAWS) - broken_laws:
            try:
                law(subject)
            except Exception:
                broken_laws.add(law)
    assert broken_laws == set(LEARNER_LAWS)


def test_what_is_no_learner_is_said_to_be_none():
    with pytest.raises(AssertionError, match=r"torch\.nn\.Module"):
        check_learner(lambda seed: object())


def test_a_module_with_nothing_but_forward_passes():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(256, 8)

        embed, classify, forward = Linear.embed, Linear.classify, Linear.forward

    check_learner(lambda seed: Plain())
