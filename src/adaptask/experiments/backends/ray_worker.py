"""What a worker of Ray does: make one run, and tell the machine of the command how it goes."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from adaptask import __version__
from adaptask.errors import TrainingError
from adaptask.experiments.backends.base import Event
from adaptask.experiments.backends.interleaved import Interleaved
from adaptask.experiments.backends.storage import StoredFolder
from adaptask.report.run import Run
from adaptask.training.run_folder import LOCK, FolderLock

CACHE = "ADAPTASK_CACHE"
_SECONDS_TO_UNLOCK = 120.0
"""File servers take a while to notice that a worker that held a lock is dead."""


def make_run(
    run: Run, events: Any, *, url: str | None, versions: str, cache: str | None
) -> tuple[str | None, bool]:
    """Make a run in this worker, or resume it.

    Returns:
        Why it failed, if it did, and whether it has been tested; a run that was given up has not.

    Args:
        run: The run.
        events: An actor of the class `Events`.
        url: Of the run in the storage; None: it is in a folder that all machines share.
        versions: What `versions_here` returns on the machine of the command.
        cache: Where datasets are, if that was set there.

    Raises:
        TrainingError: If the machine or the storage cannot be used; Ray tries again.
    """
    if (found := versions_here()) != versions:
        raise TrainingError(
            f"the machine {platform.node()} has {found}, the one that started the study "
            f"{versions}; install the same on both."
        )
    if cache is not None:
        os.environ[CACHE] = cache
    if url is None:
        if not run.path.parent.is_dir():
            raise TrainingError(
                f"the machine {platform.node()} does not see the folder {run.path.parent}. Choose "
                "one that all machines share, with --output, or give --storage."
            )
        _wait_until_unlocked(run.path)
        failures = Interleaved().run([run], _Reporter(run, events))
        return failures.get(run.name), run.is_finished
    with tempfile.TemporaryDirectory(prefix="adaptask-") as folder:
        stored = StoredFolder(url, Path(folder) / "run")
        stored.fetch_run()
        run = replace(run, path=stored.path)
        try:
            failures = Interleaved().run([run], _Reporter(run, events, stored))
            return failures.get(run.name), run.is_finished
        finally:
            stored.push_run()


def versions_here() -> str:
    """Return what must be the same on all machines; builds of torch for CPU and GPU may mix."""
    return f"adaptask {__version__} and torch {str(torch.__version__).partition('+')[0]}"


def _wait_until_unlocked(folder: Path) -> None:
    """Wait for the lock of a run whose worker died; the run itself says if it stays locked."""
    deadline = time.monotonic() + _SECONDS_TO_UNLOCK
    while folder.is_dir() and time.monotonic() < deadline:
        try:
            with FolderLock(folder / LOCK).held():
                return
        except TrainingError:
            time.sleep(0.5)


class Events:
    """The events of all workers that the command has not yet seen; an actor of Ray."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._n_begun: Counter[str] = Counter()

    def begin(self, run: str) -> int:
        """Record that a worker begins with a run; return how many have done so."""
        self._n_begun[run] += 1
        self.tell(Event("begin", run))
        return self._n_begun[run]

    def tell(self, event: Event) -> None:
        """Record an event."""
        self._events.append(event)

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events


class _Reporter:
    """Passes the events of a run on, and copies its checkpoints to the storage.

    Args:
        run: The run.
        events: An actor of the class `Events`.
        stored: The folder of the run and its copy, if there is a storage.
    """

    def __init__(self, run: Run, events: Any, stored: StoredFolder | None = None) -> None:
        self._run, self._events, self._stored = run, events, stored
        self._is_restart = _result(events.begin.remote(run.name)) > 1

    def __call__(self, event: Event) -> None:
        """Pass an event on, except the beginning and the end, which are told by others."""
        if event.kind == "advance":
            if self._is_restart:
                self._is_restart = False
                where = f"from step {event.step} on {platform.node()}"
                self._warn(f"its worker died; it goes on {where}.")
            self._push_checkpoint()
        if event.kind in ("advance", "warn"):
            _result(self._events.tell.remote(event))

    def _push_checkpoint(self) -> None:
        if self._stored is not None:
            try:
                self._stored.push_checkpoint()
            except TrainingError as error:
                self._warn(f"{error} The next checkpoint is tried again.")

    def _warn(self, text: str) -> None:
        _result(self._events.tell.remote(Event("warn", self._run.name, text=text)))


def _result(call: Any) -> Any:
    # While `ray.get` waits, Ray would give the CPUs and GPUs of this run to another one.
    return call.future().result()
