"""Samplers that draw a share of the tasks in a way of their own, and the others uniformly."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from adaptask.arguments import check_number
from adaptask.samplers.base import Sampler, of_category_sets


class MixedSampler(Sampler):
    """Draw a share of the tasks by `draw_special`, evenly spread, and the others uniformly.

    Of any m tasks in a row, m times `share` are special, rounded up or down, however many are
    drawn at once. A half of a batch is a half, and of single tasks every second one is special.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        share: Share of special tasks, 0 to 1.
        seed: Seed of the random stream.
        device: Where the sampler works.
    """

    tasks_drawn: Tensor
    """Scalar int64: the number of tasks drawn so far."""

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        share: float,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, device=device)
        self.share = check_number("share", share, low=0, high=1)
        zero = torch.zeros((), dtype=torch.int64, device=device)
        self.register_buffer("tasks_drawn", zero)

    @abstractmethod
    def is_ready(self) -> Tensor:
        """Return whether special tasks can be drawn yet, a scalar bool on the sampler's device."""

    @abstractmethod
    def draw_special(self, turns: Tensor) -> Tensor:
        """Return special tasks, `tasks x way`; any tasks if there are no special ones yet.

        Args:
            turns: For each task the number of special ones before it in this draw, `tasks` int64.
        """

    @abstractmethod
    def special_log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of each category set as a special task, `tasks` float64."""

    def draw(self, n_tasks: int) -> Tensor:
        """Return the classes of new tasks, `tasks x way`."""
        numbers = self.tasks_drawn + torch.arange(n_tasks + 1, device=self.device)
        self.tasks_drawn += n_tasks
        uniform = self.uniform_noise(n_tasks, self.n_classes).topk(self.n_way).indices
        turns = (numbers.double() * self.share).long()
        special = self.draw_special(turns[:-1] - turns[0])
        is_special = (turns.diff() > 0) & self.is_ready()
        return torch.where(is_special[:, None], special, uniform)

    @of_category_sets
    def log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of each category set, `tasks` float64.

        It is that of a task of unknown number: with the probability `share` it is a special one.
        """
        n_sets = math.comb(self.n_classes, self.n_way)
        uniform = class_ids.new_full(class_ids.shape[:1], 1 / n_sets, dtype=torch.float64)
        share = self.share * self.is_ready().double()
        return ((1 - share) * uniform + share * self.special_log_prob(class_ids).exp()).log()

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        return f"{super().extra_repr()}, share={self.share:g}"
