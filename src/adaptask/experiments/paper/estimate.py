"""A plan as `--dry-run` prints it: what would run, how long it would take here, what is missing.

The time follows from a few steps and episodes of each kind of run, measured now on this machine.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from rich.table import Table

from adaptask.data.cache import cache_root
from adaptask.data.registry import DATASETS, Generated, is_prepared
from adaptask.experiments.backends import choose_backend
from adaptask.experiments.building import build_evaluator, build_model
from adaptask.experiments.config import RunConfig
from adaptask.experiments.paper.reproduction import Plan
from adaptask.experiments.paper.timing import Work, build_step, open_or_noise, seconds
from adaptask.experiments.run import resolve_auto
from adaptask.experiments.trials import Trial
from adaptask.training.machine import choose_device, set_up_process

BUDGET = 12.0
"""Seconds that the measurement of a kind of run may take."""
_REPEATS = 5
_EPISODES = 2


@dataclass(frozen=True)
class Cost:
    """What a kind of run costs."""

    step: float
    """Seconds of a training step."""
    episode: float
    """Seconds of an evaluation episode."""
    is_measured_whole: bool
    """Whether whole steps were measured, or smaller ones whose time grew with the images."""


def dry_run(planned: Plan, *, workers: int | None = None) -> None:
    """Print a plan and, measured now on this machine, about how long it would take.

    Args:
        planned: What would run.
        workers: How many runs at once; None chooses as `reproduce` does.
    """
    console = Console(highlight=False)
    console.print(planned.title, style="bold")
    console.print(f"The paper: {planned.target.says}\n", markup=False)
    if planned.times:
        for time in planned.times:
            console.print(f"  {time.name}: uniform and gcp in turns")
        console.print(
            f"\n{len(planned.times)} settings of {planned.timing_seconds:g} s on "
            f"{planned.datasets[0]}, nothing is trained to the end: about "
            f"{duration(len(planned.times) * planned.timing_seconds)}."
        )
    else:
        _show_trials(planned, workers, console)
    for dataset in planned.datasets:
        is_made = isinstance(DATASETS.get(dataset), Generated)
        if not is_made and not is_prepared(cache_root() / dataset):
            console.print(
                f"\n{dataset} has not been prepared: adaptask data prepare {dataset} --source "
                "PATH. Without a download: --dataset glyphs.",
                markup=False,
            )
    console.print()
    for note in planned.notes:
        console.print(f"- {note}", style="dim", markup=False)


def _show_trials(planned: Plan, workers: int | None, console: Console) -> None:
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
    total, is_whole = 0.0, True
    with console.status("") as status:
        for members in _groups(planned.trials):
            config, n_runs = members[0].config, len(members) * planned.seeds
            status.update(
                f"timing {config.model.learner} on {config.model.backbone}, "
                f"{config.data.dataset}, {config.tested_shot}-shot, on {device}"
            )
            cost = measure_cost(config, device)
            took = run_seconds(config, cost)
            total += took * n_runs
            is_whole &= cost.is_measured_whole
            labels = [{trial.labels[key]: None for trial in members} for key in keys]
            table.add_row(
                *(", ".join(found) for found in labels),
                f"{config.steps:,}",
                str(config.task.n_tasks),
                str(n_runs),
                duration(took),
            )
    console.print(table)
    trials, seeds = _counted(len(planned.trials), "trial"), _counted(planned.seeds, "seed")
    how = "a few steps of each kind" if is_whole else "parts of a step where one takes long"
    n_at_once = backend.n_at_once
    pace = f"{n_at_once} at once" if n_at_once > 1 else "one after the other"
    said = f"{trials}, {seeds} each: {_counted(planned.n_runs, 'run')}. "
    said += f"About {duration(total / backend.speedup)} here, {pace}, by {how}."
    if any(resolve_auto(config, device).machine.compile == "yes" for config in configs):
        said += " Compiled, as long runs are, they take up to a third less."
    console.print(f"\n{said}")


def _groups(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Return trials that differ in their sampler alone, together."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        rest = {k: v for k, v in trial.labels.items() if k not in ("sampler", "alpha", "tau")}
        groups.setdefault(str(rest), []).append(trial)
    return list(groups.values())


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def duration(seconds: float) -> str:
    """Return a time in the units that suit it.

    >>> duration(42), duration(600), duration(5400), duration(400_000)
    ('42 s', '10 min', '1 h 30 min', '4 d 15 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"


def run_seconds(config: RunConfig, cost: Cost) -> float:
    """Return the time of a run: its steps, its validations, and the test of its best weights."""
    every = config.every.validate
    n_validations = math.ceil(config.steps / every) if every else 1
    tests = config.evaluation
    n_episodes = n_validations * tests.n_validation
    n_episodes += tests.n_episodes * min(tests.keep_best, n_validations)
    return config.steps * cost.step + n_episodes * cost.episode


def measure_cost(config: RunConfig, device: torch.device, *, budget: float = BUDGET) -> Cost:
    """Return what steps and episodes of a run cost.

    Args:
        config: Of the run.
        device: Where it would run.
        budget: Seconds that this may take, about.
    """
    config = resolve_auto(config, device)
    step, is_whole = _step_seconds(_growing(config), device, budget / 2)
    episodes = _median_seconds(_build_episodes(config, device), device, budget / 2)
    return Cost(step, episodes / _EPISODES, is_whole)


def _growing(config: RunConfig) -> list[RunConfig]:
    """Return versions of a run with more and more images per step, itself last."""
    task = config.task
    one = replace(config.optimiser, accumulate=1)
    tasks = [
        replace(task, n_tasks=1, n_shot=1, n_query=1),
        replace(task, n_tasks=1, n_shot=-(-task.n_shot // 4), n_query=-(-task.n_query // 4)),
        replace(task, n_tasks=1),
    ]
    smaller = [replace(config, task=part, optimiser=one) for part in tasks]
    return list(dict.fromkeys((*smaller, config)))


def _n_passes(config: RunConfig) -> int:
    """Return how often an image goes through the network in a step.

    A step on support images counts as three: forward, and backward for weights and images.
    """
    task, options = config.task, config.learner_options
    n_support, n_query = task.n_way * task.n_shot, task.n_way * task.n_query
    inner_steps: int | None = getattr(options, "inner_steps", None)
    if inner_steps is None:
        return task.n_tasks * (n_support + n_query)
    batch: int = min(n_support, getattr(options, "batch_size", n_support))
    return task.n_tasks * (3 * inner_steps * batch + n_query)


def _step_seconds(
    configs: Sequence[RunConfig], device: torch.device, budget: float
) -> tuple[float, bool]:
    """Return the time of a step of the last run, and whether it was measured itself.

    Runs are measured from the smallest on, as long as the next one fits into the budget. It takes
    at most as much longer as it has more passes, and less where a part of the time does not depend
    on them; beyond the last that fits, time grows as between the last two.
    """
    measured: list[tuple[int, float]] = []
    for config in configs:
        n_passes = _n_passes(config)
        if measured and measured[-1][1] * n_passes / measured[-1][0] > budget:
            break
        took = _median_seconds(build_step(config, device), device, budget / len(configs))
        measured.append((n_passes, took))
    n_passes, took = measured[-1]
    if len(measured) == len(configs):
        return took, True
    fixed_passes, fixed = measured[-2] if len(measured) > 1 else (0, 0.0)
    slope = max(0.0, took - fixed) / (n_passes - fixed_passes)
    return took + slope * (_n_passes(configs[-1]) - n_passes), False


def _median_seconds(work: Work, device: torch.device, budget: float) -> float:
    """Return the median time of some work, done as often as fits into the budget."""
    times = [seconds(work, device)]
    while len(times) <= _REPEATS and sum(times) + times[-1] < budget:
        times.append(seconds(work, device))
    return statistics.median(times[1:] or times)  # the first time is slower


def _build_episodes(config: RunConfig, device: torch.device) -> Work:
    """Return what evaluates a learner with fresh weights on a few episodes."""
    evaluation = replace(config.evaluation, n_validation=_EPISODES)
    config = replace(config, evaluation=evaluation)
    n_images = config.tested_shot + evaluation.n_query
    source = open_or_noise(config, "val", device, config.tested_way, n_images)
    learner = build_model(config, source.image_set.image_shape, device)
    evaluator = build_evaluator(config, "val", device, source)
    return lambda: evaluator(learner)
