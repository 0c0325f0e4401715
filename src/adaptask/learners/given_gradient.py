"""A loss whose gradient has been computed already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _GivenGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, n_parameters: int, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors[n_parameters:])
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.saved_tensors
        onto_parameters = [gradient * outer.to(gradient.dtype) for gradient in gradients]
        return None, None, *onto_parameters, *(None for _ in gradients)


def with_gradient(
    loss: Tensor, parameters: Sequence[Tensor], gradients: Sequence[Tensor]
) -> Tensor:
    """Return `loss` as a function of `parameters` that has these gradients.

    `backward()` then does all that it does elsewhere: it accumulates, and calls hooks.

    Args:
        loss: Scalar.
        parameters: What the loss is to depend on.
        gradients: One of the same shape for each of them.
    """
    detached = [gradient.detach() for gradient in gradients]
    result: Tensor = _GivenGradient.apply(  # type: ignore[no-untyped-call]
        loss.detach(), len(parameters), *parameters, *detached
    )
    return result
