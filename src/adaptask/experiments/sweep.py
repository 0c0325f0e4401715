"""What `adaptask sweep` does: a study of many trials, of which validation chooses the best.

The folders of the runs are all that it goes by. Trials are decided before the first one; which of
them are given up early is decided by the runs that have finished, as they stand in their folders.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from adaptask.arguments import check_choice, check_integer
from adaptask.errors import ArgumentError
from adaptask.experiments.backends import RunPruned
from adaptask.experiments.backends.ray import ClusterOptions
from adaptask.experiments.config import RunConfig
from adaptask.experiments.study import run_and_report
from adaptask.experiments.sweep_space import (
    labeled_config,
    new_study,
    parse_space,
    plan_trials,
    short_names,
)
from adaptask.report.run import Run
from adaptask.report.study import Study
from adaptask.report.summary import ArmSummary, summarize
from adaptask.training.distributed import refuse_torchrun

N_STARTUP_TRIALS = 5
"""Trials that must have finished before one is given up."""
_WARM_UP = 0.2
"""Share of the steps before which none is given up."""


def sweep(
    base: RunConfig,
    *,
    flags: Mapping[str, Sequence[str]],
    vary: Sequence[str] = (),
    search: str = "grid",
    trials: int | None = None,
    seeds: int = 1,
    search_seed: int = 0,
    prune: bool = True,
    output: Path | None = None,
    workers: int | None = None,
    cluster: ClusterOptions = ClusterOptions(),  # noqa: B008, it is frozen
    command: Sequence[str] = (),
) -> int:
    """Train every trial of a search, then print the table, best first, and write the report.

    Args:
        base: The configuration that the values go into; its seed is the first one.
        flags: Values of options that have a flag, as texts by the key of the option.
        vary: Other options with their values, such as `optimiser.weight_decay=0,5e-4`.
        search: `grid` or `random`.
        trials: How many, in random search.
        seeds: Runs of each trial.
        search_seed: Decides what random search draws.
        prune: Whether trials that are worse than most are given up early.
        output: The folder of the sweep; by default one named after what is varied.
        workers: How many runs at once; None chooses.
        cluster: Where the runs are made, if not by this machine alone.
        command: The words that repeat it.

    Returns:
        The exit status: 1 if a run failed.

    Raises:
        AdaptaskError: If something cannot be used or done; the message says what to do.
        KeyboardInterrupt: After Ctrl-C.
    """
    refuse_torchrun("sweep")
    _require_optuna()
    check_integer("seeds", seeds, low=1)
    check_choice("search", search, ("grid", "random"))
    space = parse_space(base, flags, vary)
    names = list(short_names(space).values())
    model = f"{base.model.learner}-{base.model.backbone}"
    folder = output or Path("runs") / f"sweep-{base.data.dataset}-{model}-{'-'.join(names)}"
    arms = []
    for planned in plan_trials(base, space, search=search, n_trials=trials, seed=search_seed):
        arm = planned.with_runs(folder, range(base.seed, base.seed + seeds))
        # Without a folder that all runs share they cannot be compared while they are made.
        if prune and cluster.storage is None:
            arm = replace(arm, runs=tuple(_with_pruner(run, base.seed) for run in arm.runs))
        arms.append(arm)
    study = Study(
        title=f"Sweep of {', '.join(names)}",
        arms=tuple(arms),
        command=shlex.join(command),
        by_validation=True,
    )
    return run_and_report(
        study,
        folder,
        workers=workers,
        cluster=cluster,
        config_of=lambda arm: labeled_config(base, space, arm.labels),
        finish=_ranked_by_validation,
    )


def _require_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise ArgumentError(
            f"a sweep needs the package optuna, which cannot be imported ({error}). Install it "
            "with: pip install 'adaptask[sweep]'"
        ) from error


# Giving up early ----------------------------------------------------------------------------------


def _with_pruner(run: Run, first_seed: int) -> Run:
    return replace(run, open_logger=partial(Pruner, run.path.resolve(), first_seed=first_seed))


class Pruner:
    """Gives up a run that is worse than most: Optuna's MedianPruner, fed from the run folders.

    The run of the first seed decides for its trial; those of other seeds end with it.

    Args:
        path: The folder of the run, `runs/TRIAL/seed-SEED`; the others lie beside it.
        first_seed: The first seed of every trial.

    Raises:
        RunPruned: If the trial of the run was given up before.
    """

    def __init__(self, path: Path, *, first_seed: int) -> None:
        first = path.parent / f"seed-{first_seed}"
        if (reason := Run(first).pruned) is not None:
            raise RunPruned(reason)
        self._path, self._is_first = path, path == first
        self._finished: dict[Path, dict[int, float]] = {}

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Compare a validation with those of the runs that have finished.

        Raises:
            RunPruned: If the best so far is below the median of those that have finished.
        """
        if split != "val" or not self._is_first:
            return
        from optuna.pruners import MedianPruner
        from optuna.trial import create_trial

        record = Run(self._path)
        study = new_study(pruner=MedianPruner(N_STARTUP_TRIALS, int(_WARM_UP * record.n_steps)))
        for curve in self._finished_curves():
            best = max(curve.values())
            study.add_trial(create_trial(value=best, intermediate_values=curve))
        trial = study.ask()
        # A resumed run had validations before.
        earlier = {at: accuracy for at, accuracy in _validations(record).items() if at < step}
        own = earlier | {step: metrics["accuracy"]}
        for at, accuracy in own.items():
            trial.report(accuracy, at)
        if trial.should_prune():
            raise RunPruned(
                f"given up after step {step}: its best validation accuracy, "
                f"{100 * max(own.values()):.2f} %, is below the median of the trials before it at "
                "this step"
            )

    def close(self) -> None:
        """Do nothing."""

    def _finished_curves(self) -> list[dict[int, float]]:
        """Return the validations of the other trials that have finished, each read once."""
        for path in self._path.parents[1].glob(f"*/{self._path.name}"):
            if path not in (self._path, *self._finished) and Run(path).is_finished:
                self._finished[path] = _validations(Run(path))
        return [curve for curve in self._finished.values() if curve]


