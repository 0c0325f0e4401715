"""The law of resuming: a run that is killed at random moments ends as one that was left alone."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from adaptask.cli import main
from adaptask.experiments.config_file import load_config
from adaptask.experiments.run import run_steps
from adaptask.report.run import read_metrics, read_snapshots
from adaptask.training.checkpoints import load_checkpoint
from adaptask.training.device_steps import finish
from adaptask.training.displays import Silent

N_STEPS = 40


def ending(folder):
    """Everything a run ends with, but for times."""
    trainer = load_checkpoint(folder / "last.pt")["trainer"]
    trainer.pop("seconds")
    records = read_metrics(folder / "metrics.jsonl")
    return {
        "last": trainer,
        "best": load_checkpoint(folder / "best.pt"),
        "records": [{k: v for k, v in r.items() if k != "seconds"} for r in records],
        "snapshots": [
            {
                name: torch.from_numpy(part.copy())
                for name, part in vars(snapshot).items()
                if part is not None and name != "step"
            }
            | {"step": snapshot.step}
            for snapshot in read_snapshots(folder / "snapshots")
        ],
        "test": json.loads((folder / "test.json").read_text()),
    }


def arguments(tiny_run, folder):
    if (folder / "config.toml").exists():
        return ["train", "--resume", str(folder), "--quiet"]
    return [*tiny_run, "--steps", str(N_STEPS), "--output", str(folder), "--quiet"]


quiet_forks = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@quiet_forks
@pytest.mark.parametrize(
    ("flags", "seed"),
    [
        ("", 0),
        ("--learner matchingnet --sampler cp --data.augmentation crop-flip", 1),
        ("--backbone resnet12 --backbone.widths 4 4 4 4 --n-tasks 2", 2),
        ("--learner maml++ --n-tasks 2 --learner.inner-steps 2", 3),
        ("--learner reptile --optimizer.name sgd --lr 1 --learner.evaluation-steps 2", 4),
    ],
)
def test_a_run_killed_again_and_again_ends_as_one_left_alone(
    tiny_run, tmp_path, kills, flags, seed, same
):
    if "resnet12" in flags:
        at = tiny_run.index("--backbone.filters")
        tiny_run = tiny_run[:at] + tiny_run[at + 2 :]
    tiny_run = [*tiny_run, *flags.split()]
    alone, folder = tmp_path / "alone", tmp_path / "killed"
    start = time.monotonic()
    n_operations = kills.in_a_child(lambda: main(arguments(tiny_run, alone)), folder=alone)
    seconds = (time.monotonic() - start) / 2
    n_killed = kills.until_done(
        lambda: main(arguments(tiny_run, folder)),
        *(random.Random(seed), kills.n, n_operations // 2, seconds, folder),
        restart=lambda: shutil.rmtree(folder),
    )
    assert n_killed >= 1  # a machine that gets quicker meanwhile may finish early
    assert same(ending(alone), ending(folder))


def more_steps(folder, n_steps):
    return main(["train", "--resume", str(folder), "--steps", str(n_steps), "--quiet"])


@quiet_forks
def test_a_finished_run_that_is_killed_when_it_gets_more_steps_makes_them(
    tiny_run, tiny_config, tmp_path, kills, same
):
    alone, folder = tmp_path / "alone", tmp_path / "killed"
    for path in (alone, folder):
        assert main([*tiny_run, "--output", str(path), "--quiet"]) == 0
    assert more_steps(alone, 16) == 0
    # Killed before each operation on files from the start to the first steps, in turn.
    config = replace(tiny_config, steps=16)
    saved = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    n_looked_finished = 0
    for moment in range(1, 60, max(1, 60 // (6 * kills.n))):
        for name, content in saved.items():
            (folder / name).write_bytes(content)
        kills.in_a_child(lambda: more_steps(folder, 16), folder=folder, kill_at=moment)
        finished = (folder / "test.json").exists() and load_config(
            folder / "config.toml"
        ).steps == 16
        n_looked_finished += (
            finished and load_checkpoint(folder / "last.pt")["trainer"]["step"] < 16
        )
    assert n_looked_finished == 0
    finish(run_steps(config, folder, display=Silent()))
    assert same(ending(alone)["test"], ending(folder)["test"])
    assert same(ending(alone)["last"]["learner"], ending(folder)["last"]["learner"])


def test_the_command_itself_survives_a_kill_and_an_interruption(tiny_run, tmp_path, same):
    command = [sys.executable, "-m", "adaptask"]
    assert main(arguments(tiny_run, tmp_path / "alone")) == 0
    folder = tmp_path / "killed"
    slow = [*tiny_run, "--steps", str(N_STEPS), "--output", str(folder), "--every.log", "1"]
    for number, n_records in ((signal.SIGKILL, 5), (signal.SIGINT, 12)):
        run = slow if number is signal.SIGKILL else ["train", "--resume", str(folder)]
        process = subprocess.Popen([*command, *run], stderr=subprocess.PIPE, text=True)
        metrics = folder / "metrics.jsonl"
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < n_records:
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(number)
        said = process.communicate()[1]
        if number is signal.SIGINT:
            assert process.returncode == 130
            assert f"To continue: adaptask train --resume {folder}" in said
            assert "Traceback" not in said
        else:
            assert process.returncode == -signal.SIGKILL
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0
    alone, killed = ending(tmp_path / "alone"), ending(folder)
    for part in ("best", "test"):
        assert same(alone[part], killed[part])
    assert same(alone["last"]["learner"], killed["last"]["learner"])
    assert same(alone["last"]["sampler"], killed["last"]["sampler"])
