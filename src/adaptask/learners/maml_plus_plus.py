"""MAML++: MAML with changes that stabilize its training, each of them optional."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from adaptask.arguments import check_number
from adaptask.backbones import Backbone, TaskNorm
from adaptask.learners.maml import MAML
from adaptask.learners.per_task_conv4 import Weights


class MAMLPlusPlus(MAML):
    """MAML with the changes of Antoniou et al.; with all of them off it is MAML.

    Two more of their changes are outside the learner: the cosine schedule of the learning rate is
    an option of the optimizer, and the ensemble of the best checkpoints is `Ensemble`. Running
    statistics of every step are left out: the published code records them, but does not use them.

    Step k means after k updates, for the support set and for the queries. If evaluation makes more
    steps than training, the further ones use the parameters of the last step.

    Antoniou et al., *How to Train Your MAML* (2018).

    Args:
        backbone: Maps images to features.
        n_way: Number of classes of a task, the outputs of the head.
        inner_steps: Gradient steps on the support set in training, K.
        evaluation_steps: Gradient steps in evaluation; by default as in training.
        inner_lr: Learning rate of the inner steps; the initial value if it is learned.
        first_order: Treat inner gradients as constants throughout training.
        multi_step_loss: Use the query losses after all steps, with equal weights at first and only
            the last one later.
        multi_step_share: Share of training until only the last loss is used, 0 to 1.
        anneal_order: Start training with first-order gradients.
        first_order_share: Share of training with first-order gradients, 0 to 1.
        per_step_norm: Learn a separate weight and bias of each normalization for every step; they
            do not adapt to the task.
        per_layer_rates: Learn a separate inner learning rate for every step and parameter tensor.
        transductive: Normalize queries together in evaluation, or each with the support set alone.

    With s growing from 0 to 1 over the first `multi_step_share` of training, the weight of each
    query loss is (1 - s) / K, plus s for the last one.

    Raises:
        ArgumentError: If an argument is out of range.
    """

    description: ClassVar[str] = "MAML with stable training (Antoniou et al. 2018)"
    beside_graph = ("_progress",)  # it decides `phase`
    _importance: Tensor

    def __init__(
        self,
        *,
        backbone: Backbone,
        n_way: int,
        inner_steps: int = 5,
        evaluation_steps: int | None = None,
        inner_lr: float = 0.01,
        first_order: bool = False,
        multi_step_loss: bool = True,
        multi_step_share: float = 0.15,
        anneal_order: bool = True,
        first_order_share: float = 0.5,
        per_step_norm: bool = True,
        per_layer_rates: bool = True,
        transductive: bool = True,
    ) -> None:
        super().__init__(
            backbone=backbone,
            n_way=n_way,
            inner_steps=inner_steps,
            evaluation_steps=evaluation_steps,
            inner_lr=inner_lr,
            first_order=first_order,
            transductive=transductive,
        )
        self.multi_step_loss = multi_step_loss
        self.multi_step_share = check_number("multi_step_share", multi_step_share, low=0, high=1)
        self.anneal_order = anneal_order
        self.first_order_share = check_number("first_order_share", first_order_share, low=0, high=1)
        # Without calls of begin_step, the objective is that of the end of training.
        self._progress = 1.0
        self.register_buffer("_importance", torch.zeros(self.inner_steps), persistent=False)
        self.step_rates: nn.Parameter | None = None
        if per_layer_rates and self.inner_steps:
            shape = (self.inner_steps, len(self._names))
            self.step_rates = nn.Parameter(torch.full(shape, self.inner_lr))
        self.step_norms = nn.ParameterDict()
        if per_step_norm:
            self._add_step_norms()

    def _add_step_norms(self) -> None:
        """Add a copy of the weight and bias of every normalization for each step."""
        for place, module in self.backbone.named_modules():
            if isinstance(module, nn.BatchNorm2d | TaskNorm):
                for kind in ("weight", "bias"):
                    parameter: nn.Parameter | None = getattr(module, kind)
                    if parameter is None:
                        continue
                    rows = parameter.detach().repeat(self.inner_steps + 1, 1)
                    own = nn.Parameter(rows, requires_grad=parameter.requires_grad)
                    self.step_norms[f"backbone.{place}.{kind}".replace(".", "/")] = own
                    parameter.requires_grad_(False)  # no longer used

    def begin_step(self, step: int, n_steps: int) -> None:
        """Set the weights of the query losses and the order of the derivatives."""
        self._progress = step / max(n_steps, 1)
        if self.inner_steps:
            spread = 1 - self._share_done(self.multi_step_share)
            self._importance.fill_(spread / self.inner_steps)
            self._importance[-1].fill_(spread / self.inner_steps + 1 - spread)

    @property
    def depends_on_total_steps(self) -> bool:
        """Whether anything is annealed over training."""
        return self.multi_step_loss or self.anneal_order

    def _share_done(self, share: float) -> float:
        """Return how much of the first `share` of training is over, 0 to 1."""
        return min(1.0, self._progress / share) if share else 1.0

    @property
    def phase(self) -> tuple[bool, bool]:
        """Whether several query losses and whether second derivatives are in use.

        While it stays the same, every training step does the same operations, so that a captured
        CUDA graph remains valid.
        """
        return self._has_several_losses(), self._differentiates_twice()

    def _has_several_losses(self) -> bool:
        return self.multi_step_loss and self._share_done(self.multi_step_share) < 1

    def _differentiates_twice(self) -> bool:
        early = self.anneal_order and self._progress < self.first_order_share
        return not self.first_order and not early

    def _importances(self) -> dict[int, float | Tensor]:
        if not self.inner_steps or not self._has_several_losses():
            return super()._importances()
        return {at + 1: weight for at, weight in enumerate(self._importance)}

    def _updated(self, name: str, weight: Tensor, gradient: Tensor, step: int) -> Tensor:
        if self.step_rates is None:
            return super()._updated(name, weight, gradient, step)
        row = self.step_rates[min(step, self.inner_steps - 1)]
        return torch.addcmul(weight, gradient, row[self._names.index(name)], value=-1)

    def _features(self, weights: Weights, images: Tensor, n_updates: int) -> Tensor:
        """Return features with the normalization of this step."""
        at = min(n_updates, self.inner_steps)
        own = {
            name.replace("/", "."): rows[at].expand(len(images), -1)
            for name, rows in self.step_norms.items()
        }
        return super()._features({**weights, **own}, images, n_updates)
