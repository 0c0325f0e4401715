"""Prototypical networks: the nearest class mean."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from adaptask.arguments import check_number
from adaptask.backbones import Backbone
from adaptask.learners.base import EmbeddingLearner, check_backbone


class ProtoNet(EmbeddingLearner):
    """Classify queries by their distances to the mean support feature of each class.

    With the prototype c_k, the mean of the support features of class k, the logits of a query are

        -||f(x) - c_k||^2 / temperature.

    Snell et al., *Prototypical Networks for Few-shot Learning* (2017).

    Args:
        backbone: Maps images to features.
        temperature: Divides the distances; the initial value if it is learned.
        learn_temperature: Learn the temperature, as its logarithm.
        scale_by_dimension: Also divide distances by the number of features, as MetaOptNet does.
        label_smoothing: Share of the target probability that training gives to the other classes.

    Raises:
        ArgumentError: If the temperature is not between 1e-6 and 1e6, or the share is not between
            0 and 0.5.
    """

    description: ClassVar[str] = "picks the class with the nearest mean feature (Snell et al. 2017)"

    def __init__(
        self,
        *,
        backbone: Backbone,
        temperature: float = 1.0,
        learn_temperature: bool = False,
        scale_by_dimension: bool = False,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(backbone=backbone, label_smoothing=label_smoothing)
        temperature = check_number("temperature", temperature, low=1e-6, high=1e6)
        log_temperature = torch.tensor(math.log(temperature))
        if learn_temperature:
            self.log_temperature = nn.Parameter(log_temperature)
        else:
            self.register_buffer("log_temperature", log_temperature)
        self.scale_by_dimension = scale_by_dimension
        if scale_by_dimension:
            check_backbone(backbone, "n_features")

    def classify(self, support: Tensor, query: Tensor) -> Tensor:
        """Return minus the scaled squared distances to the prototypes."""
        distances = squared_distances(query, support.mean(2))
        if self.scale_by_dimension:
            distances = distances / self.backbone.n_features
        return -distances * (-self.log_temperature).exp()


def squared_distances(points: Tensor, centers: Tensor) -> Tensor:
    """Return all squared Euclidean distances, `tasks x points x centers`.

    They are matrix products: ||p - c||^2 = ||p||^2 - 2 p c + ||c||^2. This loses digits if points
    are close together and far from the origin, so the origin is moved among them first.

    Args:
        points: `tasks x points x features`.
        centers: `tasks x centers x features`.
    """
    # Distances do not depend on the origin, so it needs no gradient.
    origin = centers.mean(1, keepdim=True).detach()
    points, centers = points - origin, centers - origin
    lengths = points.square().sum(-1).unsqueeze(2) + centers.square().sum(-1).unsqueeze(1)
    return torch.baddbmm(lengths, points, centers.transpose(1, 2), alpha=-2)
