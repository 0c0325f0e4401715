"""The base class of backbones: how the images of many tasks become features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from adaptask.arguments import check_image_shape
from adaptask.errors import ArgumentError

ImageShape = tuple[int, int, int]
"""Channels, height and width."""


class Backbone(nn.Module, ABC):
    """Images to features: override `compute_maps` and set `feature_shape`.

    The images of all tasks go through the network together. `compute_maps` gets the number of
    tasks, for layers that treat each task separately, such as `TaskNorm`.

    Args:
        image_shape: Channels, height and width of the images.
        mean_pool: Average the last maps instead of flattening them.

    Raises:
        ArgumentError: If the shape is not three positive integers.
    """

    description: ClassVar[str] = ""
    """One sentence for `adaptask list` and the report."""
    is_small: ClassVar[bool] = False
    """Whether a training step leaves most of a GPU idle, so that several runs can share one."""
    takes_task_weights: ClassVar[bool] = False
    """Whether `torch.func.functional_call` may replace all parameters by one for each task, `tasks
    x` their shape; learners with an inner loop then process all tasks at once."""
    feature_shape: ImageShape
    """Channels, height and width of the last maps."""

    def __init__(self, *, image_shape: ImageShape, mean_pool: bool = False) -> None:
        super().__init__()
        self.image_shape: ImageShape = check_image_shape(image_shape)
        self.mean_pool = mean_pool

    @property
    def n_features(self) -> int:
        """Number of features of an image."""
        return self.feature_shape[0] if self.mean_pool else prod(self.feature_shape)

    @abstractmethod
    def compute_maps(self, images: Tensor, n_tasks: int) -> Tensor:
        """Return the last maps, `(tasks * images) x channels x height x width`.

        Args:
            images: `(tasks * images) x channels x height x width`, grouped by task.
            n_tasks: Number of tasks that the images belong to.
        """

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of images.

        Args:
            images: `tasks x images x channels x height x width`, or without `tasks`: one task.

        Returns:
            `tasks x images x n_features`, or `images x n_features`.

        Raises:
            ArgumentError: If the images do not have the shape that the backbone was built for.
        """
        maps = self.feature_maps(images)
        return maps.mean((-2, -1)) if self.mean_pool else maps.flatten(-3)

    def feature_maps(self, images: Tensor) -> Tensor:
        """Return the last maps of images, neither flattened nor averaged.

        Args:
            images: `tasks x images x channels x height x width`, or without `tasks`: one task.

        Returns:
            `tasks x images x` `feature_shape`, or `images x` `feature_shape`.

        Raises:
            ArgumentError: If the images do not have the shape that the backbone was built for.
        """
        if images.ndim not in (4, 5) or tuple(images.shape[-3:]) != self.image_shape:
            expected = " x ".join(map(str, self.image_shape))
            raise ArgumentError(
                f"This backbone was built for [tasks x] images x {expected}; got a tensor of shape "
                f"{tuple(images.shape)}. Build it with the image_shape of the data."
            )
        if images.ndim == 4:
            return self.compute_maps(images, 1)
        n_tasks, n_images = images.shape[:2]
        maps = self.compute_maps(images.flatten(0, 1), n_tasks)
        return torch.unflatten(maps, 0, (n_tasks, n_images))


def size_after_pooling(height: int, width: int, n_times: int) -> tuple[int, int]:
    """Return the height and width of maps after `n_times` 2 x 2 pooling layers.

    Raises:
        ArgumentError: If the images are too small, or vectors of features.
    """
    if max(height, width) == 1 < 2**n_times:
        raise ArgumentError(
            "this backbone is for images, and the data are vectors of features. Choose the "
            "backbone mlp, linear or identity."
        )
    if min(height, width) < 2**n_times:
        raise ArgumentError(
            f"Images must be at least {2**n_times} x {2**n_times} pixels, because this backbone "
            f"pools {n_times} times; got {height} x {width}. Resize them, or pool less."
        )
    return height >> n_times, width >> n_times


@contextmanager
def evaluation_mode(module: object) -> Iterator[None]:
    """Put a module into `eval()` mode, and restore the mode of every part of it afterwards."""
    if not isinstance(module, nn.Module):
        yield
        return
    flags = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, flag in flags.items():
            part.training = flag
