"""Runs that belong together: what is compared with what, and what was published of it.

A study is a folder with runs in it and a file `study.json` that says what they are. Without that
file the runs themselves tell: those that differ by their seed alone belong together.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
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
                _run_name(self.name, seed),
                None if self.config is None else replace(self.config, seed=seed),
            )
            for seed in seeds
        )
        return replace(self, runs=tuple(runs))


def _run_name(arm: str, seed: int) -> str:
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


# From study.json.


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
        runs.append(Run(folder / place, seed, _run_name(name, seed)))
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


# From the runs themselves.

_Settings = tuple[tuple[str, str], ...]
"""What decides a result, apart from the seed: names and values, both as texts."""
_NOT_DECISIVE = {"seed", "format", "every", "machine"}
_ORDER = {"data": 0, "model": 1, "task": 2, "sampler": 4}
"""Of the sections among the labels; all others have 3."""


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
    groups, notes = _grouped(folder, paths)
    labels = _labels_of(list(groups))
    names = dict(zip(groups, _names_of(labels), strict=True))
    arms = [
        Arm(
            name=names[settings],
            labels=label,
            runs=tuple(
                Run(members[seed], seed, _run_name(names[settings], seed))
                for seed in sorted(members)
            ),
            baseline=_uniform_beside(settings, names),
        )
        for (settings, members), label in zip(groups.items(), labels, strict=True)
    ]
    return Study(
        title=folder.resolve().name,
        arms=_in_order(arms),
        command=f"adaptask report {shlex.quote(str(folder))}",
        notes=tuple(notes),
    )


def _grouped(
    folder: Path, paths: Sequence[Path]
) -> tuple[dict[_Settings, dict[int, Path]], list[str]]:
    """Return the folders of the runs by settings and seed, and what was left out."""
    groups: dict[_Settings, dict[int, Path]] = {}
    notes, damage = [], []
    for path in paths:
        run, place = Run(path), path.relative_to(folder).as_posix()
        if not run.is_readable:
            damage.append(run.damage.get("config.toml", f"{path / 'config.toml'} is gone."))
            notes.append(f"The run in {place} is left out: {damage[-1]}")
            continue
        seed = run.settings.get("seed", 0)
        members = groups.setdefault(_decisive(run.settings), {})
        if seed in members:
            first = members[seed].relative_to(folder).as_posix()
            notes.append(
                f"The run in {place} is left out: {first} has the same settings and the same "
                f"seed, {seed}."
            )
        members.setdefault(seed, path)
    if not groups:
        raise StateError(damage[0])
    return groups, notes


def _decisive(config: Mapping[str, Any]) -> _Settings:
    pairs = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            pairs += [(f"{key}.{name}", str(item)) for name, item in value.items()]
        else:
            pairs.append((key, str(value)))
    return tuple(
        (key, value)
        for key, value in sorted(pairs)
        if key.partition(".")[0] not in _NOT_DECISIVE or key == "machine.precision"
    )


def _labels_of(groups: Sequence[_Settings]) -> list[dict[str, str]]:
    """Return labels of each group: the settings that differ, those of the sampler last."""
    known = [dict(settings) for settings in groups]

    def order(key: str) -> tuple[int, bool, str]:
        return _ORDER.get(key.partition(".")[0], 3), key != "sampler.name", key

    def short(key: str) -> str:
        section, _, name = key.rpartition(".")
        return section if name == "name" and section else name

    keys = sorted(set().union(*known), key=order)
    differing = [key for key in keys if len(_values(key, known)) > 1]
    if len({tuple(map(settings.get, differing)) for settings in known}) < len(known):
        differing = [key for key in keys if len({settings.get(key) for settings in known}) > 1]
    differing = differing or [key for key in ("model.learner", "sampler.name") if key in keys]
    words = Counter(map(short, differing))
    shown = {key: short(key) if words[short(key)] == 1 else key for key in differing}
    return [
        {shown[key]: settings.get(key, "-") for key in differing} or {"run": "-"}
        for settings in known
    ]


def _values(key: str, groups: Sequence[Mapping[str, str]]) -> set[str | None]:
    """Return the values of a setting over the groups.

    An option is absent where it plays no part, as all of a learner that was not chosen, and those
    that the sampler does not take: that the choice differs says enough. Elsewhere an absent one
    was left at None, which is a value as any.
    """
    section = key.partition(".")[0]
    return {
        settings.get(key)
        for settings in groups
        if key in settings
        or (section != "sampler" and any(other.startswith(f"{section}.") for other in settings))
    }


def _names_of(labels: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a name of each group, made of its labels, unlike all others."""
    names: list[str] = []
    for label in labels:
        name = plain = " ".join(value for value in label.values() if value != "-") or "run"
        number = 1
        while name in names:
            number += 1
            name = f"{plain} ({number})"
        names.append(name)
    return names


def _uniform_beside(settings: _Settings, names: Mapping[_Settings, str]) -> str | None:
    """Return the name of the group with the sampler `uniform` and otherwise the same settings."""

    def without_sampler(of: _Settings) -> list[tuple[str, str]]:
        return [(key, value) for key, value in of if not key.startswith("sampler.")]

    uniform = ("sampler.name", "uniform")
    if uniform in settings:
        return None
    rest = without_sampler(settings)
    found = (n for s, n in names.items() if uniform in s and without_sampler(s) == rest)
    return next(found, None)


def _in_order(arms: Iterable[Arm]) -> tuple[Arm, ...]:
    """Return the arms by their labels, each baseline followed by what is compared with it."""

    def order(arm: Arm) -> list[tuple[bool, float, str]]:
        return [_by_number(value) for value in arm.labels.values()]

    listed = sorted(arms, key=order)
    followers = {arm.name: [a for a in listed if a.baseline == arm.name] for arm in listed}
    first = [arm for arm in listed if arm.baseline is None]
    return tuple(a for arm in first for a in (arm, *followers[arm.name]))


def _by_number(value: str) -> tuple[bool, float, str]:
    """Return a key that sorts numbers by their size, and before words."""
    try:
        number = float(value)
    except ValueError:
        return True, 0.0, value
    return not math.isfinite(number), number if math.isfinite(number) else 0.0, value
