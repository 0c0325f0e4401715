"""Two processes on one folder: the second is refused, and a dead one leaves no lock behind."""

import os
import signal
import subprocess
import sys
import time

import pytest

from adaptask.cli import main

pytest.importorskip("fcntl")


def start(arguments):
    """Start a command; return when it has written something into its folder."""
    command = [sys.executable, "-m", "adaptask", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(condition, process):
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def long_run(tiny_run, tmp_path):
    """A run that another process is making, and its folder."""
    folder = tmp_path / "run"
    process = start([*tiny_run, "--steps", "1000000", "--output", str(folder)])
    wait_for(lambda: (folder / "last.pt").exists(), process)
    yield process, folder
    if process.poll() is None:
        process.kill()
    process.wait()


def test_the_second_is_refused_and_the_first_not_disturbed(long_run, tiny_run, capsys):
    process, folder = long_run
    before = (folder / "config.toml").read_bytes()
    assert main(["train", "--resume", str(folder), "--steps", "2000000", "--quiet"]) == 1
    assert f"another process is training in {folder}" in capsys.readouterr().err
    again = [*tiny_run, "--steps", "1000000", "--output", str(folder), "--quiet"]
    assert main(again) == 1
    assert f"another process is training in {folder}" in capsys.readouterr().err
    assert process.poll() is None
    assert (folder / "config.toml").read_bytes() == before
    size = (folder / "metrics.jsonl").stat().st_size
    wait_for(lambda: (folder / "metrics.jsonl").stat().st_size > size, process)


def test_a_dead_process_leaves_no_lock(long_run, capsys):
    process, folder = long_run
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert (folder / "lock").exists()  # the file, which nobody holds
    steps = 1 + max(
        int(line.split(b'"step": ')[1].split(b",")[0])
        for line in (folder / "metrics.jsonl").read_bytes().splitlines()
    )
    assert main(["train", "--resume", str(folder), "--steps", str(steps + 8), "--quiet"]) == 0
    assert (folder / "test.json").exists()
