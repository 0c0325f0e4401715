"""Conv-4: the four plain convolutional blocks of most few-shot papers."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from adaptask.arguments import check_choice, check_flag, check_integer
from adaptask.backbones.base import Backbone, ImageShape, halve
from adaptask.backbones.normalisation import NORMS, build_norm, normalise

_N_BLOCKS = 4


class ConvBlock(nn.Module):
    """3 x 3 convolution, normalisation, ReLU and, if asked for, 2 x 2 max-pooling.

    Raises:
        ArgumentError: If an argument cannot be used.
    """

    def __init__(
        self, n_in: int, n_out: int, *, norm: str = "batch", pool: bool = True, padding: int = 1
    ) -> None:
        super().__init__()
        n_in = check_integer("n_in", n_in, low=1)
        n_out = check_integer("n_out", n_out, low=1)
        padding = check_integer("padding", padding, low=0)
        norm = check_choice("norm", norm, NORMS)
        # A norm takes off whatever a bias adds; its gradient would be rounding.
        self.convolution = nn.Conv2d(n_in, n_out, 3, padding=padding, bias=norm == "none")
        self.norm = build_norm(norm, n_out)
        self.pool = check_flag("pool", pool)

    def forward(self, maps: Tensor, n_tasks: int = 1) -> Tensor:
        """Map `(tasks * images) x channels x height x width` to the next such maps."""
        return self.after_convolution(self.convolution(maps), n_tasks)

    def after_convolution(self, maps: Tensor, n_tasks: int = 1) -> Tensor:
        """Normalise, rectify and pool what the convolution gave."""
        maps = relu(normalise(self.norm, maps, n_tasks))
        return max_pool2d(maps, 2) if self.pool else maps


class Conv4(Backbone):
    """Four blocks of 3 x 3 convolution, normalisation, ReLU and 2 x 2 max-pooling, flattened.

    Vinyals et al., *Matching Networks for One Shot Learning* (2016). With 64 filters 1600
    features for 84 pixels, 256 for 32, 64 for 28.

    Args:
        image_shape: Channels, height and width of the images.
        filters: Channels of every block.
        n_pooled: Number of blocks that pool, from the first; by default 4, or 2 if the learner
            compares feature maps.
        norm: A name from `NORMS`: `batch`, `task` or `none`.
        mean_pool: Whether features are the means of the last maps; otherwise the maps flattened.

    Raises:
        ArgumentError: If an argument cannot be used, or the images are too small.
    """

    is_small: ClassVar[bool] = True

    def __init__(
        self,
        *,
        image_shape: ImageShape,
        filters: int = 64,
        n_pooled: int | None = None,
        norm: str = "batch",
        mean_pool: bool = False,
    ) -> None:
        super().__init__(image_shape=image_shape, mean_pool=mean_pool)
        filters = check_integer("filters", filters, low=1)
        n_pooled = _N_BLOCKS if n_pooled is None else n_pooled
        n_pooled = check_integer(
            "n_pooled", n_pooled, low=0, high=_N_BLOCKS, meaning="the number of blocks"
        )
        channels, height, width = self.image_shape
        self.feature_shape = (filters, *halve(height, width, n_pooled))
        self.blocks = nn.ModuleList(
            ConvBlock(filters if block else channels, filters, norm=norm, pool=block < n_pooled)
            for block in range(_N_BLOCKS)
        )

    def _maps(self, images: Tensor, n_tasks: int) -> Tensor:
        maps = images
        for block in self.blocks:
            maps = block(maps, n_tasks)
        return maps
