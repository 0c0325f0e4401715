"""Without a file of the study, runs tell themselves what they are."""

import json
import re

import pytest

from adaptask.errors import ArgumentError, StateError
from adaptask.report.grouping import find_study
from adaptask.report.report import make_report
from adaptask.report.study import Study


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


def test_only_the_first_level_that_has_runs_is_read(tmp_path, write_run):
    write_run(tmp_path / "a", sampler="uniform", seed=0)
    write_run(tmp_path / "b" / "c", sampler="uniform", seed=1)
    write_run(tmp_path / "a" / "inside", sampler="gcp", seed=0)
    [arm] = find_study(tmp_path).arms
    assert [run.path for run in arm.runs] == [tmp_path / "a"]
    [arm] = find_study(tmp_path / "a").arms
    assert [run.path for run in arm.runs] == [tmp_path / "a"]


def test_runs_far_below_are_not_looked_for(tmp_path, write_run):
    write_run(tmp_path / "1/2/3/4/run")
    with pytest.raises(ArgumentError, match="holds no run"):
        find_study(tmp_path)


def test_a_folder_of_studies_is_refused_and_nothing_is_written(tmp_path, write_run):
    for name in ("first", "second"):
        write_run(tmp_path / name / "runs" / "gcp" / "seed-0")
        Study(name, ()).write(tmp_path / name)
    write_run(tmp_path / "alone")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ArgumentError, match=r"not a study itself.*: first, second, alone\."):
        make_report(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_runs_on_different_datasets_are_different_arms(tmp_path, write_run):
    for i, dataset in enumerate(["glyphs", "cub", "glyphs"]):
        write_run(tmp_path / str(i), seed=i, changes={"data.dataset": dataset})
    assert {arm.name: len(arm.runs) for arm in find_study(tmp_path).arms} == {"cub": 1, "glyphs": 2}


def test_a_sampler_that_does_not_learn_is_the_baseline_whatever_its_name(tmp_path, write_run):
    for name, learns in (("mine", True), ("fixed", False)):
        write_run(tmp_path / name, sampler=f"package.module:{name}")
        sampler = {"name": f"package.module:{name}", "description": "is mine.", "learns": learns}
        (tmp_path / name / "algorithms.json").write_text(json.dumps({"sampler": sampler}))
    fixed, mine = find_study(tmp_path).arms
    assert (fixed.baseline, mine.baseline) == (None, fixed.name)


def test_uniform_is_the_baseline_of_others_that_do_not_learn(tmp_path, write_run):
    for name in ("gcp", "hierarchy", "repeat", "uniform"):
        write_run(tmp_path / name, sampler=name)
        sampler = {"name": name, "description": "draws.", "learns": name == "gcp"}
        (tmp_path / name / "algorithms.json").write_text(json.dumps({"sampler": sampler}))
    uniform, *others = find_study(tmp_path).arms
    assert uniform.labels["sampler"] == "uniform"
    assert uniform.baseline is None
    assert {arm.baseline for arm in others} == {uniform.name}


def test_runs_made_in_python_are_grouped_by_what_they_know(tmp_path):
    for i, sampler in enumerate(["GCPSampler", "UniformSampler", "GCPSampler"]):
        (tmp_path / str(i)).mkdir()
        known = {"steps": 7, "sampler": {"name": sampler}}
        (tmp_path / str(i) / "run.json").write_text(json.dumps(known))
    arms = {arm.name: [run.path.name for run in arm.runs] for arm in find_study(tmp_path).arms}
    assert arms == {"GCPSampler": ["0", "2"], "UniformSampler": ["1"]}


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
    write_run(tmp_path / "3", changes={"optimizer.name": "sgd"})
    keys = ["task.n_way", "evaluation.n_way", "optimizer"]
    arms = find_study(tmp_path).arms
    assert [list(arm.labels) for arm in arms] == [keys] * 4
    assert [list(arm.labels.values()) for arm in arms] == [
        ["5", "5", "adam"],
        ["5", "-", "sgd"],  # tested as it is trained: not set
        ["20", "5", "adam"],
        ["20", "20", "adam"],
    ]


def test_names_that_would_coincide_are_numbered(tmp_path, write_run):
    for i, (augmentation, storage) in enumerate([("x", "y z"), ("x y", "z")]):
        for sampler in ("uniform", "gcp"):
            changes = {"data.augmentation": augmentation, "data.storage": storage}
            write_run(tmp_path / f"{i}{sampler}", sampler=sampler, changes=changes)
    found = [
        (name, labels["storage"], baseline)
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
    for name, text in {"a": "seed = 0", "b": "steps = 5", "c": "[sampler]\nalpha = 1"}.items():
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
    assert re.search(r"run in a is left out: .*config\.toml is damaged", study.notes[0])
    (tmp_path / "b" / "config.toml").write_text("= =")
    with pytest.raises(StateError, match=r"config\.toml is damaged"):
        find_study(tmp_path)


def test_an_option_that_only_one_run_sets_is_a_label_beside_others(tmp_path, write_run):
    changes = {"optimizer.lr": 0.01, "evaluation.n_way": 10}
    write_run(tmp_path / "first", sampler="gcp")
    write_run(tmp_path / "second", sampler="gcp", changes=changes)
    labels = [dict(arm.labels) for arm in find_study(tmp_path).arms]
    assert sorted((label["n_way"], label["lr"]) for label in labels) == [
        ("-", "0.001"),
        ("10", "0.01"),
    ]
