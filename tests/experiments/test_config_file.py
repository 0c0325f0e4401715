"""The TOML file: complete, read back as it was written, and strict about keys and values."""

import math
import sys
import tomllib
from dataclasses import fields, is_dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptask.errors import ArgumentError
from adaptask.experiments.config import DataConfig, OptimizerConfig, RunConfig
from adaptask.experiments.config_file import (
    apply_settings,
    changes,
    dump_config,
    load_config,
    parse_config,
    read_settings,
    with_value,
)
from adaptask.experiments.options import configure
from adaptask.registry import BACKBONES, LEARNERS

finite = st.floats(allow_nan=False, allow_infinity=False)
whole = st.integers(0, 2**53)
SAMPLERS = ("uniform", "c", "cp", "gcp")


@given(
    st.builds(
        RunConfig,
        steps=whole,
        data=st.builds(
            DataConfig, dataset=st.text().filter(lambda t: ":" not in t), augmentation=st.text()
        ),
        optimizer=st.builds(
            OptimizerConfig,
            lr=finite,
            clip_norm=st.none() | finite,
            milestones=st.lists(whole, max_size=3).map(tuple),
            factors=st.lists(finite, max_size=3).map(tuple),
        ),
        sampler=st.sampled_from([configure("sampler", name) for name in SAMPLERS]),
    )
)
@settings(max_examples=100, deadline=None)
def test_what_is_written_is_read_back(config):
    assert parse_config(dump_config(config)) == config


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_file_is_complete(learner, backbone):
    config = RunConfig(
        learner=configure("learner", learner), backbone=configure("backbone", backbone)
    )
    written = tomllib.loads(dump_config(config))
    assert written.keys() == {"format", *vars(config)}
    for field in fields(config):
        section = getattr(config, field.name)
        if is_dataclass(section):
            known = {f.name for f in fields(section) if getattr(section, f.name) is not None}
            assert written[field.name].keys() == known
    assert parse_config(dump_config(config)) == config


def test_a_file_sets_any_part_and_leaves_the_rest(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        "steps = 7\n[task]\nn_way = 9\n[backbone]\nname = 'resnet12'\nwidths = [1, 2, 3, 4]\n"
    )
    config = load_config(path)
    assert (config.steps, config.task.n_way, config.task.n_shot) == (7, 9, 1)
    assert config.backbone.widths == (1, 2, 3, 4)
    base = RunConfig(seed=3, steps=1)
    assert apply_settings(read_settings(path), base).seed == 3


def test_whole_numbers_are_numbers():
    assert parse_config("[optimizer]\nlr = 1").optimizer.lr == 1.0
    assert math.isinf(parse_config("[optimizer]\nlr = inf").optimizer.lr)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz = 4", "no stepz; did you mean steps?"),
        ("n_way = 4", "no n_way; did you mean task.n_way?"),
        ("[task]\nn_wya = 4", "no task.n_wya; did you mean task.n_way?"),
        ("[task]\nlr = 4", "no task.lr; did you mean optimizer.lr?"),
        ("[evaluation]\nn_wya = 4", "no evaluation.n_wya; did you mean evaluation.n_way?"),
        ("[optimizer]\nwd = 4", "no optimizer.wd; there are optimizer.name, optimizer.lr"),
        ("[tsk]\nn_way = 4", "no tsk.n_way; did you mean task.n_way?"),
        ("zzzzzz = 1", "no zzzzzz; there are steps, seed, data"),
        ("[task]\nzzzzzz = 1", "no task.zzzzzz; there are task.n_way, task.n_shot"),
        ("[seed]\nzzzzzz = 1", "no seed.zzzzzz; there are steps, seed, data"),
        ("steps = 'many'", "steps must be an integer; got 'many'"),
        ("steps = 1.0", "steps must be an integer; got 1.0"),
        ("steps = true", "steps must be an integer; got True"),
        ("[sampler]\nname = 'gpc'", "no sampler 'gpc'; did you mean 'gcp'? There are uniform, c"),
        ("[sampler]\nname = 3", "no sampler 3; there are uniform, c"),
        ("[sampler]\nname = 'gcp'\nalpha = '1'", "sampler.alpha must be a number; got '1'"),
        ("[sampler]\nname = 'c'\nforget = 'all'", "'c' takes no forget; it takes alpha"),
        ("[machine]\ndeterministic = 1", "machine.deterministic must be true or false; got 1"),
        (
            "[backbone]\nname = 'resnet12'\nwidths = [1, 2]",
            "widths must be one of doubling, metaoptnet or a list of 4",
        ),
        ("[optimizer]\nmilestones = [1, 'x']", "milestones must be an integer; got 'x'"),
        ("[optimizer]\nmilestones = 3", "milestones must be a list, each an integer; got 3"),
        ("task = 3", "task must be a section; got 3"),
        ("sampler = 3", "sampler must be a section; got 3"),
        ("format = 99", "format 99; adaptask"),
        ("format = 'new'", "format new"),
        ("steps =", "this is not TOML"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ArgumentError) as error:
        load_config(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ArgumentError, match=r"none\.toml cannot be read"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ArgumentError, match=r"binary\.toml cannot be read"):
        load_config(tmp_path / "binary.toml")
    (tmp_path / "cut.toml").write_text("steps = [")
    for read in (load_config, read_settings):  # the second one as `--config` and `--resume` do
        with pytest.raises(ArgumentError, match=r"^[^ ]*cut\.toml: this is not TOML"):
            read(tmp_path / "cut.toml")


