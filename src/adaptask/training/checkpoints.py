"""Checkpoints: written completely or not at all, verified when read, and never executed.

A checkpoint is what `torch.save` writes, so that `torch.load` opens it, with a checksum of every
byte in the comment that a zip archive may end with. `torch.load` alone is not enough: it did not
notice one in seven of the single flipped bits of a small checkpoint.
"""

from __future__ import annotations

import copy
import hashlib
import io
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaptask import __version__
from adaptask.arguments import check_integer
from adaptask.atomic_file import replace_file
from adaptask.errors import StateError
from adaptask.training.evaluation import Evaluation

FORMAT = 1
"""Version of the layout written here; raised when older versions could not read it."""
LAST = "last.pt"
PREVIOUS = "previous.pt"
BEST = "best.pt"

_PLAIN = (int, float, bool, str, type(None))
_TENSORS = (Tensor, nn.Parameter)
_SEAL = b"sha256:"
_SEAL_LENGTH = len(_SEAL) + 64


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state to a file, replacing the one that is there in one step.

    Args:
        path: The file.
        state: Dicts, lists, tuples, tensors, int, float, str, bool and None, nested.

    Raises:
        StateError: If the state holds anything else; nothing is written.
        TrainingError: If it cannot be written; the file that was there is untouched.
    """
    replace_file(path, _serialize(state))


def save_latest(folder: Path, state: Mapping[str, Any]) -> Path:
    """Write a state to `last.pt`, keep what that was as `previous.pt`, and return its path.

    One of the two is complete at every moment. Raises what `save_checkpoint` does.
    """
    path = folder / LAST
    replace_file(path, _serialize(state), keep_as=folder / PREVIOUS)
    return path


class DamagedError(StateError):
    """A checkpoint is missing or damaged, so that an earlier one may be used."""


def load_latest(folder: Path, on_damage: Callable[[str], None]) -> tuple[dict[str, Any], Path]:
    """Return the state of `last.pt` or, if that is damaged, of `previous.pt`; and which file.

    Args:
        folder: The run's folder.
        on_damage: Called with what is wrong with `last.pt`, if the previous one is used.

    Raises:
        StateError: If neither can be used, or the one to use is of a newer version of adaptask.
    """
    last, previous = folder / LAST, folder / PREVIOUS
    if not last.exists() and not previous.exists():
        raise StateError(
            f"there is no checkpoint in {folder}: neither {LAST} nor {PREVIOUS}. Name the folder "
            "of a run that has saved one, or start the run again."
        )
    try:
        return load_checkpoint(last), last
    except DamagedError as damage:
        try:
            state = load_checkpoint(previous)
        except DamagedError as second:
            raise StateError(
                f"{damage} The one before does not help: {second} Start the run again."
            ) from damage
        on_damage(f"{damage} Resuming from {previous}.")
        return state, previous


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the state of a checkpoint, its tensors on the CPU.

    Every byte is verified first, and nothing in the file is executed.

    Raises:
        StateError: If there is no such file, it is damaged, or of a newer version of adaptask.
    """
    try:
        content = bytearray(path.read_bytes())
    except FileNotFoundError:
        raise DamagedError(f"there is no checkpoint {path}.") from None
    except OSError as error:
        raise DamagedError(f"the checkpoint {path} cannot be read: {error.strerror}.") from error
    seal = bytes(content[-_SEAL_LENGTH:])
    del content[-_SEAL_LENGTH:]
    if content[-2:] != _SEAL_LENGTH.to_bytes(2, "little"):
        raise _damaged(path, "it does not end as a checkpoint does")
    content[-2:] = bytes(2)
    if seal != _SEAL + hashlib.sha256(content).hexdigest().encode():
        raise _damaged(path, "its content does not match its checksum")
    try:
        saved = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # whatever a file made by somebody else brings about
        # torch's own message is left out, also of the traceback: it advises to load the file with
        # weights_only=False.
        raise _damaged(
            path, "it holds something other than tensors and plain values, and is not loaded"
        ) from None
    if not isinstance(saved, dict) or not isinstance(saved.get("format"), int):
        raise _damaged(path, "it has no format number")
    if saved["format"] > FORMAT:
        raise StateError(
            f"the checkpoint {path} has format {saved['format']}, written by adaptask "
            f"{saved.get('adaptask')}; this is adaptask {__version__}, which reads formats up to "
            f"{FORMAT}. Install the newer version."
        )
    if not isinstance(saved.get("state"), dict):
        raise _damaged(path, "it holds no state")
    state: dict[str, Any] = saved["state"]
    return state


