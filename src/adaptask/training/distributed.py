"""One run on several processes: joining those that torchrun has started, and what they send.

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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from adaptask.errors import AdaptaskError, ArgumentError, TrainingError
from adaptask.interfaces import Episodes, TaskSource, take_tasks

T = TypeVar("T")

# The name since torch 2.13, and the one before.
_all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
# On a GPU the host runs ahead of the device, and should not wait for the others at every step.
STEPS_BETWEEN_STOP_CHECKS = {"cpu": 1, "cuda": 16}


class ProcessLostError(AdaptaskError):
    """Another process of the run is gone: a message from it did not arrive."""


class ProcessGroup:
    """The processes of a run; by default this one alone, which sends nothing.

    All processes of a group call the same methods in the same order, since each call waits for the
    other processes.

    Args:
        rank: Index of this process.
        size: Number of processes.
        local_rank: Index of this process on its machine.
        local_size: Number of processes on its machine.
        is_connected: Whether messages are sent, by torch.distributed's default process group.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        *,
        local_rank: int = 0,
        local_size: int = 1,
        is_connected: bool = False,
    ) -> None:
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size
        self.is_connected = is_connected
        self.is_capturable = not is_connected
        """Whether the messages of a step can be part of a device graph."""
        self._steps_between_stop_checks = 1

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessGroup:
        return self  # normalization layers hold it, and learners are copied

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.rank == 0

    def local_device(self, name: str) -> str:
        """Return the device of this process: on each machine, each process has its own GPU.

        Raises:
            ArgumentError: If there are fewer GPUs than processes, or one was named.
        """
        if not self.is_connected:
            return name
        kind, _, index = name.partition(":")
        n_devices = torch.cuda.device_count()
        if kind == "cpu" or (kind == "auto" and not n_devices):
            return "cpu"
        if index:
            raise ArgumentError(
                "each of several processes uses its own GPU; give the kind alone, cuda, instead "
                f"of {name!r}."
            )
        if self.local_size > n_devices:
            raise ArgumentError(
                f"{self.local_size} processes were started on a machine with {n_devices} GPUs; "
                f"each needs its own. Use torchrun --nproc-per-node {max(1, n_devices)}, "
                "or adaptask --device cpu."
            )
        return f"cuda:{self.local_rank}"

    def set_device(self, device: torch.device) -> None:
        """Set the device on which this process computes."""
        if self.is_connected:
            self.is_capturable = device.type == "cuda"
            self._steps_between_stop_checks = STEPS_BETWEEN_STOP_CHECKS.get(device.type, 1)
            if device.type == "cuda":
                torch.cuda.set_device(device)

    def draw(self, source: TaskSource, class_ids: Tensor, *, n_shot: int, n_query: int) -> Episodes:
        """Return this process's share of the episodes that one process would draw.

        Args:
            source: Must have the same state in all processes.
            class_ids: Classes of all tasks, `tasks x way`. All shares have the same size.
            n_shot: Support images per class.
            n_query: Query images per class.
        """
        draw_share = getattr(source, "draw_share", None)
        if self.size == 1 or draw_share is None:
            return self.share(source.draw(class_ids, n_shot=n_shot, n_query=n_query))
        n_share = len(class_ids) // self.size
        start, stop = self.rank * n_share, (self.rank + 1) * n_share
        share: Episodes = draw_share(class_ids, start, stop, n_shot=n_shot, n_query=n_query)
        return share

    def share(self, episodes: Episodes) -> Episodes:
        """Return this process's share of the episodes of all tasks."""
        if self.size == 1:
            return episodes
        n_share = len(episodes.class_ids) // self.size
        return take_tasks(episodes, self.rank * n_share, (self.rank + 1) * n_share)

    def gather_tasks(self, values: Tensor) -> Tensor:
        """Return the numbers of all tasks, `tasks` float32, given one for each of its share."""
        if not self.is_connected:
            return values.float()
        return self._gather_flat([values])[0].flatten()

    def gather_feedback(
        self, *feedback: Tensor, extra: Sequence[Tensor] = (), n_parts: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the outcome of the tasks of all processes, in the order in which they were drawn.

        Args:
            *feedback: Of the tasks of this process, each `share x ...`: query probabilities,
                labels, and class features if the sampler uses them.
            extra: Small tensors to send along.
            n_parts: Number of parts of an accumulated step; each process has a share of each part.

        Returns:
            The feedback of all tasks; and the extra tensors, each `processes x` its shape.
        """
        received = self._gather_flat([*feedback, *extra])
        tasks = [
            _in_order(part, n_parts).to(own.dtype)
            for part, own in zip(received, feedback, strict=False)
        ]
        return tasks, received[len(feedback) :]

    def _gather_flat(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return small tensors of all processes, each `processes x` its shape, by one message."""
        own = torch.cat([tensor.flatten().to(torch.float32) for tensor in tensors])
        everything = own.new_empty(self.size * len(own))
        with _communication():
            _all_gather(everything, own)
        parts = torch.split(everything.view(self.size, -1), [t.numel() for t in tensors], dim=1)
        return [
            part.reshape(self.size, *tensor.shape)
            for part, tensor in zip(parts, tensors, strict=True)
        ]

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace gradients by their means over the processes, in one message."""
        self.average([p.grad for p in parameters if p.grad is not None], dtype=None)

    @torch.no_grad()
    def average(self, tensors: list[Tensor], dtype: torch.dtype | None = torch.float64) -> None:
        """Replace tensors by their means; in float64 those of equal float32 are exact."""
        if not self.is_connected or not tensors:
            return
        flat = torch.cat([tensor.flatten().to(dtype or tensor.dtype) for tensor in tensors])
        means = torch.split(self.sum(flat) / self.size, [tensor.numel() for tensor in tensors])
        shaped = [mean.view_as(tensor) for mean, tensor in zip(means, tensors, strict=True)]
        torch._foreach_copy_(tensors, shaped)

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes, the same bits in all of them."""
        if not self.is_connected:
            return tensor
        total = tensor.clone()
        with _communication():
            distributed.all_reduce(total)
        return total

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, ordered by rank."""
        if not self.is_connected:
            return [value]
        values: list[Any] = [None] * self.size
        with _communication():
            distributed.all_gather_object(values, value)
        return values

    def broadcast(self, value: T) -> T:
        """Return the value of the main process; in the others its tensors are on the CPU."""
        if not self.is_connected:
            return value
        content = io.BytesIO()
        if self.is_main:
            # Sent as it is, its tensors would arrive on the device of the main process.
            torch.save(value, content)
        sent = [content.getvalue()]
        with _communication():
            distributed.broadcast_object_list(sent, src=0, device=torch.device("cpu"))
        if self.is_main:
            return value
        received: T = torch.load(io.BytesIO(sent[0]), map_location="cpu", weights_only=False)
        return received

    @contextmanager
    def sync_errors(self) -> Iterator[None]:
        """If the body fails in one process, raise an error in all of them."""
        failure: Exception | None = None
        try:
            yield
        except ProcessLostError:
            raise
        except Exception as error:  # whatever it is, the others wait to hear of it
            failure = error
        sent = failure
        if failure is not None and not isinstance(failure, AdaptaskError):
            sent = TrainingError(f"rank {self.rank} has failed: {failure!r}")
        failures = [error for error in self.gather(sent) if error is not None]
        if failure is not None:
            raise failure
        if failures:
            raise failures[0]

    def agree_to_stop(
        self, received: signal.Signals | None, step: int, n_steps: int
    ) -> signal.Signals | None:
        """Return the signal that any process has received, if they compare after this step.

        Args:
            received: The signal that this process has received.
            step: Number of steps made so far.
            n_steps: Total number of steps. The processes always compare after the last one.
        """
        if not self.is_connected:
            return received
        if step % self._steps_between_stop_checks and step < n_steps:
            return None
        agreed = torch.tensor(int(received or 0))
        with _communication():
            distributed.all_reduce(agreed, distributed.ReduceOp.MAX)
        return signal.Signals(int(agreed)) if agreed else None

    def check_equal(self, name: str, tensors: Iterable[Tensor]) -> None:
        """Check that tensors have the same bits in all processes.

        Raises:
            TrainingError: If they differ; names them and a process.
        """
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


SINGLE_PROCESS = ProcessGroup()
"""The group of a run of one process."""


@contextmanager
def _communication() -> Iterator[None]:
    """Explain the error of torch.distributed when a message does not arrive."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessLostError(
            "a process of this run is gone: killed, out of memory, or out of reach; torchrun says "
            "which one. The run can be resumed from its last checkpoint: start it again with "
            f"--resume, or let torchrun do so, with --max-restarts. (torch.distributed: {error})"
        ) from error


