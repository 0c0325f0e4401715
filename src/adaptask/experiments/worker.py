"""A process that makes one run after the other, as long as the one that started it lives."""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.connection import Connection

from adaptask.experiments.jobs import Job, attempt
from adaptask.experiments.processes import end_with_parent


def serve(connection: Connection) -> None:
    """Make the runs that come through the connection; tell through it how they go."""
    end_with_parent()
    try:
        while True:
            job: Job = connection.recv()
            connection.send(("end", attempt(job, _Reports(connection))))
    except (EOFError, OSError, SystemExit):
        return


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
