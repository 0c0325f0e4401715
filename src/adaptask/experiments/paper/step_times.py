"""Training steps and evaluations by themselves, to measure how long they take.

Where a dataset has not been prepared, noise of the shape of its images takes its place: times do
not depend on what images show.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from adaptask.data import EpisodeSource
from adaptask.data.images import ImageSet
from adaptask.experiments.arithmetic import settled
from adaptask.experiments.building import build_evaluator, build_model, build_parts, open_split
from adaptask.experiments.config import RunConfig
from adaptask.experiments.paper.datasets_at_hand import image_shape, is_at_hand
from adaptask.training.graph import GraphEngine
from adaptask.training.step import TrainingStep

Work = Callable[[], object]

# The first are launched kernel by kernel, then one is captured: a run is made of those after.
_STEPS_TO_CAPTURE = 4


def build_step(config: RunConfig, device: torch.device) -> Work:
    """Return what makes one training step of a run, whenever it is called.

    Raises:
        ArgumentError: If the configuration does not fit the data.
        DataError: If a class has too few images.
    """
    task = config.task
    source = _source(config, "train", device, task.n_way, task.n_shot + task.n_query)
    learner, sampler, optimizer = build_parts(config, source, device)
    machine = settled(config, device).machine
    step = TrainingStep(
        learner,
        sampler,
        source,
        optimizer,
        n_shot=task.n_shot,
        n_query=task.n_query,
        n_tasks=task.n_tasks,
        accumulate=config.optimiser.accumulate,
        clip_norm=config.optimiser.clip_norm,
        precision=machine.precision,
    )
    learner.train()
    # Not compiled: that takes longer than what is measured.
    engine = GraphEngine(step, engine=machine.engine, report=lambda text: None)
    numbers = itertools.count()
    if device.type == "cuda":
        for _ in range(_STEPS_TO_CAPTURE):
            engine(next(numbers))
    return lambda: engine(next(numbers))


def build_episodes(config: RunConfig, device: torch.device, n_episodes: int) -> Work:
    """Return what evaluates a learner with fresh weights on so many episodes.

    Raises:
        ArgumentError: If the configuration does not fit the data.
        DataError: If a class has too few images.
    """
    evaluation = replace(config.evaluation, n_validation=n_episodes)
    config = replace(config, evaluation=evaluation)
    n_images = config.tested_shot + evaluation.n_query
    source = _source(config, "val", device, config.tested_way, n_images)
    learner = build_model(config, source.image_set.image_shape, device)
    evaluator = build_evaluator(config, "val", device, source)
    return lambda: evaluator(learner)


def seconds(work: Work, device: torch.device, n_times: int = 1) -> float:
    """Return how long some work takes, done `n_times` in a row, until the device has done it."""
    start = time.perf_counter()
    for _ in range(n_times):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _source(
    config: RunConfig, split: str, device: torch.device, n_classes: int, n_images: int
) -> EpisodeSource:
    if is_at_hand(config.data.dataset):
        return open_split(config, split, device)
    augmentation = config.data.augmentation if split == "train" else "none"
    noise = _noise(image_shape(config.data.dataset), n_classes, n_images)
    return EpisodeSource(
        noise, device=device, augmentation=None if augmentation == "default" else augmentation
    )


def _noise(shape: tuple[int, int, int], n_classes: int, n_images: int) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (n_classes * n_images, *shape), generator=generator)
    return ImageSet(
        dataset="noise",
        split="train",
        images=pixels.to(torch.uint8),
        class_names=tuple(f"noise-{i}" for i in range(n_classes)),
        class_starts=torch.arange(n_classes + 1) * n_images,
    )
