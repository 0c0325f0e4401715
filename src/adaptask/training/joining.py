"""How a process that torchrun has started joins the others, and how it leaves them."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

import torch
from torch import distributed
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from adaptask.errors import AdaptaskError, ArgumentError, TrainingError
from adaptask.training.distributed import DistributedGroup
from adaptask.training.group import ALONE, Group
from adaptask.training.peers import Peers

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_RESTARTS, _JOB = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"

# A process that waits for the others waits so long: for the slowest evaluation or file system.
_TIMEOUT = timedelta(minutes=30)
_ASK_SECONDS = 0.02
_OTHERS_SPEAK_SECONDS = 1.0
_LAST_SECONDS = 3.0


def was_launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun, or something like it, has started this process."""
    return all(name in environment for name in _VARIABLES)


def n_restarts(environment: Mapping[str, str] = os.environ) -> int:
    """Return how often torchrun has started the processes of this machine again.

    It counts where a process died, and not on the machines that only start anew because of that.
    """
    return int(environment.get(_RESTARTS, 0)) if was_launched(environment) else 0


def launch_id(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the id that torchrun was given for its job, the same after every restart."""
    job = environment.get(_JOB, "none")  # as torchrun says if it was given none
    return job if was_launched(environment) and job != "none" else None


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
    # With torch 2.6 gloo never returns from it now and then; the group ends with the process, too.
    if torch.__version__ >= "2.7" or distributed.get_backend() != "gloo":
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
    is_hosted = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = TCPStore(host, port, size, is_master=rank == 0 and not is_hosted, timeout=_TIMEOUT)
        # A store of torchrun outlives the processes, and has what those before have left in it.
        attempt = f"adaptask/{_agree_on_name(PrefixStore('adaptask', store), rank, size)}"
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if has_nccl else "gloo",
            timeout=_TIMEOUT,
            store=PrefixStore(attempt, store),
            rank=rank,
            world_size=size,
        )
        # A connection of its own: the other one is kept busy while a process waits.
        own_store = TCPStore(host, port, is_master=False, timeout=_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise TrainingError(
            f"rank {rank} did not find the other {size - 1} processes at {host}:{port}: {error}"
        ) from error
    peers = Peers(PrefixStore(attempt, own_store), rank=rank, size=size)
    return DistributedGroup(peers, local_rank=local_rank, local_size=local_size)


def _agree_on_name(store: Store, rank: int, size: int) -> str:
    """Return a name that the processes that join now have in common, and none before had.

    Each of the others asks in words of its own, which the first one answers: so an answer is no
    older than its question. The first one cannot tell who asked before, and answers them all, until
    all have said that they heard it.
    """
    if rank:
        question = uuid4().hex
        store.set(f"question/{rank}", question)
        name = store.get(f"answer/{question}").decode()
        store.set(f"heard/{name}/{rank}", "")
        return name
    name, others = uuid4().hex, range(1, size)
    deadline = time.monotonic() + _TIMEOUT.total_seconds()
    while not all(store.check([f"heard/{name}/{other}"]) for other in others):
        for asked in (f"question/{other}" for other in others):
            if store.check([asked]):
                store.set(f"answer/{store.get(asked).decode()}", name)
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all of them came within {_TIMEOUT}")
        time.sleep(_ASK_SECONDS)
    return name


def _leave_with(group: DistributedGroup, error: BaseException) -> NoReturn:
    """End this process because of an error, which one of the processes shows."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        group.peers.end()
        if isinstance(error, KeyboardInterrupt) and not group.is_first:
            raise SystemExit(130) from None
        raise error
    speaks = not group.is_loss_told if error is group.lost else True
    text = str(error) if isinstance(error, AdaptaskError) else f"{type(error).__name__}: {error}"
    _record(text if isinstance(error, AdaptaskError) else traceback.format_exc())
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


def _record(text: str) -> None:
    """Write down what torchrun shows beside the rank of a process that failed."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path is not None:
        details = {"py_callstack": text, "timestamp": str(int(time.time()))}
        with suppress(OSError):
            Path(path).write_text(
                json.dumps({"message": {"message": text, "extraInfo": details}}), encoding="utf-8"
            )


def _lower_rank_says(group: DistributedGroup, text: str) -> bool:
    """Return whether a process of a lower rank ends with the same words, and perhaps more."""
    deadline = time.monotonic() + _OTHERS_SPEAK_SECONDS
    while group.rank and time.monotonic() < deadline:
        told = (group.peers.failure_of(rank) for rank in range(group.rank))
        if any(words is not None and words.startswith(text) for words in told):
            return True
        time.sleep(0.05)
    return False
