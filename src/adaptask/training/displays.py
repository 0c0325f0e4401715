"""How a run shows where it stands: a progress bar, plain lines, or nothing."""

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
    """What the trainer tells whoever is watching.

    Steps are counted as done: a run that begins anew begins at 0 and ends at `n_steps`. Metrics
    are plain numbers; those called `loss`, `accuracy` and `val_accuracy` are shown, and one that
    is not given keeps its last value.
    """

    def begin(self, step: int, n_steps: int) -> None:
        """Take in that a run goes on from `step` to `n_steps`."""
        ...

    def advance(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Take in that `step` steps are done; called after every one, with metrics or without."""
        ...

    def message(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def warn(self, text: str) -> None:
        """Show what has gone wrong, though the run goes on."""
        ...

    def end(self, step: int) -> None:
        """Take in that the run has ended, or was stopped, after `step` steps."""
        ...


class Silent:
    """Shows nothing; what goes wrong becomes a Python warning."""

    def begin(self, step: int, n_steps: int) -> None:
        """Do nothing."""

    def advance(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Do nothing."""

    def message(self, text: str) -> None:
        """Do nothing."""

    def warn(self, text: str) -> None:
        """Give a warning."""
        warnings.warn(text, stacklevel=3)

    def end(self, step: int) -> None:
        """Do nothing."""


class Unseen(Silent):
    """Shows nothing at all: of several processes, another one speaks."""

    def warn(self, text: str) -> None:
        """Do nothing."""


class Quiet(Silent):
    """Shows only what goes wrong.

    Args:
        stream: Where to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def warn(self, text: str) -> None:
        """Write a line."""
        _write_line(self._stream, text)


class PlainLines:
    """Writes a line whenever there are metrics, for output that is no terminal.

    Args:
        stream: Where to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._figures = _Figures()

    def begin(self, step: int, n_steps: int) -> None:
        """Start the clock, and say where a resumed run stands."""
        self._figures.begin(step, n_steps)
        if step:
            self.message(f"going on from step {step} of {n_steps}")

    def advance(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Write a line if there are metrics."""
        if metrics is not None:
            figures = self._figures
            figures.take(step, metrics)
            self.message("  ".join([f"step {figures.position(step)}", *figures.texts(step)]))

    def message(self, text: str) -> None:
        """Write a line."""
        _write_line(self._stream, text)

    warn = message

    def end(self, step: int) -> None:
        """Say how long it took."""
        self.message(self._figures.summary(step))


class ProgressBar:
    """Draws a bar with steps a second, loss, accuracies and time left; five times a second.

    Args:
        stream: A terminal.

    Raises:
        ModuleNotFoundError: If rich is not installed.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._figures = _Figures()
        self._next_update = 0.0

    def begin(self, step: int, n_steps: int) -> None:
        """Start the clock and draw the bar."""
        from rich.progress import BarColumn, Progress, TextColumn

        self._figures.begin(step, n_steps)
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
        """Take in the metrics; draw anew if it is time."""
        if metrics is not None:
            self._figures.metrics.update(metrics)
        if time.perf_counter() >= self._next_update:
            self._draw(step)

    def message(self, text: str) -> None:
        """Write a line above the bar."""
        self._console.print(text, markup=False)

    warn = message

    def end(self, step: int) -> None:
        """Leave the bar as it stands at the end, and say how long it took."""
        if self._bar is not None:
            self._draw(step)
            self._bar.stop()
            self._bar = None
            self.message(self._figures.summary(step))

    def _draw(self, step: int) -> None:
        if self._bar is not None:
            self._figures.take(step, {})
            position, texts = self._figures.position(step), self._figures.texts(step)
            # On a narrow terminal the last figures are left out rather than cut.
            room = self._console.width - _NARROWEST_BAR
            while texts and len("  ".join((position, *texts))) > room:
                texts.pop()
            self._bar.update(
                self._bar.task_ids[0],
                completed=step,
                description=position,
                figures="  ".join(texts),
            )
            self._bar.refresh()
        self._next_update = time.perf_counter() + SECONDS_BETWEEN_UPDATES


def _write_line(stream: TextIO, text: str) -> None:
    stream.write(text + "\n")
    stream.flush()


class _Figures:
    """The last metrics, and the pace of the last updates, validation and all."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self._points: deque[tuple[float, int]] = deque(maxlen=_RECENT)
        self._start, self._first, self._n_steps = 0.0, 0, 0

    def begin(self, step: int, n_steps: int) -> None:
        self._start, self._first, self._n_steps = time.perf_counter(), step, n_steps
        self.metrics.clear()
        self._points.clear()
        self._points.append((self._start, step))

    def take(self, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics.update(metrics)
        self._points.append((time.perf_counter(), step))

    def position(self, step: int) -> str:
        return f"{step:{len(str(self._n_steps))}}/{self._n_steps}"

    def texts(self, step: int) -> list[str]:
        """Return what is known by now, each with its name or unit."""
        known, texts = self.metrics, []
        if "loss" in known:
            texts.append(f"loss {known['loss']:.3f}")
        if "accuracy" in known:
            texts.append(f"acc {100 * known['accuracy']:.1f} %")
        if "val_accuracy" in known:
            texts.append(f"val {100 * known['val_accuracy']:.1f} %")
        (then, before), (now, after) = self._points[0], self._points[-1]
        if after > before and now > then:
            pace = (after - before) / (now - then)
            texts.append(f"{duration((self._n_steps - step) / pace)} left")
            texts.append(_pace(pace))
        return texts

    def summary(self, step: int) -> str:
        seconds, done = time.perf_counter() - self._start, step - self._first
        pace = f", {_pace(done / seconds)}" if done and seconds else ""
        steps = "1 step" if done == 1 else f"{done} steps"
        return f"{steps} in {duration(seconds)}{pace}"


def _pace(pace: float) -> str:
    return f"{pace:.3g} steps/s" if pace < 100 else f"{pace:.0f} steps/s"


def duration(seconds: float) -> str:
    """Return hours, minutes and seconds."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def choose_display(*, quiet: bool = False, stream: TextIO | None = None) -> Display:
    """Return what suits the output: a bar on a terminal, else plain lines, or next to nothing.

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
