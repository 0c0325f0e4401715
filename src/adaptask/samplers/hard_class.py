"""Hard classes: tasks of classes that failed lately (hard-task meta-batches)."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptask.arguments import check_integer
from adaptask.errors import StateError
from adaptask.samplers.feedback import Feedback
from adaptask.samplers.mixing import MixedSampler

_NEVER = -(2**62)


class HardClassSampler(MixedSampler):
    """Compose half of the tasks from classes that failed lately, draw the others uniformly.

    The class of a task that fails is the one whose queries give the lowest mean probability to
    the right answer. F is the set of classes that failed in the last `memory` tasks. A hard task
    has K classes of F, every subset with the same probability, or all of F and random other
    classes if F has fewer than K.

    The authors' repository has no code for it; they refer to the journal version of the paper for
    the settings. `share` and `memory` are ours and not taken from there. Deviations and decisions:

    - The paper composes hard tasks from the failed classes of a meta-batch and then forgets those.
      The released training script has meta-batches of 2 tasks, so at most 2 failed classes, fewer
      than the ways of a task. A sliding window of tasks works for any batch, also of one task.
    - The paper ranks the classes of a task by accuracy and takes the lowest. Few queries often
      leave several; the mean probability of the right answer tells which.
    - All tasks of one update are equally old, so that their order does not matter: if it has more
      than `memory`, all of them count.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        share: Share of the tasks that are composed of failed classes, 0 to 1.
        memory: Number of past tasks whose failed classes come back.
        seed: Seed of the random stream.
        device: Where the sampler works.

    Reference: Sun, Liu, Chua and Schiele, Meta-Transfer Learning for Few-Shot Learning, CVPR 2019,
    the hard-task meta-batch; Sun et al., Meta-Transfer Learning through Hard Tasks, 2019.
    """

    description = "composes half of the tasks from classes that failed most in recent tasks"

    last_failures: Tensor
    """`classes` int64: number of tasks seen when a class last failed; very negative if never."""
    tasks_seen: Tensor
    """Scalar int64: number of tasks learned from so far."""

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        share: float = 0.5,
        memory: int = 32,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, share=share, seed=seed, device=device)
        self.memory = check_integer("memory", memory, low=1)
        never = torch.full((self.n_classes,), _NEVER, dtype=torch.int64, device=device)
        self.register_buffer("last_failures", never)
        self.register_buffer("tasks_seen", torch.zeros((), dtype=torch.int64, device=device))

    @property
    def has_failed(self) -> Tensor:
        """Which classes failed in the last `memory` tasks, `classes` bool."""
        return self.last_failures > self.tasks_seen - self.memory

    def is_ready(self) -> Tensor:
        """Return whether any class has failed."""
        return self.has_failed.any()

    def draw_special(self, turns: Tensor) -> Tensor:
        """Return tasks of failed classes, as far as there are enough, `tasks x way`."""
        noise = self.uniform_noise(len(turns), self.n_classes)
        return (noise + self.has_failed).topk(self.n_way).indices

    def special_log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of each category set as a hard task."""
        n_failed = self.has_failed.sum()
        is_enough = n_failed >= self.n_way
        # Of the failed classes K are chosen, or all of them and some others.
        n_free = torch.where(is_enough, n_failed, self.n_classes - n_failed).double()
        n_chosen = torch.where(is_enough, self.n_way, self.n_way - n_failed).double()
        log_sets = (
            (n_free + 1).lgamma() - (n_chosen + 1).lgamma() - (n_free - n_chosen + 1).lgamma()
        )
        is_hard = self.has_failed[class_ids].sum(-1) == n_failed.clamp_max(self.n_way)
        return torch.where(is_hard, -log_sets, -torch.inf)

    def learn(self, feedback: Feedback) -> None:
        """Remember the class of each task that failed."""
        class_ids = torch.as_tensor(feedback.class_ids)
        right = torch.as_tensor(feedback.confusion).diagonal(dim1=1, dim2=2)
        failed = class_ids.gather(1, right.argmin(-1, keepdim=True))[:, 0]
        if feedback.accepted is None:
            self.tasks_seen += len(class_ids)
            times = self.tasks_seen.expand(len(class_ids))
        else:
            accepted = torch.as_tensor(feedback.accepted)
            self.tasks_seen += accepted.sum()
            times = self.tasks_seen.where(accepted, _NEVER)
        self.last_failures.scatter_reduce_(0, failed, times, "amax")

    def _check_buffers(self, buffers: dict[str, Tensor]) -> None:
        if (buffers["last_failures"] > buffers["tasks_seen"]).any():
            raise StateError(
                "last_failures of the state must not be above tasks_seen; the state is damaged."
            )

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        return f"{super().extra_repr()}, memory={self.memory}"
