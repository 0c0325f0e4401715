"""From images to features: one file per architecture.

>>> import torch
>>> from adaptask.backbones import build_backbone
>>> backbone = build_backbone("conv4", image_shape=(3, 32, 32))
>>> backbone(torch.zeros(2, 10, 3, 32, 32)).shape
torch.Size([2, 10, 256])
"""

from __future__ import annotations

from typing import Any

from adaptask.backbones.base import Backbone, ImageShape
from adaptask.backbones.conv4 import Conv4, ConvBlock
from adaptask.backbones.identity import IdentityBackbone
from adaptask.backbones.linear import LinearBackbone
from adaptask.backbones.mlp import MLP
from adaptask.backbones.normalization import NORMS, TaskNorm
from adaptask.backbones.resnet12 import WIDTHS, DropBlock, ResNet12
from adaptask.registry import BACKBONES


def build_backbone(name: str, *, image_shape: ImageShape, **settings: Any) -> Backbone:
    """Build the backbone with this name.

    Args:
        name: A key of `BACKBONES`, or `module:Class`.
        image_shape: Channels, height and width of the images.
        **settings: Further keyword arguments of its class.

    Raises:
        ArgumentError: If there is no such backbone, it does not take such an argument, or the
            images are too small for it.
    """
    backbone: Backbone = BACKBONES.build(name, {"image_shape": image_shape, **settings})
    return backbone


__all__ = [
    "BACKBONES",
    "MLP",
    "NORMS",
    "WIDTHS",
    "Backbone",
    "Conv4",
    "ConvBlock",
    "DropBlock",
    "IdentityBackbone",
    "ImageShape",
    "LinearBackbone",
    "ResNet12",
    "TaskNorm",
    "build_backbone",
]
