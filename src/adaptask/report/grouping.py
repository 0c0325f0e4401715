"""Find the study of a folder: its `study.json`, or else what the settings of its runs say.

Runs that differ only by their seed are one arm.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptask.arguments import format_names
from adaptask.errors import ArgumentError, StateError
from adaptask.parsing import by_key
from adaptask.report.run import DESCRIPTIONS, Run
from adaptask.report.study import FILE, Arm, Study, read_study, run_name

_Settings = tuple[tuple[str, str], ...]
"""What decides a result, apart from the seed: names and values, both as texts."""
_NOT_DECISIVE = {"seed", "format", "every", "machine"}
_ORDER = {"data": 0, "learner": 1, "backbone": 1, "task": 2, "sampler": 4}
"""Position of a section among the labels; all others have 3."""
_ALGORITHMS = ("sampler", "learner", "backbone")
_DEPTH = 3
"""The runs of a study are at most this many folders below it: `runs/ARM/seed-0`."""


def find_study(folder: Path) -> Study:
    """Return the study in a folder, or one made from the runs in it.

    Without `study.json`, the folder is a run itself, or the runs are the folders of the first level
    that has any; nothing below that level is read.

    Args:
        folder: Of a study, a run, or runs.

    Raises:
        ArgumentError: If there are no runs, or several studies.
        StateError: If `study.json` is damaged, or no run can be read.
    """
    if not folder.is_dir():
        raise ArgumentError(f"there is no folder {folder}.")
    if (folder / FILE).exists():
        return read_study(folder)
    return _study_of_runs(folder, _find_runs(folder))


def _find_runs(folder: Path) -> list[Path]:
    """Return the folders of runs on the first level that has any."""
    level = [folder]
    for _ in range(_DEPTH + 1):
        runs = [path for path in level if any((path / name).exists() for name in DESCRIPTIONS)]
        studies = [path for path in level if (path / FILE).exists()]
        if studies:
            names = [path.relative_to(folder).as_posix() for path in (*studies, *runs)]
            raise ArgumentError(
                f"{folder} is not a study itself. Name one of the studies and runs in it: "
                f"{format_names(names)}."
            )
        if runs:
            return runs
        level = [path for parent in level for path in _subfolders(parent)]
    raise ArgumentError(
        f"{folder} holds no run: there is no {' or '.join(DESCRIPTIONS)} in it or in the folders "
        "below."
    )


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(e.path) for e in entries if e.is_dir(follow_symlinks=True))
    except OSError:  # a folder that cannot be read holds no run
        return []


def _study_of_runs(folder: Path, paths: Sequence[Path]) -> Study:
    """Group runs that differ only by their seed, and name the groups by what else differs.

    Arms with the sampler `uniform`, or else with one that does not learn, are the baselines of
    those that differ from them only by the sampler, and come first. Of runs with the same settings
    and seed the first counts. Runs that cannot be read are left out. Notes say so.
    """
    groups, notes = _group(folder, paths)
    labels = _labels_of(groups)
    names = _names_of(labels)
    baselines: dict[_Settings, str] = {}
    name_of = dict(zip(groups, names, strict=True))
    still = [settings for settings in groups if not _learns(groups[settings])]
    for settings in sorted(still, key=lambda one: dict(one).get("sampler.name") != "uniform"):
        baselines.setdefault(_without_sampler(settings), name_of[settings])
    arms = {}
    for settings, name, label in zip(groups, names, labels, strict=True):
        members = sorted(groups[settings].items())
        baseline = baselines.get(_without_sampler(settings))
        arms[name] = Arm(
            name=name,
            labels=label,
            runs=tuple(Run(path, seed, run_name(name, seed)) for seed, path in members),
            baseline=None if baseline == name else baseline,
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
    """Return the folders of the runs by settings and seed, and notes on what was left out."""
    groups: dict[_Settings, dict[int, Path]] = {}
    notes = []
    for path in paths:
        run, place = Run(path), path.relative_to(folder).as_posix()
        if not run.is_readable:
            why = next(iter(run.damage.values()), "its config.toml is empty.")
            notes.append(f"The run in {place} is left out: {why}")
            continue
        members = groups.setdefault(_decisive(run.settings), {})
        # A run made in Python may not know its seed; it then counts as one more repetition.
        default = 0 if (path / "config.toml").exists() else len(members)
        seed = run.settings.get("seed", default)
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


def _learns(members: Mapping[int, Path]) -> bool:
    """Return whether the sampler of the runs learns; True if nothing says otherwise."""
    sampler = Run(next(iter(members.values()))).algorithms.get("sampler")
    return sampler is None or sampler.learns


def _decisive(settings: Mapping[str, Any]) -> _Settings:
    return tuple(
        (key, str(value))
        for key, value in sorted(by_key(settings).items())
        if key.partition(".")[0] not in _NOT_DECISIVE or key == "machine.precision"
    )


def _without_sampler(settings: _Settings) -> _Settings:
    return tuple((key, value) for key, value in settings if not key.startswith("sampler."))


def _labels_of(groups: Iterable[_Settings]) -> list[dict[str, str]]:
    """Return labels of each group: the settings that differ, those of the sampler last."""
    known = [dict(settings) for settings in groups]

    def order(key: str) -> tuple[int, bool, str]:
        section, _, name = key.partition(".")
        return _ORDER.get(section, 3), section not in _ALGORITHMS or name != "name", key

    def short(key: str) -> str:
        section, _, name = key.rpartition(".")
        return section if name == "name" and section else name

    def differs(key: str) -> bool:
        """Return whether an option differs; those of an algorithm only between runs that have it.

        An algorithm has no options of another one: that its name differs says enough.
        """
        section, _, option = key.partition(".")
        kind = f"{section}.name" if section in _ALGORITHMS and option != "name" else ""
        values: dict[str | None, set[str | None]] = {}
        for settings in known:
            values.setdefault(settings.get(kind), set()).add(settings.get(key))
        return any(len(found) > 1 for found in values.values())

    keys = sorted(set().union(*known), key=order)
    chosen = [key for key in keys if differs(key)]
    chosen = chosen or [key for key in ("learner.name", "sampler.name") if key in keys]
    words = [short(key) for key in chosen]
    shown = {key: short(key) if words.count(short(key)) == 1 else key for key in chosen}
    return [{shown[key]: settings.get(key, "-") for key in chosen} for settings in known]


def _names_of(labels: Iterable[Mapping[str, str]]) -> list[str]:
    """Return a name for each group, made of its labels; equal names are numbered."""
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
