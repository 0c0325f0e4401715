"""Predicted difficulty: of many candidate tasks those that promise to be hardest."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptask.arguments import check_integer, check_number
from adaptask.errors import StateError
from adaptask.samplers.base import Sampler
from adaptask.samplers.feedback import Feedback
from adaptask.samplers.update_rule import mean_by_key, move_average

_WINDOW = 50
"""A risk is the mean of the first visits, and a moving average of about so many later."""


class PredictiveSampler(Sampler):
    """Draw candidate tasks uniformly, and train on those whose predicted risk is highest.

    The risk of a class in a task is its error, 1 - the mean of p(y|q) over its queries. After v
    visits, at most 50, with the mean risk r of the class, the mean risk R of all classes and the
    variance s^2 of a visit, what is known about the class is

        normal with the mean (v r + R) / (v + 1) and the variance s^2 / (v + 1).

    For b tasks `pool` times b candidates are drawn uniformly. One risk per class is drawn from
    what is known (posterior sampling), and that of a candidate is the mean over its classes.
    Candidates are then chosen one after the other: the one with the largest

        z + diversity * (1 - mean share of its classes in each task chosen before),

    where z is its predicted risk, standardized over the candidates. Nothing is computed by the
    learner for it. A class that was seen rarely has a wide distribution, so it is tried.

    Deviations: MPTS and PDTS predict risks with a generative model over the parameters of tasks,
    such as a mass or a frequency. Classes have no such parameters; the risk of a task is taken as
    the mean over its classes, so which classes meet does not matter. The code of MPTS
    ranks by the mean plus 3 standard deviations and keeps 16 of 32 candidates; PDTS draws from the
    posterior and adds diversity, which is done here. Distances of tasks are those of their sets of
    classes. The defaults of `pool` and `diversity` are ours. Like every sampler of the hardest, it
    prefers classes with wrong labels most of all.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        pool: Number of candidates per task; 1 is uniform.
        diversity: How much the tasks of a batch should differ, 0 (not at all) to 1000.
        seed: Seed of the random stream.
        device: Where the sampler works.

    Reference: Wang et al., Model Predictive Task Sampling for Efficient and Robust Adaptation,
    2025; Qu et al., Fast and Robust: Task Sampling with Posterior and Diversity Synergies, ICML
    2025.
    """

    description = "trains on those of many candidate tasks that are predicted to be hardest"

    risks: Tensor
    """`classes`: the mean error of every class."""
    visits: Tensor
    """`classes` int64: number of updates with a class."""
    mean: Tensor
    """Scalar: moving average of all errors, at first 0.5."""
    variance: Tensor
    """Scalar: moving average of squared differences from the mean of the class, at first 1."""

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        pool: int = 8,
        diversity: float = 5.0,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, device=device)
        self.pool = check_integer("pool", pool, low=1)
        self.diversity = check_number("diversity", diversity, low=0, high=1000)
        self.register_buffer("risks", torch.zeros(self.n_classes, device=device))
        visits = torch.zeros(self.n_classes, dtype=torch.int64, device=device)
        self.register_buffer("visits", visits)
        self.register_buffer("mean", torch.full((), 0.5, device=device))
        self.register_buffer("variance", torch.ones((), device=device))

    def posterior(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of what is known of every class, `classes`."""
        weights = self.visits.clamp_max(_WINDOW)
        means = (weights * self.risks + self.mean) / (weights + 1)
        return means, (self.variance / (weights + 1)).sqrt()

    def draw(self, n_tasks: int) -> Tensor:
        """Return the classes of new tasks, `tasks x way`."""
        n_candidates = self.pool * n_tasks
        candidates = self.uniform_noise(n_candidates, self.n_classes).topk(self.n_way).indices
        means, deviations = self.posterior()
        normal = torch.empty_like(means).normal_(generator=self._generator)
        risks = (means + deviations * normal)[candidates].mean(-1)
        chosen = choose_diverse(
            candidates, risks, n_tasks, n_classes=self.n_classes, diversity=self.diversity
        )
        return candidates[chosen]

    def learn(self, feedback: Feedback) -> None:
        """Average the errors of the classes that were in a task."""
        ids = torch.as_tensor(feedback.class_ids).contiguous()  # torch warns otherwise
        errors = 1 - torch.as_tensor(feedback.confusion).diagonal(dim1=1, dim2=2)
        counted = torch.ones_like(ids, dtype=torch.bool)
        accepted = None
        if feedback.accepted is not None:
            accepted = torch.as_tensor(feedback.accepted)
            counted = counted & accepted[:, None]
        errors, seen = mean_by_key(ids, errors, accepted, torch)
        old, visits = self.risks[ids], self.visits[ids]
        change = errors - old if seen is None else (errors - old).where(seen, 0)
        move_average(self.mean, errors, counted, 0.01)
        move_average(self.variance, change.square(), counted & (visits > 0), 0.01)
        new_visits = visits + (1 if seen is None else seen)
        self.risks[ids] = old + change / new_visits.clamp(1, _WINDOW)
        self.visits[ids] = new_visits

    def _check_buffers(self, buffers: dict[str, Tensor]) -> None:
        for name in ("risks", "mean", "variance"):
            if not ((buffers[name] >= -0.01) & (buffers[name] <= 1.01)).all():
                raise StateError(f"{name} of the state must be between 0 and 1; it is damaged.")
        if (buffers["visits"] < 0).any():
            raise StateError("visits of the state must not be negative; it is damaged.")

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        return f"{super().extra_repr()}, pool={self.pool}, diversity={self.diversity:g}"


def choose_diverse(
    candidates: Tensor, risks: Tensor, n_tasks: int, *, n_classes: int, diversity: float
) -> Tensor:
    """Choose candidates of high risk that differ from each other, one after the other.

    Args:
        candidates: `candidates x way`, distinct within a row.
        risks: `candidates`.
        n_tasks: How many to choose, at most as many as there are.
        n_classes: Number of training classes.
        diversity: Weight of the mean share of classes that a task does not share with another.

    Returns:
        `n_tasks` int64: numbers of candidates, distinct.
    """
    spread = risks.std(correction=0)
    scores = ((risks - risks.mean()) / spread).where(spread > 0, 0)
    if diversity == 0:
        return scores.topk(n_tasks).indices
    counts = torch.zeros(n_classes, dtype=risks.dtype, device=risks.device)
    ones = counts.new_ones(candidates.shape[1])
    chosen: list[Tensor] = []
    for n_chosen in range(n_tasks):
        keys = scores
        if n_chosen:
            shared = counts[candidates].mean(-1) / n_chosen
            keys = scores + diversity * (1 - shared)
        newest = keys.argmax(-1, keepdim=True)
        chosen.append(newest)
        scores = scores.scatter(0, newest, -torch.inf)
        counts = counts.scatter_add(0, candidates[newest][0], ones)
    return torch.cat(chosen)
