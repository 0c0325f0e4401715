"""A Conv-4 whose weights differ for each task, run for all tasks at once, differentiable twice.

The tasks lie side by side in the channels: maps are `images x (tasks * channels) x height x
width`, channels last in memory. A convolution then has one group per task, and operations that
treat each channel separately, normalization and pooling, need no change. Torch's own second
derivatives of these layers take most of the time of a MAML step on a CPU: they convert the memory
layout back and forth, apply normalization and ReLU to maps of which three quarters are then pooled
away, and `vmap` of torch's batch normalization is off by up to 1e-3. Here each derivative is
written out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, relu

from adaptask.backbones import Conv4, TaskNorm

Weights = dict[str, Tensor]
"""Weights of every task by parameter name, each of shape `tasks x` that of the parameter."""

_aten = torch.ops.aten


def is_supported(backbone: nn.Module) -> bool:
    """Return whether `conv4_features` can run this backbone."""
    return type(backbone) is Conv4 and all(
        isinstance(block.norm, nn.BatchNorm2d | TaskNorm) for block in backbone.blocks
    )


def conv4_features(backbone: Any, weights: Weights, images: Tensor) -> Tensor:
    """Return the features of images under the weights of every task.

    Args:
        backbone: A Conv-4 that `is_supported`; its own parameters are not used.
        weights: The weights of every task.
        images: `tasks x images x channels x height x width`.

    Returns:
        `tasks x images x n_features`.
    """
    n_tasks, n_images = images.shape[:2]
    maps = images.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
    for at, block in enumerate(backbone.blocks):
        prefix = f"backbone.blocks.{at}"
        maps = convolution_block(
            maps,
            weights[f"{prefix}.convolution.weight"],
            weights[f"{prefix}.norm.weight"],
            weights[f"{prefix}.norm.bias"],
            eps=block.norm.eps,
            padding=list(block.convolution.padding),
            pool=block.pool,
        )
    maps = maps.reshape(n_images, n_tasks, *backbone.feature_shape).transpose(0, 1)
    return maps.mean((-2, -1)) if backbone.mean_pool else maps.flatten(2)


def convolution_block(
    maps: Tensor,
    weight: Tensor,
    scale: Tensor,
    shift: Tensor,
    *,
    eps: float,
    padding: list[int],
    pool: bool,
) -> Tensor:
    """Apply convolution, normalization, ReLU and pooling, with the weights of every task.

    Pooling comes first: the maximum of an increasing function is that function of the maximum. To
    make normalization increasing, a negative scale passes its sign to the filter. The convolution
    has no bias, because normalization would remove it.

    Args:
        maps: `images x (tasks * channels) x height x width`.
        weight: `tasks x filters x channels x 3 x 3`.
        scale: Scale of the normalization, `tasks x filters`.
        shift: Shift of the normalization, `tasks x filters`.
        eps: Added to the variance.
        padding: Vertical and horizontal padding of the convolution.
        pool: Whether to apply 2 x 2 max-pooling.

    Returns:
        `images x (tasks * filters) x height x width`.
    """
    n_tasks = len(scale)
    sign = torch.where(scale < 0, -1.0, 1.0).to(weight.dtype)
    signed = (weight * sign[:, :, None, None, None]).flatten(0, 1)
    if torch.is_autocast_enabled(maps.device.type):
        half = torch.get_autocast_dtype(maps.device.type)
        maps, signed = maps.to(half), signed.to(half)
    signed = signed.contiguous(memory_format=torch.channels_last)
    convolved = _apply(_Convolution, maps, signed, padding, n_tasks)
    pooled, mean, variance = _apply(_PoolAndMoments, convolved, pool)
    slope = (scale * sign).view(1, -1, 1, 1) * torch.rsqrt(variance + eps)
    level = shift.reshape(1, -1, 1, 1) - mean * slope
    return relu(torch.addcmul(level, pooled.to(level.dtype), slope))


class _Convolution(torch.autograd.Function):
    """y = w * x. Its derivatives are the next two classes; theirs are again convolutions."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, padding: list[int], groups: int) -> Tensor:
        ctx.save_for_backward(maps, weight)
        ctx.padding, ctx.groups = padding, groups
        return conv2d(maps, weight, padding=padding, groups=groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight = ctx.saved_tensors
        given = (gradient, weight, maps, ctx.padding, ctx.groups)
        onto_maps = _apply(_TowardsMaps, *given) if ctx.needs_input_grad[0] else None
        onto_weight = _apply(_TowardsWeight, *given) if ctx.needs_input_grad[1] else None
        return onto_maps, onto_weight, None, None


class _TowardsMaps(torch.autograd.Function):
    """The gradient of a convolution towards its maps: bilinear in gradient and weight."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, weight: Tensor, maps: Tensor, padding: list[int], groups: int
    ) -> Tensor:
        ctx.save_for_backward(gradient, weight)
        ctx.padding, ctx.groups = padding, groups
        return _backward(gradient, maps, weight, ctx, towards=0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        gradient, weight = ctx.saved_tensors
        onto_gradient = conv2d(outer, weight, padding=ctx.padding, groups=ctx.groups)
        return onto_gradient, _backward(gradient, outer, weight, ctx, towards=1), None, None, None


class _TowardsWeight(torch.autograd.Function):
    """The gradient of a convolution towards its weight: bilinear in gradient and maps."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, weight: Tensor, maps: Tensor, padding: list[int], groups: int
    ) -> Tensor:
        ctx.save_for_backward(gradient, maps)
        ctx.padding, ctx.groups = padding, groups
        return _backward(gradient, maps, weight, ctx, towards=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        gradient, maps = ctx.saved_tensors
        onto_gradient = conv2d(maps, outer, padding=ctx.padding, groups=ctx.groups)
        onto_maps = None
        if ctx.needs_input_grad[2]:
            onto_maps = _backward(gradient, maps, outer, ctx, towards=0)
        return onto_gradient, None, onto_maps, None, None


def _apply(function: Any, *arguments: Any) -> Any:
    """Apply an autograd function; torch does not annotate `apply`."""
    return function.apply(*arguments)


def _backward(gradient: Tensor, maps: Tensor, weight: Tensor, ctx: Any, *, towards: int) -> Tensor:
    """Return the gradient of a convolution towards its maps (0) or its weight (1)."""
    wanted = [towards == 0, towards == 1, False]
    strides, dilation, output_padding = [1, 1], [1, 1], [0, 0]
    gradients = _aten.convolution_backward(
        *(gradient, maps, weight, None, strides, ctx.padding, dilation, False, output_padding),
        *(ctx.groups, wanted),
    )
    result: Tensor = gradients[towards]
    return result


class _PoolAndMoments(torch.autograd.Function):
    """The 2 x 2 maxima of maps, and mean and variance of every channel before pooling."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, pool: bool) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = _moments(maps)
        pooled, places = _aten.max_pool2d_with_indices(maps, [2, 2]) if pool else (maps, None)
        ctx.save_for_backward(maps, mean, places)
        return pooled, mean, variance

    @staticmethod
    def backward(
        ctx: Any, d_pooled: Tensor, d_mean: Tensor, d_variance: Tensor
    ) -> tuple[Tensor, None]:
        maps, mean, places = ctx.saved_tensors
        n_values = maps.numel() // maps.shape[1]
        # d variance / d y = 2 (y - mean) / n, d mean / d y = 1 / n: linear in y for each channel.
        slope = d_variance * (2 / n_values)
        offset = d_mean / n_values - slope * mean
        return _apply(_Unpool, d_pooled, slope, offset, maps, places), None


class _Unpool(torch.autograd.Function):
    """slope * maps + offset, plus the gradient of the pooled maps at the places of the maxima."""

    @staticmethod
    def forward(
        ctx: Any,
        d_pooled: Tensor,
        slope: Tensor,
        offset: Tensor,
        maps: Tensor,
        places: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(slope, maps, places)
        window, none, one = [2, 2], [0, 0], [1, 1]
        spread: Tensor = (
            d_pooled.clone()
            if places is None
            else _aten.max_pool2d_with_indices_backward(
                d_pooled, maps, window, window, none, one, False, places
            )
        )
        if slope.dtype == maps.dtype:
            return spread.addcmul_(maps, slope).add_(offset)
        # slope * maps and offset nearly cancel, so not in half precision.
        return spread.add_(torch.addcmul(offset, maps.to(slope.dtype), slope))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        slope, maps, places = ctx.saved_tensors
        onto_pooled = outer
        if places is not None:
            # As rows of channels, which is their layout in memory.
            rows, at = outer.permute(0, 2, 3, 1), places.permute(0, 2, 3, 1)
            chosen = rows.flatten(1, 2).gather(1, at.flatten(1, 2))
            onto_pooled = chosen.view(at.shape).permute(0, 3, 1, 2)
        wide = _wide(outer.dtype)
        return (
            onto_pooled,
            (outer.to(wide) * maps).sum((0, 2, 3), keepdim=True),
            outer.sum((0, 2, 3), keepdim=True, dtype=wide),
            (outer * slope).to(outer.dtype),
            None,
        )


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return at least float32: half precision cannot hold sums over maps."""
    return torch.promote_types(dtype, torch.float32)


def _moments(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and (biased) variance of every channel, `1 x channels x 1 x 1` each."""
    maps = maps.to(_wide(maps.dtype))
    if maps.device.type == "cpu":
        # On a CPU, 16 times as fast as var_mean for channels-last maps.
        mean, variance = torch.batch_norm_update_stats(maps, None, None, 0.0)
    else:
        variance, mean = torch.var_mean(maps, (0, 2, 3), correction=0)
    return mean.view(1, -1, 1, 1), variance.view(1, -1, 1, 1)
