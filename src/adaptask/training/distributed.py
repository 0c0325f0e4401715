"""Joining the processes that torchrun has started, and leaving them: one error, shown once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NoReturn

import torch
from torch import distributed
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from adaptask.errors import AdaptaskError, ArgumentError, TrainingError
from adaptask.training.group import ALONE, Group, ProcessLostError

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# A process waits this long for the others: long enough for the slowest evaluation or file system.
_TIMEOUT = timedelta(minutes=30)
# A process ends this much later than another one that reports an error, or that was killed.
_LAST_SECONDS = 3.0


@contextmanager
def joined() -> Iterator[Group]:
    """Join the processes that torchrun has started with this one; `ALONE` if it has not.

    An error in one process ends all of them. It is raised in the one that reports it, so that it
    is shown once; the others exit.

    Raises:
        ArgumentError: If torchrun was started in a way that cannot work.
        TrainingError: If the processes do not find each other.
    """
    if not _was_launched():
        yield ALONE
        return
    group, store = _join()
    try:
        yield group
        with group.together():
            pass  # no process leaves before all are done
    except KeyboardInterrupt:
        if group.is_first:
            raise
        raise SystemExit(130) from None
    except Exception as error:
        _leave(error, group, store)
    # With torch 2.6 and gloo this sometimes never returns; the group ends with the process, too.
    if torch.__version__ >= "2.7" or distributed.get_backend() != "gloo":
        distributed.destroy_process_group()


def refuse_launch(command: str) -> None:
    """Refuse to run a command for one process under torchrun.

    Raises:
        ArgumentError: If torchrun has started this process.
    """
    if _was_launched():
        _refuse(
            f"torchrun makes one run on many devices, with adaptask train; {command} is for one "
            "process. Start it without torchrun."
        )


def _was_launched() -> bool:
    return all(name in os.environ for name in _VARIABLES)


def _refuse(message: str) -> NoReturn:
    """Raise an error in the first of processes that are not connected; end the others later."""
    if os.environ["RANK"] != "0":
        time.sleep(_LAST_SECONDS)  # torchrun terminates all processes as soon as one has ended
        raise SystemExit(1)
    raise ArgumentError(message)


def _join() -> tuple[Group, Store]:
    """Connect the processes; return also a store that they share."""
    rank, size, local_rank, local_size = (int(os.environ[name]) for name in _VARIABLES[:4])
    n_restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    # torchrun keeps its store over restarts, with everything that earlier processes left in it.
    is_store_kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    has_several_machines = int(os.environ.get("GROUP_WORLD_SIZE", 1)) > 1
    may_restart = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) > 0
    if is_store_kept and has_several_machines and may_restart:
        # They could not agree on a restart: a machine that follows another one does not count it.
        _refuse(
            "restarts on several machines need a new store every time. Give torchrun "
            "--rdzv-backend c10d and export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on every machine, "
            "or leave out --max-restarts."
        )
    has_nccl = torch.cuda.is_available() and distributed.is_nccl_available()
    try:
        store, _, _ = next(rendezvous("env://", timeout=_TIMEOUT))
        if is_store_kept:
            store = PrefixStore(f"restart {n_restarts}", store)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if has_nccl else "gloo",
            timeout=_TIMEOUT,
            store=store,
            rank=rank,
            world_size=size,
        )
    except (RuntimeError, ValueError) as error:
        raise TrainingError(
            f"rank {rank} did not find the other {size - 1} processes at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}: {error}"
        ) from error
    group = Group(rank, size, local_rank=local_rank, local_size=local_size, is_connected=True)
    group.is_restart = max(group.gather(n_restarts)) > 0
    return group, store


def _leave(error: Exception, group: Group, store: Store) -> NoReturn:
    """End this process because of an error, which one of the processes reports."""
    with suppress(ValueError):  # outside the main thread there are no signals to ignore
        # Once a process has ended, torchrun terminates the others; the error is reported first.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    is_loss = isinstance(error, ProcessLostError)
    if is_loss or not group.is_first:
        # torchrun names the process that ends first: it should be the one that was lost. And where
        # all fail alike, the first process should report it: its message has more.
        time.sleep(_LAST_SECONDS)
    try:
        is_reporting = store.add("reports", 1) == 1
    except RuntimeError:
        is_reporting = is_loss  # the store was the first process's, which reports what all raise
    if not is_reporting:
        raise SystemExit(1) from None
    if isinstance(error, AdaptaskError) and not is_loss and not group.is_first:
        raise type(error)(f"rank {group.rank}: {error}") from error
    raise error
