"""What `adaptask evaluate` does."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adaptask.data import EpisodeSource, load, load_statistics
from adaptask.data.datasets import splits_of
from adaptask.data.images import (
    EvaluationTasks,
    ImageSet,
    resize_images,
    shrink_images,
    shrunk_shape,
)
from adaptask.errors import DataError, StateError, TrainingError
from adaptask.experiments.config import RunConfig
from adaptask.experiments.config_file import load_config, no_run_in
from adaptask.experiments.factory import build_evaluator, build_model
from adaptask.experiments.run import half_precision_pays
from adaptask.learners.ensemble import with_weights
from adaptask.training.distributed import SINGLE_PROCESS, refuse_torchrun
from adaptask.training.evaluation import Evaluation
from adaptask.training.loggers import MetricsLog
from adaptask.training.process import choose_device
from adaptask.training.run_folder import RunFolder


def evaluate_run(
    path: Path,
    *,
    dataset: str | None = None,
    split: str = "test",
    n_way: int | None = None,
    n_shot: int | None = None,
    n_query: int | None = None,
    n_episodes: int | None = None,
    tasks: Sequence[EvaluationTasks] = (),
    seed: int | None = None,
    weights: str = "best",
    device: str = "auto",
    trust_plugins: bool = False,
) -> Evaluation:
    """Measure the accuracy of a run; what is None or empty is as the run was tested.

    So is the precision, except for bfloat16 on a device that gains nothing from it.
    Results are printed, and added to `evaluations.jsonl` in the run's folder. That of the first
    kind of tasks is returned.

    Raises:
        AdaptaskError: If something cannot be used or done; the message says what to do.
    """
    refuse_torchrun("evaluate")
    folder = RunFolder(path)
    if not folder.config.exists():
        raise no_run_in(Path(path))
    where, config = choose_device(device), load_config(folder.config, trust_plugins=trust_plugins)
    if not half_precision_pays(where):
        plain = replace(config.machine, precision="float32", channels_last="no")
        config = replace(config, machine=plain)
    name = dataset or config.data.dataset
    if split not in (there := splits_of(name)):
        others = " or ".join(f"--split {other}" for other in there)
        raise DataError(f"the dataset '{name}' has no split '{split}'; choose {others}.")
    wanted = {"n_way": n_way, "n_shot": n_shot, "n_query": n_query, "n_episodes": n_episodes}
    config = _as_tested(config, {**wanted, "seed": seed}, tasks)
    learner, steps = trained_learner(folder, config, where, weights)
    # As the learner knows images: same shape, same normalization.
    image_shape = load(config.data.dataset, "train").image_shape
    tested_on = resize_images(load(name, split), image_shape)
    source = EpisodeSource(
        shrink_images(tested_on, config.data.shrink),
        device=where,
        normalization=load_statistics(config.data.dataset),
        storage=config.data.storage,
    )
    # All are built first: nothing is measured if one of them cannot be.
    evaluators = [
        build_evaluator(config, split, where, source, SINGLE_PROCESS, kind)
        for kind in config.evaluation.tasks
    ]
    results = [evaluator(learner) for evaluator in evaluators]
    _print_results(results, config, source.image_set)
    sys.stdout.write(f"Weights after step {', '.join(map(str, steps))} of {folder.path}\n")
    try:
        _record_results(results, config, source.image_set, folder, steps[0])
    except TrainingError as error:  # the result is not worth less for it
        _warn(f"Warning: the result above could not be recorded: {error}")
    return results[0]


def _as_tested(
    config: RunConfig, wanted: Mapping[str, int | None], tasks: Sequence[EvaluationTasks]
) -> RunConfig:
    """Return the configuration of a run with other test tasks; what is None stays."""
    evaluation = replace(config.evaluation, n_way=config.tested_way, n_shot=config.tested_shot)
    given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    evaluation = replace(evaluation, **given)
    kinds = tuple(dict.fromkeys(tasks)) or evaluation.tasks
    # The split may be that of validation.
    evaluation = replace(evaluation, n_validation=evaluation.n_episodes, tasks=kinds)
    return replace(config, evaluation=evaluation)


def _print_results(results: Sequence[Evaluation], config: RunConfig, image_set: ImageSet) -> None:
    for result in results:
        within = ", within groups" if result.tasks == "within-group" else ""
        sys.stdout.write(
            f"{image_set.dataset} ({image_set.split}), {config.tested_way}-way "
            f"{config.tested_shot}-shot{within}, {result.n_episodes} episodes: {result}, hardest "
            f"tenth {100 * result.hardest_tenth:.2f} %\n"
        )


def _record_results(
    results: Sequence[Evaluation],
    config: RunConfig,
    image_set: ImageSet,
    folder: RunFolder,
    step: int,
) -> None:
    log = MetricsLog(folder.path / "evaluations.jsonl")
    names = ("n_way", "n_shot", "n_query", "n_episodes", "seed")
    tested = {name: getattr(config.evaluation, name) for name in names}
    for result in results:
        within = "/within-group" if result.tasks == "within-group" else ""
        name = f"{image_set.dataset}/{image_set.split}{within}"
        log.log(step, name, {**tested, **result.summary()})


def trained_learner(
    folder: RunFolder, config: RunConfig, device: torch.device, weights: str
) -> tuple[nn.Module, list[int]]:
    """Return the learner of a run with its weights, and after which steps they are.

    Without validation classes the best weights are the last ones.
    """
    train = load(config.data.dataset, "train")
    learner = build_model(config, shrunk_shape(train, config.data.shrink), device)
    if weights == "last":
        saved = folder.load(_warn)
        if saved is None:
            raise StateError(f"{folder.path} has no checkpoint yet.")
        return with_weights(learner, [saved.trainer["learner"]]), [saved.trainer["step"]]
    best = folder.load_best()
    if not best and "val" not in splits_of(config.data.dataset):
        return trained_learner(folder, config, device, "last")
    if not best:
        raise StateError(
            f"{folder.path} has no best weights yet: it was never validated. Try --weights last."
        )
    states = [checkpoint.learner for checkpoint in best]
    return with_weights(learner, states), [checkpoint.step for checkpoint in best]


def _warn(text: str) -> None:
    sys.stderr.write(f"adaptask: {text}\n")
