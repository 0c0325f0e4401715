"""Normalization of images, or features, with the statistics of their own dataset.

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
_Floats = np.ndarray[Any, np.dtype[np.float64]]


class PixelStatistics:
    """Mean and deviation of bytes, exactly: values are counted, never summed as floats."""

    def __init__(self, n_channels: int) -> None:
        self._counts: _Counts = np.zeros((n_channels, 256), dtype=np.int64)

    def add(self, images: np.ndarray[Any, Any]) -> None:
        """Count the values of images, `images x channels x height x width` uint8."""
        channels = np.moveaxis(images, 1, 0).reshape(images.shape[1], -1)
        self._counts += np.stack([np.bincount(channel, minlength=256) for channel in channels])

    def result(self) -> tuple[list[float], list[float]]:
        """Return mean and standard deviation of each channel, on a scale from 0 to 1."""
        values = np.arange(256) / 255
        totals = self._counts.sum(axis=1)
        mean = self._counts @ values / totals
        variance = (self._counts * (values - mean[:, None]) ** 2).sum(axis=1) / totals
        return mean.tolist(), np.sqrt(variance).tolist()


class FeatureStatistics:
    """Mean and deviation of features, in float64, by the parallel algorithm of Chan et al."""

    def __init__(self, size: int) -> None:
        self._n = 0
        self._mean: _Floats = np.zeros(size)
        self._squares: _Floats = np.zeros(size)

    def add(self, features: np.ndarray[Any, Any]) -> None:
        """Add features, `vectors x size x 1 x 1` of finite floats."""
        rows = features.reshape(len(features), -1).astype(np.float64)
        mean = rows.mean(axis=0)
        difference, total = mean - self._mean, self._n + len(rows)
        self._squares += ((rows - mean) ** 2).sum(axis=0)
        self._squares += difference**2 * (self._n * len(rows) / total)
        self._mean += difference * (len(rows) / total)
        self._n = total

    def result(self) -> tuple[list[float], list[float]]:
        """Return mean and standard deviation of each feature."""
        return self._mean.tolist(), np.sqrt(self._squares / max(self._n, 1)).tolist()


def statistics_for(dtype: np.dtype[Any], n_channels: int) -> PixelStatistics | FeatureStatistics:
    """Return empty statistics of images of that type: bytes, or the floats of features."""
    return FeatureStatistics(n_channels) if dtype.kind == "f" else PixelStatistics(n_channels)


def divisors(deviations: Sequence[float]) -> tuple[float, ...]:
    """Return what to divide by: 1 in place of a deviation too small for that, as of a constant."""
    smallest = float(np.finfo(np.float32).tiny)
    return tuple(deviation if deviation >= smallest else 1.0 for deviation in deviations)


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of every channel, on a scale from 0 to 1.

    Exact: the values of a channel are counted, never summed as floats. Of features: mean and
    deviation of every one of them. The deviation of a constant is given as 1.

    Args:
        images: `images x channels x height x width` uint8, or features, `vectors x size [x 1 x 1]`
            float16 or float32.

    Raises:
        ArgumentError: If they are not, or there are none.
    """
    import torch

    is_vector = images.dtype in (torch.float16, torch.float32) and images.ndim in (2, 4)
    is_image = images.dtype == torch.uint8 and images.ndim == 4
    if not (is_vector or is_image) or images.numel() == 0:
        raise ArgumentError(
            "images must be a uint8 tensor, images x channels x height x width, with one image or "
            "more, or features, vectors x size, of float16 or float32; got "
            f"{images.dtype}, {tuple(images.shape)}."
        )
    statistics = statistics_for(images[:0].numpy(force=True).dtype, images.shape[1])
    # In parts, so that a memory-mapped split is never held twice.
    for part in torch.split(images, 4096):
        statistics.add(part.numpy(force=True))
    mean, deviation = statistics.result()
    return tuple(mean), divisors(deviation)


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
