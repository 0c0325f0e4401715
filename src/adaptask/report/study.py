"""Runs that belong together: what is compared with what, and what was published of it.

A study is a folder with runs in it and a file `study.json` that says what they are. Without that
file the runs themselves tell: those that differ by their seed alone belong together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adaptask.atomic_file import replace_file
from adaptask.errors import ArgumentError, StateError
from adaptask.report.records import RunRecord

FILE = "study.json"
FORMAT = 1


@dataclass(frozen=True)
class Published:
    """What a paper prints, in its units."""

    accuracy: float | None = None
    """In percent."""
    interval: float | None = None
    """Half the width of its 95 % interval, in percent."""
    seconds: float | None = None
    """Time an epoch."""


@dataclass(frozen=True)
class PlannedRun:
    """A run and where it is, below the folder of the study."""

    seed: int
    folder: str


@dataclass(frozen=True)
class Arm:
    """What is repeated with several seeds."""

    name: str
    """Unlike all others in the study."""
    labels: Mapping[str, str]
    """What it is, such as `{"learner": "protonet", "shots": "1", "sampler": "gcp"}`; all arms of
    a study have the same keys."""
    runs: tuple[PlannedRun, ...]
    baseline: str | None = None
    """Name of the arm that it is compared with, seed by seed."""
    published: Published | None = None


@dataclass(frozen=True)
class Citation:
    """A row that a paper prints and nobody runs here."""

    labels: Mapping[str, str]
    published: Published


@dataclass(frozen=True)
class Study:
    """What was planned."""

    title: str
    arms: tuple[Arm, ...]
    command: str = ""
    """What repeats it."""
    columns: tuple[str, ...] = ()
    """Labels that stand beside each other as columns in the main table, such as shots."""
    notes: tuple[str, ...] = ()
    """What a reader must know: settings that were chosen, scale, deviations."""
    citations: tuple[Citation, ...] = field(default=())

    def arm(self, name: str) -> Arm:
        """Return the arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def write(self, folder: Path) -> None:
        """Write it into the folder of the study.

        Raises:
            TrainingError: If it cannot be written.
        """
        content = {"format": FORMAT, **asdict(self)}
        replace_file(folder / FILE, json.dumps(content, indent=1, ensure_ascii=False).encode())


def read_study(folder: Path) -> Study:
    """Return the study in a folder.

    Raises:
        ArgumentError: If there is none.
        StateError: If its file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        raise ArgumentError(f"{folder} holds no study: there is no {FILE} in it.")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return _from_json(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(f"{path} is damaged: {error}.") from error


def _from_json(found: dict[str, Any]) -> Study:
    if found.pop("format") > FORMAT:
        raise ValueError("it comes from a newer version; install that")

    def published(value: dict[str, Any] | None) -> Published | None:
        return None if value is None else Published(**value)

    arms = tuple(
        Arm(
            **{
                **arm,
                "runs": tuple(PlannedRun(**run) for run in arm["runs"]),
                "published": published(arm["published"]),
            }
        )
        for arm in found.pop("arms")
    )
    citations = tuple(
        Citation(labels=cited["labels"], published=Published(**cited["published"]))
        for cited in found.pop("citations")
    )
    columns, notes = tuple(found.pop("columns")), tuple(found.pop("notes"))
    return Study(arms=arms, columns=columns, notes=notes, citations=citations, **found)


def find_study(folder: Path) -> Study:
    """Return the study in a folder, or one made from the runs that are in it or that it is.

    Raises:
        ArgumentError: If there are no runs.
        StateError: If a file is damaged.
    """
    if (folder / FILE).exists():
        return read_study(folder)
    paths = sorted(path.parent for path in folder.rglob("config.toml"))
    if not paths:
        raise ArgumentError(
            f"{folder} holds no run: there is no config.toml in it or in a folder below."
        )
    return study_of_runs(folder, paths)


def study_of_runs(folder: Path, paths: list[Path]) -> Study:
    """Group runs that differ by their seed alone; name the groups by what else differs."""
    groups: dict[tuple[tuple[str, str], ...], list[tuple[int, Path]]] = {}
    for path in paths:
        record = RunRecord(path)
        groups.setdefault(_settings(record.config), []).append((record.seed, path))
    keys = [key for key, _ in sorted(set().union(*groups))]
    differing = {
        key for key in keys if len({dict(settings).get(key) for settings in groups}) > 1
    } or {"model.learner", "sampler.name"}
    arms = []
    for settings, members in groups.items():
        known = dict(settings)
        labels = {_short(key): known.get(key, "-") for key in sorted(differing)}
        runs = tuple(
            PlannedRun(seed, path.relative_to(folder).as_posix()) for seed, path in sorted(members)
        )
        name = " ".join(value for value in labels.values() if value != "-")
        arms.append((settings, Arm(name=name, labels=labels, runs=runs)))
    return Study(
        title=folder.resolve().name,
        command=f"adaptask report {folder}",
        arms=tuple(_with_baseline(settings, arm, arms) for settings, arm in arms),
    )


def _settings(config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return what decides a result, apart from the seed, as pairs of names and texts."""
    pairs = []
    for key, value in config.items():
        if key in ("seed", "format", "every", "machine"):
            continue
        if isinstance(value, Mapping):
            pairs += [(f"{key}.{name}", str(item)) for name, item in value.items()]
        else:
            pairs.append((key, str(value)))
    return tuple(sorted(pairs))


def _short(key: str) -> str:
    return {"sampler.name": "sampler", "model.learner": "learner"}.get(key, key.split(".")[-1])


def _with_baseline(
    settings: tuple[tuple[str, str], ...],
    arm: Arm,
    arms: list[tuple[tuple[tuple[str, str], ...], Arm]],
) -> Arm:
    """Return the arm with its uniform counterpart as baseline, where there is one."""

    def apart(of: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
        return [(key, value) for key, value in of if not key.startswith("sampler.")]

    for other_settings, other in arms:
        uniform = dict(other_settings).get("sampler.name") == "uniform"
        if uniform and other is not arm and apart(other_settings) == apart(settings):
            return Arm(arm.name, arm.labels, arm.runs, other.name, arm.published)
    return arm
