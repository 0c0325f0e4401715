"""Normalisation layers: over all images of the step, over each task by itself, or none."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from adaptask.arguments import check_choice, check_integer, check_number

NORMS = ("batch", "task", "none")
"""`batch`: statistics of all images of a step, running ones in evaluation. `task`: statistics of
the images of each task, support and queries together, in training and in evaluation. `none`."""


class TaskNorm(nn.Module):
    """Batch normalisation of each task by itself, in training and in evaluation.

    For channel c of task t: y = weight_c (x - mean_tc) / sqrt(variance_tc + eps) + bias_c, mean
    and (biased) variance over images, height and width of that task. Nothing is remembered
    between calls. Predictions are transductive: those for one query depend on the others.

    Written out in elementary operations: the second derivative of torch's own batch
    normalisation is off by up to 1e-3 under `grad(vmap(grad))`.

    Raises:
        ArgumentError: If an argument cannot be used.
    """

    def __init__(self, n_channels: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        n_channels = check_integer("n_channels", n_channels, low=1)
        self.eps = check_number("eps", eps, low=0, high=math.inf)
        self.weight = nn.Parameter(torch.ones(n_channels))
        self.bias = nn.Parameter(torch.zeros(n_channels))

    def forward(self, maps: Tensor, n_tasks: int = 1) -> Tensor:
        """Normalise maps, `(tasks * images) x channels x height x width`."""
        # Half precision cannot hold the sums; as torch's own, they are taken in float32.
        wide = maps.to(torch.promote_types(maps.dtype, torch.float32))
        tasks = torch.unflatten(wide, 0, (n_tasks, -1))
        centred = tasks - tasks.mean((1, 3, 4), keepdim=True)
        # Not square() nor addcmul(): their derivatives take half as long again.
        variance = (centred * centred).mean((1, 3, 4), keepdim=True)
        scale = (variance + self.eps).rsqrt() * self.weight[:, None, None]
        normalised = centred * scale + self.bias[:, None, None]
        return normalised.flatten(0, 1).to(maps.dtype)

    def extra_repr(self) -> str:
        """Show the size in `print(backbone)`."""
        return f"{len(self.weight)}, eps={self.eps}"


def build_norm(norm: str, n_channels: int) -> nn.Module:
    """Build a normalisation layer by its name in `NORMS`.

    Raises:
        ArgumentError: If there is none of that name.
    """
    check_choice("norm", norm, NORMS)
    if norm == "task":
        return TaskNorm(n_channels)
    return nn.BatchNorm2d(n_channels) if norm == "batch" else nn.Identity()


def normalise(norm: nn.Module, maps: Tensor, n_tasks: int) -> Tensor:
    """Apply a layer to maps, `(tasks * images) x channels x height x width`."""
    # Only this one is told: torch's layers can then be exchanged, as for several devices.
    normalised: Tensor = norm(maps, n_tasks) if isinstance(norm, TaskNorm) else norm(maps)
    return normalised
