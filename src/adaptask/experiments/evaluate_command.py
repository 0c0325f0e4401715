"""What `adaptask evaluate` does, and what it says."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from adaptask.data import EpisodeSource, load, load_statistics
from adaptask.data.refitting import refit
from adaptask.errors import StateError, TrainingError
from adaptask.experiments.building import build_evaluator, build_model, with_weights
from adaptask.experiments.config import RunConfig
from adaptask.experiments.config_file import load_config, no_run_in
from adaptask.experiments.run import half_precision_pays
from adaptask.training.distributed import refuse_launch
from adaptask.training.evaluation import Evaluation
from adaptask.training.machine import choose_device
from adaptask.training.records import MetricsLog
from adaptask.training.run_folder import RunFolder

_DECIDE_EPISODES = ("n_way", "n_shot", "n_query", "n_episodes", "seed")


def evaluate_run(
    path: Path,
    *,
    dataset: str | None = None,
    split: str = "test",
    n_way: int | None = None,
    n_shot: int | None = None,
    n_query: int | None = None,
    n_episodes: int | None = None,
    seed: int | None = None,
    weights: str = "best",
    device: str = "auto",
) -> Evaluation:
    """Measure the accuracy of a run; what is None is as the run was tested.

    So is the precision, but for bfloat16 on a device that gains nothing by it.
    The result is printed, and added to `evaluations.jsonl` in the run's folder.

    Raises:
        AdaptaskError: If something cannot be used or done; the message says what to do.
    """
    refuse_launch("evaluate")
    folder = RunFolder(path)
    if not folder.config.exists():
        raise no_run_in(Path(path))
    config = load_config(folder.config)
    given = {"n_way": n_way, "n_shot": n_shot, "n_query": n_query, "seed": seed}
    count = config.evaluation.n_episodes if n_episodes is None else n_episodes
    evaluation = replace(
        config.evaluation,
        **{
            "n_way": config.tested_way,
            "n_shot": config.tested_shot,
            "n_episodes": count,
            "n_validation": count,
            **{name: value for name, value in given.items() if value is not None},
        },
    )
    where, machine = choose_device(device), config.machine
    if not half_precision_pays(where):
        machine = replace(machine, precision="float32", channels_last="no")
    config = replace(config, evaluation=evaluation, machine=machine)
    image_shape = load(config.data.dataset, "train").image_shape
    learner, steps = _trained(folder, config, image_shape, where, weights)
    source = _images(config, dataset or config.data.dataset, split, image_shape, where)
    result = build_evaluator(config, split, where, source)(learner)
    _say(folder, config, source, result, steps)
    return result


def _trained(
    folder: RunFolder,
    config: RunConfig,
    image_shape: tuple[int, int, int],
    device: torch.device,
    weights: str,
) -> tuple[nn.Module, list[int]]:
    """Return the learner of a run with its weights, and after which steps they are."""
    learner = build_model(config, image_shape, device)
    if weights == "last":
        saved = folder.load(_complain)
        if saved is None:
            raise StateError(f"{folder.path} has no checkpoint yet.")
        return with_weights(learner, [saved.trainer["learner"]]), [saved.trainer["step"]]
    best = folder.load_best()
    if not best:
        raise StateError(
            f"{folder.path} has no best weights yet: it was never validated. Try --weights last."
        )
    states = [checkpoint.learner for checkpoint in best]
    return with_weights(learner, states), [checkpoint.step for checkpoint in best]


def _images(
    config: RunConfig,
    dataset: str,
    split: str,
    image_shape: tuple[int, int, int],
    device: torch.device,
) -> EpisodeSource:
    """Return a split as the run's learner knows images: same shape, same normalisation."""
    return EpisodeSource(
        refit(load(dataset, split), image_shape),
        device=device,
        normalisation=load_statistics(config.data.dataset),
        storage=config.data.storage,
    )


def _say(
    folder: RunFolder,
    config: RunConfig,
    source: EpisodeSource,
    result: Evaluation,
    steps: list[int],
) -> None:
    evaluation, image_set = config.evaluation, source.image_set
    sys.stdout.write(
        f"{image_set.dataset} ({image_set.split}), {evaluation.n_way}-way "
        f"{evaluation.n_shot}-shot, {result.n_episodes} episodes: {result}\n"
        f"Weights after step {', '.join(map(str, steps))} of {folder.path}\n"
    )
    tasks = {name: getattr(evaluation, name) for name in _DECIDE_EPISODES}
    try:
        log = MetricsLog(folder.path / "evaluations.jsonl")
        log.log(steps[0], f"{image_set.dataset}/{image_set.split}", {**tasks, **result.summary()})
    except TrainingError as error:  # the result is not worth less for it
        _complain(str(error))


def _complain(text: str) -> None:
    sys.stderr.write(f"adaptask: {text}\n")
