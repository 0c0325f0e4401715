"""Conv-4: the four plain convolutional blocks of most few-shot papers."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from adaptask.arguments import check_integer
from adaptask.backbones.base import Backbone, ImageShape, size_after_pooling
from adaptask.backbones.normalization import Norm, build_norm, normalize

_N_BLOCKS = 4


class ConvBlock(nn.Module):
    """Convolution (3 x 3 by default), normalization, ReLU and optional 2 x 2 max-pooling.

    Raises:
        ArgumentError: If there is no such norm.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        norm: Norm = "batch",
        pool: bool = True,
        kernel: int = 3,
        padding: int = 1,
    ) -> None:
        super().__init__()
        # Normalization removes whatever a bias adds; the bias would only have rounding gradients.
        self.convolution = nn.Conv2d(n_in, n_out, kernel, padding=padding, bias=norm == "none")
        self.norm = build_norm(norm, n_out)
        self.pool = pool

    def forward(self, maps: Tensor, n_tasks: int = 1) -> Tensor:
        """Return the next maps, `(tasks * images) x channels x height x width`."""
        return self.after_convolution(self.convolution(maps), n_tasks)

    def after_convolution(self, maps: Tensor, n_tasks: int = 1) -> Tensor:
        """Apply normalization, ReLU and pooling to the output of the convolution."""
        maps = normalize(self.norm, maps, n_tasks)
        # ReLU and maximum can change places, gradients included; this order has less to compute.
        return relu(max_pool2d(maps, 2) if self.pool else maps)


class Conv4(Backbone):
    """Four blocks of 3 x 3 convolution, normalization, ReLU and 2 x 2 max-pooling, flattened.

    Vinyals et al., *Matching Networks for One Shot Learning* (2016). With 64 filters: 1600
    features for images of 84 pixels, 256 for 32, 64 for 28.

    Args:
        image_shape: Channels, height and width of the images.
        filters: Channels of every block.
        n_pooled: Number of blocks that pool, from the first; by default 4, or 2 if the learner
            needs feature maps.
        norm: Normalize over the whole step (running averages in evaluation), over each task, or
            not at all.
        mean_pool: Average the last maps instead of flattening them.

    Raises:
        ArgumentError: If an argument is out of range, or the images are too small.
    """

    description: ClassVar[str] = "four blocks of 3x3 convolution, normalization, ReLU and max-pool"
    is_small: ClassVar[bool] = True

    def __init__(
        self,
        *,
        image_shape: ImageShape,
        filters: int = 64,
        n_pooled: int | None = None,
        norm: Norm = "batch",
        mean_pool: bool = False,
    ) -> None:
        super().__init__(image_shape=image_shape, mean_pool=mean_pool)
        filters = check_integer("filters", filters, low=1)
        n_pooled = _N_BLOCKS if n_pooled is None else n_pooled
        n_pooled = check_integer(
            "n_pooled", n_pooled, low=0, high=_N_BLOCKS, meaning="the number of blocks"
        )
        channels, height, width = self.image_shape
        self.feature_shape = (filters, *size_after_pooling(height, width, n_pooled))
        self.blocks = nn.ModuleList(
            ConvBlock(filters if block else channels, filters, norm=norm, pool=block < n_pooled)
            for block in range(_N_BLOCKS)
        )

    def compute_maps(self, images: Tensor, n_tasks: int) -> Tensor:
        """Return the maps of the last block."""
        maps = images
        for block in self.blocks:
            maps = block(maps, n_tasks)
        return maps
