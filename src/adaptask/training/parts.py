"""Checks of the parts that a trainer is built from, by what it will ask of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn, optim

from adaptask.arguments import check_members, shown
from adaptask.errors import ArgumentError
from adaptask.training.every import Every
from adaptask.training.group import Group
from adaptask.training.run_folder import RunFolder


def check_parts(parts: Mapping[str, object]) -> None:
    """Check what is given to a trainer by name, of which nothing was used yet.

    Raises:
        ArgumentError: If a part is not what it is taken for.
    """
    _check_kind("learner", parts["learner"], nn.Module)
    check_members(
        "sampler",
        parts["sampler"],
        *("n_way", "sample", "update", "state_dict", "load_state_dict"),
    )
    check_members("source", parts["source"], "device", "draw")
    _check_kind("optimizer", parts["optimizer"], optim.Optimizer, type(None))
    _check_kind("every", parts["every"], Every)
    _check_kind("folder", parts["folder"], RunFolder, Path, str, type(None))
    for name in ("schedule", "validation"):
        if parts[name] is not None and not callable(parts[name]):
            raise ArgumentError(f"{name} must be callable; got {shown(parts[name])}.")
    if parts["display"] is not None:
        check_members("display", parts["display"], "begin", "advance", "message", "warn", "end")
    _check_kind("group", parts["group"], Group)
    _check_kind("loggers", parts["loggers"], list, tuple)
    for logger in parts["loggers"]:  # type: ignore[attr-defined]
        check_members("logger", logger, "log", "close")


def _check_kind(name: str, part: object, *kinds: type) -> None:
    if not isinstance(part, kinds):
        names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ArgumentError(f"{name} must be {names}; got {shown(part)}.")
