"""What is checked before the first run of a study: that all can be made, and can be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from adaptask.errors import AdaptaskError, ArgumentError
from adaptask.experiments.backends.base import Job
from adaptask.experiments.building import (
    build_evaluator,
    build_parts,
    build_schedule,
    depends_on_steps,
    open_split,
)
from adaptask.experiments.config import MachineConfig, RunConfig
from adaptask.experiments.config_file import decisive_settings, dump_config, load_config
from adaptask.experiments.run import resolve_auto
from adaptask.report.study import Arm, Study

ConfigOf = Callable[[Arm], RunConfig | None]
"""How an arm would be configured now; None where that is not known."""


def check_buildable(configs: Mapping[str, RunConfig]) -> None:
    """Build what each trial is made of, so that what cannot be used is refused before any training.

    Args:
        configs: Of the trials, by name.

    Raises:
        AdaptaskError: If a value is out of range, or does not fit the data.
    """
    cpu = torch.device("cpu")
    for name, planned in configs.items():
        # Machine and storage are for the device on which it is trained.
        data = replace(planned.data, storage="auto")
        config = replace(planned, data=data, machine=MachineConfig())
        tests = config.evaluation
        few = {"n_episodes": min(2, tests.n_episodes), "n_validation": min(2, tests.n_validation)}
        config = replace(config, evaluation=replace(tests, **few))
        try:
            resolve_auto(planned, cpu)  # what is asked in vain of a machine is so on all of them
            config = resolve_auto(config, cpu)
            build_parts(config, open_split(config, "train", cpu), cpu)
            build_schedule(config)
            for split in ("val", "test"):
                build_evaluator(config, split, cpu)
        except AdaptaskError as error:
            raise type(error)(f"{name} cannot be trained: {error}") from error


def check_unchanged(jobs: Sequence[Job], folder: Path) -> None:
    """Check that runs which have begun go on as they began; only their steps may grow.

    Raises:
        ArgumentError: If something else changed.
    """
    for job in jobs:
        before = _saved(job.path)
        if before is None:
            continue
        for key, old, new in _differences(before, job.config):
            grows = key == "steps" and job.config.steps > before.steps
            if not grows or depends_on_steps(job.config):
                raise ArgumentError(
                    f"{folder} has {job.name} with {key} {old}, now it is {new}. Choose another "
                    "folder, or leave it as it was."
                )


def check_comparable(before: Study, config_of: ConfigOf, jobs: Sequence[Job], folder: Path) -> None:
    """Check that what the folder has besides the planned runs was trained as these will be.

    Raises:
        ArgumentError: If it was not: one table would show both.
    """
    planned = {job.path for job in jobs}
    for arm in before.arms:
        config = config_of(arm)
        for run in arm.runs:
            path = folder / run.folder
            saved = None if path in planned else _saved(path)
            if saved is None or config is None:
                continue
            for key, old, new in _differences(saved, replace(config, seed=run.seed)):
                raise ArgumentError(
                    f"{folder} also has {arm.name}, seed {run.seed}, with {key} {old}, now it is "
                    f"{new}: they cannot be compared. Name it as well to train it anew or further, "
                    "or choose another folder."
                )


def _saved(path: Path) -> RunConfig | None:
    """Return how a run was begun; None where it was not, or the run itself will say what is odd."""
    try:
        return load_config(path / "config.toml")
    except ArgumentError:
        return None


def _differences(old: RunConfig, new: RunConfig) -> list[tuple[str, object, object]]:
    before, now = decisive_settings(dump_config(old)), decisive_settings(dump_config(new))
    keys = sorted({*before, *now})
    return [(k, before.get(k), now.get(k)) for k in keys if before.get(k) != now.get(k)]
