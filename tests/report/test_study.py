"""Studies go into a file and come back; without one, runs tell themselves what they are."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptask.errors import ArgumentError, StateError
from adaptask.experiments.config import RunConfig
from adaptask.report.run import Run
from adaptask.report.study import (
    Arm,
    Citation,
    Published,
    Study,
    find_study,
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
        citations=(Citation({"sampler": "random"}, Published(accuracy=50)),),
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


def test_an_arm_is_found_by_its_name():
    study = Study("s", (UNIFORM, GCP))
    assert study.arm("g") is GCP
    with pytest.raises(ArgumentError, match="no arm 'x'; it has u, g"):
        study.arm("x")


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


def test_columns_and_citations_must_fit_the_labels():
    with pytest.raises(ArgumentError, match="'shots' is no label"):
        Study("s", (UNIFORM,), columns=("shots",))
    for labels in ({"learner": "maml"}, {"sampler": "x", "shots": "1"}):
        with pytest.raises(ArgumentError, match="a citation must have labels among"):
            Study("s", (UNIFORM,), columns=("sampler",), citations=(Citation(labels, Published()),))


def written(tmp_path, change):
    study = Study("s", (UNIFORM, GCP), citations=(Citation({"sampler": "x"}, Published(1)),))
    in_folder(study, tmp_path).write(tmp_path)
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
        lambda c: c["citations"][0].pop("published"),
    ],
)
def test_a_damaged_study_is_named_and_nothing_of_it_used(tmp_path, change):
    with pytest.raises(StateError, match=r"study\.json is damaged: .+Remove it"):
        find_study(written(tmp_path, change))


def test_a_study_of_an_earlier_version_is_read(tmp_path):
    def earlier(content):
        del content["by_validation"]
        content["arms"][1]["published"] = {"accuracy": 54.5, "interval": None, "seconds": None}

    assert read_study(written(tmp_path, earlier)).arms[1].published == Published(54.5)


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


# Without a file: what the runs tell.


def shape(study):
    """Names, labels, seeds and baselines."""
    return [(a.name, dict(a.labels), [r.seed for r in a.runs], a.baseline) for a in study.arms]


def test_runs_that_differ_by_seed_alone_are_one_arm_and_uniform_is_the_baseline(
    tmp_path, write_run
):
    for learner in ("protonet", "maml"):
        for sampler in ("gcp", "uniform", "c"):
            for seed in (1, 0):
                write_run(
                    tmp_path / f"{learner}-{sampler}-{seed}",
                    learner=learner,
                    sampler=sampler,
                    seed=seed,
                )
    # The options that only one sampler or learner has are no labels: its name says enough.
    assert shape(find_study(tmp_path)) == [
        (f"{learner} {sampler}", {"learner": learner, "sampler": sampler}, [0, 1], baseline)
        for learner in ("maml", "protonet")
        for sampler, baseline in (
            ("uniform", None),
            ("c", f"{learner} uniform"),
            ("gcp", f"{learner} uniform"),
        )
    ]


def test_one_run_alone_is_a_study_wherever_one_stands(tmp_path, write_run):
    write_run(tmp_path / "runs" / "deep" / "run", sampler="gcp", seed=4)
    for folder, place in (("", "runs/deep/run"), ("runs/deep", "run"), ("runs/deep/run", ".")):
        study = find_study(tmp_path / folder)
        [(name, labels, seeds, baseline)] = shape(study)
        assert (name, seeds, baseline) == ("protonet gcp", [4], None)
        assert labels == {"learner": "protonet", "sampler": "gcp"}
        assert study.arms[0].runs[0].path == tmp_path / folder / place
        assert study.title == (tmp_path / folder).name
        assert study.command == f"adaptask report {tmp_path / folder}"


def test_nested_folders_belong_to_the_same_study(tmp_path, write_run):
    write_run(tmp_path / "a", sampler="uniform", seed=0)
    write_run(tmp_path / "b" / "c", sampler="uniform", seed=1)
    write_run(tmp_path / "a" / "inside", sampler="gcp", seed=0)
    uniform, gcp = find_study(tmp_path).arms
    assert [run.path for run in uniform.runs] == [tmp_path / "a", tmp_path / "b/c"]
    assert [run.path for run in gcp.runs] == [tmp_path / "a/inside"]
    assert gcp.baseline == uniform.name


def test_options_of_the_sampler_are_compared_with_the_same_baseline(tmp_path, write_run):
    write_run(tmp_path / "u", sampler="uniform")
    for alpha in (0.5, 2.0):
        write_run(tmp_path / str(alpha), sampler="gcp", changes={"sampler.alpha": alpha})
    assert shape(find_study(tmp_path)) == [
        ("uniform", {"sampler": "uniform", "alpha": "-"}, [0], None),
        ("gcp 0.5", {"sampler": "gcp", "alpha": "0.5"}, [0], "uniform"),
        ("gcp 2.0", {"sampler": "gcp", "alpha": "2.0"}, [0], "uniform"),
    ]


def test_arms_are_in_order_of_their_numbers(tmp_path, write_run):
    for shots in (10, 5, 1):
        for sampler in ("gcp", "uniform"):
            changes = {"task.n_shot": shots}
            write_run(tmp_path / f"{sampler}{shots}", sampler=sampler, changes=changes)
    assert [arm.name for arm in find_study(tmp_path).arms] == [
        f"{shots} {sampler}" for shots in (1, 5, 10) for sampler in ("uniform", "gcp")
    ]


def test_a_baseline_must_agree_in_all_but_the_sampler(tmp_path, write_run):
    write_run(tmp_path / "u", sampler="uniform", steps=500)
    write_run(tmp_path / "g", sampler="gcp", steps=1000)
    assert [arm.baseline for arm in find_study(tmp_path).arms] == [None, None]


def test_keys_that_shorten_to_the_same_word_are_told_apart(tmp_path, write_run):
    for i, (way, tested) in enumerate([(5, 5), (20, 5), (20, 20)]):
        changes = {"task.n_way": way, "evaluation.n_way": tested}
        write_run(tmp_path / str(i), changes=changes)
    write_run(tmp_path / "3", changes={"optimiser.name": "sgd"})
    keys = ["task.n_way", "evaluation.n_way", "optimiser"]
    arms = find_study(tmp_path).arms
    assert [list(arm.labels) for arm in arms] == [keys] * 4
    assert [list(arm.labels.values()) for arm in arms] == [
        ["5", "5", "adam"],
        ["5", "-", "sgd"],  # tested as it is trained: not set
        ["20", "5", "adam"],
        ["20", "20", "adam"],
    ]


def test_names_that_would_coincide_are_numbered(tmp_path, write_run):
    for i, (augmentation, dataset) in enumerate([("x", "y z"), ("x y", "z")]):
        for sampler in ("uniform", "gcp"):
            changes = {"data.augmentation": augmentation, "data.dataset": dataset}
            write_run(tmp_path / f"{i}{sampler}", sampler=sampler, changes=changes)
    found = [
        (name, labels["dataset"], baseline)
        for name, labels, _, baseline in shape(find_study(tmp_path))
    ]
    assert found == [
        ("x y z uniform", "y z", None),
        ("x y z gcp", "y z", "x y z uniform"),
        ("x y z uniform (2)", "z", None),
        ("x y z gcp (2)", "z", "x y z uniform (2)"),
    ]


def test_of_runs_alike_in_everything_one_counts_and_a_note_says_so(tmp_path, write_run):
    for name in ("a", "b"):
        # Where and how often things are written plays no part.
        write_run(tmp_path / name, seed=2, changes={"every.log": len(name)})
    study = find_study(tmp_path)
    assert [run.path for arm in study.arms for run in arm.runs] == [tmp_path / "a"]
    [note] = study.notes
    assert note == ("The run in b is left out: a has the same settings and the same seed, 2.")


def test_precision_is_a_difference_and_the_device_is_none(tmp_path, write_run):
    write_run(tmp_path / "a", seed=0)
    write_run(tmp_path / "b", seed=1, changes={"machine.device": "cuda"})
    write_run(tmp_path / "c", changes={"machine.precision": "bfloat16"})
    assert [(dict(a.labels), len(a.runs)) for a in find_study(tmp_path).arms] == [
        ({"precision": "bfloat16"}, 1),
        ({"precision": "float32"}, 2),
    ]


def test_configurations_of_hand_are_told_apart_too(tmp_path):
    for name, text in {"a": "", "b": "steps = 5", "c": "[sampler]\nalpha = 1"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text(text)
    arms = find_study(tmp_path).arms
    assert len({tuple(arm.labels.items()) for arm in arms}) == 3
    assert len({arm.name for arm in arms}) == 3


def test_a_damaged_configuration_is_left_out_with_a_note(tmp_path, write_run):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", seed=1)
    (tmp_path / "a" / "config.toml").write_text("= =")
    study = find_study(tmp_path)
    assert [[run.path for run in arm.runs] for arm in study.arms] == [[tmp_path / "b"]]
    assert re.search(r"run in a is left out: .*config\.toml cannot be read", study.notes[0])
    (tmp_path / "b" / "config.toml").write_text("= =")
    with pytest.raises(StateError, match=r"config\.toml cannot be read"):
        find_study(tmp_path)
