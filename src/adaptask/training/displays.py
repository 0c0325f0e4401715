"""How a run shows its progress: a progress bar, plain lines, or nothing."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TextIO

from adaptask.arguments import check_flag, check_members

if TYPE_CHECKING:
    from rich.progress import Progress

SECONDS_BETWEEN_UPDATES = 0.2
_RECENT = 50
_NARROWEST_BAR = 6


class Display(Protocol):
    """What the trainer tells whoever is watching; a display that inherits it shows nothing.

    `step` is the number of steps made so far: a new run begins at 0 and ends at `n_steps`. Metrics
    are plain numbers; those called `loss`, `accuracy` and `val_accuracy` are shown, and one that
    is not given keeps its last value.
    """

    def begin(self, step: int, n_steps: int) -> None:
        """Start to show a run that goes from `step` to `n_steps`."""
        return

    def advance(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Show that `step` steps are done; called after every step, with metrics or without."""
        return

    def message(self, text: str) -> None:
        """Show a line that stays."""
        return

    def warn(self, text: str) -> None:
        """Show what has gone wrong, though the run goes on."""
        return

    def end(self, step: int) -> None:
        """Show that the run has ended, or was stopped, after `step` steps."""
        return


class Unseen(Display):
    """Shows nothing at all, for those of several processes that are not the first."""


class Silent(Display):
    """Shows nothing; what goes wrong becomes a Python warning."""

    def warn(self, text: str) -> None:
        """Give a warning."""
        warnings.warn(text, stacklevel=3)


class Quiet(Silent):
    """Writes only what goes wrong to a stream."""

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
        # Of the last updates, from which the pace is computed, validation included.
        self._points: deque[tuple[float, int]] = deque(maxlen=_RECENT)
        self._start, self._first, self._n_steps = 0.0, 0, 0

    def begin(self, step: int, n_steps: int) -> None:
        """Start the clock, and say where a resumed run stands."""
        self._start_clock(step, n_steps)
        if step:
            self.message(f"going on from step {step} of {n_steps}")

    def advance(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Write a line if there are metrics."""
        if metrics is not None:
            self._metrics.update(metrics)
            self.message("  ".join([f"step {self._position(step)}", *self._figures(step)]))

    def message(self, text: str) -> None:
        """Write a line."""
        print(text, file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        """Write a line."""
        self.message(text)

    def end(self, step: int) -> None:
        """Write how long it took."""
        seconds, done = time.perf_counter() - self._start, step - self._first
        pace = f", {_pace(done / seconds)}" if done and seconds else ""
        steps = "1 step" if done == 1 else f"{done} steps"
        self.message(f"{steps} in {duration(seconds)}{pace}")

    def _start_clock(self, step: int, n_steps: int) -> None:
        self._start, self._first, self._n_steps = time.perf_counter(), step, n_steps
        self._metrics.clear()
        self._points.clear()
        self._points.append((self._start, step))

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
        self._points.append((time.perf_counter(), step))
        (then, before), (now, after) = self._points[0], self._points[-1]
        if after > before and now > then:
            pace = (after - before) / (now - then)
            figures.append(f"{duration((self._n_steps - step) / pace)} left")
            figures.append(_pace(pace))
        return figures


class ProgressBar(PlainLines):
    """Draws a bar on a terminal with steps per second, metrics and time left, five times a second.

    Raises:
        ModuleNotFoundError: If rich is not installed.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        super().__init__(stream)
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._next_update = 0.0

    def begin(self, step: int, n_steps: int) -> None:
        """Start the clock and draw the bar."""
        from rich.progress import BarColumn, Progress, TextColumn

        self._start_clock(step, n_steps)
        self._bar = Progress(
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
        self._bar.add_task("", total=n_steps, completed=step, figures="")
        self._bar.start()
        self._draw(step)

    def advance(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Keep the metrics; draw the bar again if it is time."""
        if metrics is not None:
            self._metrics.update(metrics)
        if time.perf_counter() >= self._next_update:
            self._draw(step)

    def message(self, text: str) -> None:
        """Write a line above the bar."""
        self._console.print(text, markup=False)

    def end(self, step: int) -> None:
        """Leave the bar as it is at the end, and write how long it took."""
        if self._bar is not None:
            self._draw(step)
            self._bar.stop()
            self._bar = None
            super().end(step)

    def _draw(self, step: int) -> None:
        if self._bar is not None:
            position, figures = self._position(step), self._figures(step)
            # On a narrow terminal the last figures are left out rather than cut.
            room = self._console.width - _NARROWEST_BAR
            while figures and len("  ".join((position, *figures))) > room:
                figures.pop()
            self._bar.update(
                self._bar.task_ids[0],
                completed=step,
                description=position,
                figures="  ".join(figures),
            )
            self._bar.refresh()
        self._next_update = time.perf_counter() + SECONDS_BETWEEN_UPDATES


def _pace(pace: float) -> str:
    return f"{pace:.3g} steps/s" if pace < 100 else f"{pace:.0f} steps/s"


def duration(seconds: float) -> str:
    """Return hours, minutes and seconds."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def choose_display(*, quiet: bool = False, stream: TextIO | None = None) -> Display:
    """Return the display that suits the output: a bar on a terminal, else plain lines.

    Args:
        quiet: Whether to show only what goes wrong.
        stream: Where to; by default standard error.

    Raises:
        ArgumentError: If an argument cannot be used.
    """
    stream = sys.stderr if stream is None else stream
    check_members("stream", stream, "write", "flush", "isatty")
    if check_flag("quiet", quiet):
        return Quiet(stream)
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        try:
            return ProgressBar(stream)
        except ModuleNotFoundError:
            pass  # as a library, the package works without rich
    return PlainLines(stream)
