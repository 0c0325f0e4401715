"""A sweep: what it trains, what it gives up, what a kill leaves, and what it says at the end."""

import json
import os
import pickle
import random
import signal
import sys
import time
from dataclasses import replace
from functools import partial

import pytest

from adaptask.cli import main
from adaptask.errors import ArgumentError, DataError
from adaptask.experiments.backends import RunPruned
from adaptask.experiments.backends.ray import ClusterOptions
from adaptask.experiments.command_line import read_command_line
from adaptask.experiments.config import (
    DataConfig,
    EvaluationConfig,
    MachineConfig,
    RunConfig,
    TaskConfig,
)
from adaptask.experiments.config_file import dump_config
from adaptask.experiments.options import configure
from adaptask.experiments.sweep import Pruner, _config_of, parse_space, sweep
from adaptask.intervals import Intervals
from adaptask.report.run import Run
from adaptask.report.study import Arm, read_study
from adaptask.report.summary import summarize
from adaptask.report.verdicts import headline

TINY = RunConfig(
    steps=16,
    data=DataConfig(dataset="tiny", augmentation="none"),
    task=TaskConfig(n_way=3, n_query=4),
    evaluation=EvaluationConfig(n_query=5, n_episodes=6, n_validation=4),
    every=Intervals(log=2, validate=4, checkpoint=4, snapshot=8),
    machine=MachineConfig(device="cpu", threads=1),
    sampler=configure("sampler", "gcp"),
    backbone=configure("backbone", "conv4", filters=4),
)
ALPHA = {"sampler.alpha": ("0.5", "1", "2")}
pytestmark = pytest.mark.usefixtures("tiny", "no_page")


def run_sweep(config, *, flags=None, vary=(), **settings):
    lists = [f"{key}={','.join(values)}" for key, values in (flags or {}).items()]
    return sweep(config, vary=[*lists, *vary], workers=1, **settings)


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
quiet_forks = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def forked(act):
    """Act in a child process; return its id."""
    child = os.fork()
    if child == 0:
        try:
            status = act() or 0
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            sys.stderr.flush()
            status = 77
        os._exit(status)
    return child


def pretend(run, *, validation=None, test=None):
    """Change what a finished run has come to."""
    if validation is not None:
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for record in records:
            if record["split"] == "val":
                record["accuracy"] = validation
        lines = [json.dumps(record) + "\n" for record in records]
        (run / "metrics.jsonl").write_text("".join(lines))
    if test is not None:
        content = json.dumps({"accuracies": [test] * 2, "loss": 1.0, "steps": [1]})
        (run / "test.json").write_text(content)


def test_a_grid_is_trained_and_reported(tmp_path, capsys, trials_of):
    flags = {"sampler.alpha": ("1", "2"), "sampler.tau": ("0.5",)}
    folder = tmp_path / "sweep"
    assert run_sweep(replace(TINY, steps=8, seed=3), flags=flags, output=folder, seeds=2) == 0
    study = read_study(folder)
    assert study.by_validation
    arms = {arm.name: arm for arm in study.arms}
    assert {name: arm.labels for name, arm in arms.items()} == {
        "alpha=1,tau=0.5": {"alpha": "1", "tau": "0.5"},
        "alpha=2,tau=0.5": {"alpha": "2", "tau": "0.5"},
    }
    assert arms["alpha=1,tau=0.5"].baseline is None
    assert arms["alpha=2,tau=0.5"].baseline == "alpha=1,tau=0.5"
    best = {}
    for arm in study.arms:
        records = list(arm.runs)
        assert [record.seed for record in records] == [3, 4]
        for record in records:
            assert record.is_finished
            assert record.settings["sampler"]["alpha"] == float(arm.labels["alpha"])
            assert record.settings["sampler"]["tau"] == float(arm.labels["tau"])
            assert record.n_steps == 8
        best[arm.name] = sum(r.curve("val", "accuracy")[1].max() for r in records) / 2
    trials = trials_of(folder)
    assert {name: value for name, _, value in trials} == pytest.approx(best)
    winner = max(best, key=best.get)
    choice = f"Chosen by validation: {winner.replace('=', ' ').replace(',', ', ')}"
    assert choice in " ".join(capsys.readouterr().out.split())
    summary = summarize(study)
    assert summary.arms[0].arm.name == winner
    assert headline(summary).startswith(choice)


