"""A study from its trials to its report: train what is missing, then say what came out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from adaptask.arguments import check_integer
from adaptask.atomic_file import not_written
from adaptask.data import load
from adaptask.errors import ArgumentError, DataError
from adaptask.experiments.backends import choose_backend
from adaptask.experiments.backends.base import Event, Job
from adaptask.experiments.config import check_config
from adaptask.experiments.study_checks import (
    ConfigOf,
    check_buildable,
    check_comparable,
    check_unchanged,
)
from adaptask.experiments.study_display import choose_study_display
from adaptask.experiments.trials import Trial, check_trials
from adaptask.report.study import FILE, Citation, Study, read_study
from adaptask.training.machine import choose_device
from adaptask.training.run_folder import FolderLock

if TYPE_CHECKING:
    from adaptask.experiments.backends.base import Backend
    from adaptask.experiments.backends.ray import RayBackend
    from adaptask.training.loggers import Logger


@dataclass(frozen=True)
class StudyPlan:
    """What a study consists of."""

    title: str
    trials: Sequence[Trial]
    seeds: Sequence[int]
    command: str
    """What repeats it."""
    columns: tuple[str, ...] = ()
    """Labels that stand beside each other as columns in the main table."""
    notes: tuple[str, ...] = ()
    citations: tuple[Citation, ...] = ()
    config_of: ConfigOf = lambda arm: None
    """Configures an arm that the folder has and that is none of the trials, as it would be now."""
    by_validation: bool = False
    """Whether validation is to choose the best trial, as in a sweep."""
    open_logger: Callable[[Path], Logger] | None = None
    """Makes the logger of the run in a folder, where the run is made; it must be picklable."""
    finish: Callable[[Path], None] = lambda folder: None
    """Is given the study's folder when all runs have been made, before the report."""

    def study(self) -> Study:
        """Return it as the report knows it."""
        return Study(
            title=self.title,
            arms=tuple(trial.arm(self.seeds) for trial in self.trials),
            command=self.command,
            columns=self.columns,
            notes=self.notes,
            citations=self.citations,
            by_validation=self.by_validation,
        )


def run_study(
    plan: StudyPlan,
    folder: Path,
    *,
    workers: int | None = None,
    cluster: RayBackend | None = None,
) -> dict[str, str]:
    """Make all runs of a study in a folder; those that are finished are kept.

    The same command goes on after a kill. More seeds or other trials are added to those that the
    folder has.

    Args:
        plan: What is to be run.
        folder: Where.
        workers: How many runs at a time; None chooses: one a core on a CPU; on a GPU several
            where their steps are small. A cluster has its own number.
        cluster: Makes the runs; where there is none, this machine does.

    Returns:
        Why runs failed, by their names; empty where none did.

    Raises:
        ArgumentError: If something cannot be used, or the folder holds something else.
        TrainingError: If another process is at work there.
        KeyboardInterrupt: After Ctrl-C.
    """
    check_trials(plan.trials)
    for trial in plan.trials:
        check_config(trial.config)
    if workers is not None:
        check_integer("workers", workers, low=1)
    jobs = _jobs(plan, folder)
    missing = _missing_datasets(plan.trials)
    possible = [job for job in jobs if job.config.data.dataset not in missing]
    if not possible:
        raise next(iter(missing.values()))
    check_buildable({t.name: t.config for t in plan.trials if t.config.data.dataset not in missing})
    with ExitStack() as stack:
        stack.push(_say_how_to_go_on)
        if cluster is not None:
            stack.enter_context(cluster)
        _make(folder)
        stack.enter_context(FolderLock(folder / "lock").held())
        if cluster is not None:
            cluster.fetch()
        _grown(plan, folder, jobs).write(folder)
        display = choose_study_display(possible)
        stack.callback(display.close)
        for error in missing.values():
            display(Event("warn", "", text=f"Left out: {error}"))
        backend: Backend | None = cluster
        if backend is None:
            device = choose_device(possible[0].config.machine.device).type
            backend = choose_backend(workers, [job.config for job in possible], device)
        failures = backend.run(possible, display)
        plan.finish(folder)
    for job in jobs:
        if error_of_data := missing.get(job.config.data.dataset):
            failures[job.name] = str(error_of_data)
    return {job.name: failures[job.name] for job in jobs if job.name in failures}


def _say_how_to_go_on(kind: type[BaseException] | None, *_: object) -> None:
    if kind in (KeyboardInterrupt, SystemExit):
        sys.stderr.write("To go on, give the same command again; what is done is kept.\n")


def _make(folder: Path) -> None:
    if folder.is_dir() and not (folder / FILE).exists():
        found = folder.iterdir()
        # What a kill leaves before the study is written down does not count.
        if others := [p.name for p in found if p.name != "lock" and p.suffix != ".tmp"]:
            raise ArgumentError(
                f"{folder} exists and holds no study, but {sorted(others)[0]}; choose another "
                "folder."
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(folder, error) from error


def _missing_datasets(trials: Sequence[Trial]) -> dict[str, DataError]:
    """Return why datasets cannot be used; one that is made on first use is made now, once."""
    missing = {}
    for name in dict.fromkeys(trial.config.data.dataset for trial in trials):
        try:
            load(name, "train")
        except DataError as error:
            missing[name] = error
    return missing


def _jobs(plan: StudyPlan, folder: Path) -> list[Job]:
    """Return the runs: all trials of a seed before the next seed, so that pairs are there early."""
    jobs = []
    for seed in plan.seeds:
        for trial in plan.trials:
            (planned,) = trial.arm([seed]).runs
            path = folder / planned.folder
            opens = plan.open_logger and partial(plan.open_logger, path.resolve())
            jobs.append(Job(f"{trial.name}, seed {seed}", trial.seeded(seed), path, opens))
    return jobs


def _grown(plan: StudyPlan, folder: Path, jobs: Sequence[Job]) -> Study:
    """Return the study with what the folder has already and it does not name.

    Raises:
        ArgumentError: If that is another study, or was trained in another way.
    """
    study = plan.study()
    if not (folder / FILE).exists():
        return study
    before = read_study(folder)
    if study.arms[0].labels.keys() != before.arms[0].labels.keys():
        raise ArgumentError(
            f"{folder} holds another study, {before.title!r}; choose another folder."
        )
    check_unchanged(jobs, folder)
    configs = {trial.name: trial.config for trial in plan.trials}
    check_comparable(before, lambda arm: configs.get(arm.name) or plan.config_of(arm), jobs, folder)
    arms = {arm.name: arm for arm in before.arms}
    for arm in study.arms:
        known = arms.get(arm.name)
        runs = {run.seed: run for run in (*(known.runs if known else ()), *arm.runs)}
        arms[arm.name] = replace(arm, runs=tuple(runs[seed] for seed in sorted(runs)))
    return replace(study, arms=tuple(arms.values()))
