"""Each run in its own process, several at a time, on the cores of one machine."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess

from adaptask.errors import TrainingError
from adaptask.experiments.backends import Event, OnEvent, record_failure
from adaptask.report.run import Run
from adaptask.training.process import TERMINAL_SIGNALS, StopSignals, exit_for_signal
from adaptask.workers import end_with_parent

_POLL_SECONDS = 0.2
_SECONDS_TO_SAVE = 60.0


class ProcessPool:
    """Makes each run in its own process, which ends with this one, however that ends.

    A run whose process died, out of memory perhaps, is resumed once in another process.

    Args:
        n_at_once: Number of processes.
        threads: CPU threads of each run that does not set them.
    """

    def __init__(self, n_at_once: int, threads: int | None = None) -> None:
        self.n_at_once, self.threads = n_at_once, threads
        self._waiting: deque[Run] = deque()
        self._running: dict[Connection, tuple[BaseProcess, Run]] = {}
        self._restarted: set[str] = set()
        self._failures: dict[str, str] = {}

    def run(self, runs: Sequence[Run], on_event: OnEvent) -> dict[str, str]:
        """Make all runs, see `Backend.run`."""
        self._waiting.extend(self._with_threads(run) for run in runs)
        try:
            with StopSignals() as stop:
                while (self._waiting or self._running) and stop.received is None:
                    if self._waiting and len(self._running) < self.n_at_once:
                        self._start(self._waiting.popleft(), on_event)
                        continue
                    for connection in wait(list(self._running), timeout=_POLL_SECONDS):
                        self._receive(connection, on_event)  # type: ignore[arg-type]
            if stop.received is not None:
                exit_for_signal(stop.received)
        except BaseException:
            _stop_processes([process for process, _ in self._running.values()])
            raise
        return self._failures

    def _with_threads(self, run: Run) -> Run:
        machine = run.config.machine
        if self.threads is None or machine.threads is not None:
            return run
        config = replace(run.config, machine=replace(machine, threads=self.threads))
        return replace(run, config=config)

    def _start(self, run: Run, on_event: OnEvent) -> None:
        context = _context()
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(
            target=_make_run, args=(run, sender, dict(os.environ)), daemon=True
        )
        try:
            _launch(context, process)
        except (EOFError, OSError) as error:  # the server is gone, or there is no memory
            raise TrainingError(
                f"no process could be started for {run.name}: {error!r}. Run the same command "
                "again to continue."
            ) from error
        sender.close()  # so that the end of the process is the end of the connection
        self._running[receiver] = process, run
        on_event(Event("begin", run.name))

    def _receive(self, connection: Connection, on_event: OnEvent) -> None:
        process, run = self._running[connection]
        try:
            event: Event = connection.recv()
        except (EOFError, OSError):
            process.join()
            del self._running[connection]
            self._restart_or_fail(run, _describe_exit(process), on_event)
            return
        on_event(event)
        if event.kind == "end":
            del self._running[connection]
            process.join()
            if event.text is not None:
                self._failures[run.name] = event.text

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


def _context() -> ForkServerContext | SpawnContext:
    """Return how processes are started: if possible by a server that has imported torch.

    Each run would otherwise spend seconds on that.
    """
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(["adaptask.experiments.backends.interleaved"])
    return context


def _launch(context: ForkServerContext | SpawnContext, process: BaseProcess) -> None:
    """Start a process that ignores the signals of the terminal: this one asks it to stop."""
    with _without_script():
        if context.get_start_method() == "forkserver":
            from multiprocessing import forkserver

            with _interrupts_ignored():
                forkserver.ensure_running()  # its processes inherit that they are ignored
            process.start()  # waits until the server has imported torch; Ctrl-C works
        else:
            with _interrupts_ignored():
                process.start()


def _make_run(run: Run, sender: Connection, environment: Mapping[str, str]) -> None:
    """Make a run in this process, and send its events to the one that started it."""
    from adaptask.experiments.backends.interleaved import Interleaved

    os.environ.clear()  # the server has the environment of its own start
    os.environ.update(environment)
    for number in TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the parent asks to stop
    end_with_parent()  # what is being written is written whole or not at all

    def send(event: Event) -> None:
        if event.kind != "begin":  # which the parent has reported
            sender.send(event)

    try:
        Interleaved().run([run], send)
    except (OSError, SystemExit):  # the parent is gone; asked to stop, and saved
        return


def _stop_processes(processes: Sequence[BaseProcess]) -> None:
    """Ask processes to save and stop after their step, and wait for them."""
    deadline = time.monotonic() + _SECONDS_TO_SAVE
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()


def _describe_exit(process: BaseProcess) -> str:
    """Return how a process ended, in words that follow its name."""
    code = process.exitcode or 0
    if code >= 0:
        return f"ended with status {code}"
    return f"was killed by signal {-code}" + (", out of memory perhaps" if code == -9 else "")


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore the signals of a terminal for a moment."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in TERMINAL_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _without_script() -> Iterator[None]:
    """Start processes that do not import the script by which this one was started.

    They need nothing from it, and without a `__main__` guard it would begin the study again.
    """
    script = vars(sys.modules["__main__"])
    hidden: dict[str, object] = {
        name: script.pop(name) for name in ("__file__", "__spec__") if name in script
    }
    script["__spec__"] = None
    try:
        yield
    finally:
        del script["__spec__"]
        script.update(hidden)
