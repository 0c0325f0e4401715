"""Many runs as tasks of Ray; a run whose worker dies goes on from its checkpoint."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptask.atomic_file import replace_file
from adaptask.errors import TrainingError
from adaptask.experiments.cluster.connection import connected
from adaptask.experiments.cluster.desk import Desk
from adaptask.experiments.cluster.machines import CACHE, check_cluster, resources_of, versions
from adaptask.experiments.cluster.mirror import RunMirror, fetch_study, push_study
from adaptask.experiments.cluster.storage import Storage
from adaptask.experiments.cluster.talk import Judge, Talk
from adaptask.experiments.cluster.worker import Order, make_run
from adaptask.experiments.config import RunConfig
from adaptask.experiments.jobs import FAILURE, Job, JobDisplay
from adaptask.experiments.running import TEST

if TYPE_CHECKING:
    from adaptask.experiments.cluster.options import ClusterOptions

_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_SAVE = 60.0
_SECONDS_TO_ARRIVE = 10.0
"""For a file that another machine has written in a shared folder to be seen here."""


class RayCluster:
    """Makes the runs of one study on the machines of a cluster.

    Args:
        options: Which cluster, and what a run gets of it.

    Raises:
        ArgumentError: If the storage cannot be used.
    """

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        if options.storage is not None:
            Storage(options.storage)
        self._folder = Path()
        self._desk: Any = None
        self._stopping = threading.Event()

    @contextmanager
    def opened(self, folder: Path, configs: Iterable[RunConfig]) -> Iterator[None]:
        """Be connected for the while, with machines on which runs can be made.

        Args:
            folder: Of the study.
            configs: Of its runs.

        Raises:
            ArgumentError: If there is no cluster, or a machine of it lacks something.
        """
        self._folder = folder.resolve()
        with connected(self._options.ray_address) as is_own:
            import ray
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            needs: dict[tuple[float, float], set[str]] = {}
            for config in configs:
                needs.setdefault(self._resources(config), set()).add(config.data.dataset)
            for (cpus, gpus), datasets in needs.items():
                check_cluster(sorted(datasets), cpus=cpus, gpus=gpus, is_own=is_own)
            here = ray.get_runtime_context().get_node_id()
            self._desk = (
                ray.remote(Desk)
                .options(
                    num_cpus=0,
                    max_restarts=-1,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=True),
                )
                .remote()
            )
            try:
                ray.get(self._desk.hear.remote([]))  # it is there before the first run is
                yield
            finally:
                ray.kill(self._desk)
                self._desk = None

    def fetch(self) -> None:
        """Copy what the storage has of the study into its folder, if there is a storage.

        Raises:
            TrainingError: If it cannot be read, or could not be written later.
        """
        if self._options.storage is not None:
            Storage(self._options.storage).check_writable()
            fetch_study(self._options.storage, self._folder)

    def keep(self) -> None:
        """Copy the study's plan and report to the storage, and runs that it has not.

        Raises:
            TrainingError: If it cannot be written.
        """
        if self._options.storage is not None:
            push_study(self._options.storage, self._folder)

    def room(self, config: RunConfig) -> int:
        """Return how many runs can be made at once now; 1 at least."""
        import ray

        cpus, gpus = self._resources(config)
        there = ray.cluster_resources()  # type: ignore[no-untyped-call]
        fits = [there.get("CPU", 0) // cpus, *([there.get("GPU", 0) // gpus] if gpus else [])]
        return max(1, int(min(fits)))

    def stop(self) -> None:
        """Ask all runs to save and end; `run` then raises KeyboardInterrupt, in any thread."""
        self._stopping.set()

    def run(
        self,
        jobs: Sequence[Job],
        display: JobDisplay,
        *,
        workers: int | None = None,
        judge: Judge | None = None,
    ) -> dict[str, str]:
        """Make runs; return why those failed that did, by their names.

        Args:
            jobs: The runs.
            display: Shows progress.
            workers: How many at once; None: as many as there is room for.
            judge: Asked after each validation of a run.

        Raises:
            KeyboardInterrupt: After Ctrl-C; runs in progress have saved where they are.
        """
        import ray

        waiting, failures = deque(jobs), {}
        talk = Talk(self._desk, display, judge)
        running: dict[Any, Job] = {}
        try:
            while waiting or running:
                if self._stopping.is_set():
                    raise KeyboardInterrupt
                while waiting and len(running) < (workers or len(jobs)):
                    job = waiting.popleft()
                    running[self._submit(job, is_judged=judge is not None)] = job
                ended, _ = ray.wait(list(running), timeout=_SECONDS_BETWEEN_LOOKS)
                talk.relay(list(running.values()))
                for task in ended:
                    job = running.pop(task)
                    failure = self._outcome(job, task, is_given_up=job.name in talk.given_up)
                    if failure is not None:
                        failures[job.name] = failure
                    talk.end(job, failure)
        except BaseException:
            self._let_them_save(list(running))
            raise
        return failures

    def _let_them_save(self, tasks: list[Any]) -> None:
        """Ask runs to stop after their step, and wait for them; those not begun are dropped."""
        import ray

        self._desk.close.remote()  # who waits for an answer could not stop
        for task in tasks:
            ray.cancel(task, recursive=False)  # what a run still has to tell is heard
        if tasks:
            _, late = ray.wait(tasks, num_returns=len(tasks), timeout=_SECONDS_TO_SAVE)
            for task in late:
                with suppress(ray.exceptions.RayError):
                    ray.cancel(task, force=True)

    def _submit(self, job: Job, *, is_judged: bool) -> Any:
        import ray

        path = job.path.resolve()
        if self._options.storage is None:
            path.parent.mkdir(parents=True, exist_ok=True)
        cpus, gpus = self._resources(job.config)
        machine = replace(
            job.config.machine, device="cuda" if gpus else "cpu", threads=max(1, int(cpus))
        )
        order = Order(
            job=replace(job, path=path, config=replace(job.config, machine=machine)),
            versions=versions(),
            cache=os.environ.get(CACHE),
            url=self._url(path),
            is_judged=is_judged,
        )
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": self._options.retries}
        return ray.remote(make_run).options(name=job.name, **options).remote(order, self._desk)

    def _url(self, path: Path) -> str | None:
        if self._options.storage is None:
            return None
        below = path.relative_to(self._folder).as_posix()
        return f"{self._options.storage.rstrip('/')}/{below}"

    def _resources(self, config: RunConfig) -> tuple[float, float]:
        return resources_of(config, self._options.gpus_per_run)

    def _outcome(self, job: Job, task: Any, *, is_given_up: bool) -> str | None:
        """Return why a run failed, if it did; see that its folder is here."""
        import ray

        try:
            failure: str | None = ray.get(task)
        except ray.exceptions.RayError as error:
            failure = _death(error, self._options.retries)
        try:
            url = self._url(job.path.resolve())
            if url is not None:
                RunMirror(url, job.path).fetch(resumable=False)
            elif failure is None and not is_given_up:
                _see(job.path / TEST)
            if failure is not None:
                _leave(failure, job.path)
        except TrainingError as error:
            failure = failure or str(error)
        return failure


def _death(error: Exception, retries: int) -> str:
    import ray

    if isinstance(error, ray.exceptions.RayTaskError):
        return str(error).strip().splitlines()[-1]
    name, again = type(error).__name__, "Start the same command again to go on."
    deaths = (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.OutOfMemoryError,
        ray.exceptions.NodeDiedError,
    )
    if isinstance(error, deaths):
        return (
            f"its worker died ({name}), out of memory perhaps, and {retries} retries are used up. "
            f"{again}"
        )
    return f"Ray itself failed ({name}). {again}"


def _leave(failure: str, path: Path) -> None:
    """Leave a failure in the folder of a run that has begun, unless the run itself has done so."""
    if (path / "config.toml").exists() and not (path / FAILURE).exists():
        replace_file(path / FAILURE, failure.encode())


def _see(path: Path) -> None:
    """Wait until a file that another machine has written is seen here.

    Raises:
        TrainingError: If it is not.
    """
    deadline = time.monotonic() + _SECONDS_TO_ARRIVE
    while not path.exists():
        if time.monotonic() > deadline:
            raise TrainingError(
                f"the run has ended, but {path} is not here: the folder is not shared with the "
                "machine that made it. Choose one that is, with --output, or give --storage."
            )
        time.sleep(_SECONDS_BETWEEN_LOOKS)