def test_another_name_brings_the_defaults_of_its_class():
    config = RunConfig(sampler=configure("sampler", "gcp", tau=0.7))
    assert with_value(config, "sampler.name", "cp").sampler == configure("sampler", "cp")


def test_a_name_given_elsewhere_wins_over_the_section_of_a_file():
    file = {"sampler": {"name": "gcp", "tau": 0.7}, "learner": {"inner_lr": 0.5}}
    named = {"sampler": ["cp"], "learner": ["maml"]}
    config = apply_settings(file, names=named)
    assert config.sampler == configure("sampler", "cp")  # not tau, which is that of gcp
    assert config.learner == configure("learner", "maml", inner_lr=0.5)
    config = apply_settings(file, names={**named, "sampler": ["uniform", "gcp"]})
    assert config.sampler == configure("sampler", "gcp", tau=0.7)


# Code of others -----------------------------------------------------------------------------------

PLUGIN = """
import pathlib
pathlib.Path(__file__).with_name("imported").touch()
from adaptask.samplers import UniformSampler

class Mine(UniformSampler):
    def __init__(self, *, n_classes, n_way, seed, device, limit: int | None = 5,
                 label: str | None = "a"):
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, device=device)
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "trusted_or_not.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "trusted_or_not:Mine"
    sys.modules.pop("trusted_or_not", None)


def test_a_file_that_names_a_plugin_is_refused_unless_it_is_trusted(plugin, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(f"[sampler]\nname = '{plugin}'\n")
    with pytest.raises(ArgumentError, match=r"sampler 'trusted_or_not:Mine'.*--trust-plugins"):
        load_config(path)
    assert not (tmp_path / "imported").exists()
    config = load_config(path, trust_plugins=True)
    assert config.sampler.limit == 5
    assert config.plugins == {plugin}
    assert load_config(path, known=config) == config


def test_a_plugin_that_the_user_named_is_trusted(plugin):
    file = {"sampler": {"name": plugin, "limit": 4}}
    assert apply_settings(file, names={"sampler": [plugin]}).sampler.limit == 4


def test_a_dataset_of_others_is_refused_unless_it_is_trusted():
    text = "[data]\ndataset = 'my_package:my_data'\n"
    with pytest.raises(ArgumentError, match=r"dataset 'my_package:my_data'.*--trust-plugins"):
        parse_config(text)
    config = apply_settings(tomllib.loads(text), trust_plugins=True)
    assert parse_config(text, known=config) == config


def test_none_is_written_if_it_is_not_the_default(plugin):
    config = RunConfig(sampler=configure("sampler", plugin, limit=None))
    assert 'limit = "none"' in dump_config(config)
    assert parse_config(dump_config(config), known=config) == config


def test_an_option_that_is_gone_is_refused():
    with pytest.raises(ArgumentError, match="per_step_statistics"):
        parse_config('[learner]\nname = "maml++"\nper_step_statistics = true\n')


def test_none_is_nothing_for_an_option_that_may_be_a_text(plugin):
    config = RunConfig(sampler=configure("sampler", plugin, label=None))
    assert 'label = "none"' in dump_config(config)
    assert parse_config(dump_config(config), known=config) == config
    file = {"sampler": {"name": plugin, "label": "none"}}
    assert apply_settings(file, names={"sampler": [plugin]}).sampler.label is None


@pytest.mark.parametrize(("kind", "name"), [("sampler", "gcp"), ("learner", "maml")])
def test_of_what_changed_the_name_of_what_was_replaced_comes_first(kind, name):
    before = RunConfig()
    after = with_value(before, f"{kind}.name", name)
    first, *others = changes(before, after)
    assert first == (f"{kind}.name", getattr(before, kind).name, name)
    assert others
