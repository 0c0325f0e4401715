"""`adaptask watch`: a table of the runs of a study, from another terminal.

Only files are read: no lock is taken and nothing is written. Nothing here needs torch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from adaptask.report.grouping import find_study
from adaptask.report.run import FAILURE, PRUNED, Run

SECONDS_BETWEEN_VIEWS = 2.0
_WRITTEN = ("config.toml", "run.json", "metrics.jsonl", "last.pt", "best.pt", "test.json")
"""Files that a run writes."""
_FIGURES = {"steps": 9, "loss": 6, "validation": 10, "test": 6, "written": 11}
"""Columns with figures, and their widths."""
_STYLES = {
    "running": "cyan",
    "failed": "red",
    "waiting": "dim",
    "pruned": "dim",
    "finished": "green",
}
"""All states, in the order in which they are shown: a terminal may have no room for all runs."""


@dataclass(frozen=True)
class RunState:
    """The progress of a run, read from its files."""

    name: str
    state: str
    """A key of `_STYLES`."""
    steps: str = "-"
    loss: str = "-"
    """The last training loss."""
    validation: str = "-"
    """The last validation accuracy."""
    test: str = "-"
    """The test accuracy."""
    written: float | None = None
    """Time of the last change of a file; None if there is no file yet."""
    message: str = ""
    """Why it failed."""


def watch(folder: Path, *, once: bool = False, console: Console | None = None) -> None:
    """Show a run or a study until all runs have ended, or until Ctrl-C.

    Args:
        folder: The folder of a run, of a study, or of several runs.
        once: Show the table once and return, as without a terminal.
        console: Where to write; standard output by default.

    Raises:
        ArgumentError: If there is no such folder, or there are no runs in it.
        StateError: If `study.json` is damaged, or no run can be read.
    """
    console = console or Console(highlight=False)
    is_terminal = console.is_terminal and not console.is_dumb_terminal
    runs = read_runs(folder)
    if once or not is_terminal:
        if not is_terminal:
            console.width = 1000  # a file or a pipe has no width to fit into
        console.print(_view(folder, runs))
        return
    try:
        with Live(_view(folder, runs), console=console, auto_refresh=False) as live:
            while any(run.state in ("running", "waiting") for run in runs):
                time.sleep(SECONDS_BETWEEN_VIEWS)
                runs = read_runs(folder)
                live.update(_view(folder, runs), refresh=True)
    except KeyboardInterrupt:
        pass  # the usual way to leave


def read_runs(folder: Path) -> list[RunState]:
    """Return the progress of the runs in a folder, ordered by state, then as in the study.

    Raises:
        ArgumentError: If there is no such folder, or there are no runs in it.
        StateError: If `study.json` is damaged, or no run can be read.
    """
    runs = (run for arm in find_study(folder).arms for run in arm.runs)
    found = []
    for run in runs:
        modified = (_modified(run.path / name) for name in (*_WRITTEN, FAILURE, PRUNED))
        found.append(_read_run(run.path, run.name, tuple(modified)))
    states = list(_STYLES)
    return sorted(found, key=lambda run: states.index(run.state))


@lru_cache(maxsize=1000)
def _read_run(path: Path, name: str, modified: tuple[float, ...]) -> RunState:
    """Return the progress of a run; its files are read again only if one has changed."""
    *writes, failed, pruned = modified
    written = max(writes)
    run = Run(path, name=name)
    if not written:
        state = "failed" if failed else "pruned" if pruned else "waiting"
        return RunState(name, state, message=run.failure or "")
    _, losses = run.curve("train", "loss")
    _, accuracies = run.curve("val", "accuracy")
    steps, test = f"{run.steps_done}/{run.n_steps}", run.test
    # A run made in Python is tested only if somebody asks for it, and has no settings for that.
    is_done, is_tested = run.steps_done >= run.n_steps > 0, "evaluation" in run.settings
    message = ""
    if run.damage:
        state, message = "failed", next(iter(run.damage.values()))
    elif run.is_finished or (is_done and not is_tested):
        state = "finished"
    elif pruned:
        state = "pruned"
    elif failed >= written:  # otherwise it is being tried again
        state, message = "failed", run.failure or ""
    else:
        state = "running"
    return RunState(
        name,
        state,
        steps=steps,
        loss=f"{losses[-1]:.3f}" if len(losses) else "-",
        validation=f"{accuracies[-1]:.1%}" if len(accuracies) else "-",
        test="-" if test is None else f"{test.accuracies.mean():.1%}",
        written=written,
        message=message,
    )


def _view(folder: Path, runs: Sequence[RunState]) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    # In a narrow terminal the names of runs take a second line; they and the figures stay whole.
    table.add_column("run")
    table.add_column("state", no_wrap=True, min_width=8)
    for heading, width in _FIGURES.items():
        table.add_column(heading, no_wrap=True, justify="right", min_width=width)
    for run in runs:
        figures = (run.steps, run.loss, run.validation, run.test, _age(run.written))
        table.add_row(Text(run.name), Text(run.state, style=_STYLES[run.state]), *figures)
    counts = Counter(run.state for run in runs)
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    # Of a traceback, the last line has the error.
    messages = [
        Text(f"{run.name}: {run.message.splitlines()[-1]}", style="red")
        for run in runs
        if run.message
    ]
    return Group(Text(str(folder), style="bold"), Text(summary), table, *messages)


def _age(written: float | None) -> str:
    if written is None:
        return "-"
    return f"{timedelta(seconds=max(0, int(time.time() - written)))} ago"


def _modified(path: Path) -> float:
    """Return when a file was last written; 0 if there is none."""
    try:
        return max(1.0, path.stat().st_mtime)  # copied files may have the time 0
    except OSError:
        return 0.0
