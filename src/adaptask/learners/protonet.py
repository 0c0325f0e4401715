"""Prototypical networks: the nearest class mean."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from adaptask.arguments import check_flag, check_number
from adaptask.backbones import Backbone
from adaptask.learners.base import check_backbone
from adaptask.learners.embedding import EmbeddingLearner


class ProtoNet(EmbeddingLearner):
    """Classify queries by their distances from the means of the classes' support features.

    With the prototype c_k, the mean of the features of class k, the logits of a query are

        -||f(x) - c_k||^2 / temperature.

    Snell et al., *Prototypical Networks for Few-shot Learning* (2017).

    Args:
        backbone: Maps images to features.
        temperature: What distances are divided by; the start of it, if it is learnt.
        learn_temperature: Whether the temperature is a parameter, learnt as its logarithm.
        scale_by_dimension: Whether distances are also divided by the number of features, as the
            code of MetaOptNet does.
        label_smoothing: Share of the right answer that training gives to the other classes.

    Raises:
        ArgumentError: If the temperature is not between 1e-6 and 1e6, or the share not from 0 to
            0.5.
    """

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
        if check_flag("learn_temperature", learn_temperature):
            self.log_temperature = nn.Parameter(log_temperature)
        else:
            self.register_buffer("log_temperature", log_temperature)
        self.scale_by_dimension = check_flag("scale_by_dimension", scale_by_dimension)
        if self.scale_by_dimension:
            check_backbone(backbone, "n_features")

    def _classify(self, support: Tensor, query: Tensor) -> Tensor:
        distances = squared_distances(query, support.mean(2))
        if self.scale_by_dimension:
            distances = distances / self.backbone.n_features
        return -distances * (-self.log_temperature).exp()


def squared_distances(points: Tensor, centres: Tensor) -> Tensor:
    """Return all squared Euclidean distances, `tasks x points x centres`.

    By matrix products: ||p - c||^2 = ||p||^2 - 2 p c + ||c||^2, which loses digits where points
    are close together and far from the origin. Therefore the origin is moved among them first.

    Args:
        points: `tasks x points x features`.
        centres: `tasks x centres x features`.
    """
    # Distances do not depend on the origin, hence no gradient through it.
    origin = centres.mean(1, keepdim=True).detach()
    points, centres = points - origin, centres - origin
    lengths = points.square().sum(-1).unsqueeze(2) + centres.square().sum(-1).unsqueeze(1)
    return torch.baddbmm(lengths, points, centres.transpose(1, 2), alpha=-2)
