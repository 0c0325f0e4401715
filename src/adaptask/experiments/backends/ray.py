"""Runs as tasks of Ray, on this machine or on all machines of a cluster.

Ray chooses the machine of a run, and starts the run again if its worker dies: it is then resumed
from its last checkpoint. Workers train in the study's folder, which all machines share, or in a
folder of their own that is copied to a storage after every checkpoint.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from adaptask.arguments import check_integer
from adaptask.errors import ArgumentError, TrainingError
from adaptask.experiments.backends.base import Event, Tell, record_failure
from adaptask.experiments.config import RunConfig
from adaptask.report.run import Run

if TYPE_CHECKING:
    from adaptask.experiments.backends.storage import StoredFolder

_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_CONNECT = 5.0
_SECONDS_TO_SAVE = 60.0
_SECONDS_TO_APPEAR = 10.0
"""File servers take a while to show a file to other machines."""


@dataclass(frozen=True)
class ClusterOptions:
    """Where runs are made."""

    cluster: Literal["ray"] | None = None
    """Make the runs as tasks of Ray, on this machine or on all those of a cluster."""
    ray_address: Annotated[str | None, arg(metavar="ADDRESS")] = None
    """Of a cluster that runs, such as 10.0.0.1:6379, or auto; by default Ray is started here."""
    storage: Annotated[str | None, arg(metavar="URL")] = None
    """Where runs are kept if the machines share no folder: a URL such as s3://bucket/study."""
    gpus_per_run: Annotated[float | None, arg(metavar="FLOAT")] = None
    """A whole GPU, 1, or a share of one; by default 1 where the cluster has any, on a CPU none."""
    retries: int = 3
    """How often a run whose worker has died is resumed from its checkpoint."""

    def backend(self, folder: Path, workers: int | None = None) -> RayBackend | None:
        """Return what makes the runs of the study in a folder; None without `--cluster ray`.

        Raises:
            ArgumentError: If a value cannot be used, or has no effect.
        """
        if self.cluster is None:
            for field in fields(self):
                if getattr(self, field.name) != field.default:
                    flag = f"--{field.name.replace('_', '-')}"
                    raise ArgumentError(f"{flag} plays no part without --cluster ray.")
            return None
        return RayBackend(self, folder, workers)


