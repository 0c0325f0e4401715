"""Drawing and learning of samplers as kernels of their own, in Triton.

On a GPU the arithmetic of a sampler is nothing and its thirty small kernels are everything. These
do the same as `greedy_draw` and `PairPotentialSampler`: a draw of all tasks and all classes is one
launch, after the noise. Learning is in `adaptask.samplers.fused_learning`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptask.samplers.fused_learning import condense, fits, learn, n_warps
from adaptask.triton_names import constexpr, jit, tensor, tl, triton

__all__ = ["condense", "fits", "greedy_draw", "largest", "learn"]


@jit
def _draw(
    potentials: tensor,
    row_weights: tensor,
    noise: tensor,
    drawn: tensor,
    n_tasks: tensor,
    n_classes: tensor,
    n_way: tensor,
    width: constexpr,
) -> None:
    """Draw a task: the largest of log-weight minus log-noise, one class after the other."""
    task = tl.program_id(0)
    at = tl.arange(0, width)
    inside = at < n_classes
    log_weights = tl.load(row_weights + at, mask=inside, other=-float("inf"))
    exponential = tl.load(noise + task * n_classes + at, mask=inside, other=1.0)
    for k in range(n_way):
        score = tl.where(inside, log_weights - tl.log(exponential), -float("inf"))
        # What the next class needs is on its way while this one is being chosen.
        following = tl.minimum(k + 1, n_way - 1) * n_tasks + task
        exponential = tl.load(noise + following * n_classes + at, mask=inside, other=1.0)
        chosen = tl.argmax(score, 0)
        tl.store(drawn + task * n_way + k, chosen.to(tl.int64))
        row = tl.load(potentials + chosen * n_classes + at, mask=inside, other=-float("inf"))
        # The first class has been drawn by its row's sum; from then on rows add up.
        log_weights = tl.where(k == 0, row, log_weights + row)


def greedy_draw(log_potentials: Tensor, log_row_weights: Tensor, noise: Tensor) -> Tensor:
    """Return the classes of each task, `tasks x way` int64.

    Args:
        log_potentials: `classes x classes` float32.
        log_row_weights: `classes` float32.
        noise: `way x tasks x classes`, independent Exp(1) draws.
    """
    n_way, n_tasks, n_classes = noise.shape
    drawn = torch.empty(n_tasks, n_way, dtype=torch.int64, device=noise.device)
    width = triton.next_power_of_2(n_classes)
    _draw[(n_tasks,)](
        log_potentials,
        log_row_weights,
        noise,
        drawn,
        n_tasks,
        n_classes,
        n_way,
        width=width,
        num_warps=n_warps(width),
    )
    return drawn


@jit
def _choose(
    noise: tensor, drawn: tensor, n_classes: tensor, n_way: tensor, width: constexpr
) -> None:
    """Choose the classes of the largest numbers, the largest first."""
    task = tl.program_id(0)
    at = tl.arange(0, width)
    score = tl.load(noise + task * n_classes + at, mask=at < n_classes, other=-1.0)
    for k in range(n_way):
        chosen = tl.argmax(score, 0)
        tl.store(drawn + task * n_way + k, chosen.to(tl.int64))
        score = tl.where(at == chosen, -1.0, score)


def largest(noise: Tensor, n_way: int) -> Tensor:
    """Return the positions of the largest numbers of each row, `tasks x way` int64.

    What `topk` gives, in one launch.

    Args:
        noise: `tasks x classes` float32, not negative.
        n_way: How many.
    """
    n_tasks, n_classes = noise.shape
    drawn = torch.empty(n_tasks, n_way, dtype=torch.int64, device=noise.device)
    width = triton.next_power_of_2(n_classes)
    _choose[(n_tasks,)](noise, drawn, n_classes, n_way, width=width, num_warps=n_warps(width))
    return drawn
