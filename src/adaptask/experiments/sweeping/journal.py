"""What Optuna is told of a search, and what it decides: which trials are given up early.

What a trial has come to is in the folders of its runs. The journal follows them, so that it can be
lost without losing a trial, and any tool for Optuna's studies can read it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from adaptask.atomic_file import not_written
from adaptask.errors import ArgumentError, StateError
from adaptask.experiments.sweeping.plan import SweepTrial
from adaptask.experiments.sweeping.space import Option, storable

if TYPE_CHECKING:
    import optuna

FILE = "journal.log"
STUDY = "sweep"
N_STARTUP_TRIALS = 5
"""Trials that must have finished before one is given up."""
_WARM_UP = 0.2
"""Share of the steps before which none is given up."""


def require_optuna() -> None:
    """Check that Optuna is installed.

    Raises:
        ArgumentError: If it is not.
    """
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise ArgumentError(
            f"a sweep needs the package optuna, which cannot be imported ({error}). Install it "
            "with: pip install 'adaptask[sweep]'"
        ) from error


class JournalLock:
    """Keeps other processes from writing for the while, by a lock of the operating system.

    Optuna's own locks are files that a killed process leaves behind, for which others wait 30
    seconds. This one vanishes with its process. Where the system has no such locks it does
    nothing, and one process alone can search.

    A line that was torn, as by a power failure, is cut off before the next one would be joined to
    it, which Optuna could not read.

    Args:
        journal: The file that is written.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        """Wait until no other process writes."""
        self._file = self._journal.with_suffix(".lock").open("ab")
        try:
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_EX)
        except (ImportError, OSError):
            pass
        if self._journal.exists():
            with self._journal.open("rb+") as file:
                if file.seek(0, os.SEEK_END) and _last_byte(file) != b"\n":
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Let others write."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> None:
        """Hold it for the while."""
        self.acquire()

    def __exit__(self, *error: object) -> None:
        """Let others write."""
        self.release()


def _last_byte(file: IO[bytes]) -> bytes:
    file.seek(-1, os.SEEK_END)
    return file.read(1)


class Journal:
    """The trials of a sweep as Optuna knows them.

    Args:
        folder: Of the sweep; it exists.
        options: What is varied.
        n_steps: Training steps of a run, for the time before which none is given up.
        prune: Whether any is given up.

    Raises:
        StateError: If the file is damaged.
        TrainingError: If it cannot be written.
    """

    def __init__(
        self, folder: Path, options: Sequence[Option], *, n_steps: int, prune: bool
    ) -> None:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        self._distributions = {option.key: option.distribution() for option in options}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        path = folder / FILE
        pruner = optuna.pruners.MedianPruner(
            n_startup_trials=N_STARTUP_TRIALS, n_warmup_steps=int(_WARM_UP * n_steps)
        )
        try:
            lock: Any = JournalLock(path)  # the class that Optuna names is private
            backend = JournalFileBackend(str(path), lock_obj=lock)
            self._study = optuna.create_study(
                storage=JournalStorage(backend),
                study_name=STUDY,
                load_if_exists=True,
                direction="maximize",
                sampler=optuna.samplers.RandomSampler(seed=0),  # draws nothing: all is planned
                pruner=pruner if prune else optuna.pruners.NopPruner(),
            )
        except OSError as error:
            raise not_written(path, error) from error
        except Exception as error:  # Optuna checks little of what it reads
            raise StateError(
                f"{path} is damaged: {error}. Remove it: the trials themselves are kept in their "
                "folders."
            ) from error

    def is_settled(self, trial: SweepTrial) -> bool:
        """Return whether the trial is known to have finished, or to have been given up."""
        from optuna.trial import TrialState

        entry = self._entry(trial)
        return entry is not None and entry.state in (TrialState.COMPLETE, TrialState.PRUNED)

    def begin(self, trial: SweepTrial) -> optuna.trial.Trial:
        """Return the trial that is still running by its values, or a new one."""
        import optuna
        from optuna.trial import TrialState, create_trial

        entry = self._entry(trial)
        if entry is None or entry.state is not TrialState.RUNNING:
            new = create_trial(
                state=TrialState.RUNNING,
                params={key: storable(value) for key, value in trial.values.items()},
                distributions=self._distributions,
                user_attrs={"name": trial.name},
            )
            self._study.add_trial(new)
            entry = self._entry(trial)
        assert entry is not None
        return optuna.trial.Trial(self._study, entry._trial_id)

    def end(self, running: optuna.trial.Trial, state: str, accuracy: float | None = None) -> None:
        """Write down how a trial has ended: `finished` with its accuracy, `pruned`, `failed`."""
        from optuna.trial import TrialState

        states = {
            "finished": TrialState.COMPLETE,
            "pruned": TrialState.PRUNED,
            "failed": TrialState.FAIL,
        }
        self._study.tell(running.number, accuracy, state=states[state])

    def _entry(self, trial: SweepTrial) -> optuna.trial.FrozenTrial | None:
        entries = self._study.get_trials(deepcopy=False)
        found = [entry for entry in entries if entry.user_attrs.get("name") == trial.name]
        return found[-1] if found else None


class PruningLogger:
    """Reports validations to Optuna, and gives a trial up when the pruner says so.

    Args:
        running: The trial.
    """

    def __init__(self, running: optuna.trial.Trial) -> None:
        self._trial = running
        self._reported = dict(running.study.trials[running.number].intermediate_values)

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Report a validation.

        Raises:
            optuna.TrialPruned: If the trial is worse than most at this step.
        """
        import optuna

        if split != "val":
            return
        self.report(step, metrics["accuracy"])
        if self._trial.should_prune():
            best = max(self._reported.values())
            raise optuna.TrialPruned(
                f"given up after step {step}: its best validation accuracy, {100 * best:.2f} %, "
                "is below the median of the trials before it at this step"
            )

    def report(self, step: int, accuracy: float) -> None:
        """Report an accuracy, unless that was done before the run was resumed."""
        if step not in self._reported:
            self._reported[step] = accuracy
            self._trial.report(accuracy, step)

    def close(self) -> None:
        """Do nothing."""
