"""Runs as Ray tasks, on this machine or on all machines of a cluster.

Ray chooses the machine of a run. If its worker dies, Ray starts the run again, and it is resumed
from its last checkpoint. Workers train in the folder of the study, which all machines share, or in
a local folder that is copied to a storage after every checkpoint.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg

from adaptask import __version__
from adaptask.arguments import check_integer
from adaptask.errors import ArgumentError, TrainingError
from adaptask.experiments.backends import Event, OnEvent, record_failure
from adaptask.report.run import PRUNED, Run
from adaptask.report.study import FILE, read_study

_POLL_SECONDS = 0.1
_SECONDS_TO_CONNECT = 5.0
_SECONDS_TO_SAVE = 60.0
_SECONDS_TO_UNLOCK = 120.0
"""File servers need some time to notice that the machine that held a lock is dead."""
_CACHE = "ADAPTASK_CACHE"


@dataclass(frozen=True)
class ClusterOptions:
    """Where runs are made."""

    cluster: Annotated[Literal["ray"] | None, arg(metavar="ray", help_behavior_hint="")] = None
    """Make the runs as Ray tasks, on this machine or on all machines of a cluster."""
    ray_address: Annotated[str | None, arg(metavar="ADDRESS", help_behavior_hint="")] = None
    """Address of a running cluster, such as 10.0.0.1:6379, or auto; by default Ray starts here."""
    storage: Annotated[str | None, arg(metavar="URL", help_behavior_hint="")] = None
    """URL such as s3://bucket/study to keep runs in, if the machines share no folder."""
    gpus_per_run: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="")] = None
    """GPUs per run, 1 or a fraction; by default 1 if the cluster has any, 0 on a CPU."""
    retries: int = 3
    """How often a run is resumed after its worker has died."""

    def backend(self, folder: Path, workers: int | None = None) -> RayBackend | None:
        """Return the backend for the study in a folder; None without `--cluster ray`.

        Raises:
            ArgumentError: If a value cannot be used, or has no effect.
        """
        if self.cluster is None:
            for field in fields(self):
                if getattr(self, field.name) != field.default:
                    flag = f"--{field.name.replace('_', '-')}"
                    raise ArgumentError(f"{flag} has no effect without --cluster ray.")
            return None
        return RayBackend(self, folder, workers)