class RayBackend:
    """Makes the runs of a study as tasks of Ray, while it is entered.

    Args:
        options: Which cluster, and what a run gets of it.
        folder: The folder of the study, in which all runs are.
        workers: How many runs at once at most; None: as many as there is room for.

    Raises:
        ArgumentError: If a value cannot be used.
    """

    def __init__(self, options: ClusterOptions, folder: Path, workers: int | None = None) -> None:
        check_integer("retries", options.retries, low=0)
        if workers is not None:
            check_integer("workers", workers, low=1)
        gpus = options.gpus_per_run
        if gpus is not None and not 0 <= gpus <= 1:
            raise ArgumentError(
                f"gpus_per_run must be between 0 and 1, as a run uses one GPU; got {gpus}."
            )
        self._options, self._folder, self._workers = options, folder.resolve(), workers
        self._storage = self._stored(self._folder)
        self._connects = self._is_started_here = False

    def __enter__(self) -> RayBackend:
        """Connect to the cluster, or start Ray on this machine.

        A process that is connected already stays connected. As everywhere with Ray, `RAY_ADDRESS`
        in the environment stands for an address that is not given.

        Raises:
            ArgumentError: If that is not possible.
        """
        ray, address = _import_ray(), self._options.ray_address
        self._connects = not ray.is_initialized()
        if self._connects:
            address = address or os.environ.get("RAY_ADDRESS") or "local"
            _connect(address)
            self._is_started_here = address == "local"
        elif address is not None:
            raise ArgumentError("this process is connected to a cluster of Ray; leave out address.")
        # Ray prints the death of workers into our display, and has no public way to prevent it.
        ray._private.worker._worker_logs_enabled = False
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect; end Ray if it was started here."""
        ray = _import_ray()
        ray._private.worker._worker_logs_enabled = True
        if self._connects:
            ray.shutdown()

    def fetch(self) -> None:
        """Copy what the storage has of the study into its folder, if there is a storage.

        Raises:
            TrainingError: If it cannot be read, or could not be written later.
        """
        if self._storage is not None:
            self._storage.check_writable()
            self._storage.fetch_study()

    def upload(self) -> None:
        """Copy the study to the storage, if there is one: its report, and runs that it lacks.

        Raises:
            TrainingError: If it cannot be written.
        """
        if self._storage is not None:
            self._storage.push_study()

    def run(self, runs: Sequence[Run], tell: Tell) -> dict[str, str]:
        """Make all runs, see `Backend.run`."""
        import ray

        resources = {run.name: self._resources(run.config) for run in runs}
        for cpus, gpus in set(resources.values()):
            self._check_room(cpus, gpus, tell)
        self.upload()
        waiting, failures = deque(runs), {}
        running: dict[Any, Run] = {}
        begun: set[str] = set()
        events = _start_events()
        try:
            while waiting or running:
                while waiting and len(running) < (self._workers or len(runs)):
                    run = waiting.popleft()
                    running[self._submit(run, *resources[run.name], events)] = run
                ended, _ = ray.wait(list(running), timeout=_SECONDS_BETWEEN_LOOKS)
                for event in ray.get(events.take.remote()):
                    begun.add(event.run)
                    tell(event)
                for task in ended:
                    run = running.pop(task)
                    failure = self._outcome(run, task)
                    if failure is not None:
                        failures[run.name] = failure
                    if run.name not in begun:
                        tell(Event("begin", run.name))
                    tell(Event("end", run.name, text=failure))
        except BaseException:
            _let_them_save(list(running))
            raise
        finally:
            ray.kill(events)
        return failures

    def _stored(self, path: Path) -> StoredFolder | None:
        """Return a folder of the study with its copy in the storage, if there is one."""
        from adaptask.experiments.backends.storage import StoredFolder

        if self._options.storage is None:
            return None
        url, below = self._options.storage.rstrip("/"), path.resolve().relative_to(self._folder)
        return StoredFolder(f"{url}/{below.as_posix()}".removesuffix("/."), path)

    def _resources(self, config: RunConfig) -> tuple[float, float]:
        """Return the CPUs and GPUs of a run."""
        device, gpus = config.machine.device, self._options.gpus_per_run
        if device not in ("auto", "cpu", "cuda"):
            raise ArgumentError(
                f"Ray chooses the GPU of a run: device must be auto, cpu or cuda; got {device!r}."
            )
        if device == "cpu" and gpus:
            raise ArgumentError("gpus_per_run plays no part with the device cpu; leave it out.")
        if device == "cuda" and gpus == 0:
            raise ArgumentError("the device cuda needs a GPU; gpus_per_run must not be 0.")
        if gpus is None:
            has_gpus = _import_ray().cluster_resources().get("GPU", 0) > 0
            gpus = 1.0 if device == "cuda" or (device == "auto" and has_gpus) else 0.0
        return float(config.machine.threads or 1), gpus

    def _check_room(self, cpus: float, gpus: float, tell: Tell) -> None:
        """Refuse a run for which this machine has no room; warn if no machine of a cluster has."""
        for node in _import_ray().nodes():
            has = node["Resources"]
            if node["Alive"] and has.get("CPU", 0) >= cpus and has.get("GPU", 0) >= gpus:
                return
        wanted = f"{cpus:g} CPUs and {gpus:g} GPUs for a run"
        if self._is_started_here:
            raise ArgumentError(f"this machine does not have {wanted}; ask for less.")
        text = f"No machine of the cluster has {wanted}; runs wait until one joins."
        tell(Event("warn", "", text=text))

    def _submit(self, run: Run, cpus: float, gpus: float, events: Any) -> Any:
        """Hand a run to Ray; return the task."""
        from adaptask.experiments.backends import ray_worker

        path, stored = run.path.resolve(), self._stored(run.path)
        if stored is None:
            path.parent.mkdir(parents=True, exist_ok=True)
        device, threads = "cuda" if gpus else "cpu", max(1, int(cpus))
        machine = replace(run.config.machine, device=device, threads=threads)
        task = _import_ray().remote(ray_worker.make_run)
        task = task.options(
            name=run.name,
            num_cpus=cpus,
            num_gpus=gpus,
            max_retries=self._options.retries,
            retry_exceptions=[TrainingError],  # of the machine or the storage, not of the run
        )
        return task.remote(
            replace(run, config=replace(run.config, machine=machine), path=path),
            events,
            url=None if stored is None else stored.url,
            versions=ray_worker.versions_here(),
            cache=os.environ.get(ray_worker.CACHE),
        )

    def _outcome(self, run: Run, task: Any) -> str | None:
        """Return why a run failed, if it did; see that its results are here."""
        ray, problem, failure, is_tested = _import_ray(), None, None, False
        try:
            failure, is_tested = ray.get(task)
        except ray.exceptions.RayError as error:
            problem = TrainingError(_reason(error, self._options.retries))
        try:
            if stored := self._stored(run.path):
                stored.fetch_run(with_checkpoint=False)
            if is_tested:
                _wait_for_results(run.path)
        except TrainingError as error:
            problem = problem or error
        if failure is None and problem is not None:
            failure = record_failure(run, problem)
        return failure


def _import_ray() -> Any:
    """Return the package ray, without its messages."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # As Ray will do by default, and announces at length until then.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise ArgumentError(
            f"--cluster ray needs the package ray, which cannot be imported ({error}). Install it "
            "with: pip install 'adaptask[cluster]'"
        ) from error
    return ray


