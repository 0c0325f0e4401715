"""A sweep: what it trains, what it gives up, what a kill leaves, and what it says at the end."""

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace

import pytest
import torch
import tyro

from adaptask.errors import ArgumentError, DataError, StateError, TrainingError
from adaptask.experiments.building import build_evaluator, build_trainer, with_weights
from adaptask.experiments.config import (
    Conv4Options,
    DataConfig,
    EvaluationConfig,
    EveryConfig,
    MachineConfig,
    RunConfig,
    SamplerConfig,
    TaskConfig,
)
from adaptask.experiments.config_file import dump_config
from adaptask.experiments.shared_config import SweptConfig
from adaptask.experiments.sweeping.command import sweep
from adaptask.experiments.sweeping.journal import JournalLock
from adaptask.report.run import Run
from adaptask.report.study import read_study
from adaptask.training.random_state import seed_process
from adaptask.training.run_folder import RunFolder

TINY = RunConfig(
    steps=16,
    data=DataConfig(dataset="tiny", augmentation="none"),
    task=TaskConfig(n_way=3, n_query=4),
    evaluation=EvaluationConfig(n_query=5, n_episodes=6, n_validation=4),
    every=EveryConfig(log=2, validate=4, checkpoint=4, snapshot=8),
    machine=MachineConfig(device="cpu", threads=1),
    conv4=Conv4Options(filters=4),
)
ALPHA = {"sampler.alpha": ("0.5", "1", "2")}
CPU = torch.device("cpu")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
quiet_forks = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def train_tiny(config, path, *, display, loggers):
    """A run from its start or its last checkpoint to its test result."""
    if (path / "test.json").exists():
        return
    seed_process(config.seed)
    folder = RunFolder(path, dump_config(config))
    trainer = build_trainer(config, CPU, folder=folder, display=None)
    with folder.locked():
        if folder.config.exists():
            trainer.resume()
        else:
            folder.create(CPU)
        trainer.loggers += loggers
        if trainer.step < config.steps:
            trainer.fit(config.steps)
        best = trainer.best.checkpoints
        learner = with_weights(trainer.learner, [checkpoint.learner for checkpoint in best])
        write_test(path, build_evaluator(config, "test", CPU)(learner).accuracies.tolist())


def write_test(path, accuracies):
    content = json.dumps({"accuracies": accuracies, "loss": 1.0, "steps": [1]})
    (path / "test.json").write_text(content)


class Curves:
    """Pretends to train: validation accuracies follow made-up curves, by the value of alpha."""

    def __init__(self, curve, *, every=10, test=lambda config: 0.5, seconds=0.0):
        self.curve, self.every, self.test, self.seconds = curve, every, test, seconds
        self.calls, self.steps = [], {}

    def __call__(self, config, path, *, display, loggers):
        self.calls.append((config.sampler.alpha, config.seed))
        if (path / "test.json").exists():
            return
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.toml").write_text(dump_config(config))
        with (path / "metrics.jsonl").open("w") as file:
            for step in range(self.every, config.steps + 1, self.every):
                accuracy = self.curve(config, step)
                self.steps[config.sampler.alpha, config.seed] = step
                file.write(json.dumps({"step": step, "split": "val", "accuracy": accuracy}) + "\n")
                file.flush()
                time.sleep(self.seconds)
                for logger in loggers:
                    logger.log(step, "val", {"accuracy": accuracy})
        write_test(path, [self.test(config)] * 2)


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


