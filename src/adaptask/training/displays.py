"""How a run shows its progress: a line with a bar, plain lines, or nothing."""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from collections import deque
from collections.abc import Mapping
from typing import TextIO

SECONDS_BETWEEN_UPDATES = 0.2
SECONDS_BETWEEN_LINES = 10.0
"""Between plain lines during an evaluation."""
_N_RECENT = 50
_NARROWEST_BAR, _WIDEST_BAR = 6, 40
_NOTEBOOK_COLUMNS = 100
_PHASES = {"val": "validating", "test": "testing"}


class Display:
    """Receives the progress of a run. This one shows nothing; derive from it to write your own.

    `step` is the number of steps made so far: a new run begins at 0 and ends at `n_steps`. Metrics
    are plain numbers. Those called `loss`, `accuracy` and `val_accuracy` are shown, and one that
    is not passed keeps its last value.
    """

    def begin(self, step: int, n_steps: int) -> None:
        """Start to show a run that goes from `step` to `n_steps`."""

    def advance(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Show that `step` steps are done; called after every step, with metrics or without."""

    def evaluate(self, split: str, n_done: int, n_episodes: int) -> None:
        """Show that so many episodes of an evaluation on `val` or `test` are done.

        It is called with 0 when the evaluation begins, and with `n_episodes` when it has ended.
        """

    def message(self, text: str) -> None:
        """Show a line that stays."""

    def warn(self, text: str) -> None:
        """Show a warning; the run continues."""

    def end(self, step: int) -> None:
        """Show that training has ended, or was stopped, after `step` steps."""

    def close(self) -> None:
        """Leave the terminal in order; called after a test, also one that was stopped."""


class Silent(Display):
    """Shows nothing; warnings become Python warnings."""

    def warn(self, text: str) -> None:
        """Issue a Python warning."""
        warnings.warn(text, stacklevel=3)


class Quiet(Silent):
    """Writes only warnings to a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def warn(self, text: str) -> None:
        """Write a line."""
        print(text, file=self._stream, flush=True)


class PlainLines(Display):
    """Writes a line to a stream whenever there are metrics, for output that is not a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._metrics: dict[str, float] = {}
        # Time and step of the last updates, from which the speed is computed.
        self._recent: deque[tuple[float, int]] = deque(maxlen=_N_RECENT)
        self._start, self._first, self._n_steps = 0.0, 0, 0
        # Evaluations are no part of the speed of training, but of the time that is left.
        self._evaluation_start = 0.0
        self._evaluation_seconds = 0.0
        self._next_line = 0.0

    def begin(self, step: int, n_steps: int) -> None:
        """Start the clock; a resumed run says where it stands."""
        self._start_clock(step, n_steps)
        if step:
            self.message(f"resuming from step {step} of {n_steps}")

    def advance(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Write a line if there are metrics."""
        if metrics is not None:
            self._metrics.update(metrics)
            self.message("  ".join([f"step {self._position(step)}", *self._figures(step)]))

    def evaluate(self, split: str, n_done: int, n_episodes: int) -> None:
        """Write a line now and then if the evaluation takes long."""
        self._time_evaluation(n_done, n_episodes)
        if n_done < n_episodes and time.perf_counter() >= self._next_line:
            self._next_line = time.perf_counter() + SECONDS_BETWEEN_LINES
            self.message(evaluation_text(split, n_done, n_episodes))

    def message(self, text: str) -> None:
        """Write a line."""
        print(text, file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        """Write a line."""
        self.message(text)

    def end(self, step: int) -> None:
        """Write how long it took."""
        seconds, done = time.perf_counter() - self._start, step - self._first
        evaluation = self._evaluation_seconds
        text = "1 step" if done == 1 else f"{done} steps"
        text += f" in {format_duration(seconds)}"
        if round(evaluation):
            text += f", {format_duration(evaluation)} of it validation"
        if done and seconds > evaluation:
            text += f", {_format_speed(done / (seconds - evaluation))}"
        self.message(text)

    def _start_clock(self, step: int, n_steps: int) -> None:
        self._start, self._first, self._n_steps = time.perf_counter(), step, n_steps
        self._evaluation_seconds = 0.0
        self._metrics.clear()
        self._recent.clear()
        self._recent.append((self._start, step))

    def _time_evaluation(self, n_done: int, n_episodes: int) -> None:
        now = time.perf_counter()
        if n_done == 0:
            self._evaluation_start = now
            self._next_line = now + SECONDS_BETWEEN_LINES
        elif n_done == n_episodes:
            self._evaluation_seconds += now - self._evaluation_start

    def _position(self, step: int) -> str:
        return f"{step:{len(str(self._n_steps))}}/{self._n_steps}"

    def _figures(self, step: int) -> list[str]:
        """Return what is known after a step, each with its name or unit."""
        known, figures = self._metrics, []
        if "loss" in known:
            figures.append(f"loss {known['loss']:.3f}")
        if "accuracy" in known:
            figures.append(f"acc {100 * known['accuracy']:.1f} %")
        if "val_accuracy" in known:
            figures.append(f"val {100 * known['val_accuracy']:.1f} %")
        self._recent.append((time.perf_counter() - self._evaluation_seconds, step))
        (then, before), (now, after) = self._recent[0], self._recent[-1]
        if after > before and now > then:
            speed = (after - before) / (now - then)
            evaluation = self._evaluation_seconds / (step - self._first)
            figures.append(
                f"{format_duration((self._n_steps - step) * (1 / speed + evaluation))} left"
            )
            figures.append(_format_speed(speed))
        return figures


class StatusLine(PlainLines):
    """Rewrites one line, five times a second: a bar, metrics, time left and steps per second.

    Args:
        stream: A terminal, or the output of a notebook.
        width: Characters in a line; that of the terminal by default.
    """

    def __init__(self, stream: TextIO, width: int | None = None) -> None:
        super().__init__(stream)
        self._width = width
        self._step = 0
        self._next_update = 0.0
        self._is_drawn = False

    def begin(self, step: int, n_steps: int) -> None:
        """Start the clock and draw."""
        self._start_clock(step, n_steps)
        self._draw_step(step)

    def advance(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Keep the metrics; draw again if it is time."""
        self._step = step
        if metrics is not None:
            self._metrics.update(metrics)
        if time.perf_counter() >= self._next_update:
            self._draw_step(step)

    def evaluate(self, split: str, n_done: int, n_episodes: int) -> None:
        """Show how far the evaluation is."""
        self._time_evaluation(n_done, n_episodes)
        if 0 < n_done < n_episodes and time.perf_counter() < self._next_update:
            return
        text = evaluation_text(split, n_done, n_episodes)
        if split == "val":
            position = self._position(self._step + 1)  # the step has been made
            figures = [text] if n_done < n_episodes else []
            self._draw(position, figures, self._step / self._n_steps)
        else:
            self._draw(text, [], n_done / n_episodes)

    def message(self, text: str) -> None:
        """Replace the line by one that stays."""
        self._write(text)
        self.close()

    def end(self, step: int) -> None:
        """Leave the last state, and write how long it took."""
        self._draw_step(step)
        self.close()
        super().end(step)

    def close(self) -> None:
        """Leave the line as it is; what follows begins another one."""
        if self._is_drawn:
            print(file=self._stream, flush=True)
            self._is_drawn = False

    def _draw_step(self, step: int) -> None:
        self._step = step
        share = step / self._n_steps if self._n_steps else 1.0
        self._draw(self._position(step), self._figures(step), share)

    def _draw(self, position: str, figures: list[str], share: float) -> None:
        # In a narrow line the last figures are left out rather than cut.
        while figures and len("  ".join((position, *figures))) > self._columns - _NARROWEST_BAR:
            figures.pop()
        room = self._columns - len("  ".join((position, *figures)))
        n_cells = max(0, min(_WIDEST_BAR, room - 2))
        bar = "#" * round(share * n_cells)
        self._write(f"{position} {bar:.<{n_cells}} {'  '.join(figures)}")
        self._next_update = time.perf_counter() + SECONDS_BETWEEN_UPDATES

    @property
    def _columns(self) -> int:
        # A terminal wraps a line that fills it, and could not write it again.
        return self._width or shutil.get_terminal_size().columns - 1

    def _write(self, text: str) -> None:
        # With spaces over what a longer text has left.
        print(f"\r{text:{self._columns}}", end="", file=self._stream, flush=True)
        self._is_drawn = True


def choose_display(*, quiet: bool = False, stream: TextIO | None = None) -> Display:
    """Return the display that suits the output: one line in a terminal, otherwise plain lines.

    Args:
        quiet: Whether to show only warnings.
        stream: Where to write; standard error by default.
    """
    stream = sys.stderr if stream is None else stream
    if quiet:
        return Quiet(stream)
    is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    return StatusLine(stream) if is_terminal else PlainLines(stream)


def default_display() -> Display:
    """Return the default of `Trainer`: progress in a terminal or notebook, nothing elsewhere."""
    if _is_notebook():
        return StatusLine(sys.stdout, width=_NOTEBOOK_COLUMNS)
    return choose_display() if sys.stderr is not None and sys.stderr.isatty() else Silent()


def _is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")  # the shell of a terminal has none


def evaluation_text(split: str, n_done: int, n_episodes: int) -> str:
    """Return how far an evaluation is, such as `testing 300/1500 episodes`."""
    return f"{_PHASES.get(split, split)} {n_done}/{n_episodes} episodes"


def _format_speed(speed: float) -> str:
    return f"{speed:.3g} steps/s" if speed < 100 else f"{speed:.0f} steps/s"


def format_duration(seconds: float) -> str:
    """Return hours, minutes and seconds."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
