"""The study that a folder has: as its file says, or else as its runs tell.

Runs that differ by their seed alone belong together.
"""

from __future__ import annotations

import shlex
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
_UNIFORM = ("sampler.name", "uniform")


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
    return _study_of_runs(folder, paths)


def _study_of_runs(folder: Path, paths: Sequence[Path]) -> Study:
    """Group runs that differ by their seed alone; name the groups by what else differs.

    Arms with the sampler `uniform` are the baselines of those that differ from them by the sampler
    alone, and come before these. Of runs alike in everything the first counts, and runs that cannot
    be read are left out; notes say so.
    """
    groups, notes = _group(folder, paths)
    labels = _labels_of(groups)
    names = _names_of(labels)
    baselines = {
        _without_sampler(settings): name
        for settings, name in zip(groups, names, strict=True)
        if _UNIFORM in settings
    }
    arms = {}
    for settings, name, label in zip(groups, names, labels, strict=True):
        members = sorted(groups[settings].items())
        arms[name] = Arm(
            name=name,
            labels=label,
            runs=tuple(Run(path, seed, run_name(name, seed)) for seed, path in members),
            baseline=None if _UNIFORM in settings else baselines.get(_without_sampler(settings)),
        )

    def order(arm: Arm) -> tuple[object, ...]:
        first = arms[arm.baseline or arm.name]
        return _sort_key(first), first.name, arm is not first, _sort_key(arm)

    return Study(
        title=folder.resolve().name,
        arms=tuple(sorted(arms.values(), key=order)),
        command=f"adaptask report {shlex.quote(str(folder))}",
        notes=tuple(notes),
    )


def _group(
    folder: Path, paths: Sequence[Path]
) -> tuple[dict[_Settings, dict[int, Path]], list[str]]:
    """Return the folders of the runs by settings and seed, and what was left out."""
    groups: dict[_Settings, dict[int, Path]] = {}
    notes = []
    for path in paths:
        run, place = Run(path), path.relative_to(folder).as_posix()
        if not run.is_readable:
            why = run.damage.get("config.toml", "its config.toml is empty.")
            notes.append(f"The run in {place} is left out: {why}")
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
        raise StateError(notes[0])
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


def _without_sampler(settings: _Settings) -> _Settings:
    return tuple((key, value) for key, value in settings if not key.startswith("sampler."))


def _labels_of(groups: Iterable[_Settings]) -> list[dict[str, str]]:
    """Return labels of each group: the settings that differ, those of the sampler last."""
    known = [dict(settings) for settings in groups]

    def order(key: str) -> tuple[int, bool, str]:
        return _ORDER.get(key.partition(".")[0], 3), key != "sampler.name", key

    def short(key: str) -> str:
        section, _, name = key.rpartition(".")
        return section if name == "name" and section else name

    def values(key: str) -> set[str | None]:
        """Return the values of an option; None where it is absent though its section is there."""
        section = f"{key.partition('.')[0]}."
        return {
            settings.get(key)
            for settings in known
            if key in settings
            or (section != "sampler." and any(name.startswith(section) for name in settings))
        }

    keys = sorted(set().union(*known), key=order)
    # An option is absent where it plays no part, as all of a learner that was not chosen: that
    # the choice differs says enough. Where it does not, absence is a value like any other.
    chosen = [key for key in keys if len(values(key)) > 1]
    if len({tuple(map(settings.get, chosen)) for settings in known}) < len(known):
        chosen = [key for key in keys if len({settings.get(key) for settings in known}) > 1]
    chosen = chosen or [key for key in ("model.learner", "sampler.name") if key in keys]
    words = [short(key) for key in chosen]
    shown = {key: short(key) if words.count(short(key)) == 1 else key for key in chosen}
    return [{shown[key]: settings.get(key, "-") for key in chosen} for settings in known]


def _names_of(labels: Iterable[Mapping[str, str]]) -> list[str]:
    """Return a name of each group, made of its labels; of equal names the later have a number."""
    words = [" ".join(v for v in label.values() if v != "-") or "run" for label in labels]
    n_before = [words[:i].count(name) for i, name in enumerate(words)]
    return [f"{name} ({n + 1})" if n else name for name, n in zip(words, n_before, strict=True)]


def _sort_key(arm: Arm) -> list[tuple[bool, float, str]]:
    """Return a key that sorts arms by their labels, numbers by their size and before words."""
    return [_value_key(value) for value in arm.labels.values()]


def _value_key(value: str) -> tuple[bool, float, str]:
    try:
        return False, float(value), value
    except ValueError:
        return True, 0.0, value
