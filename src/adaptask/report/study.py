"""Runs that belong together: what is compared with what, and what was published of it.

A study is a folder with runs in it and a file `study.json` that says what they are. Without that
file the runs themselves tell: those that differ by their seed alone belong together.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from adaptask.atomic_file import replace_file
from adaptask.errors import ArgumentError, StateError
from adaptask.parsing import parse_json

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
    """What it is, with keys that the arms have too; those of the columns must be among them."""
    published: Published


@dataclass(frozen=True)
class Study:
    """What was planned.

    Raises:
        ArgumentError: If two arms have the same name or labels, an arm has a seed twice, a
            baseline or a column is none, labels have other keys, or a run is not below the study.
    """

    title: str
    arms: tuple[Arm, ...]
    command: str = ""
    """What repeats it."""
    columns: tuple[str, ...] = ()
    """Labels that stand beside each other as columns in the main table, such as shots."""
    notes: tuple[str, ...] = ()
    """What a reader must know: settings that were chosen, scale, deviations."""
    citations: tuple[Citation, ...] = field(default=())
    by_validation: bool = False
    """Whether the best of the arms is sought, as in a sweep: that is for validation to say, since
    the highest test accuracy of many is high by chance."""

    def __post_init__(self) -> None:
        _check_arms(self.arms)
        keys = set(self.arms[0].labels) if self.arms else set(self.columns)
        if strange := [column for column in self.columns if column not in keys]:
            raise ArgumentError(
                f"the column {strange[0]!r} is no label; there are {_listed(keys)}."
            )
        for cited in self.citations:
            if not set(self.columns) <= cited.labels.keys() <= keys:
                raise ArgumentError(
                    f"a citation must have labels among {_listed(keys)}, with all columns; got "
                    f"{dict(cited.labels)}."
                )

    def arm(self, name: str) -> Arm:
        """Return the arm of that name.

        Raises:
            ArgumentError: If there is none.
        """
        for arm in self.arms:
            if arm.name == name:
                return arm
        names = _listed(arm.name for arm in self.arms)
        raise ArgumentError(f"the study has no arm {name!r}; it has {names}.")

    def write(self, folder: Path) -> None:
        """Write it into the folder of the study.

        Raises:
            TrainingError: If it cannot be written.
        """
        # ASCII: names of folders may have bytes that are no UTF-8.
        content = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        replace_file(folder / FILE, content.encode())


def _check_arms(arms: Sequence[Arm]) -> None:
    names = {arm.name for arm in arms}
    for arm in arms:
        if arm.labels.keys() != arms[0].labels.keys():
            raise ArgumentError(
                f"all arms must have the same labels; {arms[0].name!r} has "
                f"{_listed(arms[0].labels)}, {arm.name!r} has {_listed(arm.labels)}."
            )
        if arm.baseline is not None and (arm.baseline not in names or arm.baseline == arm.name):
            raise ArgumentError(
                f"the baseline of {arm.name!r} must be another arm of the study; got "
                f"{arm.baseline!r}."
            )
        for run in arm.runs:
            path = PurePosixPath(run.folder)
            if path.is_absolute() or not all(map(_is_name, path.parts)) or len(str(path)) > 1000:
                raise ArgumentError(
                    f"a run must be in a folder below that of its study; {arm.name!r} has "
                    f"{run.folder!r}."
                )
        if len({run.seed for run in arm.runs}) < len(arm.runs):
            raise ArgumentError(f"{arm.name!r} has a seed twice; a seed counts once.")
    if len(names) < len(arms):
        raise ArgumentError("two arms of the study have the same name; give each its own.")
    if len({tuple(arm.labels.items()) for arm in arms}) < len(arms):
        raise ArgumentError("two arms of the study have the same labels; say how they differ.")


def _is_name(part: str) -> bool:
    """Return whether a folder can be called so."""
    try:
        return part != ".." and "\0" not in part and len(os.fsencode(part)) < 256
    except UnicodeEncodeError:
        return False


def _listed(names: Any) -> str:
    return ", ".join(names) or "none"


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
        return _from_json(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(
            f"{path} is damaged: {error}. Remove it, and the runs themselves tell what they are."
        ) from error


def _from_json(found: dict[str, Any]) -> Study:
    if found.pop("format") > FORMAT:
        raise ValueError("it comes from a newer version; install that")
    arms = tuple(
        Arm(
            name=_text(arm["name"]),
            labels=_labels(arm["labels"]),
            runs=tuple(PlannedRun(_seed(r["seed"]), _text(r["folder"])) for r in arm["runs"]),
            baseline=None if arm["baseline"] is None else _text(arm["baseline"]),
            published=None if arm["published"] is None else _published(arm["published"]),
        )
        for arm in found["arms"]
    )
    return Study(
        title=_text(found["title"]),
        arms=arms,
        command=_text(found["command"]),
        columns=tuple(_text(column) for column in found["columns"]),
        notes=tuple(_text(note) for note in found["notes"]),
        citations=tuple(
            Citation(_labels(cited["labels"]), _published(cited["published"]))
            for cited in found["citations"]
        ),
        by_validation=found.get("by_validation", False) is True,
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} stands where a text should")
    return value


def _seed(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} stands where a seed should")
    return value


def _labels(found: dict[str, Any]) -> dict[str, str]:
    return {key: _text(value) for key, value in found.items()}


def _published(found: dict[str, Any]) -> Published:
    if strange := [v for v in found.values() if not isinstance(v, int | float | None)]:
        raise TypeError(f"{strange[0]!r} stands where a number should")
    return Published(**found)


def find_study(folder: Path) -> Study:
    """Return the study in a folder, or one made from the runs that are in it or that it is.

    Raises:
        ArgumentError: If there are no runs.
        StateError: If the file of the study is damaged, or no configuration can be read.
    """
    if not folder.is_dir():
        raise ArgumentError(f"there is no folder {folder}.")
    if (folder / FILE).exists():
        return read_study(folder)
    paths = sorted(path.parent for path in folder.rglob("config.toml"))
    if not paths:
        raise ArgumentError(
            f"{folder} holds no run: there is no config.toml in it or in a folder below."
        )
    return study_of_runs(folder, paths)


def study_of_runs(folder: Path, paths: Sequence[Path]) -> Study:
    """Group runs that differ by their seed alone; name the groups by what else differs.

    Arms with the sampler `uniform` are the baselines of those that differ from them by the sampler
    alone, and come before these. Of runs alike in everything the first counts, and runs that cannot
    be read are left out; notes say so.

    Args:
        folder: Of the study.
        paths: Folders of the runs, below it or the folder itself.

    Raises:
        StateError: If no configuration can be read.
    """
    from adaptask.report.grouping import arms_of_runs  # which makes arms

    arms, notes = arms_of_runs(folder, paths)
    return Study(
        title=folder.resolve().name,
        command=f"adaptask report {shlex.quote(str(folder))}",
        arms=tuple(arms),
        notes=tuple(notes),
    )
