"""Processes that make runs for this one, and end with it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

_SECONDS_TO_SAVE = 60.0


def start_process(serve: Callable[..., None], *args: object) -> tuple[BaseProcess, Connection]:
    """Start `serve(connection, *args)` in a process; return it, and our end of the connection."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *args), daemon=True)
    with _interrupts_ignored():
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
    """Start processes that Ctrl-C does not reach: they are asked to stop by this one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
