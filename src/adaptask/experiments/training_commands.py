"""What `adaptask train` does, and what it says."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from adaptask.atomic_file import replace_file
from adaptask.errors import ArgumentError
from adaptask.experiments.building import (
    build_evaluator,
    build_trainer,
    depends_on_steps,
    with_weights,
)
from adaptask.experiments.config import RunConfig, check_config
from adaptask.experiments.config_file import dump_config, parse_config
from adaptask.training.best import Checkpoint
from adaptask.training.displays import choose_display
from adaptask.training.evaluation import Evaluator
from adaptask.training.loggers import Logger, TensorBoardLogger, WandbLogger, check_installed
from adaptask.training.machine import choose_device, set_up_process
from adaptask.training.random_state import seed_process
from adaptask.training.run_folder import RunFolder
from adaptask.training.trainer import Trainer

_MAY_CHANGE = ("steps", "machine", "every")
"""What may be set anew when a run goes on."""


def default_output(config: RunConfig) -> Path:
    """Return a folder named after what is run."""
    task = f"{config.task.n_way}way-{config.task.n_shot}shot"
    model = f"{config.model.learner}-{config.model.backbone}"
    return Path("runs") / (
        f"{config.data.dataset}-{model}-{config.sampler.name}-{task}-seed{config.seed}"
    )


def train(
    config: RunConfig,
    *,
    output: Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    log: Sequence[str] = (),
) -> None:
    """Train, validate and test; a run that is killed at any moment can be resumed.

    Args:
        config: Everything that decides the run.
        output: Its folder; one named after the configuration where it is not given.
        resume: Whether to go on with the run in that folder.
        quiet: Whether to say only what went wrong.
        log: `tensorboard`, `wandb` or both.

    Raises:
        AdaptaskError: If something cannot be used or done; the message says what to do.
    """
    check_config(config)
    for name in log:
        check_installed(name)
    folder = RunFolder(output or default_output(config), dump_config(config))
    if resume:
        _check_same_run(config, folder)
    else:
        folder.check_is_free()
    device = choose_device(config.machine.device)
    set_up_process(threads=config.machine.threads, deterministic=config.machine.deterministic)
    seed_process(config.seed)
    display = choose_display(quiet=quiet, stream=sys.stderr)
    trainer = build_trainer(config, device, folder=folder, display=display)
    # Before training, to learn now rather than then that the test classes are too few.
    tester = build_evaluator(config, "test", device)
    optimiser = config.optimiser
    if config.model.learner == "reptile" and (optimiser.name, optimiser.momentum) != ("sgd", 0):
        display.warn(
            "Reptile interpolates weights only with plain SGD; as published: --optimiser.name sgd "
            "--optimiser.momentum 0 --lr 1."
        )
    with folder.locked():
        if resume:
            trainer.resume()
        else:
            folder.create(device)
        for name in log:
            trainer.loggers.append(_open_logger(name, config, folder.path, trainer.step, resume))
        try:
            _fit(trainer, config, folder)
            _test(trainer, tester, folder)
        except (KeyboardInterrupt, SystemExit):
            display.message(f"To go on: adaptask train --resume {folder.path}")
            raise
        finally:
            for logger in trainer.loggers:
                logger.close()


def _open_logger(name: str, config: RunConfig, path: Path, step: int, resume: bool) -> Logger:
    if name == "tensorboard":
        return TensorBoardLogger(path, purge_step=step + 1 if resume else None)
    return WandbLogger(path, config=asdict(config))


def _check_same_run(config: RunConfig, folder: RunFolder) -> None:
    """Check that a run goes on as it was begun, according to its last checkpoint."""
    saved = folder.load(lambda damage: None)  # the trainer reports it
    if saved is None:
        return
    before = config if saved.config_text is None else parse_config(saved.config_text)
    step = saved.trainer.get("step", 0)
    if config.steps < step:
        raise ArgumentError(
            f"the run in {folder.path} has made {step} steps already; steps must be at least "
            f"that, got {config.steps}."
        )
    again = f"start a new run with --config {folder.config} --output FOLDER"
    for field in fields(config):
        new, old = getattr(config, field.name), getattr(before, field.name)
        if new != old and field.name not in _MAY_CHANGE:
            raise ArgumentError(
                f"{field.name} of the run in {folder.path} cannot change while it goes on; it was "
                f"{old}, now {new}. Only steps, machine and every can: {again}."
            )
    if config.steps != before.steps and depends_on_steps(config):
        raise ArgumentError(
            f"the run in {folder.path} was planned for {before.steps} steps, on which its "
            f"learning rate or its learner depends from the first one on: {again}."
        )


def _fit(trainer: Trainer, config: RunConfig, folder: RunFolder) -> None:
    if trainer.step < config.steps:
        trainer.fit(config.steps)
    else:
        trainer.display.message(
            f"The run in {folder.path} has made its {trainer.step} steps. To train on, give more: "
            f"--resume {folder.path} --steps N."
        )


def _test(trainer: Trainer, tester: Evaluator, folder: RunFolder) -> None:
    """Test the best weights by validation; the test classes decide nothing."""
    best = trainer.best.checkpoints
    learner = with_weights(trainer.learner, [checkpoint.learner for checkpoint in best])
    result = tester(learner)
    steps = [checkpoint.step for checkpoint in best] or [trainer.step]
    record = {**result.summary(), "steps": steps, "accuracies": result.accuracies.tolist()}
    replace_file(folder.path / "test.json", json.dumps(record).encode())
    for logger in trainer.loggers:
        logger.log(trainer.step, "test", result.summary())
    n_way, n_shot = tester.plan.class_ids.shape[1], tester.plan.n_shot
    trainer.display.message(
        f"Test accuracy {result} ({result.n_episodes} episodes, {n_way}-way {n_shot}-shot), of "
        f"{_described(best)}.\nThe run is in {folder.path}"
    )


def _described(best: Sequence[Checkpoint]) -> str:
    if not best:
        return "the last weights"
    accuracies = ", ".join(f"{100 * checkpoint.accuracy:.2f} %" for checkpoint in best)
    steps = ", ".join(str(checkpoint.step) for checkpoint in best)
    if len(best) == 1:
        return f"the weights after step {steps}, best in validation ({accuracies})"
    return (
        f"the mean prediction of the weights after steps {steps}, best in validation ({accuracies})"
    )
