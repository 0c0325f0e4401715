"""How long planned runs would take, measured on this machine by a few steps of each kind."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from adaptask.experiments.config import (
    EvaluationConfig,
    EveryConfig,
    OptimiserConfig,
    RunConfig,
    SamplerConfig,
)
from adaptask.experiments.paper.step_times import Work, build_episodes, build_step, seconds

BUDGET = 12.0
"""Seconds that the measurement of a kind may take; a step that takes longer is measured once."""
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


@dataclass(frozen=True)
class _Size:
    """Work, and how many images go through the network for it."""

    n_passes: int
    build: Callable[[], Work]


def kind_of(config: RunConfig) -> RunConfig:
    """Return what decides the time of a step and of an episode: all runs of a kind share it."""
    return replace(
        config,
        steps=1,
        seed=0,
        sampler=SamplerConfig(name="uniform"),
        optimiser=OptimiserConfig(
            name=config.optimiser.name,
            momentum=config.optimiser.momentum,
            accumulate=config.optimiser.accumulate,
        ),
        evaluation=EvaluationConfig(
            n_way=config.tested_way, n_shot=config.tested_shot, n_query=config.evaluation.n_query
        ),
        every=EveryConfig(),
        resnet12=replace(config.resnet12, drop_block_ramp=RunConfig().resnet12.drop_block_ramp),
    )


def run_seconds(config: RunConfig, cost: Cost) -> float:
    """Return the time of a run: its steps, its validations, and the test of its best weights."""
    every = config.every.validate
    n_validations = math.ceil(config.steps / every) if every else 1
    tests = config.evaluation
    n_episodes = n_validations * tests.n_validation
    n_episodes += tests.n_episodes * min(tests.keep_best, n_validations)
    return config.steps * cost.step + n_episodes * cost.episode


def measure_costs(
    configs: Iterable[RunConfig],
    device: torch.device,
    *,
    budget: float = BUDGET,
    progress: Callable[[RunConfig], None] = lambda kind: None,
) -> dict[RunConfig, Cost]:
    """Return the cost of every kind among some runs, by `kind_of`.

    Args:
        configs: Of the runs.
        device: Where they would run.
        budget: Seconds a kind.
        progress: Told each kind before it is measured.
    """
    costs = {}
    for kind in dict.fromkeys(map(kind_of, configs)):
        progress(kind)
        costs[kind] = _measure(kind, device, budget)
    return costs


def _measure(kind: RunConfig, device: torch.device, budget: float) -> Cost:
    steps = [_training(size, device) for size in _smaller_steps(kind)]
    step, is_whole = _climb(steps, device, budget / 2)
    tests = [_testing(size, device) for size in _smaller_tests(kind)]
    episodes, _ = _climb(tests, device, budget / 2)
    return Cost(step=step, episode=episodes / _EPISODES, is_measured_whole=is_whole)


def _smaller_steps(kind: RunConfig) -> list[RunConfig]:
    """Return versions of a kind with more and more images a step, itself last."""
    task = kind.task
    one = replace(kind.optimiser, accumulate=1)
    tasks = [
        replace(task, n_tasks=1, n_shot=1, n_query=1),
        replace(task, n_tasks=1, n_shot=-(-task.n_shot // 4), n_query=-(-task.n_query // 4)),
        replace(task, n_tasks=1),
    ]
    smaller = [replace(kind, task=part, optimiser=one) for part in tasks]
    return list(dict.fromkeys((*smaller, kind)))


def _smaller_tests(kind: RunConfig) -> list[RunConfig]:
    """Return versions of a kind with more and more images a test, itself last."""
    tests = kind.evaluation
    n_shot, n_query = kind.tested_shot, tests.n_query
    parts = [
        replace(tests, n_shot=1, n_query=1),
        replace(tests, n_shot=-(-n_shot // 4), n_query=-(-n_query // 4)),
    ]
    return list(dict.fromkeys((*(replace(kind, evaluation=part) for part in parts), kind)))


def _training(config: RunConfig, device: torch.device) -> _Size:
    task = config.task
    n_passes = task.n_tasks * _passes(config, task.n_way, task.n_shot, task.n_query, "inner_steps")
    return _Size(n_passes, lambda: build_step(config, device))


def _testing(config: RunConfig, device: torch.device) -> _Size:
    n_query = config.evaluation.n_query
    n_passes = _passes(config, config.tested_way, config.tested_shot, n_query, "evaluation_steps")
    return _Size(n_passes, lambda: build_episodes(config, device, _EPISODES))


def _passes(config: RunConfig, n_way: int, n_shot: int, n_query: int, steps: str) -> int:
    """Return how often an image goes through the network for a task.

    A step on support images counts as three: forward, and backward for weights and images.
    """
    options = config.learner_options
    # Where no steps are set for tests, they are those of training.
    inner_steps: int | None = getattr(options, steps, None)
    inner_steps = inner_steps or getattr(options, "inner_steps", None)
    if inner_steps is None:
        return n_way * (n_shot + n_query)
    batch: int = min(n_way * n_shot, getattr(options, "batch_size", n_way * n_shot))
    return 3 * inner_steps * batch + n_way * n_query


def _climb(sizes: Sequence[_Size], device: torch.device, budget: float) -> tuple[float, bool]:
    """Return the time of the last size, and whether it was measured itself.

    Sizes are measured from the smallest on, as long as the next one fits into what is left of the
    budget. It takes at most as much longer as it has more passes, and less where a part of the
    time does not depend on them; beyond the last that fits, time grows as between the last two.
    """
    left, measured = budget, list[tuple[int, float]]()
    for size in sizes:
        if measured and measured[-1][1] * size.n_passes / measured[-1][0] > left:
            break
        work = size.build()
        took = seconds(work, device)
        left -= took
        if 2 * took < left:  # the first time is slower
            took = seconds(work, device)
            left -= took
        measured.append((size.n_passes, took))
    n_passes, took = measured[-1]
    if len(measured) == len(sizes):
        times = [took]
        while len(times) < _REPEATS and took < left:
            times.append(seconds(work, device))
            left -= times[-1]
        return statistics.median(times), True
    fixed_passes, fixed = measured[-2] if len(measured) > 1 else (0, 0.0)
    slope = max(0.0, took - fixed) / (n_passes - fixed_passes)
    return took + slope * (sizes[-1].n_passes - n_passes), False
