"""Meta-Baseline: the class mean of the nearest direction, with a learned scale."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from adaptask.arguments import check_number
from adaptask.backbones import Backbone
from adaptask.learners.base import EmbeddingLearner


class MetaBaseline(EmbeddingLearner):
    """Classify queries by the cosines of their features with the mean feature of each class.

    With c_k, the mean of the support features of class k, the logits of a query are

        scale * cos(f(x), c_k).

    Chen et al., *Meta-Baseline: Exploring Simple Meta-Learning for Few-Shot Learning* (2021). It
    is meant for a backbone that was pre-trained as a classifier.

    Args:
        backbone: Maps images to features.
        scale: Multiplies the cosines; the initial value if it is learned.
        learn_scale: Learn the scale.
        label_smoothing: Share of the target probability that training gives to the other classes.

    Raises:
        ArgumentError: If the scale is not between 1e-3 and 1e4, or the share is not between 0 and
            0.5.
    """

    description: ClassVar[str] = "picks the class mean of the nearest direction (Chen et al. 2021)"

    def __init__(
        self,
        *,
        backbone: Backbone,
        scale: float = 10.0,
        learn_scale: bool = True,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(backbone=backbone, label_smoothing=label_smoothing)
        initial = torch.tensor(check_number("scale", scale, low=1e-3, high=1e4))
        if learn_scale:
            self.scale = nn.Parameter(initial)
        else:
            self.register_buffer("scale", initial)

    def classify(self, support: Tensor, query: Tensor) -> Tensor:
        """Return the scaled cosines with the class means."""
        return self.scale * mean_cosines(support, query)


def mean_cosines(support: Tensor, query: Tensor) -> Tensor:
    """Return the cosines of queries with the mean of each class, `tasks x queries x way`.

    Args:
        support: `tasks x way x shot x features`.
        query: `tasks x queries x features`.
    """
    return normalize(query, dim=-1) @ normalize(support.mean(2), dim=-1).transpose(1, 2)
