"""MetaOptNet: ridge regression or a support vector machine on the support features.

Lee et al., *Meta-Learning with Differentiable Convex Optimization* (2019).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from adaptask.arguments import check_number
from adaptask.backbones import Backbone
from adaptask.errors import TrainingError
from adaptask.learners.base import EmbeddingLearner
from adaptask.learners.svm_solver import TOLERANCE, solve_crammer_singer


class MetaOptNetRidge(EmbeddingLearner):
    """Classify queries by ridge regression from support features to class indicators.

    With support features X and the indicators Y, 1 if a point belongs to a class and else 0, the
    logits of a query are

        2 scale f(x) X' (X X' + regularization I)^-1 Y.

    The published code passes the same problem to a solver of quadratic programs, with constraints
    that have no effect. This is its solution, including the factor 2.

    Args:
        backbone: Maps images to features.
        regularization: Weight of the squared norm, lambda.
        scale: Initial value of the learned factor of the logits.
        label_smoothing: Share of the target probability that training gives to the other classes.

    Raises:
        ArgumentError: If an argument is out of range.
    """

    description: ClassVar[str] = "fits ridge regression to the support features (Lee et al. 2019)"

    def __init__(
        self,
        *,
        backbone: Backbone,
        regularization: float = 50.0,
        scale: float = 1.0,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(backbone=backbone, label_smoothing=label_smoothing)
        self.regularization = check_number("regularization", regularization, low=1e-6, high=1e12)
        self.scale = nn.Parameter(torch.tensor(check_number("scale", scale, low=1e-6, high=1e6)))

    def classify(self, support: Tensor, query: Tensor) -> Tensor:
        """Return the scaled predictions of the regression."""
        weights = ridge_weights(support.double(), self.regularization).to(query.dtype)
        return 2 * self.scale * (query @ weights)


class MetaOptNetSVM(EmbeddingLearner):
    """Classify queries by a multi-class linear support vector machine fitted to the support set.

    The weights minimize  1/2 sum_k |w_k|^2 + C sum_i max_k (w_k x_i - w_yi x_i + 1 - [k = y_i]);
    the logits of a query are scale w_k f(x). Gradients go through the fitted machine.

    The published code adds the identity to the matrix of inner products of the support features,
    for its solver; `regularization=1` does the same.

    If the machine of a task cannot be fitted to `TOLERANCE`, the CPU raises an error at once. On
    other devices the logits of the task are NaN, which training and evaluation report.

    Args:
        backbone: Maps images to features.
        penalty: Weight of the hinge losses, C.
        regularization: Number added to the squared lengths of the support features; 1 in the
            published code.
        scale: Initial value of the learned factor of the logits.
        label_smoothing: Share of the target probability that training gives to the other classes.

    Raises:
        ArgumentError: If an argument is out of range.
    """

    description: ClassVar[str] = "fits an SVM to the support features (Lee et al. 2019)"

    def __init__(
        self,
        *,
        backbone: Backbone,
        penalty: float = 0.1,
        regularization: float = 0.0,
        scale: float = 1.0,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(backbone=backbone, label_smoothing=label_smoothing)
        self.penalty = check_number("penalty", penalty, low=1e-6, high=1e6)
        self.regularization = check_number("regularization", regularization, low=0, high=1e6)
        self.scale = nn.Parameter(torch.tensor(check_number("scale", scale, low=1e-6, high=1e6)))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def classify(self, support: Tensor, query: Tensor) -> Tensor:
        """Return the scaled scores of the machine.

        Raises:
            TrainingError: If a machine cannot be fitted, on the CPU.
        """
        n_way = support.shape[1]
        # Products of large or nearly dependent features need float64.
        points = support.flatten(1, 2).double()
        gram = points @ points.transpose(1, 2)
        if self.regularization > 0:
            identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
            gram = gram + self.regularization * identity
        alpha, error = solve_crammer_singer(gram, n_way=n_way, penalty=self.penalty)
        solved = error <= TOLERANCE  # False if the error is NaN
        if points.device.type == "cpu":
            self._check(solved)
        weights = (alpha @ points).masked_fill(~solved.view(-1, 1, 1), torch.nan)
        return self.scale * (query @ weights.to(query.dtype).transpose(1, 2))

    def _check(self, solved: Tensor) -> None:
        n_unsolved = solved.tolist().count(False)
        if n_unsolved:
            raise TrainingError(
                f"the support vector machines of {n_unsolved} tasks were not solved to "
                f"{TOLERANCE:g}: their features are not finite, or too large or too similar for "
                f"the penalty {self.penalty:g}. Check the features and the learning rate."
            )


def ridge_weights(support: Tensor, regularization: float | Tensor) -> Tensor:
    """Return the weights of ridge regression to class indicators, `tasks x features x way`.

    Computed from the matrix of inner products (Woodbury), which is `support x support` for any
    number of features.

    Args:
        support: `tasks x way x shot x features`, float64: products of large features need it.
        regularization: Weight of the squared norm.
    """
    n_way, n_shot = support.shape[1:3]
    support = support.flatten(1, 2)
    identity = torch.eye(n_way * n_shot, dtype=support.dtype, device=support.device)
    targets = torch.eye(n_way, dtype=support.dtype, device=support.device)
    targets = targets.repeat_interleave(n_shot, dim=0)
    gram = support @ support.transpose(1, 2) + regularization * identity
    # Positive definite by construction. The plain `cholesky` would ask the device whether it is,
    # and `cholesky_solve` cannot be captured in a CUDA graph.
    factor = torch.linalg.cholesky_ex(gram).L
    half = torch.linalg.solve_triangular(factor, targets, upper=False)
    coefficients: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return support.transpose(1, 2) @ coefficients
