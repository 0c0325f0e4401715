"""The configuration fits the classes it is handed to, and refuses what plays no part."""

import inspect
from dataclasses import fields, replace

import pytest

from adaptask import backbones, learners, samplers
from adaptask.errors import ArgumentError
from adaptask.experiments.catalogue import SAMPLERS as SAMPLER_LINES
from adaptask.experiments.catalogue import catalogue
from adaptask.experiments.config import (
    BACKBONES,
    LEARNERS,
    SAMPLER_OPTIONS,
    RunConfig,
    SamplerConfig,
    check_config,
)

# What the run itself decides, not the user's options.
GIVEN = {"image_shape", "backbone", "n_way", "n_classes", "seed", "device", "dtype"}
# None in the configuration stands for what suits the learner.
CHOSEN_LATER = {("conv4", "n_pooled")}


def defaults(kind):
    parameters = inspect.signature(kind).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in GIVEN}


def test_every_choice_of_the_registries_is_one_of_the_configuration():
    assert set(LEARNERS) == set(learners.LEARNERS)
    assert set(BACKBONES) == set(backbones.BACKBONES)
    assert set(SAMPLER_OPTIONS) == set(SAMPLER_LINES) == set(samplers.SAMPLERS) - {"instance"}


@pytest.mark.parametrize("name", [*LEARNERS, *BACKBONES])
def test_options_and_defaults_are_those_of_the_class(name):
    kind = {**learners.LEARNERS, **backbones.BACKBONES}[name]
    options = RunConfig().options_of(name)
    ours = {field.name: field.default for field in fields(options)}
    theirs = defaults(kind)
    assert ours.keys() == theirs.keys()
    for option, default in ours.items():
        if (name, option) not in CHOSEN_LATER:
            assert default == theirs[option], f"{name}.{option}"


@pytest.mark.parametrize("name", SAMPLER_OPTIONS)
def test_the_options_of_a_sampler_are_those_of_its_class(name):
    theirs = defaults(samplers.SAMPLERS[name])
    assert set(SAMPLER_OPTIONS[name]) == theirs.keys()
    for option, default in theirs.items():
        assert getattr(SamplerConfig(), option) == default


def test_every_part_is_listed_with_one_line():
    parts = catalogue()
    assert list(parts["learners"]) == list(LEARNERS)
    for lines in parts.values():
        for line in lines.values():
            assert 10 <= len(line) <= 100
            assert "\n" not in line


def test_an_option_that_the_sampler_does_not_take_is_refused():
    config = RunConfig(sampler=SamplerConfig(name="uniform", alpha=2.0))
    with pytest.raises(ArgumentError, match="'uniform' takes no alpha; it takes no options"):
        check_config(config)
    config = RunConfig(sampler=SamplerConfig(name="c", exploration=0.5))
    with pytest.raises(ArgumentError, match="'c' takes no exploration; it takes alpha, tau"):
        check_config(config)


def test_options_of_what_was_not_chosen_are_refused():
    config = RunConfig()
    config = replace(config, resnet12=replace(config.resnet12, drop_rate=0.2))
    with pytest.raises(ArgumentError, match=r"resnet12\.drop_rate .* choose resnet12"):
        check_config(config)
    check_config(replace(config, model=replace(config.model, backbone="resnet12")))


def test_a_section_is_named_after_its_learner_as_far_as_a_field_can_be():
    config = RunConfig()
    config = replace(config, metaoptnet_svm=replace(config.metaoptnet_svm, penalty=1.0))
    with pytest.raises(ArgumentError, match=r"metaoptnet_svm\.penalty .* choose metaoptnet-svm"):
        check_config(config)
    chosen = replace(config, model=replace(config.model, learner="metaoptnet-svm"))
    check_config(chosen)
    assert chosen.learner_options.penalty == 1.0


@pytest.mark.parametrize("bad", [{"steps": 0}, {"steps": -3}, {"seed": -1}])
def test_numbers_out_of_range_are_refused(bad):
    with pytest.raises(ArgumentError, match=next(iter(bad))):
        check_config(RunConfig(**bad))
