"""The configuration is made from the constructors of the classes, and refuses bad values."""

import inspect
import pickle
import sys
from dataclasses import fields, replace

import pytest

from adaptask.errors import ArgumentError
from adaptask.experiments.config import DataConfig, OptimizerConfig, RunConfig, check_config
from adaptask.experiments.list_command import list_parts
from adaptask.experiments.options import (
    REGISTRIES,
    class_of,
    configure,
    describe,
    options_of,
    section_class,
    shared_section,
)

# What the run itself decides, and types that a command line cannot set.
NO_OPTIONS = {"image_shape", "backbone", "n_way", "n_classes", "seed", "device", "dtype"} | {
    "n_features",
    "variant_of",
    "groups",
    "distances",
}
NAMES = [
    (kind, name) for kind, registry in REGISTRIES.items() for name in registry if name != "instance"
]


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_options_and_defaults_are_those_of_the_constructor(kind, name):
    parameters = inspect.signature(REGISTRIES[kind][name]).parameters.values()
    wanted = {p.name: p.default for p in parameters if p.name not in NO_OPTIONS}
    assert options_of(configure(kind, name)) == wanted


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_every_option_has_a_help_text(kind, name):
    for item in fields(section_class(kind, name))[1:]:
        (settings,) = item.type.__metadata__
        assert len(settings.help) > 10, item.name
        assert "\n" not in settings.help


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_a_section_can_be_sent_to_another_process(kind, name):
    section = configure(kind, name)
    assert pickle.loads(pickle.dumps(section)) == section
    assert len({section, configure(kind, name)}) == 1


def test_a_section_belongs_to_its_class():
    with pytest.raises(ArgumentError, match=r"configure\('sampler', 'cp'\)"):
        replace(configure("sampler", "gcp"), name="cp")


def test_every_part_is_listed_with_one_line():
    parts = list_parts()
    assert list(parts["learners"]) == list(REGISTRIES["learner"])
    for lines in parts.values():
        for line in lines.values():
            assert 10 <= len(line) <= 110
            assert "\n" not in line


def test_an_option_that_an_algorithm_does_not_take_is_refused():
    for kind, name, options, message in (
        ("sampler", "uniform", {"alpha": 2.0}, "'uniform' takes no alpha; it takes no options"),
        ("sampler", "c", {"exploration": 0.5}, "'c' takes no exploration; it takes alpha, tau"),
        ("backbone", "conv4", {"drop_rate": 0.2}, "'conv4' takes no drop_rate; it takes filters"),
        ("learner", "maml", {"penalty": 1.0}, "'maml' takes no penalty; it takes inner_steps"),
    ):
        with pytest.raises(ArgumentError, match=message):
            configure(kind, name, **options)


def test_a_sampler_of_examples_cannot_be_trained_with():
    with pytest.raises(ArgumentError, match="'instance'"):
        configure("sampler", "instance")


def test_several_algorithms_share_the_options_that_any_of_them_takes():
    section = shared_section("sampler", ["uniform", "c", "cp", "gcp"], hide_name=True)
    assert {"alpha", "tau", "n_sweeps", "exploration"} <= options_of(section).keys()


def test_a_description_names_the_class_and_what_it_is():
    found = describe(configure("sampler", "uniform"))
    assert found["class"] == "adaptask.samplers.uniform:UniformSampler"
    assert found["learns"] is False
    assert describe(configure("learner", "maml")).keys() == {"name", "class", "description"}


@pytest.mark.parametrize("bad", [{"steps": 0}, {"steps": -3}, {"seed": -1}])
def test_numbers_out_of_range_are_refused(bad):
    with pytest.raises(ArgumentError, match=next(iter(bad))):
        check_config(RunConfig(**bad))


def test_options_of_the_optimizer_without_effect_are_refused():
    with pytest.raises(ArgumentError, match="no effect without the optimizer sgd"):
        check_config(RunConfig(optimizer=OptimizerConfig(momentum=0.5)))


# Classes of others --------------------------------------------------------------------------------

PLUGIN = '''
from adaptask.samplers import GCPSampler, UniformSampler

class Bold(GCPSampler):
    """Prefers what is bold.

    Args:
        boldness: How bold it is.
    """

    def __init__(self, *, boldness: float = 2.0, untyped=3, table: dict = {}, **kwargs):
        super().__init__(**kwargs)
        self.boldness, self.untyped = boldness, untyped

class Plain:
    def __init__(self, n_classes, n_way, seed, device): ...
    def sample(self, n_tasks): ...
    def update(self, class_ids, probabilities, labels): ...

class Needy(UniformSampler):
    def __init__(self, *, n_classes, n_way, seed, device, size: int): ...

class Seedless(UniformSampler):
    def __init__(self, *, n_classes, n_way): ...

class Named(UniformSampler):
    def __init__(self, *, n_classes, n_way, seed, device, name: str = "x"): ...
'''


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    (tmp_path / "some_plugins.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "some_plugins"
    sys.modules.pop("some_plugins", None)


def test_a_class_has_the_options_of_its_base_if_it_passes_them_on(plugins):
    section = configure("sampler", f"{plugins}:Bold", boldness=5.0, tau=0.7)
    assert list(options_of(section))[:3] == ["boldness", "untyped", "alpha"]
    assert "table" not in options_of(section)
    assert (section.untyped, section.tau) == (3, 0.7)
    assert class_of(section).__name__ == "Bold"
    assert describe(section)["description"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Needy", "needs size, which nobody passes to it; give this argument a default"),
        ("Seedless", "must take n_classes, n_way, seed, device as keyword .* no seed, device"),
        ("Named", "must not be called name"),
        ("Missing", "cannot be imported"),
    ],
)
def test_a_class_that_cannot_be_built_is_refused(plugins, name, message):
    with pytest.raises(ArgumentError, match=message):
        configure("sampler", f"{plugins}:{name}")


def test_a_class_that_derives_from_nothing_has_options_too(plugins):
    assert options_of(configure("sampler", f"{plugins}:Plain")) == {}


def test_noise_without_its_augmentation_is_refused():
    config = RunConfig(data=DataConfig(noise=0.5))
    with pytest.raises(ArgumentError, match="has no effect without the augmentation noise"):
        check_config(config)
    check_config(replace(config, data=DataConfig(noise=0.5, augmentation="noise")))
