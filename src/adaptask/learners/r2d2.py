"""R2-D2: ridge regression with learnt scale, bias and regularisation."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from adaptask.arguments import check_flag, check_number
from adaptask.backbones import Backbone
from adaptask.learners.embedding import EmbeddingLearner
from adaptask.learners.ridge import ridge_weights


class R2D2(EmbeddingLearner):
    """Classify queries by ridge regression whose hyperparameters are learnt with the features.

    With n support features X, each with a 1 appended that makes an intercept, and Y, 1 where a
    point belongs to a class, the logits of a query are

        scale [f(x), 1] X' (X X' + n lambda I)^-1 Y + bias.

    Bertinetto et al., *Meta-learning with Differentiable Closed-form Solvers* (2019), Eq. 4 to 6.

    Args:
        backbone: Maps images to features.
        regularisation: Where lambda starts, which is learnt as its logarithm.
        learn_regularisation: Whether it is learnt.
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
        learn_regularisation: bool = True,
        scale: float = 1e-4,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(backbone=backbone, label_smoothing=label_smoothing)
        regularisation = check_number("regularisation", regularisation, low=1e-6, high=1e12)
        log_regularisation = torch.tensor(math.log(regularisation))
        if check_flag("learn_regularisation", learn_regularisation):
            self.log_regularisation = nn.Parameter(log_regularisation)
        else:
            self.register_buffer("log_regularisation", log_regularisation)
        self.scale = nn.Parameter(torch.tensor(check_number("scale", scale, low=1e-6, high=1e6)))
        # One number for all classes: the softmax does not feel it.
        self.bias = nn.Parameter(torch.zeros(1))

    def _classify(self, support: Tensor, query: Tensor) -> Tensor:
        n_support = support.shape[1] * support.shape[2]
        regularisation = n_support * self.log_regularisation.double().exp()
        weights = ridge_weights(pad(support.double(), (0, 1), value=1.0), regularisation)
        weights = weights.to(query.dtype)
        return self.scale * (query @ weights[:, :-1] + weights[:, -1:]) + self.bias
