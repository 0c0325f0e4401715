"""What a run needs of a machine: room, the same software, and the datasets."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adaptask.errors import ArgumentError, DataError
from adaptask.experiments.config import RunConfig

CACHE = "ADAPTASK_CACHE"
_SECONDS_TO_ANSWER = 90.0

_Machine = Mapping[str, Any]


def versions() -> dict[str, str]:
    """Return what must be the same on all machines; builds of torch for CPU and GPU may mix."""
    import torch

    from adaptask import __version__

    return {"adaptask": __version__, "torch": str(torch.__version__).partition("+")[0]}


def resources_of(config: RunConfig, gpus_per_run: float | None) -> tuple[float, float]:
    """Return the CPUs and GPUs that a run gets, of the cluster that this process is connected to.

    Args:
        config: Of the run.
        gpus_per_run: As asked for; None chooses.

    Raises:
        ArgumentError: If the device of the run does not fit.
    """
    import ray

    device, gpus = config.machine.device, gpus_per_run
    if device not in ("auto", "cpu", "cuda"):
        raise ArgumentError(
            f"Ray chooses the GPU of a run: device must be auto, cpu or cuda; got {device!r}."
        )
    if device == "cpu" and gpus:
        raise ArgumentError("gpus_per_run plays no part with the device cpu; leave it out.")
    if device == "cuda" and gpus == 0:
        raise ArgumentError("the device cuda needs a GPU; gpus_per_run must not be 0.")
    if gpus is None:
        there = ray.cluster_resources()  # type: ignore[no-untyped-call]
        has_any = device == "cuda" or there.get("GPU", 0) > 0
        gpus = 1.0 if device != "cpu" and has_any else 0.0
    return float(config.machine.threads or 1), gpus


def problem_here(
    expected: Mapping[str, str], datasets: Iterable[str], cache: str | None
) -> str | None:
    """Return why no run can be made on this machine, or None.

    Args:
        expected: What `versions` returned where the study was started.
        datasets: Names of datasets that are needed.
        cache: Where datasets are, as said where the study was started; None leaves it to this
            machine.
    """
    from adaptask.data import load

    host, found = platform.node(), versions()
    for name, version in expected.items():
        if found[name] != version:
            return (
                f"the machine {host} has {name} {found[name]}, the one that started the study "
                f"{version}; install the same on both."
            )
    if cache is not None:
        os.environ[CACHE] = cache
    for dataset in datasets:
        try:
            load(dataset, "train")
        except (DataError, ArgumentError) as error:
            return (
                f"the machine {host} lacks the dataset '{dataset}': {error} Do so on that machine, "
                f"or set {CACHE} to a folder that all machines share."
            )
    return None


def check_cluster(datasets: Sequence[str], *, cpus: float, gpus: float, is_own: bool) -> None:
    """Check that there is room for a run, and that machines have what runs need.

    Args:
        datasets: Names of those that are needed.
        cpus: Of a run.
        gpus: Of a run.
        is_own: Whether the cluster is this machine, which needs no questions.

    Raises:
        ArgumentError: If a machine lacks something, or this one has no room. That no machine of a
            cluster has any is only told: one may join later.
    """
    machines = _machines_with_room(cpus=cpus, gpus=gpus)
    if not machines:
        wanted = f"{cpus:g} CPUs and {gpus:g} GPUs for a run"
        if is_own:
            raise ArgumentError(f"this machine does not have {wanted}; ask for less.")
        sys.stderr.write(f"No machine of the cluster has {wanted}; runs wait until one joins.\n")
    if not is_own:
        _check_machines(machines, datasets)


def _machines_with_room(*, cpus: float, gpus: float) -> list[_Machine]:
    """Return the machines of the cluster on which a run can be made, as Ray describes them."""
    import ray

    def has_room(resources: Mapping[str, float]) -> bool:
        return resources.get("CPU", 0) >= cpus and resources.get("GPU", 0) >= gpus

    nodes: list[_Machine] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"] and has_room(node["Resources"])]


def _check_machines(machines: Iterable[_Machine], datasets: Sequence[str]) -> None:
    """Check that machines have what runs need.

    Raises:
        ArgumentError: If one lacks something; the message says which and what.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    answers = {}
    for node in machines:
        here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ask = ray.remote(problem_here).options(num_cpus=0, max_retries=1, scheduling_strategy=here)
        answer = ask.remote(versions(), list(datasets), os.environ.get(CACHE))
        answers[answer] = node["NodeManagerHostname"]
    for answer, host in answers.items():
        try:
            problem = ray.get(answer, timeout=_SECONDS_TO_ANSWER)
        except ray.exceptions.GetTimeoutError as error:
            raise ArgumentError(
                f"the machine {host} has not answered within {_SECONDS_TO_ANSWER:.0f} s; see that "
                "it is well, or take it out of the cluster."
            ) from error
        except ray.exceptions.RayError as error:
            raise ArgumentError(
                f"the machine {host} cannot make runs: {_last_line(error)}. It needs the same "
                "Python environment, with adaptask and torch, as the one that starts the study."
            ) from error
        if problem is not None:
            raise ArgumentError(problem)


def _last_line(error: Exception) -> str:
    """Return the line of an error of Ray that says what happened; those before say where."""
    return str(error).strip().splitlines()[-1].rstrip(".")
