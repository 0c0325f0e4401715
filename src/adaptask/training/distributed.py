"""Several processes that make one run together, by messages of torch.distributed.

Everything is drawn in every process alike, and each learns from its share of the tasks. In a step
two messages go round: the means of the gradients, and what the sampler learns from. Hence
weights, potentials and generators have the same bits everywhere, and the run is the one that a
single process would make, but for rounding.

Gradients are averaged in one message after the backward pass, not by `DistributedDataParallel`:
that one listens to a module's `forward`, and sees neither a `training_step` nor gradients which
are computed by hand, as those of MAML and Reptile.
"""

from __future__ import annotations

import hashlib
import io
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

import adaptask.errors
from adaptask.errors import AdaptaskError, ArgumentError, TrainingError
from adaptask.interfaces import Episodes, TaskSampler, take_tasks
from adaptask.samplers import Sampler
from adaptask.samplers.feedback import mean_queries
from adaptask.training.group import Group, TaskSource
from adaptask.training.metrics import DivergenceWatch
from adaptask.training.peers import Peers

T = TypeVar("T")

# The name that it has since torch 2.13, and the one that it had.
_all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
# On a GPU the host runs ahead of the device; it need not wait for the others at every step.
_STEPS_BETWEEN_LOOKS = {"cpu": 1, "cuda": 16}


class DistributedGroup(Group):
    """The processes of the process group that torch.distributed was initialised with.

    Args:
        peers: Knows who is still there.
        local_rank: Which of the processes on its machine this is.
        local_size: How many there are on it.
    """

    def __init__(self, peers: Peers, *, local_rank: int, local_size: int) -> None:
        self.rank, self.size = peers.rank, peers.size
        self.local_rank, self.local_size = local_rank, local_size
        self.captures = False
        self.peers = peers
        self._steps_between_looks = 1
        self.is_loss_told = False
        """Whether the process that is lost has said itself why it ended."""

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedGroup:
        return self  # layers that share statistics know it, and learners are copied

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
        """Take in on which device this process computes."""
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

        What is sent is K x K numbers a task, if the sampler is a `Sampler`; of others, which may
        look at every query by itself, all probabilities and labels.
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
        with self._talking():
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
        with self._talking():
            distributed.all_reduce(flat)
        flat /= self.size
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        means = [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
        torch._foreach_copy_(tensors, means)

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes."""
        total = tensor.clone()
        with self._talking():
            distributed.all_reduce(total)
        return total

    def gather(self, thing: T) -> list[T]:
        """Return what every process has, in the order of their ranks."""
        things: list[Any] = [None] * self.size
        with self._talking():
            distributed.all_gather_object(things, thing)
        return things

    def from_first(self, thing: T) -> T:
        """Return what the first process has; tensors arrive on the CPU."""
        content = io.BytesIO()
        if self.is_first:
            # Not as it is: its tensors would come to lie on the device of the first process.
            torch.save(thing, content)
        things = [content.getvalue()]
        with self._talking():
            distributed.broadcast_object_list(things, src=0, device=torch.device("cpu"))
        if self.is_first:
            return thing
        received: T = torch.load(io.BytesIO(things[0]), map_location="cpu", weights_only=False)
        return received

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do something that may fail in some processes: then it fails in all, alike."""
        error: Exception | None = None
        try:
            yield
        except Exception as raised:  # whatever it is, the others wait for word of it
            if raised is self.lost:
                raise
            error = raised
        told = self.gather(None if error is None else (type(error).__name__, str(error)))
        if error is not None:
            raise error
        for rank, failure in enumerate(told):
            if failure is not None:
                raise _same_error(rank, *failure)

    def agree_to_stop(
        self, received: signal.Signals | None, step: int, n_steps: int
    ) -> signal.Signals | None:
        """Return the signal that any process has received, see `Group.agree_to_stop`."""
        if step % self._steps_between_looks and step < n_steps:
            return None
        agreed = torch.tensor(int(received or 0))
        with self._talking():
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
    def _talking(self) -> Iterator[None]:
        """Say who is gone where a message does not arrive."""
        if self.lost is not None:
            raise self.lost
        try:
            yield
        except RuntimeError as error:
            happened, self.is_loss_told = self.peers.who_failed()
            advice = (
                ". The run can go on from its last checkpoint: start it again with --resume, or "
                "let torchrun do so, with --max-restarts."
            )
            self.lost = TrainingError(happened if self.is_loss_told else happened + advice)
            raise self.lost from error


def _in_order(received: Tensor, n_parts: int) -> Tensor:
    """Bring tasks, `processes x share x ...`, into the order in which they were drawn.

    Every process has a share of every part of a step.
    """
    by_part = torch.unflatten(received, 1, (n_parts, -1)).transpose(0, 1)
    return by_part.flatten(0, 2)


def _same_error(rank: int, kind: str, message: str) -> AdaptaskError:
    """Return the error that another process has come upon."""
    known = getattr(adaptask.errors, kind, None)
    if isinstance(known, type) and issubclass(known, AdaptaskError):
        return known(message)
    return TrainingError(f"rank {rank} has failed: {kind}: {message}")
