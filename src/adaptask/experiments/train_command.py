"""What `adaptask train` does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from adaptask.experiments.config import RunConfig
from adaptask.experiments.options import short_name
from adaptask.experiments.run import run_steps
from adaptask.training.device_steps import finish
from adaptask.training.displays import Display, choose_display
from adaptask.training.distributed import SINGLE_PROCESS, ProcessGroup, process_group
from adaptask.training.loggers import check_installed
from adaptask.training.run_folder import RunFolder


def default_output(config: RunConfig) -> Path:
    """Return a folder named after what is run."""
    task = f"{config.task.n_way}way-{config.task.n_shot}shot"
    chosen = (config.data.dataset, config.learner.name, config.backbone.name, config.sampler.name)
    names = "-".join(map(short_name, chosen))
    return Path("runs") / f"{names}-{task}-seed{config.seed}"


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
        output: Its folder; by default one named after the configuration.
        resume: Whether to continue the run in that folder.
        quiet: Whether to print only errors and warnings.
        log: `tensorboard`, `wandb` or both.

    Raises:
        AdaptaskError: If something cannot be used or done; the message says what to do.
    """
    path = output or default_output(config)
    with process_group() as group:
        with group.sync_errors():
            for name in log:
                check_installed(name)
        resume = resume or (group.is_restart and RunFolder(path).has_begun)
        display = choose_display(quiet=quiet, stream=sys.stderr) if group.is_main else Display()
        try:
            finish(run_steps(config, path, resume=resume, display=display, log=log, group=group))
        except (KeyboardInterrupt, SystemExit):
            if (path / "config.toml").exists():
                trust = " --trust-plugins" if config.plugins else ""
                display.message(f"To continue: {_launcher(group)} train --resume {path}{trust}")
            raise


def _launcher(group: ProcessGroup) -> str:
    return "adaptask" if group is SINGLE_PROCESS else "torchrun ... -m adaptask"
