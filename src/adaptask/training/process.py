"""The process that trains: its device and threads, its random state, the signals that stop it."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch

from adaptask.arguments import check_integer
from adaptask.errors import ArgumentError
from adaptask.randomness import derive_seed, seed_of_state
from adaptask.training.distributed import SINGLE_PROCESS, ProcessGroup

# Device and threads -------------------------------------------------------------------------------


def choose_device(name: str, group: ProcessGroup = SINGLE_PROCESS) -> torch.device:
    """Return the device with a name such as `cuda:1`; `auto` is a GPU if there is one.

    Each process of a group gets its own GPU.

    Raises:
        ArgumentError: If there is no such device, or there are too few for all processes.
    """
    name = group.local_device(name)
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


def device_type(name: str) -> str:
    """Return `cpu` or `cuda` for the name of a device, without opening a CUDA context.

    A process that only starts others should not take memory on a GPU.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name.partition(":")[0]


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


# Random state -------------------------------------------------------------------------------------


def seed_process(seed: int) -> None:
    """Seed the global generators of Python, NumPy and PyTorch from one seed."""
    random.seed(derive_seed(seed, "python"))
    np.random.seed(derive_seed(seed, "numpy") % 2**32)
    torch.manual_seed(derive_seed(seed, "torch"))


def random_state() -> dict[str, Any]:
    """Return the states of the global generators, in a form that a checkpoint can hold.

    The package draws nothing from those of Python and NumPy; learners from elsewhere may.
    """
    keys = np.random.get_state(legacy=False)
    return {
        "python": random.getstate(),
        "numpy": {
            "key": torch.from_numpy(keys["state"]["key"].astype(np.int64)),
            "position": int(keys["state"]["pos"]),
            "has_gauss": int(keys["has_gauss"]),
            "gauss": float(keys["gauss"]),
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(
    first: Mapping[str, Any], others: Sequence[Mapping[str, Any]] = (), *, rank: int = 0
) -> None:
    """Continue from states that `random_state` returned, in one process or in several.

    GPUs that had no state then keep the one that they have.

    Args:
        first: The state of the first process.
        others: The states of the second, third, ... process.
        rank: Index of this process. If it has no state, as when there were fewer processes, it
            gets one that is derived from `first` and differs from that of the others.
    """
    if rank > len(others):
        seed_process(derive_seed(seed_of_state(first["torch"]), f"rank {rank}"))
        return
    state = first if rank == 0 else others[rank - 1]
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    keys = state["numpy"]
    words = keys["key"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", words, keys["position"], keys["has_gauss"], keys["gauss"]))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available():
        for index, found in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(found, index)


# Signals ------------------------------------------------------------------------------------------

TERMINAL_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, name)
)
"""What a terminal sends to every process in it: Ctrl-C, and that it was closed."""


class StopSignals:
    """While it is entered, the first signal to stop only sets `received`; a second acts at once.

    Outside the main thread, which signals never reach, it does nothing.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        """The signal that was received, if there was one."""
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        """Replace the handlers of the signals."""
        if threading.current_thread() is threading.main_thread():
            for number in (*TERMINAL_SIGNALS, signal.SIGTERM):
                # A signal that the parent process ignores, as nohup does with SIGHUP, stays
                # ignored. A handler that was not installed from Python, None, could not be
                # restored.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handlers."""
        self._restore()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()


def exit_for_signal(received: signal.Signals) -> NoReturn:
    """Do what a signal asks for: `KeyboardInterrupt`, or an exit with 128 + its number."""
    if received is signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + received)
