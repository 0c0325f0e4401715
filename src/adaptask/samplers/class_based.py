"""Class-based sampling (c-sampling): every class has a weight of its own, Eq. 3."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adaptask.errors import StateError
from adaptask.samplers.arrays import mean_by_key, namespace, view
from adaptask.samplers.base import Sampler
from adaptask.samplers.feedback import Feedback
from adaptask.samplers.update_rule import UpdateRule, check_dtype


class ClassSampler(Sampler):
    """Draw K classes without replacement, each in proportion to its weight.

    After a task with the query set Q (of N queries a class), for each of its classes c, Eq. 3:

        w(c) <- w(c)^tau * exp(alpha * u(c)),
        u(c) = 1 / (N K) * sum over (q, y) in Q of [c != y] p(c|q) + [c = y] (1 - p(c|q))

    with `u`, `1 - u` or `u (1 - u)` for the strategies hard, easy and uncertain.

    Deviations: the paper writes the rule for normalised probabilities, of which only those of the
    task change; starting at 1/n, the power tau alone would then multiply the share of every class
    that was drawn by n^(1 - tau). We keep unnormalised weights that start at 1, as the paper does
    for pairs. A class in several tasks of one update is updated once, with the mean of its u.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes in a task, K.
        alpha: Weight of the new observation, 0 to 1e6.
        tau: Memory, from 0 (none) to 1 (nothing is forgotten).
        strategy: `hard`, `easy` or `uncertain`.
        seed: Seed of the random stream.
        dtype: Precision of the weights.
        device: Where the sampler works.

    Reference: Liu et al., Adaptive Task Sampling for Meta-Learning, ECCV 2020, section 4.1.
    """

    log_weights: Tensor

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        alpha: float = 1.0,
        tau: float = 0.5,
        strategy: str = "hard",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, device=device)
        self.rule = UpdateRule(alpha, tau, strategy)
        check_dtype(dtype)
        weights = torch.zeros(self.n_classes, dtype=dtype, device=device)
        self.register_buffer("log_weights", weights)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return self.log_weights.dtype

    def _draw(self, n_tasks: int) -> Tensor:
        # Gumbel top-k: successive draws without replacement, in proportion to the weights.
        noise = self._log_exponential(n_tasks, self.n_classes, dtype=self.dtype)
        return (self.log_weights - noise).topk(self.n_way).indices

    def _learn(self, feedback: Feedback) -> None:
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

    def _log_prob(self, class_ids: Tensor) -> Tensor:
        chunks = torch.split(class_ids, 1024)  # 1024 x K x some hundred nodes at a time
        return torch.cat([log_prob_without_replacement(self.log_weights, c) for c in chunks])

    def _check_buffers(self, buffers: dict[str, Tensor]) -> None:
        if not buffers["log_weights"].isfinite().all():
            raise StateError("log_weights of the state must be finite; it is damaged.")

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        return f"{super().extra_repr()}, {self.rule}"


def log_prob_without_replacement(log_weights: Tensor, class_ids: Tensor) -> Tensor:
    """Return the log-probability that K successive draws in proportion to weights give each set.

    Give every class an exponential clock with its weight as rate; the draw is the K clocks that
    ring first. With the weights scaled so that those outside the set L sum to 1, and s = log t,

        p(L) = integral over t of exp(-t) * product over i in L of (1 - exp(-w_i t)) dt
             = integral over s of exp(s - e^s + sum over i in L of log(1 - exp(-w_i e^s))) ds,

    a smooth integrand that falls off on both sides, for which the trapezoidal rule converges
    exponentially: exact to about 1e-12, at a cost linear in K instead of the K! orders.

    Args:
        log_weights: `classes`.
        class_ids: `tasks x way`, distinct within a row.

    Returns:
        `tasks` float64.
    """
    log_weights = log_weights.double()
    n_classes, (n_tasks, n_way) = len(log_weights), class_ids.shape
    if n_way == n_classes:
        return log_weights.new_zeros(n_tasks)
    outside = log_weights.expand(n_tasks, -1).scatter(1, class_ids, -torch.inf)
    relative = log_weights[class_ids] - outside.logsumexp(-1, keepdim=True)
    # The peak is about 1 / sqrt(K + 1) wide; beyond these ends the integrand is below 1e-16 of it.
    step = 0.5 / math.sqrt(n_way + 4)
    log_time = torch.arange(-40.0, 9.0, step, dtype=torch.float64, device=log_weights.device)
    log_rates = relative.unsqueeze(-1) + log_time  # tasks x way x nodes
    log_rung = torch.where(log_rates < -37, log_rates, (-torch.expm1(-log_rates.exp())).log())
    integrand = log_time - log_time.exp() + log_rung.sum(1)
    return integrand.logsumexp(-1) + math.log(step)