def test_a_grid_is_trained_and_reported(tiny, tmp_path, capsys, trials_of):
    flags = {"sampler.alpha": ("1", "2"), "sampler.tau": ("0.5",)}
    folder, base = tmp_path / "sweep", replace(TINY, steps=8)
    assert sweep(base, flags=flags, output=folder, quiet=True, run=train_tiny, seeds=2) == 0
    study = read_study(folder)
    assert [arm.labels for arm in study.arms] == [
        {"alpha": "1", "tau": "0.5"},
        {"alpha": "2", "tau": "0.5"},
    ]
    assert [arm.baseline for arm in study.arms] == [None, "alpha=1,tau=0.5"]
    best = {}
    for arm in study.arms:
        records = arm.runs
        assert [record.settings["seed"] for record in records] == [0, 1]
        for record in records:
            assert record.is_finished
            assert record.settings["sampler"]["alpha"] == float(arm.labels["alpha"])
            assert record.settings["sampler"]["tau"] == float(arm.labels["tau"])
            assert record.n_steps == 8
        best[arm.name] = sum(r.curve("val", "accuracy")[1].max() for r in records) / 2
    found = {name: value for name, state, value, *_ in trials_of(folder)}
    assert found == pytest.approx(best)
    printed = capsys.readouterr().out
    winner = max(best, key=best.get)
    assert f"Chosen by validation: {winner.replace('=', ' ').replace(',', ', ')}" in printed
    assert "Chosen by validation" in study.notes[0]
    assert printed.index("chosen") < printed.index("finished")


def test_the_choice_is_by_validation_and_never_by_test(tmp_path, capsys):
    run = Curves(
        lambda config, step: {0.5: 0.6, 1: 0.8, 2: 0.7}[config.sampler.alpha],
        test=lambda config: {0.5: 0.99, 1: 0.31, 2: 0.5}[config.sampler.alpha],
    )
    assert sweep(TINY, flags=ALPHA, output=tmp_path / "s", quiet=True, run=run) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:4] == [
        ["1", "80.00", "31.00", "chosen"],
        ["2", "70.00", "50.00", "finished"],
        ["0.5", "60.00", "99.00", "finished"],
    ]
    run = Curves(lambda config, step: min(config.sampler.alpha, 1) / 2)
    sweep(TINY, flags=ALPHA, output=tmp_path / "tied", quiet=True, run=run)
    printed = " ".join(capsys.readouterr().out.split())
    assert "Chosen by validation: alpha 1," in printed
    assert "2 trials are equally good in validation; the first of them was taken." in printed


def test_accuracies_are_means_over_seeds(tmp_path, trials_of):
    run = Curves(lambda config, step: 0.5 + 0.1 * config.seed + 0.001 * step)
    base = replace(TINY, steps=20, seed=3)
    sweep(base, flags={"sampler.alpha": ("2",)}, seeds=2, output=tmp_path, quiet=True, run=run)
    ((_, state, value, reports, params),) = trials_of(tmp_path)
    assert (state, params) == ("COMPLETE", {"sampler.alpha": 2.0})
    assert value == pytest.approx((0.82 + 0.92) / 2)
    assert reports == pytest.approx({10: 0.81, 20: 0.82})  # of the first seed
    assert run.calls == [(2.0, 3), (2.0, 4)]


def test_a_bad_trial_is_given_up_early_and_stays_so(tmp_path, capsys, trials_of):
    def curve(config, step):
        good = config.sampler.alpha != 0.1
        return (0.3 + 0.004 * step) if good else 0.2 + 0.0001 * step

    flags = {"sampler.alpha": ("1", "2", "3", "4", "5", "0.1", "6")}
    base = replace(TINY, steps=100)
    run = Curves(curve)
    assert sweep(base, flags=flags, output=tmp_path, run=run, seeds=2) == 0
    assert run.steps[0.1, 0] == 20  # the first validation after a fifth of the steps
    assert (0.1, 1) not in run.calls
    record = Run(tmp_path / "runs/alpha=0.1/seed-0")
    assert record.pruned.startswith("given up after step 20")
    assert not record.is_finished
    states = {name: state for name, state, *_ in trials_of(tmp_path)}
    assert states.pop("alpha=0.1") == "PRUNED"
    assert set(states.values()) == {"COMPLETE"}
    printed = capsys.readouterr()
    assert "Trial 6 of 7 was given up after step 20" in printed.err
    assert printed.out.splitlines()[7].split() == ["0.1", "20.20", "-", "pruned"]
    assert "1 trial was given up early" in printed.out
    again = Curves(curve)
    sweep(base, flags=flags, output=tmp_path, run=again, seeds=2)
    assert again.calls == []
    assert capsys.readouterr().out == printed.out


