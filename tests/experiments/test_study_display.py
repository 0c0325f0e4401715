"""One display for many runs."""

import io
import re
from pathlib import Path

import pytest

from adaptask.experiments import study_display
from adaptask.experiments.backends import Event
from adaptask.experiments.backends.interleaved import EventDisplay
from adaptask.experiments.config import RunConfig
from adaptask.experiments.study_display import StudyDisplay
from adaptask.report.run import Run


@pytest.fixture
def jobs():
    return [Run(Path(f"run-{i}"), name=f"[run {i}]", config=RunConfig(steps=100)) for i in range(3)]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(stream):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test turns."""
    now = [100.0]
    monkeypatch.setattr(study_display.time, "monotonic", lambda: now[0])
    return now


def test_lines_tell_how_runs_end_and_how_long_the_rest_takes(jobs, clock):
    stream = io.StringIO()
    display = StudyDisplay(jobs, stream)
    display(Event("begin", jobs[0].name))
    display(Event("end", jobs[0].name))  # it was there already: it says nothing of the pace
    assert stream.getvalue() == "[1/3] [run 0]: kept\n"
    display(Event("begin", jobs[1].name))
    display(Event("advance", jobs[1].name, 0, {}))
    clock[0] += 10
    display(Event("advance", jobs[1].name, 50, {"loss": 1.0}))
    assert stream.getvalue().count("\n") == 1  # not yet time
    display(Event("end", jobs[1].name))
    assert stream.getvalue().endswith("[2/3] [run 1]: done  0:00:10 left\n")
    clock[0] += 50
    display(Event("begin", jobs[2].name))
    display(Event("advance", jobs[2].name, 20, {}))
    assert "[run 2]: step 20 of 100" in stream.getvalue()
    display(Event("end", jobs[2].name, text="the disk is full"))
    display(Event("warn", "", text="mind this"))
    assert "[3/3] [run 2]: failed: the disk is full" in stream.getvalue()
    assert stream.getvalue().endswith("mind this\n")


def test_what_several_runs_warn_of_is_shown_once(jobs):
    stream = io.StringIO()
    display = StudyDisplay(jobs, stream)
    for run in jobs:
        display(Event("warn", run.name, text="mind this"))
    display(Event("warn", jobs[1].name, text="and that"))
    assert stream.getvalue() == "[run 0]: mind this\n[run 1]: and that\n"


def test_bars_show_all_and_each(jobs):
    stream = Terminal()
    display = StudyDisplay(jobs, stream)
    display(Event("begin", jobs[0].name))
    display(Event("advance", jobs[0].name, 50, {"loss": 1.25, "val_accuracy": 0.612}))
    display._progress.refresh()
    assert "0 of 3 runs" in shown(stream)
    assert "[run 0]" in shown(stream)
    assert "50/100  loss 1.25  val 61.2 %" in shown(stream)
    display(Event("end", jobs[0].name))
    display(Event("begin", jobs[1].name))
    display(Event("end", jobs[1].name, text="no [luck]"))
    display.close()
    assert "2 of 3 runs" in shown(stream)
    assert "[run 1]: failed: no [luck]" in shown(stream)


def test_without_a_terminal_there_are_lines(jobs, clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    for stream in (io.StringIO(), Terminal()):
        display = StudyDisplay(jobs, stream)
        display(Event("begin", jobs[0].name))
        display(Event("advance", jobs[0].name, 50, {"loss": 1.25}))
        display(Event("end", jobs[0].name))
        display.close()
        assert stream.getvalue() == "[1/3] [run 0]: done  0:00:00 left\n"


def test_a_run_hands_on_what_it_says(jobs):
    heard = []
    run = EventDisplay(jobs[0], heard.append)
    run.begin(3, 100)
    run.advance(4, {"loss": 1.0})
    run.advance(5)  # too soon after the last
    run.advance(6, {"val_accuracy": 0.5})
    run.warn("mind this")
    run.end(7)
    assert heard == [
        Event("advance", "[run 0]", 3),
        Event("advance", "[run 0]", 4, {"loss": 1.0}),
        Event("warn", "[run 0]", text="mind this"),
        Event("advance", "[run 0]", 7, {"loss": 1.0, "val_accuracy": 0.5}),
    ]


def test_a_run_that_begins_again_has_one_bar(jobs):
    display = StudyDisplay(jobs, Terminal())
    for step in (60, 40):
        display(Event("begin", jobs[0].name))
        display(Event("advance", jobs[0].name, step, {}))
    assert [task.completed for task in display._progress.tasks] == [40, 40]  # of all, and its own
    display(Event("end", jobs[0].name))
    assert len(display._progress.tasks) == 1
    display.close()


def test_evaluations_are_shown(jobs, clock):
    stream = io.StringIO()
    display = StudyDisplay(jobs, stream)
    run = EventDisplay(jobs[0], display)
    display(Event("begin", jobs[0].name))
    run.begin(99, 100)
    clock[0] += 60
    run.evaluate("test", 300, 1500)
    assert "[run 0]: step 99 of 100  testing 300/1500 episodes" in stream.getvalue()
