"""Every entry of the registry enters by itself, with every setting that changes its algorithm."""

import copy
import inspect
import itertools
import math
from typing import get_args, get_type_hints

import pytest
import torch
from docstring_parser import parse

from adaptask.conformance import SAMPLER_LAWS, check_sampler
from adaptask.errors import ArgumentError
from adaptask.samplers import SAMPLERS, GCPSampler, UniformSampler, build_sampler

SIZES = {"n_classes": 9, "n_way": 3, "n_instances": 12, "n_features": 6}
SUPPLIED = {*SIZES, "groups", "distances", "variant_of", "seed", "device"}
TASK_SAMPLERS = [name for name in SAMPLERS if SAMPLERS[name].draws == "tasks"]


def variants(name):
    """Yield settings: the defaults, and every option set to each of its other choices."""
    yield {}
    types = get_type_hints(SAMPLERS[name].__init__)
    for option, parameter in inspect.signature(SAMPLERS[name]).parameters.items():
        if option not in SUPPLIED:
            numbers = {float: [0.0, 0.5], float | None: [0.0, 0.5, None]}
            choices = numbers.get(types[option], get_args(types[option]))
            yield from ({option: value} for value in choices if value != parameter.default)


def sized(name, **sizes):
    """Return those sizes that a sampler takes."""
    takes = inspect.signature(SAMPLERS[name]).parameters
    return {key: value for key, value in {**SIZES, **sizes}.items() if key in takes}


CASES = [(name, settings) for name in SAMPLERS for settings in variants(name)]
# By default it is uniform with so few classes.
CASES += [("neighbor", {"beta": 2.0, "target_accuracy": target}) for target in (None, 0.1)]