def test_without_pruning_every_trial_is_trained_to_its_end(tmp_path, trials_of):
    run = Curves(lambda config, step: 0.9 if config.sampler.alpha != 0.1 else 0.1)
    flags = {"sampler.alpha": ("1", "2", "3", "4", "5", "0.1")}
    sweep(TINY, flags=flags, output=tmp_path, quiet=True, run=run, prune=False)
    assert {state for _, state, *_ in trials_of(tmp_path)} == {"COMPLETE"}


@pytest.mark.parametrize("error", [TrainingError("the loss is no number"), RuntimeError("boom")])
def test_a_failing_trial_is_reported_tried_again_and_does_not_stop_the_rest(
    tmp_path, capsys, error, trials_of
):
    fails = True

    def curve(config, step):
        if config.sampler.alpha == 1 and fails:
            raise error
        return 0.5

    assert sweep(TINY, flags=ALPHA, output=tmp_path, quiet=True, run=Curves(curve)) == 1
    states = {name: state for name, state, *_ in trials_of(tmp_path)}
    assert states == {"alpha=0.5": "COMPLETE", "alpha=1": "FAIL", "alpha=2": "COMPLETE"}
    printed = capsys.readouterr()
    assert f"Failed: alpha 1: {error}" in printed.out
    assert f"Trial 2 of 3 failed: {error}" in printed.err
    assert Run(tmp_path / "runs/alpha=1/seed-0").failure == str(error)
    fails = False
    run = Curves(curve)
    assert sweep(TINY, flags=ALPHA, output=tmp_path, quiet=True, run=run) == 0
    assert run.calls == [(1.0, 0)]
    assert Run(tmp_path / "runs/alpha=1/seed-0").failure is None
    assert [state for _, state, *_ in trials_of(tmp_path)] == ["COMPLETE", "FAIL"] + 2 * [
        "COMPLETE"
    ]


def test_missing_data_stops_the_sweep(tmp_path):
    def run(config, path, *, display, loggers):
        raise DataError("not prepared")

    with pytest.raises(DataError, match="not prepared"):
        sweep(TINY, flags=ALPHA, output=tmp_path, quiet=True, run=run)


def test_a_diverging_run_fails_for_itself(tiny, tmp_path, trials_of):
    base = replace(TINY, optimiser=replace(TINY.optimiser, name="sgd"))
    flags = {"optimiser.lr": ("0.01", "1e30")}
    assert sweep(base, flags=flags, output=tmp_path, quiet=True, run=train_tiny) == 1
    assert [state for _, state, *_ in trials_of(tmp_path)] == ["COMPLETE", "FAIL"]
    assert "no " in Run(tmp_path / "runs/lr=1e+30/seed-0").failure


