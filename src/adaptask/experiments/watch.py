"""`adaptask watch`: the runs of a study in a table, from another terminal.

Only files are read: no lock is taken and nothing is written. Nothing here needs torch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from adaptask.errors import StateError
from adaptask.parsing import parse_json
from adaptask.report.records import RunRecord
from adaptask.report.study import find_study

SECONDS_BETWEEN_VIEWS = 2.0
RECENT_SECONDS = 60.0
"""A run that has written nothing for so long is silent, not running."""
_CPU_SHARE = 0.05
"""Of one core, at most: the cores are needed for training."""
_TAIL_BYTES = 1 << 16
"""How much of the end of `metrics.jsonl` is read: hundreds of records."""
_LINES_AROUND = 6
_WRITTEN = ("config.toml", "metrics.jsonl", "last.pt", "best.pt", "test.json")
_STYLES = {
    "running": "cyan",
    "silent": "yellow",
    "failed": "red",
    "damaged": "red",
    "waiting": "dim",
    "finished": "green",
    "pruned": "dim",
}
"""All states, in the order in which runs are shown where there is no room for all."""
_GOES_ON = ("running", "silent", "waiting")


@dataclass(frozen=True)
class RunState:
    """Where a run stands, as its files say."""

    name: str
    state: str
    """A key of `_STYLES`."""
    age: float | None = None
    """Seconds since something was written; None if nothing was."""
    n_steps: int | None = None
    """Planned steps."""
    last: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The last record of each split in `metrics.jsonl`."""
    test: float | None = None
    """Test accuracy, 0 to 1."""
    message: str = ""
    """Why it failed."""


def watch(folder: Path, *, once: bool = False, console: Console | None = None) -> None:
    """Show a run or a study until all runs have ended, or until Ctrl-C.

    Args:
        folder: Of a run, of a study, or of any runs.
        once: Whether to show it once only, as is done if the output is not a terminal.
        console: Where to show it; standard output by default.

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
    room = max(3, console.height - _LINES_AROUND)
    try:
        with Live(_view(folder, runs, room), console=console, auto_refresh=False) as live:
            took = 0.0
            while any(run.state in _GOES_ON for run in runs):
                time.sleep(max(SECONDS_BETWEEN_VIEWS, took / _CPU_SHARE))
                start = time.perf_counter()
                runs = read_runs(folder)
                live.update(_view(folder, runs, room), refresh=True)
                took = time.perf_counter() - start
    except KeyboardInterrupt:
        pass  # the usual way to leave


def read_runs(folder: Path) -> list[RunState]:
    """Return where the runs in a folder stand, in the order of the study.

    Raises:
        ArgumentError: If there is no such folder, or there are no runs in it.
        StateError: If `study.json` is damaged, or no run can be read.
    """
    return [
        _read_run(f"{arm.name}, seed {run.seed}", folder / run.folder)
        for arm in find_study(folder).arms
        for run in arm.runs
    ]


def _read_run(name: str, folder: Path) -> RunState:
    run = RunRecord(folder)
    writes = [t for t in map(_modified, (folder / file for file in _WRITTEN)) if t is not None]
    failed = _modified(folder / "failure.txt")
    if not writes:
        state = "waiting" if failed is None else "failed"
        return RunState(name, state, message=run.failure or "")
    age = max(0.0, time.time() - max(writes))
    try:
        if run.test is not None:
            state = "finished"
        elif run.pruned is not None:
            state = "pruned"
        elif failed is not None and failed >= max(writes):  # else it is being tried again
            state = "failed"
        else:
            state = "running" if age < RECENT_SECONDS else "silent"
        return RunState(
            name,
            state,
            age=age,
            n_steps=run.n_steps,
            last=_last_records(folder / "metrics.jsonl"),
            test=None if run.test is None else float(run.test.accuracies.mean()),
            message=(run.failure or "") if state == "failed" else "",
        )
    except StateError as error:
        return RunState(name, "damaged", age=age, message=str(error))


def _last_records(path: Path) -> dict[str, dict[str, Any]]:
    """Return the last record of each split, as far as the end of the file has one."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]  # the last line may be incomplete
    except OSError:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for line in reversed(lines):
        try:
            record = parse_json(line)
        except ValueError:
            continue  # cut off where reading began, or damaged, which the report will say
        if isinstance(record, dict) and type(record.get("step")) is int:
            found.setdefault(str(record.get("split")), record)
        if found.keys() >= {"train", "val"}:
            break
    return found


def _view(folder: Path, runs: Sequence[RunState], room: int | None = None) -> RenderableType:
    """Return the table; of more runs than there is room for, those that go on are shown."""
    states = list(_STYLES)
    chosen = sorted(runs, key=lambda run: states.index(run.state))[:room]
    shown = [run for run in runs if run in chosen]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("run", overflow="ellipsis")
    table.add_column("state", no_wrap=True)
    for heading in ("steps", "loss", "validation", "test", "written"):
        table.add_column(heading, no_wrap=True, justify="right")
    for run in shown:
        table.add_row(*_row(run))
    counts = Counter(run.state for run in runs)
    summary = ", ".join(f"{counts[state]} {state}" for state in states if counts[state])
    parts: list[RenderableType] = [Text(str(folder), style="bold"), Text(summary), table]
    if len(shown) < len(runs):
        parts.append(Text(f"and {len(runs) - len(shown)} more", style="dim"))
    for run in shown:
        if lines := run.message.strip().splitlines():
            # Of a traceback, the last line has the error.
            parts.append(Text(f"{run.name}: {lines[-1]}", style=_STYLES[run.state]))
    return Group(*parts)


def _row(run: RunState) -> tuple[RenderableType, ...]:
    age = "" if run.age is None else _duration(run.age)
    done = max((record["step"] for record in run.last.values()), default=0)
    state = f"silent for {age}" if run.state == "silent" else run.state
    return (
        Text(run.name, no_wrap=True),
        Text(state, style=_STYLES[run.state]),
        "-" if run.n_steps is None else f"{done}/{run.n_steps}",
        _number(run.last.get("train", {}).get("loss"), "{:.3f}"),
        _number(run.last.get("val", {}).get("accuracy"), "{:.1%}"),
        _number(run.test, "{:.1%}"),
        f"{age} ago" if age else "-",
    )


def _number(value: object, template: str) -> str:
    return template.format(value) if isinstance(value, float) else "-"


def _duration(seconds: float) -> str:
    """Return a time span in one unit.

    >>> _duration(42), _duration(150), _duration(9000)
    ('42 s', '2 min', '2 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds // 60:.0f} min" if seconds < 3600 else f"{seconds // 3600:.0f} h"


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
