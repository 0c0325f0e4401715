"""Normalization of images with the statistics of their own dataset."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from adaptask.errors import ArgumentError


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of every channel, on a scale from 0 to 1.

    Exact: the values of a channel are counted, never summed as floats.

    Args:
        images: `images x channels x height x width` uint8.

    Raises:
        ArgumentError: If they are not, or there are none.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.numel() == 0:
        raise ArgumentError(
            "images must be a uint8 tensor, images x channels x height x width, with one image or "
            f"more; got {images.dtype}, {tuple(images.shape)}."
        )
    values = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = torch.zeros(256, dtype=torch.int64)
        # In parts, so that a memory-mapped split is never held twice.
        for part in torch.split(images[:, channel], 4096):
            counts += torch.bincount(part.flatten(), minlength=256).cpu()
        share = counts.double() / counts.sum()
        mean = (share * values).sum()
        means.append(float(mean))
        deviations.append(float((share * (values - mean) ** 2).sum().sqrt()))
    return tuple(means), tuple(deviations)


def scale_and_shift(
    normalization: tuple[Sequence[float], Sequence[float]] | None, n_channels: int
) -> tuple[Tensor, Tensor]:
    """Return what a value from 0 to 1 is multiplied by and what is then added.

    Args:
        normalization: Mean and standard deviation of every channel, or None for 1 and 0.
        n_channels: Number of channels of the images.

    Returns:
        Two tensors `channels x 1 x 1`, float.

    Raises:
        ArgumentError: If a list has the wrong length, or a deviation is not positive.
    """
    if normalization is None:
        normalization = ((0.0,) * n_channels, (1.0,) * n_channels)
    mean, deviation = (torch.tensor(tuple(part), dtype=torch.float64) for part in normalization)
    if mean.shape != (n_channels,) or deviation.shape != (n_channels,):
        raise ArgumentError(
            f"normalization must be (mean, std) with {n_channels} values each, one per channel; "
            f"got {mean.numel()} and {deviation.numel()}."
        )
    if not all(math.isfinite(m) and 0 < d < math.inf for m, d in zip(mean, deviation, strict=True)):
        raise ArgumentError(
            "normalization must be (mean, std) with finite means and deviations above 0; got "
            f"{mean.tolist()} and {deviation.tolist()}. A channel that is constant has no "
            "deviation: give 1 for it."
        )
    scale = 1 / deviation
    return scale.float()[:, None, None], (-mean * scale).float()[:, None, None]