def _damaged(path: Path, what: str) -> DamagedError:
    return DamagedError(f"the checkpoint {path} is damaged: {what}.")


def _serialize(state: Mapping[str, Any]) -> memoryview:
    check_savable("state", state)
    buffer = io.BytesIO()
    # Tensors saved on a GPU could only be loaded on a machine that has one.
    on_host = {key: _on_host(value) for key, value in state.items()}
    torch.save({"format": FORMAT, "adaptask": __version__, "state": on_host}, buffer)
    seal = _SEAL + hashlib.sha256(buffer.getbuffer()).hexdigest().encode()
    # The archive ends with the length of its comment: so far there is none.
    buffer.seek(-2, io.SEEK_END)
    buffer.write(_SEAL_LENGTH.to_bytes(2, "little") + seal)
    return buffer.getbuffer()


def _on_host(value: Any) -> Any:
    """Return the same with all tensors in host memory."""
    if isinstance(value, Tensor):
        return value if value.device.type == "cpu" else value.detach().cpu()
    if isinstance(value, dict):
        moved = copy.copy(value)  # a state of modules has attributes
        moved.update((key, _on_host(item)) for key, item in value.items())
        return moved
    if isinstance(value, list | tuple):
        return type(value)(map(_on_host, value))
    return value


def check_savable(name: str, value: object) -> None:
    """Refuse what `torch.load` would not load with `weights_only=True`.

    Raises:
        StateError: If there is such a value; names it.
    """
    kind = type(value)
    if kind in (dict, OrderedDict):
        assert isinstance(value, dict)
        for key, item in value.items():
            if type(key) not in _PLAIN:
                raise StateError(
                    f"the keys of {name} must be plain values to be saved in a checkpoint; got "
                    f"{key!r}, a {type(key).__name__}."
                )
            check_savable(f"{name}[{key!r}]", item)
    elif kind in (list, tuple):
        assert isinstance(value, (list, tuple))
        for i, item in enumerate(value):
            check_savable(f"{name}[{i}]", item)
    # Exactly these types: NumPy's float64, for one, is a float that is saved as code to run.
    elif kind not in _PLAIN and kind not in _TENSORS:
        raise StateError(
            f"{name} is a {kind.__module__}.{kind.__qualname__}; a checkpoint holds dicts, lists, "
            "tuples, tensors, int, float, str, bool and None alone. Convert it first."
        )


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The weights of a learner after a step, and how well they did in validation."""

    step: int
    accuracy: float
    interval: float
    learner: dict[str, Any] = field(repr=False)
    """Its `state_dict`, on the CPU."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint whose `vars` were saved.

        Raises:
            TypeError: If they are not those of a checkpoint.
        """
        checkpoint = cls(**state)
        if (
            type(checkpoint.step) is not int
            or not isinstance(checkpoint.learner, Mapping)
            or not math.isfinite(checkpoint.accuracy + checkpoint.interval)
        ):
            raise TypeError("this is not a checkpoint")
        return checkpoint

    def __str__(self) -> str:
        return (
            f"step {self.step}, validation accuracy {100 * self.accuracy:.2f} ± "
            f"{100 * self.interval:.2f} %"
        )


class BestCheckpoints:
    """Keeps the best of many, best first; of equals the earliest.

    Args:
        n_kept: How many to keep, at least 1.

    Raises:
        ArgumentError: If `n_kept` is not a positive integer.
    """

    def __init__(self, n_kept: int) -> None:
        self.n_kept = check_integer("keep_best", n_kept, low=1)
        self.checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def first(self) -> Checkpoint | None:
        """The best of all, if there is one."""
        return self.checkpoints[0] if self.checkpoints else None

    def offer(self, step: int, evaluation: Evaluation, learner: nn.Module) -> bool:
        """Keep a copy of a learner if it is among the best; return whether it is."""
        n_better = sum(kept.accuracy >= evaluation.accuracy for kept in self.checkpoints)
        if n_better >= self.n_kept:
            return False
        weights = {
            name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
            for name, value in learner.state_dict().items()
        }
        found = Checkpoint(step, evaluation.accuracy, evaluation.interval, weights)
        ranked = (*self.checkpoints[:n_better], found, *self.checkpoints[n_better:])
        self.checkpoints = ranked[: self.n_kept]
        return True