def test_the_choice_is_by_validation_and_never_by_test(tmp_path, capsys):
    again = partial(run_sweep, replace(TINY, steps=4), flags=ALPHA, output=tmp_path)
    assert again() == 0
    for alpha, validation, test in ((0.5, 0.6, 0.99), (1, 0.8, 0.31), (2, 0.7, 0.5)):
        pretend(tmp_path / f"runs/alpha={alpha}/seed-0", validation=validation, test=test)
    assert again() == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()]
    rows = [row for row in rows if row[:1] in (["0.5"], ["1"], ["2"])][-3:]
    assert [[row[0], row[2], row[3]] for row in rows] == [
        ["1", "80.00", "31.00"],
        ["2", "70.00", "50.00"],
        ["0.5", "60.00", "99.00"],
    ]
    assert "Chosen by validation: alpha 1," in " ".join(printed.split())
    pretend(tmp_path / "runs/alpha=2/seed-0", validation=0.8)
    assert again() == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Chosen by validation: alpha 1," in printed
    assert "2 trials are equally good in validation; the first of them was taken." in printed


def test_a_bad_trial_is_given_up_early_and_stays_so(tmp_path, capsys, trials_of):
    base, values = replace(TINY, steps=20), ("1", "2", "3", "4", "5")
    again = partial(run_sweep, base, output=tmp_path, seeds=2)
    assert again(flags={"sampler.alpha": values}) == 0
    assert {state for _, state, _ in trials_of(tmp_path)} == {"COMPLETE"}  # five are too few
    for run in tmp_path.glob("runs/*/seed-0"):
        pretend(run, validation=1.0)
    for flags in ({"sampler.alpha": (*values, "6")},) * 2:
        assert again(flags=flags) == 0
        record = Run(tmp_path / "runs/alpha=6/seed-0")
        # The first validation after a fifth of the steps.
        assert record.pruned.startswith("stopped after step 4: its best validation accuracy")
        assert record.steps_done == 4
        assert not record.is_finished
        other = Run(tmp_path / "runs/alpha=6/seed-1")
        assert other.pruned == record.pruned
        assert not other.is_readable  # it never began
        assert trials_of(tmp_path)[-1] == ("alpha=6", "PRUNED", None)
        printed = capsys.readouterr()
        assert "alpha=6, seed 0: stopped after step 4" in printed.err
        assert "alpha=6, seed 0 not finished: stopped early after 4 of 20 steps" in printed.out
    # Without pruning it goes on where it was.
    assert again(flags=flags, prune=False) == 0
    record = Run(tmp_path / "runs/alpha=6/seed-0")
    assert record.is_finished
    assert record.pruned is None
    assert (tmp_path / "runs/alpha=6/seed-1/test.json").exists()
    assert {state for _, state, _ in trials_of(tmp_path)} == {"COMPLETE"}


def test_a_resumed_run_is_judged_by_all_its_validations(tmp_path):
    """It was good before, and is bad now: the best counts."""

    def write(name, accuracies, *, finished):
        run = tmp_path / "runs" / name / "seed-0"
        run.mkdir(parents=True)
        (run / "config.toml").write_text(dump_config(TINY))
        lines = [
            json.dumps({"step": 4 * (i + 1), "split": "val", "accuracy": accuracy}) + "\n"
            for i, accuracy in enumerate(accuracies)
        ]
        (run / "metrics.jsonl").write_text("".join(lines))
        if finished:
            (run / "test.json").write_text("{}")
        return run

    for i in range(5):
        write(f"alpha={i}", [0.5] * 4, finished=True)
    for before, is_given_up in (([0.6], False), ([0.4], True), ([], True)):
        run = write(f"before={len(before)}{before}", before, finished=False)
        pruner = pickle.loads(pickle.dumps(partial(Pruner, run, first_seed=0)))()
        pruner.log(8, "train", {"accuracy": 0.1})
        if is_given_up:
            with pytest.raises(RunPruned, match="stopped after step 8"):
                pruner.log(8, "val", {"accuracy": 0.3})
        else:
            pruner.log(8, "val", {"accuracy": 0.3})
        # Runs of other seeds are not judged, but end with the first.
        other = run.parent / "seed-1"
        Pruner(other, first_seed=0).log(8, "val", {"accuracy": 0.0})
        (run / "pruned.txt").write_text("given up")
        for path in (run, other):
            with pytest.raises(RunPruned, match="given up"):
                Pruner(path, first_seed=0)


