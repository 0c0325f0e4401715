"""From images to features: one file an architecture.

>>> import torch
>>> from adaptask.backbones import build_backbone
>>> backbone = build_backbone("conv4", image_shape=(3, 32, 32))
>>> backbone(torch.zeros(2, 10, 3, 32, 32)).shape
torch.Size([2, 10, 256])
"""

from __future__ import annotations

from typing import Any

from adaptask.arguments import build_from
from adaptask.backbones.base import Backbone, ImageShape
from adaptask.backbones.conv4 import Conv4, ConvBlock
from adaptask.backbones.drop_block import DropBlock
from adaptask.backbones.normalisation import NORMS, TaskNorm
from adaptask.backbones.resnet12 import WIDTHS, ResNet12

BACKBONES: dict[str, type[Backbone]] = {
    "conv4": Conv4,
    "resnet12": ResNet12,
}
"""Every backbone by its name."""


def build_backbone(name: str, *, image_shape: ImageShape, **settings: Any) -> Backbone:
    """Build the backbone of that name.

    Args:
        name: A key of `BACKBONES`.
        image_shape: Channels, height and width of the images.
        **settings: Further keyword arguments of its class.

    Raises:
        ArgumentError: If there is no such backbone, it does not take such an argument, or the
            images are too small for it.
    """
    return build_from(BACKBONES, "backbone", name, {"image_shape": image_shape, **settings})


__all__ = [
    "BACKBONES",
    "NORMS",
    "WIDTHS",
    "Backbone",
    "Conv4",
    "ConvBlock",
    "DropBlock",
    "ImageShape",
    "ResNet12",
    "TaskNorm",
    "build_backbone",
]
