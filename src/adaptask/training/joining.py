"""How a process that torchrun has started joins the others, and how it leaves them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NoReturn

import torch
from torch import distributed
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from adaptask.errors import AdaptaskError, ArgumentError, TrainingError
from adaptask.training.distributed import DistributedGroup
from adaptask.training.group import ALONE, Group
from adaptask.training.peers import Peers

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"

# A process that waits for the others waits so long: for the slowest evaluation or file system.
_TIMEOUT = timedelta(minutes=30)
_OTHERS_SPEAK_SECONDS = 1.0
_LAST_SECONDS = 3.0


def was_launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun, or something like it, has started this process."""
    return all(name in environment for name in _VARIABLES)


def n_restarts(environment: Mapping[str, str] = os.environ) -> int:
    """Return how often torchrun has started these processes again."""
    return int(environment.get(_RESTARTS, 0)) if was_launched(environment) else 0


def refuse_launch(command: str) -> None:
    """Refuse to be one of several processes, for what one process does.

    Raises:
        ArgumentError: If torchrun has started this process.
    """
    if not was_launched():
        return
    if os.environ["RANK"] != "0":
        time.sleep(_LAST_SECONDS)  # the first one speaks for all, before torchrun ends them
        raise SystemExit(1)
    raise ArgumentError(
        f"torchrun makes one run on many devices, with adaptask train; {command} is for one "
        "process. Start it without torchrun."
    )


@contextmanager
def joined() -> Iterator[Group]:
    """Join the processes that torchrun has started with this one; alone where there are none.

    An error ends all of them. It is raised on in one process, for its message to be shown once;
    the others exit.

    Raises:
        ArgumentError: If the environment of torchrun is damaged.
        TrainingError: If the processes do not find each other.
    """
    if not was_launched():
        yield ALONE
        return
    group = _join(os.environ)
    try:
        yield group
        with group.together():
            pass  # nobody leaves before all are done
    except BaseException as error:
        _leave_with(group, error)
    group.peers.end()
    distributed.destroy_process_group()


def _join(environment: Mapping[str, str]) -> DistributedGroup:
    try:
        rank, size, local_rank, local_size = (int(environment[name]) for name in _VARIABLES[:4])
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    except ValueError as error:
        raise ArgumentError(
            f"{', '.join(_VARIABLES)} must be as torchrun sets them: {error}. Unset them to train "
            "in one process."
        ) from error
    has_nccl = torch.cuda.is_available() and distributed.is_nccl_available()
    try:
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if has_nccl else "gloo", timeout=_TIMEOUT
        )
        # A connection of its own: the other one is kept busy while a process waits.
        store = TCPStore(host, port, is_master=False, timeout=_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise TrainingError(
            f"rank {rank} did not find the other {size - 1} processes at {host}:{port}: {error}"
        ) from error
    attempt = PrefixStore(f"adaptask/{n_restarts(environment)}", store)
    peers = Peers(attempt, rank=rank, size=size)
    return DistributedGroup(peers, local_rank=local_rank, local_size=local_size)


def _leave_with(group: DistributedGroup, error: BaseException) -> NoReturn:
    """End this process because of an error, which one of the processes shows."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        group.peers.end()
        if isinstance(error, KeyboardInterrupt) and not group.is_first:
            raise SystemExit(130) from None
        raise error
    from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

    with suppress(OSError):
        ErrorHandler().record_exception(error)  # torchrun shows it beside the rank
    speaks = not group.is_loss_told if error is group.lost else True
    text = str(error) if isinstance(error, AdaptaskError) else f"{type(error).__name__}: {error}"
    if speaks:
        group.peers.tell(text)
        speaks = not _lower_rank_says(group, text)
    if not speaks:
        # Whoever ends first is the one that torchrun names.
        time.sleep(_LAST_SECONDS)
    group.peers.end()
    if not speaks:
        raise SystemExit(1) from None
    if isinstance(error, AdaptaskError) and not group.is_first and error is not group.lost:
        raise type(error)(f"rank {group.rank}: {error}") from error
    raise error


def _lower_rank_says(group: DistributedGroup, text: str) -> bool:
    """Return whether a process of a lower rank ends with the same words."""
    deadline = time.monotonic() + _OTHERS_SPEAK_SECONDS
    while group.rank and time.monotonic() < deadline:
        if any(group.peers.failure_of(rank) == text for rank in range(group.rank)):
            return True
        time.sleep(0.05)
    return False
