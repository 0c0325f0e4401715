"""A process that makes one run after the other, as long as the one that started it lives."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait

from adaptask.experiments.jobs import Job, attempt


def serve(connection: Connection) -> None:
    """Make the runs that come through the connection; tell through it how they go."""
    _end_with_parent()
    try:
        while True:
            job: Job = connection.recv()
            connection.send(("end", attempt(job, _Reports(connection))))
    except (EOFError, OSError, SystemExit):
        return


def _end_with_parent() -> None:
    """End at once when the parent has; what is being written is written whole or not at all."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Reports:
    """The display of a run in another process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin_job(self, job: Job) -> None:
        """Do nothing: who gave the job knows."""

    def advance_job(self, job: Job, step: int, metrics: Mapping[str, float]) -> None:
        """Tell how far it is."""
        self._connection.send(("advance", step, dict(metrics)))

    def end_job(self, job: Job, failure: str | None) -> None:
        """Do nothing: the end is told by who runs the job."""

    def warn(self, text: str) -> None:
        """Tell what has gone wrong."""
        self._connection.send(("warn", text))
