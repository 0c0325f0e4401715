"""What a run shows, read from the streams that it writes to."""

import io
import re
import sys
import time
from types import SimpleNamespace

import pytest

from adaptask.training import displays
from adaptask.training.displays import PlainLines, Silent, StatusLine, choose_display


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def lines(self):
        """What was drawn, one entry for each time, without colors and cursor movements."""
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.getvalue())
        return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


class Clock:
    def __init__(self):
        self.now = 1000.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(displays, "time", clock)
    return clock


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_INTERACTIVE", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


def run(display, clock, *, start, n_steps, every, seconds_a_step):
    display.begin(start, n_steps)
    for step in range(start + 1, n_steps + 1):
        clock.now += seconds_a_step
        is_logged = step % every == 0
        display.advance(step, {"loss": 2 - step / 100, "accuracy": 0.5} if is_logged else None)
    display.end(n_steps)


def test_plain_lines_come_at_each_logging_interval(clock):
    stream = io.StringIO()
    run(PlainLines(stream), clock, start=0, n_steps=100, every=40, seconds_a_step=0.5)
    assert stream.getvalue().splitlines() == [
        "step  40/100  loss 1.600  acc 50.0 %  0:00:30 left  2 steps/s",
        "step  80/100  loss 1.200  acc 50.0 %  0:00:10 left  2 steps/s",
        "100 steps in 0:00:50, 2 steps/s",
    ]


def test_a_resumed_run_says_so_and_counts_its_own_steps_alone(clock):
    stream = io.StringIO()
    run(PlainLines(stream), clock, start=60, n_steps=7300, every=7000, seconds_a_step=1)
    assert stream.getvalue().splitlines() == [
        "resuming from step 60 of 7300",
        "step 7000/7300  loss -68.000  acc 50.0 %  0:05:00 left  1 steps/s",
        "7240 steps in 2:00:40, 1 steps/s",
    ]


def test_the_validation_accuracy_stays_until_the_next_and_validating_counts_as_time(clock):
    stream = io.StringIO()
    display = PlainLines(stream)
    display.begin(0, 300)
    clock.now += 1
    display.advance(100, {"loss": 1.0, "val_accuracy": 0.25})
    display.message("best so far")
    clock.now += 4
    display.advance(200, {"loss": 0.5})
    assert stream.getvalue().splitlines() == [
        "step 100/300  loss 1.000  val 25.0 %  0:00:02 left  100 steps/s",
        "best so far",
        "step 200/300  loss 0.500  val 25.0 %  0:00:02 left  40 steps/s",
    ]


def test_the_bar_shows_where_the_run_stands(clock, terminal):
    display = StatusLine(terminal)
    display.begin(50, 400)
    clock.now += 1
    display.advance(150, {"loss": 1.234, "accuracy": 0.5, "val_accuracy": 0.412})
    display.message("[best] saved to best.pt")
    clock.now += 1
    display.advance(200)
    display.end(200)
    drawn = terminal.lines()
    figures = "loss 1.234  acc 50.0 %  val 41.2 %  0:00:02 left  100 steps/s"
    assert any(re.fullmatch(rf"150/400 \S+ {re.escape(figures)}\s*", line) for line in drawn)
    figures = "loss 1.234  acc 50.0 %  val 41.2 %  0:00:03 left  75 steps/s"
    assert re.fullmatch(rf"200/400 \S+ {re.escape(figures)}\s*", drawn[-2])
    assert "[best] saved to best.pt" in [line.rstrip() for line in drawn]
    assert drawn[-1].rstrip() == "150 steps in 0:00:02, 75 steps/s"