@pytest.mark.parametrize("law", SAMPLER_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_every_sampler_obeys_every_law(name, settings, law):
    law(lambda seed: build_sampler(name, seed=seed, **sized(name), **settings))


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_obeys_the_laws_in_double_precision(name):
    check_sampler(lambda seed: build_sampler(name, seed=seed, **sized(name)).double())


def test_every_option_that_names_its_choices_is_tried():
    assert {"method": "gibbs"} in [settings for name, settings in CASES if name == "cp"]
    assert {"exploration": 0.5} in [settings for name, settings in CASES if name == "gcp"]
    assert {"target_accuracy": None} in [settings for name, settings in CASES if name == "neighbor"]


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_describes_itself(name):
    cls = SAMPLERS[name]
    assert cls.description
    assert not cls.description.endswith(".")
    assert cls.draws in ("tasks", "examples")
    described = parse(cls.__doc__).params
    options = set(inspect.signature(cls).parameters)
    assert {param.arg_name for param in described} == options
    assert all(param.description for param in described)


@pytest.mark.parametrize("name", TASK_SAMPLERS)
def test_the_extremes_of_the_way_pass_too(name):
    for n_way in (2, 6):
        sizes = sized(name, n_classes=6, n_way=n_way)
        check_sampler(lambda seed, sizes=sizes: build_sampler(name, seed=seed, **sizes))


class KeepsDrawingTheSame(UniformSampler):
    def draw(self, n_tasks):
        return torch.arange(self.n_way).repeat(n_tasks, 1)


class RepeatsAClass(UniformSampler):
    def draw(self, n_tasks):
        return super().draw(n_tasks).clamp_max(self.n_classes // 2)


class PrefersClassZero(GCPSampler):
    def learn(self, feedback):
        super().learn(feedback)
        self.log_potentials[0, 1:] += 0.5
        self.log_potentials[1:, 0] += 0.5


class LiesAboutItsProbability(GCPSampler):
    def log_prob(self, class_ids):
        uniform = UniformSampler(n_classes=self.n_classes, n_way=self.n_way)
        return uniform.log_prob(class_ids)


class ForgetsItsStream(GCPSampler):
    def set_extra_state(self, state):
        pass


class DependsOnTheOrder(GCPSampler):
    def learn(self, feedback):
        for task in range(len(feedback.class_ids)):
            part = copy.copy(feedback)
            object.__setattr__(part, "class_ids", feedback.class_ids[task : task + 1])
            object.__setattr__(part, "confusion", feedback.confusion[task : task + 1])
            super().learn(part)


class SwallowsBadFeedback(UniformSampler):
    def update(self, class_ids, probabilities, labels):
        pass


class RefusesSharedLabels(UniformSampler):
    def update(self, class_ids, probabilities, labels):
        assert labels.ndim == 2
        super().update(class_ids, probabilities, labels)


class AppliesTheGoodPart(GCPSampler):
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


class WeighsWithNaN(UniformSampler):
    def weigh(self, losses):
        return (losses - losses.mean()) / losses.std()


class WeighsBelowZero(UniformSampler):
    def weigh(self, losses):
        return losses - losses.mean()


class WeighsTheStep(UniformSampler):
    def weigh(self, losses):
        return losses.mean()


class WeighsByPlace(UniformSampler):
    def weigh(self, losses):
        return torch.arange(len(losses)).float()


class ForgetsItsWeights(UniformSampler):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.register_buffer("sums", torch.zeros(()), persistent=False)

    def weigh(self, losses):
        self.sums += losses.sum()
        return losses / self.sums


class ChoosesOneTwice(UniformSampler):
    def n_candidates(self, n_tasks):
        return n_tasks + 2

    def choose(self, class_ids, losses, n_tasks):
        return losses.topk(1).indices.expand(n_tasks)


class ChoosesTooMany(ChoosesOneTwice):
    def choose(self, class_ids, losses, n_tasks):
        return losses.argsort()


class HasTooFewCandidates(ChoosesTooMany):
    def n_candidates(self, n_tasks):
        return n_tasks // 2 + 1


@pytest.mark.parametrize(
    "broken",
    [
        WeighsWithNaN,
        WeighsBelowZero,
        WeighsTheStep,
        WeighsByPlace,
        ForgetsItsWeights,
        ChoosesOneTwice,
        ChoosesTooMany,
        HasTooFewCandidates,
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
    with pytest.raises(AssertionError, match="object has no n_classes, n_way, sample, update"):
        check_sampler(lambda seed: object())
    with pytest.raises(AssertionError, match="ended in ZeroDivisionError"):
        check_sampler(lambda seed: 1 // 0)
    with pytest.raises(AssertionError, match="n_classes, n_way"):
        check_sampler(lambda seed: torch.nn.Identity())


class Minimal:
    """An object that has only what every loop needs."""

    def __init__(self, n_classes, n_way, seed):
        self.n_classes, self.n_way = n_classes, n_way
        self.random = torch.Generator().manual_seed(seed)

    def sample(self, n_tasks):
        weights = torch.ones(n_tasks, self.n_classes)
        return torch.multinomial(weights, self.n_way, generator=self.random)

    def update(self, class_ids, probabilities, labels):
        pass


class MinimalWithRepeats(Minimal):
    def sample(self, n_tasks):
        return torch.randint(self.n_classes, (n_tasks, self.n_way), generator=self.random)


def test_an_object_with_sample_and_update_is_checked_for_what_it_has():
    check_sampler(lambda seed: Minimal(9, 3, seed))
    with pytest.raises(AssertionError, match="distinct"):
        check_sampler(lambda seed: MinimalWithRepeats(9, 3, seed))


def test_the_laws_have_different_names():
    names = [law.__name__ for law in SAMPLER_LAWS]
    assert all(a != b for a, b in itertools.combinations(names, 2))


class NeverDrawsTheFirstClass(UniformSampler):
    """Legal: some sets have the probability zero."""

    def draw(self, n_tasks):
        return self.uniform_noise(n_tasks, self.n_classes - 1).topk(3).indices + 1

    def log_prob(self, class_ids):
        n_sets = math.comb(self.n_classes - 1, 3)
        log_probs = torch.full((len(class_ids),), -math.log(n_sets), dtype=torch.float64)
        return log_probs.masked_fill((class_ids == 0).any(-1), -torch.inf)


def test_sets_that_are_never_drawn_are_legal_but_class_zero_must_not_be_special():
    def build(seed):
        return NeverDrawsTheFirstClass(n_classes=7, n_way=3, seed=seed)

    with pytest.raises(AssertionError, match="renaming classes"):
        check_sampler(build)
    for law in SAMPLER_LAWS:
        if law.__name__ != "relabeling_classes_relabels_the_result":
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


# Class features -----------------------------------------------------------------------------------


@pytest.fixture
def has_no_log_prob():
    """A mixin for samplers of which only draws can be compared."""

    class HasNoLogProb:
        def log_prob(self, class_ids):
            raise ArgumentError("this sampler does not compute its probabilities.")

    return HasNoLogProb


def of_features(kind, *mixins):
    settings = {"n_classes": 9, "n_way": 3, "n_features": 6}
    made = type("Made", (*mixins, kind), {})
    return lambda seed: made(**settings, strength=4.0, seed=seed)


@pytest.mark.parametrize("law", SAMPLER_LAWS, ids=lambda law: law.__name__)
def test_a_sampler_of_features_obeys_every_law(crowded_sampler, law):
    law(of_features(crowded_sampler))


def test_a_sampler_of_features_is_checked_without_log_prob_and_in_double_precision(
    crowded_sampler, has_no_log_prob
):
    check_sampler(of_features(crowded_sampler, has_no_log_prob))
    check_sampler(lambda seed: of_features(crowded_sampler)(seed).double())


class PrefersLateClasses:
    """Breaks the law of permutations."""

    def log_weights(self):
        return super().log_weights() + 0.2 * torch.arange(self.n_classes)


class LooksInOneDirection:
    """Breaks the law of rotations: the first feature is special."""

    def log_weights(self):
        return self.strength * self.sums[:, 0] / self.counts.clamp_min(1)


@pytest.mark.parametrize("with_log_prob", [True, False])
@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (PrefersLateClasses, "permuting_classes_permutes_the_draws"),
        (LooksInOneDirection, "rotating_the_features_changes_nothing"),
    ],
)
def test_a_sampler_that_breaks_a_law_of_features_is_found_out(
    crowded_sampler, has_no_log_prob, broken, law, with_log_prob
):
    mixins = (broken,) if with_log_prob else (has_no_log_prob, broken)
    build = of_features(crowded_sampler, *mixins)
    laws = {each.__name__: each for each in SAMPLER_LAWS}
    with pytest.raises(AssertionError, match=law.replace("_", " ")):
        laws.pop(law)(build)
    if law.startswith("permuting"):
        laws.pop("relabeling_classes_relabels_the_result")  # the same law for log_prob
    for other in laws.values():
        other(build)


class TakesAnyFeatures:
    """Lets NaN in, or nothing at all."""

    def update(self, class_ids, probabilities, labels, *, class_features=None):
        if class_features is None:
            return
        features = class_features.nan_to_num() if class_features.ndim == 3 else class_features
        super().update(class_ids, probabilities, labels, class_features=features)


def test_a_sampler_that_takes_bad_features_is_found_out(crowded_sampler):
    with pytest.raises(AssertionError, match="no class features"):
        check_sampler(of_features(crowded_sampler, TakesAnyFeatures))


def test_a_sampler_of_features_must_say_their_number(crowded_sampler):
    def build(seed):
        sampler = of_features(crowded_sampler)(seed)
        sampler.n_features = None
        return sampler

    with pytest.raises(AssertionError, match="has n_features"):
        check_sampler(build)
