"""MetaOptNet-RR: ridge regression on the support features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adaptask.arguments import check_number
from adaptask.backbones import Backbone
from adaptask.learners.embedding import EmbeddingLearner


class MetaOptNetRidge(EmbeddingLearner):
    """Classify queries by ridge regression from support features to class indicators.

    With support features X and Y, 1 where a point belongs to a class, the logits of a query are

        2 scale f(x) X' (X X' + regularisation I)^-1 Y.

    Lee et al., *Meta-Learning with Differentiable Convex Optimization* (2019). Their code hands
    the same problem to a solver of quadratic programs, under constraints that say nothing; this is
    its solution, the factor 2 included.

    Args:
        backbone: Maps images to features.
        regularisation: Weight of the squared norm, lambda.
        scale: Where the learnt factor of the logits starts.
        label_smoothing: Share of the right answer that training gives to the other classes.

    Raises:
        ArgumentError: If an argument cannot be used.
    """

    def __init__(
        self,
        *,
        backbone: Backbone,
        regularisation: float = 50.0,
        scale: float = 1.0,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(backbone=backbone, label_smoothing=label_smoothing)
        self.regularisation = check_number("regularisation", regularisation, low=1e-6, high=1e12)
        self.scale = nn.Parameter(torch.tensor(check_number("scale", scale, low=1e-6, high=1e6)))

    def _classify(self, support: Tensor, query: Tensor) -> Tensor:
        weights = ridge_weights(support.double(), self.regularisation).to(query.dtype)
        return 2 * self.scale * (query @ weights)


def ridge_weights(support: Tensor, regularisation: float | Tensor) -> Tensor:
    """Return the weights of ridge regression to class indicators, `tasks x features x way`.

    By the matrix of inner products (Woodbury), which is `support x support` however many features
    there are.

    Args:
        support: `tasks x way x shot x features`, float64: products of large features need it.
        regularisation: Weight of the squared norm.
    """
    n_way, n_shot = support.shape[1:3]
    support = support.flatten(1, 2)
    identity = torch.eye(n_way * n_shot, dtype=support.dtype, device=support.device)
    targets = torch.eye(n_way, dtype=support.dtype, device=support.device)
    targets = targets.repeat_interleave(n_shot, dim=0)
    gram = support @ support.transpose(1, 2) + regularisation * identity
    # Positive definite by construction; the plain `cholesky` would ask the device whether it is,
    # and `cholesky_solve` does not fit into a CUDA graph.
    factor = torch.linalg.cholesky_ex(gram).L
    half = torch.linalg.solve_triangular(factor, targets, upper=False)
    coefficients: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return support.transpose(1, 2) @ coefficients
