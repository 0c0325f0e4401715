"""What a run records as it goes: metrics, its environment, snapshots of the potentials."""

from __future__ import annotations

import io
import json
import math
import os
import platform
import re
import subprocess
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptask import __version__
from adaptask.atomic_file import not_written, replace_file
from adaptask.interfaces import TaskSampler
from adaptask.parsing import parse_json
from adaptask.samplers import Sampler, kl_from_uniform

DISTRIBUTION_BUFFERS = ("log_potentials", "log_weights")
"""Tensors of a sampler from which its distribution follows; the first that it has is saved."""

_GIT_SECONDS = 5.0
# Tasks from which the divergence of a sampler is estimated where it cannot be summed: by number
# of ways, since the probability of a set is a sum over the orders in which it can be drawn.
_MANY_WAYS, _DRAWS, _FEW_DRAWS = 9, 1000, 100


class MetricsLog:
    """A file of JSON lines, `{"step": 100, "split": "train", "loss": 1.2, ...}`, one per record.

    Every line is handed to the system whole before `log` returns, so that a killed process loses
    none. A line that was torn nevertheless, as by a power failure, is cut off at the next opening.
    Methods raise a `TrainingError` if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cut(self.size)

    @property
    def size(self) -> int:
        """Number of bytes written so far: what `truncate` takes to come back to here."""
        return self.path.stat().st_size if self.path.exists() else 0

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Append a record, or leave the file as it was; what is not finite is written as null."""
        record: dict[str, Any] = {"step": step, "split": split}
        for name, value in metrics.items():
            is_integer = isinstance(value, int)
            record[name] = value if is_integer else float(value) if math.isfinite(value) else None
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        try:
            with self.path.open("ab", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                try:
                    while line:  # a disk that is nearly full takes a part, and refuses the rest
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


def environment() -> dict[str, Any]:
    """Return the environment of a run: versions, devices, revision of the code; never fails.

    `git` is the revision of the project that the working directory belongs to, if any, and
    whether tracked files differ from it; `adaptask_git` the same of this package, where it runs
    from a checkout. Nothing names the machine or its user.
    """
    return {
        "adaptask": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "cuda": torch.version.cuda,
        "cudnn": _or_none(torch.backends.cudnn.version),
        "devices": _or_none(_device_names) or [],
        "git": _or_none(lambda: _git_revision(Path.cwd())),
        "adaptask_git": _or_none(lambda: _git_revision(Path(__file__).parent)),
    }


def _or_none(ask: Callable[[], Any]) -> Any:
    # Drivers and programs fail in ways of their own, and none is worth the run.
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")
        return ask()
    return None


def _device_names() -> list[str]:
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _git_revision(folder: Path) -> dict[str, Any]:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=_GIT_SECONDS,
        ).stdout.strip()

    changes = git("status", "--porcelain", "--untracked-files=no")
    return {"revision": git("rev-parse", "HEAD"), "dirty": bool(changes)}


def record_environment(
    path: Path, *, step: int = 0, device: str | None = None, n_processes: int = 1
) -> None:
    """Append the environment from a step on to a JSON list, unless it equals the last one."""
    known: list[dict[str, Any]] = []
    with suppress(OSError, ValueError, TypeError):
        content = parse_json(path.read_text(encoding="utf-8"))
        known = [entry for entry in content if isinstance(entry, dict)]
    here = environment() | {"device": device}
    if n_processes > 1:
        here["n_processes"] = n_processes
    if known and known[-1] == {"step": known[-1].get("step")} | here:
        return
    known.append({"step": step} | here)
    replace_file(path, json.dumps(known, indent=1).encode() + b"\n")


class Snapshots:
    """A folder of small arrays that show how a sampler has developed, one file per snapshot."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, step: int, sampler: TaskSampler, class_counts: Tensor | None = None) -> None:
        """Save as `step-0000500.npz` what the sampler has learned; waits for the device.

        Args:
            step: After how many steps.
            sampler: A sampler that learns has one of `DISTRIBUTION_BUFFERS`.
            class_counts: How often each class was drawn, `classes`.

        Raises:
            TrainingError: If it cannot be written.
        """
        found = (getattr(sampler, name, None) for name in DISTRIBUTION_BUFFERS)
        buffer = next((value for value in found if isinstance(value, Tensor)), None)
        parts = {}
        if buffer is not None:
            parts["distribution"] = buffer.detach().float().numpy(force=True)
        if class_counts is not None:
            parts["class_counts"] = class_counts.numpy(force=True)
        if not parts:
            return
        path = self.folder / f"step-{step:07d}.npz"
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, **parts)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise not_written(path, error) from error
        replace_file(path, content.getbuffer())

    def discard_after(self, step: int) -> None:
        """Remove the snapshots of later steps, which a resumed run takes again."""
        for path in self.folder.glob("step-*.npz"):
            match = re.fullmatch(r"step-(\d+)\.npz", path.name)
            if match and int(match[1]) > step:
                path.unlink()


def spread(sampler: Sampler) -> dict[str, float]:
    """Return how far the tasks of a sampler are from uniform, and their entropy, both in nats."""
    n_draws = _DRAWS if sampler.n_way < _MANY_WAYS else _FEW_DRAWS
    kl = float(kl_from_uniform(sampler, n_draws=n_draws).value)
    return {"kl": kl, "entropy": math.log(math.comb(sampler.n_classes, sampler.n_way)) - kl}
