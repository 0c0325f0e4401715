"""Runs that belong together: what is compared with what, and what was published of it.

A study is a folder with runs in it and a file `study.json` that says what they are. Without that
file the runs themselves tell: `grouping.py`.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from adaptask.atomic_file import replace_file
from adaptask.errors import ArgumentError, StateError
from adaptask.parsing import parse_json
from adaptask.report.run import Run

FILE = "study.json"
FORMAT = 1


@dataclass(frozen=True)
class Published:
    """What a paper prints, in its units."""

    accuracy: float | None = None
    """In percent."""
    interval: float | None = None
    """Half the width of its 95 % interval, in percent."""


@dataclass(frozen=True)
class Arm:
    """What is repeated with several seeds."""

    name: str
    """Unlike all others in the study."""
    labels: Mapping[str, str]
    """What it is, such as `{"learner": "protonet", "shots": "1", "sampler": "gcp"}`; all arms of
    a study have the same keys."""
    runs: tuple[Run, ...] = ()
    baseline: str | None = None
    """Name of the arm that it is compared with, seed by seed."""
    published: Published | None = None
    """What the paper says of it."""
    config: Any = None
    """The `RunConfig`, but for the seed, of an arm that is to be trained; None of one that is only
    read."""

    def with_runs(self, folder: Path, seeds: Iterable[int]) -> Arm:
        """Return the arm with a run of each seed.

        Args:
            folder: Of the study; the runs are below it.
            seeds: Of the runs.
        """
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
    """Return what a run of an arm is called."""
    return f"{arm}, seed {seed}"


def _folder_name(name: str) -> str:
    """Return a name that every file system takes.

    >>> _folder_name("maml++ gcp:strategy=easy, 5 shots")
    'maml++-gcp-strategy=easy-5-shots'
    """
    return re.sub(r"[^A-Za-z0-9.+=_]+", "-", name).strip("-.")


@dataclass(frozen=True)
class Citation:
    """A row that a paper prints and nobody runs here."""

    labels: Mapping[str, str]
    """What it is, with keys that the arms have too; those of the columns must be among them."""
    published: Published


@dataclass(frozen=True)
class Study:
    """What is compared: arms, each with its runs.

    Raises:
        ArgumentError: If two arms have the same name or labels, an arm has a seed twice, a
            baseline or a column does not exist, or labels have other keys.
    """

    title: str
    arms: tuple[Arm, ...]
    command: str = ""
    """What repeats it."""
    columns: tuple[str, ...] = ()
    """Labels that stand beside each other as columns in the main table, such as shots."""
    notes: tuple[str, ...] = ()
    """What a reader must know: settings that were chosen, scale, deviations."""
    citations: tuple[Citation, ...] = ()
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
            "citations": [asdict(cited) for cited in self.citations],
            "by_validation": self.by_validation,
        }
        # ASCII: names of folders may have bytes that are not UTF-8.
        replace_file(folder / FILE, json.dumps(content, indent=1).encode())


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
        if len({run.seed for run in arm.runs}) < len(arm.runs):
            raise ArgumentError(f"{arm.name!r} has a seed twice; a seed counts once.")
    twice = [name for name, count in Counter(arm.name for arm in arms).items() if count > 1]
    if twice:
        raise ArgumentError(
            f"two arms of the study have the same name, {twice[0]!r}; name each once."
        )
    if len({tuple(arm.labels.items()) for arm in arms}) < len(arms):
        raise ArgumentError("two arms of the study have the same labels; say how they differ.")


def _place(path: Path, folder: Path) -> str:
    """Return where a run is, below the folder of its study."""
    place = path.relative_to(folder) if path.is_relative_to(folder) else path
    return _checked_place(place.as_posix())


def _checked_place(place: str) -> str:
    path = PurePosixPath(place)
    if path.is_absolute() or not all(map(_is_name, path.parts)) or len(place) > 1000:
        raise ArgumentError(f"a run must be in a folder below that of its study; got {place!r}.")
    return place


def _is_name(part: str) -> bool:
    """Return whether a folder can be called so."""
    try:
        return part != ".." and "\0" not in part and len(os.fsencode(part)) < 256
    except UnicodeEncodeError:
        return False


def _listed(names: Iterable[str]) -> str:
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
        return _from_json(found, folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(
            f"{path} is damaged: {error}. Remove it, and the runs themselves tell what they are."
        ) from error


def _from_json(found: dict[str, Any], folder: Path) -> Study:
    if found["format"] > FORMAT:
        raise ValueError("it comes from a newer version; install that")
    return Study(
        title=_text(found["title"]),
        arms=tuple(_arm(arm, folder) for arm in found["arms"]),
        command=_text(found["command"]),
        columns=tuple(_text(column) for column in found["columns"]),
        notes=tuple(_text(note) for note in found["notes"]),
        citations=tuple(
            Citation(_labels(cited["labels"]), _published(cited["published"]))
            for cited in found["citations"]
        ),
        by_validation=found.get("by_validation", False) is True,
    )


def _arm(found: dict[str, Any], folder: Path) -> Arm:
    name = _text(found["name"])
    runs = []
    for run in found["runs"]:
        seed, place = run["seed"], _checked_place(_text(run["folder"]))
        if type(seed) is not int:
            raise TypeError(f"{seed!r} stands where a seed should")
        runs.append(Run(folder / place, seed, run_name(name, seed)))
    return Arm(
        name=name,
        labels=_labels(found["labels"]),
        runs=tuple(runs),
        baseline=None if found["baseline"] is None else _text(found["baseline"]),
        published=None if found["published"] is None else _published(found["published"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} stands where a text should")
    return value


def _labels(found: dict[str, Any]) -> dict[str, str]:
    return {key: _text(value) for key, value in found.items()}


def _published(found: dict[str, Any]) -> Published:
    if strange := [v for v in found.values() if not isinstance(v, int | float | None)]:
        raise TypeError(f"{strange[0]!r} stands where a number should")
    # Earlier versions also wrote `seconds`, which was never used.
    return Published(**{key: value for key, value in found.items() if key != "seconds"})
