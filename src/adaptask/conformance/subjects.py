"""Made-up feedback for a sampler under test, good and bad, the same for the same seed."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adaptask.interfaces import TaskSampler

Arguments = tuple[Any, Any, Any]

_N_QUERY = 4
_N_LABELS = 3
_MOST_OUTCOMES = 2_000


@dataclass(frozen=True)
class Subject:
    """A sampler under test, and what the laws need to know of it."""

    sampler: Any
    n_items: int
    """Number of things there are to draw."""
    row: tuple[int, ...]
    """The shape of one draw: `(n_way,)` for tasks, `()` for single instances."""

    @property
    def device(self) -> torch.device:
        """Where the sampler works."""
        return next((b.device for b in self.sampler.buffers()), torch.device("cpu"))

    @property
    def is_enumerable(self) -> bool:
        """Whether `outcomes()` are all there are."""
        return math.comb(self.n_items, math.prod(self.row)) <= _MOST_OUTCOMES

    def outcomes(self) -> Tensor:
        """Return what can be drawn, each set once, or the first of it."""
        if not self.row:
            return torch.arange(min(self.n_items, _MOST_OUTCOMES), device=self.device)
        sets = itertools.combinations(range(self.n_items), self.row[0])
        return torch.tensor(list(itertools.islice(sets, _MOST_OUTCOMES)), device=self.device)

    def keys(self, ids: Tensor) -> list[Any]:
        """Return something hashable for each draw, equal for equal sets."""
        return [tuple(sorted(row)) if self.row else row for row in ids.tolist()]

    def feedback(self, *, seed: int, n_tasks: int) -> tuple[Tensor, Tensor, Tensor]:
        """Make up what a learner might say."""
        generator = torch.Generator().manual_seed(seed)
        if self.row:
            n_way = self.row[0]
            ranks = torch.rand(n_tasks, self.n_items, generator=generator)
            ids = ranks.argsort(-1)[:, :n_way]
            logits = torch.randn(n_tasks, n_way * _N_QUERY, n_way, generator=generator)
            labels = torch.arange(n_way).repeat_interleave(_N_QUERY).repeat(n_tasks, 1)
        else:
            ids = torch.randint(self.n_items, (n_tasks,), generator=generator)
            logits = torch.randn(n_tasks, _N_LABELS, generator=generator)
            labels = torch.randint(_N_LABELS, (n_tasks,), generator=generator)
        probabilities = (2 * logits).softmax(-1)
        return ids.to(self.device), probabilities.to(self.device), labels.to(self.device)

    def bad_feedback(self) -> list[tuple[str, Arguments]]:
        """Make up what must be refused, each with a name."""
        ids, probabilities, labels = self.feedback(seed=4, n_tasks=1)
        first = (0,) * ids.ndim
        n_labels = probabilities.shape[-1]
        cell = (0,) * probabilities.ndim
        answer = (0,) * labels.ndim
        bad: list[tuple[str, Arguments]] = [
            ("NaN", (ids, _edited(probabilities, cell, math.nan), labels)),
            ("infinity", (ids, _edited(probabilities, cell, math.inf), labels)),
            ("logits", (ids, probabilities.log(), labels)),
            ("rows that miss one", (ids, probabilities * 0.9, labels)),
            ("a negative probability", (ids, probabilities * 3 - 2 / n_labels, labels)),
            ("a label too large", (ids, probabilities, _edited(labels, answer, n_labels))),
            ("a negative label", (ids, probabilities, _edited(labels, answer, -1))),
            ("an id too large", (_edited(ids, first, self.n_items), probabilities, labels)),
            ("a negative id", (_edited(ids, first, -1), probabilities, labels)),
            ("another number of tasks", (torch.cat((ids, ids)), probabilities, labels)),
            ("another number of labels", (ids, probabilities, labels[..., 1:])),
            ("nothing at all", (ids[:0], probabilities[:0], labels[:0])),
            ("ids as float", (ids.float(), probabilities, labels)),
            ("probabilities as integers", (ids, probabilities.long(), labels)),
            ("labels as float", (ids, probabilities, labels.float())),
            ("lists", (ids.tolist(), probabilities, labels)),
        ]
        if self.row:
            twice = _edited(ids, (0, 0), int(ids[0, 1]))
            bad += [
                ("a class twice in a task", (twice, probabilities, labels)),
                ("a class without queries", (ids, probabilities, labels.clamp_min(1))),
                ("ids of another way", (ids[:, 1:], probabilities, labels)),
                ("probabilities of another way", (ids, probabilities[..., 1:], labels)),
            ]
        return bad


def describe(sampler: Any) -> Subject:
    """Tell what kind of sampler it is.

    Raises:
        AssertionError: If it is none.
    """
    if hasattr(sampler, "n_instances"):
        return Subject(sampler, sampler.n_instances, ())
    if not isinstance(sampler, TaskSampler):
        wanted = "n_classes, n_way, sample, update, log_prob, state_dict and load_state_dict"
        raise AssertionError(f"A task sampler has {wanted}; {type(sampler).__name__} has not.")
    return Subject(sampler, sampler.n_classes, (sampler.n_way,))


def _edited(tensor: Tensor, at: tuple[int, ...], value: float) -> Tensor:
    tensor = tensor.clone()
    tensor[at] = value
    return tensor
