"""What is to be trained with several seeds, before there are runs of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from adaptask.errors import ArgumentError
from adaptask.experiments.config import RunConfig
from adaptask.report.study import Arm, PlannedRun, Published


@dataclass(frozen=True)
class Trial:
    """One arm of a study: a configuration that is run with several seeds."""

    name: str
    """Unlike all others in the study."""
    labels: Mapping[str, str]
    """What it is; all trials of a study have the same keys."""
    config: RunConfig
    """Everything but the seed."""
    baseline: str | None = None
    """Name of the trial that it is compared with, seed by seed."""
    published: Published | None = None
    """What the paper says of it."""

    def arm(self, seeds: Sequence[int]) -> Arm:
        """Return the arm with its runs, below the folder of the study."""
        runs = tuple(
            PlannedRun(seed, f"runs/{folder_name(self.name)}/seed-{seed}") for seed in seeds
        )
        return Arm(self.name, dict(self.labels), runs, self.baseline, self.published)

    def seeded(self, seed: int) -> RunConfig:
        """Return the configuration with a seed."""
        return replace(self.config, seed=seed)


def folder_name(name: str) -> str:
    """Return a name that every file system takes.

    >>> folder_name("maml++ gcp:strategy=easy, 5 shots")
    'maml++-gcp-strategy=easy-5-shots'
    """
    return re.sub(r"[^A-Za-z0-9.+=_]+", "-", name).strip("-.")


def check_trials(trials: Sequence[Trial]) -> None:
    """Check that trials can be told from one another, in the study and on the disk.

    Raises:
        ArgumentError: If there are none, two have the same name, or a baseline is none of them.
    """
    if not trials:
        raise ArgumentError("there is nothing to train: no learner, or no sampler, was named.")
    seen: dict[Path, str] = {}
    for trial in trials:
        path = Path(folder_name(trial.name).lower())
        if path in seen:
            raise ArgumentError(f"{trial.name!r} stands there twice; name each one once.")
        seen[path] = trial.name
    names = set(seen.values())
    for trial in trials:
        if trial.baseline is not None and trial.baseline not in names:
            raise ArgumentError(f"{trial.name!r} is compared with {trial.baseline!r}, not there.")
