"""Other programs that show metrics, where they are installed: TensorBoard, Weights & Biases."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from adaptask.atomic_file import replace_file
from adaptask.errors import ArgumentError


class Logger(Protocol):
    """Takes the metrics of a run, besides the run's own file of them."""

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Take in metrics after `step` steps; `split` is `train`, `val` or `test`."""
        ...

    def close(self) -> None:
        """Write what is left to write."""
        ...


class TensorBoardLogger:
    """Writes event files for TensorBoard, into the folder `tensorboard` of a run.

    Args:
        folder: The run's folder.
        purge_step: For a resumed run, the first step that is logged anew; what was logged from
            there on is hidden.

    Raises:
        ArgumentError: If TensorBoard is not installed.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        module = _import("torch.utils.tensorboard", "tensorboard")
        self._writer = module.SummaryWriter(str(folder / "tensorboard"), purge_step=purge_step)

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Write each metric as a scalar called `split/name`."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"{split}/{name}", value, step)

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._writer.close()


class WandbLogger:
    """Sends metrics to Weights & Biases, one run there for one run here.

    The run's id is kept in its folder as `wandb-id.txt`, so that a resumed run goes on there too.
    Steps that it repeats, those between its checkpoint and its end, are there already and are not
    sent twice.

    Args:
        folder: The run's folder.
        project: Name of the project there.
        config: What to show as the run's settings.

    Raises:
        ArgumentError: If wandb is not installed.
        TrainingError: If the id cannot be written.
    """

    def __init__(
        self, folder: Path, *, project: str = "adaptask", config: Mapping[str, Any] | None = None
    ) -> None:
        module = _import("wandb", "wandb")
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


def check_installed(name: str) -> None:
    """Check that a logger can be used: `tensorboard` or `wandb`.

    Raises:
        ArgumentError: If it is not installed.
    """
    _import({"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}[name], name)


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ArgumentError(
            f"logging to {package} needs the package {package}, which cannot be imported "
            f"({error}). Install it with: pip install {package}"
        ) from error
