"""Every entry of the registry enters by itself, with every setting that changes its algorithm."""

import copy
import itertools
import math

import pytest
import torch

from adaptask.conformance import SAMPLER_LAWS, check_sampler
from adaptask.samplers import SAMPLERS, GreedyClassPairSampler, UniformSampler, build_sampler

SIZES = {"instance": {"n_instances": 12}}
VARIANTS = {
    "c": [{"strategy": "easy"}, {"strategy": "uncertain", "tau": 0.0}, {"dtype": torch.float64}],
    "cp": [{"method": m} for m in ("enumerate", "reject", "gibbs")] + [{"strategy": "easy"}],
    "gcp": [
        {"strategy": "easy", "confusion": "mean"},
        {"strategy": "uncertain", "tau": 0.0},
        {"forget": "all", "alpha": 3.0},
        {"forget": "all", "tau": 0.0},
        {"exploration": 0.3, "tau": 1.0},
        {"dtype": torch.float64, "alpha": 0.0},
    ],
    "instance": [{"strategy": "uncertain"}, {"tau": 1.0, "alpha": 0.3}],
}
CASES = [(name, s) for name in SAMPLERS for s in [{}, *VARIANTS.get(name, [])]]


@pytest.mark.parametrize("law", SAMPLER_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda value: str(value))
def test_every_sampler_obeys_every_law(name, settings, law):
    sizes = SIZES.get(name, {"n_classes": 9, "n_way": 3})
    law(lambda seed: build_sampler(name, seed=seed, **sizes, **settings))


@pytest.mark.parametrize("name", ["uniform", "c", "cp", "gcp"])
def test_the_extremes_of_the_way_pass_too(name):
    for n_way in (2, 6):
        check_sampler(lambda seed, k=n_way: build_sampler(name, n_classes=6, n_way=k, seed=seed))


class KeepsDrawingTheSame(UniformSampler):
    def _draw(self, n_tasks):
        return torch.arange(self.n_way).repeat(n_tasks, 1)


class RepeatsAClass(UniformSampler):
    def _draw(self, n_tasks):
        return super()._draw(n_tasks).clamp_max(self.n_classes // 2)


class PrefersClassZero(GreedyClassPairSampler):
    def _learn(self, feedback):
        super()._learn(feedback)
        self.log_potentials[0, 1:] += 0.5
        self.log_potentials[1:, 0] += 0.5


class LiesAboutItsProbability(GreedyClassPairSampler):
    def _log_prob(self, class_ids):
        uniform = UniformSampler(n_classes=self.n_classes, n_way=self.n_way)
        return uniform._log_prob(class_ids)


class ForgetsItsStream(GreedyClassPairSampler):
    def set_extra_state(self, state):
        pass


class DependsOnTheOrder(GreedyClassPairSampler):
    def _learn(self, feedback):
        for task in range(len(feedback.class_ids)):
            part = copy.copy(feedback)
            object.__setattr__(part, "class_ids", feedback.class_ids[task : task + 1])
            object.__setattr__(part, "confusion", feedback.confusion[task : task + 1])
            super()._learn(part)


class SwallowsBadFeedback(UniformSampler):
    def update(self, class_ids, probabilities, labels):
        pass


class RefusesSharedLabels(UniformSampler):
    def update(self, class_ids, probabilities, labels):
        assert labels.ndim == 2
        super().update(class_ids, probabilities, labels)


class AppliesTheGoodPart(GreedyClassPairSampler):
    def update(self, class_ids, probabilities, labels):
        for t in range(len(class_ids)):
            super().update(class_ids[t : t + 1], probabilities[t : t + 1], labels[t : t + 1])


class KeepsTheGraph(UniformSampler):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.register_buffer("last", torch.zeros(1), persistent=False)

    def update(self, class_ids, probabilities, labels):
        super().update(class_ids, probabilities, labels)
        self.last = probabilities.sum()


class HasAParameter(UniformSampler):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.weight = torch.nn.Parameter(torch.zeros(1))


@pytest.mark.parametrize(
    "broken",
    [
        KeepsDrawingTheSame,
        RepeatsAClass,
        PrefersClassZero,
        LiesAboutItsProbability,
        ForgetsItsStream,
        DependsOnTheOrder,
        SwallowsBadFeedback,
        RefusesSharedLabels,
        AppliesTheGoodPart,
        KeepsTheGraph,
        HasAParameter,
    ],
)
def test_a_broken_sampler_is_found_out(broken):
    with pytest.raises(AssertionError):
        check_sampler(lambda seed: broken(n_classes=8, n_way=3, seed=seed))


def test_what_is_no_sampler_is_said_to_be_none():
    with pytest.raises(AssertionError, match=r"torch\.nn\.Module"):
        check_sampler(lambda seed: object())
    with pytest.raises(AssertionError, match="n_classes, n_way"):
        check_sampler(lambda seed: torch.nn.Identity())


def test_the_laws_have_different_names():
    names = [law.__name__ for law in SAMPLER_LAWS]
    assert all(a != b for a, b in itertools.combinations(names, 2))


class NeverDrawsTheFirstClass(UniformSampler):
    """Legal: some sets have the probability zero."""

    def _draw(self, n_tasks):
        return self._uniform(n_tasks, self.n_classes - 1, dtype=torch.float32).topk(3).indices + 1

    def _log_prob(self, class_ids):
        n_sets = math.comb(self.n_classes - 1, 3)
        log_probs = torch.full((len(class_ids),), -math.log(n_sets), dtype=torch.float64)
        return log_probs.masked_fill((class_ids == 0).any(-1), -torch.inf)


def test_sets_that_are_never_drawn_are_legal_but_class_zero_must_not_be_special():
    def build(seed):
        return NeverDrawsTheFirstClass(n_classes=7, n_way=3, seed=seed)

    with pytest.raises(AssertionError, match="renaming classes"):
        check_sampler(build)
    for law in SAMPLER_LAWS:
        if law.__name__ != "relabelling_classes_relabels_the_result":
            law(build)


@pytest.mark.parametrize(("name", "n_classes", "n_way"), [("gcp", 20, 14), ("cp", 64, 5)])
def test_samplers_that_cannot_tell_their_probabilities_pass(name, n_classes, n_way):
    check_sampler(lambda seed: build_sampler(name, n_classes=n_classes, n_way=n_way, seed=seed))


def test_an_error_of_another_kind_becomes_an_assertion():
    class RaisesPlainErrors(UniformSampler):
        def update(self, class_ids, probabilities, labels):
            if not isinstance(class_ids, torch.Tensor) or class_ids.dtype != torch.int64:
                raise KeyError("what is this?")
            super().update(class_ids, probabilities, labels)

    with pytest.raises(AssertionError, match=r"bad_feedback.* ended in KeyError"):
        check_sampler(lambda seed: RaisesPlainErrors(n_classes=7, n_way=3, seed=seed))
