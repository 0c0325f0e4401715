"""R2-D2: ridge regression with learned scale, bias and regularization."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from adaptask.arguments import check_number
from adaptask.backbones import Backbone
from adaptask.learners.base import EmbeddingLearner
from adaptask.learners.metaoptnet import ridge_weights


class R2D2(EmbeddingLearner):
    """Classify queries by ridge regression with hyperparameters learned along with the features.

    With n support features X, each with a 1 appended for the intercept, and the indicators Y, 1 if
    a point belongs to a class and else 0, the logits of a query are

        scale [f(x), 1] X' (X X' + n lambda I)^-1 Y + bias.

    Bertinetto et al., *Meta-learning with Differentiable Closed-form Solvers* (2019), Eq. 4 to 6.

    Args:
        backbone: Maps images to features.
        regularization: Weight of the squared norm per support image, lambda; the initial value if
            it is learned.
        learn_regularization: Learn the regularization, as its logarithm.
        scale: Initial value of the learned factor of the logits.
        label_smoothing: Share of the target probability that training gives to the other classes.

    Raises:
        ArgumentError: If an argument is out of range.
    """

    description: ClassVar[str] = "ridge regression that is learned too (Bertinetto et al. 2019)"

    def __init__(
        self,
        *,
        backbone: Backbone,
        regularization: float = 50.0,
        learn_regularization: bool = True,
        scale: float = 1e-4,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(backbone=backbone, label_smoothing=label_smoothing)
        regularization = check_number("regularization", regularization, low=1e-6, high=1e12)
        log_regularization = torch.tensor(math.log(regularization))
        if learn_regularization:
            self.log_regularization = nn.Parameter(log_regularization)
        else:
            self.register_buffer("log_regularization", log_regularization)
        self.scale = nn.Parameter(torch.tensor(check_number("scale", scale, low=1e-6, high=1e6)))
        # One number for all classes, as published. It does not change the softmax.
        self.bias = nn.Parameter(torch.zeros(1))

    def classify(self, support: Tensor, query: Tensor) -> Tensor:
        """Return the scaled predictions of the regression."""
        n_support = support.shape[1] * support.shape[2]
        regularization = n_support * self.log_regularization.double().exp()
        weights = ridge_weights(pad(support.double(), (0, 1), value=1.0), regularization)
        weights = weights.to(query.dtype)
        return self.scale * (query @ weights[:, :-1] + weights[:, -1:]) + self.bias
