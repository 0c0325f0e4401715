"""What the page says of its runs: what was compared, with which settings, in what, what failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from adaptask.report.page.data import Panel, clean
from adaptask.report.run import Run
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
_VERSIONS = ("adaptask", "python", "torch", "numpy", "cuda", "device", "platform", "cpu_count")


def describe_runs(study: Study, panels: Sequence[Panel]) -> dict[str, Any]:
    """Return the values of the page's introduction and of `provenance.html.j2`."""
    series = {one.arm.name: one for panel in panels for one in panel.series}
    records = [record for one in series.values() for record in one.records]
    configs = {name: _flat(one.records[0].settings) for name, one in series.items() if one.records}
    keys = list(dict.fromkeys(key for config in configs.values() for key in config))
    found = {key: {config.get(key) for config in configs.values()} for key in keys}
    differing = [key for key in keys if len(found[key]) > 1]
    samplers = dict.fromkeys(one.sampler for one in series.values())
    strategies = dict.fromkeys(one.strategy for one in series.values())
    n_finished = sum(record.test is not None for record in records)
    return {
        "statement": _statement(study, records, n_finished),
        "samplers": [
            *(_EXPLAINED[name] for name in samplers if name in _EXPLAINED),
            *(_STRATEGIES[name] for name in strategies if name in _STRATEGIES),
        ],
        "n_planned": _n_planned(study),
        "n_finished": n_finished,
        "troubles": list(_troubles(study)),
        "damage": [clean(text) for record in records for text in record.damage.values()],
        "common": [(key, str(found[key].pop())) for key in keys if len(found[key]) == 1],
        "differing": differing,
        "arms": [
            (clean(name), [config.get(key, "-") for key in differing])
            for name, config in configs.items()
        ],
        "versions": list(_versions(records)),
        "seeds": sorted({run.seed for arm in study.arms for run in arm.runs}),
    }


def _flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a run by their dotted names, in the order of its file."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": clean(str(item)) for name, item in value.items()}
        elif key not in ("seed", "format"):
            flat[key] = clean(str(value))
    return flat


def _n_planned(study: Study) -> int:
    return sum(len(arm.runs) for arm in study.arms)


def _statement(study: Study, records: Sequence[Run], n_finished: int) -> str:
    n_planned = _n_planned(study)
    if not records:
        return f"{_count(n_planned, 'run')} planned; none has begun."

    def chosen(section: str, key: str) -> str:
        found = (record.settings.get(section, {}).get(key) for record in records)
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
        f"{chosen('task', 'n_shot')}-shot, {steps} training steps per run. "
        f"{_count(len(study.arms), 'arm')} with {each} each make "
        f"{_count(n_planned, 'run')}; {done}."
    )


def _listed(values: Iterable[str]) -> str:
    *first, last = dict.fromkeys(values) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def _troubles(study: Study) -> Iterator[tuple[str, int, str]]:
    """Yield arm, seed and state of the runs without a result."""
    for arm in study.arms:
        for run in arm.runs:
            if not run.is_readable or run.test is None:
                yield clean(arm.name), run.seed, _state(run)


def _state(run: Run) -> str:
    if not run.is_readable:
        return clean(run.damage.get("config.toml", "not begun"))
    if "test.json" in run.damage:
        return clean(run.damage["test.json"])
    if run.pruned is not None:
        return "stopped early, since others were better"
    if run.failure is not None:
        return f"failed after step {run.steps_done}: {clean(run.failure)}"
    if run.steps_done >= run.n_steps:
        return "trained, not tested yet"
    return f"unfinished: {run.steps_done} of {run.n_steps} steps"


def _versions(records: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Yield what the runs were made in; several values where they differ."""
    found = [environment for record in records for environment in record.environment]
    for key in _VERSIONS:
        if values := {clean(str(e[key])): None for e in found if e.get(key) is not None}:
            yield key, ", ".join(values)
    for key in ("git", "adaptask_git"):
        revisions: dict[str, None] = {}
        for git in (environment.get(key) for environment in found):
            if isinstance(git, Mapping):
                changed = " with changes" if git.get("dirty") else ""
                revisions[clean(f"{str(git.get('revision'))[:12]}{changed}")] = None
        if revisions:
            yield key.replace("_", " "), ", ".join(revisions)