class RayBackend:
    """Makes the runs of a study as Ray tasks; enter it to connect to the cluster.

    Args:
        options: Which cluster, and the resources of a run.
        folder: The folder of the study, which holds all runs.
        workers: Maximum number of runs at a time; None: as many as there are resources for.

    Raises:
        ArgumentError: If a value cannot be used.
    """

    def __init__(self, options: ClusterOptions, folder: Path, workers: int | None = None) -> None:
        check_integer("retries", options.retries, low=0)
        gpus = options.gpus_per_run
        if gpus is not None and not 0 <= gpus <= 1:
            raise ArgumentError(
                f"gpus_per_run must be between 0 and 1, as a run uses one GPU; got {gpus}."
            )
        self._options, self._workers = options, workers
        self._storage = None
        if options.storage is not None:
            from adaptask.experiments.backends.storage import StoredFolder

            self._storage = StoredFolder(options.storage, folder.resolve())
        self._is_connected_here = False

    def __enter__(self) -> RayBackend:
        """Connect to the cluster, or start Ray on this machine.

        A process that is already connected stays connected. Without an address, Ray uses
        `RAY_ADDRESS` from the environment.

        Raises:
            ArgumentError: If that is not possible.
        """
        ray, address = _import_ray(), self._options.ray_address
        if address is not None or not ray.is_initialized():
            _connect(address or os.environ.get("RAY_ADDRESS") or "local")
            self._is_connected_here = True
        # Ray prints the death of workers into our display, and has no public option against it.
        ray._private.worker._worker_logs_enabled = False
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect; stop Ray if it was started here."""
        ray = _import_ray()
        ray._private.worker._worker_logs_enabled = True
        if self._is_connected_here:
            ray.shutdown()

    def fetch(self) -> None:
        """Copy the study from the storage into its folder, if there is a storage.

        Raises:
            ArgumentError: If the folder holds another study than the storage; nothing is copied.
            TrainingError: If the storage cannot be read.
        """
        if self._storage is None:
            return
        folder = self._storage.path
        if (folder / FILE).exists() and FILE in self._storage.names():
            with tempfile.TemporaryDirectory() as scratch:
                (Path(scratch) / FILE).write_bytes(self._storage.read(FILE))
                stored = read_study(Path(scratch))
            here = read_study(folder)
            if {*stored.arms[0].labels} != {*here.arms[0].labels}:
                raise ArgumentError(
                    f"the storage {self._storage.url} holds another study, {stored.title!r}, than "
                    f"{folder}, {here.title!r}; choose another folder or storage."
                )
        self._storage.fetch()

    def upload(self) -> None:
        """Copy the report and missing runs to the storage, if there is one."""
        if self._storage is not None:
            self._storage.push_study()

    def run(self, runs: Sequence[Run], on_event: OnEvent) -> dict[str, str]:
        """Make all runs, see `Backend.run`."""
        ray = _import_ray()
        runs = [self._placed(run) for run in runs]
        for cpus, gpus in {self._resources(run) for run in runs}:
            _warn_without_resources(cpus, gpus, on_event)
        self.upload()
        waiting, failures = deque(runs), {}
        running: dict[Any, Run] = {}
        begun: dict[str, bool] = {}
        queue = _open_queue()
        try:
            while waiting or running:
                while waiting and len(running) < (self._workers or len(runs)):
                    run = waiting.popleft()
                    running[self._submit(run, queue)] = run
                ended, _ = ray.wait(list(running), timeout=_POLL_SECONDS)
                _forward_events(queue, begun, on_event)
                for task in ended:
                    run = running.pop(task)
                    failure = self._outcome(run, task)
                    if failure is not None:
                        failures[run.name] = failure
                    if run.name not in begun:
                        on_event(Event("begin", run.name))
                    on_event(Event("end", run.name, text=failure))
        except BaseException:
            _stop_tasks(list(running))
            raise
        finally:
            queue.shutdown(force=True)
        return failures

    def _placed(self, run: Run) -> Run:
        """Return a run with its kind of device and its threads, the same on every machine."""
        ray = _import_ray()
        machine, gpus = run.config.machine, self._options.gpus_per_run
        if machine.device not in ("auto", "cpu", "cuda"):
            raise ArgumentError(
                "Ray chooses the GPU of a run: device must be auto, cpu or cuda; got "
                f"{machine.device!r}."
            )
        if machine.device == "auto":
            gpus = ray.cluster_resources().get("GPU", 0) if gpus is None else gpus
            machine = replace(machine, device="cuda" if gpus else "cpu")
        config = replace(run.config, machine=replace(machine, threads=machine.threads or 1))
        return replace(run, config=config, path=run.path.resolve())

    def _resources(self, run: Run) -> tuple[int, float]:
        """Return the CPUs and GPUs that a run requests."""
        machine, gpus = run.config.machine, self._options.gpus_per_run
        if machine.device == "cpu":
            return machine.threads, 0.0
        return machine.threads, 1.0 if gpus is None else gpus

    def _submit(self, run: Run, queue: Any) -> Any:
        """Hand a run to Ray; return the task."""
        ray = _import_ray()
        cpus, gpus = self._resources(run)
        if self._storage is None:
            run.path.parent.mkdir(parents=True, exist_ok=True)
        task = ray.remote(make_run).options(
            name=run.name,
            num_cpus=cpus,
            num_gpus=gpus,
            max_retries=self._options.retries,
            retry_exceptions=[TrainingError],  # of the machine or the storage, not of the run
        )
        return task.remote(
            run,
            queue,
            url=None if self._storage is None else self._storage.below(run.path).url,
            versions=versions_here(),
            cache=os.environ.get(_CACHE),
        )

    def _outcome(self, run: Run, task: Any) -> str | None:
        """Return why a run failed, if it did; check that its results are here."""
        ray = _import_ray()
        try:
            if self._storage is not None:
                self._storage.below(run.path).fetch()
            failure: str | None = ray.get(task)
        except ray.exceptions.RayError as error:
            death = (
                f"its worker died ({type(error).__name__}), out of memory perhaps, and "
                f"{self._options.retries} retries are used up. Run the same command again to "
                "continue."
            )
            # An error that was raised in the worker is the cause.
            return record_failure(run, TrainingError(str(getattr(error, "cause", death))))
        except TrainingError as error:
            return record_failure(run, error)
        is_here = run.is_finished or (run.path / PRUNED).exists()
        if failure is None and not is_here:
            return (
                f"its result is not in {run.path}: the folder is not shared with the machine that "
                "made it. Choose a shared one with --output, or use --storage. If it is shared and "
                "only slow, run the same command again."
            )
        return failure


def _import_ray() -> Any:
    """Import ray, without its messages."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # The future default of Ray, about which it prints a long message until then.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise ArgumentError(
            f"--cluster ray needs the package ray, which cannot be imported ({error}). Install it "
            "with: pip install 'ray>=2.44' 'fsspec>=2024.6'"
        ) from error
    return ray


def _connect(address: str) -> None:
    ray = _import_ray()
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address == "local":
            # Objects of Ray are small here.
            options |= {"include_dashboard": False, "object_store_memory": 100 * 2**20}
        elif address != "auto":
            # If nobody answers, Ray itself reports it only after two minutes.
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=_SECONDS_TO_CONNECT).close()
        ray.init(address=address, **options)
    except Exception as error:  # of many kinds
        raise ArgumentError(
            f"Ray could not be used at {address}: {error}. --ray-address must be HOST:PORT, as "
            "`ray start --head` prints it on the first machine, or auto; without it only this "
            "machine is used. This machine must belong to the cluster, and have its token "
            "(RAY_AUTH_MODE, RAY_AUTH_TOKEN) if the cluster requires one."
        ) from error


