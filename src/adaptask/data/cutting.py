"""Images fetched, augmented and normalised by a single kernel, where there is one for that."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptask.data.augmentation import (
    Augmentation,
    HorizontalFlip,
    RandomCrop,
    Share,
    steps_of,
)
from adaptask.kernels import find_kernels

_POSSIBLE = ((), (RandomCrop,), (HorizontalFlip,), (RandomCrop, HorizontalFlip))
"""Steps of an augmentation, in order, that the kernel can do."""


def cut_by_kernel(
    images: Tensor,
    index: Tensor,
    augment: Augmentation | None,
    generator: torch.Generator,
    *,
    scale: Tensor,
    shift: Tensor,
    share: Share | None = None,
) -> Tensor | None:
    """Return images as a learner is given them, or None where that takes several kernels.

    Draws the same random numbers as the augmentation would.

    Args:
        images: `images x channels x height x width` uint8.
        index: Which, `batch` int64.
        augment: What is done to them.
        generator: Source of randomness.
        scale: Factor on values from 0 to 1, `channels x 1 x 1`.
        shift: What is added then.
        share: Which images of a larger batch these are.
    """
    steps = steps_of(augment)
    kernels = find_kernels("adaptask.data.fused", images.device)
    if kernels is None or tuple(type(step) for step in steps) not in _POSSIBLE:
        return None
    offsets = flipped = None
    size = images.shape[2:]
    for step in steps:
        if isinstance(step, RandomCrop):
            offsets = step.draw_for(len(index), size, images.device, generator, share)
        elif isinstance(step, HorizontalFlip):
            flipped = step.draw_for(len(index), size, images.device, generator, share)
    finished: Tensor = kernels.cut_images(
        images, index, offsets=offsets, flipped=flipped, scale=scale, shift=shift
    )
    return finished
