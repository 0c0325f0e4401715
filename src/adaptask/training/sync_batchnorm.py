"""Batch normalization with the statistics of the images of all processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from adaptask.errors import ArgumentError
from adaptask.learners.base import Learner
from adaptask.training.distributed import ProcessGroup


class SyncBatchNorm(_BatchNorm):
    """A `torch.nn.BatchNorm` layer with the statistics of the images of all processes.

    All processes have the same number of images. The forward and the backward pass send a message
    each, of two numbers per channel. `torch.nn.SyncBatchNorm` does this only on GPUs.

    Args:
        layer: The layer to replace; its parameters and statistics are shared with it.
        group: The processes.
    """

    def __init__(self, layer: _BatchNorm, group: ProcessGroup) -> None:
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
        wide = maps.to(torch.promote_types(maps.dtype, torch.float32))
        axes = [axis for axis in range(maps.ndim) if axis != 1]
        variance, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
        # In float64 the difference of squares is exact enough.
        variance, mean = variance.double(), mean.double()
        own = torch.stack((mean, variance + mean.square()))
        total: Tensor = _Sum.apply(own, self.group)  # type: ignore[no-untyped-call]
        mean, square = total / self.group.size
        variance = square - mean.square()
        self._update_statistics(
            mean.flatten(), variance.flatten(), self.group.size * maps[:, 0].numel()
        )
        scale = torch.rsqrt(variance + self.eps).to(wide.dtype)
        if self.affine:
            scale = scale * self.weight.view_as(scale)
        normalized: Tensor = (wide - mean.to(wide.dtype)) * scale
        if self.affine:
            normalized = normalized + self.bias.view_as(scale)
        return normalized.to(maps.dtype)

    @torch.no_grad()
    def _update_statistics(self, mean: Tensor, variance: Tensor, n_values: int) -> None:
        """Update the running statistics."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        dtype = self.running_mean.dtype
        share: Tensor | float | None = self.momentum
        if share is None:
            share = 1 / self.num_batches_tracked.to(dtype)  # torch 2.6 does not cast it
        unbiased = variance * (n_values / max(n_values - 1, 1))
        self.running_mean.lerp_(mean.to(dtype), share)
        self.running_var.lerp_(unbiased.to(dtype), share)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002, torch's name for it
        del input


class _Sum(torch.autograd.Function):
    """The sum over the processes; its gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return group.sum(own)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None]:
        return ctx.group.sum(outer), None


def convert_sync_batchnorm(module: nn.Module, group: ProcessGroup) -> None:
    """Replace every batch normalization in a module by `SyncBatchNorm`.

    Parameters and the names in `state_dict()` do not change. Layers without running statistics are
    left as they are: they normalize each task by itself. So are those that `Learner.freeze` has
    frozen: their statistics do not change.

    Raises:
        ArgumentError: If a layer does something else besides, such as an activation.
    """
    if group.size == 1:
        return
    learners = [part for part in module.modules() if isinstance(part, Learner)]
    frozen = {layer for one in learners for part in one.frozen for layer in part.modules()}
    _convert(module, group, frozen)


def _convert(module: nn.Module, group: ProcessGroup, frozen: set[nn.Module]) -> None:
    for name, child in module.named_children():
        if isinstance(child, SyncBatchNorm) or child in frozen:
            continue
        if isinstance(child, _BatchNorm) and child.track_running_stats:
            if type(child).forward not in (_BatchNorm.forward, nn.SyncBatchNorm.forward):
                raise ArgumentError(
                    f"several processes cannot share the statistics of the layer {name!r}: "
                    f"{type(child).__name__} is a batch normalization with a forward of its own. "
                    "Train in one process, or build the backbone with torch.nn.BatchNorm2d."
                )
            setattr(module, name, SyncBatchNorm(child, group))
        else:
            _convert(child, group, frozen)
