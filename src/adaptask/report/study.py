"""Runs that belong together: what is compared with what, and what was published about it.

A study is a folder with runs in it and a file `study.json` that says what they are. Without that
file, `grouping.py` finds out from the settings of the runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from types import NoneType
from typing import Any

from adaptask.atomic_file import replace_file
from adaptask.errors import ArgumentError, StateError
from adaptask.parsing import parse_json
from adaptask.report.run import Run

FILE = "study.json"
FORMAT = 1
NO_VALUE = "-"
"""The label of an arm that does not have what the others differ in, such as an option."""


@dataclass(frozen=True)
class Published:
    """A result that a paper prints."""

    accuracy: float
    """In percent."""
    interval: float | None = None
    """Half the width of its 95 % interval, in percent."""


@dataclass(frozen=True)
class Arm:
    """One setting of a comparison, repeated with several seeds."""

    name: str
    """Unique in the study."""
    labels: Mapping[str, str]
    """What tells it from other arms, such as `{"learner": "protonet", "shots": "1", "sampler":
    "gcp"}`. All arms of a study have the same keys."""
    runs: tuple[Run, ...] = ()
    baseline: str | None = None
    """Name of the arm that it is compared with, seed by seed."""
    published: Published | None = None
    """The paper's result for it."""
    config: Any = None
    """The `RunConfig`, except for the seed, of an arm that will be trained; None for one that is
    only read."""

    def with_runs(self, folder: Path, seeds: Iterable[int]) -> Arm:
        """Return the arm with one run per seed, below the folder of the study."""
        place = folder / "runs" / _folder_name(self.name)
        runs = (
            Run(
                place / f"seed-{seed}",
                seed,
                run_name(self.name, seed),
                None if self.config is None else replace(self.config, seed=seed),
            )
            for seed in seeds
        )
        return replace(self, runs=tuple(runs))


def run_name(arm: str, seed: int) -> str:
    """Return the name of a run of an arm."""
    return f"{arm}, seed {seed}"


def _folder_name(name: str) -> str:
    """Return a name that every file system accepts.

    >>> _folder_name("maml++ gcp:strategy=easy, 5 shots")
    'maml++-gcp-strategy=easy-5-shots'
    """
    return re.sub(r"[^A-Za-z0-9.+=_]+", "-", name).strip("-.")


