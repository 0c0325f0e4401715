"""From images to features: one file per architecture.

>>> import torch
>>> from adaptask.backbones import build_backbone
>>> backbone = build_backbone("conv4", image_shape=(3, 32, 32))
>>> backbone(torch.zeros(2, 10, 3, 32, 32)).shape
torch.Size([2, 10, 256])
"""

from __future__ import annotations

from typing import Any

from torch import nn

from adaptask.arguments import format_value
from adaptask.backbones.base import Backbone, ImageShape
from adaptask.backbones.conv4 import Conv4, ConvBlock
from adaptask.backbones.identity import IdentityBackbone
from adaptask.backbones.linear import LinearBackbone
from adaptask.backbones.mlp import MLP
from adaptask.backbones.network import NetworkBackbone
from adaptask.backbones.normalization import NORMS, TaskNorm
from adaptask.backbones.resnet12 import WIDTHS, DropBlock, ResNet12
from adaptask.errors import ArgumentError
from adaptask.registry import BACKBONES, constructors


def build_backbone(name: str, *, image_shape: ImageShape, **settings: Any) -> Backbone:
    """Build the backbone with this name.

    Any other module that it stands for becomes a `NetworkBackbone`.

    Args:
        name: A key of `BACKBONES`, `module:Class` or `module:function`.
        image_shape: Channels, height and width of the images.
        **settings: Further keyword arguments of its class or function.

    Raises:
        ArgumentError: If there is no such backbone, it does not take such an argument, the images
            are too small for it, or it does not return vectors.
    """
    arguments = (argument for _, _, own in constructors(BACKBONES[name]) for argument in own)
    if any(argument.name == "image_shape" for argument in arguments):
        settings["image_shape"] = image_shape
    built = BACKBONES.build(name, settings)
    if isinstance(built, Backbone):
        return built
    if not isinstance(built, nn.Module):
        raise ArgumentError(
            f"the backbone {name!r} must return a torch.nn.Module; got {format_value(built)}."
        )
    return NetworkBackbone(built, image_shape=image_shape)


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
    "NetworkBackbone",
    "ResNet12",
    "TaskNorm",
    "build_backbone",
]
