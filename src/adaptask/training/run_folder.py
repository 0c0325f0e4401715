"""The folder in which a run lives: what is written there, when, and in which order.

config.toml         everything that decides the run
environment.json    versions, device, revision
metrics.jsonl       one line per record
snapshots/          the sampler's potentials, and how often each class was drawn, now and then
last.pt             the checkpoint to go on from; previous.pt is the one before
best.pt             the best weights by validation
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from adaptask.atomic_file import not_written, replace_file
from adaptask.errors import ArgumentError, StateError, TrainingError
from adaptask.training.checkpoints import (
    BEST,
    LAST,
    PREVIOUS,
    Checkpoint,
    checkpoint_of,
    load_checkpoint,
    load_latest,
    save_checkpoint,
    save_latest,
)
from adaptask.training.records import MetricsLog, Snapshots, record_environment

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"
# What a folder may hold of a run that has not begun: its lock, why it failed or was given up.
_BEFORE_A_RUN = (LOCK, "failure.txt", "pruned.txt")


@dataclass(frozen=True)
class SavedRun:
    """What a checkpoint of a run holds."""

    trainer: dict[str, Any]
    """The trainer's `state_dict`."""
    metrics_size: int
    """Length of the records by then, in bytes."""
    config_text: str | None
    """What decided the run."""


class RunFolder:
    """Reads and writes the folder of a run.

    Args:
        path: The folder.
        config_text: What decides the run; it is part of every checkpoint.
    """

    n_processes: int = 1
    """How many make the run together, for `environment.json`."""

    def __init__(self, path: Path | str, config_text: str | None = None) -> None:
        self.path = Path(path)
        self.config_text = config_text
        self.snapshots = Snapshots(self.path / "snapshots")
        self.is_open = False
        """Whether a run has begun here, or goes on."""
        self._lock = FolderLock(self.path / LOCK)

    @cached_property
    def metrics(self) -> MetricsLog:
        """The records; the file is opened when it is first asked for."""
        return MetricsLog(self.path / "metrics.jsonl")

    @property
    def config(self) -> Path:
        """The file that decides the run."""
        return self.path / "config.toml"

    @property
    def has_begun(self) -> bool:
        """Whether there is a run to resume."""
        return self.config.exists() or self.last_checkpoint() is not None

    def last_checkpoint(self) -> Path | None:
        """Return the checkpoint to go on from, if there is one."""
        found = (self.path / name for name in (LAST, PREVIOUS))
        return next((path for path in found if path.exists()), None)

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from training in this folder, which is made if need be.

        Raises:
            TrainingError: If another one trains there, or the folder cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise not_written(self.path, error) from error
        return self._lock.held()

    def check_is_free(self) -> None:
        """Check that a run can begin here; what one left that had not begun may stay.

        Raises:
            ArgumentError: If the path exists and is not an empty folder, or cannot be a folder.
        """
        try:
            files = list(self.path.iterdir()) if self.path.exists() else []
        except OSError as error:
            raise ArgumentError(f"{self.path} cannot be used as a folder: {error}.") from error
        if all(file.name in _BEFORE_A_RUN or file.suffix == ".tmp" for file in files):
            return
        if self.has_begun:
            resume = f"adaptask train --resume {self.path}"
            how = resume if self.config.exists() else "trainer.resume()"
            raise ArgumentError(
                f"{self.path} holds a run already. Go on with it: {how}. Or choose another folder."
            )
        raise ArgumentError(f"{self.path} exists and is not an empty folder; choose another one.")

    def create(self, device: torch.device) -> None:
        """Begin a run in a folder that is free; hold the lock.

        Raises:
            ArgumentError: If it is taken.
            TrainingError: If it cannot be written.
        """
        self.check_is_free()
        self._open(device, step=0)

    def rewind(self, device: torch.device, *, step: int, metrics_size: int) -> int:
        """Drop what was recorded after a step; return how many bytes of records are missing."""
        missing = self.metrics.truncate(metrics_size)
        self.snapshots.discard_after(step)
        self._open(device, step=step)
        return missing

    def _open(self, device: torch.device, *, step: int) -> None:
        if self.config_text is not None:
            replace_file(self.config, self.config_text.encode())
        record_environment(
            self.path / "environment.json",
            step=step,
            device=str(device),
            n_processes=self.n_processes,
        )
        self.is_open = True

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, keeping the one before.

        Raises:
            TrainingError: If it cannot be written; the one before is kept.
        """
        saved = {"trainer": state, "metrics_size": self.metrics.size, "config": self.config_text}
        save_latest(self.path, saved)

    def load(self, report: Callable[[str], None]) -> SavedRun | None:
        """Return the last checkpoint that is whole, or None; `report` is told of damage.

        Raises:
            StateError: If there are checkpoints, but none is whole.
        """
        if self.last_checkpoint() is None:
            return None
        saved, path = load_latest(self.path, report)
        trainer, size, text = (saved.get(name) for name in ("trainer", "metrics_size", "config"))
        if not (
            isinstance(trainer, dict)
            and {"learner", "step"} <= trainer.keys()
            and type(trainer["step"]) is type(size) is int
            and isinstance(text, str | None)
        ):
            raise StateError(f"{path} is not a checkpoint of a training run.")
        return SavedRun(trainer, max(0, size), text)

    def save_best(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Write the best weights; remove the file where there are none.

        Raises:
            TrainingError: If they cannot be written; those before are kept.
        """
        states = [vars(checkpoint) for checkpoint in checkpoints]
        if states:
            save_checkpoint(self.path / BEST, {"checkpoints": states})
        else:
            (self.path / BEST).unlink(missing_ok=True)

    def load_best(self) -> list[Checkpoint]:
        """Return the best weights, best first; empty if none were written.

        Raises:
            StateError: If the file is damaged.
        """
        path = self.path / BEST
        if not path.exists():
            return []
        try:
            return [checkpoint_of(state) for state in load_checkpoint(path)["checkpoints"]]
        except (KeyError, TypeError) as error:
            raise StateError(f"{path} does not hold the best weights of a run.") from error


class FolderLock:
    """A lock on a file, held by the operating system: a dead process leaves none behind.

    The file is made if need be, and stays. On Windows, which has no such locks, it does nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_held = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock while the body runs; it may be held again inside.

        Raises:
            TrainingError: If another process holds it, or the file cannot be made.
        """
        if fcntl is None or self._is_held:
            yield
            return
        try:
            file = self.path.open("ab")
        except OSError as error:
            raise not_written(self.path, error) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TrainingError(
                    f"another process is training in {self.path.parent}; let it end, or stop it."
                ) from None
            self._is_held = True
            try:
                yield
            finally:
                self._is_held = False
