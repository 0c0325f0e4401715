"""The base classes of learners: how a batch of episodes becomes query logits and a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from adaptask.arguments import check_members, check_number, format_value
from adaptask.backbones import Backbone
from adaptask.errors import ArgumentError
from adaptask.interfaces import Episodes, Outcome

_ROUNDING = 0.01
"""Relative difference of features that rounding may make."""
_NETWORK_BACKBONE = "NetworkBackbone(network, image_shape=...) makes a backbone of any network."


class Learner(nn.Module, ABC):
    """A few-shot learner: override `forward`; `loss` and the training step have defaults.

    Learners process all tasks of a batch at once and never read a value on the host. The same
    module serves training and evaluation; `train()` and `eval()` switch between them.
    """

    description: ClassVar[str] = ""
    """One sentence for `adaptask list` and the report."""
    has_fixed_way: ClassVar[bool] = False
    """Whether a head has one output per class, so that only tasks with the `n_way` that the
    constructor takes can be classified."""
    needs_feature_maps: ClassVar[bool] = False
    """Whether it compares feature maps, so that the backbone must not pool them away."""
    needs_plain_sgd: ClassVar[bool] = False
    """Whether its gradients are steps that only SGD without momentum applies as published."""
    default_optimizer: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Options of the optimizer that replace the defaults of the package."""
    supports_bfloat16: ClassVar[bool] = True
    """Whether it trains as well in bfloat16 autocast as in float32."""
    supports_compile: ClassVar[bool] = True
    """Whether `torch.compile` computes the right gradients of a training step."""
    supports_freezing: ClassVar[bool] = True
    """Whether it can leave parts of its backbone as they are, see `freeze`."""
    beside_graph: ClassVar[tuple[str, ...]] = ()
    """Attributes that may change while a CUDA graph is replayed, since no operation of a step
    depends on them."""
    frozen: tuple[nn.Module, ...] = ()
    """Parts that training leaves as they are."""
    order_free: bool = True
    """Whether the order of classes and of support images is irrelevant: permuting the classes
    permutes the logits and changes nothing else."""
    draws_in_evaluation: bool = True
    """Whether `forward` may draw random numbers in `eval()`. Evaluation then seeds them."""
    label_smoothing: float = 0.0
    """Share of the target probability that the loss spreads over the other classes."""
    n_features: int | None = None
    """Number of features of an image, for samplers that use class features; None: no features."""

    @abstractmethod
    def forward(self, episodes: Episodes) -> Tensor:
        """Return the query logits, `tasks x queries x way`. Their softmax are probabilities."""

    def loss(self, query_logits: Tensor, query_labels: Tensor) -> Tensor:
        """Return the training loss of query logits, the mean over all queries.

        It is the cross-entropy with the target 1 - `label_smoothing` for the right class and equal
        shares of the rest for the others.

        Args:
            query_logits: `tasks x queries x way`.
            query_labels: `tasks x queries`, positions in the task.
        """
        # Half precision is too coarse for a mean of logarithms.
        wide = query_logits.to(torch.promote_types(query_logits.dtype, torch.float32))
        n_way = query_logits.shape[-1]
        # torch spreads its smoothing over all classes, including the right one.
        smoothing = self.label_smoothing * n_way / (n_way - 1) if self.label_smoothing else 0.0
        return cross_entropy(wide.flatten(0, 1), query_labels.flatten(), label_smoothing=smoothing)

    def task_losses(self, query_logits: Tensor, query_labels: Tensor) -> Tensor:
        """Return `loss` of each task by itself, `tasks`."""

        def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
            return self.loss(logits.unsqueeze(0), labels.unsqueeze(0))

        losses: Tensor = torch.vmap(loss_of)(query_logits, query_labels)
        return losses

    def training_step(self, episodes: Episodes) -> Outcome:
        """Return the loss to differentiate and the logits that the sampler learns from."""
        query_logits, features = self._forward_with_features(episodes)
        loss = self.loss(query_logits, episodes.query_labels)
        return Outcome(loss=loss, query_logits=query_logits.detach(), features=features)

    def training_step_per_task(self, episodes: Episodes) -> Outcome:
        """Return what `training_step` does, with one loss per task, for samplers that weigh tasks.

        A learner that overrides `training_step` alone cannot be trained with such samplers.
        """
        query_logits, features = self._forward_with_features(episodes)
        losses = self.task_losses(query_logits, episodes.query_labels)
        return Outcome(
            loss=losses.mean(),
            query_logits=query_logits.detach(),
            features=features,
            losses=losses,
        )

    def _forward_with_features(self, episodes: Episodes) -> tuple[Tensor, Tensor | None]:
        """Return what `forward` does, and the features for the `Outcome`, if there are any."""
        return self(episodes), None

    def begin_step(self, step: int, n_steps: int) -> None:
        """Prepare for step `step` of `n_steps`, counted from 0. The trainer calls it each time."""

    def freeze(self, *parts: nn.Module) -> None:
        """Leave some parts as they are, buffers included: they stay in evaluation mode.

        Call it before an optimizer is made, of the parameters that `require_grad`.
        """
        for part in parts:
            part.requires_grad_(False).eval()
        self.frozen += parts

    def train(self, mode: bool = True) -> Self:
        """Switch to training, except what is frozen, or to evaluation."""
        super().train(mode)
        for part in self.frozen:
            part.eval()
        return self

    @property
    def depends_on_total_steps(self) -> bool:
        """Whether `begin_step` uses `n_steps`, so that a longer run differs from the start."""
        return False


