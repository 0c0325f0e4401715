"""The facts about the runs of a page: settings, versions, and runs without a result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from adaptask.parsing import by_key
from adaptask.report.formats import clean
from adaptask.report.page.data import StudyData
from adaptask.report.run import Run
from adaptask.report.study import Study
from adaptask.report.verdicts import missing_runs

_VERSIONS = ("adaptask", "python", "torch", "numpy", "cuda", "device", "platform", "cpu_count")


def describe_runs(data: StudyData) -> dict[str, Any]:
    """Return the values of the page's introduction and of `provenance.html.j2`."""
    study = data.study
    series = [one for panel in data.panels for one in panel.series]
    runs = [run for one in series for run in one.runs]
    configs = {one.arm.name: _flat(one.runs[0].settings) for one in series if one.runs}
    keys = dict.fromkeys(key for config in configs.values() for key in config)
    found = {key: {config.get(key, "-") for config in configs.values()} for key in keys}
    differing = [key for key in keys if len(found[key]) > 1]
    samplers = dict.fromkeys(one.sampler for one in series)
    explained = [clean(f"{a.name} {a.description}") for a in samplers if a.description]
    planned = [run for arm in study.arms for run in arm.runs]
    # A damaged result counts as missing.
    n_finished = sum(r.is_finished and "test.json" not in r.damage for r in runs)
    return {
        "statement": _statement(study, runs, len(planned), n_finished),
        "samplers": explained,
        "n_planned": len(planned),
        "n_without_result": len(planned) - sum(run.test is not None for run in runs),
        "troubles": [clean(sentence) for sentence in missing_runs(data.summary)],
        "damage": [clean(text) for run in runs for text in run.damage.values()],
        "common": [(key, *found[key]) for key in keys if len(found[key]) == 1],
        "differing": differing,
        "arms": [
            (clean(name), [config.get(key, "-") for key in differing])
            for name, config in configs.items()
        ],
        "versions": list(_versions(runs)),
        "seeds": sorted({run.seed for run in planned}),
    }


def _flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a run by their keys, in the order of its file."""
    values = by_key(settings).items()
    return {key: clean(str(value)) for key, value in values if key not in ("seed", "format")}


def _statement(study: Study, runs: Sequence[Run], n_planned: int, n_finished: int) -> str:
    """Return what was compared, in two or three sentences."""
    if not runs:
        return f"{_count(n_planned, 'run')} planned; none has begun."

    def chosen(section: str, key: str) -> str:
        found = (run.settings.get(section, {}).get(key) for run in runs)
        return _listed(clean(str(value)) for value in found if value is not None) or "unknown"

    def named(kind: str) -> str:
        found = (run.algorithms.get(kind) for run in runs)
        return _listed(clean(algorithm.name) for algorithm in found if algorithm)

    steps = _listed(f"{n:,}" for n in sorted({r.n_steps or r.steps_done for r in runs}))
    backbone = f" ({named('backbone')})" if named("backbone") else ""
    done = "all are finished" if n_finished == n_planned else f"{n_finished} are finished"
    return (
        f"Task samplers: {named('sampler')}. {named('learner')}{backbone} on "
        f"{chosen('data', 'dataset')}, {chosen('task', 'n_way')}-way "
        f"{chosen('task', 'n_shot')}-shot, {steps} training steps per run. "
        f"{_count(len(study.arms), 'arm')}, {_count(n_planned, 'run')}; {done}."
    )


def _listed(values: Iterable[str]) -> str:
    *first, last = dict.fromkeys(values) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def _versions(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Yield versions and machine of the runs, with all values if runs differ."""
    found = [environment for run in runs for environment in run.environment]
    for key in (*_VERSIONS, "git", "adaptask_git"):
        values = dict.fromkeys(_version(e[key]) for e in found if e.get(key) is not None)
        if values:
            yield key.replace("_", " "), ", ".join(values)


def _version(value: object) -> str:
    if isinstance(value, Mapping):  # a git revision
        changed = " with changes" if value.get("dirty") else ""
        return clean(f"{str(value.get('revision'))[:12]}{changed}")
    return clean(str(value))
