"""ANIL: MAML's inner loop, on the head alone."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from adaptask.arguments import check_integer, check_number
from adaptask.backbones import Backbone
from adaptask.learners.base import EmbeddingLearner, check_backbone, check_way


class ANIL(EmbeddingLearner):
    """Learn features and the initial weights of a linear head. Only the head adapts to a task.

    With the n support features F (n x features), their one-hot labels Y, and logits
    Z = F W' + b, a step on the mean cross-entropy is

        E = (softmax(Z) - Y) / n,    W <- W - inner_lr E' F,    b <- b - inner_lr 1' E.

    The query loss is differentiated through all steps.

    Raghu et al., *Rapid Learning or Feature Reuse?* (2020).

    Args:
        backbone: Maps images to features.
        n_way: Number of classes of a task, the outputs of the head.
        inner_steps: Gradient steps on the support set in training.
        evaluation_steps: Gradient steps in evaluation; by default as in training.
        inner_lr: Learning rate of the inner steps; the initial value if it is learned.
        first_order: Treat inner gradients as constants.
        learn_inner_lr: Learn a separate inner learning rate for every weight of the head.

    Raises:
        ArgumentError: If an argument is out of range.
    """

    description: ClassVar[str] = "MAML that adapts only the head (Raghu et al. 2020)"
    has_fixed_way: ClassVar[bool] = True
    order_free = False  # each output of the head has its own initial weights

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
        self.first_order = first_order
        # One column more than features: the bias is the weight of a feature that is always one.
        start = torch.zeros(self.n_way, backbone.n_features + 1)
        nn.init.xavier_uniform_(start[:, :-1])
        self.head = nn.Parameter(start)
        self.inner_rates: nn.Parameter | None = None
        if learn_inner_lr:
            self.inner_rates = nn.Parameter(torch.full_like(start, self.inner_lr))

    def classify(self, support: Tensor, query: Tensor) -> Tensor:
        """Return the logits of the adapted head."""
        n_tasks, n_way, n_shot = support.shape[:3]
        check_way(n_way, self.n_way)
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
