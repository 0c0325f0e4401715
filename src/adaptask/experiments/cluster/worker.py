"""What a worker of the cluster does: make one run, where its folder is or in a copy of it."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaptask.errors import AdaptaskError, TrainingError
from adaptask.experiments.cluster.machines import problem_here
from adaptask.experiments.cluster.mirror import RunMirror
from adaptask.experiments.jobs import Job, attempt
from adaptask.training.folder_lock import FolderLock
from adaptask.training.run_folder import LOCK

_SECONDS_TO_WAIT = 120.0
"""For the lock of a run whose worker died: file servers take their time to notice."""
_SECONDS_BEFORE_NEXT_TRY = (1.0, 5.0, 25.0)
_SECONDS_TO_TELL = 60.0


@dataclass(frozen=True)
class Order:
    """A run to be made, and what the worker must know."""

    job: Job
    versions: Mapping[str, str]
    """What `machines.versions` is where the study was started."""
    cache: str | None
    """Where datasets are, if that was said there."""
    url: str | None
    """Of the run's folder in a storage; None: all machines share the one that the job names."""
    is_judged: bool
    """Whether to ask after each validation if the run is to be given up."""


def make_run(order: Order, desk: Any) -> str | None:
    """Make a run, or go on with it; return why it failed, if it did.

    Args:
        order: The run.
        desk: The actor that is told how it goes.
    """
    reports = _Reports(desk, order.job.name)
    reports.tell("begin", platform.node(), os.getpid())
    loggers = [_Judged(desk, order.job.name)] if order.is_judged else []
    try:
        problem = problem_here(order.versions, [order.job.config.data.dataset], order.cache)
        if problem is not None:
            return problem
        with _folder(order, reports) as path:
            return attempt(replace(order.job, path=path), reports, loggers=loggers)
    except _GivenUp:
        return None
    except AdaptaskError as error:
        return str(error)
    finally:
        reports.flush()


@contextmanager
def _folder(order: Order, reports: _Reports) -> Iterator[Path]:
    """Yield the folder to train in, when no other process is at work there."""
    path = order.job.path
    if order.url is None:
        if not path.parent.is_dir():
            raise TrainingError(
                f"the machine {platform.node()} does not see the folder {path.parent}. Choose one "
                "that all machines share, with --output, or give --storage."
            )
        if path.is_dir():
            with _held(path / LOCK):
                pass
        yield path
        return
    name = hashlib.sha256(order.url.encode()).hexdigest()[:24]
    scratch = Path(tempfile.gettempdir()) / f"adaptask-{_user()}" / name
    scratch.parent.mkdir(mode=0o700, exist_ok=True)
    with _held(scratch.with_suffix(".lock")):
        shutil.rmtree(scratch, ignore_errors=True)  # of a worker that was killed
        mirror = RunMirror(order.url, scratch)
        mirror.fetch()
        reports.mirror = mirror
        try:
            yield scratch
        finally:
            _push(mirror)
            shutil.rmtree(scratch, ignore_errors=True)


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else ""


@contextmanager
def _held(lock: Path) -> Iterator[None]:
    """Hold a lock for the while; wait for it a while before.

    Raises:
        TrainingError: If another process goes on holding it.
    """
    deadline = time.monotonic() + _SECONDS_TO_WAIT
    while True:
        held = FolderLock(lock).held()
        try:
            held.__enter__()
            break
        except TrainingError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    try:
        yield
    finally:
        held.__exit__(None, None, None)


def _push(mirror: RunMirror) -> None:
    """Bring the end of a run to the storage, in several tries.

    Raises:
        TrainingError: If all of them failed.
    """
    for seconds in _SECONDS_BEFORE_NEXT_TRY:
        try:
            return mirror.push()
        except TrainingError:
            time.sleep(seconds)
    return mirror.push()


class _GivenUp(BaseException):
    """Ends a run that is to be given up; no failure, so that it passes those who catch these."""


class _Judged:
    """Asks after each validation whether to go on.

    Args:
        desk: Whom.
        run: Its name.
    """

    def __init__(self, desk: Any, run: str) -> None:
        self._desk, self._run = desk, run

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Ask; without an answer, the run goes on."""
        import ray

        if split != "val":
            return
        is_given_up = False
        with suppress(ray.exceptions.RayError):
            is_given_up = ray.get(self._desk.ask.remote(self._run, step, metrics["accuracy"]))
        if is_given_up:
            raise _GivenUp

    def close(self) -> None:
        """Do nothing."""


class _Reports:
    """The display of a run on another machine; brings its checkpoints to the storage as well."""

    def __init__(self, desk: Any, run: str) -> None:
        self._desk, self._run = desk, run
        self._has_begun = False
        self.mirror: RunMirror | None = None

    def tell(self, *event: Any) -> None:
        """Tell of an event, without waiting."""
        self._desk.tell.remote(self._run, *event)

    def begin_job(self, job: Job) -> None:
        """Do nothing: it was told."""

    def advance_job(self, job: Job, step: int, metrics: Mapping[str, float]) -> None:
        """Tell how far it is."""
        if not self._has_begun:
            self._has_begun = True
            self.tell("train", step)
        self._desk.advance.remote(self._run, step, dict(metrics))
        if self.mirror is not None:
            try:
                self.mirror.push_checkpoint()
            except TrainingError as error:
                self.warn(f"{self._run}: {error} The next checkpoint is tried again.")

    def end_job(self, job: Job, failure: str | None) -> None:
        """Do nothing: the end is told by who runs the job."""

    def warn(self, text: str) -> None:
        """Tell what has gone wrong."""
        self.tell("warn", text)

    def flush(self) -> None:
        """Wait until all has been told."""
        import ray

        with suppress(ray.exceptions.RayError):
            ray.get(self._desk.tell.remote(self._run, "end"), timeout=_SECONDS_TO_TELL)
