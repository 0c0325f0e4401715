"""What a machine needs to make runs: the same software, and the datasets."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from typing import Any

from adaptask.errors import ArgumentError, DataError

CACHE = "ADAPTASK_CACHE"
_SECONDS_TO_ANSWER = 90.0


def versions() -> dict[str, str]:
    """Return what must be the same on all machines; builds of torch for CPU and GPU may mix."""
    import torch

    from adaptask import __version__

    return {"adaptask": __version__, "torch": str(torch.__version__).partition("+")[0]}


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


def check_machines(datasets: Iterable[str], *, cpus: float, gpus: float) -> bool:
    """Check every machine of the cluster that has room for a run.

    Returns:
        Whether there is any now; one may join later.

    Raises:
        ArgumentError: If one lacks something; the message says which and what.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def has_room(resources: Mapping[str, float]) -> bool:
        return resources.get("CPU", 0) >= cpus and resources.get("GPU", 0) >= gpus

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [n for n in nodes if n["Alive"] and has_room(n["Resources"])]
    answers = {}
    for node in nodes:
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
            raise ArgumentError(problem[0].upper() + problem[1:])
    return bool(nodes)


def _last_line(error: Exception) -> str:
    """Return the line of an error of Ray that says what happened; those before say where."""
    return str(error).strip().splitlines()[-1].rstrip(".")
