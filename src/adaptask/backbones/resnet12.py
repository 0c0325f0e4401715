"""ResNet-12: four residual blocks of three convolutions, as MetaOptNet has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import leaky_relu, max_pool2d

from adaptask.arguments import check_choice, check_integer, check_number, shown
from adaptask.backbones.base import Backbone, ImageShape, halve
from adaptask.backbones.drop_block import DropBlock
from adaptask.backbones.normalisation import build_norm, normalise
from adaptask.errors import ArgumentError

WIDTHS: dict[str, tuple[int, int, int, int]] = {
    "doubling": (64, 128, 256, 512),
    "metaoptnet": (64, 160, 320, 640),
}
"""Channels of the four blocks: as the paper writes, and as the code it builds on has them."""

_SLOPE = 0.1
_LARGE_IMAGE = 80


class ResidualBlock(nn.Module):
    """Three 3 x 3 convolutions beside a 1 x 1 one, leaky ReLU, 2 x 2 max-pooling, dropout."""

    def __init__(self, n_in: int, n_out: int, *, norm: str, drop: nn.Module) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(n_out if layer else n_in, n_out, 3, padding=1, bias=False)
            for layer in range(3)
        )
        self.norms = nn.ModuleList(build_norm(norm, n_out) for _ in range(3))
        self.shortcut = nn.Conv2d(n_in, n_out, 1, bias=False)
        self.shortcut_norm = build_norm(norm, n_out)
        self.drop = drop

    def forward(self, maps: Tensor, n_tasks: int) -> Tensor:
        """Map `(tasks * images) x channels x height x width` to the next such maps."""
        shortcut = normalise(self.shortcut_norm, self.shortcut(maps), n_tasks)
        for layer, (convolution, norm) in enumerate(
            zip(self.convolutions, self.norms, strict=True)
        ):
            activations = leaky_relu(maps, _SLOPE) if layer else maps
            maps = normalise(norm, convolution(activations), n_tasks)
        dropped: Tensor = self.drop(max_pool2d(leaky_relu(maps + shortcut, _SLOPE), 2))
        return dropped


class ResNet12(Backbone):
    """Four residual blocks of three 3 x 3 convolutions, each halving the maps; mean-pooled.

    Lee et al., *Meta-Learning with Differentiable Convex Optimization* (2019), after Oreshkin et
    al., *TADAM* (2018): leaky ReLU of slope 0.1, convolutions without bias, dropout after the
    first two blocks and DropBlock after the last two.

    Args:
        image_shape: Channels, height and width of the images.
        widths: Channels of the four blocks: `doubling` 64-128-256-512 as the paper writes,
            `metaoptnet` 64-160-320-640, or four integers.
        norm: A name from `NORMS`: `batch`, `task` or `none`.
        mean_pool: Whether features are the means of the last maps; otherwise the maps flattened.
        drop_rate: Share that is dropped after every block in training.
        drop_block_size: Side of the squares that are dropped after the last two blocks; by default
            5 for images of at least 80 pixels and 2 below, as MetaOptNet has it.
        drop_block_ramp: Passes in training over which DropBlock grows to `drop_rate`.

    Raises:
        ArgumentError: If an argument cannot be used, or the images are too small.
    """

    def __init__(
        self,
        *,
        image_shape: ImageShape,
        widths: Literal["doubling", "metaoptnet"] | tuple[int, int, int, int] = "doubling",
        norm: str = "batch",
        mean_pool: bool = True,
        drop_rate: float = 0.1,
        drop_block_size: int | None = None,
        drop_block_ramp: int = 20_000,
    ) -> None:
        super().__init__(image_shape=image_shape, mean_pool=mean_pool)
        drop_rate = check_number("drop_rate", drop_rate, low=0, high=0.9)
        channels, height, width = self.image_shape
        if drop_block_size is None:
            drop_block_size = 5 if min(height, width) >= _LARGE_IMAGE else 2
        self.widths = _check_widths(widths)
        self.feature_shape = (self.widths[-1], *halve(height, width, len(self.widths)))
        drops: list[nn.Module] = [nn.Dropout(drop_rate) for _ in range(2)]
        for _ in range(2):
            drops.append(
                DropBlock(drop_rate=drop_rate, block_size=drop_block_size, ramp=drop_block_ramp)
            )
        self.blocks = nn.ModuleList(
            ResidualBlock(n_in, n_out, norm=norm, drop=drop)
            for n_in, n_out, drop in zip((channels, *self.widths), self.widths, drops, strict=False)
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                # As MetaOptNet: the slope is not passed on, and torch then counts with 0.
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="leaky_relu")

    def _maps(self, images: Tensor, n_tasks: int) -> Tensor:
        maps = images
        for block in self.blocks:
            maps = block(maps, n_tasks)
        return maps


def _check_widths(widths: str | Sequence[int]) -> tuple[int, int, int, int]:
    if isinstance(widths, str):
        return WIDTHS[check_choice("widths", widths, WIDTHS)]
    if not isinstance(widths, Sequence) or len(widths) != 4:
        raise ArgumentError(
            f"widths must be one of {', '.join(WIDTHS)} or four integers; got {shown(widths)}."
        )
    first, second, third, fourth = (check_integer("each of widths", n, low=1) for n in widths)
    return first, second, third, fourth
