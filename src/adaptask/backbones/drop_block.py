"""DropBlock: dropout of whole squares of a map, because neighbouring cells tell the same."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, pad

from adaptask.arguments import check_integer, check_number


class DropBlock(nn.Module):
    """Zero random squares of every map in training, more of them as training goes on.

    Every channel of every image loses squares of its own. The share to lose, d, grows linearly
    from zero to `drop_rate` over the first `ramp` training calls. The corner of a square falls on
    a cell where it fits with the probability

        gamma = d h w / (b_h b_w (h - b_h + 1) (w - b_w + 1)),

    where b_h and b_w are `block_size`, or the size of the map where that is smaller. Squares
    overlap, so that the share which is lost is a little below d. What is left is scaled up by one
    factor for all, so that the share of zeros does not change the mean.

    Ghiasi et al., *DropBlock* (2018); growth and corners as in the code of MetaOptNet.

    Args:
        drop_rate: Share to lose at the end, 0 up to 0.9.
        block_size: Side of a square.
        ramp: Number of training calls until the share is reached; 0 starts with it.

    Raises:
        ArgumentError: If an argument cannot be used.
    """

    n_calls: Tensor

    def __init__(self, *, drop_rate: float, block_size: int, ramp: int) -> None:
        super().__init__()
        self.drop_rate = check_number("drop_rate", drop_rate, low=0, high=0.9)
        self.block_size = check_integer("block_size", block_size, low=1)
        self.ramp = check_integer("ramp", ramp, low=0)
        # A buffer: it is saved with the weights, and no device is asked for it.
        self.register_buffer("n_calls", torch.zeros((), dtype=torch.int64))

    def forward(self, maps: Tensor) -> Tensor:
        """Drop squares of maps, `images x channels x height x width`, if in training."""
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
        # Every cell looks for a corner as far up and left as a square reaches.
        dropped = max_pool2d(pad(corners.to(maps.dtype), margin), block, stride=1)
        kept = 1 - dropped
        # In float32: half precision cannot count so far.
        share_kept = kept.mean(dtype=torch.promote_types(maps.dtype, torch.float32))
        scale = 1 / share_kept.clamp(min=1 / kept.numel())
        return maps * kept * scale.to(maps.dtype)

    def extra_repr(self) -> str:
        """Show the settings in `print(backbone)`."""
        return f"drop_rate={self.drop_rate}, block_size={self.block_size}, ramp={self.ramp}"
