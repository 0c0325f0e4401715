"""MetaOptNet-SVM: a support vector machine on the support features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adaptask.arguments import check_number
from adaptask.backbones import Backbone
from adaptask.errors import TrainingError
from adaptask.learners.crammer_singer import TOLERANCE, solve_crammer_singer
from adaptask.learners.embedding import EmbeddingLearner


class MetaOptNetSVM(EmbeddingLearner):
    """Classify queries by a multi-class linear support vector machine fitted to the support set.

    The weights minimise  1/2 sum_k |w_k|^2 + C sum_i max_k (w_k x_i - w_yi x_i + 1 - [k = y_i]);
    the logits of a query are scale w_k f(x). Gradients go through the fitted machine.

    Lee et al., *Meta-Learning with Differentiable Convex Optimization* (2019).

    A task whose machine cannot be fitted to `TOLERANCE` is refused. On the CPU that raises at
    once. On other devices its logits are NaN, and `check()` says how many there were.

    Args:
        backbone: Maps images to features.
        penalty: Weight of the hinge losses, C.
        scale: Where the learnt factor of the logits starts.
        label_smoothing: Share of the right answer that training gives to the other classes.

    Raises:
        ArgumentError: If an argument cannot be used.
    """

    n_unsolved: Tensor

    def __init__(
        self,
        *,
        backbone: Backbone,
        penalty: float = 0.1,
        scale: float = 1.0,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(backbone=backbone, label_smoothing=label_smoothing)
        self.penalty = check_number("penalty", penalty, low=1e-6, high=1e6)
        self.scale = nn.Parameter(torch.tensor(check_number("scale", scale, low=1e-6, high=1e6)))
        self.register_buffer("n_unsolved", torch.zeros((), dtype=torch.int64), persistent=False)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _classify(self, support: Tensor, query: Tensor) -> Tensor:
        n_way = support.shape[1]
        # Products of large or nearly dependent features need the digits.
        points = support.flatten(1, 2).double()
        gram = points @ points.transpose(1, 2)
        alpha, error = solve_crammer_singer(gram, n_way=n_way, penalty=self.penalty)
        solved = error <= TOLERANCE  # not so where the error is NaN
        self.n_unsolved += (~solved).sum()
        if points.device.type == "cpu":
            self.check()
        weights = (alpha @ points).masked_fill(~solved.view(-1, 1, 1), torch.nan)
        return self.scale * (query @ weights.to(query.dtype).transpose(1, 2))

    def check(self) -> None:
        """Raise if a machine could not be fitted since it was last asked.

        Raises:
            TrainingError: If there was one; the count starts again from zero.
        """
        [n_unsolved] = self.n_unsolved.view(1).tolist()
        if n_unsolved:
            self.n_unsolved.zero_()
            raise TrainingError(
                f"the support vector machines of {n_unsolved} tasks were not solved to "
                f"{TOLERANCE:g}: their features are no numbers, or far too large or too alike for "
                f"the penalty {self.penalty:g}. Look at the features."
            )
