"""Uniform sampling: what everybody does."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from adaptask.samplers.base import Sampler
from adaptask.samplers.feedback import Feedback, row_tolerance


class UniformSampler(Sampler):
    """Draw K classes without replacement, every category set with the same probability.

    `update` checks what it is given, as in every sampler, and learns nothing from it.
    """

    learns = False

    def _draw(self, n_tasks: int) -> Tensor:
        # The largest K of n independent uniform variables are a uniform draw without replacement.
        noise, kernels = self._uniform(n_tasks, self.n_classes, dtype=self.dtype), self._kernels()
        if kernels is None:
            return noise.topk(self.n_way).indices
        drawn: Tensor = kernels.largest(noise, self.n_way)
        return drawn

    def _learn(self, feedback: Feedback) -> None:
        pass

    def _learn_by_kernels(
        self, kernels: Any, class_ids: Tensor, probabilities: Tensor, labels: Tensor
    ) -> bool:
        self._check_predictions(class_ids, probabilities, labels)
        kernels.condense(
            self._refusals,
            class_ids,
            probabilities,
            labels,
            n_classes=self.n_classes,
            share=1.0,
            tolerance=row_tolerance(probabilities.dtype),
        )
        return True

    def _log_prob(self, class_ids: Tensor) -> Tensor:
        log_sets = math.log(math.comb(self.n_classes, self.n_way))
        return torch.full(class_ids.shape[:1], -log_sets, dtype=torch.float64, device=self.device)
