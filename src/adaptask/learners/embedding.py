"""Learners that compare features: one backbone embeds support set and queries together."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from adaptask.arguments import check_number
from adaptask.backbones import Backbone
from adaptask.errors import ArgumentError
from adaptask.interfaces import Episodes
from adaptask.learners.base import Learner, check_backbone


class EmbeddingLearner(Learner):
    """A learner on a backbone: write `_classify`, and the rest is there.

    All images of a step, support and queries of all tasks, go through the backbone in one call.
    What follows is computed in at least float32, mixed precision or not, unless a class says
    otherwise: distances are differences of large numbers.

    Args:
        backbone: Maps images to features.
        label_smoothing: Share of the right answer that the loss gives to the other classes.

    Raises:
        ArgumentError: If the backbone is no module, or the share not from 0 to 0.5.
    """

    draws_in_evaluation = False
    _mixed_precision: ClassVar[bool] = False
    """Whether `_classify` is left to autocast."""

    def __init__(self, *, backbone: Backbone, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = check_number("label_smoothing", label_smoothing, low=0, high=0.5)
        check_backbone(backbone)
        self.backbone = backbone

    @abstractmethod
    def _classify(self, support: Tensor, query: Tensor) -> Tensor:
        """Return the query logits, `tasks x queries x way`.

        Args:
            support: What `_embed` made of the support set, `tasks x way x shot x ...`.
            query: What it made of the queries, `tasks x queries x ...`.
        """

    def _embed(self, images: Tensor) -> Tensor:
        """Embed images, `tasks x images x channels x height x width`."""
        features: Tensor = self.backbone(images)
        return features

    def forward(self, episodes: Episodes) -> Tensor:
        """Return the query logits, `tasks x queries x way`.

        Raises:
            ArgumentError: If the shapes of the episodes do not belong together.
        """
        n_way, n_shot = check_shapes(episodes)
        n_support = n_way * n_shot
        features = self._embed(torch.cat((episodes.support_images, episodes.query_images), dim=1))
        mixed = self._mixed_precision and torch.is_autocast_enabled(features.device.type)
        if not mixed:
            features = features.to(torch.promote_types(features.dtype, torch.float32))
        support = torch.unflatten(features[:, :n_support], 1, (n_way, n_shot))
        with torch.autocast(features.device.type, enabled=mixed):
            return self._classify(support, features[:, n_support:])


def check_shapes(episodes: Episodes) -> tuple[int, int]:
    """Return ways and shots of episodes, read from their shapes.

    Raises:
        ArgumentError: If the shapes do not belong together.
    """
    names = ("class_ids", "support_images", "query_images")
    parts: list[Any] = [getattr(episodes, name, None) for name in names]
    if not all(isinstance(part, Tensor) for part in parts):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise ArgumentError(
            f"Episodes need the tensors {', '.join(names)}; got {kinds} of "
            f"{type(episodes).__name__}."
        )
    ids, support, query = (tuple(part.shape) for part in parts)
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
