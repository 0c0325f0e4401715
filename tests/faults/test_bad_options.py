"""Whatever stands on the command line or in a TOML file: it can be built, or it is said why not."""

import os
from dataclasses import fields, is_dataclass

import pytest
import tomlkit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptask.cli import main
from adaptask.experiments import run as run_module
from adaptask.experiments.config import RunConfig
from adaptask.experiments.factory import build_schedule

N_EXAMPLES = max(30, int(os.environ.get("ADAPTASK_FUZZ_CASES", "1000")) // 200)
often = settings(
    max_examples=N_EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

WORDS = (
    *("0", "1", "2", "3", "-1", "1.5", "1e999", "nan", "inf", "-inf", "true", "False", "None", ""),
    *("9" * 30, "9" * 5000, "gcp", "cp", "maml++", "svm", "[1, 2]", "()", "1 2 3 4", "x" * 300),
    *("tiny", "../tiny", "none", "cpu", "cuda", "meta", "auto", "step", "\u00e4", "--steps"),
)
VALUES = (
    *(0, 1, 2, 3, 64, -1, 10**18, 1.5, float("nan"), float("inf"), True, False, "", "gcp", "tiny"),
    *("step", "none", "cpu", "meta", [], [1], [1, 2], [1, 2, 3, 4], [1.5], ["a"], [[1]], {}),
    *({"a": 1}, "x" * 300, "maml", "resnet12", "sgd", 1e308, -1e308, 1e-308, 5e-324),
)


def options():
    """Every option of a run as section and name."""
    config = RunConfig()
    for field in fields(config):
        section = getattr(config, field.name)
        if is_dataclass(section):
            yield from ((field.name, inner.name) for inner in fields(section))
        else:
            yield ("", field.name)


OPTIONS = sorted(options())
# Numbers so large that they are only a matter of memory and time are another matter.
LARGE = {"filters", "widths", "hidden", "n_episodes", "n_validation", "threads"}


@pytest.fixture
def train_nothing(tiny, tmp_path, monkeypatch):
    """A function that runs `adaptask train` up to the first step; returns its exit status."""

    build = run_module._build

    def build_and_leave(config, *parts):
        build(config, *parts)
        build_schedule(config)(0, config.steps)
        raise SystemExit(0)

    monkeypatch.setattr(run_module, "_build", build_and_leave)

    def run(*arguments):
        few = ["--evaluation.n-episodes=2", "--evaluation.n-validation=2", "--n-query=4"]
        # What comes later wins; a parser that refuses leaves with 2.
        start = ["train", "--dataset=tiny", "--data.augmentation=none", *few]
        try:
            status = main([*start, f"--output={tmp_path / 'run'}", "--quiet", *arguments])
        except SystemExit as ended:
            status = ended.code
        assert status in (0, 1, 2)
        assert not (tmp_path / "run").exists()
        return status

    return run


def flag(section, name):
    """Return the flag of an option, in the longer form that most have."""
    return "--" + ".".join(filter(None, (section, name))).replace("_", "-")


# A parser is made for each: a third of a second.
@settings(often, max_examples=max(8, N_EXAMPLES // 4))
@given(data=st.data())
def test_flags(train_nothing, capsys, data):
    arguments = []
    for section, name in data.draw(st.lists(st.sampled_from(OPTIONS), min_size=1, max_size=3)):
        word = data.draw(st.sampled_from(WORDS))
        if name not in LARGE or len(word) < 10:
            short = data.draw(st.booleans())
            arguments.append(f"{flag('' if short else section, name)}={word}")
    status = train_nothing(*arguments)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert status == 0 or said.err or said.out


@often
@given(data=st.data())
def test_files(train_nothing, tmp_path, capsys, data):
    document = {}
    for section, name in data.draw(st.lists(st.sampled_from(OPTIONS), min_size=1, max_size=3)):
        value = data.draw(st.sampled_from(VALUES))
        if name in LARGE and value == 10**18:
            continue
        place = document.setdefault(section, {}) if section else document
        place[name] = value
    (tmp_path / "c.toml").write_text(tomlkit.dumps(document))
    status = train_nothing(f"--config={tmp_path / 'c.toml'}")
    said = capsys.readouterr()
    assert status == 0 or said.err or said.out
