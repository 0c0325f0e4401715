"""A sweep whose runs are made on a cluster: several trials at once, judged where it was started."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from adaptask.errors import TrainingError
from adaptask.experiments.cluster.ray_cluster import RayCluster
from adaptask.experiments.config import RunConfig
from adaptask.experiments.jobs import Job, JobDisplay
from adaptask.experiments.running import TEST
from adaptask.experiments.study_display import StudyLines, choose_study_display
from adaptask.experiments.sweeping.journal import Journal
from adaptask.experiments.sweeping.plan import SweepTrial
from adaptask.experiments.sweeping.searching import Searching
from adaptask.report.records import PRUNED
from adaptask.training.displays import Display
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
        display = _Shared(shown, quiet=quiet)
        run = _ClusterRun(cluster, display)
        searching = Searching(folder, seeds=seeds, journal=journal, run=run, display=display)
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


class _Shared:
    """The display of all runs for several threads, and that of the search.

    Args:
        display: Shows all.
        quiet: Whether to hand on only what goes wrong.
    """

    def __init__(self, display: JobDisplay, *, quiet: bool) -> None:
        self._display, self._quiet = display, quiet
        self._lock = threading.Lock()

    def begin_job(self, job: Job) -> None:
        """Hand it on."""
        with self._lock:
            if not self._quiet:
                self._display.begin_job(job)

    def advance_job(self, job: Job, step: int, metrics: Mapping[str, float]) -> None:
        """Hand it on."""
        with self._lock:
            if not self._quiet:
                self._display.advance_job(job, step, metrics)

    def end_job(self, job: Job, failure: str | None) -> None:
        """Hand it on; the search tells of failures too."""
        with self._lock:
            if not self._quiet:
                self._display.end_job(job, failure)

    def warn(self, text: str) -> None:
        """Hand it on."""
        with self._lock:
            self._display.warn(text)

    def message(self, text: str) -> None:
        """Hand it on."""
        if not self._quiet:
            self.warn(text)

    def begin(self, step: int, n_steps: int) -> None:
        """Do nothing: runs are told of one by one."""

    def advance(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Do nothing."""

    def end(self, step: int) -> None:
        """Do nothing."""
