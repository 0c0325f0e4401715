"""Repeated tasks: controls that show what little diversity does."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from adaptask.arguments import check_choice, check_integer
from adaptask.errors import StateError
from adaptask.samplers.base import Sampler
from adaptask.samplers.feedback import Feedback, classes_fit

Repeats = Literal["task", "batch", "batches"]


class RepeatSampler(Sampler):
    """Repeat a few tasks, drawn uniformly; the images of a task are new each time.

    What is repeated:

    - `task`: all tasks of the run have the same K classes (NDT, "no diversity task").
    - `batch`: the run has `n_fixed` different tasks. A batch of `n_fixed` tasks has all of them, a
      smaller one some, a larger one all of them again and again (NDB, "no diversity batch").
    - `batches`: every batch has one task, repeated; the next batch has another (NDTB, "no
      diversity tasks per batch").

    The classes of a task come in random order, as in the released code.

    Left out: SBU, "single batch uniform", is the uniform sampler with one task per batch, so it
    needs no sampler; "increased data" has more steps as well. "Fixed pool" of the released code,
    one task per batch that stays for several batches, is not there.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        repeats: What is repeated: one `task`, one `batch` or, within `batches`, one task.
        n_fixed: Number of tasks of a repeated batch; the number of tasks per step for NDB.
        seed: Seed of the random stream.
        device: Where the sampler works.

    Reference: Kumar, Deleu and Bengio, The Effect of Diversity in Meta-Learning, AAAI 2023.
    """

    description = "repeats one task or a few tasks, a control without diversity"
    learns = False
    variants = ("repeats=task", "repeats=batches")

    fixed_tasks: Tensor
    """`tasks x way` int64: what is repeated; not used with `batches`."""

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        repeats: Repeats = "batch",
        n_fixed: int = 32,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, device=device)
        self.repeats = check_choice("repeats", repeats, get_args(Repeats))
        self.n_fixed = check_integer("n_fixed", n_fixed, low=1)
        n_tasks = self.n_fixed if self.repeats == "batch" else 1
        self.register_buffer("fixed_tasks", self._draw_uniformly(n_tasks))

    def _draw_uniformly(self, n_tasks: int) -> Tensor:
        return self.uniform_noise(n_tasks, self.n_classes).topk(self.n_way).indices

    def draw(self, n_tasks: int) -> Tensor:
        """Return the classes of new tasks, `tasks x way`."""
        tasks = self._draw_uniformly(1) if self.repeats == "batches" else self.fixed_tasks
        places = torch.arange(n_tasks, device=self.device) % len(tasks)
        order = self.uniform_noise(len(tasks)).argsort()
        order_within = self.uniform_noise(n_tasks, self.n_way).argsort(-1)
        return tasks[order[places]].gather(1, order_within)

    def learn(self, feedback: Feedback) -> None:
        """Do nothing."""

    def _check_buffers(self, buffers: dict[str, Tensor]) -> None:
        if not bool(classes_fit(buffers["fixed_tasks"], self.n_classes).all()):
            raise StateError("fixed_tasks of the state must be sets of classes; it is damaged.")

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        return f"{super().extra_repr()}, repeats={self.repeats!r}, n_fixed={self.n_fixed}"
