"""MAML: initial weights from which a few gradient steps on the support set suffice."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from adaptask.arguments import check_integer, check_number
from adaptask.backbones import Backbone
from adaptask.interfaces import Episodes, Outcome
from adaptask.learners.inner_loop import InnerLoopLearner, query_groups, select, with_gradient
from adaptask.learners.per_task_conv4 import Weights


class MAML(InnerLoopLearner):
    """Learn initial weights for gradient descent on the support set of a task.

    From the shared weights theta every task takes `inner_steps` steps on its support loss L_S,

        w_0 = theta,    w_(k+1) = w_k - inner_lr * dL_S(w_k) / dw_k.

    Training follows the gradient of the query loss at the last weights towards theta, through all
    the steps (second order), or as if the inner gradients were constants (first order).

    Finn et al., *Model-Agnostic Meta-Learning* (2017); with `learn_inner_lr` Li et al., *Meta-SGD*
    (2017).

    Args:
        backbone: Maps images to features. All its parameters adapt, except frozen ones.
        n_way: Number of classes of a task, the outputs of the head.
        inner_steps: Gradient steps on the support set in training.
        evaluation_steps: Gradient steps in evaluation; by default as in training.
        inner_lr: Learning rate of the inner steps; the initial value if it is learned.
        first_order: Treat inner gradients as constants.
        learn_inner_lr: Learn a separate inner learning rate for every weight (Meta-SGD).
        transductive: Normalize queries together in evaluation, or each with the support set alone.

    Raises:
        ArgumentError: If an argument is out of range.
    """

    description: ClassVar[str] = "learns weights that a few steps adapt (Finn et al. 2017)"

    def __init__(
        self,
        *,
        backbone: Backbone,
        n_way: int,
        inner_steps: int = 5,
        evaluation_steps: int | None = None,
        inner_lr: float = 0.01,
        first_order: bool = False,
        learn_inner_lr: bool = False,
        transductive: bool = True,
    ) -> None:
        super().__init__(backbone=backbone, n_way=n_way, transductive=transductive)
        self.inner_steps = check_integer("inner_steps", inner_steps, low=0)
        if evaluation_steps is None:
            evaluation_steps = inner_steps
        self.evaluation_steps = check_integer("evaluation_steps", evaluation_steps, low=0)
        self.inner_lr = check_number("inner_lr", inner_lr, low=0, high=100)
        self.first_order = first_order
        self._names = [name for name, _ in self.named_parameters()]
        self.inner_rates: nn.ParameterList | None = None
        if learn_inner_lr:
            self.inner_rates = nn.ParameterList(
                torch.full_like(parameter, self.inner_lr) for parameter in self.parameters()
            )

    def training_step(self, episodes: Episodes) -> Outcome:
        """Return the query loss, which carries the meta-gradient, and the query logits.

        The gradient is computed here; `loss.backward()` passes it to the parameters.

        Raises:
            ArgumentError: If the episodes do not fit.
        """
        self._check(episodes)
        parameters = [p for p in self.parameters() if p.requires_grad]
        with torch.enable_grad():
            loss, query_logits, gradients = self._meta_gradient(episodes, parameters)
        return Outcome(loss=with_gradient(loss, parameters, gradients), query_logits=query_logits)

    def training_step_per_task(self, episodes: Episodes) -> Outcome:
        """Return what `training_step` does, with one loss per task.

        The losses are differentiated as they are: weights are known only after all of them, so the
        graphs of queries and inner steps are in memory together.

        Raises:
            ArgumentError: If the episodes do not fit.
        """
        self._check(episodes)
        with torch.enable_grad():
            trajectory = self._trajectory(episodes, self.inner_steps, differentiable=True)
            parts = []
            for n_updates, importance in self._importances().items():
                query_logits = self.logits(trajectory[n_updates], episodes.query_images, n_updates)
                parts.append(importance * self.task_losses(query_logits, episodes.query_labels))
            losses = torch.stack(parts).sum(0)
        return Outcome(loss=losses.mean(), query_logits=query_logits.detach(), losses=losses)

    def _meta_gradient(
        self, episodes: Episodes, parameters: list[nn.Parameter]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return loss, query logits and gradient."""
        trajectory = self._trajectory(episodes, self.inner_steps, differentiable=True)
        queries, labels = episodes.query_images, episodes.query_labels
        reached: list[tuple[Tensor, Tensor | None]] = []
        losses: list[Tensor] = []
        for n_updates, importance in self._importances().items():
            logits = []
            for group in query_groups(queries):
                weights, images = select(trajectory[n_updates], group), queries[group]
                # Detached, the graph of the queries is freed before the inner steps are
                # differentiated for the second time.
                leaves = {
                    name: weight.detach().requires_grad_(weight.requires_grad)
                    for name, weight in weights.items()
                }
                group_logits = self.logits(leaves, images, n_updates)
                part = importance * (len(images) / len(queries))
                loss = self.loss(group_logits, labels[group]) * part
                inputs = [leaf for leaf in leaves.values() if leaf.requires_grad]
                onto = torch.autograd.grad(loss, [*inputs, *parameters], allow_unused=True)
                ends = [weight for weight in weights.values() if weight.requires_grad]
                reached += zip([*ends, *parameters], onto, strict=True)
                logits.append(group_logits.detach())
                losses.append(loss.detach())
        arrived = [(end, gradient) for end, gradient in reached if gradient is not None]
        gradients = torch.autograd.grad(
            [end for end, _ in arrived],
            parameters,
            [gradient for _, gradient in arrived],
            allow_unused=True,
            materialize_grads=True,
        )
        return torch.stack(losses).sum(), torch.cat(logits), list(gradients)

    def _importances(self) -> dict[int, float | Tensor]:
        """Return the weights of the query losses by the number of updates, the last one last."""
        return {self.inner_steps: 1.0}

    def _trajectory(
        self, episodes: Episodes, n_steps: int, *, differentiable: bool
    ) -> list[Weights]:
        """Return the weights of every task after 0, 1, ... n_steps updates."""
        images, labels = episodes.support_images, episodes.support_labels
        trajectory = [self.initial_weights(len(images), differentiable=differentiable)]
        for step in range(n_steps):
            weights = trajectory[-1]
            adapting = {n: w for n, w in weights.items() if w.requires_grad}
            # The sum over tasks: each task has its own weights.
            loss = self.loss(self.logits(weights, images, step), labels) * len(images)
            gradients = torch.autograd.grad(
                loss,
                list(adapting.values()),
                create_graph=differentiable and self._differentiates_twice(),
                allow_unused=True,
            )
            updated = dict(weights)
            for (name, weight), gradient in zip(adapting.items(), gradients, strict=True):
                if gradient is not None:
                    updated[name] = self._updated(name, weight, gradient, step)
            trajectory.append(updated)
        return trajectory

    def _updated(self, name: str, weight: Tensor, gradient: Tensor, step: int) -> Tensor:
        """Return the weights of every task after inner step `step`, counted from 0."""
        if self.inner_rates is None:
            return torch.add(weight, gradient, alpha=-self.inner_lr)
        return torch.addcmul(weight, gradient, self.inner_rates[self._names.index(name)], value=-1)

    def _differentiates_twice(self) -> bool:
        return not self.first_order

    @property
    def n_updates(self) -> int:
        """Number of gradient steps in training or in evaluation."""
        return self.inner_steps if self.training else self.evaluation_steps

    def adapt(self, episodes: Episodes, *, differentiable: bool) -> Weights:
        """Return the weights of every task after gradient descent on its support set."""
        return self._trajectory(episodes, self.n_updates, differentiable=differentiable)[-1]
