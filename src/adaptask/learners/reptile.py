"""Reptile: move the weights towards those that ordinary training on a task ends with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from adaptask.arguments import check_choice, check_integer, check_number
from adaptask.backbones import Backbone
from adaptask.interfaces import Episodes, Outcome
from adaptask.learners.inner_loop import InnerLoopLearner, with_gradient
from adaptask.learners.per_task_conv4 import Weights

_InnerOptimizer = Literal["adam", "sgd"]
_SECOND_MOMENT, _EPSILON = 0.999, 1e-8


class Reptile(InnerLoopLearner):
    """Learn initial weights theta by moving them towards the weights that each task ends with.

    A task trains on mini-batches of its support set from theta to phi, with Adam without momentum
    (beta_1 = 0) or SGD. The gradient for the optimizer is

        step_size * (theta - mean over tasks of phi),

    so that SGD with a learning rate of 1 interpolates, theta <- theta + step_size (phi - theta).
    The queries are not trained on. The predictions of the adapted network for them give the
    reported loss and the feedback for the sampler.

    Nichol et al., *On First-Order Meta-Learning Algorithms* (2018).

    Args:
        backbone: Maps images to features. All its parameters adapt, except frozen ones.
        n_way: Number of classes of a task, the outputs of the head.
        inner_steps: Mini-batches per task in training.
        evaluation_steps: Mini-batches per task in evaluation.
        inner_optimizer: Optimizer of the inner steps; each task starts with a fresh one.
        inner_lr: Learning rate of the inner steps.
        batch_size: Images per mini-batch, at most the whole support set.
        evaluation_batch_size: Images per mini-batch in evaluation; by default as in training.
        anneal: Decrease the step size linearly from 1 to 0 over training; otherwise it is 1.
        transductive: Normalize queries together in evaluation, or each with the support set alone.

    Mini-batches are drawn without replacement until all images are used. In evaluation their order
    is fixed: one image of every class in turn.

    Raises:
        ArgumentError: If an argument is out of range.
    """

    description: ClassVar[str] = "moves towards the weights of each task (Nichol et al. 2018)"
    needs_plain_sgd: ClassVar[bool] = True
    default_optimizer: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"name": "sgd", "lr": 1.0, "momentum": 0.0}
    )
    _step_size: Tensor

    def __init__(
        self,
        *,
        backbone: Backbone,
        n_way: int,
        inner_steps: int = 8,
        evaluation_steps: int = 50,
        inner_optimizer: _InnerOptimizer = "adam",
        inner_lr: float = 0.001,
        batch_size: int = 10,
        evaluation_batch_size: int | None = None,
        anneal: bool = True,
        transductive: bool = True,
    ) -> None:
        super().__init__(backbone=backbone, n_way=n_way, transductive=transductive)
        self.inner_steps = check_integer("inner_steps", inner_steps, low=1)
        self.evaluation_steps = check_integer("evaluation_steps", evaluation_steps, low=0)
        self.inner_optimizer = check_choice(
            "inner_optimizer", inner_optimizer, get_args(_InnerOptimizer)
        )
        self.inner_lr = check_number("inner_lr", inner_lr, low=0, high=100)
        self.batch_size = check_integer("batch_size", batch_size, low=1)
        if evaluation_batch_size is None:
            evaluation_batch_size = batch_size
        self.evaluation_batch_size = check_integer(
            "evaluation_batch_size", evaluation_batch_size, low=1
        )
        self.anneal = anneal
        self.register_buffer("_step_size", torch.ones(()), persistent=False)

    def begin_step(self, step: int, n_steps: int) -> None:
        """Set the step size."""
        if self.anneal:
            self._step_size.fill_(1 - step / max(n_steps, 1))

    @property
    def depends_on_total_steps(self) -> bool:
        """Whether the step size is annealed over training."""
        return self.anneal

    def training_step(self, episodes: Episodes) -> Outcome:
        """Return the loss on the held-out queries with Reptile's gradient, and their logits.

        Raises:
            ArgumentError: If the episodes do not fit.
        """
        self._check(episodes)
        own = {n: p for n, p in self.named_parameters() if p.requires_grad}
        gradients = [parameter.detach().clone() for parameter in own.values()]
        weights = self.adapt(episodes, differentiable=False)
        with torch.no_grad():
            query_logits = self._predict(weights, episodes)
            ends = [weights[name].sum(0) for name in own]
            torch._foreach_add_(gradients, ends, alpha=-1 / len(episodes.class_ids))
        torch._foreach_mul_(gradients, self._step_size)
        loss = self.loss(query_logits, episodes.query_labels)
        return Outcome(
            loss=with_gradient(loss, list(own.values()), gradients), query_logits=query_logits
        )

    @property
    def n_updates(self) -> int:
        """Number of mini-batches in training or in evaluation."""
        return self.inner_steps if self.training else self.evaluation_steps

    @torch.enable_grad()
    def adapt(self, episodes: Episodes, *, differentiable: bool) -> Weights:
        """Return the weights that every task ends with; they are never differentiable."""
        weights = self.initial_weights(len(episodes.class_ids), differentiable=False)
        adapting = {name: weight for name, weight in weights.items() if weight.requires_grad}
        second_moments = [torch.zeros_like(weight) for weight in adapting.values()]
        for step, places in enumerate(self._batches(episodes)):
            rows = torch.arange(len(places), device=places.device).unsqueeze(1)
            images, labels = episodes.support_images[rows, places], episodes.support_labels
            # The sum over tasks: each task has its own weights.
            logits = self.logits({**weights, **adapting}, images, step)
            loss = self.loss(logits, labels[rows, places]) * len(places)
            gradients = torch.autograd.grad(
                loss, list(adapting.values()), allow_unused=True, materialize_grads=True
            )
            with torch.no_grad():
                ends = self._move(list(adapting.values()), gradients, second_moments, step)
            adapting = {n: w.requires_grad_() for n, w in zip(adapting, ends, strict=True)}
        return {**weights, **adapting}

    def _move(
        self,
        weights: list[Tensor],
        gradients: tuple[Tensor, ...],
        second_moments: list[Tensor],
        step: int,
    ) -> tuple[Tensor, ...]:
        """Return the weights after step `step` of the inner optimizer, counted from 0."""
        if self.inner_optimizer == "sgd":
            return torch._foreach_add(weights, gradients, alpha=-self.inner_lr)
        torch._foreach_mul_(second_moments, _SECOND_MOMENT)
        torch._foreach_addcmul_(second_moments, gradients, gradients, value=1 - _SECOND_MOMENT)
        scales = torch._foreach_div(second_moments, 1 - _SECOND_MOMENT ** (step + 1))
        torch._foreach_sqrt_(scales)
        torch._foreach_add_(scales, _EPSILON)
        return torch._foreach_addcdiv(weights, gradients, scales, value=-self.inner_lr)

    def _batches(self, episodes: Episodes) -> tuple[Tensor, ...]:
        """Return the positions of the images of every mini-batch, `tasks x batch` each."""
        n_tasks, n_images = episodes.support_labels.shape
        size = min(self.batch_size if self.training else self.evaluation_batch_size, n_images)
        n_steps = self.n_updates
        if not n_steps:
            return ()
        n_passes = math.ceil(n_steps * size / n_images)
        device = episodes.support_labels.device
        if self.training:
            order = torch.rand(n_tasks, n_passes, n_images, device=device).argsort(-1)
        else:
            by_class = torch.arange(n_images, device=device).view(self.n_way, -1)
            order = by_class.T.reshape(1, 1, -1).expand(n_tasks, n_passes, -1)
        return torch.split(order.flatten(1)[:, : n_steps * size], size, dim=1)
