"""Processes that make runs for this one, and end with it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from adaptask.training.interruption import OF_TERMINAL

_SECONDS_TO_SAVE = 60.0


def start_process(serve: Callable[..., None], *args: object) -> tuple[BaseProcess, Connection]:
    """Start `serve(connection, *args)` in a process; return it, and our end of the connection."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *args), daemon=True)
    with _interrupts_ignored(), _without_script():
        process.start()
    theirs.close()  # so that the end of the process is the end of the connection
    return process, ours


def end_with_parent() -> None:
    """End at once when the parent has; what is being written is written whole or not at all."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def let_them_save(processes: Sequence[BaseProcess]) -> None:
    """Ask processes to stop after their step, and wait for them."""
    deadline = time.monotonic() + _SECONDS_TO_SAVE
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()


def how_it_ended(process: BaseProcess) -> str:
    """Return what became of a process, as what follows its name."""
    code = process.exitcode or 0
    if code >= 0:
        return f"ended with status {code}"
    return f"was killed by signal {-code}" + (", out of memory perhaps" if code == -9 else "")


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Start processes that the terminal's signals do not reach: this one asks them to stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in OF_TERMINAL}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _without_script() -> Iterator[None]:
    """Start processes that do not run the script again by which this one was started.

    They need nothing of it; without a guard in it, it would begin the same study again.
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
