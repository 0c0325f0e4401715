"""Runs in several processes at once, one after the other in each."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from adaptask.experiments.jobs import Job, JobDisplay, failed
from adaptask.experiments.processes import how_it_ended, let_them_save, start_process
from adaptask.experiments.worker import serve
from adaptask.training.interruption import StopSignals, obey

_SECONDS_BETWEEN_LOOKS = 0.2


class Pool:
    """Processes that each make one run after the other.

    They end with this one, however it ends: a run that is cut off goes on from its checkpoint.
    """

    def __init__(self, jobs: Sequence[Job], display: JobDisplay, n_workers: int) -> None:
        self._waiting = deque(jobs)
        self._display = display
        self._failures: dict[str, str] = {}
        self._taken_up: set[str] = set()
        self._busy: dict[Connection, tuple[BaseProcess, Job]] = {}
        self._n_workers = n_workers

    def run(self) -> dict[str, str]:
        """Make the runs; return why those failed that did, by their names.

        Raises:
            KeyboardInterrupt: After Ctrl-C; runs in progress have saved where they are.
        """
        try:
            with StopSignals() as stop:
                for _ in range(self._n_workers):
                    self._hire()
                while self._busy and stop.received is None:
                    for connection in wait(list(self._busy), timeout=_SECONDS_BETWEEN_LOOKS):
                        self._hear(connection)  # type: ignore[arg-type]
            if stop.received is not None:
                obey(stop.received)
        except BaseException:
            let_them_save([process for process, _ in self._busy.values()])
            raise
        return self._failures

    def _hire(self) -> None:
        """Start a process, if there is something left to do."""
        if not self._waiting:
            return
        process, connection = start_process(serve)
        self._give(connection, process)

    def _give(self, connection: Connection, process: BaseProcess) -> None:
        if not self._waiting:
            connection.close()
            process.join()
            return
        job = self._waiting.popleft()
        self._busy[connection] = process, job
        self._display.begin_job(job)
        connection.send(job)

    def _hear(self, connection: Connection) -> None:
        process, job = self._busy[connection]
        try:
            kind, *rest = connection.recv()
        except (EOFError, OSError):
            process.join()
            self._bury(connection, job, how_it_ended(process))
            self._hire()
            return
        if kind == "advance":
            self._display.advance_job(job, *rest)
        elif kind == "warn":
            self._display.warn(*rest)
        else:
            self._end(connection, job, *rest)
            self._give(connection, process)

    def _bury(self, connection: Connection, job: Job, how: str) -> None:
        """Let the run of a process that is gone go on in another, once; it may be to blame."""
        if job.name in self._taken_up:
            why = f"the process {how}. Start the same command again to go on."
            self._end(connection, job, failed(job, why, why))
            return
        self._taken_up.add(job.name)
        del self._busy[connection]
        self._waiting.appendleft(job)
        self._display.warn(f"{job.name}: the process {how}. It goes on from its last checkpoint.")

    def _end(self, connection: Connection, job: Job, failure: str | None) -> None:
        del self._busy[connection]
        if failure is not None:
            self._failures[job.name] = failure
        self._display.end_job(job, failure)
