"""A plan as `--dry-run` prints it: what would run, how long it would take here, what is missing.

The time follows from a few steps and episodes of each kind of run, made now on this machine.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from rich.table import Table

from adaptask.data.cache import cache_root
from adaptask.data.datasets import DATASETS, Generated, is_prepared
from adaptask.experiments.backends import choose_backend
from adaptask.experiments.config import RunConfig, SamplerConfig
from adaptask.experiments.paper.reproduction import Plan
from adaptask.experiments.paper.timing import TimedRun
from adaptask.report.study import Arm
from adaptask.training.displays import duration
from adaptask.training.machine import choose_device, set_up_process

_REPEATS = 5
_MOST_SECONDS = 3.0
# A GPU evaluates many at once.
_EPISODES, _EPISODES_ON_GPU = 2, 50


@dataclass(frozen=True)
class Cost:
    """What a kind of run costs."""

    step: float
    """Seconds of a training step."""
    episode: float
    """Seconds of an evaluation episode."""


def dry_run(planned: Plan, *, workers: int | None = None) -> None:
    """Print a plan and, measured now on this machine, about how long it would take.

    Args:
        planned: What would run.
        workers: How many runs at once; None chooses as `reproduce` does.
    """
    console = Console(highlight=False)
    console.print(planned.title, style="bold")
    console.print(f"The paper: {planned.target.says}\n", markup=False)
    missing = [name for name in planned.datasets if not _is_there(name)]
    if planned.times:
        for time in planned.times:
            console.print(f"  {time.name}: uniform and gcp in turns")
        n_times, seconds = len(planned.times), planned.timing_seconds
        console.print(
            f"\n{n_times} settings of {seconds:g} s on {planned.datasets[0]}, nothing is trained "
            f"to the end: about {n_times * seconds:.0f} s."
        )
    else:
        _show_trials(planned, missing, workers, console)
    for dataset in missing:
        console.print(
            f"\n{dataset} has not been prepared: adaptask data prepare {dataset} --source PATH. "
            "Without a download: --dataset glyphs.",
            markup=False,
        )
    console.print()
    for note in planned.notes:
        console.print(f"- {note}", style="dim", markup=False)


def _is_there(dataset: str) -> bool:
    is_made_on_first_use = isinstance(DATASETS.get(dataset), Generated)
    return is_made_on_first_use or is_prepared(cache_root() / dataset)


def _show_trials(
    planned: Plan, missing: Sequence[str], workers: int | None, console: Console
) -> None:
    device = choose_device(planned.device)
    configs = [trial.config for trial in planned.trials for _ in range(planned.seeds)]
    backend = choose_backend(workers, configs, device.type)
    set_up_process(threads=backend.threads)  # as the runs will have it
    values = {
        key: list(dict.fromkeys(trial.labels[key] for trial in planned.trials))
        for key in planned.trials[0].labels
    }
    # What is the same for all is said once.
    if same := [f"{key} {found[0]}" for key, found in values.items() if len(found) == 1]:
        console.print(", ".join(same) + "\n", markup=False)
    keys = [key for key, found in values.items() if len(found) > 1]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for key in keys:
        table.add_column(key)
    for heading in ("steps", "tasks", "runs", "per run"):
        table.add_column(heading, justify="right", no_wrap=True)
    total = 0.0
    with console.status("") as status:
        for config, members in _kinds(planned.trials).items():
            n_runs, per_run = len(members) * planned.seeds, "?"
            if config.data.dataset not in missing:
                status.update(
                    f"timing {config.model.learner} on {config.model.backbone}, "
                    f"{config.data.dataset}, {config.tested_shot}-shot, on {device}"
                )
                seconds = run_seconds(config, measure_cost(config, device))
                total += seconds * n_runs
                per_run = duration(seconds)
            labels = [{trial.labels[key]: None for trial in members} for key in keys]
            table.add_row(
                *(", ".join(found) for found in labels),
                f"{config.steps:,}",
                str(config.task.n_tasks),
                str(n_runs),
                per_run,
            )
    console.print(table)
    trials, seeds = _counted(len(planned.trials), "trial"), _counted(planned.seeds, "seed")
    said = f"\n{trials}, {seeds} each: {_counted(planned.n_runs, 'run')}."
    if total:
        n_at_once = min(backend.n_at_once, planned.n_runs)
        at_once = f"{n_at_once} at once" if n_at_once > 1 else "one by one"
        said += f" About {duration(total / min(backend.speedup, n_at_once))} here, {at_once}"
        said += f", without {' and '.join(missing)}." if missing else "."
    console.print(said)


def _kinds(trials: Sequence[Arm]) -> dict[RunConfig, list[Arm]]:
    """Return trials that differ in their sampler alone together, by what they share."""
    found: dict[RunConfig, list[Arm]] = {}
    for trial in trials:
        found.setdefault(replace(trial.config, sampler=SamplerConfig()), []).append(trial)
    return found


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def run_seconds(config: RunConfig, cost: Cost) -> float:
    """Return the time of a run: its steps, its validations, and the test of its best weights."""
    every = config.every.validate
    n_validations = math.ceil(config.steps / every) if every else 1
    tests = config.evaluation
    n_episodes = n_validations * tests.n_validation
    n_episodes += tests.n_episodes * min(tests.keep_best, n_validations)
    return config.steps * cost.step + n_episodes * cost.episode


def measure_cost(config: RunConfig, device: torch.device) -> Cost:
    """Return what steps and episodes of a run cost, by making some."""
    n_episodes = _EPISODES_ON_GPU if device.type == "cuda" else _EPISODES
    evaluation = replace(config.evaluation, n_validation=n_episodes)
    run = TimedRun(replace(config, evaluation=evaluation), device)
    step = _median_seconds(run.step_seconds)
    return Cost(step, _median_seconds(run.validation_seconds) / n_episodes)


def _median_seconds(measure: Callable[[], float]) -> float:
    """Return the median of some measurements, fewer of what takes long."""
    times = [measure()]
    while len(times) <= _REPEATS and sum(times) < _MOST_SECONDS:
        times.append(measure())
    return statistics.median(times[1:] or times)  # the first time is slower