@forks
@quiet_forks
def test_a_sweep_killed_again_and_again_ends_as_one_left_alone(tiny, tmp_path, trials_of, outcome):
    def act(folder):
        return lambda: sweep(
            TINY,
            flags={},
            vary=["sampler.alpha=0.5..2", "optimiser.lr=1e-6..1e-1"],
            search="random",
            trials=7,
            search_seed=76,  # good rates first, so that a bad one is given up
            output=folder,
            quiet=True,
            run=train_tiny,
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
        n_in_progress += trials_of(tmp_path / "killed")[-1][1] == "RUNNING"
    assert n_in_progress >= 1
    assert os.waitpid(forked(act(tmp_path / "killed")), 0)[1] == 0
    alone, killed = outcome(tmp_path / "alone"), outcome(tmp_path / "killed")
    assert len(alone[1]) == 7
    assert {state for _, state, *_ in alone[1]} == {"COMPLETE", "PRUNED"}
    assert killed == alone


@forks
@quiet_forks
def test_several_processes_share_a_sweep(tmp_path, trials_of):
    done = tmp_path / "done.txt"

    def curve(config, step):
        with done.open("a") as file:
            file.write(f"{config.sampler.alpha}\n")
        return 0.5

    flags = {"sampler.alpha": [str(n) for n in range(1, 9)]}
    base = replace(TINY, steps=10)

    def act():
        run = Curves(curve, seconds=0.05)
        return sweep(base, flags=flags, output=tmp_path / "s", quiet=True, run=run)

    children = [forked(act) for _ in range(3)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert sorted(done.read_text().split()) == [f"{n}.0" for n in range(1, 9)]
    trials = trials_of(tmp_path / "s")
    assert len(trials) == 8
    assert {state for _, state, *_ in trials} == {"COMPLETE"}


@forks
@quiet_forks
def test_a_lock_that_a_killed_process_held_blocks_nobody(tmp_path):
    journal = tmp_path / "journal.log"
    read, write = os.pipe()

    def hold():
        with JournalLock(journal):
            os.write(write, b"x")
            time.sleep(60)

    child = forked(hold)
    os.read(read, 1)
    assert (tmp_path / "journal.lock").exists()
    waiting = forked(lambda: JournalLock(journal).acquire() is not True)
    time.sleep(0.1)
    assert os.waitpid(waiting, os.WNOHANG)[0] == 0  # it does hold
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    start = time.monotonic()
    assert os.waitpid(waiting, 0)[1] == 0
    # What Optuna's own lock would have left behind is of no account either.
    (tmp_path / "journal.log.lock").symlink_to(journal)
    sweep(TINY, flags=ALPHA, output=tmp_path, quiet=True, run=Curves(lambda *_: 0.5))
    assert time.monotonic() - start < 10
    os.close(read)
    os.close(write)


def test_a_torn_line_of_the_journal_is_cut_off(tmp_path, trials_of):
    flags = {"sampler.alpha": ("1", "2")}
    sweep(TINY, flags=flags, output=tmp_path, quiet=True, run=Curves(lambda *_: 0.5))
    before = trials_of(tmp_path)
    journal = tmp_path / "journal.log"
    whole = journal.read_bytes()
    for torn in (1, 30, len(whole.splitlines()[-1])):
        journal.write_bytes(whole + whole.splitlines()[-1][:torn])
        more = {"sampler.alpha": ("1", "2", "3")}
        sweep(TINY, flags=more, output=tmp_path, quiet=True, run=Curves(lambda *_: 0.5))
        assert trials_of(tmp_path)[:2] == before
        assert [name for name, *_ in trials_of(tmp_path)] == ["alpha=1", "alpha=2", "alpha=3"]


def test_the_journal_can_be_lost_without_losing_a_trial(tmp_path, trials_of):
    flags = {"sampler.alpha": ("1", "2", "3", "4", "5", "0.1")}

    def curve(config, step):
        return 0.5 + 0.001 * step if config.sampler.alpha > 0.1 else 0.1

    sweep(TINY, flags=flags, output=tmp_path, quiet=True, run=Curves(curve))
    before = [trial[:4] for trial in trials_of(tmp_path)]
    assert before[-1][1] == "PRUNED"
    (tmp_path / "journal.log").unlink()
    run = Curves(lambda *_: pytest.fail("nothing is to be trained"))
    sweep(TINY, flags=flags, output=tmp_path, quiet=True, run=run)
    after = [trial[:4] for trial in trials_of(tmp_path)]
    assert after[:5] == before[:5]
    assert after[5][1] == "PRUNED"
    journal = tmp_path / "journal.log"
    journal.write_bytes(b"{}\nx\n" + journal.read_bytes())
    with pytest.raises(StateError, match=r"journal.log is damaged.*Remove it"):
        sweep(TINY, flags=flags, output=tmp_path, quiet=True, run=run)


@forks
@quiet_forks
def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tiny, tmp_path, trials_of):
    said = tmp_path / "said.txt"

    def act():
        sys.stderr = said.open("w")
        long = replace(TINY, steps=100_000)
        try:
            sweep(long, flags=ALPHA, output=tmp_path / "s", run=train_tiny)
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
    assert "To go on, give the same command again" in said.read_text()
    assert (metrics.parent / "last.pt").exists()
    assert [state for _, state, *_ in trials_of(tmp_path / "s")] == ["RUNNING"]


def test_a_folder_holds_one_sweep_that_may_grow(tmp_path):
    run = Curves(lambda *_: 0.5)
    folder = tmp_path / "s"
    sweep(TINY, flags=ALPHA, output=folder, quiet=True, run=run)
    for base, flags, message in (
        (TINY, {"sampler.alpha": ("0.5", "1")}, "its trial alpha=2 is not among these"),
        (replace(TINY, steps=99), ALPHA, "there steps is 16, now it is 99"),
        (TINY, {"sampler.tau": ("0.5",)}, "another sweep"),
    ):
        with pytest.raises(ArgumentError, match=message):
            sweep(base, flags=flags, output=folder, quiet=True, run=run)
    elsewhere = replace(TINY, machine=MachineConfig(threads=2))
    more = {"sampler.alpha": ("0.5", "1", "2", "4")}
    run.calls.clear()
    assert sweep(elsewhere, flags=more, output=folder, quiet=True, run=run) == 0
    assert run.calls == [(4.0, 0)]
    (folder / "sweep.json").write_text("{")
    with pytest.raises(StateError, match=r"sweep.json is damaged"):
        sweep(TINY, flags=more, output=folder, quiet=True, run=run)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(ArgumentError, match="holds no sweep"):
        sweep(TINY, flags=ALPHA, output=tmp_path / "mine", quiet=True, run=run)


@pytest.mark.parametrize(
    ("flags", "vary", "message"),
    [
        ({"sampler.tau": ("0.5", "1.5")}, (), r"tau=1\.5 cannot be made"),
        ({"optimiser.lr": ("0.1", "-1")}, (), r"lr=-1 cannot be made"),
        ({}, ("conv4.filters=0,4",), r"filters=0 cannot be made"),
        ({}, ("protonet.temperature=0,1",), r"temperature=0 cannot be made"),
    ],
)
def test_a_bad_value_is_refused_before_anything_is_made(tmp_path, flags, vary, message):
    with pytest.raises(ArgumentError, match=message):
        sweep(TINY, flags=flags, vary=vary, output=tmp_path / "s", quiet=True, run=Curves(None))
    assert not (tmp_path / "s").exists()


def test_without_optuna_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ArgumentError, match=r"pip install 'adaptask\[sweep\]'"):
        sweep(TINY, flags=ALPHA, output=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_the_shared_configuration_is_that_of_a_run_without_the_flags_that_vary(capsys):
    config = RunConfig(
        steps=5, seed=7, sampler=SamplerConfig(alpha=2.0, exploration=0.1), task=TaskConfig(n_way=4)
    )
    assert SweptConfig.of(config).config() == config
    parsed = tyro.cli(
        SweptConfig,
        args=["--strategy", "easy", "--steps", "9"],
        default=SweptConfig.of(config),
    )
    assert parsed.config() == replace(
        config, steps=9, sampler=replace(config.sampler, strategy="easy")
    )
    for flag in ("--alpha", "--tau", "--lr", "--seed"):
        with pytest.raises(SystemExit):
            tyro.cli(SweptConfig, args=[flag, "1"])
    capsys.readouterr()


def test_missing_data_and_tasks_that_do_not_fit_leave_no_folder(tiny, tmp_path):
    for change, error in (
        ({"data": DataConfig(dataset="cifar-fs")}, DataError),
        ({"task": TaskConfig(n_way=1000)}, ArgumentError),
    ):
        with pytest.raises(error, match="cannot be trained"):
            sweep(replace(TINY, **change), flags=ALPHA, output=tmp_path / "s")
        assert not (tmp_path / "s").exists()
