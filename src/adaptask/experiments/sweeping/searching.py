"""One process at work on the trials of a sweep; others may be at work on the same."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adaptask.atomic_file import not_written, replace_file
from adaptask.errors import DataError, StateError, TrainingError
from adaptask.experiments.config import RunConfig
from adaptask.experiments.jobs import FAILURE
from adaptask.experiments.sweeping.journal import Journal, PruningLogger
from adaptask.experiments.sweeping.plan import SweepTrial
from adaptask.experiments.sweeping.results import Result
from adaptask.report.run import PRUNED, Run
from adaptask.training.displays import Display
from adaptask.training.folder_lock import FolderLock
from adaptask.training.loggers import Logger

if TYPE_CHECKING:
    from optuna.trial import Trial as Running


class RunFunction(Protocol):
    """Trains a run in a folder to its end, going on where it was."""

    def __call__(
        self, config: RunConfig, path: Path, *, display: Display, loggers: Sequence[Logger]
    ) -> None:
        """Leave a test result; do nothing where there is one."""
        ...


class Searching:
    """Brings trials to their end: finished, given up or failed.

    Args:
        folder: Of the sweep.
        seeds: Of the runs of each trial; the pruner watches the first.
        journal: Told how trials go.
        run: Trains a run.
        display: Shows progress.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seeds: Sequence[int],
        journal: Journal,
        run: RunFunction,
        display: Display,
    ) -> None:
        self._folder, self._seeds, self._journal = folder, seeds, journal
        self._run, self._display = run, display

    def settle(self, trial: SweepTrial, position: str) -> None:
        """Bring a trial to its end, unless it is there or another process is at it.

        One that failed is tried again.

        Args:
            trial: The trial.
            position: What it is called in messages.

        Raises:
            DataError: If the data is missing or damaged, which no trial could do without.
            TrainingError: If something cannot be written.
        """
        folder = (self._folder / trial.run_folder(0)).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise not_written(folder, error) from error
        with ExitStack() as held:
            try:
                held.enter_context(FolderLock(folder / "lock").held())
            except TrainingError:
                self._display.message(f"{position}: another process is at it.")
                return
            state = Result.read(self._folder, trial, self._seeds).state
            if state not in ("finished", "pruned") or not self._journal.is_settled(trial):
                self._settle(trial, position)

    def _settle(self, trial: SweepTrial, position: str) -> None:
        import optuna

        running = self._journal.begin(trial)
        values = ", ".join(f"{name} {text}" for name, text in trial.labels.items())
        path = self._folder
        try:
            for seed in self._seeds:
                path = self._folder / trial.run_folder(seed)
                self._display.message(f"{position}, seed {seed}: {values}")
                self._train(replace(trial.config, seed=seed), path, running)
        except optuna.TrialPruned as pruned:
            replace_file(path / PRUNED, f"{pruned}\n".encode())
            self._display.message(f"{position} was {pruned}.")
            self._journal.end(running, "pruned")
        except DataError:
            raise
        except Exception as error:  # whatever it is, the other trials are not worse for it
            why = str(error) or type(error).__name__
            path.mkdir(exist_ok=True)
            replace_file(path / FAILURE, f"{why}\n".encode())
            self._display.warn(f"{position} failed: {why}")
            self._journal.end(running, "failed")
        else:
            result = Result.read(self._folder, trial, self._seeds)
            self._journal.end(running, "finished", result.validation)

    def _train(self, config: RunConfig, path: Path, running: Running) -> None:
        """Train a run, watched by the pruner if it is that of the first seed."""
        import optuna

        (path / FAILURE).unlink(missing_ok=True)
        if (why := Run(path).pruned) is not None:
            raise optuna.TrialPruned(why)  # a kill kept Optuna from being told
        is_first = config.seed == self._seeds[0]
        logger = PruningLogger(running)
        self._run(config, path, display=self._display, loggers=[logger] if is_first else [])
        record = Run(path)
        if not record.is_finished:
            raise StateError(f"the run in {path} has ended without a test result.")
        if is_first:
            # A run that had ended before Optuna was told has made no reports now.
            for step, accuracy in zip(*record.curve("val", "accuracy"), strict=True):
                logger.report(int(step), float(accuracy))
