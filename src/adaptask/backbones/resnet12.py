"""ResNet-12: four residual blocks of three convolutions, with DropBlock, as in MetaOptNet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, max_pool2d, pad

from adaptask.arguments import check_choice, check_integer, check_number, format_value
from adaptask.backbones.base import Backbone, ImageShape, size_after_pooling
from adaptask.backbones.normalization import Norm, build_norm, normalize
from adaptask.errors import ArgumentError

WIDTHS: dict[str, tuple[int, int, int, int]] = {
    "doubling": (64, 128, 256, 512),
    "metaoptnet": (64, 160, 320, 640),
}
"""Channels of the four blocks: as the paper says, and as in the code of MetaOptNet."""

_SLOPE = 0.1
_LARGE_IMAGE = 80


class DropBlock(nn.Module):
    """Zero random squares of every map in training, more of them as training goes on.

    Neighboring cells carry the same information, so dropping single cells would not help. Every
    channel of every image loses its own squares. The share to drop, d, grows linearly from zero to
    `drop_rate` over the first `ramp` training calls. A square starts at each cell where it fits
    with probability

        gamma = d h w / (b_h b_w (h - b_h + 1) (w - b_w + 1)),

    where b_h and b_w are `block_size`, or the size of the map if that is smaller. Squares overlap,
    so a little less than d is dropped. One factor scales up everything that remains, so that the
    mean does not depend on the share of zeros.

    Ghiasi et al., *DropBlock* (2018); ramp and corners as in the code of MetaOptNet.

    Args:
        drop_rate: Share to drop in the end, 0 to 0.9.
        block_size: Side of a square.
        ramp: Number of training calls until the share is reached; 0 starts with it.

    Raises:
        ArgumentError: If an argument is out of range.
    """

    n_calls: Tensor

    def __init__(self, *, drop_rate: float, block_size: int, ramp: int) -> None:
        super().__init__()
        self.drop_rate = check_number("drop_rate", drop_rate, low=0, high=0.9)
        self.block_size = check_integer("block_size", block_size, low=1)
        self.ramp = check_integer("ramp", ramp, low=0)
        # A buffer, so that it is saved with the weights and never read on the host.
        self.register_buffer("n_calls", torch.zeros((), dtype=torch.int64))

    def forward(self, maps: Tensor) -> Tensor:
        """Drop squares of maps, `images x channels x height x width`, in training."""
        if not self.training or self.drop_rate == 0:
            return maps
        self.n_calls += 1
        share = self.drop_rate * (self.n_calls / max(self.ramp, 1)).clamp(max=1)
        height, width = maps.shape[-2:]
        block = (min(self.block_size, height), min(self.block_size, width))
        fits = (height - block[0] + 1, width - block[1] + 1)
        gamma = share * (height * width / (block[0] * block[1] * fits[0] * fits[1]))
        corners = torch.rand(*maps.shape[:-2], *fits, device=maps.device) < gamma
        margin = (block[1] - 1, block[1] - 1, block[0] - 1, block[0] - 1)
        # A cell is dropped if there is a corner within a square up and left of it.
        dropped = max_pool2d(pad(corners.to(maps.dtype), margin), block, stride=1)
        kept = 1 - dropped
        # In float32: half precision cannot count this far.
        share_kept = kept.mean(dtype=torch.promote_types(maps.dtype, torch.float32))
        scale = 1 / share_kept.clamp(min=1 / kept.numel())
        return maps * kept * scale.to(maps.dtype)

    def extra_repr(self) -> str:
        """Show the settings in `print(backbone)`."""
        return f"drop_rate={self.drop_rate}, block_size={self.block_size}, ramp={self.ramp}"


class ResidualBlock(nn.Module):
    """Three 3 x 3 convolutions with a 1 x 1 shortcut, leaky ReLU, 2 x 2 max-pooling, dropout."""

    def __init__(self, n_in: int, n_out: int, *, norm: Norm, drop: nn.Module) -> None:
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
        """Return the next maps, `(tasks * images) x channels x height x width`."""
        shortcut = normalize(self.shortcut_norm, self.shortcut(maps), n_tasks)
        for layer, (convolution, norm) in enumerate(
            zip(self.convolutions, self.norms, strict=True)
        ):
            activations = leaky_relu(maps, _SLOPE) if layer else maps
            maps = normalize(norm, convolution(activations), n_tasks)
        dropped: Tensor = self.drop(max_pool2d(leaky_relu(maps + shortcut, _SLOPE), 2))
        return dropped


class ResNet12(Backbone):
    """Four residual blocks of three 3 x 3 convolutions, each followed by pooling; mean-pooled.

    Lee et al., *Meta-Learning with Differentiable Convex Optimization* (2019), after Oreshkin et
    al., *TADAM* (2018): leaky ReLU of slope 0.1, convolutions without bias, dropout after the
    first two blocks and DropBlock after the last two.

    Args:
        image_shape: Channels, height and width of the images.
        widths: Channels of the blocks: doubling is 64-128-256-512, metaoptnet is 64-160-320-640,
            or any four integers.
        norm: Normalize over the whole step (running averages in evaluation), over each task, or
            not at all.
        mean_pool: Average the last maps instead of flattening them.
        drop_rate: Share that is dropped after every block in training.
        drop_block_size: Side of the squares that DropBlock drops; by default 5 for images of at
            least 80 pixels and 2 for smaller ones.
        drop_block_ramp: Number of training passes until DropBlock reaches its full rate.

    Raises:
        ArgumentError: If an argument is out of range, or the images are too small.
    """

    description: ClassVar[str] = "four residual blocks of three 3x3 convolutions, with DropBlock"

    def __init__(
        self,
        *,
        image_shape: ImageShape,
        widths: Literal["doubling", "metaoptnet"] | tuple[int, int, int, int] = "doubling",
        norm: Norm = "batch",
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
        self.feature_shape = (self.widths[-1], *size_after_pooling(height, width, len(self.widths)))
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
                # As in MetaOptNet: the slope is not passed, so torch assumes 0.
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="leaky_relu")

    def compute_maps(self, images: Tensor, n_tasks: int) -> Tensor:
        """Return the maps of the last block."""
        maps = images
        for block in self.blocks:
            maps = block(maps, n_tasks)
        return maps


def _check_widths(widths: str | Sequence[int]) -> tuple[int, int, int, int]:
    if isinstance(widths, str):
        return WIDTHS[check_choice("widths", widths, WIDTHS)]
    if len(widths) != 4:
        raise ArgumentError(
            f"widths must be one of {', '.join(WIDTHS)} or four integers; got "
            f"{format_value(widths)}."
        )
    first, second, third, fourth = (check_integer("each of widths", n, low=1) for n in widths)
    return first, second, third, fourth
