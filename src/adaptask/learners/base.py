"""What every learner shares: how a batch of episodes becomes a loss and query logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from adaptask.arguments import check_members, shown
from adaptask.errors import ArgumentError
from adaptask.interfaces import Episodes, Outcome


class Learner(nn.Module, ABC):
    """A few-shot learner: write `forward`, and the rest is there.

    Learners treat all tasks of a batch at once and read no value on the host. The same module
    serves training and evaluation; `train()` and `eval()` say which.
    """

    order_free: bool = True
    """Whether the order of classes and of support images is free: another order of the classes
    puts the logits into that order and changes nothing else."""
    draws_in_evaluation: bool = True
    """Whether `forward` draws random numbers in `eval()`, which evaluation then seeds."""
    description: ClassVar[str] = ""
    """One sentence for `adaptask list` and the report."""
    has_fixed_way: ClassVar[bool] = False
    """Whether it has one output per class of a task, so that evaluation needs as many classes."""
    needs_feature_maps: ClassVar[bool] = False
    """Whether it compares feature maps, so that the backbone should pool less."""
    needs_plain_sgd: ClassVar[bool] = False
    """Whether its gradient is only meant for SGD without momentum."""
    default_optimizer: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Optimizer options to use if none are set."""
    supports_bfloat16: ClassVar[bool] = True
    """Whether a training step can be computed in bfloat16."""
    supports_compile: ClassVar[bool] = True
    """Whether `torch.compile` computes a training step right."""
    label_smoothing: float = 0.0
    """Share of the right answer that the loss spreads over the other classes."""

    @property
    def depends_on_total_steps(self) -> bool:
        """Whether the number of steps already matters at the first one."""
        return False

    @abstractmethod
    def forward(self, episodes: Episodes) -> Tensor:
        """Return the query logits, `tasks x queries x way`, whose softmax are probabilities."""

    def loss(self, query_logits: Tensor, query_labels: Tensor) -> Tensor:
        """Return the training loss of query logits, the mean over all queries.

        It is the cross-entropy from 1 - `label_smoothing` for the right class and equal shares of
        the rest for the others.

        Args:
            query_logits: `tasks x queries x way`.
            query_labels: `tasks x queries`, positions in the task.
        """
        # Half precision is too coarse for a mean of logarithms.
        wide = query_logits.to(torch.promote_types(query_logits.dtype, torch.float32))
        n_way = query_logits.shape[-1]
        # torch spreads its smoothing over all classes, the right one included.
        smoothing = self.label_smoothing * n_way / (n_way - 1) if self.label_smoothing else 0.0
        return cross_entropy(wide.flatten(0, 1), query_labels.flatten(), label_smoothing=smoothing)

    def training_step(self, episodes: Episodes) -> Outcome:
        """Return the loss to differentiate and the logits that feed the sampler."""
        query_logits = self(episodes)
        loss = self.loss(query_logits, episodes.query_labels)
        return Outcome(loss=loss, query_logits=query_logits.detach())

    def begin_step(self, step: int, n_steps: int) -> None:
        """Take in that step `step` of `n_steps`, counted from 0, is about to begin."""


def check_backbone(backbone: object, *members: str) -> None:
    """Check that a backbone is a module, and has what a learner reads of it.

    Raises:
        ArgumentError: If it is none, or has not.
    """
    if not isinstance(backbone, nn.Module):
        raise ArgumentError(
            "backbone must be a torch.nn.Module, such as build_backbone returns; "
            f"got {shown(backbone)}."
        )
    check_members("backbone", backbone, *members)
