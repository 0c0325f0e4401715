"""The TOML file: complete, read back as it was written, and strict about keys and values."""

import math
import tomllib
from dataclasses import fields, is_dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptask.errors import ArgumentError
from adaptask.experiments.config import (
    BACKBONES,
    LEARNERS,
    SAMPLER_OPTIONS,
    DataConfig,
    OptimiserConfig,
    RunConfig,
    SamplerConfig,
    section_name,
)
from adaptask.experiments.config_file import dump_config, load_config, parse_config

finite = st.floats(allow_nan=False, allow_infinity=False)
whole = st.integers(0, 2**53)


@given(
    st.builds(
        RunConfig,
        steps=whole,
        data=st.builds(DataConfig, dataset=st.text(), augmentation=st.text()),
        optimiser=st.builds(
            OptimiserConfig,
            lr=finite,
            clip_norm=st.none() | finite,
            milestones=st.lists(whole, max_size=3).map(tuple),
            factors=st.lists(finite, max_size=3).map(tuple),
        ),
        sampler=st.sampled_from([SamplerConfig(name=name) for name in SAMPLER_OPTIONS]),
    )
)
@settings(max_examples=100, deadline=None)
def test_what_is_written_is_read_back(config):
    assert parse_config(dump_config(config)) == config


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_file_is_complete_and_names_nothing_that_plays_no_part(learner, backbone):
    config = RunConfig()
    config = replace(config, model=replace(config.model, learner=learner, backbone=backbone))
    written = tomllib.loads(dump_config(config))
    for name in {*LEARNERS, *BACKBONES} - {learner, backbone}:
        assert section_name(name) not in written
    for field in fields(config):
        section = getattr(config, field.name)
        if field.name in written and is_dataclass(section) and field.name != "sampler":
            known = {f.name for f in fields(section) if getattr(section, f.name) is not None}
            assert written[field.name].keys() == known
    assert set(written["sampler"]) == {"name", *SAMPLER_OPTIONS["gcp"]}


def test_a_file_sets_any_part_and_leaves_the_rest(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("steps = 7\n[task]\nn_way = 9\n[resnet12]\nwidths = [1, 2, 3, 4]\n")
    config = load_config(path)
    assert (config.steps, config.task.n_way, config.task.n_shot) == (7, 9, 1)
    assert config.resnet12.widths == (1, 2, 3, 4)
    base = RunConfig(seed=3, steps=1)
    assert load_config(path, base).seed == 3


def test_whole_numbers_are_numbers():
    assert parse_config("[optimiser]\nlr = 1").optimiser.lr == 1.0
    assert math.isinf(parse_config("[optimiser]\nlr = inf").optimiser.lr)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz = 4", "no stepz; did you mean steps?"),
        ("n_way = 4", "no n_way; did you mean task.n_way?"),
        ("[task]\nn_wya = 4", "no task.n_wya; did you mean task.n_way?"),
        ("[task]\nlr = 4", "no task.lr; did you mean optimiser.lr?"),
        ("[evaluation]\nn_wya = 4", "no evaluation.n_wya; did you mean evaluation.n_way?"),
        ("[optimiser]\nwd = 4", "no optimiser.wd; there are optimiser.name, optimiser.lr"),
        ("[tsk]\nn_way = 4", "no tsk.n_way; did you mean task.n_way?"),
        ("zzzzzz = 1", "no zzzzzz; there are steps, seed, data"),
        ("[task]\nzzzzzz = 1", "no task.zzzzzz; there are task.n_way, task.n_shot"),
        ("[seed]\nzzzzzz = 1", "no seed.zzzzzz; there are steps, seed, data"),
        ("steps = 'many'", "steps must be an integer; got 'many'"),
        ("steps = 1.0", "steps must be an integer; got 1.0"),
        ("steps = true", "steps must be an integer; got True"),
        ("[sampler]\nname = 'gpc'", "sampler.name must be one of uniform, c, cp, gcp; got 'gpc'"),
        ("[sampler]\nalpha = '1'", "sampler.alpha must be a number; got '1'"),
        ("[machine]\ndeterministic = 1", "machine.deterministic must be true or false; got 1"),
        (
            "[resnet12]\nwidths = [1, 2]",
            "widths must be one of doubling, metaoptnet or a list of 4",
        ),
        ("[optimiser]\nmilestones = [1, 'x']", "milestones must be an integer; got 'x'"),
        ("[optimiser]\nmilestones = 3", "milestones must be a list, each an integer; got 3"),
        ("task = 3", "task must be a section; got 3"),
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
