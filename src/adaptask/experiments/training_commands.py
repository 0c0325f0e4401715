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
from adaptask.training.displays import Unseen, choose_display
from adaptask.training.distributed import joined
from adaptask.training.group import ALONE, Group
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
    with joined() as group:
        with group.together():
            check_config(config)
            for name in log:
                check_installed(name)
            device = choose_device(config.machine.device, group)
            config = settled(config, device, n_processes=group.size)
            folder = RunFolder(output or default_output(config), dump_config(config))
            if group.is_first:
                resume = resume or (group.is_restart and _has_begun(folder))
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


def _has_begun(folder: RunFolder) -> bool:
    """Return whether there is a run to go on with; a process may have died before it began."""
    return folder.config.exists() or folder.last_checkpoint() is not None


def _launcher(group: Group) -> str:
    return "adaptask" if group is ALONE else "torchrun ... -m adaptask"


def _open_logger(name: str, config: RunConfig, path: Path, step: int, resume: bool) -> Logger:
    if name == "tensorboard":
        return TensorBoardLogger(path, purge_step=step + 1 if resume else None)
    return WandbLogger(path, config=asdict(config))
