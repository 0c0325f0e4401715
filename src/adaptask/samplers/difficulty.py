"""Difficulty sampling: uniform tasks whose losses are weighted by how difficult they are."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from adaptask.arguments import check_choice, check_integer, check_number
from adaptask.errors import StateError
from adaptask.samplers.base import check_tensor
from adaptask.samplers.uniform import UniformSampler

Target = Literal["uniform", "easy", "hard", "curriculum"]
_WIDTH = 2.58
"""Targets lie within so many standard deviations of the mean: 99 % of a normal distribution."""
_LEAST_DEVIATION = 1e-12


class DifficultySampler(UniformSampler):
    """Draw uniform tasks, and weigh their losses as if tasks of other difficulty had been drawn.

    The difficulty of a task is its loss l. The losses of uniform tasks are taken for normal, with a
    running mean and variance. With z = (l - mean) / standard deviation, the importance weight of a
    task is

        w = target(z) / proposal(z)   if |z| <= 2.58, else 1,

    where the proposal is the standard normal density, cut off at 2.58, and the target is

        uniform:     the same density everywhere, 1 / 5.16,
        easy:        the same density below the mean, 1 / 2.58, and 0 above,
        hard:        the same density above the mean, 1 / 2.58, and 0 below,
        curriculum:  a normal density with deviation 1, cut off at 2.58, whose mean moves linearly
                     from -2.58 to 2.58 over `curriculum_steps` steps.

    The loss of a step is the sum of w l over its tasks, divided by their effective number
    (sum of w)^2 / sum of w^2, so that with weights of 1 it is the mean. They are 1 in the first
    `warmup` steps.

    For every loss, mean and variance are updated as

        mean <- momentum mean + (1 - momentum) l,
        variance <- momentum variance + (1 - momentum) (l - old mean)^2.

    Where the original is ambiguous or odd: the paper says little about the numbers, so 2.58, the
    momentum, the warm-up and the weight 1 beyond 2.58 are those of the published code. That last
    weight lets the very hardest tasks into `easy`, and the very easiest into `hard`. Its online
    version has the uniform target only. For the other targets losses, mean and variance are those
    of a learner that was trained before, in evaluation mode. Here all are online.

    Deviations: the published code updates mean and variance after each task of a step, so that they
    depend on the order of the tasks. Here all tasks of a step are weighed by those before the step,
    which are then updated once, by the means over the tasks with momentum^tasks. With one task per
    step both are the same. With one task per step the effective number is always 1: weights then
    scale the gradient, up to 13-fold for `uniform`, 27-fold for `easy` and `hard`, and 55-fold for
    `curriculum`.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        target: How difficulty is to be distributed: `uniform`, `easy`, `hard` or `curriculum`.
        momentum: How much of mean and variance is kept at each loss, 0 to 1.
        warmup: Number of first steps in which all weights are 1.
        curriculum_steps: Number of steps from the easiest to the hardest tasks of `curriculum`.
        seed: Seed of the random stream.
        device: Where the sampler works.

    Raises:
        ArgumentError: If a value is outside its range.

    Reference: Arnold et al., Uniform Sampling over Episode Difficulty, NeurIPS 2021.
    """

    description = "weighs uniform tasks by their difficulty (Arnold et al. 2021)"
    learns = True
    variants = ("target=easy", "target=hard", "target=curriculum")

    mean: Tensor
    """Scalar: the running mean of the losses."""
    variance: Tensor
    """Scalar: their running variance."""
    losses_seen: Tensor
    """Scalar int64: number of losses so far."""
    steps_weighed: Tensor
    """Scalar int64: number of calls of `weigh` so far."""

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        target: Target = "uniform",
        momentum: float = 0.9,
        warmup: int = 100,
        curriculum_steps: int = 20_000,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, device=device)
        self.target = check_choice("target", target, get_args(Target))
        self.momentum = check_number("momentum", momentum, low=0, high=1)
        self.warmup = check_integer("warmup", warmup, low=0)
        self.curriculum_steps = check_integer("curriculum_steps", curriculum_steps, low=1)
        for name in ("mean", "variance"):
            self.register_buffer(name, torch.zeros((), device=device))
        for name in ("losses_seen", "steps_weighed"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64, device=device))

    @torch.no_grad()
    def weigh(self, losses: Tensor) -> Tensor:
        """Return how much each task of a step counts, `tasks`, and learn from the losses.

        The loss of the step is the mean over tasks of weight * loss. A loss that is not finite gets
        the weight of a task beyond 2.58, and nothing is learned from it.

        Args:
            losses: The loss of each task, `tasks`.

        Raises:
            ArgumentError: If they are not one floating-point number per task.
        """
        check_tensor("losses", losses, "floating-point", self.device, ("tasks",))
        wide = losses.detach().to(self.mean.dtype)
        deviation = self.variance.sqrt().clamp_min(_LEAST_DEVIATION)
        weights = self.importance((wide - self.mean) / deviation)
        weights = weights * len(losses) / effective_number(weights)
        is_warm = (self.steps_weighed >= self.warmup) & (self.losses_seen >= 2)
        self._observe(wide)
        return torch.where(is_warm, weights, 1.0).to(losses.dtype)

    def importance(self, z: Tensor) -> Tensor:
        """Return target(z) / proposal(z) of standardized losses, 1 for those beyond 2.58."""
        inside = z.abs() <= _WIDTH
        z = torch.where(inside, z, 0.0)
        proposal = _normal_density(z) / math.erf(_WIDTH / math.sqrt(2))
        if self.target == "curriculum":
            progress = (self.steps_weighed / self.curriculum_steps).clamp_max(1)
            center = (2 * progress - 1) * _WIDTH
            cut_off = torch.special.ndtr(_WIDTH - center) - torch.special.ndtr(-_WIDTH - center)
            target = _normal_density(z - center) / cut_off
        elif self.target == "uniform":
            target = torch.full_like(z, 1 / (2 * _WIDTH))
        else:
            is_possible = z >= 0 if self.target == "hard" else z <= 0
            target = is_possible.to(z.dtype) / _WIDTH
        return torch.where(inside, target / proposal, 1.0)

    def _observe(self, losses: Tensor) -> None:
        """Update mean and variance; no value is read on the host."""
        is_finite = losses.isfinite()
        count = is_finite.sum()
        losses = torch.where(is_finite, losses, 0.0)
        mean = losses.sum() / count.clamp_min(1)
        # The first losses have only each other to be compared with.
        center = torch.where(self.losses_seen == 0, mean, self.mean)
        squares = torch.where(is_finite, (losses - center).square(), 0.0)
        variance = squares.sum() / count.clamp_min(1)
        kept = self.momentum ** count.to(mean.dtype)
        # One loss has a mean, two have a variance.
        for running, new, n_needed in ((self.mean, mean, 1), (self.variance, variance, 2)):
            is_first = (self.losses_seen < n_needed) & (count > 0)
            running.copy_(torch.where(is_first, new, torch.lerp(new, running, kept)))
        self.losses_seen += count
        self.steps_weighed += 1

    def _check_buffers(self, buffers: dict[str, Tensor]) -> None:
        finite = all(bool(buffers[name].isfinite()) for name in ("mean", "variance"))
        counts = min(int(buffers[name]) for name in ("losses_seen", "steps_weighed"))
        if not finite or float(buffers["variance"]) < 0 or counts < 0:
            raise StateError(
                "mean and variance of the losses must be finite, variance and counts not negative; "
                f"got { ({name: value.item() for name, value in buffers.items()}) }."
            )


def effective_number(weights: Tensor) -> Tensor:
    """Return how many equal weights are as good as these, (sum of w)^2 / sum of w^2.

    Without any weight above 0, it is the number of weights.
    """
    total, squares = weights.sum(), weights.square().sum()
    return torch.where(squares > 0, total.square() / squares, len(weights))


def _normal_density(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
