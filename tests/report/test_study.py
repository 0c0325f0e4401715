"""Studies go into a file and come back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptask.errors import ArgumentError, StateError
from adaptask.experiments.config import RunConfig
from adaptask.report.grouping import find_study
from adaptask.report.run import Run
from adaptask.report.study import (
    Arm,
    Published,
    Study,
    read_study,
)

RUNS = [Run(Path(arm) / "0", 0, f"{arm}, seed 0") for arm in ("u", "g")]
UNIFORM = Arm("u", {"learner": "protonet", "sampler": "uniform"}, (RUNS[0],))
GCP = Arm("g", {"learner": "protonet", "sampler": "gcp"}, (RUNS[1],), baseline="u")
TEXT = st.text(st.characters())  # lone surrogates too: names of files may have them


def in_folder(study, folder):
    """Return a study whose runs are below a folder."""
    arms = (
        replace(arm, runs=tuple(replace(run, path=folder / run.path) for run in arm.runs))
        for arm in study.arms
    )
    return replace(study, arms=tuple(arms))


def test_a_study_comes_back_from_its_file(tmp_path):
    planned = Study(
        title="Tâche",
        arms=(UNIFORM, replace(GCP, published=Published(54.87, 0.72))),
        command="adaptask compare",
        columns=("sampler",),
        notes=("one", "two"),
    )
    study = in_folder(planned, tmp_path)
    study.write(tmp_path)
    assert read_study(tmp_path) == study
    assert find_study(tmp_path) == study


@settings(deadline=None)
@given(TEXT, TEXT, TEXT.filter(lambda text: text != "b"))
def test_any_text_comes_back(tmp_path_factory, title, key, name):
    folder = tmp_path_factory.mktemp("study")
    run = Run(folder / "a", 7, f"{name}, seed 7")
    arms = (Arm(name, {key: name}, (run,)), Arm("b", {key: "b"}, (), baseline=name))
    study = Study(title=title, arms=arms, notes=(title,), command=name)
    study.write(folder)
    assert read_study(folder) == study


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ((UNIFORM, replace(GCP, name="u", baseline=None)), "same name"),
        ((UNIFORM, replace(GCP, labels=UNIFORM.labels)), "same labels"),
        ((UNIFORM, replace(GCP, labels={"sampler": "gcp"})), "'g' has sampler"),
        ((UNIFORM, replace(GCP, baseline="x")), "must be another arm of the study; got 'x'"),
        ((UNIFORM, replace(GCP, baseline="g")), "must be another arm of the study; got 'g'"),
        ((replace(UNIFORM, runs=(Run(Path("a"), 1), Run(Path("b"), 1))),), "a seed twice"),
    ],
)
def test_arms_that_cannot_be_told_apart_or_compared_are_refused(arms, message):
    with pytest.raises(ArgumentError, match=message):
        Study("s", arms)


@pytest.mark.parametrize("path", ["../a", "/a"])
def test_a_run_that_is_not_below_its_study_is_not_written(tmp_path, path):
    study = Study("s", (replace(UNIFORM, runs=(Run(tmp_path / path, 1),)),))
    with pytest.raises(ArgumentError, match="below"):
        study.write(tmp_path)
    assert not list(tmp_path.iterdir())


def test_runs_are_planned_below_their_study(tmp_path):
    config = RunConfig(steps=5)
    arm = Arm("maml++ gcp:tau=0.7", {"sampler": "gcp"}, config=config)
    first, second = arm.with_runs(tmp_path, (0, 4)).runs
    assert first.path == tmp_path / "runs" / "maml++-gcp-tau=0.7" / "seed-0"
    assert (second.name, second.seed) == ("maml++ gcp:tau=0.7, seed 4", 4)
    assert second.config == replace(config, seed=4)


def test_columns_must_fit_the_labels():
    with pytest.raises(ArgumentError, match="must have labels among learner, sampler; got shots"):
        Study("s", (UNIFORM,), columns=("shots",))


def written(tmp_path, change):
    in_folder(Study("s", (UNIFORM, GCP)), tmp_path).write(tmp_path)
    path = tmp_path / "study.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.pop("format"),
        lambda c: c.update(format="1"),
        lambda c: c.pop("arms"),
        lambda c: c.pop("title"),
        lambda c: c.update(title=3),
        lambda c: c.update(arms=[3]),
        lambda c: c.update(notes=[3]),
        lambda c: c.update(notes=3),
        lambda c: c.update(columns=["x"]),
        lambda c: c["arms"][0].update(name=None),
        lambda c: c["arms"][0].update(labels=["learner"]),
        lambda c: c["arms"][0]["labels"].update(learner=1),
        lambda c: c["arms"][0]["runs"][0].update(seed="0"),
        lambda c: c["arms"][0]["runs"][0].update(folder="../../x"),
        lambda c: c["arms"][1].update(baseline="nobody"),
        lambda c: c["arms"][1].update(published={"accuracy": "54"}),
        lambda c: c["arms"][1].update(published={"unknown": 54}),
    ],
)
def test_a_damaged_study_is_named_and_nothing_of_it_used(tmp_path, change):
    with pytest.raises(StateError, match=r"study\.json is damaged: .+Remove it"):
        find_study(written(tmp_path, change))


def test_a_newer_study_asks_for_a_newer_version(tmp_path):
    with pytest.raises(StateError, match="newer version"):
        read_study(written(tmp_path, lambda c: c.update(format=2)))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"null"])
def test_a_file_that_is_no_study_is_named(tmp_path, content):
    (tmp_path / "study.json").write_bytes(content)
    with pytest.raises(StateError, match=r"study\.json is damaged"):
        read_study(tmp_path)


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(ArgumentError, match="holds no run: there is no"):
        find_study(tmp_path)
    with pytest.raises(ArgumentError, match="holds no study"):
        read_study(tmp_path)
    with pytest.raises(ArgumentError, match="there is no folder"):
        find_study(tmp_path / "nowhere")
