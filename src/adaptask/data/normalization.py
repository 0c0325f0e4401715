"""Normalization of images with the statistics of their own dataset.

Torch is imported when it is used: `adaptask data list` needs none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptask.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor

_Counts = np.ndarray[Any, np.dtype[np.int64]]


def histograms(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> _Counts:
    """Count the 256 values of each channel of images, `channels x 256`."""
    channels = np.moveaxis(pixels, 1, 0).reshape(pixels.shape[1], -1)
    return np.stack([np.bincount(channel, minlength=256) for channel in channels])


def statistics_of(counts: _Counts) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel, exactly, from its histogram."""
    values = np.arange(256) / 255
    totals = counts.sum(axis=1)
    mean = counts @ values / totals
    variance = (counts * (values - mean[:, None]) ** 2).sum(axis=1) / totals
    return mean.tolist(), np.sqrt(variance).tolist()


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of every channel, on a scale from 0 to 1.

    Exact: the values of a channel are counted, never summed as floats.

    Args:
        images: `images x channels x height x width` uint8.

    Raises:
        ArgumentError: If they are not, or there are none.
    """
    import torch

    if images.dtype != torch.uint8 or images.ndim != 4 or images.numel() == 0:
        raise ArgumentError(
            "images must be a uint8 tensor, images x channels x height x width, with one image or "
            f"more; got {images.dtype}, {tuple(images.shape)}."
        )
    # In parts, so that a memory-mapped split is never held twice.
    parts = (histograms(part.numpy(force=True)) for part in torch.split(images, 4096))
    mean, deviation = statistics_of(np.sum(list(parts), axis=0))
    return tuple(mean), tuple(deviation)


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
    import torch

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
