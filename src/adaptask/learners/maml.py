"""MAML: a start from which a few gradient steps on the support set suffice."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adaptask.arguments import check_flag, check_integer, check_number
from adaptask.backbones import Backbone
from adaptask.interfaces import Episodes, Outcome
from adaptask.learners.adapting import AdaptingLearner, Weights, query_groups, select
from adaptask.learners.given_gradient import with_gradient


class MAML(AdaptingLearner):
    """Learn a start for gradient descent on a task's support set.

    From the shared weights theta every task takes `inner_steps` steps on its support loss L_S,

        w_0 = theta,    w_(k+1) = w_k - inner_lr * dL_S(w_k) / dw_k,

    and theta follows the gradient of the query loss at the last weights, through all the steps
    (second order), or as if the inner gradients were constants (first order).

    Finn et al., *Model-Agnostic Meta-Learning* (2017); with `learn_inner_lr` Li et al., *Meta-SGD*
    (2017).

    Args:
        backbone: Maps images to features. All its parameters adapt that are not frozen.
        n_way: Number of classes of a task, the outputs of the head.
        inner_steps: Steps on the support set in training.
        evaluation_steps: Steps in evaluation; by default as in training.
        inner_lr: Size of the steps; the start of it, if it is learnt.
        first_order: Whether inner gradients count as constants.
        learn_inner_lr: Whether every single weight learns a step size of its own.
        transductive: Whether queries are normalised together in evaluation; otherwise each is
            with the support set alone.
        task_chunk: How many tasks are treated at once, which bounds memory; all by default.

    Raises:
        ArgumentError: If an argument cannot be used.
    """

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
        task_chunk: int | None = None,
    ) -> None:
        super().__init__(
            backbone=backbone, n_way=n_way, transductive=transductive, task_chunk=task_chunk
        )
        self.inner_steps = check_integer("inner_steps", inner_steps, low=0)
        if evaluation_steps is None:
            evaluation_steps = inner_steps
        self.evaluation_steps = check_integer("evaluation_steps", evaluation_steps, low=0)
        self.inner_lr = check_number("inner_lr", inner_lr, low=0, high=100)
        self.first_order = check_flag("first_order", first_order)
        self._names = [name for name, _ in self.named_parameters()]
        self.inner_rates: nn.ParameterList | None = None
        if check_flag("learn_inner_lr", learn_inner_lr):
            self.inner_rates = nn.ParameterList(
                torch.full_like(parameter, self.inner_lr) for parameter in self.parameters()
            )

    def training_step(self, episodes: Episodes) -> Outcome:
        """Return the query loss, which carries the meta-gradient, and the query logits.

        The gradient is computed here, `task_chunk` tasks at a time; `loss.backward()` hands it
        over to the parameters.

        Raises:
            ArgumentError: If the episodes do not fit.
        """
        self._check(episodes)
        parameters = [p for p in self.parameters() if p.requires_grad]
        n_tasks, losses, logits = len(episodes.class_ids), [], []
        gradients = [torch.zeros_like(parameter) for parameter in parameters]
        with torch.enable_grad():
            for chunk in self._chunks(episodes):
                share = len(chunk.class_ids) / n_tasks
                loss, chunk_logits, new = self._meta_gradient(chunk, parameters, share)
                losses.append(loss)
                logits.append(chunk_logits)
                torch._foreach_add_(gradients, new)
        loss = with_gradient(torch.stack(losses).sum(), parameters, gradients)
        return Outcome(loss=loss, query_logits=torch.cat(logits))

    def _meta_gradient(
        self, episodes: Episodes, parameters: list[nn.Parameter], share: float
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return loss, query logits and gradient of some tasks that are a share of all."""
        trajectory = self._trajectory(episodes, self.inner_steps, differentiable=True)
        queries, labels = episodes.query_images, episodes.query_labels
        reached: list[tuple[Tensor, Tensor | None]] = []
        losses: list[Tensor] = []
        for n_updates, importance in self._importances().items():
            logits = []
            for group in query_groups(queries):
                weights, images = select(trajectory[n_updates], group), queries[group]
                # The queries are differentiated once only, and their graph is gone before the
                # inner steps are differentiated for the second time.
                leaves = {
                    name: weight.detach().requires_grad_(weight.requires_grad)
                    for name, weight in weights.items()
                }
                group_logits = self._logits(leaves, images, n_updates)
                part = importance * (share * len(images) / len(queries))
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
        trajectory = [self._start(len(images), differentiable=differentiable)]
        for step in range(n_steps):
            weights = trajectory[-1]
            adapting = {n: w for n, w in weights.items() if w.requires_grad}
            # The sum over tasks, of which each has weights of its own.
            loss = self.loss(self._logits(weights, images, step), labels) * len(images)
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

    def _n_updates(self) -> int:
        return self.inner_steps if self.training else self.evaluation_steps

    def _adapt(self, episodes: Episodes, *, differentiable: bool) -> Weights:
        return self._trajectory(episodes, self._n_updates(), differentiable=differentiable)[-1]
