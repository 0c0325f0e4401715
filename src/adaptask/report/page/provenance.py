"""What a report says of its runs: what was compared, with which settings, in what, and what failed.

Everything here is read from the runs themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptask.report.page.data import Panel, clean
from adaptask.report.records import ForgivingRecord
from adaptask.report.study import Study

_EXPLAINED = {
    "uniform": "uniform draws all classes alike",
    "c": "c prefers classes that are hard by themselves",
    "cp": "cp prefers sets of classes that the model confuses, by their exact joint distribution",
    "gcp": "gcp prefers classes that the model confuses with each other, chosen greedily pair by "
    "pair",
}
_STRATEGIES = {
    "easy": "with the strategy easy, what the model tells apart is sought instead",
    "uncertain": "with the strategy uncertain, what it is undecided about",
}
_ASIDE = ("seed", "format")
_VERSIONS = ("adaptask", "python", "torch", "numpy", "cuda", "device", "platform", "cpu_count")


@dataclass(frozen=True)
class Trouble:
    """A run that has not ended."""

    arm: str
    seed: int
    state: str


@dataclass(frozen=True)
class Provenance:
    """All that the page says of where its figures come from."""

    statement: str
    samplers: tuple[str, ...]
    """What each is, in words."""
    n_planned: int
    n_finished: int
    troubles: tuple[Trouble, ...]
    damage: tuple[str, ...]
    """Files that could not be read, among those that were looked at."""
    common: tuple[tuple[str, str], ...]
    """Settings that all runs share."""
    differing: tuple[str, ...]
    """Names of the settings in which arms differ."""
    arms: tuple[tuple[str, tuple[str, ...]], ...]
    """Each arm with its values of these."""
    versions: tuple[tuple[str, str], ...]
    seeds: str


def provenance_of(folder: Path, study: Study, panels: Sequence[Panel]) -> Provenance:
    """Return what there is to say of the study in a folder."""
    series = {one.arm.name: one for panel in panels for one in panel.series}
    records = [record for one in series.values() for record in one.records]
    n_planned = sum(len(arm.runs) for arm in study.arms)
    n_finished = sum(record.test is not None for record in records)
    flat = {name: _flat(one.records[0].config) for name, one in series.items() if one.records}
    keys = list(dict.fromkeys(key for settings in flat.values() for key in settings))
    values = {key: {settings.get(key) for settings in flat.values()} for key in keys}
    differing = tuple(key for key in keys if len(values[key]) > 1)
    samplers = dict.fromkeys(one.sampler for one in series.values())
    strategies = dict.fromkeys(one.strategy for one in series.values())
    return Provenance(
        statement=_statement(study, records, n_planned, n_finished),
        samplers=(
            *(_EXPLAINED[name] for name in samplers if name in _EXPLAINED),
            *(_STRATEGIES[name] for name in strategies if name in _STRATEGIES),
        ),
        n_planned=n_planned,
        n_finished=n_finished,
        troubles=tuple(_troubles(folder, study, records)),
        damage=tuple(clean(text) for record in records for text in record.damage),
        common=tuple((key, str(values[key].pop())) for key in keys if len(values[key]) == 1),
        differing=differing,
        arms=tuple(
            (clean(name), tuple(clean(str(settings.get(key, "-"))) for key in differing))
            for name, settings in flat.items()
        ),
        versions=tuple(_versions(records)),
        seeds=", ".join(str(s) for s in sorted({r.seed for a in study.arms for r in a.runs})),
    )


def _flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a run by their dotted names, in the order of its file."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": clean(str(item)) for name, item in value.items()}
        elif key not in _ASIDE:
            flat[key] = clean(str(value))
    return flat


def _statement(
    study: Study, records: Sequence[ForgivingRecord], n_planned: int, n_finished: int
) -> str:
    if not records:
        return f"{_count(n_planned, 'run')} planned; none has begun."

    def chosen(section: str, key: str) -> str:
        found = (record.config.get(section, {}).get(key) for record in records)
        return _listed(clean(str(value)) for value in found if value is not None)

    seeds = {len(arm.runs) for arm in study.arms}
    each = f"{min(seeds)} to {max(seeds)} seeds" if len(seeds) > 1 else _count(seeds.pop(), "seed")
    steps = _listed(f"{n:,}" for n in sorted({record.n_steps for record in records}))
    done = "all are finished" if n_finished == n_planned else f"{n_finished} are finished"
    samplers = chosen("sampler", "name")
    several = " and " in samplers
    verb = "This report compares the task samplers" if several else "This report shows runs with"
    return (
        f"{verb} {samplers}: {chosen('model', 'learner')} ({chosen('model', 'backbone')}) on "
        f"{chosen('data', 'dataset')}, {chosen('task', 'n_way')}-way "
        f"{chosen('task', 'n_shot')}-shot, {steps} training steps a run. "
        f"{_count(len(study.arms), 'arm')} with {each} each make "
        f"{_count(n_planned, 'run')}; {done}."
    )


def _listed(values: Iterable[str]) -> str:
    unlike = list(dict.fromkeys(values))
    return (
        " and ".join([", ".join(unlike[:-1]), unlike[-1]]) if len(unlike) > 1 else "".join(unlike)
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def _troubles(folder: Path, study: Study, records: Sequence[ForgivingRecord]) -> Iterable[Trouble]:
    begun = {record.folder: record for record in records}
    for arm in study.arms:
        for run in arm.runs:
            record = begun.get(folder / run.folder) or ForgivingRecord(folder / run.folder)
            if not record.has_begun:
                state = "not begun"
            elif not record.is_readable:
                state = clean(record.damage[0])
            elif record.is_finished and record.test is None:
                state = clean(record.damage[-1])
            elif record.is_finished:
                continue
            elif record.pruned is not None:
                state = "given up early, since others were better"
            elif record.failure is not None:
                state = f"failed after step {record.steps_done}: {clean(record.failure)}"
            elif record.steps_done >= record.n_steps:
                state = "trained, not tested yet"
            else:
                state = f"unfinished: {record.steps_done} of {record.n_steps} steps"
            yield Trouble(clean(arm.name), run.seed, state)


def _versions(records: Sequence[ForgivingRecord]) -> Iterable[tuple[str, str]]:
    """Yield what the runs were made in; several values where they differ."""
    found = [environment for record in records for environment in record.environment]
    for key in _VERSIONS:
        values = {clean(str(e[key])): None for e in found if e.get(key) is not None}
        if values:
            yield key, ", ".join(values)
    for key in ("git", "adaptask_git"):
        revisions: dict[str, None] = {}
        for environment in found:
            git = environment.get(key)
            if isinstance(git, Mapping):
                changed = " with changes" if git.get("dirty") else ""
                revisions[clean(f"{str(git.get('revision'))[:12]}{changed}")] = None
        if revisions:
            yield key.replace("_", " "), ", ".join(revisions)
