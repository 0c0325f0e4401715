"""One run of several processes, which torchrun starts and torch.distributed connects.

Every process draws all tasks from the same generators and learns from its share of them. A step
sends two messages: the mean gradients, and the feedback for the sampler. Hence weights, potentials
and generators have the same bits in all processes, and the run is the one that a single process
would make, except for rounding.

Gradients are averaged in one message after the backward pass, not by `DistributedDataParallel`.
It hooks into a module's `forward`, and misses a `training_step` and gradients that are computed by
hand, such as those of MAML and Reptile.
"""

from __future__ import annotations

import hashlib
import io
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing.errors import get_error_handler
from torch.distributed.rendezvous import rendezvous

import adaptask.errors
from adaptask.errors import AdaptaskError, ArgumentError, TrainingError
from adaptask.interfaces import Episodes, TaskSampler, take_tasks
from adaptask.samplers import Sampler
from adaptask.samplers.feedback import mean_queries
from adaptask.training.group import ALONE, Group, TaskSource
from adaptask.training.metrics import DivergenceWatch

T = TypeVar("T")

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# A process waits this long for the others: long enough for the slowest evaluation or file system.
_TIMEOUT = timedelta(minutes=30)
# A process ends this much later than another one that reports an error, or that was killed.
_LAST_SECONDS = 3.0

# The name since torch 2.13, and the one before.
_all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
# On a GPU the host runs ahead of the device, and should not wait for the others at every step.
_STEPS_BETWEEN_LOOKS = {"cpu": 1, "cuda": 16}


class ProcessLostError(AdaptaskError):
    """Another process of the run is gone: a message from it did not arrive."""


