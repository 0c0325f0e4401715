"""Dirty class folders: classes that cannot be learned are drawn less."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adaptask import theory
from adaptask.arguments import check_number
from adaptask.errors import StateError
from adaptask.samplers.base import Sampler, of_category_sets
from adaptask.samplers.feedback import Feedback
from adaptask.samplers.update_rule import move_average

_PAIR_THRESHOLD = 0.08
"""Share of the mean score below which suspects are not told apart from each other."""
_MARGIN = 3.0
"""Evidence stays within this beyond `min_evidence`, so that an error can be corrected."""
_RATE = 0.01
"""Of the moving averages over updates; the first updates have plain means."""
_WINDOW = 100
"""A score is the mean of the first visits, and a moving average of about so many later."""
_SMALLEST_VARIANCE = 1e-6
_MOST_MIN_EVIDENCE = 1e4
_LEAST_WEIGHT = 1e-6
"""Of a class that is never drawn while there are others."""
_UNIT = 2**24
"""Scores are added up as integers, in units of 1 / _UNIT: their order does not matter."""


class LearnableSampler(Sampler):
    """Draw uniformly, but rarely classes that cannot be learned.

    For folders that nobody has checked, of which some hold images of anything. With the confusion
    C of a task, class i is told apart from class j by how much more probability its own queries
    give to it than the queries of j do,

        d(i, j) = C(i, i) - C(j, i),   x(i) = mean over j != i of d(i, j).

    The score x is 0 at chance and 1 if the class is always recognized. Two tests are made, both by
    the log-likelihood ratio of normal distributions: how much likelier are values v with variance
    s^2 if their mean is 0 than if it is 2b?

        E += 2b (b - v) / s^2

    1. **Suspects.** The evidence E(i) against a class is over its scores x(i), with b = `threshold`
       times M, the mean score of the pool. A class of random images stays near 0 while M rises. A
       class is suspect while E(i) > `min_evidence`.
    2. **Is the pool dirty?** A class that is only hard can be suspect too. But hard classes are
       told apart from each other, and classes of random images are not. So the evidence against the
       pool is over d(i, j) of suspects that meet in a task, with b = 0.08 M. The pool counts as
       dirty while this evidence is above `min_evidence`.

    In a dirty pool the suspects are hopeless: they have the weight `floor` instead of 1, and the
    classes of a task are drawn in proportion to their weights, without replacement. If nothing is
    hopeless, tasks are uniform: on the CPU the very tasks of `UniformSampler` with the same seed.

    Decisions: while the learner has learned nothing, M is 0 and a visit says nothing. M is the mean
    score of those that are drawn, times the mean weight of all classes: it does not rise when
    hopeless classes, whose scores are near 0, are drawn less. That mean and the variances, of x(i)
    around the mean of its class and of d(i, j) around M, are moving averages from the updates
    before. Evidence goes at most 3 beyond `min_evidence` in either direction, and hopeless classes
    are still visited now and then, so that an error is corrected, if slowly. Normal distributions
    and independent visits are assumptions; they only set how fast evidence grows.

    Limits: a class of which a part is wrong is learned from the rest, so it counts as hard, not as
    hopeless. A single class of random images is not found: it has no other to be confused with.
    In a pool that is found dirty the hardest classes are drawn rarely too, with a weak learner many
    of them. Duplicates, one class in two folders, are left as they are.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        threshold: Share of the mean score below which a score speaks against its class, 0 (nothing
            is ever hopeless) to 1.
        min_evidence: Log-likelihood ratio above which a test is decided, 0 to 1e4.
        floor: Weight of a hopeless class, 0 to 1 (as all others).
        seed: Seed of the random stream.
        device: Where the sampler works.
    """

    description = "draws classes that cannot be learned less, for data that nobody has checked"

    scores: Tensor
    """The mean score of every class over its last visits, `classes`."""
    visits: Tensor
    """How often every class was in a task, `classes` int64."""
    evidence: Tensor
    """How much speaks against every class, `classes`: a log-likelihood ratio, at first 0."""
    pool_evidence: Tensor
    """Scalar: how much speaks for a dirty pool, a log-likelihood ratio, at first 0."""
    averages: Tensor
    """Moving averages: of all scores, and of the variances of scores around those of their class
    and of d(i, j) around M, `3`; at first 0, 1 and 1."""
    n_updates: Tensor
    """Scalar int64: the number of updates."""

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        threshold: float = 0.5,
        min_evidence: float = 3.0,
        floor: float = 0.05,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, device=device)
        self.threshold = check_number("threshold", threshold, low=0, high=1)
        self.min_evidence = check_number(
            "min_evidence", min_evidence, low=0, high=_MOST_MIN_EVIDENCE
        )
        self.floor = check_number("floor", floor, low=0, high=1)
        self.register_buffer("scores", torch.zeros(self.n_classes, device=device))
        visits = torch.zeros(self.n_classes, dtype=torch.int64, device=device)
        self.register_buffer("visits", visits)
        self.register_buffer("evidence", torch.zeros(self.n_classes, device=device))
        self.register_buffer("pool_evidence", torch.zeros((), device=device))
        self.register_buffer("averages", torch.tensor([0.0, 1.0, 1.0], device=device))
        self.register_buffer("n_updates", torch.zeros((), dtype=torch.int64, device=device))

    @property
    def suspect(self) -> Tensor:
        """Which classes are hard or hopeless, `classes` bool."""
        return self.evidence > self.min_evidence

    @property
    def hopeless(self) -> Tensor:
        """Which classes are drawn rarely, `classes` bool."""
        return self.suspect & (self.pool_evidence > self.min_evidence)

    @property
    def _log_weights(self) -> Tensor:
        return math.log(max(self.floor, _LEAST_WEIGHT)) * self.hopeless.to(self.dtype)

    def draw(self, n_tasks: int) -> Tensor:
        """Return the classes of new tasks, `tasks x way`."""
        # The largest u^(1/w) of uniform u are a draw by weights w (Efraimidis and Spirakis, 2006).
        # If all w are 1, these are the largest u: the tasks of `UniformSampler` with this seed.
        noise = self.uniform_noise(n_tasks, self.n_classes)
        return (noise.log() * (-self._log_weights).exp()).topk(self.n_way).indices

    def learn(self, feedback: Feedback) -> None:
        """Weigh the evidence against the classes that were in a task."""
        ids = torch.as_tensor(feedback.class_ids)
        confusion = torch.as_tensor(feedback.confusion).to(self.dtype)
        counted = torch.ones_like(ids, dtype=torch.bool)
        if feedback.accepted is not None:
            accepted = torch.as_tensor(feedback.accepted)
            counted = accepted[:, None].expand_as(ids)
            confusion = confusion.where(accepted[:, None, None], 0)
        own = confusion.diagonal(dim1=1, dim2=2)
        told_apart = own[:, :, None] - confusion.mT  # d(i, j), 0 on the diagonal
        scores = told_apart.sum(-1) / (self.n_way - 1)
        suspect = self.suspect[ids] & counted
        both_suspect = suspect[:, :, None] & suspect[:, None, :]
        # The mean score of those that are drawn rises when hopeless classes, with scores near 0,
        # are drawn less. Times their mean weight it is that of the whole pool.
        weights = self._log_weights.exp()
        mean = self.averages[0].clamp_min(0) * weights.mean() / weights.amax()
        variance, pair_variance = self.averages[1:].clamp_min(_SMALLEST_VARIANCE)

        # Sums are of integers, so that they do not depend on the order.
        added = torch.stack((_in_units(scores), torch.ones_like(ids)), -1)
        added = added.where(counted[..., None], 0).flatten(0, 1)
        sums = ids.new_zeros(self.n_classes, 2).index_add_(0, ids.flatten(), added)
        total, n_new = sums[:, 0].to(self.dtype) / _UNIT, sums[:, 1]
        self.evidence += _against(total, n_new, self.threshold * mean, variance)

        total_of_pairs = _in_units(told_apart).where(both_suspect, 0).sum().to(self.dtype) / _UNIT
        n_pairs = both_suspect.sum() - suspect.sum()
        self.pool_evidence += _against(
            total_of_pairs, n_pairs, _PAIR_THRESHOLD * mean, pair_variance
        )
        for evidence in (self.evidence, self.pool_evidence):
            evidence.clamp_(-self.min_evidence - _MARGIN, self.min_evidence + _MARGIN)

        self.n_updates += counted.any()
        rate = (1 / self.n_updates.clamp_min(1).to(self.dtype)).clamp_min(_RATE)
        changes = (scores - self.scores[ids]).square()
        spread = ((told_apart - mean).square().sum(-1) - mean.square()) / (self.n_way - 1)
        is_known = counted & (self.visits[ids] > 0)
        move_average(
            self.averages,
            torch.stack((scores, changes, spread)),
            torch.stack((counted, is_known, counted)),
            rate,
        )
        self.visits += n_new
        n_averaged = self.visits.clamp_max(_WINDOW).maximum(n_new).clamp_min(1)
        self.scores += (total - n_new * self.scores) / n_averaged

    @of_category_sets
    def log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of each category set, `tasks` float64."""
        return theory.log_prob_without_replacement(self._log_weights, class_ids)

    def _check_buffers(self, buffers: dict[str, Tensor]) -> None:
        for name, values in buffers.items():
            # A squared difference of two scores is at most 4.
            largest = _MOST_MIN_EVIDENCE + _MARGIN if name.endswith("evidence") else 4
            if values.is_floating_point():
                fits = (values.abs() <= largest).all()
            else:
                fits = (values >= 0).all()
            if not fits or (name == "averages" and (values[1:] < 0).any()):
                raise StateError(f"{name} of the state is out of range; the state is damaged.")

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        return (
            f"{super().extra_repr()}, threshold={self.threshold:g}, "
            f"min_evidence={self.min_evidence:g}, floor={self.floor:g}"
        )


def _against(total: Tensor, n: Tensor, limit: Tensor, variance: Tensor) -> Tensor:
    """Return how much likelier n values of this sum are if their mean is 0 than 2 limit."""
    return 2 * limit / variance * (limit * n - total)


def _in_units(scores: Tensor) -> Tensor:
    return (scores * _UNIT).round().long()
