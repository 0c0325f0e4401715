"""Smaller versions of a configuration: fewer steps and episodes, or fewer images per class."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from adaptask.data import glyphs
from adaptask.data.benchmarks import Benchmark
from adaptask.data.cache import cache_root, read_meta
from adaptask.data.datasets import DATASETS, is_prepared
from adaptask.experiments.config import EveryConfig, RunConfig

LEAST_STEPS = 30
LEAST_EPISODES = 50


def scaled(config: RunConfig, scale: float) -> RunConfig:
    """Return a run of `scale` times the steps and episodes, and not fewer than the least.

    Milestones, the ramp of DropBlock and the intervals shrink as the steps do. Since episodes
    shrink less, validations become rarer, so that they take no larger a share of the run than at
    full scale; checkpoints become ten at most.

    Args:
        config: At full scale.
        scale: Above 0, at most 1, which changes nothing.
    """
    if scale == 1:
        return config
    steps = min(config.steps, max(LEAST_STEPS, round(config.steps * scale)))
    ratio = steps / config.steps
    tests, every = config.evaluation, config.every
    n_validation = _episodes(tests.n_validation, scale)
    milestones: list[int] = []
    for milestone in config.optimiser.milestones:
        earliest = milestones[-1] + 1 if milestones else 1
        milestones.append(max(earliest, round(milestone * ratio)))
    found = replace(
        config,
        steps=steps,
        evaluation=replace(
            tests, n_episodes=_episodes(tests.n_episodes, scale), n_validation=n_validation
        ),
        optimiser=replace(config.optimiser, milestones=tuple(milestones)),
        every=EveryConfig(
            log=_interval(every.log, ratio),
            validate=_interval(every.validate, ratio, share=n_validation / tests.n_validation),
            checkpoint=max(_interval(every.checkpoint, ratio), math.ceil(steps / 10)),
            snapshot=_interval(every.snapshot, ratio),
        ),
    )
    if config.model.backbone == "resnet12":
        ramp = max(1, round(config.resnet12.drop_block_ramp * ratio))
        found = replace(found, resnet12=replace(config.resnet12, drop_block_ramp=ramp))
    return found


def _episodes(n_episodes: int, scale: float) -> int:
    return min(n_episodes, max(LEAST_EPISODES, round(n_episodes * scale)))


def _interval(interval: int, ratio: float, share: float = 0.0) -> int:
    """Return an interval that shrinks with the steps, but not below `share` of itself."""
    if interval == 0:
        return 0
    return max(1, round(interval * ratio), math.ceil(interval * share))


def fitted(config: RunConfig, n_images: int | None) -> RunConfig:
    """Return a run whose tasks take no more images of a class than there are, if that can be.

    Training gives up shots beyond those of the test first, then queries; tests give up queries.

    Args:
        config: Any.
        n_images: How many images the smallest class has; None where that is not known.
    """
    if n_images is None:
        return config
    task, tested = config.task, config.tested_shot
    n_shot = min(task.n_shot, max(tested, n_images - task.n_query))
    n_query = min(task.n_query, n_images - n_shot)
    n_tested = min(config.evaluation.n_query, n_images - tested)
    if min(n_query, n_tested) < 1:
        return config  # what it is built from says what is missing
    return replace(
        config,
        task=replace(task, n_shot=n_shot, n_query=n_query),
        evaluation=replace(config.evaluation, n_query=n_tested),
    )


def images_per_class(dataset: str) -> int | None:
    """Return how many images the smallest class of a dataset has, if that is known."""
    folder, entry = cache_root() / dataset, DATASETS.get(dataset)
    if is_prepared(folder):
        splits = read_meta(folder)["splits"].values()
        return min(int(b - a) for split in splits for a, b in pairwise(split["class_starts"]))
    if isinstance(entry, Benchmark):
        return entry.class_size[0]
    return glyphs.N_EXAMPLES if dataset == glyphs.NAME else None
