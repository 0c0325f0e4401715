"""Images of one dataset in the form of another, for models that were trained on the other."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from adaptask.data.images import ImageSet
from adaptask.errors import ArgumentError

# Of red, green and blue in brightness, ITU-R BT.601, as Pillow has them.
_BRIGHTNESS = (0.299, 0.587, 0.114)
_BATCH = 1024


def refit(image_set: ImageSet, image_shape: tuple[int, int, int]) -> ImageSet:
    """Return a split with images of the shape given: resized, and grey or in three channels.

    Grey images are repeated in every channel; colours become their brightness.

    Args:
        image_set: The split.
        image_shape: Channels, height and width that are wanted.

    Raises:
        ArgumentError: If there is no way from the one number of channels to the other.
    """
    if image_set.image_shape == image_shape:
        return image_set
    found, wanted = image_set.image_shape[0], image_shape[0]
    if found != wanted and {found, wanted} != {1, 3}:
        raise ArgumentError(
            f"images of {image_set.dataset} have {found} channels, and {wanted} are wanted; only "
            "grey images and those of three channels are turned into each other."
        )
    parts = [_refit(part, image_shape) for part in torch.split(image_set.images, _BATCH)]
    return replace(image_set, images=torch.cat(parts))


def _refit(images: Tensor, image_shape: tuple[int, int, int]) -> Tensor:
    channels, *size = image_shape
    pixels = images.float()
    if channels < images.shape[1]:
        weights = torch.tensor(_BRIGHTNESS, device=images.device).view(1, 3, 1, 1)
        pixels = (pixels * weights).sum(1, keepdim=True)
    if list(pixels.shape[2:]) != size:
        pixels = interpolate(pixels, size, mode="bilinear", antialias=True)
    return pixels.round_().clamp_(0, 255).to(torch.uint8).expand(-1, channels, -1, -1)
