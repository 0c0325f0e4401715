"""Builds the parts of a run from its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import optim

from adaptask.backbones import build_backbone
from adaptask.data import EpisodeSource, load, open_episodes
from adaptask.data.augmentation import GaussianNoise
from adaptask.data.datasets import splits_of
from adaptask.data.images import EvaluationTasks
from adaptask.errors import ArgumentError
from adaptask.experiments.config import RunConfig
from adaptask.experiments.init_weights import freeze, load_backbone, read_weights
from adaptask.experiments.options import class_of, configure, options_of, takes_argument
from adaptask.learners import Learner, build_learner
from adaptask.randomness import derive_seed
from adaptask.samplers import Sampler, build_sampler
from adaptask.training.displays import Display
from adaptask.training.distributed import SINGLE_PROCESS, ProcessGroup
from adaptask.training.evaluation import Evaluator
from adaptask.training.optimizer import Schedule, StepSchedule, build_optimizer, constant, cosine
from adaptask.training.run_folder import RunFolder
from adaptask.training.step import check_hooks, n_features_of
from adaptask.training.trainer import Trainer

ImageShape = tuple[int, int, int]

# Conv-4 for a learner that compares feature maps, as Sung et al. (2018) have it.
_N_POOLED_FOR_MAPS = 2
_ANY_SHAPE = (1, 8, 8)


def build_model(config: RunConfig, image_shape: ImageShape, device: torch.device) -> Learner:
    """Build the learner with fresh weights that the run's seed decides.

    The process's random state is left as it was.

    Raises:
        ArgumentError: If the options do not fit each other or the images.
    """
    learner_class = class_of(config.learner)
    backbone_options = options_of(config.backbone)
    needs_maps = getattr(learner_class, "needs_feature_maps", False)
    if needs_maps and backbone_options.get("n_pooled", 0) is None:
        backbone_options["n_pooled"] = _N_POOLED_FOR_MAPS
    # Only the generator of the CPU, on which weights are made: a process that only checks
    # configurations should not open a context on every GPU.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(config.seed, "weights"))
        backbone = build_backbone(config.backbone.name, image_shape=image_shape, **backbone_options)
        options = options_of(config.learner)
        if takes_argument(config.learner, "n_way"):
            options["n_way"] = config.task.n_way
        if takes_argument(config.learner, "n_classes"):
            options["n_classes"] = load(config.data.dataset, "train").n_classes
        learner = build_learner(config.learner.name, backbone=backbone, **options)
    learner.to(device)
    if config.machine.channels_last == "yes":
        learner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return learner


def depends_on_steps(config: RunConfig) -> bool:
    """Return whether the number of steps already matters at the first one."""
    if config.optimizer.schedule == "cosine":
        return True
    # Not on the backbone of the run: it may take images of another shape only.
    anywhere = replace(config, backbone=configure("backbone", "identity"))
    learner = build_model(anywhere, _ANY_SHAPE, torch.device("cpu"))
    return bool(getattr(learner, "depends_on_total_steps", False))


def build_parts(
    config: RunConfig, source: EpisodeSource, device: torch.device
) -> tuple[Learner, Sampler, optim.Optimizer]:
    """Build what a training step needs besides its images: learner, sampler and optimizer.

    Raises:
        ArgumentError: If the configuration does not fit the data, or weights to start with do not
            fit the backbone.
        DataError: If a class has too few images.
    """
    _check_tasks(config, source)
    learner = build_model(config, source.image_set.image_shape, device)
    if config.start.init is not None:
        load_backbone(learner, read_weights(config.start.init), config.start.init)
    if config.start.freeze is not None:
        freeze(learner, config.start.freeze)
    options = options_of(config.sampler)
    if takes_argument(config.sampler, "n_features"):
        options["n_features"] = n_features_of(learner, config.sampler.name)
    if takes_argument(config.sampler, "variant_of"):
        options["variant_of"] = source.image_set.variant_of
    if takes_argument(config.sampler, "groups"):
        options["groups"] = _groups_of(config, source)
    sampler = build_sampler(
        config.sampler.name,
        n_classes=source.n_classes,
        n_way=config.task.n_way,
        seed=derive_seed(config.seed, "tasks"),
        device=device,
        **options,
    )
    check_hooks(
        sampler, learner, n_tasks=config.task.n_tasks, accumulate=config.optimizer.accumulate
    )
    optimizer = build_optimizer(
        config.optimizer.name,
        [parameter for parameter in learner.parameters() if parameter.requires_grad],
        lr=config.optimizer.lr,
        weight_decay=config.optimizer.weight_decay,
        momentum=config.optimizer.momentum,
    )
    return learner, sampler, optimizer


def build_trainer(
    config: RunConfig,
    device: torch.device,
    *,
    folder: RunFolder | None,
    display: Display | None,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Trainer:
    """Build everything that a run needs; without validation if the dataset has no `val` classes.

    Args:
        config: Everything that decides it.
        device: Where it is computed.
        folder: Where it is kept.
        display: Shows progress.
        group: The processes that make it together.

    Raises:
        ArgumentError: If the configuration does not fit the data.
        DataError: If the dataset has not been prepared.
    """
    source = open_split(config, "train", device)
    learner, sampler, optimizer = build_parts(config, source, device)
    machine, validation = config.machine, None
    if "val" in splits_of(config.data.dataset):
        validation = build_evaluator(config, "val", device, group=group)
    return Trainer(
        learner,
        sampler,
        source,
        n_shot=config.task.n_shot,
        n_query=config.task.n_query,
        n_tasks=config.task.n_tasks,
        optimizer=optimizer,
        schedule=build_schedule(config),
        accumulate=config.optimizer.accumulate,
        clip_norm=config.optimizer.clip_norm,
        precision=machine.precision,
        compiled=machine.compile == "yes",
        engine=machine.engine,
        validation=validation,
        keep_best=config.evaluation.keep_best,
        every=config.every,
        folder=folder,
        display=display,
        group=group,
    )


def _check_tasks(config: RunConfig, source: EpisodeSource) -> None:
    """Check that training tasks can be drawn, and that evaluation has tasks of their kind."""
    n_way = source.check_way(config.task.n_way)
    has_fixed_way = getattr(class_of(config.learner), "has_fixed_way", False)
    if has_fixed_way and config.tested_way != n_way:
        raise ArgumentError(
            f"the learner {config.learner.name!r} has an output for each of the {n_way} classes "
            f"of a training task; evaluation must have as many, got {config.tested_way}."
        )
    source.check_counts(config.task.n_shot, config.task.n_query)


def _groups_of(config: RunConfig, source: EpisodeSource) -> Sequence[str]:
    """Return the group of every training class, for a sampler that needs them.

    Raises:
        ArgumentError: If the dataset has no groups.
    """
    groups = source.image_set.groups
    if groups is None:
        raise ArgumentError(
            f"the sampler {config.sampler.name!r} needs groups of classes, which "
            f"{config.data.dataset!r} has not. Class names of the form group/class give them; or "
            "choose another sampler."
        )
    return groups


def open_split(config: RunConfig, split: str, device: torch.device) -> EpisodeSource:
    """Return the episodes of a split of the run's dataset; only training ones are augmented."""
    name = config.data.augmentation if split == "train" else "none"
    augmentation = GaussianNoise(strength=config.data.noise) if name == "noise" else name
    return open_episodes(
        config.data.dataset,
        split,
        device=device,
        seed=derive_seed(config.seed, "images"),
        augmentation=None if augmentation == "default" else augmentation,
        storage=config.data.storage,
        shrink=config.data.shrink,
    )


