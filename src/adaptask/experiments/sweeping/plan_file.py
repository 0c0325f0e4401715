"""The plan of a sweep in its folder: a sweep may grow there, but not become another one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from adaptask.atomic_file import replace_file
from adaptask.errors import ArgumentError, StateError
from adaptask.experiments.config_file import decisive_settings, dump_config
from adaptask.experiments.sweeping.plan import SweepTrial
from adaptask.parsing import parse_json

FILE = "sweep.json"
FORMAT = 1


def write_plan(folder: Path, plan: Sequence[SweepTrial]) -> None:
    """Write down the configuration of every trial.

    Raises:
        TrainingError: If it cannot be written.
    """
    trials = {trial.name: dump_config(trial.config) for trial in plan}
    content = json.dumps({"format": FORMAT, "trials": trials}, indent=1, ensure_ascii=False)
    replace_file(folder / FILE, content.encode())


def check_same_sweep(folder: Path, plan: Sequence[SweepTrial]) -> None:
    """Check that a folder is free, or holds trials that are all in the plan as they were.

    Raises:
        ArgumentError: If it holds another sweep, or something else.
        StateError: If the file of its plan is damaged.
    """
    path = folder / FILE
    if not path.exists():
        if folder.is_dir() and not any(_is_foreign(entry) for entry in folder.iterdir()):
            return
        if folder.exists():
            raise ArgumentError(f"{folder} exists and holds no sweep; choose another folder.")
        return
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        before = {name: decisive_settings(text) for name, text in found["trials"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(f"{path} is damaged: {error}. Choose another folder.") from error
    planned = {trial.name: decisive_settings(dump_config(trial.config)) for trial in plan}
    for name, settings in before.items():
        if name not in planned:
            raise ArgumentError(
                f"{folder} holds another sweep: its trial {name} is not among these. Choose "
                "another folder. A sweep can go on there with more values or trials, not fewer."
            )
        for key in sorted({*settings, *planned[name]}):
            old, new = settings.get(key), planned[name].get(key)
            if old != new:
                raise ArgumentError(
                    f"{folder} holds another sweep: there {key} is {old}, now it is {new}. Choose "
                    "another folder."
                )


def _is_foreign(entry: Path) -> bool:
    """Return whether a file is not one that a sweep leaves before its plan is written."""
    return entry.suffix not in (".lock", ".tmp")
