"""Real kills of a comparison: started again it gives the table of one left alone."""

import csv
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from adaptask.cli import main

TIMES = ("time", "factor", "ms", "overhead")


def tables(folder):
    """Every table of a study, but for times."""
    found = {}
    for path in sorted((folder / "tables").glob("*.csv")):
        heading, *rows = csv.reader(path.read_text().splitlines())
        kept = [i for i, text in enumerate(heading) if not any(t in text for t in TIMES)]
        found[path.name] = [[row[i] for i in kept] for row in (heading, *rows)]
    return found


def results(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("test.json")}


def until_killed(command, after):
    """Start a command, kill it after so many seconds; return whether it ended by itself."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        _, said = process.communicate(timeout=after)
        assert process.returncode == 0, said
        return True
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs signals of POSIX")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_comparison_killed_again_and_again_ends_as_one_left_alone(
    tiny_comparison, tmp_path, workers, capsys
):
    arguments = [*tiny_comparison, "--steps", "40", "--workers", workers, "--output"]
    assert main([*arguments, str(tmp_path / "alone")]) == 0
    command = [sys.executable, "-m", "adaptask", *arguments, str(tmp_path / "killed")]
    rng, n_kills = random.Random(int(workers)), 0
    progress = set()
    for _ in range(3):
        start = time.monotonic()
        folder = tmp_path / "killed" / "runs"
        # Kills come once something has been written since the last one, so that they get on.
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and time.monotonic() < start + 60:
            now = {(str(p), p.stat().st_mtime_ns) for p in folder.rglob("last.pt")}
            if now - progress:
                time.sleep(rng.uniform(0, 0.15))
                break
            time.sleep(0.005)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            n_kills += 1
        process.wait()
        progress |= now
    assert n_kills >= 2
    assert until_killed(command, 300)
    assert results(tmp_path / "killed") == results(tmp_path / "alone")
    assert len(results(tmp_path / "alone")) == 4
    assert tables(tmp_path / "killed") == tables(tmp_path / "alone")
    assert tables(tmp_path / "alone")