def _in_order(received: Tensor, n_parts: int) -> Tensor:
    """Bring tasks, `processes x share x ...`, into the order in which they were drawn.

    Every process has a share of every part of a step.
    """
    by_part = torch.unflatten(received, 1, (n_parts, -1)).transpose(0, 1)
    return by_part.flatten(0, 2)


# Joining and leaving ------------------------------------------------------------------------------

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# A process waits this long for the others: long enough for the slowest evaluation or file system.
_TIMEOUT = timedelta(minutes=30)
# A process ends this much later than another one that reports an error, or that was killed.
_LAST_SECONDS = 3.0


@contextmanager
def process_group() -> Iterator[ProcessGroup]:
    """Join the processes that torchrun has started with this one; `SINGLE_PROCESS` if it has not.

    An error in one process ends all of them. It is raised in the one that reports it, so that it
    is shown once; the others exit.

    Raises:
        ArgumentError: If torchrun was started in a way that cannot work, or the processes are
            connected already.
        TrainingError: If the processes do not find each other.
    """
    if not _is_torchrun():
        yield SINGLE_PROCESS
        return
    if distributed.is_initialized():
        raise ArgumentError(
            "process_group() connects the processes itself, but torch.distributed is initialized "
            "already. Leave out init_process_group()."
        )
    group, store = _connect()
    try:
        yield group
        with group.sync_errors():
            pass  # no process leaves before all are done
    except KeyboardInterrupt:
        if group.is_main:
            raise
        raise SystemExit(130) from None
    except Exception as error:
        _leave(error, group, store)
    # With torch 2.6 and gloo this sometimes never returns; the group ends with the process, too.
    if torch.__version__ >= "2.7" or distributed.get_backend() != "gloo":
        distributed.destroy_process_group()


