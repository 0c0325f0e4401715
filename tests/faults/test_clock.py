"""A clock that goes back, or stands still: records, reports and displays take it as it comes."""

import json
import random
import time

import pytest

from adaptask.cli import main
from adaptask.report.grouping import find_study
from adaptask.report.run import Run
from adaptask.report.summary import summarize


def wild(start, seed):
    """A clock that jumps by an hour in either direction."""
    rng, now = random.Random(seed), start

    def read():
        nonlocal now
        now += rng.choice((0.0, 1e-3, 1.0, -1.0, 3600.0, -3600.0))
        return now

    return read


@pytest.fixture
def wild_clock(monkeypatch):
    """Makes the time of day jump, as when it is set again; durations are measured as ever."""
    monkeypatch.setattr(time, "time", wild(time.time(), 0))


@pytest.fixture
def wild_clocks(monkeypatch, wild_clock):
    """Makes the others jump as well, which no system should do."""
    monkeypatch.setattr(time, "monotonic", wild(time.monotonic(), 1))
    monkeypatch.setattr(time, "perf_counter", wild(time.perf_counter(), 2))


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_does_not_depend_on_the_time_of_day(tiny_run, tmp_path, wild_clock):
    folder = tmp_path / "run"
    assert main([*tiny_run, "--output", str(folder)]) == 0
    seconds = [record["seconds"] for record in metrics(folder) if record["split"] == "train"]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    assert Run(folder).seconds_per_step > 0


def test_with_all_clocks_out_of_order_nothing_breaks_and_no_time_is_negative(
    tiny_run, tmp_path, wild_clocks, capsys
):
    folder = tmp_path / "run"
    assert main([*tiny_run, "--output", str(folder)]) == 0
    said = capsys.readouterr()
    assert "Test accuracy" in said.out + said.err
    assert "-1:" not in said.out + said.err
    pace = Run(folder).seconds_per_step
    assert pace is None or pace > 0
    summarize(find_study(folder))
    assert main(["watch", str(folder), "--once"]) == 0
