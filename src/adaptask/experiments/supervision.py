"""Runs made together in a process of its own; should it die or stand still, another goes on.

All runs of a process share its fate. A GPU can take it down, by an error after which nothing works
there any more, or hold it for ever in a call that does not return.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

from adaptask.atomic_file import replace_file
from adaptask.errors import AdaptaskError
from adaptask.experiments.jobs import Job, JobDisplay, failed
from adaptask.experiments.processes import (
    end_with_parent,
    how_it_ended,
    let_them_save,
    start_process,
)
from adaptask.training.interruption import StopSignals, obey

STACKS = "stacks.txt"
"""Where the threads of a process were when it was ended, in the folder of a run."""

# A step of these runs takes milliseconds, what is compiled before it a minute.
_SECONDS_OF_SILENCE = 900.0
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_TO_DIE = 10.0
_DEVICE_LOST = 75


def run_supervised(jobs: Sequence[Job], display: JobDisplay, n_threads: int) -> dict[str, str]:
    """Make runs, so many at a time; return why those failed that did, by their names.

    Raises:
        KeyboardInterrupt: After Ctrl-C; runs in progress have saved where they are.
        Exception: What the display raised; runs in progress have saved where they are.
    """
    return _Supervisor(jobs, display, n_threads).run()


class _Supervisor:
    def __init__(self, jobs: Sequence[Job], display: JobDisplay, n_threads: int) -> None:
        self._left = dict(enumerate(jobs))
        self._display = display
        self._most = self._n_threads = n_threads
        self._failures: dict[str, str] = {}
        self._underway: set[int] = set()
        self._suspects: set[int] = set()

    def run(self) -> dict[str, str]:
        with StopSignals() as stop, TemporaryDirectory() as folder:
            while self._left and stop.received is None:
                self._watch_a_process(stop, Path(folder) / STACKS)
        if stop.received is not None:
            obey(stop.received)
        return self._failures

    def _watch_a_process(self, stop: StopSignals, stacks: Path) -> None:
        given = {i: job for i, job in self._left.items() if i in (self._suspects or self._left)}
        self._underway.clear()
        process, connection = start_process(serve, given, self._n_threads, stacks)
        try:
            why = self._listen(connection, process, stop)
        except BaseException:
            let_them_save([process])
            raise
        left = given.keys() & self._left.keys()
        if stop.received is not None:
            let_them_save([process])
        elif left:
            _end(process)
            where = stacks.read_text(errors="replace") if stacks.exists() else ""
            self._adapt(why, where, left, some_ended=len(left) < len(given))
        else:
            self._trust_all()

    def _listen(self, connection: Connection, process: BaseProcess, stop: StopSignals) -> str:
        """Hand on what a process tells, as long as it does; return why it does no longer."""
        heard = time.monotonic()
        while stop.received is None:
            if connection.poll(_SECONDS_BETWEEN_LOOKS):
                try:
                    kind, *rest = connection.recv()
                except (EOFError, OSError):
                    process.join()
                    lost = process.exitcode == _DEVICE_LOST
                    return "lost its GPU" if lost else how_it_ended(process)
                self._take(kind, *rest)
                heard = time.monotonic()
            elif time.monotonic() - heard > _SECONDS_OF_SILENCE:
                return f"stood still for {_SECONDS_OF_SILENCE / 60:g} minutes, and was ended"
        return ""

    def _take(self, kind: str, *rest: object) -> None:
        if kind == "warn":
            self._display.warn(*rest)  # type: ignore[arg-type]
            return
        position, *what = rest
        assert isinstance(position, int)
        job = self._left[position]
        if kind == "begin":
            self._underway.add(position)
            self._display.begin_job(job)
        elif kind == "advance":
            self._display.advance_job(job, *what)  # type: ignore[arg-type]
        else:
            self._finish(position, *what)  # type: ignore[arg-type]

    def _finish(self, position: int, failure: str | None) -> None:
        job = self._left.pop(position)
        self._underway.discard(position)
        if failure is not None:
            self._failures[job.name] = failure
        self._display.end_job(job, failure)

    def _trust_all(self) -> None:
        self._suspects.clear()
        self._n_threads = self._most

    def _adapt(self, why: str, where: str, left: set[int], *, some_ended: bool) -> None:
        """Look for the one that is to blame, where none came to its end, and give it up.

        The runs that were underway are made first, fewer at a time; then all others as before.
        """
        said = f"the process of the runs on the GPU {why}"
        n_at_once = min(self._n_threads, len(left))
        if some_ended or n_at_once > 1:
            if not some_ended:
                self._n_threads = n_at_once // 2
                self._suspects = self._underway & left
            at = _leave(where, [self._left[i] for i in sorted(self._underway)])
            self._display.warn(
                f"{said[0].upper()}{said[1:]}. They go on from their last checkpoints, "
                f"{self._n_threads} at a time.{at}"
            )
            return
        said += ", with this run alone in it." if self._underway else ", before any had begun."
        for position in sorted(self._underway or left):
            if position not in self._underway:
                self._display.begin_job(self._left[position])
            self._finish(position, failed(self._left[position], said, f"{said}\n\n{where}"))
        self._trust_all()


def _end(process: BaseProcess) -> None:
    """End a process, and let it write where its threads are, which it can whatever holds them."""
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, signal.SIGABRT)
        process.join(_SECONDS_TO_DIE)
        process.kill()
        process.join()


def _leave(stacks: str, jobs: Sequence[Job]) -> str:
    """Leave a text in the first folder that takes it; return a sentence that says where."""
    for job in jobs if stacks else ():
        path = job.path / STACKS
        try:
            replace_file(path, stacks.encode())
        except AdaptaskError:
            continue
        return f" Where its threads were: {path}"
    return ""


def serve(connection: Connection, jobs: Mapping[int, Job], n_threads: int, stacks: Path) -> None:
    """Make runs together in this process; tell through the connection how they go."""
    from adaptask.experiments.together import run_together

    end_with_parent()
    with stacks.open("w") as file:
        faulthandler.enable(file)
        try:
            run_together(list(jobs.values()), _Reports(connection, jobs), n_threads)
        except (OSError, SystemExit):  # nobody listens any more; stopped, and saved
            return
        finally:
            faulthandler.disable()


class _Reports:
    """The display of runs in another process."""

    def __init__(self, connection: Connection, jobs: Mapping[int, Job]) -> None:
        self._connection = connection
        self._positions = {job.path: position for position, job in jobs.items()}

    def begin_job(self, job: Job) -> None:
        """Tell that a run begins."""
        self._tell("begin", job)

    def advance_job(self, job: Job, step: int, metrics: Mapping[str, float]) -> None:
        """Tell how far it is."""
        self._tell("advance", job, step, dict(metrics))

    def end_job(self, job: Job, failure: str | None) -> None:
        """Tell how it ended; where the device is lost, none of the runs has ended."""
        if failure is not None and _device_is_lost():
            self.warn(f"{job.name}: {failure}")
            os._exit(_DEVICE_LOST)
        self._tell("end", job, failure)

    def warn(self, text: str) -> None:
        """Tell what has gone wrong."""
        self._connection.send(("warn", text))

    def _tell(self, kind: str, job: Job, *what: object) -> None:
        self._connection.send((kind, self._positions[job.path], *what))


def _device_is_lost() -> bool:
    """Return whether nothing works on the GPU any more for this process."""
    import torch

    from adaptask.exclusion import EAGER_WORK

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    try:
        with EAGER_WORK.among_others():
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
