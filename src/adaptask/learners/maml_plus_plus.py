"""MAML++: MAML with the repairs that make it train steadily, each to be switched."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adaptask.arguments import check_flag, check_number
from adaptask.backbones import Backbone, TaskNorm
from adaptask.errors import ArgumentError
from adaptask.interfaces import Episodes, Outcome
from adaptask.learners.adapting import Moments, Weights, conv4_features, runs_at_once
from adaptask.learners.maml import MAML


class MAMLPlusPlus(MAML):
    """MAML with the parts that Antoniou et al. add; with every part off it is MAML.

    Two more parts of theirs are not the learner's: the cosine schedule of the meta learning rate
    is the optimiser's, and the ensemble of the best checkpoints is `Ensemble`.

    Steps are counted by updates: what belongs to step k serves the weights after k updates, on
    support set and queries alike. Evaluation with more steps goes on with what the last one has.

    Antoniou et al., *How to Train Your MAML* (2018).

    Args:
        backbone: Maps images to features.
        n_way: Number of classes of a task, the outputs of the head.
        inner_steps: Steps on the support set in training, K.
        evaluation_steps: Steps in evaluation; by default as in training.
        inner_lr: Size of the steps; the start of it, if it is learnt.
        first_order: Whether inner gradients count as constants, always.
        multi_step_loss: Whether the loss is a mean of the query losses after every update. With
            s growing from 0 to 1 over the first `multi_step_share` of training, the weight of
            each is (1 - s) / K, and that of the last has s in addition.
        multi_step_share: See above; 0 to 1.
        anneal_order: Whether training starts with first order only.
        first_order_share: The share of training that it does so for; 0 to 1.
        per_step_norm: Whether normalisation has a weight and bias for every step. These do not
            adapt to the task.
        per_step_statistics: Whether evaluation normalises with running statistics, kept in
            training for every step, and not with those of the images; needs a Conv-4.
        per_layer_rates: Whether every step learns a step size for every parameter tensor.
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
        multi_step_loss: bool = True,
        multi_step_share: float = 0.15,
        anneal_order: bool = True,
        first_order_share: float = 0.5,
        per_step_norm: bool = True,
        per_step_statistics: bool = False,
        per_layer_rates: bool = True,
        transductive: bool = True,
        task_chunk: int | None = None,
    ) -> None:
        super().__init__(
            backbone=backbone,
            n_way=n_way,
            inner_steps=inner_steps,
            evaluation_steps=evaluation_steps,
            inner_lr=inner_lr,
            first_order=first_order,
            transductive=transductive,
            task_chunk=task_chunk,
        )
        self.multi_step_loss = check_flag("multi_step_loss", multi_step_loss)
        self.multi_step_share = check_number("multi_step_share", multi_step_share, low=0, high=1)
        self.anneal_order = check_flag("anneal_order", anneal_order)
        self.first_order_share = check_number("first_order_share", first_order_share, low=0, high=1)
        # Whoever never says which step it is gets the objective that training ends with.
        self._progress = 1.0
        self.register_buffer("_importance", torch.zeros(self.inner_steps), persistent=False)
        self.step_rates: nn.Parameter | None = None
        if check_flag("per_layer_rates", per_layer_rates) and self.inner_steps:
            shape = (self.inner_steps, len(self._names))
            self.step_rates = nn.Parameter(torch.full(shape, self.inner_lr))
        self.step_norms = nn.ParameterDict()
        if check_flag("per_step_norm", per_step_norm):
            self._own_norms()
        self.per_step_statistics = check_flag("per_step_statistics", per_step_statistics)
        self._found: dict[int, list[list[Moments]]] = {}
        if per_step_statistics:
            self._own_statistics()

    _importance: Tensor

    @property
    def depends_on_total_steps(self) -> bool:
        """Whether the loss or the order of derivatives is annealed."""
        return self.multi_step_loss or self.anneal_order

    def _own_norms(self) -> None:
        """Give every step a weight and bias of every normalisation, as the backbone has them."""
        for place, module in self.backbone.named_modules():
            if isinstance(module, nn.BatchNorm2d | TaskNorm):
                for kind in ("weight", "bias"):
                    parameter: nn.Parameter | None = getattr(module, kind)
                    if parameter is None:
                        continue
                    rows = parameter.detach().repeat(self.inner_steps + 1, 1)
                    own = nn.Parameter(rows, requires_grad=parameter.requires_grad)
                    self.step_norms[f"backbone.{place}.{kind}".replace(".", "/")] = own
                    parameter.requires_grad_(False)  # replaced: it takes no part any more

    def _own_statistics(self) -> None:
        if not runs_at_once(self.backbone):
            raise ArgumentError(
                "per_step_statistics needs a Conv-4 backbone with normalisation; got "
                f"{type(self.backbone).__name__}. Leave it off for other backbones."
            )
        for at, block in enumerate(self.backbone.blocks):  # type: ignore[arg-type]
            shape = (self.inner_steps + 1, len(block.norm.weight))
            self.register_buffer(f"step_means_{at}", torch.zeros(shape))
            self.register_buffer(f"step_variances_{at}", torch.ones(shape))

    def begin_step(self, step: int, n_steps: int) -> None:
        """Anneal the weights of the query losses and the order of the derivatives."""
        self._progress = step / max(n_steps, 1)
        if self.inner_steps:
            spread = 1 - self._share_done(self.multi_step_share)
            self._importance.fill_(spread / self.inner_steps)
            self._importance[-1].fill_(spread / self.inner_steps + 1 - spread)

    def _share_done(self, share: float) -> float:
        """Return how much of the first `share` of training is over, 0 to 1."""
        return min(1.0, self._progress / share) if share else 1.0

    @property
    def phase(self) -> tuple[bool, bool]:
        """Which parts are at work: several query losses, second derivatives.

        A training step does the same operations, with other numbers, as long as this stays.
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
        at = min(n_updates, self.inner_steps)
        own = {
            name.replace("/", "."): rows[at].expand(len(images), -1)
            for name, rows in self.step_norms.items()
        }
        weights = {**weights, **own}
        if not self.per_step_statistics:
            return super()._features(weights, images, n_updates)
        moments = None if self.training else self._running(at, len(images))
        features, found = conv4_features(self.backbone, weights, images, moments)
        if self.training:
            self._remember(at, found)
        return features

    def _running(self, at: int, n_tasks: int) -> list[Moments]:
        """Return the running statistics of every block, for every task the same."""
        pairs = zip(self._statistics("means"), self._statistics("variances"), strict=True)
        return [(mean[at].expand(n_tasks, -1), var[at].expand(n_tasks, -1)) for mean, var in pairs]

    def training_step(self, episodes: Episodes) -> Outcome:
        """Return what `MAML.training_step` does; running statistics move once."""
        outcome = super().training_step(episodes)
        self._settle()
        return outcome

    def forward(self, episodes: Episodes) -> Tensor:
        """Return the query logits of the adapted networks, `tasks x queries x way`."""
        query_logits = super().forward(episodes)
        self._settle()
        return query_logits

    def _remember(self, at: int, found: list[Moments]) -> None:
        """Keep the moments of some tasks: those of all of them move the statistics together."""
        detached = [(mean.detach(), variance.detach()) for mean, variance in found]
        self._found.setdefault(at, []).append(detached)

    @torch.no_grad()
    def _settle(self, momentum: float = 0.1) -> None:
        """Move the running statistics towards the means over all tasks and passes of a step."""
        for at, passes in self._found.items():
            for block, new in enumerate(zip(*passes, strict=True)):
                for kind, moments in zip(
                    ("means", "variances"), zip(*new, strict=True), strict=True
                ):
                    rows = self._statistics(kind)[block]
                    rows[at].lerp_(torch.cat(moments).mean(0), momentum)
        self._found.clear()

    def _statistics(self, kind: str) -> list[Tensor]:
        n_blocks = len(self.backbone.blocks)  # type: ignore[arg-type]
        return [self.get_buffer(f"step_{kind}_{at}") for at in range(n_blocks)]