def test_a_failing_trial_is_reported_tried_again_and_does_not_stop_the_rest(
    tmp_path, capsys, trials_of
):
    base = replace(TINY, optimizer=replace(TINY.optimizer, name="sgd"))
    again = partial(run_sweep, base, flags={"optimizer.lr": ("1e30", "0.01")}, output=tmp_path)
    assert again() == 1
    assert [state for _, state, _ in trials_of(tmp_path)] == ["COMPLETE", "FAIL"]
    assert "lr=1e+30, seed 0 failed: " in " ".join(capsys.readouterr().out.split())
    run = tmp_path / "runs/lr=1e+30/seed-0"
    why = Run(run).failure
    (run / "failure.txt").unlink()
    assert again() == 1
    assert Run(run).failure == why


@forks
@quiet_forks
def test_a_sweep_killed_again_and_again_ends_as_one_left_alone(tmp_path, outcome):
    def act(folder):
        return lambda: run_sweep(
            TINY,
            flags={},
            vary=["sampler.alpha=0.5..2", "optimizer.lr=1e-6..1e-1"],
            search="random",
            trials=7,
            search_seed=76,  # good rates first, so that a bad one is given up
            output=folder,
        )

    def n_bytes(folder):
        return sum(path.stat().st_size for path in folder.glob("runs/*/seed-0/metrics.jsonl"))

    assert os.waitpid(forked(act(tmp_path / "alone")), 0)[1] == 0
    rng, n_in_progress = random.Random(0), 0
    for part in range(3):
        # In a part of the sweep of its own each, so that every kill is in the midst of training.
        aim = (part + rng.uniform(0.2, 0.8)) / 3 * n_bytes(tmp_path / "alone")
        child = forked(act(tmp_path / "killed"))
        while n_bytes(tmp_path / "killed") < aim:
            assert os.waitpid(child, os.WNOHANG)[0] == 0
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        begun = [Run(path.parent) for path in tmp_path.glob("killed/runs/*/*/config.toml")]
        n_in_progress += any(r.test is None and r.pruned is None for r in begun)
    assert n_in_progress >= 1
    assert os.waitpid(forked(act(tmp_path / "killed")), 0)[1] == 0
    alone, killed = outcome(tmp_path / "alone"), outcome(tmp_path / "killed")
    assert len(alone[1]) == 7
    assert {state for _, state, _ in alone[1]} == {"COMPLETE", "PRUNED"}
    assert killed == alone


@forks
@quiet_forks
def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tmp_path):
    said = tmp_path / "said.txt"

    def act():
        sys.stderr = said.open("w", buffering=1)
        try:
            run_sweep(replace(TINY, steps=100_000), flags=ALPHA, output=tmp_path / "s")
        except KeyboardInterrupt:
            return 13
        return 0

    child = forked(act)
    metrics = tmp_path / "s/runs/alpha=0.5/seed-0/metrics.jsonl"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 5:
        assert os.waitpid(child, os.WNOHANG)[0] == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 13
    assert "To continue, run the same command again" in said.read_text()
    assert (metrics.parent / "last.pt").exists()


def test_a_folder_holds_one_sweep_that_may_grow(tmp_path, capsys):
    base, folder = replace(TINY, steps=4), tmp_path / "s"
    assert run_sweep(base, flags=ALPHA, output=folder) == 0
    more = {"sampler.alpha": ("4",)}
    for changed, flags, message in (
        (
            replace(base, optimizer=replace(base.optimizer, lr=0.1)),
            ALPHA,
            "lr 0.001, now it is 0.1",
        ),
        (replace(base, optimizer=replace(base.optimizer, lr=0.1)), more, "cannot be compared"),
        (base, {"sampler.tau": ("0.5",)}, "holds another study"),
    ):
        with pytest.raises(ArgumentError, match=message):
            run_sweep(changed, flags=flags, output=folder)
    elsewhere = replace(base, machine=replace(base.machine, threads=2))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("test.json")}
    assert run_sweep(elsewhere, flags=more, output=folder) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert {arm.name for arm in read_study(folder).arms} == {
        *("alpha=0.5", "alpha=1", "alpha=2", "alpha=4")
    }
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(ArgumentError, match="holds no study"):
        run_sweep(base, flags=ALPHA, output=tmp_path / "mine")


