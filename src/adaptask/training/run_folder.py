"""The folder of a run: what is written there, when, and in which order.

config.toml         the configuration of the run; without one, run.json has what a `Trainer` knows
algorithms.json     the classes of sampler, learner and backbone, for readers that import none
environment.json    versions, device, revision of the code
metrics.jsonl       one line per record
snapshots/          the sampler's potentials, and how often each class was drawn
init.json           which weights it started with, if not random ones
last.pt             the checkpoint to resume from; previous.pt is the one before
best.pt             the best weights by validation
portrait.npz        for the report: some images and tasks
test.json           the test result; a run that has it is finished
evaluations.jsonl   results of `adaptask evaluate`
failure.txt         why a run of a study failed
lock                held by the process that trains here
"""

from __future__ import annotations

import inspect
import io
import json
import os
import platform
import re
import subprocess
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptask import __version__
from adaptask.arguments import format_value
from adaptask.atomic_file import create_folder, not_written, replace_file
from adaptask.backbones import NetworkBackbone
from adaptask.errors import ArgumentError, StateError, TrainingError
from adaptask.parsing import by_key, parse_json
from adaptask.registry import BACKBONES, LEARNERS, SAMPLERS, Registry, describe_class
from adaptask.training.checkpoints import (
    BEST,
    LAST,
    PREVIOUS,
    Checkpoint,
    load_checkpoint,
    load_latest,
    save_checkpoint,
    save_latest,
)
from adaptask.training.evaluation import Evaluation
from adaptask.training.loggers import MetricsLog
from adaptask.training.step import TrainingStep

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"
RUN = "run.json"
ALGORITHMS = "algorithms.json"
TEST = "test.json"
# Files of a run that has not begun: its lock, why it failed or was stopped early.
_BEFORE_A_RUN = (LOCK, "failure.txt", "pruned.txt")

DISTRIBUTION_BUFFERS = ("log_potentials", "log_weights")
"""Tensors of a sampler from which its distribution follows; the first that it has is saved."""

# Of `run.json`, what a resumed run shares. It may make more steps on another machine, and its seed
# is that of the checkpoint.
_MUST_STAY = ("data", "task", "sampler", "learner", "backbone", "optimizer")
_GIT_SECONDS = 5.0
_PLAIN_TYPES = (bool, int, float, str)


@dataclass(frozen=True)
class SavedState:
    """What a checkpoint of a run holds."""

    trainer: dict[str, Any]
    """The trainer's `state_dict`."""
    metrics_size: int
    """Size of `metrics.jsonl` at that time, in bytes."""
    config_text: str | None
    """The configuration of the run."""