@dataclass(frozen=True)
class Study:
    """What is compared: arms, each with its runs.

    Raises:
        ArgumentError: If two arms have the same name or labels, an arm has a seed twice, a
            baseline or a column does not exist, or arms have different keys in their labels.
    """

    title: str
    arms: tuple[Arm, ...]
    command: str = ""
    """The command that repeats it."""
    columns: tuple[str, ...] = ()
    """Labels whose values are columns of the main table, such as shots."""
    notes: tuple[str, ...] = ()
    """What a reader must know: settings that were chosen, scale, deviations."""
    by_validation: bool = False
    """Whether the study looks for the best arm, as a sweep does. Validation decides that, since the
    highest test accuracy of many is high by chance."""
    first_section: str = ""
    """The section that comes first on the page, such as `map`, if the study reproduces a figure."""

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        keys = self.arms[0].labels.keys() if self.arms else set(self.columns)
        if len(set(names)) < len(names):
            raise ArgumentError(
                f"two arms of the study have the same name; name each once: {_listed(names)}."
            )
        if len({tuple(arm.labels.items()) for arm in self.arms}) < len(names):
            raise ArgumentError("two arms of the study have the same labels; labels must differ.")
        for arm in self.arms:
            if arm.labels.keys() != keys:
                raise ArgumentError(
                    f"all arms must have the same labels; {names[0]!r} has {_listed(keys)}, "
                    f"{arm.name!r} has {_listed(arm.labels)}."
                )
            if arm.baseline is not None and arm.baseline not in set(names) - {arm.name}:
                raise ArgumentError(
                    f"the baseline of {arm.name!r} must be another arm of the study; got "
                    f"{arm.baseline!r}."
                )
            if len({run.seed for run in arm.runs}) < len(arm.runs):
                raise ArgumentError(f"{arm.name!r} has a seed twice; a seed counts once.")
        if not set(self.columns) <= keys:
            raise ArgumentError(
                f"columns must have labels among {_listed(keys)}; got {_listed(self.columns)}."
            )

    @property
    def varying(self) -> list[str]:
        """The labels in which the arms differ."""
        return [k for k in self.arms[0].labels if len({arm.labels[k] for arm in self.arms}) > 1]

    def write(self, folder: Path) -> None:
        """Write it into its folder.

        Raises:
            ArgumentError: If a run is not below the folder.
            TrainingError: If it cannot be written.
        """
        content = {
            "format": FORMAT,
            "title": self.title,
            "arms": [
                {
                    "name": arm.name,
                    "labels": dict(arm.labels),
                    "runs": [{"seed": r.seed, "folder": _place(r.path, folder)} for r in arm.runs],
                    "baseline": arm.baseline,
                    "published": None if arm.published is None else asdict(arm.published),
                }
                for arm in self.arms
            ],
            "command": self.command,
            "columns": self.columns,
            "notes": self.notes,
            "by_validation": self.by_validation,
            "first_section": self.first_section,
        }
        # As ASCII, since names of folders may have bytes that are not UTF-8.
        replace_file(folder / FILE, json.dumps(content, indent=1).encode())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _place(path: Path, folder: Path) -> str:
    """Return the path of a run relative to the folder of its study."""
    place = path.relative_to(folder) if path.is_relative_to(folder) else path
    return _checked_place(place.as_posix())


def _checked_place(place: str) -> str:
    path = PurePosixPath(place)
    if path.is_absolute() or ".." in path.parts:
        raise ArgumentError(f"a run must be in a folder below that of its study; got {place!r}.")
    return place


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
        found = parse_json(path.read_text(encoding="utf-8"))
        return _from_json(found, folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise StateError(
            f"{path} is damaged: {error}. Remove it: the settings of the runs say what they are."
        ) from error


def _from_json(found: dict[str, Any], folder: Path) -> Study:
    if found["format"] > FORMAT:
        raise ValueError("it comes from a newer version; install that")
    return Study(
        title=_typed(found["title"], str),
        arms=tuple(_arm(arm, folder) for arm in found["arms"]),
        command=_typed(found["command"], str),
        columns=tuple(_typed(column, str) for column in found["columns"]),
        notes=tuple(_typed(note, str) for note in found["notes"]),
        by_validation=_typed(found["by_validation"], bool),
        first_section=_typed(found["first_section"], str),
    )


def _arm(found: dict[str, Any], folder: Path) -> Arm:
    name = _typed(found["name"], str)
    runs = []
    for run in found["runs"]:
        seed, place = _typed(run["seed"], int), _checked_place(_typed(run["folder"], str))
        runs.append(Run(folder / place, seed, run_name(name, seed)))
    return Arm(
        name=name,
        labels=_labels(found["labels"]),
        runs=tuple(runs),
        baseline=_typed(found["baseline"], str, NoneType),
        published=None if found["published"] is None else _published(found["published"]),
    )


def _labels(found: dict[str, Any]) -> dict[str, str]:
    return {key: _typed(value, str) for key, value in found.items()}


def _published(found: dict[str, Any]) -> Published:
    accuracy = float(_typed(found["accuracy"], int, float))
    return Published(accuracy, _typed(found["interval"], int, float, NoneType))


def _typed(value: Any, *types: type) -> Any:
    """Return a value if it has one of the types."""
    if type(value) not in types:
        expected = " or ".join(kind.__name__ for kind in types)
        raise TypeError(f"expected {expected}, got {value!r}")
    return value