class EmbeddingLearner(Learner):
    """A learner that compares features: override `classify`.

    All images of a step, support and queries of all tasks, go through the backbone in one call.
    The rest is computed in at least float32, even under autocast: distances are differences of
    large numbers.

    Args:
        backbone: Maps images to features.
        label_smoothing: Share of the target probability that the loss gives to the other classes.

    Raises:
        ArgumentError: If the backbone is not a module, or the share is not between 0 and 0.5.
    """

    draws_in_evaluation = False
    autocast_classify: ClassVar[bool] = False
    """Whether autocast also applies to `classify`."""

    def __init__(self, *, backbone: Backbone, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = check_number("label_smoothing", label_smoothing, low=0, high=0.5)
        check_backbone(backbone)
        self.backbone = backbone
        self.n_features = getattr(backbone, "n_features", None)

    @abstractmethod
    def classify(self, support: Tensor, query: Tensor) -> Tensor:
        """Return the query logits, `tasks x queries x way`.

        Args:
            support: Features of the support set, `tasks x way x shot x ...`.
            query: Features of the queries, `tasks x queries x ...`.
        """

    def embed(self, images: Tensor) -> Tensor:
        """Return the features of images, `tasks x images x channels x height x width`."""
        features: Tensor = self.backbone(images)
        return features

    def forward(self, episodes: Episodes) -> Tensor:
        """Return the query logits, `tasks x queries x way`.

        Raises:
            ArgumentError: If the shapes of the episodes or of the features do not fit.
        """
        return self._logits_and_features(episodes)[0]

    def _forward_with_features(self, episodes: Episodes) -> tuple[Tensor, Tensor | None]:
        """Return the query logits and the features of all images."""
        if not self.compares_features:
            return super()._forward_with_features(episodes)
        query_logits, features = self._logits_and_features(episodes)
        return query_logits, features.detach()

    def _logits_and_features(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """Return the query logits, and the features of support and queries."""
        n_way, n_shot = check_shapes(episodes)
        n_support = n_way * n_shot
        images = torch.cat((episodes.support_images, episodes.query_images), dim=1)
        features = self.compute_features(images)
        support = torch.unflatten(features[:, :n_support], 1, (n_way, n_shot))
        return self.classify_features(support, features[:, n_support:]), features

    def classify_features(self, support: Tensor, query: Tensor) -> Tensor:
        """Return what `classify` does, in the precision in which features are compared."""
        with torch.autocast(query.device.type, enabled=self._is_mixed(query)):
            return self.classify(support, query)

    def compute_features(self, images: Tensor) -> Tensor:
        """Return what `embed` does, checked, and in the precision in which it is compared.

        Raises:
            ArgumentError: If there is not a feature, or maps, for every image.
        """
        # A subclass may have deleted the attribute, and embed by other means.
        is_ours = isinstance(getattr(self, "backbone", None), Backbone | None)
        features = self.embed(images) if is_ours else self._embed_by_any_module(images)
        if features.ndim < 3 or features.shape[:2] != images.shape[:2]:
            raise ArgumentError(
                f"The backbone must map {_sizes(images.shape)} (tasks x images x channels x height "
                f"x width) to tasks x images x features; {type(self.backbone).__name__} returned "
                f"{_sizes(features.shape)}. {_NETWORK_BACKBONE}"
            )
        if self._is_mixed(features):
            return features
        return features.to(torch.promote_types(features.dtype, torch.float32))

    def _embed_by_any_module(self, images: Tensor) -> Tensor:
        """Return what `embed` does; an error says what torch's own layers do not expect."""
        try:
            return self.embed(images)
        except (RuntimeError, ValueError) as error:
            error.add_note(
                f"The backbone {type(self.backbone).__name__} was given {_sizes(images.shape)} "
                f"(tasks x images x channels x height x width). {_NETWORK_BACKBONE}"
            )
            raise

    @property
    def compares_features(self) -> bool:
        """Whether `forward` is `classify` of what `compute_features` returns, and no more."""
        return type(self).forward is EmbeddingLearner.forward

    def _is_mixed(self, features: Tensor) -> bool:
        return self.autocast_classify and torch.is_autocast_enabled(features.device.type)


def check_backbone(backbone: object, *members: str) -> None:
    """Check that a backbone is a module and has the attributes that a learner uses.

    Raises:
        ArgumentError: If it is not, or something is missing; the message says what.
    """
    if not isinstance(backbone, nn.Module):
        raise ArgumentError(
            "backbone must be a torch.nn.Module, such as build_backbone returns; "
            f"got {format_value(backbone)}."
        )
    try:
        check_members("backbone", backbone, *members)
    except ArgumentError as error:
        raise ArgumentError(f"{error} {_NETWORK_BACKBONE}") from None


def embeds_alone(embed: Callable[[Tensor], Tensor], images: Tensor) -> bool:
    """Return whether the features of an image do not depend on the images beside it.

    Args:
        embed: Maps `images x channels x height x width` to features.
        images: Some that differ, two at least.
    """
    half = len(images) // 2
    others = torch.cat((images[:half], images[:1].expand(len(images) - half, *images.shape[1:])))
    beside_all, beside_one = embed(images)[:half], embed(others)[:half]
    return not (beside_one - beside_all).norm() > _ROUNDING * beside_all.norm()


def check_shapes(episodes: Episodes) -> tuple[int, int]:
    """Return `n_way` and `n_shot` of episodes, from the shapes of their tensors.

    Raises:
        ArgumentError: If the shapes do not fit together.
    """
    ids, support, query = (
        tuple(part.shape)
        for part in (episodes.class_ids, episodes.support_images, episodes.query_images)
    )
    fits = (
        (len(ids), len(support), len(query)) == (2, 5, 5)
        and ids[0] == support[0] == query[0]
        and min(ids[1], support[1], query[1]) > 0
        and support[1] % ids[1] == 0
        and support[2:] == query[2:]
    )
    if not fits:
        raise ArgumentError(
            "Episodes need class_ids of tasks x way, support images of tasks x (way * shot) x "
            "channels x height x width and query images of tasks x queries x the same; got "
            f"class_ids {ids}, support_images {support}, query_images {query}."
        )
    return ids[1], support[1] // ids[1]


def check_way(n_way: int, built_for: int) -> None:
    """Check that tasks have as many classes as the head of a learner has outputs.

    Raises:
        ArgumentError: If they do not.
    """
    if n_way != built_for:
        raise ArgumentError(
            f"This learner was built for tasks of {built_for} classes, one output of its head "
            f"each; got tasks of {n_way}. Build and train one with n_way={n_way}."
        )


def _sizes(shape: torch.Size) -> str:
    return " x ".join(map(str, shape))