def _connect(address: str) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        # Objects of Ray are small here.
        options |= {"include_dashboard": False, "object_store_memory": 100 * 2**20}
    elif address != "auto":
        _check_reachable(address)
    try:
        _import_ray().init(address=address, **options)
    except Exception as error:  # of many kinds
        raise ArgumentError(
            f"Ray could not be used at {address}: {error}. This machine must belong to the "
            "cluster, and have its token (RAY_AUTH_MODE, RAY_AUTH_TOKEN) if it asks for one."
        ) from error


def _check_reachable(address: str) -> None:
    """Check that something answers at an address; Ray itself would take two minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS_TO_CONNECT).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ArgumentError(
            f"nobody answers at {address}: {error}. --ray-address must be HOST:PORT, as `ray start "
            "--head` shows it on the first machine, or auto; leave it out to use this machine."
        ) from error


def _let_them_save(tasks: list[Any]) -> None:
    """Ask runs to stop after their step, and wait for them; those not begun are dropped."""
    ray = _import_ray()
    for task in reversed(tasks):  # those not begun first, before another makes room for them
        ray.cancel(task, recursive=False)  # interrupts the run, but not what it has to tell
    if tasks:
        _, late = ray.wait(tasks, num_returns=len(tasks), timeout=_SECONDS_TO_SAVE)
        for task in late:
            with suppress(ray.exceptions.RayError):
                ray.cancel(task, force=True)


def _reason(error: Exception, retries: int) -> str:
    """Return why Ray gave up a run."""
    if isinstance(cause := getattr(error, "cause", None), TrainingError):
        return str(cause)
    if isinstance(error, _import_ray().exceptions.RayTaskError):
        return str(error).strip().splitlines()[-1]  # the lines before say where
    return (
        f"its worker died ({type(error).__name__}), out of memory perhaps, and {retries} retries "
        "are used up. Start the same command again to go on."
    )


def _wait_for_results(folder: Path) -> None:
    """Wait until the results that a worker has written are seen here."""
    from adaptask.experiments.run import TEST

    deadline = time.monotonic() + _SECONDS_TO_APPEAR
    while not (folder / TEST).exists():
        if time.monotonic() > deadline:
            raise TrainingError(
                f"the run has ended, but {folder / TEST} is not here: the folder is not shared "
                "with the machine that made it. Choose one that is, with --output, or give "
                "--storage."
            )
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _start_events() -> Any:
    """Start the actor that workers tell their events, on this machine."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from adaptask.experiments.backends.ray_worker import Events

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
    return ray.remote(Events).options(scheduling_strategy=here, **options).remote()
