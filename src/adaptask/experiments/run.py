"""One run from its configuration to its test result: begun, resumed, or already there.

This is the only place where a run begins: the device is chosen and every `auto` is resolved here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from adaptask.atomic_file import replace_file
from adaptask.data.datasets import splits_of
from adaptask.errors import ArgumentError
from adaptask.experiments.config import MachineConfig, RunConfig, check_config
from adaptask.experiments.config_file import changes, dump_config, load_config, parse_config
from adaptask.experiments.factory import build_testers, build_trainer, depends_on_steps
from adaptask.experiments.init_weights import record_weights
from adaptask.experiments.options import REGISTRIES, class_of, describe, short_name
from adaptask.experiments.run_preview import save_preview
from adaptask.learners.ensemble import Ensemble, with_weights
from adaptask.parsing import parse_json
from adaptask.report.run import FAILURE, PRUNED, Run
from adaptask.training.checkpoints import Checkpoint
from adaptask.training.device_steps import DeviceSteps, finish
from adaptask.training.displays import Display, choose_display
from adaptask.training.distributed import SINGLE_PROCESS, ProcessGroup, process_group
from adaptask.training.evaluation import Evaluation, Evaluator
from adaptask.training.loggers import Logger, TensorBoardLogger, WandbLogger, check_installed
from adaptask.training.process import (
    StopSignals,
    choose_device,
    exit_for_signal,
    seed_process,
    set_up_process,
)
from adaptask.training.run_folder import ALGORITHMS, TEST, RunFolder
from adaptask.training.trainer import Trainer

T = TypeVar("T")

MAY_CHANGE = ("steps", "machine", "every", "evaluation.tasks")
"""What may change when a run is resumed."""

# Compiling takes 10 to 30 seconds, a minute at most, and saves a third of a millisecond per step.
_STEPS_THAT_PAY = 20_000


def train(
    config: RunConfig,
    *,
    output: Path | None = None,
    quiet: bool = False,
    log: Sequence[str] = (),
) -> None:
    """Make a run in the terminal, or what is left of it, as `adaptask train` does; see `run_steps`.

    Args:
        config: Everything that decides the run.
        output: Its folder; by default one named after the configuration.
        quiet: Whether to print only errors and warnings.
        log: `tensorboard`, `wandb` or both.

    Raises:
        AdaptaskError: If something cannot be used or done; the message says what to do.
    """
    path = output or _default_output(config)
    with process_group() as group:
        with group.sync_errors():
            for name in log:
                check_installed(name)
        display = choose_display(quiet=quiet, stream=sys.stderr) if group.is_main else Display()
        try:
            finish(run_steps(config, path, display=display, log=log, group=group))
        except (KeyboardInterrupt, SystemExit):
            if (path / "config.toml").exists():
                trust = " --trust-plugins" if config.plugins else ""
                launcher = "adaptask" if group is SINGLE_PROCESS else "torchrun ... -m adaptask"
                display.message(f"To continue: {launcher} train --resume {path}{trust}")
            raise


def _default_output(config: RunConfig) -> Path:
    """Return a folder named after what is run."""
    task = f"{config.task.n_way}way-{config.task.n_shot}shot"
    chosen = (config.data.dataset, config.learner.name, config.backbone.name, config.sampler.name)
    names = "-".join(map(short_name, chosen))
    return Path("runs") / f"{names}-{task}-seed{config.seed}"


def run_steps(
    config: RunConfig,
    path: Path,
    *,
    display: Display,
    log: Sequence[str] = (),
    loggers: Sequence[Logger] = (),
    stop: StopSignals | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
) -> DeviceSteps[None]:
    """Train, validate and test in a folder, advanced step by step as `Trainer.steps` is.

    A run that is in the folder is resumed, or left alone if it is finished.

    A dataset may have no `val` classes: then the last weights are tested. Without `test` classes
    the run ends after training.

    Args:
        config: Everything that decides the run.
        path: Its folder.
        display: Shows progress.
        log: Records also go to `tensorboard`, `wandb` or both.
        loggers: Also receive every record; an exception that they raise ends the run.
        stop: Says when to stop; by default the run listens to signals itself.
        group: The processes that make the run together; only the first uses the folder.

    Raises:
        AdaptaskError: If something cannot be used or done, or the folder holds another run.
    """
    # What one process finds wrong, all of them raise, so that none waits for another that is gone.
    with group.sync_errors():
        check_config(config)
        device = choose_device(config.machine.device, group)
        plan = _plan(config, path, device, group) if group.is_main else None
    # One process decides, by the folder and its own device.
    config, start = group.broadcast(plan)  # type: ignore[misc]
    if start == "done":
        display.message(
            f"The run in {path} has made its {config.steps} steps; its result is in {TEST}. For "
            "more: --steps N. To make it again, choose another folder: --output FOLDER."
        )
        return
    folder = RunFolder(path, dump_config(config))
    with group.sync_errors():
        # A checkpoint has all weights, and the main process gives its state to the others.
        needs_weights = group.is_main and not (start == "resume" and folder.last_checkpoint())
        init = config.start.init if needs_weights else None
        built = replace(config, start=replace(config.start, init=init))
        trainer, testers = _build(built, device, folder, display, group)
    with ExitStack() as held:
        held.callback(trainer.release)
        with group.sync_errors():
            if group.is_main:
                held.enter_context(folder.locked())
                if start == "begin":
                    folder.create(device, n_processes=group.size)
                if init is not None:
                    record_weights(init, path)
        if start == "resume":
            trainer.resume()
        with group.sync_errors():
            if group.is_main:
                if trainer.step < config.steps:
                    (path / TEST).unlink(missing_ok=True)  # it has not ended
                (path / PRUNED).unlink(missing_ok=True)  # it is trained further
                for changed in write_algorithms(path, config, trainer.sampler):
                    trainer.display.warn(
                        f"The code of {changed} has changed since this run began: its steps are "
                        "not all of one version."
                    )
                named = [_open_logger(name, config, trainer, start) for name in log]
                trainer.loggers += [*named, *loggers]
        for logger in trainer.loggers:
            held.callback(logger.close)
        if trainer.step < config.steps:
            yield from trainer.steps(config.steps, stop)
        else:
            trainer.display.message(
                f"The run in {path} has made its {trainer.step} steps. For more: "
                f"--resume {path} --steps N."
            )
        yield from _end(trainer, testers, folder, stop)


def _plan(
    config: RunConfig, path: Path, device: torch.device, group: ProcessGroup
) -> tuple[RunConfig, str]:
    """Return the configuration without any `auto`, and what to do.

    That is to `begin`, to `resume`, or to leave alone a run that is `done`.

    Raises:
        AdaptaskError: If the configuration or the folder does not allow it.
    """
    begun = _begun(path, config)
    if begun is not None:
        config = keep_precision(config, begun)
    config = resolve_auto(config, device, n_processes=group.size)
    folder = RunFolder(path)
    if not folder.has_begun:
        folder.check_is_free()
        return config, "begin"
    check_same_run(config, folder)
    if not _is_tested(folder, begun, config):
        return config, "resume"
    if changed := changed_code(path, config):
        raise ArgumentError(
            f"the run in {path} is finished, and it was made with other code of "
            f"{', '.join(changed)}. To train with the present code, choose another folder: "
            "--output FOLDER; to keep the run, leave it as it is."
        )
    return config, "done"


def _build(
    config: RunConfig,
    device: torch.device,
    folder: RunFolder,
    display: Display,
    group: ProcessGroup,
) -> tuple[Trainer, list[Evaluator]]:
    """Build what trains and what tests; say which of them the dataset does not allow."""
    group.set_device(device)
    set_up_process(threads=config.machine.threads, deterministic=config.machine.deterministic)
    seed_process(config.seed)
    trainer = build_trainer(config, device, folder=folder, display=display, group=group)
    dataset, testers = config.data.dataset, list[Evaluator]()
    if "test" in splits_of(dataset):
        # Before training, so that too few test classes are an error now and not at the end.
        testers = build_testers(config, device, group)
    if trainer.validation is None:
        kept = "nothing chooses among the weights, and the last ones are used"
        trainer.display.warn(f"{dataset} has no val classes: {kept}.")
    if not testers:
        trainer.display.warn(f"{dataset} has no test classes: the run ends after training.")
    if note := getattr(trainer.sampler, "note", None):
        trainer.display.warn(note)
    optimizer = config.optimizer
    needs_plain_sgd = getattr(class_of(config.learner), "needs_plain_sgd", False)
    if needs_plain_sgd and (optimizer.name, optimizer.momentum) != ("sgd", 0):
        trainer.display.warn(
            f"The learner {config.learner.name!r} is made for plain SGD: --optimizer.name sgd "
            "--optimizer.momentum 0 --lr 1."
        )
    return trainer, testers


def _open_logger(name: str, config: RunConfig, trainer: Trainer, start: str) -> Logger:
    assert trainer.folder is not None
    if name == "tensorboard":
        purge_step = trainer.step + 1 if start == "resume" else None
        return TensorBoardLogger(trainer.folder.path, purge_step=purge_step)
    return WandbLogger(trainer.folder.path, config=asdict(config))


def write_algorithms(path: Path, config: RunConfig, sampler: object) -> list[str]:
    """Write which classes a run is made of, so that nobody has to import them to describe it.

    Returns:
        The classes of others whose code has changed since the run began.

    Raises:
        TrainingError: If it cannot be written.
    """
    content = {kind: describe(getattr(config, kind)) for kind in REGISTRIES}
    if note := getattr(sampler, "note", None):
        content["sampler"]["note"] = str(note)
    with suppress(OSError, ValueError, AttributeError, TypeError):  # none yet, or damaged
        before = parse_json((path / ALGORITHMS).read_bytes())
        for kind, entry in content.items():
            if "code" in entry and before[kind]["class"] == entry["class"]:
                entry["code"] = list(dict.fromkeys([*before[kind]["code"], *entry["code"]]))
    replace_file(path / ALGORITHMS, json.dumps(content, indent=1).encode())
    return [entry["class"] for entry in content.values() if len(entry.get("code", ())) > 1]


def changed_code(path: Path, config: RunConfig) -> list[str]:
    """Return the classes of others that are not as they were when the run in a folder was made.

    Comments and docstrings do not count, nor does code whose version is not known.
    """
    made_with = Run(path).algorithms  # read now: another object may have read it earlier
    changed = []
    for kind in REGISTRIES:
        known = made_with[kind].code if kind in made_with else ()
        entry = describe(getattr(config, kind))
        if known and not {*entry.get("code", ())} <= {*known}:
            changed.append(entry["class"])
    return changed


def _begun(path: Path, config: RunConfig) -> RunConfig | None:
    """Return how the run in a folder was begun; None if there is none, or it cannot be read."""
    try:
        return load_config(path / "config.toml", known=config)
    except ArgumentError:
        return None


def _is_tested(folder: RunFolder, begun: RunConfig | None, config: RunConfig) -> bool:
    """Return whether a result is there and whole, of the steps and of the tasks wanted."""
    if begun is None or begun.steps != config.steps:
        return False
    if {*begun.evaluation.tasks} != {*config.evaluation.tasks}:
        return False
    try:
        parse_json((folder.path / TEST).read_bytes())
    except (OSError, ValueError):
        return False  # the run is resumed from its checkpoint, which writes it again
    return True


def check_same_run(config: RunConfig, folder: RunFolder) -> None:
    """Check that a run is resumed as it began, according to its last checkpoint.

    Raises:
        ArgumentError: If something changed that cannot change.
        StateError: If no checkpoint is whole.
    """
    saved = folder.load(lambda damage: None)  # the trainer reports it
    if saved is None:
        return
    if saved.config_text is None:
        raise ArgumentError(
            f"{folder.path} holds a run that was made in Python: continue it by trainer.resume(), "
            "or choose another folder."
        )
    before = parse_config(saved.config_text, known=config)
    step = saved.trainer.get("step", 0)
    if config.steps < step:
        raise ArgumentError(
            f"the run in {folder.path} has made {step} steps already; steps must be at least "
            f"that, got {config.steps}."
        )
    again = "for a new run choose another folder, --output FOLDER"
    for name, old, new in changes(before, config):
        if not {name, name.partition(".")[0]} & set(MAY_CHANGE):
            raise ArgumentError(
                f"{name} of the run in {folder.path} cannot change; it was {old}, now {new}. "
                f"Only {', '.join(MAY_CHANGE)} can; {again}."
            )
    if config.steps != before.steps and depends_on_steps(config):
        raise ArgumentError(
            f"the run in {folder.path} was planned for {before.steps} steps, on which its "
            f"learning rate or its learner depends from the first one on; {again}."
        )


def _end(
    trainer: Trainer, testers: Sequence[Evaluator], folder: RunFolder, stop: StopSignals | None
) -> DeviceSteps[None]:
    """Test the best weights by validation, if there are test classes, and mark the run finished.

    The test classes decide nothing.
    """
    best = trainer.best.checkpoints
    learner = with_weights(trainer.learner, [checkpoint.learner for checkpoint in best])
    results = []
    for tester in testers:
        show = partial(trainer.display.evaluate, "test")
        try:
            results.append((yield from _unless_stopped(tester.steps(learner, show), stop)))
        finally:
            trainer.display.close()
    with trainer.group.sync_errors():
        if trainer.group.is_main:
            _write_results(trainer, testers, results, learner, folder)


def _unless_stopped(steps: DeviceSteps[T], stop: StopSignals | None) -> DeviceSteps[T]:
    """Advance work that can be done again later; a signal ends it."""
    with closing(steps):
        while True:
            try:
                wait = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if stop is not None and stop.received is not None:
                exit_for_signal(stop.received)
            yield wait


def _write_results(
    trainer: Trainer,
    testers: Sequence[Evaluator],
    results: Sequence[Evaluation],
    learner: nn.Module,
    folder: RunFolder,
) -> None:
    """Write and print how a run ended; without test classes there is no result."""
    best = trainer.best.checkpoints
    shown = learner.members[0] if isinstance(learner, Ensemble) else learner
    steps = [checkpoint.step for checkpoint in best] or [trainer.step]
    save_preview(folder.path, shown, trainer.sampler, trainer.source)  # type: ignore[arg-type]
    for outdated in (FAILURE, PRUNED):
        (folder.path / outdated).unlink(missing_ok=True)
    folder.save_test(results, steps)
    if not results:
        kept = f"Kept {_described(best)}, not tested."
        trainer.display.message(f"{kept}\nThe run is in {folder.path}")
        return
    lines = []
    for tester, result in zip(testers, results, strict=True):
        within = result.tasks == "within-group"
        for logger in trainer.loggers:
            logger.log(trainer.step, "test/within-group" if within else "test", result.summary())
        n_way, n_shot = tester.plan.class_ids.shape[1], tester.plan.n_shot
        lines.append(
            f"Test accuracy {'within groups ' if within else ''}{result} ({result.n_episodes} "
            f"episodes, {n_way}-way {n_shot}-shot), hardest tenth "
            f"{100 * result.hardest_tenth:.2f} %, of {_described(best)}."
        )
    trainer.display.message("\n".join([*lines, f"The run is in {folder.path}"]))


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


def resolve_auto(config: RunConfig, device: torch.device, *, n_processes: int = 1) -> RunConfig:
    """Return the configuration with every `auto` of its machine decided.

    What is decided depends on the configuration and the kind of device alone, never on a clock,
    so that a run repeated is computed in the same way.

    Args:
        config: Of the run.
        device: Where it is computed.
        n_processes: How many make it together.

    Raises:
        ArgumentError: If compiling was asked for and cannot be done.
    """
    machine = config.machine
    learner = class_of(config.learner)
    can_compile = getattr(learner, "supports_compile", False)
    if machine.compile == "yes" and not can_compile:
        raise ArgumentError(
            f"the learner {config.learner.name!r} cannot be compiled: torch.compile would compute "
            "something else. Give --machine.compile no."
        )
    if machine.compile == "yes" and n_processes > 1:
        raise ArgumentError(
            f"{n_processes} processes that make a run together cannot compile it: they communicate "
            "within a step. Give --machine.compile no."
        )
    half = half_precision_pays(device) and getattr(learner, "supports_bfloat16", False)
    compiles = can_compile and n_processes == 1
    chosen = {
        "precision": "bfloat16" if half else "float32",
        "channels_last": "yes" if half else "no",
        "compile": "yes" if compiles and _is_worth_compiling(config, device) else "no",
    }
    left = {name: value for name, value in chosen.items() if getattr(machine, name) == "auto"}
    return replace(config, machine=replace(machine, **left))  # type: ignore[arg-type]


def keep_precision(config: RunConfig, begun: RunConfig) -> RunConfig:
    """Return the configuration of a resumed run, in the precision in which it began.

    An explicit choice stays. Whether to compile is decided again, by the present device.
    """
    if config.machine.precision != "auto":
        return config
    machine = replace(config.machine, precision=begun.machine.precision)
    if machine.channels_last == "auto":
        machine = replace(machine, channels_last=begun.machine.channels_last)
    return replace(config, machine=machine)


def half_precision_pays(device: torch.device) -> bool:
    """Return whether a device computes faster in bfloat16."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def _is_worth_compiling(config: RunConfig, device: torch.device) -> bool:
    machine: MachineConfig = config.machine
    # Which kernels a compiler finds best is not the same each time.
    plain = machine.engine == "eager" or machine.deterministic
    found = device.type == "cuda" and find_spec("triton") is not None
    return found and not plain and config.steps >= _STEPS_THAT_PAY
