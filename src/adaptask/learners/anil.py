"""ANIL: MAML's inner loop, on the head alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adaptask.arguments import check_flag, check_integer, check_number
from adaptask.backbones import Backbone
from adaptask.errors import ArgumentError
from adaptask.learners.base import check_backbone
from adaptask.learners.embedding import EmbeddingLearner


class ANIL(EmbeddingLearner):
    """Learn features and a start for a linear head, which alone adapts to the task.

    With the support features F (shots x features), their one-hot labels Y, and logits
    Z = F W' + b, a step on the mean cross-entropy is written out,

        E = (softmax(Z) - Y) / shots,    W <- W - inner_lr E' F,    b <- b - inner_lr 1' E,

    and ordinary derivatives of the query loss run through all steps.

    Raghu et al., *Rapid Learning or Feature Reuse?* (2020).

    Args:
        backbone: Maps images to features.
        n_way: Number of classes of a task, the outputs of the head.
        inner_steps: Steps on the support set in training.
        evaluation_steps: Steps in evaluation; by default as in training.
        inner_lr: Size of the steps; the start of it, if it is learnt.
        first_order: Whether inner gradients count as constants.
        learn_inner_lr: Whether every weight of the head learns a step size of its own.

    Raises:
        ArgumentError: If an argument cannot be used.
    """

    has_fixed_way = True
    order_free = False  # each output of the head has a start of its own

    def __init__(
        self,
        *,
        backbone: Backbone,
        n_way: int,
        inner_steps: int = 5,
        evaluation_steps: int | None = None,
        inner_lr: float = 0.1,
        first_order: bool = False,
        learn_inner_lr: bool = False,
    ) -> None:
        super().__init__(backbone=backbone)
        check_backbone(backbone, "n_features")
        self.n_way = check_integer("n_way", n_way, low=2)
        self.inner_steps = check_integer("inner_steps", inner_steps, low=0)
        if evaluation_steps is None:
            evaluation_steps = inner_steps
        self.evaluation_steps = check_integer("evaluation_steps", evaluation_steps, low=0)
        self.inner_lr = check_number("inner_lr", inner_lr, low=0, high=100)
        self.first_order = check_flag("first_order", first_order)
        # One row more than features: a feature that is always one makes a weight of the bias.
        start = torch.zeros(self.n_way, backbone.n_features + 1)
        nn.init.xavier_uniform_(start[:, :-1])
        self.head = nn.Parameter(start)
        self.inner_rates: nn.Parameter | None = None
        if check_flag("learn_inner_lr", learn_inner_lr):
            self.inner_rates = nn.Parameter(torch.full_like(start, self.inner_lr))

    def _classify(self, support: Tensor, query: Tensor) -> Tensor:
        n_tasks, n_way, n_shot = support.shape[:3]
        if n_way != self.n_way:
            raise ArgumentError(
                f"This learner was built for tasks of {self.n_way} classes, which its head has "
                f"outputs for; got tasks of {n_way}. Build and train one with n_way={n_way}."
            )
        features = _with_one(support.flatten(1, 2))
        one_hot = torch.eye(n_way, device=features.device, dtype=features.dtype)
        labels = one_hot.unsqueeze(1).expand(-1, n_shot, -1).flatten(0, 1)
        rates = self.inner_lr if self.inner_rates is None else self.inner_rates
        head = self.head.expand(n_tasks, -1, -1)
        for _ in range(self.inner_steps if self.training else self.evaluation_steps):
            errors = (features @ head.transpose(1, 2)).softmax(-1) - labels
            gradient = errors.transpose(1, 2) @ features / (n_way * n_shot)
            head = head - rates * (gradient.detach() if self.first_order else gradient)
        return _with_one(query) @ head.transpose(1, 2)


def _with_one(features: Tensor) -> Tensor:
    """Append a feature that is always one, `tasks x images x (features + 1)`."""
    return torch.cat((features, torch.ones_like(features[..., :1])), dim=-1)