def _validations(run: Run) -> dict[int, float]:
    """Return validation accuracies by step; none of a damaged file, which the report names."""
    steps, accuracies = run.curve("val", "accuracy")
    return dict(zip(steps.tolist(), accuracies.tolist(), strict=True))


# What came out ------------------------------------------------------------------------------------


def _ranked_by_validation(study: Study) -> Study:
    """Return the study with its best trials first, and with a note which one validation chooses."""
    ranked = sorted(
        summarize(study).arms, key=lambda arm: (not _is_finished(arm), -(arm.validation or 0.0))
    )
    return replace(study, arms=tuple(summary.arm for summary in ranked), notes=_notes(ranked))


def _is_finished(summary: ArmSummary) -> bool:
    return summary.n_finished == summary.n_planned


def _notes(ranked: Sequence[ArmSummary]) -> tuple[str, ...]:
    best = ranked[0]
    if best.mean is None or best.validation is None or not _is_finished(best):
        return ("No trial has finished, so that validation chooses none.",)
    values = ", ".join(f"{name} {text}" for name, text in best.arm.labels.items())
    choice = (
        f"Chosen by validation: {values}, with a validation accuracy of {best.validation:.2f} % "
        f"and a test accuracy of {best.mean.mean:.2f} %. The test accuracies of the others decide "
        "nothing: the highest of many is too high."
    )
    n_equal = sum(_is_finished(arm) and arm.validation == best.validation for arm in ranked)
    if n_equal == 1:
        return (choice,)
    return choice, f"{n_equal} trials are equally good in validation; the first of them was taken."
