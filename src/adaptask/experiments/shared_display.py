"""One display of many runs for several threads, which tell it things one at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from adaptask.experiments.jobs import Job, JobDisplay


class SharedDisplay:
    """Hands everything on to a display, from one thread at a time.

    Args:
        display: Shows all runs.
        quiet: Whether to hand on only what goes wrong.
    """

    def __init__(self, display: JobDisplay, *, quiet: bool = False) -> None:
        self._display, self._quiet = display, quiet
        self._lock = threading.Lock()

    def begin_job(self, job: Job) -> None:
        """Hand on that a run begins."""
        if not self._quiet:
            with self._lock:
                self._display.begin_job(job)

    def advance_job(self, job: Job, step: int, metrics: Mapping[str, float]) -> None:
        """Hand on how far it is."""
        if not self._quiet:
            with self._lock:
                self._display.advance_job(job, step, metrics)

    def end_job(self, job: Job, failure: str | None) -> None:
        """Hand on how it ended."""
        if not self._quiet:
            with self._lock:
                self._display.end_job(job, failure)

    def warn(self, text: str) -> None:
        """Hand on what has gone wrong."""
        with self._lock:
            self._display.warn(text)
