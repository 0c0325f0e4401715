"""Crops, resizing and colours for a batch of images, each image with parameters of its own."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from adaptask.errors import ArgumentError

_GREY_WEIGHTS = (0.299, 0.587, 0.114)


def crop_windows(images: Tensor, tops: Tensor, lefts: Tensor) -> Tensor:
    """Cut from each image the window, of its own size, that starts at (top, left).

    Args:
        images: `batch x channels x height x width`.
        tops: First row of each window, `batch` int64; negative or too large reaches into black.
        lefts: First column of each window, `batch` int64.
    """
    batch, channels, height, width = images.shape
    rows = torch.arange(height, device=images.device) + tops[:, None]
    columns = torch.arange(width, device=images.device) + lefts[:, None]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[
        :, None, :
    ]
    pixels = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]
    index = pixels.reshape(batch, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, index).view_as(images) * inside[:, None]


def resize_boxes(images: Tensor, boxes: Tensor) -> Tensor:
    """Stretch a box of each image to the size of the image, bilinear between pixel centres.

    What lies outside a box has no part in it: this equals cutting the box out and resizing it.

    Args:
        images: `batch x channels x height x width`.
        boxes: Top, left, height and width in pixels, `4 x batch`.
    """
    height, width = images.shape[-2:]
    tops, lefts, heights, widths = boxes.to(images.dtype)[:, :, None]
    rows = _centres(height, tops, heights, images)
    columns = _centres(width, lefts, widths, images)
    grid = torch.stack(
        (
            ((columns + 0.5) * (2 / width) - 1)[:, None, :].expand(-1, height, -1),
            ((rows + 0.5) * (2 / height) - 1)[:, :, None].expand(-1, -1, width),
        ),
        dim=-1,
    )
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def jitter_colours(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Blend each image with black, its mean grey and its own grey, in the order given.

    A blend is `factor * image + (1 - factor) * reference`, cut off at 0 and 1. The reference is
    black for brightness (0), the mean of the grey image for contrast (1) and the grey image for
    saturation (2).

    Args:
        images: `batch x channels x height x width` with 1 or 3 channels, 0 to 1.
        factors: Of brightness, contrast and saturation, `batch x 3`; 1 changes nothing.
        order: Which of the three comes first, second and third, `batch x 3` int64.
    """
    if images.shape[1] not in (1, 3):
        raise ArgumentError(
            f"colour jitter needs images of 1 or 3 channels; got {images.shape[1]}. "
            "Choose an augmentation without it."
        )
    for place in range(3):
        kind = order[:, place, None, None, None]
        factor = factors.gather(1, order[:, place, None])[:, :, None, None]
        grey = _grey(images)
        mean_grey = grey.mean((1, 2, 3), keepdim=True)
        reference = torch.where(kind == 2, grey, torch.where(kind == 1, mean_grey, 0.0))
        # Written as a difference, a factor of 1 leaves every bit as it was.
        images = (images + (factor - 1) * (images - reference)).clamp(0, 1)
    return images


def _centres(size: int, start: Tensor, extent: Tensor, like: Tensor) -> Tensor:
    """Where the centres of `size` pixels fall in a box, kept within its outermost centres."""
    steps = torch.arange(size, device=like.device, dtype=like.dtype)
    inside = (steps + 0.5) * (extent / size) - 0.5
    return start + torch.minimum(inside.clamp(min=0), extent - 1)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    red, green, blue = (images[:, c, None] * weight for c, weight in enumerate(_GREY_WEIGHTS))
    return red + green + blue
