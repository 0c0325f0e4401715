"""What `adaptask train` does, and what it says."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from adaptask.experiments.arithmetic import settled
from adaptask.experiments.config import RunConfig, check_config
from adaptask.experiments.config_file import dump_config
from adaptask.experiments.running import check_same_run, execute
from adaptask.report.run import Run
from adaptask.training.displays import Unseen, choose_display
from adaptask.training.group import ALONE, Group
from adaptask.training.joining import joined, launch_id, n_restarts
from adaptask.training.loggers import Logger, TensorBoardLogger, WandbLogger, check_installed
from adaptask.training.machine import choose_device
from adaptask.training.run_folder import RunFolder
from adaptask.training.trainer import Trainer


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
    with joined() as group:
        # Of the machines, torchrun counts a restart only where a process died.
        n_starts_before = max(group.gather(n_restarts()))
        with group.together():
            device = choose_device(config.machine.device, group)
            config = settled(config, device, n_processes=group.size)
            folder = RunFolder(output or default_output(config), dump_config(config))
            folder.launch = launch_id()
            if group.is_first:
                resume = resume or _was_restarted(folder, n_starts_before)
                if resume:
                    check_same_run(config, folder)
                else:
                    folder.check_is_free()
        resume = group.from_first(resume)
        _train(config, folder, group, resume=resume, quiet=quiet, log=log)


def _train(
    config: RunConfig,
    folder: RunFolder,
    group: Group,
    *,
    resume: bool,
    quiet: bool,
    log: Sequence[str],
) -> None:
    display = choose_display(quiet=quiet, stream=sys.stderr) if group.is_first else Unseen()

    def open_loggers(trainer: Trainer) -> list[Logger]:
        return [_open_logger(name, config, folder.path, trainer.step, resume) for name in log]

    try:
        execute(
            config, folder, resume=resume, display=display, open_loggers=open_loggers, group=group
        )
    except (KeyboardInterrupt, SystemExit):
        if folder.config.exists():
            display.message(f"To go on: {_launcher(group)} train --resume {folder.path}")
        raise


def _was_restarted(folder: RunFolder, n_starts_before: int) -> bool:
    """Return whether torchrun has started again what has begun in this folder."""
    if n_starts_before > 0:
        return folder.config.exists() or folder.last_checkpoint() is not None
    # A machine that joins or leaves is no restart to torchrun.
    began = [entry.get("launch") for entry in Run(folder.path).environment]
    return folder.launch is not None and folder.launch in began


def _launcher(group: Group) -> str:
    return "adaptask" if group is ALONE else "torchrun ... -m adaptask"


def _open_logger(name: str, config: RunConfig, path: Path, step: int, resume: bool) -> Logger:
    if name == "tensorboard":
        return TensorBoardLogger(path, purge_step=step + 1 if resume else None)
    return WandbLogger(path, config=asdict(config))
