"""One run from its configuration to its test result, begun, gone on with or already there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import nn

from adaptask.atomic_file import replace_file
from adaptask.errors import ArgumentError
from adaptask.exclusion import EAGER_WORK, PROCESS_STATE
from adaptask.experiments.arithmetic import as_begun, settled
from adaptask.experiments.backends.base import PRUNED
from adaptask.experiments.building import (
    build_evaluator,
    build_trainer,
    depends_on_steps,
    with_weights,
)
from adaptask.experiments.config import RunConfig, check_config
from adaptask.experiments.config_file import dump_config, load_config, parse_config
from adaptask.experiments.jobs import FAILURE
from adaptask.experiments.portrait import save_portrait
from adaptask.learners import Ensemble
from adaptask.parsing import parse_json
from adaptask.training.best import Checkpoint
from adaptask.training.displays import Display
from adaptask.training.evaluation import Evaluation, Evaluator, holding_what_it_draws_from
from adaptask.training.group import ALONE, Group
from adaptask.training.loggers import Logger
from adaptask.training.machine import choose_device, set_up_process
from adaptask.training.random_state import seed_process
from adaptask.training.run_folder import RunFolder
from adaptask.training.trainer import Trainer

MAY_CHANGE = ("steps", "machine", "every")
"""What may be set anew when a run goes on."""
TEST = "test.json"

OpenLoggers = Callable[[Trainer], Sequence[Logger]]


def run(config: RunConfig, path: Path, *, display: Display, loggers: Sequence[Logger] = ()) -> None:
    """Train, validate and test in a folder; go on where a run was left; leave alone what is done.

    Args:
        config: Everything that decides the run.
        path: Its folder.
        display: Shows progress.
        loggers: Told every record; what they raise ends the run.

    Raises:
        AdaptaskError: If something cannot be used or done, or the folder holds another run.
    """
    check_config(config)
    device = choose_device(config.machine.device)
    config = settled(_as_begun(config, path), device)
    folder = RunFolder(path, dump_config(config))
    has_begun = folder.config.exists() or folder.last_checkpoint() is not None
    if has_begun:
        check_same_run(config, folder)
        if _tested_after(folder) == config.steps:
            return
    else:
        folder.check_is_free()
    execute(config, folder, resume=has_begun, display=display, open_loggers=lambda _: loggers)


def execute(
    config: RunConfig,
    folder: RunFolder,
    *,
    resume: bool,
    display: Display,
    open_loggers: OpenLoggers = lambda _: (),
    group: Group = ALONE,
) -> None:
    """Train, validate and test in a folder that was found to be free, or to hold this run.

    Args:
        config: Everything that decides the run.
        folder: Its folder; only the first process uses it.
        resume: Whether to go on with the run in it.
        display: Shows progress.
        open_loggers: Makes those that are told every record.
        group: The processes that make the run together.

    Raises:
        AdaptaskError: If something cannot be used or done.
    """
    with PROCESS_STATE, EAGER_WORK.among_others(), group.together():
        trainer, tester = _build(config, folder, display, group)
    with ExitStack() as held:
        held.callback(trainer.release)
        with group.together():
            if group.is_first:
                held.enter_context(folder.locked())
                if not resume:
                    folder.n_processes = group.size
                    folder.create(trainer.source.device)
        if resume:
            if group.is_first and _tested_after(folder) != config.steps:
                # It tells that a run has ended: it goes before config.toml says how many steps
                # are to be made now, or a kill in between would leave a run that looks finished.
                (folder.path / TEST).unlink(missing_ok=True)
            with PROCESS_STATE, EAGER_WORK.among_others():
                trainer.resume()
        with group.together():
            if group.is_first:
                trainer.loggers += open_loggers(trainer)
        try:
            _fit(trainer, config, folder)
            with holding_what_it_draws_from(trainer.learner), EAGER_WORK.among_others():
                _test(trainer, tester, folder)
        finally:
            for logger in trainer.loggers:
                logger.close()


def _build(
    config: RunConfig, folder: RunFolder, display: Display, group: Group
) -> tuple[Trainer, Evaluator]:
    """Build what trains and what tests, on the device of this process."""
    device = choose_device(config.machine.device, group)
    group.settle_on(device)
    set_up_process(threads=config.machine.threads, deterministic=config.machine.deterministic)
    seed_process(config.seed)
    trainer = build_trainer(config, device, folder=folder, display=display, group=group)
    # Before training, to learn now rather than then that the test classes are too few.
    tester = build_evaluator(config, "test", device, group=group)
    optimiser = config.optimiser
    if config.model.learner == "reptile" and (optimiser.name, optimiser.momentum) != ("sgd", 0):
        trainer.display.warn(
            "Reptile interpolates weights only with plain SGD; as published: --optimiser.name sgd "
            "--optimiser.momentum 0 --lr 1."
        )
    return trainer, tester


def _as_begun(config: RunConfig, path: Path) -> RunConfig:
    try:
        return as_begun(config, load_config(path / "config.toml"))
    except ArgumentError:
        return config  # there is none yet, or the run says what is odd


def _tested_after(folder: RunFolder) -> int | None:
    """Return for how many steps a run was made whose result is there and whole."""
    try:
        parse_json((folder.path / TEST).read_bytes())
        return load_config(folder.config).steps
    except (OSError, ValueError, ArgumentError):
        return None  # it goes on from its checkpoint, which writes them anew


def check_same_run(config: RunConfig, folder: RunFolder) -> None:
    """Check that a run goes on as it was begun, according to its last checkpoint.

    Raises:
        ArgumentError: If something changed that cannot change.
        StateError: If no checkpoint is whole.
    """
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
    for name, old, new in _changes(before, config):
        if name.partition(".")[0] not in MAY_CHANGE:
            raise ArgumentError(
                f"{name} of the run in {folder.path} cannot change while it goes on; it was "
                f"{old}, now {new}. Only steps, machine and every can: {again}."
            )
    if config.steps != before.steps and depends_on_steps(config):
        raise ArgumentError(
            f"the run in {folder.path} was planned for {before.steps} steps, on which its "
            f"learning rate or its learner depends from the first one on: {again}."
        )


def _changes(before: Any, after: Any, prefix: str = "") -> Iterator[tuple[str, object, object]]:
    """Yield what differs between two configurations: its name, as options have it, old and new."""
    for field in fields(after):
        name = prefix + field.name
        old, new = getattr(before, field.name), getattr(after, field.name)
        if is_dataclass(new) and type(old) is type(new):
            yield from _changes(old, new, f"{name}.")
        elif old != new:
            yield name, old, new


def _fit(trainer: Trainer, config: RunConfig, folder: RunFolder) -> None:
    if trainer.step < config.steps:
        if trainer.group.is_first:
            (folder.path / TEST).unlink(missing_ok=True)
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
    with trainer.group.together():
        if trainer.group.is_first:
            _keep(trainer, tester, result, learner, folder)


def _keep(
    trainer: Trainer, tester: Evaluator, result: Evaluation, learner: nn.Module, folder: RunFolder
) -> None:
    """Write down a test result, and say it."""
    best = trainer.best.checkpoints
    shown = learner.members[0] if isinstance(learner, Ensemble) else learner
    save_portrait(folder.path, shown, trainer.sampler, trainer.source)  # type: ignore[arg-type]
    steps = [checkpoint.step for checkpoint in best] or [trainer.step]
    record = {**result.summary(), "steps": steps, "accuracies": result.accuracies.tolist()}
    for outdated in (FAILURE, PRUNED):
        (folder.path / outdated).unlink(missing_ok=True)
    replace_file(folder.path / TEST, json.dumps(record).encode())
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