class DistributedGroup(Group):
    """The processes of the default process group of torch.distributed.

    Args:
        rank: Index of this process.
        size: Number of processes.
        local_rank: Index of this process on its machine.
        local_size: Number of processes on its machine.
    """

    def __init__(self, rank: int, size: int, *, local_rank: int, local_size: int) -> None:
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size
        self.captures = False
        self._steps_between_looks = 1

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedGroup:
        return self  # normalization layers hold it, and learners are copied

    def own_device(self, name: str) -> str:
        """Return the device of this process: on each machine, each takes a GPU of its own.

        Raises:
            ArgumentError: If there are fewer GPUs than processes, or one was named.
        """
        kind, _, index = name.partition(":")
        n_devices = torch.cuda.device_count()
        if kind == "cpu" or (kind == "auto" and not n_devices):
            return "cpu"
        if index:
            raise ArgumentError(
                f"each of several processes takes a GPU of its own; give the kind alone, cuda, "
                f"instead of {name!r}."
            )
        if self.local_size > n_devices:
            raise ArgumentError(
                f"{self.local_size} processes were started on a machine with {n_devices} GPUs; "
                f"each needs one of its own. Give torchrun --nproc-per-node {max(1, n_devices)}, "
                "or adaptask --device cpu."
            )
        return f"cuda:{self.local_rank}"

    def settle_on(self, device: torch.device) -> None:
        """Set the device on which this process computes."""
        self.captures = device.type == "cuda"
        self._steps_between_looks = _STEPS_BETWEEN_LOOKS.get(device.type, 1)
        if device.type == "cuda":
            torch.cuda.set_device(device)

    def draw(self, source: TaskSource, class_ids: Tensor, *, n_shot: int, n_query: int) -> Episodes:
        """Return the share of this process, see `Group.draw`."""
        n_own = len(class_ids) // self.size
        start, stop = self.rank * n_own, (self.rank + 1) * n_own
        draw_share = getattr(source, "draw_share", None)
        if draw_share is None:
            return take_tasks(source.draw(class_ids, n_shot=n_shot, n_query=n_query), start, stop)
        share: Episodes = draw_share(class_ids, start, stop, n_shot=n_shot, n_query=n_query)
        return share

    def exchange(
        self,
        sampler: TaskSampler,
        probabilities: Tensor,
        labels: Tensor,
        divergence: DivergenceWatch,
        *,
        n_parts: int,
    ) -> tuple[Tensor, Tensor]:
        """Return the outcome of all tasks, see `Group.exchange`.

        A `Sampler` needs K x K numbers per task. Other samplers, which may use every query, get
        all probabilities and labels.
        """
        is_condensed = isinstance(sampler, Sampler)
        if is_condensed:
            probabilities, labels = mean_queries(probabilities, labels)
        sent = [divergence.step, divergence.class_ids, probabilities]
        steps, class_ids, *outcome = self._gather_flat(sent if is_condensed else [*sent, labels])
        divergence.take(steps.long(), class_ids.long())
        in_order = [_in_order(received, n_parts) for received in outcome]
        return in_order[0], labels if is_condensed else in_order[1].to(labels.dtype)

    def _gather_flat(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return small tensors of all processes, each `processes x` its shape, by one message."""
        own = torch.cat([tensor.flatten().to(torch.float32) for tensor in tensors])
        everything = own.new_empty(self.size * len(own))
        with _messages():
            _all_gather(everything, own)
        parts = torch.split(everything.view(self.size, -1), [t.numel() for t in tensors], dim=1)
        return [
            part.reshape(self.size, *tensor.shape)
            for part, tensor in zip(parts, tensors, strict=True)
        ]

    @torch.no_grad()
    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace gradients by their means over the processes, in one message."""
        self.average([p.grad for p in parameters if p.grad is not None], dtype=None)

    @torch.no_grad()
    def average(self, tensors: Iterable[Tensor], dtype: torch.dtype | None = torch.float64) -> None:
        """Replace tensors by their means; in float64 those of equal float32 are exact."""
        tensors = list(tensors)
        if not tensors:
            return
        flat = torch.cat([tensor.flatten().to(dtype or tensor.dtype) for tensor in tensors])
        with _messages():
            distributed.all_reduce(flat)
        flat /= self.size
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        means = [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
        torch._foreach_copy_(tensors, means)

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes."""
        total = tensor.clone()
        with _messages():
            distributed.all_reduce(total)
        return total

    def gather(self, thing: T) -> list[T]:
        """Return the values of all processes, ordered by rank."""
        things: list[Any] = [None] * self.size
        with _messages():
            distributed.all_gather_object(things, thing)
        return things

    def from_first(self, thing: T) -> T:
        """Return the value of the first process; its tensors arrive on the CPU."""
        content = io.BytesIO()
        if self.is_first:
            # Sent as it is, its tensors would arrive on the device of the first process.
            torch.save(thing, content)
        things = [content.getvalue()]
        with _messages():
            distributed.broadcast_object_list(things, src=0, device=torch.device("cpu"))
        if self.is_first:
            return thing
        received: T = torch.load(io.BytesIO(things[0]), map_location="cpu", weights_only=False)
        return received

    @contextmanager
    def together(self) -> Iterator[None]:
        """If the body fails in one process, raise the same error in all of them."""
        error: Exception | None = None
        try:
            yield
        except ProcessLostError:
            raise
        except Exception as raised:  # whatever it is, the others wait to hear of it
            error = raised
        failures = self.gather(None if error is None else (type(error).__name__, str(error)))
        if error is not None:
            raise error
        for rank, failure in enumerate(failures):
            if failure is not None:
                raise _same_error(rank, *failure)

    def agree_to_stop(
        self, received: signal.Signals | None, step: int, n_steps: int
    ) -> signal.Signals | None:
        """Return the signal that any process has received, see `Group.agree_to_stop`."""
        if step % self._steps_between_looks and step < n_steps:
            return None
        agreed = torch.tensor(int(received or 0))
        with _messages():
            distributed.all_reduce(agreed, distributed.ReduceOp.MAX)
        return signal.Signals(int(agreed)) if agreed else None

    def check_same(self, name: str, tensors: Iterable[Tensor]) -> None:
        """Check that tensors have the same bits in all processes, see `Group.check_same`."""
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        digests = self.gather(digest.hexdigest())
        for rank, other in enumerate(digests):
            if other != digests[0]:
                raise TrainingError(
                    f"{name} of rank {rank} are no longer those of rank 0: the processes do not "
                    "compute alike. Run them on processors of one kind, with one version of "
                    "everything."
                )


@contextmanager
def _messages() -> Iterator[None]:
    """Explain the error of torch.distributed when a message does not arrive."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessLostError(
            "a process of this run is gone: killed, out of memory, or out of reach; torchrun says "
            "which one. The run can go on from its last checkpoint: start it again with --resume, "
            f"or let torchrun do so, with --max-restarts. (torch.distributed: {error})"
        ) from error


def _in_order(received: Tensor, n_parts: int) -> Tensor:
    """Bring tasks, `processes x share x ...`, into the order in which they were drawn.

    Every process has a share of every part of a step.
    """
    by_part = torch.unflatten(received, 1, (n_parts, -1)).transpose(0, 1)
    return by_part.flatten(0, 2)


def _same_error(rank: int, kind: str, message: str) -> AdaptaskError:
    """Return the error that another process has raised."""
    known = getattr(adaptask.errors, kind, None)
    if isinstance(known, type) and issubclass(known, AdaptaskError):
        return known(message)
    return TrainingError(f"rank {rank} has failed: {kind}: {message}")


@contextmanager
def joined() -> Iterator[Group]:
    """Join the processes that torchrun has started with this one; `ALONE` if it has not.

    An error in one process ends all of them. It is raised in the one that reports it, so that it
    is shown once; the others exit.

    Raises:
        ArgumentError: If the environment of torchrun is damaged, or cannot do what was asked for.
        TrainingError: If the processes do not find each other.
    """
    if not _was_launched():
        yield ALONE
        return
    group, store = _join(os.environ)
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


def _join(environment: Mapping[str, str]) -> tuple[DistributedGroup, Store]:
    """Connect the processes; return also a store that they share."""
    try:
        rank, size, local_rank, local_size = (int(environment[name]) for name in _VARIABLES[:4])
    except ValueError as error:
        raise ArgumentError(
            f"{', '.join(_VARIABLES)} must be as torchrun sets them: {error}. Unset them to train "
            "in one process."
        ) from error
    n_restarts = int(environment.get("TORCHELASTIC_RESTART_COUNT", 0))
    # torchrun keeps its store over restarts, with everything that earlier processes left in it.
    is_store_kept = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    n_machines = int(environment.get("GROUP_WORLD_SIZE", 1))
    may_restart = int(environment.get("TORCHELASTIC_MAX_RESTARTS", 0)) > 0
    if is_store_kept and n_machines > 1 and may_restart:
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
            f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}: {error}"
        ) from error
    group = DistributedGroup(rank, size, local_rank=local_rank, local_size=local_size)
    group.is_restart = max(group.gather(n_restarts)) > 0
    return group, store


def _leave(error: Exception, group: DistributedGroup, store: Store) -> NoReturn:
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
    if not is_loss:
        with suppress(OSError):
            get_error_handler().record_exception(error)
        if isinstance(error, AdaptaskError) and not group.is_first:
            raise type(error)(f"rank {group.rank}: {error}") from error
    raise error