@pytest.mark.parametrize(
    ("flags", "vary", "message"),
    [
        ({"sampler.tau": ("0.5", "1.5")}, (), r"tau=1\.5 cannot be trained"),
        ({"optimizer.lr": ("0.1", "-1")}, (), r"lr=-1 cannot be trained"),
        ({"optimizer.lr": ("0.1", "nan")}, (), r"lr=nan cannot be trained"),
        ({}, ("backbone.filters=0,4",), r"filters=0 cannot be trained"),
        ({}, ("learner.temperature=0,1",), r"temperature=0 cannot be trained"),
    ],
)
def test_a_bad_value_is_refused_before_anything_is_made(tmp_path, flags, vary, message):
    with pytest.raises(ArgumentError, match=message):
        run_sweep(TINY, flags=flags, vary=vary, output=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_missing_data_and_tasks_that_do_not_fit_leave_no_folder(tmp_path):
    for change, error in (
        ({"data": DataConfig(dataset="cifar-fs")}, DataError),
        ({"task": TaskConfig(n_way=1000)}, ArgumentError),
    ):
        with pytest.raises(error):
            run_sweep(replace(TINY, **change), flags=ALPHA, output=tmp_path / "s")
        assert not (tmp_path / "s").exists()


def test_without_optuna_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ArgumentError, match=r"pip install 'optuna>=4.0'"):
        run_sweep(TINY, flags=ALPHA, output=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_storage_needs_a_cluster(tmp_path):
    with pytest.raises(ArgumentError, match="has no effect without --cluster ray"):
        run_sweep(
            TINY, flags=ALPHA, output=tmp_path / "s", cluster=ClusterOptions(storage="s3://b")
        )


def test_flags_with_lists_are_varied_and_the_others_are_shared():
    words = [
        "--sampler",
        "gcp",
        "--alpha",
        "0.5",
        "2",
        "--vary",
        "sampler.tau=0.3,0.5",
        "--lr",
        "1e-4..1e-2",
        "--strategy",
        "easy",
    ]
    line = read_command_line("sweep", words)
    vary = ["sampler.alpha=0.5,2", "optimizer.lr=1e-4..1e-2", "sampler.tau=0.3,0.5"]
    assert line.arguments == ["--sampler", "gcp", "--strategy", "easy", "--vary", *vary]
    with pytest.raises(ArgumentError, match="set their number with --seeds"):
        read_command_line("sweep", ["--seed", "1"])


@pytest.mark.parametrize(
    ("words", "vary"),
    [
        ("--alpha -1e-3", ["sampler.alpha=-1e-3"]),
        ("--lr=0.1 0.2 --steps 5", ["optimizer.lr=0.1,0.2"]),
        ("--alpha 1 -1e-3 -inf", ["sampler.alpha=1,-1e-3,-inf"]),
        ("--lr -1..1", ["optimizer.lr=-1..1"]),
        ("--alpha 1 --steps 5 --alpha 2", ["sampler.alpha=1,2"]),
        ("--vary=steps=1,2 task.n_way=3,5", ["steps=1,2", "task.n_way=3,5"]),
    ],
)
def test_a_list_has_all_words_up_to_the_next_flag(words, vary):
    arguments = read_command_line("sweep", words.split()).arguments
    shared = ["--steps", "5"] if "--steps 5" in words else []
    assert arguments == [*shared, "--vary", *vary]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--alpha", "--alpha needs at least one value, such as --alpha 0.1 0.2; got none"),
        ("--lr= --steps 5", "--lr needs at least one value"),
        ("--vary", "--vary needs at least one value, such as --vary optimizer.weight_decay"),
        ("--sampler gcp --alpha -1e-3", "alpha must be a number between 0 and 1e+06; got -0.001"),
        ("--sampler gcp --alpha 1 -steps 5", "sampler.alpha must be a number; got '-steps'"),
    ],
)
def test_a_wrong_list_is_answered_in_one_line(words, message, tmp_path, capsys):
    output = tmp_path / "s"
    assert main(["sweep", "--output", str(output), *words.split()]) == 1
    said = capsys.readouterr().err
    assert said.startswith("adaptask: ")
    assert message in said
    assert not output.exists()


def test_classes_that_only_the_folder_names_are_not_imported(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    space = parse_space(TINY, ["sampler.name=uniform,gcp"])
    arms = {name: Arm(name, {"sampler": name}) for name in ("gcp", "theirs:Sampler")}
    assert _config_of(TINY, space, arms["gcp"]).sampler.name == "gcp"
    assert _config_of(TINY, space, arms["theirs:Sampler"]) is None
