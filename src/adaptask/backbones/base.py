"""What every backbone shares: how the images of many tasks become features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from adaptask.arguments import check_flag, check_image_shape
from adaptask.errors import ArgumentError

ImageShape = tuple[int, int, int]
"""Channels, height and width."""


class Backbone(nn.Module, ABC):
    """Images to features: write `_maps`, set `feature_shape`, and the rest is there.

    The images of all tasks go through together. What they share on the way is up to the
    normalisation layers, which are told the number of tasks.

    Args:
        image_shape: Channels, height and width of the images.
        mean_pool: Whether features are the means of the last maps; otherwise the maps flattened.

    Raises:
        ArgumentError: If the shape is not three positive integers.
    """

    description: ClassVar[str] = ""
    """One sentence for `adaptask list` and the report."""
    is_small: ClassVar[bool] = False
    """Whether a training step leaves most of a GPU idle, so that runs can share it."""
    feature_shape: ImageShape
    """Channels, height and width of the last maps."""

    def __init__(self, *, image_shape: ImageShape, mean_pool: bool = False) -> None:
        super().__init__()
        self.image_shape: ImageShape = check_image_shape(image_shape)
        self.mean_pool = check_flag("mean_pool", mean_pool)

    @property
    def n_features(self) -> int:
        """Number of features of an image."""
        return self.feature_shape[0] if self.mean_pool else prod(self.feature_shape)

    @abstractmethod
    def _maps(self, images: Tensor, n_tasks: int) -> Tensor:
        """Return the last maps, `(tasks * images) x channels x height x width`.

        Args:
            images: `(tasks * images) x channels x height x width`, the images of a task together.
            n_tasks: How many tasks they belong to.
        """

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of images.

        Args:
            images: `tasks x images x channels x height x width`, or without `tasks`: one task.

        Returns:
            `tasks x images x n_features`, or `images x n_features`.

        Raises:
            ArgumentError: If the images have another shape than the backbone was built for.
        """
        maps = self.feature_maps(images)
        return maps.mean((-2, -1)) if self.mean_pool else maps.flatten(-3)

    def feature_maps(self, images: Tensor) -> Tensor:
        """Return the last maps of images, neither flattened nor pooled.

        Args:
            images: `tasks x images x channels x height x width`, or without `tasks`: one task.

        Returns:
            `tasks x images x` `feature_shape`, or `images x` `feature_shape`.

        Raises:
            ArgumentError: If the images have another shape than the backbone was built for.
        """
        if images.ndim not in (4, 5) or tuple(images.shape[-3:]) != self.image_shape:
            expected = " x ".join(map(str, self.image_shape))
            raise ArgumentError(
                f"This backbone was built for [tasks x] images x {expected}; got a tensor of the "
                f"shape {tuple(images.shape)}. Build it with the image_shape of the data."
            )
        if images.ndim == 4:
            return self._maps(images, 1)
        n_tasks, n_images = images.shape[:2]
        maps = self._maps(images.flatten(0, 1), n_tasks)
        return torch.unflatten(maps, 0, (n_tasks, n_images))


def halve(height: int, width: int, n_times: int) -> tuple[int, int]:
    """Return the size of a map after pooling 2 x 2 so many times.

    Raises:
        ArgumentError: If nothing would be left.
    """
    if min(height, width) < 2**n_times:
        raise ArgumentError(
            f"Images must be at least {2**n_times} x {2**n_times} pixels, for the {n_times} times "
            f"that this backbone halves them; got {height} x {width}. Resize them, or pool less."
        )
    return height >> n_times, width >> n_times
