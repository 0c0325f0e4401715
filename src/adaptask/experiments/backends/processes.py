"""Several runs at a time, each in another process, on the cores of one machine."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

from adaptask.errors import TrainingError
from adaptask.experiments.backends import Event, OnEvent, record_failure
from adaptask.report.run import Run
from adaptask.training.process import StopSignals, device_type, exit_for_signal

_POLL_SECONDS = 0.2
_SECONDS_TO_SAVE = 60.0


class ProcessPool:
    """Makes runs in processes that end with this one, however that ends.

    A run whose process died, out of memory perhaps, is resumed once in another process.

    Args:
        n_at_once: Number of processes.
        threads: CPU threads of each run that does not set them.
    """

    def __init__(self, n_at_once: int, threads: int | None = None) -> None:
        self.n_at_once, self.threads = n_at_once, threads
        self._waiting: deque[Run] = deque()
        self._busy: dict[_Worker, Run] = {}
        self._idle: list[_Worker] = []
        self._events: SimpleQueue[tuple[_Worker, Event | None]] = SimpleQueue()
        self._restarted: set[str] = set()
        self._failures: dict[str, str] = {}

    def run(self, runs: Sequence[Run], on_event: OnEvent) -> dict[str, str]:
        """Make all runs, see `Backend.run`."""
        self._waiting.extend(self._with_threads(run) for run in runs)
        try:
            with StopSignals() as stop:
                while (self._waiting or self._busy) and stop.received is None:
                    if self._waiting and len(self._busy) < self.n_at_once:
                        self._begin(self._waiting.popleft(), on_event)
                        continue
                    with suppress(Empty):
                        worker, event = self._events.get(timeout=_POLL_SECONDS)
                        self._receive(worker, event, on_event)
            if stop.received is not None:
                exit_for_signal(stop.received)
        finally:
            _stop([*self._busy, *self._idle])
            self._busy.clear()
            self._idle.clear()
        return self._failures

    def _with_threads(self, run: Run) -> Run:
        machine = run.config.machine
        if self.threads is None or machine.threads is not None:
            return run
        config = replace(run.config, machine=replace(machine, threads=self.threads))
        return replace(run, config=config)

    def _begin(self, run: Run, on_event: OnEvent) -> None:
        try:
            worker = self._idle.pop() if self._idle else _Worker(self._events)
        except OSError as error:  # such as no memory
            raise TrainingError(
                f"no process could be started for {run.name}: {error!r}. Run the same command "
                "again to continue."
            ) from error
        self._busy[worker] = run
        worker.begin(run)
        on_event(Event("begin", run.name))

    def _receive(self, worker: _Worker, event: Event | None, on_event: OnEvent) -> None:
        """Take what a process says; None says that it has ended."""
        if worker not in self._busy:
            self._idle = [other for other in self._idle if other is not worker]
        elif event is None:
            run = self._busy.pop(worker)
            _stop([worker])
            self._restart_or_fail(run, worker.describe_exit(), on_event)
        else:
            on_event(event)
            if event.kind != "end":
                return
            run = self._busy.pop(worker)
            if event.text is not None:
                self._failures[run.name] = event.text
            if device_type(run.config.machine.device) == "cpu":
                self._idle.append(worker)
            else:
                _stop([worker])  # it would keep memory of the GPU

    def _restart_or_fail(self, run: Run, how: str, on_event: OnEvent) -> None:
        if run.name not in self._restarted:
            self._restarted.add(run.name)
            self._waiting.appendleft(run)
            text = f"the process {how}. It is resumed from its last checkpoint."
            on_event(Event("warn", run.name, text=text))
            return
        died = TrainingError(f"the process {how}. Run the same command again to continue.")
        self._failures[run.name] = record_failure(run, died)
        on_event(Event("end", run.name, text=self._failures[run.name]))


class _Worker:
    """A process that makes one run after the other, so that it imports torch once.

    Args:
        events: Receives the worker with each of its events, and with None when it has ended.
    """

    def __init__(self, events: SimpleQueue[tuple[_Worker, Event | None]]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(p or str(Path.cwd()) for p in sys.path),
            },
            # The terminal sends its signals to this process alone, which asks the others to stop.
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._receive, args=(events,), daemon=True)
        self._reader.start()

    def begin(self, run: Run) -> None:
        """Hand over a run."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, which the queue will say
            pickle.dump(run, self.process.stdin)
            self.process.stdin.flush()

    def _receive(self, events: SimpleQueue[tuple[_Worker, Event | None]]) -> None:
        assert self.process.stdout is not None
        try:
            with suppress(EOFError, OSError, pickle.UnpicklingError), self.process.stdout as pipe:
                while True:
                    events.put((self, pickle.load(pipe)))
        finally:
            events.put((self, None))

    def end(self, seconds: float) -> None:
        """Wait for the process to end, and kill it if that takes longer."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def describe_exit(self) -> str:
        """Return how the process ended, in words that follow its name."""
        code = self.process.returncode
        if code >= 0:
            return f"ended with status {code}"
        return f"was killed by signal {-code}" + (", out of memory perhaps" if code == -9 else "")


def _stop(workers: Iterable[_Worker]) -> None:
    """Ask processes to save and stop after their step, and wait for them."""
    workers = list(workers)
    deadline = time.monotonic() + _SECONDS_TO_SAVE
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.end(max(0.0, deadline - time.monotonic()))


def serve() -> None:
    """Make the runs that come from standard input: the main function of a worker."""
    sender = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no event
    from adaptask.experiments.backends.interleaved import Interleaved

    runs: SimpleQueue[Run] = SimpleQueue()

    def receive() -> None:
        try:
            while True:
                runs.put(pickle.load(sys.stdin.buffer))
        except EOFError:  # the process that started this one is gone
            pass
        except Exception:  # such as a class that cannot be imported
            traceback.print_exc()
        os._exit(1)  # at once; what is being written is written whole or not at all

    def send(event: Event) -> None:
        if event.kind != "begin":  # which has been reported
            pickle.dump(event, sender)
            sender.flush()

    threading.Thread(target=receive, daemon=True).start()
    try:
        while True:
            Interleaved().run([runs.get()], send)
    except (OSError, SystemExit, KeyboardInterrupt):  # nobody listens; asked to stop, and saved
        os._exit(0)
