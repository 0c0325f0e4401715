"""A multilayer perceptron: for small images, and for vectors."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, relu

from adaptask.arguments import check_choice, check_integer, check_number
from adaptask.backbones.base import Backbone, ImageShape
from adaptask.backbones.normalization import build_norm, normalize

MLPNorm = Literal["none", "batch", "task", "layer"]


class MLP(Backbone):
    """Flattens its input and applies linear layers, with normalization and ReLU between them.

    Features are the output of the last layer, without ReLU. That layer has no bias: distances of
    features do not depend on it.

    Args:
        image_shape: Channels, height and width of the images; a vector of size d is d x 1 x 1.
        hidden: Width of the hidden layers.
        depth: Number of hidden layers; 0 is one linear map.
        out_features: Number of features.
        norm: Normalize hidden layers over the whole step (running averages in evaluation), over
            each task, over each image, or not at all.
        dropout: Share of the hidden units that is dropped in training, 0 to 0.9.

    Raises:
        ArgumentError: If an argument is out of range.
    """

    description: ClassVar[str] = "linear layers with ReLU, for small images and for vectors"
    is_small: ClassVar[bool] = True
    takes_task_weights: ClassVar[bool] = True

    def __init__(
        self,
        *,
        image_shape: ImageShape,
        hidden: int = 256,
        depth: int = 2,
        out_features: int = 64,
        norm: MLPNorm = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(image_shape=image_shape)
        hidden = check_integer("hidden", hidden, low=1)
        depth = check_integer("depth", depth, low=0)
        out_features = check_integer("out_features", out_features, low=1)
        check_choice("norm", norm, get_args(MLPNorm))
        self.feature_shape = (out_features, 1, 1)
        widths = [prod(self.image_shape)] + [hidden] * depth
        # Normalization over images removes whatever a bias adds.
        has_bias = norm in ("none", "layer")
        self.layers = nn.ModuleList(
            nn.Linear(widths[at], hidden, bias=has_bias) for at in range(depth)
        )
        self.norms = nn.ModuleList(
            nn.LayerNorm(hidden) if norm == "layer" else build_norm(norm, hidden)
            for _ in range(depth)
        )
        self.dropout = nn.Dropout(check_number("dropout", dropout, low=0, high=0.9))
        self.last = nn.Linear(widths[-1], out_features, bias=False)

    def compute_maps(self, images: Tensor, n_tasks: int) -> Tensor:
        """Return the features as maps of one pixel, `(tasks * images) x out_features x 1 x 1`."""
        rows = images.flatten(1)
        if self.last.weight.ndim == 3:  # weights for each task
            rows = torch.unflatten(rows, 0, (n_tasks, -1))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            rows = self.dropout(relu(_normalize(norm, _apply(layer, rows), n_tasks)))
        return _apply(self.last, rows).reshape(-1, *self.feature_shape)


# Rows are `(tasks * images) x width`. With weights for each task, `tasks x` their shape, rows are
# `tasks x images x width`.


def _apply(layer: nn.Module, rows: Tensor) -> Tensor:
    """Apply a linear layer."""
    assert isinstance(layer, nn.Linear)
    if rows.ndim == 2:
        return linear(rows, layer.weight, layer.bias)
    weight, bias = layer.weight.transpose(1, 2), layer.bias
    return torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias[:, None], rows, weight)


def _normalize(norm: nn.Module, rows: Tensor, n_tasks: int) -> Tensor:
    """Apply a normalization layer."""
    if isinstance(norm, nn.Identity):
        return rows
    if rows.ndim == 3:
        return _normalize_tasks(norm, rows)
    if isinstance(norm, nn.LayerNorm):
        return layer_norm(rows, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    return normalize(norm, rows[:, :, None, None], n_tasks)[:, :, 0, 0]


def _normalize_tasks(norm: Any, rows: Tensor) -> Tensor:
    """Normalize over the images of each task, or over each image if `norm` is a `LayerNorm`."""
    axis = -1 if isinstance(norm, nn.LayerNorm) else 1
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    centered = wide - wide.mean(axis, keepdim=True)
    variance = (centered * centered).mean(axis, keepdim=True)
    scale = (variance + norm.eps).rsqrt() * norm.weight[:, None]
    normalized: Tensor = centered * scale + norm.bias[:, None]
    return normalized.to(rows.dtype)
