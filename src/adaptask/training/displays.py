"""How a run shows its progress: a progress bar, plain lines, or nothing."""

from __future__ import annotations

import os
import sys
import time
import warnings
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

SECONDS_BETWEEN_UPDATES = 0.2
SECONDS_BETWEEN_LINES = 10.0
"""Between plain lines during an evaluation."""
_N_RECENT = 50
_NARROWEST_BAR = 6
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
        return

    def advance(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Show that `step` steps are done; called after every step, with metrics or without."""
        return

    def evaluate(self, split: str, n_done: int, n_episodes: int) -> None:
        """Show that so many episodes of an evaluation on `val` or `test` are done.

        It is called with 0 when the evaluation begins, and with `n_episodes` when it has ended.
        """
        return

    def message(self, text: str) -> None:
        """Show a line that stays."""
        return

    def warn(self, text: str) -> None:
        """Show a warning; the run continues."""
        return

    def end(self, step: int) -> None:
        """Show that training has ended, or was stopped, after `step` steps."""
        return

    def close(self) -> None:
        """Leave the terminal in order; called after a test, also one that was stopped."""
        return


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


class _Redrawn(PlainLines):
    """Shows one state that is drawn again, five times a second."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._is_training = False
        self._is_testing = False
        self._step = 0
        self._next_update = 0.0

    def begin(self, step: int, n_steps: int) -> None:
        """Start the clock and draw."""
        self._start_clock(step, n_steps)
        self._is_training = True
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
        if self._is_training:
            position = self._position(self._step + 1)  # the step has been made
            self._draw(position, [text] if n_done < n_episodes else [], self._step, self._n_steps)
        else:
            self._is_testing = True
            self._draw(text, [], n_done, n_episodes)
            if n_done == n_episodes:
                self.close()

    def end(self, step: int) -> None:
        """Leave the last state, and write how long it took."""
        if self._is_training:
            self._draw_step(step)
            self._close()
            self._is_training = False
            super().end(step)

    def close(self) -> None:
        """Leave the last state of a test."""
        if self._is_testing:
            self._close()
            self._is_testing = False

    def _draw_step(self, step: int) -> None:
        self._step = step
        self._draw(self._position(step), self._figures(step), step, self._n_steps)

    def _draw(self, position: str, figures: list[str], completed: int, total: int) -> None:
        self._next_update = time.perf_counter() + SECONDS_BETWEEN_UPDATES

    @abstractmethod
    def _close(self) -> None:
        """Leave what was drawn last."""


class NotebookLine(_Redrawn):
    """Rewrites one line of text in the output of a notebook."""

    def message(self, text: str) -> None:
        """Replace the line by one that stays."""
        self._write(text)
        self._close()

    def _draw(self, position: str, figures: list[str], completed: int, total: int) -> None:
        self._write("  ".join([f"step {position}" if figures else position, *figures]))
        super()._draw(position, figures, completed, total)

    def _write(self, text: str) -> None:
        # A notebook starts the line again at \r, but keeps the end of a longer one before.
        print(f"\r{text:{_NOTEBOOK_COLUMNS}}", end="", file=self._stream, flush=True)

    def _close(self) -> None:
        print(file=self._stream, flush=True)


class ProgressBar(_Redrawn):
    """Draws a bar on a terminal, with metrics, time left and steps per second.

    Raises:
        ModuleNotFoundError: If rich is not installed.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        super().__init__(stream)
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None

    def message(self, text: str) -> None:
        """Write a line above the bar."""
        self._console.print(text, markup=False)

    def _draw(self, position: str, figures: list[str], completed: int, total: int) -> None:
        if self._bar is None:
            self._bar = self._open_bar()
        # On a narrow terminal the last figures are left out rather than cut.
        room = self._console.width - _NARROWEST_BAR
        while figures and len("  ".join((position, *figures))) > room:
            figures.pop()
        self._bar.update(
            self._bar.task_ids[0],
            completed=completed,
            total=total,
            description=position,
            figures="  ".join(figures),
        )
        self._bar.refresh()
        super()._draw(position, figures, completed, total)

    def _open_bar(self) -> Progress:
        from rich.progress import BarColumn, Progress, TextColumn

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
            auto_refresh=False,  # no thread beside the training
            expand=True,
            # What is printed goes above the bar, unless it was sent elsewhere.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        bar.add_task("", total=None, figures="")
        bar.start()
        return bar

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def choose_display(*, quiet: bool = False, stream: TextIO | None = None) -> Display:
    """Return the display that suits the output: a bar on a terminal, otherwise plain lines.

    Args:
        quiet: Whether to show only warnings.
        stream: Where to write; standard error by default.
    """
    stream = sys.stderr if stream is None else stream
    if quiet:
        return Quiet(stream)
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        try:
            return ProgressBar(stream)
        except ModuleNotFoundError:
            pass  # as a library, the package works without rich
    return PlainLines(stream)


def default_display() -> Display:
    """Return the default of `Trainer`: progress in a terminal or notebook, nothing elsewhere."""
    if _is_notebook():
        return NotebookLine(sys.stdout)
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