class RunFolder:
    """Reads and writes the folder of a run.

    Args:
        path: The folder.
        config_text: The configuration of the run; it is part of every checkpoint.
    """

    def __init__(self, path: Path | str, config_text: str | None = None) -> None:
        self.path = Path(path)
        self.config_text = config_text
        self.snapshots = Snapshots(self.path / "snapshots")
        self.is_open = False
        """Whether a run has been started or resumed with this object."""
        self._lock = FolderLock(self.path / LOCK)

    @cached_property
    def metrics(self) -> MetricsLog:
        """The records; the file is opened at the first use."""
        return MetricsLog(self.path / "metrics.jsonl")

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.path / "config.toml"

    @property
    def has_begun(self) -> bool:
        """Whether there is a run to resume.

        Raises:
            ArgumentError: If the path cannot be a folder.
        """
        try:
            return self.config.exists() or self.last_checkpoint() is not None
        except OSError as error:
            raise self._unusable(error) from error

    def last_checkpoint(self) -> Path | None:
        """Return the checkpoint to resume from, if there is one."""
        found = (self.path / name for name in (LAST, PREVIOUS))
        return next((path for path in found if path.exists()), None)

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from training in this folder, which is created if necessary.

        Raises:
            TrainingError: If another process trains there, or the folder cannot be created.
        """
        create_folder(self.path)
        return self._lock.held()

    def check_is_free(self) -> None:
        """Check that a run can begin here; files of a run that never began are ignored.

        Raises:
            ArgumentError: If the path exists and is not an empty folder, or cannot be a folder.
        """
        try:
            files = list(self.path.iterdir()) if self.path.exists() else []
        except OSError as error:
            raise self._unusable(error) from error
        if all(file.name in _BEFORE_A_RUN or file.suffix == ".tmp" for file in files):
            return
        if self.has_begun:
            resume = f"adaptask train --resume {self.path}"
            how = resume if self.config.exists() else "trainer.resume()"
            raise ArgumentError(
                f"{self.path} already holds a run. Resume it: {how}. Or choose another folder."
            )
        raise ArgumentError(f"{self.path} exists and is not an empty folder; choose another one.")

    def _unusable(self, error: OSError) -> ArgumentError:
        return ArgumentError(f"{self.path} cannot be used as a folder: {error}.")

    def create(self, device: torch.device, *, n_processes: int = 1) -> None:
        """Begin a run in a folder that is free; the caller holds the lock.

        Args:
            device: Where the run is computed, for `environment.json`.
            n_processes: How many processes make it, likewise.

        Raises:
            ArgumentError: If it is taken.
            TrainingError: If it cannot be written.
        """
        self.check_is_free()
        self._open(device, n_processes, step=0)

    def rewind(
        self, device: torch.device, *, step: int, metrics_size: int, n_processes: int = 1
    ) -> int:
        """Drop what was recorded after a step; return how many bytes of records are missing."""
        missing = self.metrics.truncate(metrics_size)
        self.snapshots.discard_after(step)
        if self.config_text is not None and self._read_config() != self.config_text:
            # A result tells that a run has ended: it goes before config.toml says how many steps
            # are to be made now, or a kill in between would leave a run that looks finished.
            (self.path / TEST).unlink(missing_ok=True)
        self._open(device, n_processes, step=step)
        return missing

    def _read_config(self) -> str | None:
        try:
            return self.config.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None

    def _open(self, device: torch.device, n_processes: int, *, step: int) -> None:
        if self.config_text is not None:
            replace_file(self.config, self.config_text.encode())
        record_environment(
            self.path / "environment.json",
            step=step,
            device=str(device),
            n_processes=n_processes,
        )
        self.is_open = True

    def describe(self, settings: Mapping[str, Any], algorithms: Mapping[str, Any]) -> None:
        """Write what a trainer knows about a run that has no configuration, before it trains it.

        Args:
            settings: For `run.json`, in the layout of config.toml; see `describe_run`.
            algorithms: For `algorithms.json`, likewise.

        Raises:
            TrainingError: If it cannot be written.
        """
        (self.path / TEST).unlink(missing_ok=True)  # of fewer steps
        for name, content in ((RUN, settings), (ALGORITHMS, algorithms)):
            replace_file(self.path / name, json.dumps(content, indent=1).encode() + b"\n")

    def check_same_run(self, settings: Mapping[str, Any]) -> None:
        """Check that a run without a configuration is resumed as it was described, if it was.

        Another learning rate is refused too: the optimizer would take that of the checkpoint.

        Raises:
            StateError: If a setting has changed that cannot; the message names the first.
        """
        path = self.path / RUN
        try:
            before = by_key(parse_json(path.read_bytes()))
        except (OSError, ValueError, AttributeError):  # there is none, or it is damaged
            return
        now = by_key(settings)
        for key in now | before:
            old, new = before.get(key), now.get(key)
            if key.partition(".")[0] in _MUST_STAY and old != new:
                raise StateError(
                    f"{key} of the run in {self.path} cannot change; it was {format_value(old)}, "
                    f"now {format_value(new)}. Build the trainer as it was, or choose another "
                    "folder for a new run. If the run is the same, and only a class has moved, "
                    f"remove {path}: fit() writes it again."
                )

    def save_test(self, results: Sequence[Evaluation], steps: Sequence[int]) -> None:
        """Write the test result; the run is finished then.

        Args:
            results: One for each kind of tasks, the main one first; empty without test classes.
            steps: After which steps the weights were saved that were tested.

        Raises:
            TrainingError: If it cannot be written.
        """
        record: dict[str, Any] = {"steps": list(steps), "accuracies": None}
        for i, result in enumerate(results):
            record |= {result.tasks: result.record()} if i else result.record()
        replace_file(self.path / TEST, json.dumps(record).encode())

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, keeping the one before.

        Raises:
            TrainingError: If it cannot be written; the one before is kept.
        """
        saved = {"trainer": state, "metrics_size": self.metrics.size, "config": self.config_text}
        save_latest(self.path, saved)

    def load(self, report: Callable[[str], None]) -> SavedState | None:
        """Return the last complete checkpoint, or None; `report` is called if one is damaged.

        Raises:
            StateError: If there are checkpoints, but none is complete.
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
        return SavedState(trainer, max(0, size), text)

    def save_best(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Write the best weights; remove the file if there are none.

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
            return [Checkpoint.from_state(state) for state in load_checkpoint(path)["checkpoints"]]
        except (KeyError, TypeError) as error:
            raise StateError(f"{path} does not hold the best weights of a run.") from error


class FolderLock:
    """A lock on a file, held by the operating system: a dead process leaves none behind.

    The file is created if necessary, and stays. On Windows, which has no such locks, it does
    nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_held = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock while the body runs; it may be held again inside.

        Raises:
            TrainingError: If another process holds it, or the file cannot be created.
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
                    f"another process is training in {self.path.parent}; wait for it, or stop it."
                ) from None
            self._is_held = True
            try:
                yield
            finally:
                self._is_held = False


