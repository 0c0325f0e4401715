"""What a worker of Ray does: make one run, and tell the machine of the command how it goes."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import torch

from adaptask import __version__
from adaptask.errors import TrainingError
from adaptask.experiments.backends.base import Event, Job, RunPruned
from adaptask.experiments.backends.interleaved import Interleaved
from adaptask.experiments.backends.storage import StoredFolder
from adaptask.training.folder_lock import FolderLock
from adaptask.training.run_folder import LOCK

if TYPE_CHECKING:
    from adaptask.training.loggers import Logger

CACHE = "ADAPTASK_CACHE"
_SECONDS_TO_UNLOCK = 120.0
"""File servers take a while to notice that a worker that held a lock is dead."""


class Coordinator:
    """An actor on the machine of the command, which workers tell how their runs go.

    It also has the loggers of the runs: what they use, such as the journal of a search, is on this
    machine.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._attempts: Counter[str] = Counter()
        self._loggers: dict[str, Logger] = {}

    def begin(self, job: str) -> int:
        """Record that a worker begins with a run; return how many have done so."""
        self._attempts[job] += 1
        self.close_logger(job)  # of a worker that died
        self.tell(Event("begin", job))
        return self._attempts[job]

    def tell(self, event: Event) -> None:
        """Record an event."""
        self._events.append(event)

    def take_events(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def log(self, job: Job, step: int, split: str, metrics: Mapping[str, float]) -> str | None:
        """Pass metrics to the logger of a run; return why the run is given up, if it is."""
        assert job.open_logger is not None
        try:
            if job.name not in self._loggers:
                self._loggers[job.name] = job.open_logger()
            self._loggers[job.name].log(step, split, metrics)
        except RunPruned as pruned:
            return str(pruned)
        return None

    def close_logger(self, job: str) -> None:
        """Close the logger of a run, if it is open."""
        if job in self._loggers:
            self._loggers.pop(job).close()


def make_run(
    job: Job, coordinator: Any, *, url: str | None, versions: str, cache: str | None
) -> str | None:
    """Make a run in this worker, or resume it; return why it failed, if it did.

    Args:
        job: The run.
        coordinator: Is told how it goes.
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
        if not job.path.parent.is_dir():
            raise TrainingError(
                f"the machine {platform.node()} does not see the folder {job.path.parent}. Choose "
                "one that all machines share, with --output, or give --storage."
            )
        _wait_until_unlocked(job.path)
        return _train(job, _Connection(job, coordinator))
    with tempfile.TemporaryDirectory(prefix="adaptask-") as folder:
        stored = StoredFolder(url, Path(folder) / "run")
        stored.fetch_run()
        try:
            return _train(replace(job, path=stored.path), _Connection(job, coordinator, stored))
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


def _train(job: Job, connection: _Connection) -> str | None:
    if job.open_logger is not None:
        job = replace(job, open_logger=lambda: connection)
    return Interleaved().run([job], connection.tell).get(job.name)


class _Connection:
    """Connects a worker with the coordinator: passes events and metrics on, and checkpoints.

    Args:
        job: The run of the worker.
        coordinator: Is told the events, and has the logger.
        stored: The folder of the run and its copy, if there is a storage.
    """

    def __init__(self, job: Job, coordinator: Any, stored: StoredFolder | None = None) -> None:
        self._job, self._coordinator, self._stored = job, coordinator, stored
        self._is_restart = self._call("begin", job.name) > 1

    def _call(self, method: str, *args: Any) -> Any:
        return ray.get(getattr(self._coordinator, method).remote(*args))

    def tell(self, event: Event) -> None:
        """Pass an event on; those of the beginning and the end do not come from workers."""
        if event.kind == "advance":
            if self._is_restart:
                self._is_restart = False
                where = f"from step {event.step} on {platform.node()}"
                self._warn(f"its worker died; it goes on {where}.")
            if self._stored is not None:
                try:
                    self._stored.push_checkpoint()
                except TrainingError as error:
                    self._warn(f"{error} The next checkpoint is tried again.")
        if event.kind in ("advance", "warn"):
            self._call("tell", event)

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Pass metrics on; `RunPruned` comes back if the logger has raised it."""
        reason = self._call("log", self._job, step, split, dict(metrics))
        if reason is not None:
            raise RunPruned(reason)

    def close(self) -> None:
        """Close the logger."""
        self._call("close_logger", self._job.name)

    def _warn(self, text: str) -> None:
        self._call("tell", Event("warn", self._job.name, text=text))
