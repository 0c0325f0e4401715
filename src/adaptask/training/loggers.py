"""Other programs that show metrics, where they are installed: TensorBoard, Weights & Biases."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from adaptask.atomic_file import replace_file
from adaptask.errors import ArgumentError

_MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}


class Logger(Protocol):
    """Receives the metrics of a run, in addition to the run's own file of them."""

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Receive metrics after `step` steps; `split` is `train`, `val`, `sampler` or `test`."""
        ...

    def close(self) -> None:
        """Write what is left to write."""
        ...


class TensorBoardLogger:
    """Writes event files for TensorBoard, into the folder `tensorboard` of a run's folder.

    A resumed run gives `purge_step`, the first step that it logs again: what was logged from there
    on is hidden.
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
    """Sends metrics to Weights & Biases, one run there for one run here.

    The run's id is kept in its folder as `wandb-id.txt`, so that a resumed run goes on there too.
    Steps that it repeats, those between its checkpoint and its end, are there already and are not
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