class Snapshots:
    """A folder of small arrays that show how a sampler changes, one file per snapshot."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, step: int, sampler: object, class_counts: Tensor | None = None) -> None:
        """Save what the sampler has learned as `step-0000500.npz`; waits for the device.

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
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, **parts)
        create_folder(self.folder)
        replace_file(self.folder / f"step-{step:07d}.npz", content.getbuffer())

    def discard_after(self, step: int) -> None:
        """Remove the snapshots of later steps, which a resumed run writes again."""
        for path in self.folder.glob("step-*.npz"):
            match = re.fullmatch(r"step-(\d+)\.npz", path.name)
            if match and int(match[1]) > step:
                path.unlink()


def describe_run(step: TrainingStep, n_steps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is known about a run that has no configuration, and about its classes.

    Args:
        step: The training step of the run.
        n_steps: Total number of steps.

    Returns:
        The arguments of `RunFolder.describe`.
    """
    sampler: Any = step.sampler
    parts: dict[str, tuple[Registry, Any]] = {
        "sampler": (SAMPLERS, sampler),
        "learner": (LEARNERS, step.learner),
    }
    if hasattr(step.learner, "backbone"):
        backbone: Any = step.learner.backbone
        is_wrapped = isinstance(backbone, NetworkBackbone)
        parts["backbone"] = (BACKBONES, backbone.network if is_wrapped else backbone)
    algorithms = {kind: _describe_algorithm(*part) for kind, part in parts.items()}
    settings: dict[str, Any] = {"steps": n_steps}
    generator = getattr(sampler, "generator", None)
    if isinstance(generator, torch.Generator):
        settings["seed"] = generator.initial_seed()
    dataset = getattr(getattr(step.source, "image_set", None), "dataset", None)
    if dataset is not None:
        settings["data"] = {"dataset": str(dataset)}
    settings["task"] = {"n_shot": step.n_shot, "n_query": step.n_query, "n_tasks": step.n_tasks}
    if hasattr(sampler, "n_way"):
        settings["task"]["n_way"] = sampler.n_way
    for kind, (_, part) in parts.items():
        options = constructor_options(part)
        supplied = ("n_classes", "n_way", "seed", *(["n_features"] if kind == "sampler" else []))
        own = {name: value for name, value in options.items() if name not in supplied}
        settings[kind] = {"name": algorithms[kind]["name"], **own}
    group = step.optimizer.param_groups[0]
    lr = float(group.get("initial_lr", group["lr"]))
    settings["optimizer"] = {"name": type(step.optimizer).__name__.lower(), "lr": lr}
    settings["machine"] = {"precision": step.precision}
    return settings, algorithms


def _describe_algorithm(registry: Registry, algorithm: object) -> dict[str, Any]:
    """Return what a report needs to know about a sampler, learner or backbone."""
    kind = type(algorithm)
    try:
        name = registry.name_of(kind)
    except ArgumentError:  # such as a class defined in a function
        name = kind.__qualname__
    return describe_class(name, kind)


def constructor_options(algorithm: object) -> dict[str, Any]:
    """Return the plain values among the arguments of an object's constructor, as far as known.

    An argument is known if the object, or the update rule of a sampler, has an attribute of the
    same name.

    >>> from fractions import Fraction
    >>> constructor_options(Fraction(1, 2))
    {'numerator': 1, 'denominator': 2}
    """
    names = inspect.signature(type(algorithm)).parameters
    rule = getattr(algorithm, "rule", None)
    values = {name: getattr(algorithm, name, getattr(rule, name, None)) for name in names}
    return {name: value for name, value in values.items() if type(value) in _PLAIN_TYPES}


def environment() -> dict[str, Any]:
    """Return versions, devices and the revision of the code; never fails.

    `git` is the revision of the project that the working directory belongs to, if any, and
    whether tracked files differ from it; `adaptask_git` is the same for this package, if it runs
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
    # Drivers and programs fail in many ways, none of which should end a run.
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
