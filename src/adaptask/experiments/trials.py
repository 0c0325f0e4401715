"""What a study trains: arms before they have seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from adaptask.experiments.config import RunConfig
from adaptask.report.study import Published


@dataclass(frozen=True)
class Trial:
    """One arm to be trained."""

    name: str
    """Unlike all others of the study; it can stand in the name of a folder."""
    labels: Mapping[str, str]
    """What it is; all trials of a study have the same keys."""
    config: RunConfig
    """How it is trained; its seed is replaced."""
    baseline: str | None = None
    """Name of the trial that it is compared with."""
    published: Published | None = None
    """What the paper prints for it."""
