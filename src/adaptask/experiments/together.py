"""Several runs at once on one GPU, each in a thread and on a stream of its own."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from adaptask.experiments.jobs import Job, JobDisplay, attempt
from adaptask.experiments.shared_display import SharedDisplay
from adaptask.training.interruption import StopSignals, obey, stop_other_threads
from adaptask.training.machine import choose_device

_SECONDS_BETWEEN_LOOKS = 0.2


def run_together(jobs: Sequence[Job], display: JobDisplay, n_threads: int) -> dict[str, str]:
    """Make runs, so many at a time; return why those failed that did, by their names.

    Raises:
        KeyboardInterrupt: After Ctrl-C; runs in progress have saved where they are.
        Exception: What the display raised; runs in progress have saved where they are.
    """
    shared = SharedDisplay(display)
    waiting = deque(jobs)
    failures: dict[str, str] = {}
    broken: list[BaseException] = []

    def work() -> None:
        try:
            with _own_stream(jobs[0]):
                while (job := _next(waiting)) is not None:
                    _make(job, shared, failures)
        except (KeyboardInterrupt, SystemExit):
            return  # it was stopped, and has saved
        except BaseException as error:  # of no run: nobody would hear of it in this thread
            broken.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(n_threads)]
    try:
        with StopSignals() as stop:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_SECONDS_BETWEEN_LOOKS)
                    if stop.received is not None or broken:
                        waiting.clear()
                        stop_other_threads(stop.received or signal.SIGTERM)
    finally:
        stop_other_threads(None)
    if stop.received is not None:
        obey(stop.received)
    for error in broken:
        raise error
    return failures


def _next(waiting: deque[Job]) -> Job | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None


def _make(job: Job, display: JobDisplay, failures: dict[str, str]) -> None:
    display.begin_job(job)
    failure = attempt(job, display)
    if failure is not None:
        failures[job.name] = failure
    display.end_job(job, failure)


def _own_stream(job: Job) -> AbstractContextManager[object]:
    """Return the context of a stream that no other thread has; torch knows 32 of a priority."""
    device = choose_device(job.config.machine.device)
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
