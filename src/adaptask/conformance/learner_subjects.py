"""A learner under test, and made-up episodes for it, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from adaptask.arguments import check_image_shape, check_integer, check_number, check_seed, shown
from adaptask.conformance.requirements import check_factory
from adaptask.errors import ArgumentError
from adaptask.interfaces import Episodes, Outcome
from adaptask.randomness import find_device

_N_NAMES = 64

LearnerFactory = Callable[[int], Any]
"""Builds a fresh learner; torch's random stream has been seeded with the number it is given."""


@dataclass(frozen=True)
class LearnerSubject:
    """How to build the learner under test, and which episodes it takes.

    Raises:
        ArgumentError: If a value cannot be used.
    """

    build: LearnerFactory
    image_shape: tuple[int, int, int] = (1, 16, 16)
    """Channels, height and width."""
    n_way: int = 4
    bfloat16_tolerance: float = 0.05
    """By how much a probability may differ in mixed precision."""
    device: torch.device | str = "cpu"
    """Where the learner is put to the test."""

    def __post_init__(self) -> None:
        check_factory(self.build)
        check_image_shape(self.image_shape)
        # The laws try tasks of one class more.
        check_integer("n_way", self.n_way, low=2, high=_N_NAMES - 1, meaning="what the laws know")
        check_number("bfloat16_tolerance", self.bfloat16_tolerance, low=0, high=1)
        find_device(self.device)

    def learner(self, seed: int, *, training: bool, dtype: torch.dtype = torch.float32) -> Any:
        """Return a fresh learner, ready to train or to evaluate."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            learner = self.build(seed)
        return learner.to(self.device, dtype).train(training)

    def trained(self, seed: int, *, dtype: torch.dtype = torch.float32) -> Any:
        """Return a learner after a few steps, ready to evaluate: nothing of it is as it began."""
        learner = self.learner(seed, training=True, dtype=dtype)
        train(learner, self.episodes(seed, dtype=dtype), n_steps=3)
        return learner.eval()

    def episodes(
        self,
        seed: int,
        *,
        n_tasks: int = 3,
        n_way: int | None = None,
        n_shot: int = 2,
        n_query: int = 3,
        dtype: torch.dtype = torch.float32,
    ) -> Episodes:
        """Return episodes whose classes can be told apart: a pattern each, and noise.

        Raises:
            ArgumentError: If an argument cannot be used.
        """
        n_way = self.n_way if n_way is None else n_way
        n_way = check_integer("n_way", n_way, low=1, high=_N_NAMES)
        n_tasks = check_integer("n_tasks", n_tasks, low=1)
        n_shot, n_query = (check_integer("n_shot and n_query", n, low=1) for n in (n_shot, n_query))
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ArgumentError(
                f"dtype must be a floating-point type of torch; got {shown(dtype)}."
            )
        random = torch.Generator().manual_seed(check_seed("seed", seed))

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, *self.image_shape, generator=random, dtype=torch.float64)

        patterns = normal(n_tasks, n_way, 1)
        support = (patterns + 0.5 * normal(n_tasks, n_way, n_shot)).flatten(1, 2).to(dtype)
        query = (patterns + 0.5 * normal(n_tasks, n_way, n_query)).flatten(1, 2).to(dtype)
        positions = torch.arange(n_way)
        names = [torch.randperm(_N_NAMES, generator=random)[:n_way] for _ in range(n_tasks)]
        return Episodes(
            class_ids=torch.stack(names).to(self.device),
            support_images=support.to(self.device),
            support_labels=positions.repeat_interleave(n_shot).repeat(n_tasks, 1).to(self.device),
            query_images=query.to(self.device),
            query_labels=positions.repeat_interleave(n_query).repeat(n_tasks, 1).to(self.device),
        )


def parts(episodes: Episodes) -> dict[str, Tensor]:
    """Return the tensors of episodes by name."""
    return {field.name: getattr(episodes, field.name) for field in fields(episodes)}


def with_other_queries(episodes: Episodes, order: Tensor) -> Episodes:
    """Return the episodes with their queries in another order."""
    return replace(
        episodes,
        query_images=episodes.query_images[:, order],
        query_labels=episodes.query_labels[:, order],
    )


def with_other_support(episodes: Episodes, order: Tensor) -> Episodes:
    """Return the episodes with the images of the support set in another order, labels kept."""
    return replace(episodes, support_images=episodes.support_images[:, order])


def outcome_of(learner: Any, episodes: Episodes) -> Outcome:
    """Return what training makes of episodes: `training_step`, or cross-entropy without one."""
    if hasattr(learner, "training_step"):
        outcome: Outcome = learner.training_step(episodes)
        return outcome
    query_logits = learner(episodes)
    loss = cross_entropy(query_logits.flatten(0, 1), episodes.query_labels.flatten())
    return Outcome(loss=loss, query_logits=query_logits.detach())


def train(learner: Any, episodes: Episodes, *, n_steps: int) -> list[float]:
    """Train on the same episodes, and return the cross-entropy of the logits at each step."""
    optimizer = torch.optim.Adam(learner.parameters(), lr=3e-3)
    losses = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for step in range(n_steps):
            if hasattr(learner, "begin_step"):
                learner.begin_step(step, n_steps)
            outcome = outcome_of(learner, episodes)
            optimizer.zero_grad()
            outcome.loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            flat = outcome.query_logits.flatten(0, 1)
            losses.append(float(cross_entropy(flat, episodes.query_labels.flatten())))
    return losses
