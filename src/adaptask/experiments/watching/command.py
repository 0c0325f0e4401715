"""What `adaptask watch` does: shows a run or a study live, from its files alone."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from adaptask.experiments.watching.following import SETTLED, FollowedRun
from adaptask.experiments.watching.run_view import run_lines, run_view
from adaptask.experiments.watching.study_view import FollowedStudy, study_lines, study_view
from adaptask.report.grouping import study_of_runs
from adaptask.report.study import FILE, read_study

SECONDS_BETWEEN_VIEWS = 0.5
_SHARE_OF_TIME = 0.05
"""Of a processor, at most: it is needed for training."""
_DEEPEST = 4
"""How many folders below runs are looked for, where no study says where they are."""


def watch(folder: Path, *, once: bool = False, console: Console | None = None) -> bool:
    """Show a run or a study until it ends, or until Ctrl-C; return whether there was one.

    Where the output is no terminal it is shown once, as plain lines.

    Args:
        folder: Of a run or a study; it need not exist yet.
        once: Whether to show it once only.
        console: Where to; standard output where none is given.

    Raises:
        StateError: If a file is damaged.
    """
    console = console or Console(highlight=False)
    watched = Watched(folder)
    watched.poll()
    if not console.is_terminal or console.is_dumb_terminal:
        for line in watched.lines():
            console.print(line, markup=False, soft_wrap=True)
        return watched.is_found
    if once:
        console.print(watched.view(console) if watched.is_found else watched.lines()[0])
        return watched.is_found
    # As long as there is nothing to see, the cursor blinks below the view.
    with Live(watched.view(console), console=console, auto_refresh=False) as live:
        try:
            taken = 0.0
            while not watched.is_settled:
                time.sleep(max(SECONDS_BETWEEN_VIEWS, taken / _SHARE_OF_TIME))
                start = time.perf_counter()
                watched.poll()
                live.update(watched.view(console), refresh=True)
                taken = time.perf_counter() - start
        except KeyboardInterrupt:
            pass  # how one leaves
    return watched.is_found


class Watched:
    """A folder that is, or will be, a run or a study.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: FollowedRun | FollowedStudy | None = None
        self._source: object = None

    def poll(self) -> None:
        """Find out what it is, if need be, and read what is new.

        Raises:
            StateError: If a file is damaged.
        """
        self._look()
        if self._found is not None:
            self._found.poll()

    @property
    def is_found(self) -> bool:
        """Whether there is a run or a study by now."""
        return self._found is not None

    @property
    def is_settled(self) -> bool:
        """Whether nothing more will happen."""
        if isinstance(self._found, FollowedRun):
            return self._found.state in SETTLED
        return self._found is not None and self._found.is_settled

    def view(self, console: Console) -> RenderableType:
        """Return what a terminal shows."""
        if isinstance(self._found, FollowedRun):
            return run_view(self._found, console)
        if self._found is not None:
            return study_view(self._found, console)
        return Text(f"{self._nothing()}; waiting.", style="dim")

    def lines(self) -> list[str]:
        """Return what is shown elsewhere."""
        if isinstance(self._found, FollowedRun):
            return run_lines(self._found)
        if self._found is not None:
            return study_lines(self._found)
        return [f"{self._nothing()}."]

    def _nothing(self) -> str:
        if self.folder.exists():
            return f"{self.folder} holds no run" + (" yet" if self.folder.is_dir() else "")
        return f"{self.folder} does not exist yet"

    def _look(self) -> None:
        """Follow what the folder has by now: a run, a planned study, or runs below it."""
        if isinstance(self._found, FollowedRun):
            return
        if (self.folder / "config.toml").exists():
            self._found = FollowedRun(self.folder)
            return
        try:
            status = (self.folder / FILE).stat()
            source: object = status.st_mtime_ns, status.st_size
        except OSError:
            source = _runs_below(self.folder)
        if not source or source == self._source:
            return
        known = {}
        if isinstance(self._found, FollowedStudy):
            known = {run.folder: run for _, _, run in self._found.runs}
        if isinstance(source, list):
            study = study_of_runs(self.folder, source)
        else:
            study = read_study(self.folder)
        self._found, self._source = FollowedStudy(self.folder, study, known), source


def _runs_below(folder: Path) -> list[Path]:
    patterns = ("/".join(["*"] * depth) + "/config.toml" for depth in range(1, _DEEPEST + 1))
    return sorted(path.parent for pattern in patterns for path in folder.glob(pattern))
