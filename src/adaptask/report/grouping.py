"""What runs are of themselves: those that differ by their seed alone belong together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptask.errors import StateError
from adaptask.report.records import ForgivingRecord
from adaptask.report.study import Arm, PlannedRun

_Settings = tuple[tuple[str, str], ...]
_NO_PART = {"seed", "format", "every", "machine"}
_PLACES = {"data": 0, "model": 1, "task": 2, "sampler": 4}
"""Of the sections among the labels; all others have 3."""


def arms_of_runs(folder: Path, paths: Sequence[Path]) -> tuple[list[Arm], list[str]]:
    """Return groups of runs that differ by their seed alone, and what was left out.

    Args:
        folder: Of the study.
        paths: Folders of the runs, below it or the folder itself.

    Raises:
        StateError: If no configuration can be read.
    """
    groups, notes = _grouped(folder, paths)
    labels = _tell_apart(list(groups))
    names = dict(zip(groups, _names(labels), strict=True))
    arms = [
        Arm(
            name=names[settings],
            labels=label,
            runs=tuple(PlannedRun(seed, members[seed]) for seed in sorted(members)),
            baseline=_baseline(settings, names),
        )
        for (settings, members), label in zip(groups.items(), labels, strict=True)
    ]
    return _in_order(arms), notes


def _grouped(
    folder: Path, paths: Sequence[Path]
) -> tuple[dict[_Settings, dict[int, str]], list[str]]:
    """Return the folders of the runs by settings and seed, and what was left out."""
    groups: dict[_Settings, dict[int, str]] = {}
    notes = []
    damage: list[str] = []
    for path in paths:
        record, place = ForgivingRecord(path), path.relative_to(folder).as_posix()
        if not record.is_readable:
            damage += record.damage
            notes.append(f"The run in {place} is left out: {record.damage[0]}")
            continue
        members = groups.setdefault(_settings(record.config), {})
        if record.seed in members:
            notes.append(
                f"The run in {place} is left out: {members[record.seed]} has the same settings "
                f"and the same seed, {record.seed}."
            )
        members.setdefault(record.seed, place)
    if not groups:
        raise StateError(damage[0])
    return groups, notes


def _settings(config: Mapping[str, Any]) -> _Settings:
    """Return what decides a result, apart from the seed, as pairs of names and texts."""
    pairs = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            pairs += [(f"{key}.{name}", str(item)) for name, item in value.items()]
        else:
            pairs.append((key, str(value)))
    return tuple(
        (key, value)
        for key, value in sorted(pairs)
        if key.partition(".")[0] not in _NO_PART or key == "machine.precision"
    )


def _tell_apart(groups: Sequence[_Settings]) -> list[dict[str, str]]:
    """Return labels of each group: the settings that differ, those of the sampler last."""
    known = [dict(settings) for settings in groups]
    keys = sorted(set().union(*known), key=_place)
    differing = [key for key in keys if len(_values(key, known)) > 1]
    if len({tuple(map(settings.get, differing)) for settings in known}) < len(known):
        differing = [key for key in keys if len({settings.get(key) for settings in known}) > 1]
    differing = differing or [key for key in ("model.learner", "sampler.name") if key in keys]
    words = Counter(_short(key) for key in differing)
    shown = {key: _short(key) if words[_short(key)] == 1 else key for key in differing}
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


def _place(key: str) -> tuple[int, bool, str]:
    return _PLACES.get(key.partition(".")[0], 3), key != "sampler.name", key


def _short(key: str) -> str:
    section, _, name = key.rpartition(".")
    return section if name == "name" and section else name


def _names(labels: Sequence[Mapping[str, str]]) -> list[str]:
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


def _baseline(settings: _Settings, names: Mapping[_Settings, str]) -> str | None:
    """Return the name of the uniform counterpart of a group, where there is one."""

    def is_uniform(of: _Settings) -> bool:
        return ("sampler.name", "uniform") in of

    def apart(of: _Settings) -> list[tuple[str, str]]:
        return [(key, value) for key, value in of if not key.startswith("sampler.")]

    if is_uniform(settings):
        return None
    found = (
        name
        for other, name in names.items()
        if is_uniform(other) and apart(other) == apart(settings)
    )
    return next(found, None)


def _in_order(arms: Iterable[Arm]) -> list[Arm]:
    """Return the arms by their labels, each baseline followed by what is compared with it."""

    def place(arm: Arm) -> list[tuple[bool, float, str]]:
        return [_by_number(value) for value in arm.labels.values()]

    listed = sorted(arms, key=place)
    followers = {arm.name: [a for a in listed if a.baseline == arm.name] for arm in listed}
    return [a for arm in listed if arm.baseline is None for a in (arm, *followers[arm.name])]


def _by_number(value: str) -> tuple[bool, float, str]:
    """Return a key that sorts numbers by their size, and before words."""
    try:
        number = float(value)
    except ValueError:
        return True, 0.0, value
    return not math.isfinite(number), number if math.isfinite(number) else 0.0, value