def refuse_torchrun(command: str) -> None:
    """Refuse to run a command for one process under torchrun.

    Raises:
        ArgumentError: If torchrun has started this process.
    """
    if _is_torchrun():
        _refuse(
            f"torchrun makes one run on many devices, with adaptask train; {command} is for one "
            "process. Start it without torchrun."
        )


def _is_torchrun() -> bool:
    return all(name in os.environ for name in _VARIABLES)


def _refuse(message: str) -> NoReturn:
    """Raise an error in the main process, if processes are not connected; end the others later."""
    if os.environ["RANK"] != "0":
        time.sleep(_LAST_SECONDS)  # torchrun terminates all processes as soon as one has ended
        raise SystemExit(1)
    raise ArgumentError(message)


def _connect() -> tuple[ProcessGroup, Store]:
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
    group = ProcessGroup(
        rank, size, local_rank=local_rank, local_size=local_size, is_connected=True
    )
    return group, store


def _leave(error: Exception, group: ProcessGroup, store: Store) -> NoReturn:
    """End this process because of an error, which one of the processes reports."""
    with suppress(ValueError):  # outside the main thread there are no signals to ignore
        # Once a process has ended, torchrun terminates the others; the error is reported first.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    is_loss = isinstance(error, ProcessLostError)
    if is_loss or not group.is_main:
        # torchrun names the process that ends first: it should be the one that was lost. And where
        # all fail alike, the first process should report it: its message has more.
        time.sleep(_LAST_SECONDS)
    try:
        is_reporting = store.add("reports", 1) == 1
    except RuntimeError:
        is_reporting = is_loss  # the store was the first process's, which reports what all raise
    if not is_reporting:
        raise SystemExit(1) from None
    if isinstance(error, AdaptaskError) and not is_loss and not group.is_main:
        raise type(error)(f"rank {group.rank}: {error}") from error
    raise error
