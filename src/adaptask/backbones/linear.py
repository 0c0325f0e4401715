"""One linear map that starts from the features that it is given."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from torch import nn

from adaptask.arguments import check_image_shape
from adaptask.backbones.base import ImageShape
from adaptask.backbones.mlp import MLP

_MOST_FEATURES = 1024


class LinearBackbone(MLP):
    """One linear map of its flattened input, without bias.

    It starts as the identity if it returns as many features as it gets, and otherwise as a random
    projection, independent normal weights of variance 1 / `out_features`, which keeps squared
    distances on average. So training starts near the accuracy of the features themselves.

    Args:
        image_shape: Channels, height and width of the images; a vector of size d is d x 1 x 1.
        out_features: Number of features; by default as many as the input has, at most 1024.

    Raises:
        ArgumentError: If an argument is out of range.
    """

    description: ClassVar[str] = "one linear map of features, the identity at first"

    def __init__(self, *, image_shape: ImageShape, out_features: int | None = None) -> None:
        if out_features is None:
            out_features = min(prod(check_image_shape(image_shape)), _MOST_FEATURES)
        super().__init__(image_shape=image_shape, depth=0, out_features=out_features)
        weight = self.last.weight
        if weight.shape[0] == weight.shape[1]:
            nn.init.eye_(weight)
        else:
            nn.init.normal_(weight, std=weight.shape[0] ** -0.5)
