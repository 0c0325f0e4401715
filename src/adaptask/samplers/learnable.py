"""Dirty class folders: classes that cannot be learned, and duplicates, are drawn less."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from adaptask import theory
from adaptask.arguments import check_flag, check_integer, check_number
from adaptask.errors import StateError
from adaptask.samplers.base import Sampler, of_category_sets
from adaptask.samplers.feedback import Feedback
from adaptask.samplers.update_rule import mean_by_key, move_average

_WINDOW = 400
"""A score is the mean of the first visits, and a moving average of about so many later."""
_LEAST_MEAN = 0.1
"""Below this the learner has not learned anything yet, so nothing is known."""
_MARGIN = 3.0
"""How many standard errors a score must be below the limit."""
_LEAST_WEIGHT = 1e-6
"""Of a class that is never drawn while there are others."""


class LearnableSampler(Sampler):
    """Draw uniformly, but rarely classes that cannot be learned and pairs of duplicates.

    For folders that nobody has checked: some classes hold images of anything, some classes are
    there twice. Classes get a score, 0 at chance and 1 if they are always recognized,

        x(y) = (a(y) - 1/K) / (1 - 1/K),   a(y) the mean of p(y|q) over the queries q of y,

    and two classes that meet get one for how well they are told apart, with the confusion C,

        x(i, j) = 1 - 2 (C(i,j) + C(j,i)) / (C(i,i) + C(i,j) + C(j,i) + C(j,j)).

    Both are averaged over visits. A class that is filled with random images stays at 0 while
    others rise, and so does a pair of duplicates. A class that is merely hard rises too, only
    less. So a class, or a pair, is hopeless if it has at least `min_visits` visits and

        mean score + 3 standard errors < threshold * mean score of all.

    This is decided at each visit. A hopeless class has the weight `floor` instead of 1. The classes
    of a task are drawn one after the other in proportion to their weights, times `floor` for each
    class before with which they are a hopeless pair. If nothing is hopeless, tasks are uniform.

    Both halves of a duplicate stay, so that their images are not lost; they hardly ever meet.

    Decisions: the mean score of all is a moving average that starts at 0, and the variance of a
    visit one that starts at 1, so that nothing is hopeless while the learner has not learned. Rare
    visits go on, so an error is corrected, if slowly. A class or pair in several tasks of one
    update is visited once, with the mean of its scores.

    Limits: a class of which a part is wrong is learned from the rest, so it counts as hard, not as
    hopeless. Pairs take n^2 numbers for n classes, and are known only if they meet often: with
    thousands of classes set `watch_pairs` to False. More than half of the pool may be dirty, but
    the more it is the later it is found.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        threshold: Below which share of the mean score something is hopeless, 0 (only
            what is below chance) to 1.
        min_visits: Number of visits before a class or a pair can be hopeless.
        floor: Weight of what is hopeless, 0 to 1 (as all others).
        watch_pairs: Whether pairs of classes are kept apart that cannot be told apart.
        seed: Seed of the random stream.
        device: Where the sampler works.
    """

    description = "draws classes that cannot be learned less, for data that nobody has checked"

    _pair_places: Tensor
    """Where a matrix of K x K, as one row, has no diagonal, int64."""

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        threshold: float = 0.3,
        min_visits: int = 30,
        floor: float = 0.05,
        watch_pairs: bool = True,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, device=device)
        self.threshold = check_number("threshold", threshold, low=0, high=1)
        self.min_visits = check_integer("min_visits", min_visits, low=1)
        self.floor = check_number("floor", floor, low=0, high=1)
        self.watch_pairs = check_flag("watch_pairs", watch_pairs)
        self.classes = _Scores((self.n_classes,), self.device)
        size = (self.n_classes, self.n_classes)
        self.pairs = _Scores(size, self.device) if self.watch_pairs else None
        """Symmetric; the diagonal is not used."""

        off_diagonal = ~torch.eye(self.n_way, dtype=torch.bool, device=self.device)
        places = off_diagonal.flatten().nonzero()[:, 0]
        self.register_buffer("_pair_places", places, persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the scores; `sampler.double()` raises it."""
        return self.classes.scores.dtype

    @property
    def _log_floor(self) -> float:
        return math.log(max(self.floor, _LEAST_WEIGHT))

    def draw(self, n_tasks: int) -> Tensor:
        """Return the classes of new tasks, `tasks x way`."""
        noise = self.gumbel_noise(self.n_way, n_tasks, self.n_classes, dtype=self.dtype)
        log_weights = self._log_floor * self.classes.hopeless.to(self.dtype).expand_as(noise[0])
        chosen: list[Tensor] = []
        for step_noise in noise:
            if chosen:
                newest = chosen[-1]
                if self.pairs is not None:
                    log_weights = log_weights + self._log_floor * self.pairs.hopeless[newest]
                log_weights = log_weights.scatter(1, newest[:, None], -torch.inf)
            chosen.append((log_weights + step_noise).argmax(-1))
        return torch.stack(chosen, -1)

    def learn(self, feedback: Feedback) -> None:
        """Average the scores of the classes and pairs that were in a task."""
        ids = torch.as_tensor(feedback.class_ids)
        confusion = torch.as_tensor(feedback.confusion)
        accepted = None
        if feedback.accepted is not None:
            accepted = torch.as_tensor(feedback.accepted)
            confusion = confusion.where(accepted[:, None, None], 0)
        own = confusion.diagonal(dim1=1, dim2=2)
        chance = 1 / self.n_way
        limits = (self.threshold, self.min_visits)
        self.classes.learn(ids, (own - chance) / (1 - chance), accepted, *limits)
        if self.pairs is not None:
            wrong = confusion + confusion.mT
            both = (wrong + own[:, :, None] + own[:, None, :]).clamp_min(1e-12)
            places = self._pair_places
            scores = (1 - 2 * wrong / both).flatten(1)[:, places].clamp(-1, 1)
            keys = (ids[:, :, None] * self.n_classes + ids[:, None, :]).flatten(1)[:, places]
            self.pairs.learn(keys, scores, accepted, *limits)

    @of_category_sets
    def log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of each category set of at most 11 classes, float64."""
        if self.n_way == self.n_classes:  # there is one set
            return torch.zeros(len(class_ids), dtype=torch.float64, device=self.device)
        # One class more, which is drawn first and never later, brings the weights of the first.
        n = self.n_classes
        log_weights = torch.zeros(n + 1, n + 1, dtype=torch.float64, device=self.device)
        if self.pairs is not None:
            log_weights[:n, :n] = self._log_floor * self.pairs.hopeless.double()
        log_weights[n, :n] = self._log_floor * self.classes.hopeless.double()
        log_weights[:n, n] = -1e6
        first = class_ids.new_full((len(class_ids), 1), n)
        found = theory.neighbor_log_prob(log_weights, torch.cat((first, class_ids), 1))
        return found + math.log(n + 1)

    def _check_buffers(self, buffers: dict[str, Tensor]) -> None:
        for name, values in buffers.items():
            if values.is_floating_point() and not (values.abs() <= 2).all():
                raise StateError(f"{name} of the state must be scores; the state is damaged.")

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        return (
            f"{super().extra_repr()}, threshold={self.threshold:g}, min_visits={self.min_visits}, "
            f"floor={self.floor:g}, watch_pairs={self.watch_pairs}"
        )


class _Scores(nn.Module):
    """Average scores of some items, and which of them stay at 0 while others do not."""

    scores: Tensor
    """The mean score of every item."""
    visits: Tensor
    """How often every item was visited, int64."""
    hopeless: Tensor
    """Whether an item was hopeless at its last visit, bool."""
    mean: Tensor
    """Scalar: moving average of all scores, at first 0."""
    variance: Tensor
    """Scalar: moving average of squared differences from an item's mean, at first 1."""

    def __init__(self, size: tuple[int, ...], device: torch.device) -> None:
        super().__init__()
        self.register_buffer("scores", torch.zeros(size, device=device))
        self.register_buffer("visits", torch.zeros(size, dtype=torch.int64, device=device))
        self.register_buffer("hopeless", torch.zeros(size, dtype=torch.bool, device=device))
        self.register_buffer("mean", torch.zeros((), device=device))
        self.register_buffer("variance", torch.ones((), device=device))

    def learn(
        self,
        keys: Tensor,
        values: Tensor,
        accepted: Tensor | None,
        threshold: float,
        min_visits: int,
    ) -> None:
        """Average the new scores of some items, `tasks x entries`, and judge those items."""
        keys = keys.contiguous()  # torch warns otherwise
        seen = torch.ones_like(keys, dtype=torch.bool)
        if len(keys) > 1:
            values, found = mean_by_key(keys, values, accepted, torch)
            seen = seen if found is None else found
        elif accepted is not None:
            seen = accepted[:, None].expand_as(keys)
        scores, visits, hopeless = (
            buffer.view(-1) for buffer in (self.scores, self.visits, self.hopeless)
        )
        old_scores, old_visits, old_hopeless = scores[keys], visits[keys], hopeless[keys]
        change = (values - old_scores).where(seen, 0)
        counted = seen if accepted is None else seen & accepted[:, None]
        move_average(self.mean, values, counted, 0.002)
        move_average(self.variance, change.square(), counted & (old_visits > 0), 0.01)
        new_visits = old_visits + seen
        n_averaged = new_visits.clamp(1, _WINDOW)
        new_scores = old_scores + change / n_averaged
        highest = new_scores + _MARGIN * (self.variance / n_averaged).sqrt()
        low = (highest < threshold * self.mean) & (self.mean >= _LEAST_MEAN)
        scores[keys] = new_scores
        visits[keys] = new_visits
        hopeless[keys] = (low & (new_visits >= min_visits)).where(seen, old_hopeless)
