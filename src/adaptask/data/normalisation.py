"""Normalisation of images with the statistics of their own dataset."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from adaptask.arguments import shown
from adaptask.errors import ArgumentError


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of every channel, on a scale from 0 to 1.

    Exact: the values of a channel are counted, never summed as floats.

    Args:
        images: `images x channels x height x width` uint8.

    Raises:
        ArgumentError: If they are not, or there are none.
    """
    if (
        not isinstance(images, Tensor)
        or images.dtype != torch.uint8
        or images.ndim != 4
        or images.numel() == 0
        or images.layout is not torch.strided
        or images.device.type == "meta"
    ):
        came = tuple(images.shape) if isinstance(images, Tensor) else shown(images)
        raise ArgumentError(
            "images must be a dense uint8 tensor, images x channels x height x width, with one "
            f"image or more; got {getattr(images, 'dtype', type(images).__name__)}, {came}."
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
    normalisation: tuple[Sequence[float], Sequence[float]] | None, n_channels: int
) -> tuple[Tensor, Tensor]:
    """Return what a value from 0 to 1 is multiplied by and what is then added.

    Args:
        normalisation: Mean and standard deviation of every channel, or None for 1 and 0.
        n_channels: Number of channels of the images.

    Returns:
        Two tensors `channels x 1 x 1`, float.

    Raises:
        ArgumentError: If a list has the wrong length, or a deviation is not positive.
    """
    if normalisation is None:
        normalisation = ((0.0,) * n_channels, (1.0,) * n_channels)
    try:
        mean, deviation = (
            torch.as_tensor(list(part), dtype=torch.float64) for part in normalisation
        )
    except Exception:  # whatever the values' own code raises
        raise ArgumentError(
            f"normalisation must be (mean, std), two lists of numbers; got {shown(normalisation)}."
        ) from None
    if mean.shape != (n_channels,) or deviation.shape != (n_channels,):
        raise ArgumentError(
            f"normalisation must be (mean, std) with {n_channels} values each, one a channel; "
            f"got {mean.numel()} and {deviation.numel()}."
        )
    if not all(math.isfinite(m) and 0 < d < math.inf for m, d in zip(mean, deviation, strict=True)):
        raise ArgumentError(
            "normalisation must be (mean, std) with finite means and deviations above 0; got "
            f"{mean.tolist()} and {deviation.tolist()}. A channel that is constant has no "
            "deviation: give 1 for it."
        )
    scale = 1 / deviation
    return scale.float()[:, None, None], (-mean * scale).float()[:, None, None]