@pytest.mark.parametrize("columns", [20, 45, 60, 79, 120])
def test_a_narrow_terminal_shows_fewer_figures_and_cuts_none(clock, terminal, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    display = StatusLine(terminal)
    display.begin(0, 20_000)
    clock.now += 1
    display.advance(15_000, {"loss": 1.234, "accuracy": 0.5, "val_accuracy": 0.412})
    drawn = [line for line in terminal.lines() if line.startswith("15000/20000")]
    assert drawn
    whole = ["loss 1.234", "acc 50.0 %", "val 41.2 %", "0:00:00 left", "15000 steps/s"]
    for line in drawn:
        assert len(line) <= columns
        shown = [text for text in re.split(r"  +", line.split(" ", 2)[2].strip()) if text]
        assert shown == whole[: len(shown)]
    assert (shown == whole) == (columns > 79)
    display.end(15_000)


def test_the_bar_is_drawn_at_most_ten_times_a_second(clock, terminal):
    display = StatusLine(terminal)
    display.begin(0, 5000)
    n_before = len(terminal.lines())
    for step in range(1, 5001):
        clock.now += 0.001
        display.advance(step, {"loss": 1.0})
    assert 10 <= len(terminal.lines()) - n_before <= 50
    display.end(5000)


def test_between_two_drawings_a_step_costs_next_to_nothing(terminal, monkeypatch):
    monkeypatch.setattr(displays, "SECONDS_BETWEEN_UPDATES", 60.0)
    display = StatusLine(terminal)
    display.begin(0, 10**6)
    costs = []
    for _ in range(20):
        start = time.perf_counter()
        for step in range(1000):
            display.advance(step)
        costs.append((time.perf_counter() - start) / 1000)
    display.end(1000)
    assert min(costs) < 5e-6


def test_a_run_of_no_steps_is_shown_too(clock, terminal):
    for display in (StatusLine(terminal), PlainLines(terminal), Silent()):
        display.begin(100, 100)
        display.end(100)
    assert [line.rstrip() for line in terminal.lines()].count("0 steps in 0:00:00") == 2


def test_quiet_shows_nothing(capfd):
    display = choose_display(quiet=True)
    display.begin(0, 2)
    display.advance(1, {"loss": 1.0})
    display.message("text")
    display.end(2)
    assert capfd.readouterr() == ("", "")


def test_the_display_suits_the_output(terminal, monkeypatch, capsys):
    assert isinstance(choose_display(stream=terminal), StatusLine)
    assert isinstance(choose_display(stream=io.StringIO()), PlainLines)
    assert isinstance(choose_display(quiet=True, stream=terminal), Silent)
    choose_display().message("to standard error")
    assert capsys.readouterr() == ("", "to standard error\n")
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(choose_display(stream=terminal), PlainLines)


def evaluate(display, clock, split, n_episodes, seconds):
    for done in range(0, n_episodes + 1, n_episodes // 4):
        display.evaluate(split, done, n_episodes)
        clock.now += seconds / 4 if done < n_episodes else 0


def test_a_long_evaluation_is_shown_and_is_no_part_of_the_speed(clock):
    stream = io.StringIO()
    display = PlainLines(stream)
    display.begin(0, 300)
    clock.now += 1
    evaluate(display, clock, "val", 400, seconds=60)
    display.advance(100, {"loss": 1.0})
    clock.now += 1
    display.advance(200, {"loss": 1.0})
    evaluate(display, clock, "val", 400, seconds=1)  # too short to be worth a line
    clock.now += 1
    display.end(300)
    evaluate(display, clock, "test", 1500, seconds=30)
    assert stream.getvalue().splitlines() == [
        "validating 100/400 episodes",
        "validating 200/400 episodes",
        "validating 300/400 episodes",
        "step 100/300  loss 1.000  0:02:02 left  100 steps/s",
        "step 200/300  loss 1.000  0:00:31 left  100 steps/s",
        "300 steps in 0:01:04, 0:01:01 of it validation, 100 steps/s",
        "testing 750/1500 episodes",
    ]


def test_the_bar_shows_validation_and_a_bar_of_its_own_shows_the_test(clock, terminal):
    display = StatusLine(terminal)
    display.begin(0, 100)
    clock.now += 1
    evaluate(display, clock, "val", 400, seconds=10)
    display.advance(1, {"val_accuracy": 0.5})
    display.end(1)
    evaluate(display, clock, "test", 1500, seconds=10)
    drawn = [line.rstrip() for line in terminal.lines()]
    assert any(re.fullmatch(r"  1/100 \S+ validating 200/400 episodes", line) for line in drawn)
    assert any(re.fullmatch(r"testing 750/1500 episodes \S+", line) for line in drawn)
    assert drawn[-1].startswith("testing 1500/1500 episodes")


def test_a_notebook_has_a_line_that_is_written_again(clock, monkeypatch):
    stream = io.StringIO()
    display = StatusLine(stream, width=70)
    run(display, clock, start=0, n_steps=100, every=40, seconds_a_step=0.5)
    *lines, end, _ = stream.getvalue().split("\n")
    assert len(lines) == 1
    written = [line.strip() for line in lines[0].split("\r")]
    assert "80/100 ##########.. loss 1.200  acc 50.0 %  0:00:10 left  2 steps/s" in written
    assert end.strip() == "100 steps in 0:00:50, 2 steps/s"


def test_a_trainer_shows_progress_in_a_terminal_and_in_a_notebook(
    build_trainer, terminal, monkeypatch
):
    assert isinstance(build_trainer().display, Silent)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert isinstance(build_trainer().display, StatusLine)
    assert isinstance(build_trainer(display=Silent()).display, Silent)

    class Kernel:
        kernel = object()

    ipython = SimpleNamespace(get_ipython=Kernel)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert isinstance(build_trainer().display, StatusLine)
    ipython.get_ipython = lambda: None
    assert isinstance(build_trainer().display, StatusLine)


def test_a_test_that_is_interrupted_leaves_the_terminal_in_order(clock, terminal):
    display = StatusLine(terminal)
    display.begin(0, 10)
    display.end(10)
    display.evaluate("test", 0, 100)
    clock.now += 10
    display.evaluate("test", 50, 100)
    display.close()
    written = terminal.getvalue()
    assert written.endswith("\n")
    display.close()
    assert terminal.getvalue() == written, "a second call does nothing"
