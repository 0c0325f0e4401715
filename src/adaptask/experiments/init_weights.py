"""The weights of a backbone that a run starts with: those of another run, or of a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaptask.arguments import check_integer, format_names
from adaptask.atomic_file import replace_file
from adaptask.data.features import read_safetensors
from adaptask.errors import ArgumentError
from adaptask.experiments.config_file import no_run_in
from adaptask.learners import Learner
from adaptask.parsing import parse_json
from adaptask.training.run_folder import RunFolder

FILE = "init.json"
"""Which weights a run has started with."""
_PREFIX = "backbone."
# Of batch normalization; learners with an inner loop have none.
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def read_weights(init: str) -> dict[str, Tensor]:
    """Return the state of a backbone from a run folder or a file; nothing in it is executed.

    Args:
        init: The folder of a run, whose best weights are taken, or the last ones if it was never
            validated; or a `.safetensors` file or what `torch.save` wrote: the state of a backbone,
            or of a learner that has one.

    Raises:
        ArgumentError: If there are no such weights, or they cannot be read.
        StateError: If a checkpoint of the run is damaged.
    """
    path = Path(init)
    if path.is_dir():
        state = _weights_of_run(path)
    else:
        try:
            state = _weights_of_file(path)
        except OSError as error:
            reason = error.strerror or error
            raise ArgumentError(f"the weights {path} cannot be read: {reason}.") from error
        except Exception:  # torch's own message advises to load the file with weights_only=False
            raise ArgumentError(
                f"the weights {path} cannot be read: the file is damaged, or holds something other "
                "than tensors. Save a state dict: torch.save(backbone.state_dict(), file)."
            ) from None
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ArgumentError(
            f"the weights {path} must be a state dict, tensors by their names, as in "
            "torch.save(backbone.state_dict(), file). Of a run, name the folder."
        )
    of_backbone = {
        name.removeprefix(_PREFIX): value
        for name, value in state.items()
        if name.startswith(_PREFIX)
    }
    return of_backbone or dict(state)


def _weights_of_run(path: Path) -> Any:
    folder = RunFolder(path)
    if best := folder.load_best():
        return best[0].learner
    saved = folder.load(lambda damage: None)
    if saved is not None:
        return saved.trainer["learner"]
    if folder.has_begun:
        raise ArgumentError(f"the run in {path} has saved no weights yet; wait for it.")
    raise no_run_in(path)


def _weights_of_file(path: Path) -> Any:
    if path.suffix.lower() == ".safetensors":
        return {name: torch.from_numpy(a.copy()) for name, a in read_safetensors(path).items()}
    return torch.load(path, map_location="cpu", weights_only=True)


def load_backbone(learner: nn.Module, state: Mapping[str, Tensor], init: str) -> None:
    """Load the weights of a backbone into that of a learner, if all of them fit.

    Statistics of batch normalization are left out where the learner has none.

    Raises:
        ArgumentError: If names are missing or unexpected, shapes differ or values are not finite;
            nothing has changed then.
    """
    backbone: Any = getattr(learner, "backbone", None)
    if not isinstance(backbone, nn.Module):
        raise ArgumentError(
            f"the learner {type(learner).__name__} has no backbone that could start with the "
            f"weights of {init}."
        )
    own = backbone.state_dict()
    used = {
        name: value
        for name, value in state.items()
        if name in own or name.rpartition(".")[2] not in _STATISTICS
    }
    shared = own.keys() & used.keys()
    problems = {
        "missing": sorted(own.keys() - used.keys()),
        "unexpected": sorted(used.keys() - own.keys()),
        "of another shape": [
            f"{name} ({tuple(used[name].shape)} instead of {tuple(own[name].shape)})"
            for name in sorted(shared)
            if used[name].shape != own[name].shape
        ],
        "not finite": [name for name in sorted(shared) if not used[name].isfinite().all()],
    }
    if any(problems.values()):
        found = "; ".join(
            f"{what}: {format_names(names, most=3)}" for what, names in problems.items() if names
        )
        raise ArgumentError(
            f"the weights of {init} do not fit the backbone {type(backbone).__name__} of this run. "
            f"{found}. Choose the backbone with the options with which they were made."
        )
    backbone.load_state_dict(used)


def freeze(learner: Learner, chosen: str | int) -> None:
    """Freeze the backbone of a learner, or its first stages.

    Args:
        learner: Is changed.
        chosen: `backbone`, or a number of stages: the `blocks` of the backbone, from the first.

    Raises:
        ArgumentError: If the learner cannot do that, or has fewer stages.
    """
    backbone: Any = getattr(learner, "backbone", None)
    if not getattr(learner, "supports_freezing", False) or backbone is None:
        raise ArgumentError(
            f"the learner {type(learner).__name__} cannot leave parts of its backbone as they are; "
            "leave out --freeze."
        )
    if chosen == "backbone":
        learner.freeze(backbone)
        return
    stages = list(getattr(backbone, "blocks", ()))
    kind = type(backbone).__name__
    if not stages:
        raise ArgumentError(
            f"the backbone {kind} has no stages; freeze all of it, --freeze backbone."
        )
    meaning = f"the number of stages of {kind}"
    n_frozen = check_integer("freeze", chosen, low=1, high=len(stages), meaning=meaning)
    learner.freeze(*stages[:n_frozen])


def check_same_weights(init: str, folders: Iterable[Path]) -> None:
    """Check that runs in some folders have started with the weights that are there now.

    Weights that are gone are not checked, and neither are runs that have not begun.

    Raises:
        ArgumentError: If the weights have changed, or cannot be read.
    """
    before = {}
    for folder in folders:
        try:
            before[folder] = parse_json((folder / FILE).read_bytes())["sha256"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
    if not before or not Path(init).exists():
        return
    now = digest(read_weights(init))
    for folder, then in before.items():
        if then != now:
            raise ArgumentError(
                f"the weights of {init} have changed since the run in {folder} started with them: "
                "runs that start now could not be compared with it. Put the old ones back, or "
                "choose another folder."
            )


def record_weights(init: str, folder: Path) -> None:
    """Write which weights a run starts with into its folder.

    Raises:
        ArgumentError: If they cannot be read.
        TrainingError: If it cannot be written.
    """
    content = {"weights": init, "sha256": digest(read_weights(init))}
    replace_file(folder / FILE, json.dumps(content, indent=1).encode() + b"\n")


def digest(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, types, shapes and values of tensors."""
    found = hashlib.sha256()
    for name, value in sorted(state.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
