"""A sweep whose runs are made on a cluster: several trials at once, judged where it was started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from adaptask.errors import TrainingError
from adaptask.experiments.cluster.ray_cluster import RayCluster
from adaptask.experiments.config import RunConfig
from adaptask.experiments.jobs import Job, JobDisplay
from adaptask.experiments.running import TEST
from adaptask.experiments.shared_display import SharedDisplay
from adaptask.experiments.study_display import StudyLines, choose_study_display
from adaptask.experiments.sweeping.journal import Journal
from adaptask.experiments.sweeping.plan import SweepTrial
from adaptask.experiments.sweeping.searching import Searching
from adaptask.report.run import PRUNED
from adaptask.training.displays import Display, Silent
from adaptask.training.loggers import Logger


def search_on_cluster(
    cluster: RayCluster,
    plan: Sequence[SweepTrial],
    folder: Path,
    *,
    seeds: Sequence[int],
    journal: Journal,
    quiet: bool,
) -> None:
    """Bring every trial to its end, as many at once as the cluster has room for.

    Args:
        cluster: Makes the runs; it is open.
        plan: All trials.
        folder: Of the sweep.
        seeds: Of the runs of each trial.
        journal: Told how trials go.
        quiet: Whether to say only what goes wrong.

    Raises:
        AdaptaskError: If something cannot be done that all trials need.
        KeyboardInterrupt: After Ctrl-C; runs in progress have saved where they are.
    """
    with ExitStack() as stack:
        jobs = _open_jobs(plan, folder, seeds)
        shown = StudyLines(jobs, sys.stderr) if quiet else choose_study_display(jobs)
        stack.callback(shown.close)
        shared = SharedDisplay(shown, quiet=quiet)
        run = _ClusterRun(cluster, shared)
        lines = _SearchLines(shared, quiet=quiet)
        searching = Searching(folder, seeds=seeds, journal=journal, run=run, display=lines)
        n_at_once = min(len(plan), cluster.room(plan[0].config))
        pool = stack.enter_context(ThreadPoolExecutor(n_at_once))
        settled = [
            pool.submit(searching.settle, trial, f"Trial {number} of {len(plan)}")
            for number, trial in enumerate(plan, start=1)
        ]
        try:
            for trial in as_completed(settled):
                trial.result()
        except BaseException:
            cluster.stop()
            pool.shutdown(cancel_futures=True)
            raise


def _open_jobs(plan: Sequence[SweepTrial], folder: Path, seeds: Sequence[int]) -> list[Job]:
    """Return the runs that are not at their end."""
    jobs = [
        _job(replace(trial.config, seed=seed), folder / trial.run_folder(seed))
        for trial in plan
        for seed in seeds
    ]
    return [j for j in jobs if not (j.path / TEST).exists() and not (j.path / PRUNED).exists()]


def _job(config: RunConfig, path: Path) -> Job:
    return Job(f"{path.parent.name}, seed {config.seed}", config, path)


class _ClusterRun:
    """Trains a run on the cluster; its loggers, which may give it up, are told here.

    Args:
        cluster: Makes the run.
        display: Shows progress.
    """

    def __init__(self, cluster: RayCluster, display: JobDisplay) -> None:
        self._cluster, self._display = cluster, display

    def __call__(
        self, config: RunConfig, path: Path, *, display: Display, loggers: Sequence[Logger]
    ) -> None:
        """Train it to its end.

        Raises:
            TrainingError: If it failed.
        """
        raised: list[Exception] = []

        def judge(step: int, accuracy: float) -> bool:
            try:
                for logger in loggers:
                    logger.log(step, "val", {"accuracy": accuracy})
            except Exception as error:  # whatever ends it; raised when it has ended
                raised.append(error)
            return bool(raised)

        job = _job(config, path)
        failures = self._cluster.run([job], self._display, judge=judge if loggers else None)
        for error in raised:
            raise error
        for failure in failures.values():
            raise TrainingError(failure)


class _SearchLines(Silent):
    """What the search tells, among the lines of its runs, which are told of one by one.

    Args:
        display: Of the runs.
        quiet: Whether to say only what goes wrong.
    """

    def __init__(self, display: JobDisplay, *, quiet: bool) -> None:
        self._display, self._quiet = display, quiet

    def message(self, text: str) -> None:
        """Hand it on."""
        if not self._quiet:
            self._display.warn(text)

    def warn(self, text: str) -> None:
        """Hand it on."""
        self._display.warn(text)
