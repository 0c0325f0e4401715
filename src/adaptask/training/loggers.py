"""Where the metrics of a run go: a file of JSON lines, TensorBoard, Weights & Biases."""

from __future__ import annotations

import importlib
import json
import math
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from adaptask.atomic_file import not_written, replace_file
from adaptask.errors import ArgumentError

_MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}


class Logger(Protocol):
    """Receives the metrics of a run, in addition to the run's own file of them."""

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Receive metrics after `step` steps; `split` is `train`, `val`, `sampler` or `test`.

        Of test tasks within groups it is `test/within-group`.
        """
        ...

    def close(self) -> None:
        """Write what is left, and close what is open."""
        ...


class MetricsLog:
    """A file of JSON lines, `{"step": 100, "split": "train", "loss": 1.2, ...}`, one per record.

    Every line is written completely before `log` returns, so that a killed process loses none. An
    incomplete line, as after a power failure, is removed when the file is opened again. Methods
    raise a `TrainingError` if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cut(self.size)

    @property
    def size(self) -> int:
        """Number of bytes written so far, as `truncate` takes it."""
        return self.path.stat().st_size if self.path.exists() else 0

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Append a record, or leave the file as it was; values that are not finite become null."""
        record: dict[str, Any] = {"step": step, "split": split}
        for name, value in metrics.items():
            is_integer = isinstance(value, int)
            record[name] = value if is_integer else float(value) if math.isfinite(value) else None
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        try:
            with self.path.open("ab", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                try:
                    while line:  # a disk that is nearly full writes a part of it
                        line = line[file.write(line) :]
                except OSError:
                    file.truncate(size)
                    raise
        except OSError as error:
            raise not_written(self.path, error) from error

    def truncate(self, size: int) -> int:
        """Remove what was written after the file had that size; return how many bytes it lacks."""
        self._cut(min(size, self.size))
        return size - self.size

    def _cut(self, size: int) -> None:
        """Cut the file to whole lines of at most so many bytes."""
        if not self.path.exists():
            return
        try:
            with self.path.open("rb+") as file:
                file.truncate(file.read(size).rfind(b"\n") + 1)
        except OSError as error:
            raise not_written(self.path, error) from error


class TensorBoardLogger:
    """Writes event files for TensorBoard, into the folder `tensorboard` of a run's folder.

    A resumed run passes `purge_step`, the first step that it logs again. TensorBoard hides what
    was logged from there on.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        module = check_installed("tensorboard")
        self._writer = module.SummaryWriter(str(folder / "tensorboard"), purge_step=purge_step)

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Write each metric as a scalar called `split/name`."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"{split}/{name}", value, step)

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._writer.close()


class WandbLogger:
    """Sends metrics to Weights & Biases.

    The id there is kept in the folder of the run as `wandb-id.txt`, so that a resumed run is
    resumed there too. Steps that it repeats, those between its checkpoint and its end, are not
    sent twice.
    """

    def __init__(
        self, folder: Path, *, project: str = "adaptask", config: Mapping[str, Any] | None = None
    ) -> None:
        module = check_installed("wandb")
        path = folder / "wandb-id.txt"
        if not path.exists():
            replace_file(path, uuid.uuid4().hex[:16].encode())
        self._run = module.init(
            project=project,
            name=folder.resolve().name,
            dir=str(folder),
            id=path.read_text(encoding="utf-8").strip(),
            resume="allow",
            config=dict(config or {}),
        )
        self._first_step = int(self._run.step)

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Send each metric under the name `split/name`."""
        if step >= self._first_step:
            self._run.log({f"{split}/{name}": value for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        """Send what is left, and mark the run as finished."""
        self._run.finish()


def check_installed(name: str) -> Any:
    """Return the module of a logger, `tensorboard` or `wandb`.

    Raises:
        ArgumentError: If it is not installed.
    """
    try:
        return importlib.import_module(_MODULES[name])
    except ImportError as error:
        raise ArgumentError(
            f"logging to {name} needs the package {name}, which cannot be imported ({error}). "
            f"Install it with: pip install {name}"
        ) from error
