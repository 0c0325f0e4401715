"""Batch normalization over the images of all processes, as one process would do it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from adaptask.training.group import Group


class SharedBatchNorm(_BatchNorm):
    """A `torch.nn.BatchNorm` layer with the statistics of the images of all processes.

    All processes have the same number of images. The forward and the backward pass send a message
    each, of two numbers per channel. `torch.nn.SyncBatchNorm` does the same, but only on GPUs.
    Gradients of gradients are not supported.

    Args:
        layer: The layer to replace; its parameters and statistics are shared with it.
        group: The processes.
    """

    def __init__(self, layer: _BatchNorm, group: Group) -> None:
        super().__init__(layer.num_features, layer.eps, layer.momentum, layer.affine)
        self.weight, self.bias = layer.weight, layer.bias
        for name, buffer in layer.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        self.train(layer.training)
        self.group = group

    def forward(self, maps: Tensor) -> Tensor:
        """Normalize maps, `images x channels x ...`."""
        if not self.training:
            return super().forward(maps)
        normalized, mean, variance = _Normalize.apply(  # type: ignore[no-untyped-call]
            maps, self.weight, self.bias, self.eps, self.group
        )
        self._remember(mean, variance, self.group.size * maps.numel() // maps.shape[1])
        result: Tensor = normalized
        return result

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, n_values: int) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share: Tensor | float | None = self.momentum
        if share is None:
            share = 1 / self.num_batches_tracked.to(mean.dtype)  # torch 2.6 does not cast it
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance * (n_values / max(n_values - 1, 1)), share)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002, torch's name for it
        del input


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, maps: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, group: Group
    ) -> tuple[Tensor, Tensor, Tensor]:
        own_mean, own_variance = _moments(maps)
        # In float64 the difference of squares below loses nothing that matters.
        own_mean, own_variance = own_mean.double(), own_variance.double()
        own = torch.stack((own_mean, own_variance + own_mean.square()))
        mean, square = group.sum(own) / group.size
        variance = square - mean.square()
        mean, variance = mean.to(_wide(maps)), variance.to(_wide(maps))
        ctx.save_for_backward(maps, weight, mean, torch.rsqrt(variance + eps))
        ctx.group = group
        ctx.mark_non_differentiable(mean, variance)
        normalized = batch_norm(maps, mean, variance, weight, bias, training=False, eps=eps)
        return normalized, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight, mean, scale = ctx.saved_tensors
        axes = [axis for axis in range(maps.ndim) if axis != 1]

        def wide(channels: Tensor) -> Tensor:
            return channels.view(-1, *(1 for _ in axes[1:]))

        normal = (maps - wide(mean)) * wide(scale)
        own = torch.stack((outer.sum(axes, dtype=scale.dtype), (outer * normal).sum(axes)))
        n_values = ctx.group.size * maps.numel() // maps.shape[1]
        level, slope = ctx.group.sum(own.double()).to(scale.dtype) / n_values
        factor = scale if weight is None else scale * weight
        onto_maps = (outer - wide(level) - normal * wide(slope)) * wide(factor)
        onto_affine = (None, None) if weight is None else (own[1], own[0])
        return onto_maps.to(maps.dtype), *onto_affine, None, None


def _wide(maps: Tensor) -> torch.dtype:
    return torch.promote_types(maps.dtype, torch.float32)


def _moments(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance of every channel."""
    maps = maps.to(_wide(maps))
    if maps.device.type == "cpu":
        # Much faster than var_mean on a CPU, for maps in the channels-last layout.
        mean, variance = torch.batch_norm_update_stats(maps, None, None, 0.0)
        return mean, variance
    axes = [axis for axis in range(maps.ndim) if axis != 1]
    variance, mean = torch.var_mean(maps, axes, correction=0)
    return mean, variance


def share_statistics(module: nn.Module, group: Group) -> None:
    """Replace every batch normalization in a module by one over the images of all processes.

    Parameters and the names in `state_dict()` do not change. Layers without running statistics are
    left as they are: they normalize each task by itself.
    """
    if group.size == 1:
        return
    for name, child in module.named_children():
        if isinstance(child, _BatchNorm) and child.track_running_stats:
            if not isinstance(child, SharedBatchNorm):
                setattr(module, name, SharedBatchNorm(child, group))
        else:
            share_statistics(child, group)
