"""What `adaptask train` does, and what it says."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from adaptask.experiments.config import RunConfig
from adaptask.experiments.run import run_steps
from adaptask.training.device_steps import finish
from adaptask.training.displays import Unseen, choose_display
from adaptask.training.group import ALONE, Group
from adaptask.training.joining import joined, n_restarts
from adaptask.training.loggers import check_installed
from adaptask.training.run_folder import RunFolder


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
    for name in log:
        check_installed(name)
    path = output or default_output(config)
    with joined() as group:
        # Of the machines, torchrun counts a restart only where a process died.
        n_starts_before = max(group.gather(n_restarts()))
        resume = group.from_first(resume or _was_restarted(path, n_starts_before))
        display = choose_display(quiet=quiet, stream=sys.stderr) if group.is_first else Unseen()
        steps = run_steps(config, path, resume=resume, display=display, log=log, group=group)
        try:
            finish(steps)
        except (KeyboardInterrupt, SystemExit):
            if (path / "config.toml").exists():
                display.message(f"To go on: {_launcher(group)} train --resume {path}")
            raise


def _was_restarted(path: Path, n_starts_before: int) -> bool:
    """Return whether torchrun has started again what has begun in this folder."""
    folder = RunFolder(path)
    return n_starts_before > 0 and (folder.config.exists() or folder.last_checkpoint() is not None)


def _launcher(group: Group) -> str:
    return "adaptask" if group is ALONE else "torchrun ... -m adaptask"
