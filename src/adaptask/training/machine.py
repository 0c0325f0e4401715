"""Setting up the process: device, threads, determinism."""

from __future__ import annotations

import os

import torch

from adaptask.arguments import check_integer
from adaptask.errors import ArgumentError
from adaptask.training.group import ALONE, Group


def choose_device(name: str, group: Group = ALONE) -> torch.device:
    """Return the device of that name; `auto` is a GPU where there is one.

    Args:
        name: Of a kind, or with its index.
        group: The processes of the run: each takes a GPU of its own.

    Raises:
        ArgumentError: If there is no such device here, or too few for all processes.
    """
    name = group.own_device(name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        # A tensor there knows the index of the device, and shows that it can be used.
        device = torch.empty(0, device=name).device
        torch.zeros(1, device=device).tolist()
        return device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        here = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        raise ArgumentError(
            f"device must be auto or one of those here, {', '.join(here)}; got {name!r}."
        ) from error


def set_up_process(*, threads: int | None = None, deterministic: bool = False) -> None:
    """Set what holds for the whole process.

    Args:
        threads: CPU threads; None leaves PyTorch's choice.
        deterministic: Whether kernels that may give other results each time are refused or
            replaced by slower ones.

    Raises:
        ArgumentError: If `threads` is no positive integer.
    """
    if threads is not None:
        torch.set_num_threads(check_integer("threads", threads, low=1))
    if deterministic:
        # cuBLAS reads it when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)
    else:
        # Shapes of a run are fixed: what is tried out in the first steps pays in all others.
        torch.backends.cudnn.benchmark = True
