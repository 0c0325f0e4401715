"""Uniform sampling: the baseline."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from adaptask.samplers.base import Sampler, of_category_sets
from adaptask.samplers.feedback import Feedback


class UniformSampler(Sampler):
    """Draw K classes without replacement, every category set with the same probability.

    `update` checks its arguments, as in every sampler, and learns nothing from them.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        seed: Seed of the random stream.
        device: Where the sampler works.
    """

    description = "draws every task with the same probability"
    learns = False

    def draw(self, n_tasks: int) -> Tensor:
        """Return the classes of new tasks, `tasks x way`."""
        # The largest K of n independent uniform variables are a uniform draw without replacement.
        noise, kernels = self.uniform_noise(n_tasks, self.n_classes), self._kernels()
        if kernels is None:
            return noise.topk(self.n_way).indices
        drawn: Tensor = kernels.largest(noise, self.n_way)
        return drawn

    def learn(self, feedback: Feedback) -> None:
        """Do nothing."""

    def _learn_by_kernels(
        self,
        kernels: Any,
        class_ids: Tensor,
        probabilities: Tensor,
        labels: Tensor,
        tolerance: float,
        class_features: Tensor | None,
    ) -> bool:
        kernels.condense(
            self._refusals,
            class_ids,
            probabilities,
            labels,
            n_classes=self.n_classes,
            share=1.0,
            tolerance=tolerance,
        )
        return True

    @of_category_sets
    def log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of each category set, `tasks` float64."""
        log_sets = math.log(math.comb(self.n_classes, self.n_way))
        return torch.full(class_ids.shape[:1], -log_sets, dtype=torch.float64, device=self.device)
