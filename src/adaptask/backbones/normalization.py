"""Normalization layers: over all images of a step, over each task separately, or none."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from adaptask.arguments import check_choice

Norm = Literal["batch", "task", "none"]
NORMS: tuple[str, ...] = get_args(Norm)
"""`batch`: statistics of all images of a step, running averages in evaluation. `task`: statistics
of the images of each task, support and queries together, in training and evaluation. `none`."""


class TaskNorm(nn.Module):
    """Batch normalization of each task separately, in training and in evaluation.

    For channel c of task t: y = weight_c (x - mean_tc) / sqrt(variance_tc + eps) + bias_c, with
    mean and (biased) variance over images, height and width of that task. There are no running
    averages. Predictions are transductive: the prediction for a query depends on the others.

    Implemented with elementary operations: the second derivative of torch's own batch
    normalization is off by up to 1e-3 under `grad(vmap(grad))`.
    """

    def __init__(self, n_channels: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(n_channels))
        self.bias = nn.Parameter(torch.zeros(n_channels))

    def forward(self, maps: Tensor, n_tasks: int = 1) -> Tensor:
        """Normalize maps, `(tasks * images) x channels x height x width`."""
        # Half precision cannot hold the sums. Like torch, sum in float32.
        wide = maps.to(torch.promote_types(maps.dtype, torch.float32))
        tasks = torch.unflatten(wide, 0, (n_tasks, -1))
        centered = tasks - tasks.mean((1, 3, 4), keepdim=True)
        # Not square() or addcmul(): their derivatives take 50 % longer.
        variance = (centered * centered).mean((1, 3, 4), keepdim=True)
        scale = (variance + self.eps).rsqrt() * self.weight[:, None, None]
        normalized = centered * scale + self.bias[:, None, None]
        return normalized.flatten(0, 1).to(maps.dtype)

    def extra_repr(self) -> str:
        """Show the number of channels and eps in `print(backbone)`."""
        return f"{len(self.weight)}, eps={self.eps}"


def build_norm(norm: str, n_channels: int) -> nn.Module:
    """Build a normalization layer by its name in `NORMS`.

    Raises:
        ArgumentError: If there is no such name.
    """
    check_choice("norm", norm, NORMS)
    if norm == "task":
        return TaskNorm(n_channels)
    return nn.BatchNorm2d(n_channels) if norm == "batch" else nn.Identity()


def normalize(norm: nn.Module, maps: Tensor, n_tasks: int) -> Tensor:
    """Apply a layer to maps, `(tasks * images) x channels x height x width`."""
    # Only TaskNorm gets n_tasks, so that a BatchNorm2d can be replaced by a SyncBatchNorm.
    normalized: Tensor = norm(maps, n_tasks) if isinstance(norm, TaskNorm) else norm(maps)
    return normalized
