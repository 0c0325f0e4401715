"""Instance-based sampling for plain SGD over a dataset, section 3.2 of the paper."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler as TorchSampler

from adaptask.arguments import check_integer
from adaptask.errors import ArgumentError, StateError
from adaptask.samplers.base import FeedbackModule, check_tensor
from adaptask.samplers.feedback import describe_refusal, row_tolerance, rows_fit
from adaptask.samplers.update_rule import Strategy, UpdateRule, mean_by_key


class InstanceSampler(FeedbackModule, TorchSampler[int]):
    """Draw single examples, each with a probability that grows with how badly it is classified.

    After the example x_i with the label y_i was classified, Eq. 2:

        p(i) <- p(i)^tau * exp(alpha * (1 - p(y_i | x_i))), normalized,

    with `u = 1 - p(y|x)`, `1 - u` or `u (1 - u)` for the strategies hard, easy and uncertain.
    Draws are independent, with replacement, so that the weights of `importance_weight` make the
    gradient an unbiased estimate of that under uniform sampling.

    It is also a `torch.utils.data.Sampler`: in `DataLoader(dataset, sampler=sampler)` an epoch has
    as many indices as there are examples, `n_ahead` drawn at a time. Call `update` from the
    training loop, with the indices that the dataset returned.

    Deviation: as in `CSampler`, we keep unnormalized weights that start at 1. With normalized ones
    the power tau on the few probabilities that change would by itself multiply them by
    n^(1 - tau). An example that is in a batch more than once is updated once, with the mean.

    Args:
        n_instances: Number of examples, at least 1.
        alpha: How strongly a new observation raises a weight, 0 to 1e6.
        tau: How much of a weight is kept at each update, 0 (nothing) to 1 (everything).
        strategy: Which examples are preferred: `hard`, `easy` or `uncertain` ones.
        n_ahead: How many indices the iterator draws at a time, at O(n) each time; larger is
            quicker, but follows an update later.
        seed: Seed of the random stream.
        device: Where the sampler works.

    Reference: Liu et al., Adaptive Task Sampling for Meta-Learning, ECCV 2020, section 3.2.
    """

    description = "draws single examples, and prefers those that are misclassified (Eq. 2)"
    draws = "examples"

    log_weights: Tensor
    """`instances`, log w, at first 0."""
    _problems = (
        "instance_ids must be between 0 and n_instances - 1",
        "labels must be between 0 and the number of columns of probabilities - 1",
        "probabilities must be finite, not negative, and sum to one in each row "
        "(if these are logits, apply softmax first)",
    )

    def __init__(
        self,
        *,
        n_instances: int,
        alpha: float = 1.0,
        tau: float = 0.5,
        strategy: Strategy = "hard",
        n_ahead: int = 64,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(seed=seed, device=device)
        self.n_instances = check_integer("n_instances", n_instances, low=1)
        self.rule = UpdateRule(alpha, tau, strategy)
        self.n_ahead = check_integer("n_ahead", n_ahead, low=1)
        self.register_buffer("log_weights", torch.zeros(self.n_instances, device=device))

    def sample(self, n_draws: int = 1) -> Tensor:
        """Return the indices of examples drawn independently, `draws` int64.

        Raises:
            ArgumentError: If `n_draws` is not a positive integer.
        """
        n_draws = check_integer("n_draws", n_draws, low=1)
        cumulative = self.log_weights.double().softmax(0).cumsum(0)
        level = self.uniform_noise(n_draws, dtype=torch.float64) * cumulative[-1]
        at = torch.searchsorted(cumulative, level, right=True)
        return at.clamp_max(self.n_instances - 1)

    def update(self, instance_ids: Tensor, probabilities: Tensor, labels: Tensor) -> None:
        """Learn from how some examples were classified; bad values as in `Sampler.update`.

        Args:
            instance_ids: Which examples, `batch` int64.
            probabilities: Of the model, `batch x labels`, rows summing to one.
            labels: The right answers, `batch`, any integer type.

        Raises:
            ArgumentError: If anything does not fit.
        """
        check_tensor("instance_ids", instance_ids, "int64", self.device, ("batch",))
        shape = (len(instance_ids), "labels")
        check_tensor("probabilities", probabilities, "floating-point", self.device, shape)
        check_tensor("labels", labels, "integer", self.device, shape[:1])
        probs = probabilities.detach().to(self.log_weights.dtype)
        labels = labels.to(torch.int64)
        in_range = (labels >= 0) & (labels < probabilities.shape[-1])
        fits = (
            (instance_ids >= 0) & (instance_ids < self.n_instances),
            in_range,
            rows_fit(probs.unsqueeze(1), row_tolerance(probabilities.dtype)),
        )
        passed = torch.stack(fits, dim=-1)
        accepted = passed.all(-1)
        if self.device.type != "cpu":
            self._count_refusals(passed)
        elif not accepted.all():
            raise ArgumentError(describe_refusal(passed.numpy(), self._problems))
        ids = torch.where(accepted, instance_ids, 0)
        answers = torch.where(accepted, labels, 0).unsqueeze(-1)
        missed = 1 - probs.gather(-1, answers)
        keys = ids.unsqueeze(-1)
        mean, seen = mean_by_key(keys, missed, accepted, torch)
        old = self.log_weights[keys]
        new = self.rule(old, mean, torch)
        self.log_weights[keys] = torch.where(seen, new, old) if seen is not None else new

    def log_prob(self, instance_ids: Tensor) -> Tensor:
        """Return the log-probability of each example in one draw, `draws` float64.

        Raises:
            ArgumentError: If an index does not fit.
        """
        check_tensor("instance_ids", instance_ids, "int64", self.device, ("batch",))
        fits = (instance_ids >= 0) & (instance_ids < self.n_instances)
        if self.device.type == "cpu" and not fits.all():
            raise ArgumentError(f"{self._problems[0]}; got {int(instance_ids[~fits][0])}.")
        log_probs = self.log_weights.double().log_softmax(0)
        return log_probs[torch.where(fits, instance_ids, 0)].masked_fill(~fits, torch.nan)

    def importance_weight(self, instance_ids: Tensor) -> Tensor:
        """Return `1 / (n p(i))`, with which a loss counts as one drawn uniformly, `draws`."""
        return (-math.log(self.n_instances) - self.log_prob(instance_ids)).exp()

    def __iter__(self) -> Iterator[int]:
        n_left = self.n_instances
        while n_left > 0:
            block = self.sample(min(self.n_ahead, n_left)).tolist()
            n_left -= len(block)
            yield from block

    def __len__(self) -> int:
        return self.n_instances

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "n_instances": self.n_instances}

    def _check_buffers(self, buffers: dict[str, Tensor]) -> None:
        if not buffers["log_weights"].isfinite().all():
            raise StateError("log_weights of the state must be finite; the state is damaged.")

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        return f"n_instances={self.n_instances}, {self.rule}"