def _warn_without_resources(cpus: float, gpus: float, on_event: OnEvent) -> None:
    """Warn if no machine has the resources for a run; Ray would wait silently."""
    ray = _import_ray()
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(has.get("CPU", 0) >= cpus and has.get("GPU", 0) >= gpus for has in machines):
        text = f"No machine has {cpus:g} CPUs and {gpus:g} GPUs for a run; runs wait for one."
        on_event(Event("warn", "", text=text))


def _stop_tasks(tasks: list[Any]) -> None:
    """Ask runs to save and stop after their step, and wait; those not begun are dropped."""
    ray = _import_ray()
    for task in reversed(tasks):  # those not begun first, before they can begin
        ray.cancel(task, recursive=False)  # interrupts the run, but not the sending of its events
    if tasks:
        ray.wait(tasks, num_returns=len(tasks), timeout=_SECONDS_TO_SAVE)


def _open_queue() -> Any:
    """Return the Ray `Queue` that workers put their events into."""
    from ray.util.queue import Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # On this machine, so that it is not lost with another one.
    node = _import_ray().get_runtime_context().get_node_id()
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
    return Queue(actor_options={"scheduling_strategy": here, **options})


def _forward_events(queue: Any, begun: dict[str, bool], on_event: OnEvent) -> None:
    """Report the events of all workers, and where runs are resumed that were started again.

    Args:
        queue: The events, each with the name of the machine.
        begun: The runs that have begun, and whether they have just been started again.
        on_event: Is called with the events.
    """
    for machine, event in queue.get_nowait_batch(queue.qsize()):
        if event.kind == "begin":
            begun[event.run] = event.run in begun
        elif event.kind == "advance" and begun[event.run]:
            begun[event.run] = False
            text = f"its worker died; it is resumed from step {event.step} on {machine}."
            on_event(Event("warn", event.run, text=text))
        on_event(event)


# In the workers -----------------------------------------------------------------------------------


def make_run(
    run: Run, queue: Any, *, url: str | None, versions: str, cache: str | None
) -> str | None:
    """Make or resume a run in a Ray worker; return why it failed, if it did.

    Args:
        run: The run.
        queue: Receives its events.
        url: URL of the run in the storage; None if it is in a folder that all machines share.
        versions: What `versions_here` returns on the machine of the command.
        cache: The folder of datasets, if it is set on the machine of the command.

    Raises:
        TrainingError: If the machine or the storage cannot be used; Ray tries again.
    """
    from adaptask.experiments.backends.interleaved import Interleaved
    from adaptask.experiments.backends.storage import StoredFolder

    if (found := versions_here()) != versions:
        raise TrainingError(
            f"the machine {platform.node()} has {found}, the one that started the study "
            f"{versions}; install the same on both."
        )
    if cache is not None:
        os.environ[_CACHE] = cache
    if url is None:
        if not run.path.parent.is_dir():
            raise TrainingError(
                f"the machine {platform.node()} does not see the folder {run.path.parent}. Choose "
                "one that all machines share, with --output, or use --storage."
            )
        _wait_until_unlocked(run.path)
        return Interleaved().run([run], lambda event: _send(event, queue)).get(run.name)
    with tempfile.TemporaryDirectory(prefix="adaptask-") as folder:
        stored = StoredFolder(url, Path(folder) / "run")
        stored.fetch(with_checkpoints=True)

        def copy_and_send(event: Event) -> None:
            try:
                stored.push_checkpoint()
            except TrainingError as error:
                text = f"{error} It is tried again with the next checkpoint."
                _send(Event("warn", run.name, text=text), queue)
            _send(event, queue)

        try:
            return Interleaved().run([replace(run, path=stored.path)], copy_and_send).get(run.name)
        finally:
            stored.push_run()


def versions_here() -> str:
    """Return what must be the same on all machines; builds of torch for CPU and GPU may mix."""
    return f"adaptask {__version__} and torch {version('torch').partition('+')[0]}"


def _send(event: Event, queue: Any) -> None:
    if event.kind != "end":  # the command reports that, as Ray may start the run again
        # While `ray.get` waits, as in `queue.put`, Ray would give the CPUs and GPUs of this run to
        # another one.
        queue.actor.put_nowait.remote((platform.node(), event)).future().result()


def _wait_until_unlocked(folder: Path) -> None:
    """Wait for the lock of a run whose worker died; the run reports if it stays locked."""
    from adaptask.training.run_folder import LOCK, FolderLock

    deadline = time.monotonic() + _SECONDS_TO_UNLOCK
    while folder.is_dir() and time.monotonic() < deadline:
        with suppress(TrainingError), FolderLock(folder / LOCK).held():
            return
        time.sleep(0.5)
