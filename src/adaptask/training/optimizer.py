"""Optimizers by name, and learning-rate schedules as plain functions of the step.

A schedule has no state that would have to be saved: the step decides the learning rate.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, optim

from adaptask.arguments import check_choice, check_integer, check_number
from adaptask.errors import ArgumentError, StateError

Schedule = Callable[[int, int], float]
"""Maps the step, counted from 0, and the number of steps to a factor on the learning rate."""

_OPTIMIZERS = ("adam", "sgd")


def build_optimizer(
    name: str,
    parameters: Iterable[Tensor],
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
) -> optim.Optimizer:
    """Build the optimizer of that name, with fused kernels.

    Args:
        name: `adam`, or `sgd` with Nesterov momentum.
        parameters: What is learned.
        lr: Learning rate, above 0.
        weight_decay: L2 penalty on all parameters; it is added to the gradient.
        momentum: Of `sgd`; 0 is plain SGD.

    Raises:
        ArgumentError: If an argument cannot be used.
    """
    check_choice("optimizer", name, _OPTIMIZERS)
    lr = check_number("lr", lr, low=0, high=math.inf, excludes_low=True)
    weight_decay = check_number("weight_decay", weight_decay, low=0, high=math.inf)
    momentum = check_number("momentum", momentum, low=0, high=1)
    if momentum == 1:
        raise ArgumentError("momentum must be below 1, or steps never stop growing; got 1.")
    parameters = list(parameters)
    if not parameters:
        raise ArgumentError(
            "there is nothing to learn: the learner has no parameters, or all are frozen. Choose a "
            "backbone that has some, such as linear or mlp, or an option of the learner, such as "
            "learn_temperature."
        )
    if name == "adam":
        return optim.Adam(parameters, lr=lr, weight_decay=weight_decay, fused=True)
    return optim.SGD(
        parameters,
        lr=lr,
        weight_decay=weight_decay,
        momentum=momentum,
        nesterov=momentum > 0,
        fused=True,
    )


def load_optimizer(optimizer: optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the state of an optimizer, and give moments the memory layout of their weights.

    Fused kernels read both in the order of memory, and a run may be resumed with channels-last.

    Raises:
        StateError: If it has other settings, or moments of other shapes, which fused kernels would
            read beyond their end.
    """
    optimizer.load_state_dict(state)
    for group in optimizer.param_groups:
        for name, default in optimizer.defaults.items():
            is_number = type(default) in (int, float)
            if name not in group or (is_number and type(group[name]) not in (int, float, Tensor)):
                raise StateError(f"the state of the optimizer has no {name} that can be used.")
    for parameter, moments in optimizer.state.items():
        for name, value in moments.items():
            if not isinstance(value, Tensor) or value.ndim == 0:
                continue
            if value.shape != parameter.shape:
                raise StateError(
                    f"{name} of the optimizer must have the shape {tuple(parameter.shape)}; got "
                    f"{tuple(value.shape)}."
                )
            moments[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def constant(step: int, n_steps: int) -> float:
    """Keep the learning rate as it is."""
    del step, n_steps
    return 1.0


def cosine(step: int, n_steps: int) -> float:
    """Decay from 1 at the first step to 0 after the last, along half a cosine."""
    return 0.5 * (1 + math.cos(math.pi * min(step / n_steps, 1)))


@dataclass(frozen=True)
class StepSchedule:
    """Multiply by `factors[i]` from step `milestones[i]` on, and by 1 before the first.

    Raises:
        ArgumentError: If the two differ in length, or the milestones do not rise.
    """

    milestones: tuple[int, ...]
    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.milestones) != len(self.factors) or not self.milestones:
            raise ArgumentError(
                "the step schedule needs milestones and one factor for each; got "
                f"{len(self.milestones)} milestones and {len(self.factors)} factors."
            )
        for milestone in self.milestones:
            check_integer("a milestone", milestone, low=1)
        if any(later <= earlier for earlier, later in pairwise(self.milestones)):
            raise ArgumentError(f"milestones must rise; got {list(self.milestones)}.")
        for factor in self.factors:
            check_number("a factor", factor, low=0, high=math.inf)

    def __call__(self, step: int, n_steps: int) -> float:
        """Return the factor of the last milestone that was reached."""
        del n_steps
        return (1.0, *self.factors)[bisect_right(self.milestones, step)]


def make_capturable(optimizer: optim.Optimizer) -> None:
    """Keep the learning rates on the device, so that a graph sees them change."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        if not isinstance(group["lr"], Tensor):
            device = group["params"][0].device
            group["lr"] = torch.tensor(float(group["lr"]), device=device)


def set_learning_rate(optimizer: optim.Optimizer, factor: float) -> None:
    """Set the learning rates to a factor times the initial ones."""
    for group in optimizer.param_groups:
        if "initial_lr" not in group:
            group["initial_lr"] = float(group["lr"])
        lr = group["initial_lr"] * factor
        if isinstance(group["lr"], Tensor):
            if group.get("host_lr") != lr:  # no kernel if nothing changes
                group["lr"].fill_(lr)
        else:
            group["lr"] = lr
        group["host_lr"] = lr


def optimizer_state(optimizer: optim.Optimizer) -> dict[str, Any]:
    """Return the state of an optimizer, the same with a CUDA graph and without."""
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        group["lr"] = group.pop("host_lr", None) or float(group["lr"])
        if "capturable" in group:
            group["capturable"] = False
    return state
