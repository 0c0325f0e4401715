"""A classifier of all training classes, to pre-train a backbone."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from adaptask.arguments import check_integer, check_number
from adaptask.backbones import Backbone
from adaptask.errors import ArgumentError
from adaptask.interfaces import Episodes, Outcome
from adaptask.learners.base import EmbeddingLearner, check_backbone, check_shapes
from adaptask.learners.meta_baseline import mean_cosines

_SCALE = 10.0
"""Of the cosines in evaluation; it decides their cross-entropy, not the accuracy."""


class Classifier(EmbeddingLearner):
    """Learn to tell all training classes apart; classify new ones by their mean features.

    Training: a linear head with one output per training class, and the cross-entropy of all
    images of a step, support and queries alike. A task is no more than a part of the batch. The
    sampler and the records get the logits of the queries for the classes of their task.

    Evaluation: cosines with the mean support features, as `MetaBaseline` has them; the heads are
    not used. This is Classifier-Baseline of Chen et al. (2021).

    With `rotation`, every image is also turned by 90, 180 and 270 degrees, and a second linear
    head tells the four apart: `rotation` times its mean cross-entropy is added to the loss. Gidaris
    et al., *Boosting Few-Shot Visual Learning with Self-Supervision* (2019), with a linear head.

    Args:
        backbone: Maps images to features.
        n_classes: Number of training classes.
        rotation: Weight of the rotation loss; 0 trains without it. A step then takes four times as
            long.
        label_smoothing: Share of the target probability that training gives to the other classes.

    Raises:
        ArgumentError: If an argument is out of range, or images to be turned are not square.
    """

    description: ClassVar[str] = "pre-trains a backbone on all training classes (Chen et al. 2021)"

    def __init__(
        self,
        *,
        backbone: Backbone,
        n_classes: int,
        rotation: float = 0.0,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(backbone=backbone, label_smoothing=label_smoothing)
        check_backbone(backbone, "n_features", *(["image_shape"] if rotation else []))
        n_classes = check_integer("n_classes", n_classes, low=2)
        self.head = nn.Linear(backbone.n_features, n_classes)
        self.rotation = check_number("rotation", rotation, low=0, high=100)
        self.rotation_head: nn.Linear | None = None
        if rotation:
            _, height, width = backbone.image_shape
            if height != width or height == 1:
                raise ArgumentError(
                    "the rotation loss turns images, which must be square; these are "
                    f"{height} x {width}. Set rotation to 0."
                )
            self.rotation_head = nn.Linear(backbone.n_features, 4)

    def classify(self, support: Tensor, query: Tensor) -> Tensor:
        """Return the scaled cosines with the class means."""
        return _SCALE * mean_cosines(support, query)

    def training_step(self, episodes: Episodes) -> Outcome:
        """Return the loss of all images, and the query logits for the classes of their task.

        Raises:
            ArgumentError: If the shapes do not fit.
        """
        n_way, n_shot = check_shapes(episodes)
        images = torch.cat((episodes.support_images, episodes.query_images), dim=1)
        n_images, n_support = images.shape[1], n_way * n_shot
        if self.rotation_head is not None:
            images = torch.cat([images.rot90(quarters, (-2, -1)) for quarters in range(4)], dim=1)
        features = self.compute_features(images)
        upright = features[:, :n_images]
        labels = torch.cat((episodes.support_labels, episodes.query_labels), dim=1)
        with torch.autocast(features.device.type, enabled=False):
            logits = self.head(upright)
            loss = self.loss(logits, episodes.class_ids.gather(1, labels))
            if self.rotation_head is not None:
                turned = self.rotation_head(features).flatten(0, 1)
                quarters = torch.arange(4, device=turned.device).repeat_interleave(n_images)
                quarters = quarters.repeat(len(images))
                loss = loss + self.rotation * cross_entropy(turned, quarters)
        query_logits = logits.detach()[:, n_support:]
        own = episodes.class_ids.unsqueeze(1).expand(-1, query_logits.shape[1], -1)
        return Outcome(
            loss=loss, query_logits=query_logits.gather(2, own), features=upright.detach()
        )
