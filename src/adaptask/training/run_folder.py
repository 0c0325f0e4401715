"""The folder in which a run lives: what is written there, when, and in which order.

config.toml         everything that decides the run
environment.json    versions, device, revision
metrics.jsonl       one line a record
snapshots/          the sampler's potentials now and then
last.pt             where to go on; previous.pt is the one before
best.pt             the best weights by validation
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from adaptask.errors import ArgumentError, StateError
from adaptask.training.atomic_file import not_written, replace_file
from adaptask.training.best import Checkpoint
from adaptask.training.checkpoints import (
    BEST,
    LAST,
    PREVIOUS,
    load_checkpoint,
    load_latest,
    save_checkpoint,
    save_latest,
)
from adaptask.training.records import MetricsLog, PotentialSnapshots, record_environment

Report = Callable[[str], None]


class RunFolder:
    """Reads and writes the folder of a run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.snapshots = PotentialSnapshots(self.path / "snapshots")
        self.is_open = False
        """Whether a run has begun here, or goes on."""

    @cached_property
    def metrics(self) -> MetricsLog:
        """The records; the file is opened when it is first asked for."""
        return MetricsLog(self.path / "metrics.jsonl")

    @property
    def config(self) -> Path:
        """The file that decides the run."""
        return self.path / "config.toml"

    def last_checkpoint(self) -> Path | None:
        """Return the checkpoint to go on from, if there is one."""
        found = (self.path / name for name in (LAST, PREVIOUS))
        return next((path for path in found if path.exists()), None)

    def check_is_free(self) -> None:
        """Raise if the folder is taken.

        Raises:
            ArgumentError: If it exists and is no empty folder.
        """
        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return
        if self.config.exists() or self.last_checkpoint():
            raise ArgumentError(
                f"{self.path} holds a run already. Go on with it: adaptask train --resume "
                f"{self.path}. Or choose another folder."
            )
        raise ArgumentError(f"{self.path} exists and is not an empty folder; choose another one.")

    def create(self, config_text: str | None = None) -> None:
        """Begin a run in a folder that is free.

        Raises:
            ArgumentError: If it is taken.
            TrainingError: If it cannot be written.
        """
        self.check_is_free()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise not_written(self.path, error) from error
        if config_text is not None:
            replace_file(self.config, config_text.encode())
        self.is_open = True

    def note_environment(self, step: int) -> None:
        """Write down on what the run goes on after so many steps."""
        record_environment(self.path / "environment.json", step=step)

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, keeping the one before.

        Raises:
            TrainingError: If it cannot be written; the one before is kept.
        """
        save_latest(self.path, {"trainer": state, "metrics_size": self.metrics.size})

    def load(self, report: Report) -> tuple[dict[str, Any], int] | None:
        """Return the last state that is whole, and how long the records were then.

        None where no checkpoint was written yet; nothing is changed.

        Args:
            report: Told of damage.

        Raises:
            StateError: If there are checkpoints, but none is whole.
        """
        if self.last_checkpoint() is None:
            return None
        saved, path = load_latest(self.path, report)
        try:
            return dict(saved["trainer"]), int(saved["metrics_size"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"{path} is no checkpoint of a training run.") from error

    def rewind(self, *, step: int, metrics_size: int) -> None:
        """Drop what was recorded after a step, and go on from there."""
        self.is_open = True
        self.metrics.truncate(metrics_size)
        self.snapshots.discard_after(step)

    def load_weights(self, report: Report) -> tuple[int, dict[str, Any]]:
        """Return the last weights and after which step they are; nothing is changed.

        Raises:
            StateError: If no checkpoint is whole.
        """
        saved, path = load_latest(self.path, report)
        try:
            return saved["trainer"]["step"], saved["trainer"]["learner"]
        except (KeyError, TypeError) as error:
            raise StateError(f"{path} is no checkpoint of a training run.") from error

    def save_best(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Write the best weights.

        Raises:
            TrainingError: If they cannot be written; those before are kept.
        """
        states = [checkpoint.state_dict() for checkpoint in checkpoints]
        save_checkpoint(self.path / BEST, {"checkpoints": states})

    def load_best(self) -> list[Checkpoint]:
        """Return the best weights, best first; empty where none were written.

        Raises:
            StateError: If the file is damaged.
        """
        path = self.path / BEST
        if not path.exists():
            return []
        try:
            return [Checkpoint(**state) for state in load_checkpoint(path)["checkpoints"]]
        except (KeyError, TypeError) as error:
            raise StateError(f"{path} does not hold the best weights of a run.") from error
