"""How many runs that are being followed are shown: a line a run, and how far all are."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from adaptask.experiments.watching.following import SETTLED, FollowedRun, Pace
from adaptask.experiments.watching.run_view import STYLES, duration
from adaptask.report.study import Study

_BAR_WIDTH, _WIDEST_BAR = 16, 100
_ORDER = ("running", "stopped", "silent", "failed", "finished", "pruned", "waiting")
_LINES_AROUND = 7


class FollowedStudy:
    """The runs of a study.

    Args:
        folder: Of the study.
        study: What was planned.
        known: Runs that are followed already, by folder.
    """

    def __init__(
        self, folder: Path, study: Study, known: dict[Path, FollowedRun] | None = None
    ) -> None:
        self.folder, self.study = folder, study
        self.runs: list[tuple[str, int, FollowedRun]] = []
        for arm in study.arms:
            for planned in arm.runs:
                run = (known or {}).get(planned.path) or FollowedRun(planned.path)
                self.runs.append((arm.name, planned.seed, run))
        self._pace = Pace()

    def poll(self) -> None:
        """Read what is new.

        Raises:
            StateError: If a file is damaged.
        """
        for _, _, run in self.runs:
            run.poll()
        self._pace.take(time.monotonic(), sum(self._steps(run)[0] for _, _, run in self.runs))

    @property
    def is_settled(self) -> bool:
        """Whether all runs have ended."""
        return all(run.state in SETTLED for _, _, run in self.runs)

    @property
    def counts(self) -> Counter[str]:
        """How many runs are in which state."""
        return Counter(run.state for _, _, run in self.runs)

    def progress(self) -> tuple[int, int]:
        """Return how many steps are done of how many; a run that ended early has none left."""
        steps = [self._steps(run) for _, _, run in self.runs]
        known = [total for _, total in steps if total]
        usual = round(statistics.median(known)) if known else 0
        return sum(done for done, _ in steps), sum(total or usual for _, total in steps)

    def seconds_left(self) -> float | None:
        """Return how long all the rest will take; None where nothing is at work or tells."""
        running = [run for _, _, run in self.runs if run.state == "running"]
        if not running:
            return None
        done, total = self.progress()
        if (pace := self._pace.steps_per_second) is not None:
            return (total - done) / pace
        seconds = [run.record.seconds_per_step for run in running]
        paces = [1 / s for s in seconds if s]
        return (total - done) / sum(paces) if paces else None

    def _steps(self, run: FollowedRun) -> tuple[int, int]:
        if not run.record.has_begun:
            return 0, 0
        done = run.record.steps_done
        return done, done if run.state in ("failed", "pruned") else run.record.n_steps


def study_view(study: FollowedStudy, console: Console) -> RenderableType:
    """Return the view of a study; what is going on comes first where not all has room."""
    done, total = study.progress()
    bar = ProgressBar(
        total=max(1, total),
        completed=done,
        width=min(console.width - 10, _WIDEST_BAR),
        complete_style="cyan",
    )
    overall = Table.grid(padding=(0, 2, 0, 0))
    overall.add_row(bar, f"{100 * done // max(1, total)} %")
    runs = study.runs
    room = max(3, console.height - _LINES_AROUND)
    if len(runs) > room:
        order = {state: i for i, state in enumerate(_ORDER)}
        newest = sorted(runs, key=lambda r: (order[r[2].state], -(r[2].last_write or 0.0)))[:room]
        runs = [run for run in runs if run in newest]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=False)
    table.add_column("arm", no_wrap=True, overflow="ellipsis", ratio=1)
    for name in ("seed", "progress", "", "val %", "state"):
        table.add_column(
            name, no_wrap=True, justify="right" if name in ("seed", "val %") else "left"
        )
    for arm, seed, run in runs:
        table.add_row(*_row(arm, seed, run))
    parts: list[RenderableType] = [
        Text(f"{study.folder}  {study.study.title}", style="bold", overflow="ellipsis"),
        overall,
        Text(summary(study)),
        Text(),
        table,
    ]
    if hidden := len(study.runs) - len(runs):
        parts.append(Text(f"and {hidden} more runs", style="dim"))
    return Group(*parts)


def study_lines(study: FollowedStudy) -> list[str]:
    """Return what is known of a study as plain lines."""
    done, total = study.progress()
    lines = [f"{study.folder}: {study.study.title}", f"{done}/{total} steps  {summary(study)}"]
    for arm, seed, run in study.runs:
        steps = f"{run.record.steps_done}/{run.record.n_steps}" if run.record.has_begun else "-"
        best = _best(run)
        validation = "-" if best is None else f"{best:.2f} %"
        lines.append("  ".join((f"{arm}, seed {seed}:", steps, validation, _state_text(run))))
    return lines


def summary(study: FollowedStudy) -> str:
    """Return how many runs are in which state, and how long the rest will take."""
    counts = study.counts
    texts = [f"{counts[state]} {state}" for state in _ORDER if counts[state]]
    left = study.seconds_left()
    if left is not None and not study.is_settled:
        texts.append(f"{duration(left)} left")
    return "  ".join(texts)


def _row(arm: str, seed: int, run: FollowedRun) -> tuple[RenderableType, ...]:
    record = run.record
    total = record.n_steps if record.has_begun else 1
    done = record.steps_done
    last = record.curve("val", "accuracy")[1]
    return (
        Text(arm),
        str(seed),
        ProgressBar(
            total=max(1, total),
            completed=done,
            width=_BAR_WIDTH,
            complete_style=STYLES[run.state],
            finished_style=STYLES[run.state],
        ),
        f"{100 * done // max(1, total):3d} %",
        f"{100 * last[-1]:.1f}" if last.size else "-",
        Text(_state_text(run), style=STYLES[run.state]),
    )


def _state_text(run: FollowedRun) -> str:
    if run.state in ("stopped", "silent") and run.last_write is not None:
        since = time.strftime("%H:%M", time.localtime(run.last_write))
        return f"{run.state} since {since}"
    return run.state


def _best(run: FollowedRun) -> float | None:
    accuracies = run.record.curve("val", "accuracy")[1]
    return 100 * float(accuracies.max()) if accuracies.size else None
