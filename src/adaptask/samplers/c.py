"""Class-based sampling (c-sampling): one weight per class, Eq. 3."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptask import theory
from adaptask.errors import StateError
from adaptask.samplers.base import Sampler, of_category_sets
from adaptask.samplers.feedback import Feedback
from adaptask.samplers.update_rule import Strategy, UpdateRule, mean_by_key, namespace, view


class CSampler(Sampler):
    """Draw K classes without replacement, each in proportion to its weight.

    After a task with the query set Q (of N queries per class), for each of its classes c, Eq. 3:

        w(c) <- w(c)^tau * exp(alpha * u(c)),
        u(c) = 1 / (N K) * sum over (q, y) in Q of [c != y] p(c|q) + [c = y] (1 - p(c|q))

    with `u`, `1 - u` or `u (1 - u)` for the strategies hard, easy and uncertain.

    Deviations: the paper writes the rule for normalized probabilities, and updates only those of
    the task. Starting at 1/n, the power tau alone would then multiply the share of every class
    that was drawn by n^(1 - tau). We keep unnormalized weights that start at 1, as the paper does
    for pairs. A class in several tasks of one update is updated once, with the mean of its u.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        alpha: How strongly a new observation raises a weight, 0 to 1e6.
        tau: How much of a weight is kept at each update, 0 (nothing) to 1 (everything).
        strategy: Which classes are preferred: `hard`, `easy` or `uncertain` ones.
        seed: Seed of the random stream.
        device: Where the sampler works.

    Reference: Liu et al., Adaptive Task Sampling for Meta-Learning, ECCV 2020, section 4.1.
    """

    description = "prefers classes that the learner misclassifies, each by itself (Eq. 3)"

    log_weights: Tensor
    """`classes`, log w, at first 0."""

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        alpha: float = 1.0,
        tau: float = 0.5,
        strategy: Strategy = "hard",
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, device=device)
        self.rule = UpdateRule(alpha, tau, strategy)
        self.register_buffer("log_weights", torch.zeros(self.n_classes, device=device))

    def draw(self, n_tasks: int) -> Tensor:
        """Return the classes of new tasks, `tasks x way`."""
        noise = self.gumbel_noise(n_tasks, self.n_classes, dtype=self.dtype)
        return (self.log_weights + noise).topk(self.n_way).indices

    def learn(self, feedback: Feedback) -> None:
        """Update the weights of the classes that were in a task, Eq. 3."""
        xp, log_weights = namespace(self.log_weights), view(self.log_weights)
        confusion, counts = feedback.confusion, feedback.query_counts
        # Sums of p(c|q): over all queries, and over those of class c itself.
        on_class = (confusion * counts[..., None]).sum(1)
        on_own = confusion.diagonal(0, 1, 2) * counts
        wrong = (on_class - on_own + counts - on_own) / counts.sum(-1)[..., None]
        ids = feedback.class_ids
        mean, seen = mean_by_key(ids, wrong, feedback.accepted, xp)
        old = log_weights[ids]
        new = self.rule(old, mean, xp)
        log_weights[ids] = new if seen is None else xp.where(seen, new, old)

    @of_category_sets
    def log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of each category set, `tasks` float64."""
        return theory.log_prob_without_replacement(self.log_weights, class_ids)

    def _check_buffers(self, buffers: dict[str, Tensor]) -> None:
        if not buffers["log_weights"].isfinite().all():
            raise StateError("log_weights of the state must be finite; the state is damaged.")

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        return f"{super().extra_repr()}, {self.rule}"