def build_evaluator(
    config: RunConfig,
    split: str,
    device: torch.device,
    source: EpisodeSource | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
    tasks: EvaluationTasks = "uniform",
) -> Evaluator:
    """Build the evaluation on a split: its episodes depend on `evaluation.seed` alone.

    Args:
        config: Decides ways, shots, queries and the number of episodes.
        split: `val`, or `test`.
        device: Where it is computed.
        source: The images, if they are not those of the run's dataset.
        group: The processes that evaluate together.
        tasks: Of which kind.

    Raises:
        ArgumentError: If the split has too few classes, or none of its groups has enough.
        DataError: If it has one class only, or its classes have too few images.
    """
    evaluation = config.evaluation
    source = source or open_split(config, split, device)
    try:
        source.check_way(config.tested_way, "n_way of evaluation")
    except ArgumentError as error:
        if evaluation.n_way is not None:
            raise
        hint = " Training tasks may have more: set --evaluation.n-way."
        raise ArgumentError(f"{error}{hint}") from error
    return Evaluator(
        source,
        n_way=config.tested_way,
        n_shot=config.tested_shot,
        n_query=evaluation.n_query,
        n_episodes=evaluation.n_validation if split == "val" else evaluation.n_episodes,
        seed=derive_seed(evaluation.seed, split),
        precision=config.machine.precision,  # type: ignore[arg-type]
        tasks=tasks,
        group=group,
    )


def build_testers(
    config: RunConfig, device: torch.device, group: ProcessGroup = SINGLE_PROCESS
) -> list[Evaluator]:
    """Build an evaluation on the test classes for each kind of tasks, uniform ones first.

    Raises:
        ArgumentError, DataError: As `build_evaluator` does.
    """
    source = open_split(config, "test", device)
    kinds = sorted(config.evaluation.tasks)  # uniform before within-group
    return [build_evaluator(config, "test", device, source, group, kind) for kind in kinds]


def build_schedule(config: RunConfig) -> Schedule:
    """Build the schedule of the learning rate.

    Raises:
        ArgumentError: If milestones and factors do not fit each other.
    """
    optimizer = config.optimizer
    if optimizer.schedule == "step":
        return StepSchedule(optimizer.milestones, optimizer.factors)
    return {"constant": constant, "cosine": cosine}[optimizer.schedule]
