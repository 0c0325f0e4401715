"""Setting up the process: device, threads, determinism."""

from __future__ import annotations

import os

import torch

from adaptask.arguments import check_integer
from adaptask.errors import ArgumentError
from adaptask.training.group import ALONE, Group


def choose_device(name: str, group: Group = ALONE) -> torch.device:
    """Return the device of that name, such as `cuda:1`; `auto` is a GPU if there is one.

    Each process of a group gets its own GPU.

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
    """Set the number of CPU threads, and whether only deterministic kernels are used.

    Raises:
        ArgumentError: If `threads` is not a positive integer.
    """
    if threads is not None:
        torch.set_num_threads(check_integer("threads", threads, low=1))
    if deterministic:
        # cuBLAS reads it when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)
    else:
        # The shapes of a run are fixed: what cuDNN tries out in the first steps pays in all others.
        torch.backends.cudnn.benchmark = True
