"""The study that a folder has: as its file says, or else as its runs tell.

Runs that differ by their seed alone belong together.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptask.errors import ArgumentError, StateError
from adaptask.report.run import Run
from adaptask.report.study import FILE, Arm, Study, read_study, run_name

_Settings = tuple[tuple[str, str], ...]
"""What decides a result, apart from the seed: names and values, both as texts."""
_NOT_DECISIVE = {"seed", "format", "every", "machine"}
_ORDER = {"data": 0, "model": 1, "task": 2, "sampler": 4}
"""Of the sections among the labels; all others have 3."""


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
    groups, notes = _grouped(folder, paths)
    labels = _labels_of(list(groups))
    names = dict(zip(groups, _names_of(labels), strict=True))
    arms = [
        Arm(
            name=names[settings],
            labels=label,
            runs=tuple(
                Run(members[seed], seed, run_name(names[settings], seed))
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
