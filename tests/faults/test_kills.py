"""The law of resuming: a run that is killed at random moments ends as one that was left alone."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

from adaptask.cli import main
from adaptask.report.records import read_metrics, read_snapshots
from adaptask.training.checkpoints import load_checkpoint

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


def same(left, right):
    """Compare to the last bit."""
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def arguments(tiny_run, folder):
    if (folder / "config.toml").exists():
        return ["train", "--resume", str(folder), "--quiet"]
    return [*tiny_run, "--steps", str(N_STEPS), "--output", str(folder), "--quiet"]


def forked(run, kill_after):
    """Run in a child that is killed after so many seconds; return whether it ended by itself."""
    child = os.fork()
    if child == 0:
        os._exit(main(run))
    deadline = time.monotonic() + kill_after
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return True
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(
    ("flags", "seed"),
    [
        ("", 0),
        ("--learner matchingnet --sampler cp --data.augmentation crop-flip", 1),
        ("--backbone resnet12 --resnet12.widths 4 4 4 4 --conv4.filters 64 --n-tasks 2", 2),
        ("--learner maml++ --n-tasks 2 --maml-plus-plus.inner-steps 2", 3),
        ("--learner reptile --optimiser.name sgd --lr 1 --reptile.evaluation-steps 2", 4),
    ],
)
def test_a_run_killed_again_and_again_ends_as_one_left_alone(tiny_run, tmp_path, flags, seed):
    tiny_run = [*tiny_run, *flags.split()]
    start = time.monotonic()
    assert forked(arguments(tiny_run, tmp_path / "alone"), 300)
    seconds = time.monotonic() - start
    rng = random.Random(seed)
    folder = tmp_path / "killed"
    n_kills = 0
    while n_kills < 6 and not forked(
        arguments(tiny_run, folder), rng.uniform(0.02, 0.35) * seconds
    ):
        n_kills += 1
    assert n_kills >= 1  # a machine that gets quicker meanwhile may finish early
    assert forked(arguments(tiny_run, folder), 300)
    assert same(ending(tmp_path / "alone"), ending(folder))


def test_the_command_itself_survives_a_kill_and_an_interruption(tiny_run, tmp_path):
    command = [sys.executable, "-m", "adaptask"]
    assert main(arguments(tiny_run, tmp_path / "alone")) == 0
    folder = tmp_path / "killed"
    slow = [*tiny_run, "--steps", str(N_STEPS), "--output", str(folder), "--every.log", "1"]
    for number, n_records in ((signal.SIGKILL, 5), (signal.SIGINT, 25)):
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
            assert f"To go on: adaptask train --resume {folder}" in said
            assert "Traceback" not in said
        else:
            assert process.returncode == -signal.SIGKILL
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0
    alone, killed = ending(tmp_path / "alone"), ending(folder)
    for part in ("best", "test"):
        assert same(alone[part], killed[part])
    assert same(alone["last"]["learner"], killed["last"]["learner"])
    assert same(alone["last"]["sampler"], killed["last"]["sampler"])
