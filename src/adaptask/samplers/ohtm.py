"""Online hard task mining (OHTM): the hardest tasks so far come back."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptask.arguments import check_integer
from adaptask.errors import StateError
from adaptask.samplers.feedback import Feedback, classes_fit
from adaptask.samplers.mixing import MixedSampler


class OHTMSampler(MixedSampler):
    """Draw half of the tasks from a buffer of the hardest ones so far, the others uniformly.

    The buffer holds the `buffer_size` tasks with the lowest scores among all that were trained
    on. The score of a task is the mean probability that its queries gave to the right class when
    the task was last trained on:

        score(L) = 1 / K * sum over y in L of the mean of p(y|q) over the queries q of y.

    After `warmup` updates a share of the tasks is drawn from the buffer, each of its tasks with
    the same probability and none twice in a batch, unless the batch needs more than there are. A
    task that comes back gets its new score, so one that was learned leaves the buffer.

    Deviations from the released code (the paper gives no algorithm):

    - There half of a batch is always the same: the batch/2 hardest of the 50, although 50 are
      kept. A task further down is neither trained on nor scored again, so it keeps an old score.
      Here all of the buffer comes back in turn. In batches of one task the code never mines, since
      it rounds the half down; here every second task is from the buffer.
    - There the score is the share of right answers, which is the same for many tasks if queries
      are few. The mean probability of the right answer orders those too.
    - There a task is a list of classes; here it is a set, and the order of classes does not
      matter. A set that is in several tasks of one update gets the mean of their scores.
    - In early versions of the code the buffer was never sorted: it kept the oldest tasks, not the
      hardest ones.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        share: Share of the tasks that come from the buffer, 0 to 1.
        buffer_size: Number of tasks in the buffer.
        warmup: Number of updates before the buffer is used.
        seed: Seed of the random stream.
        device: Where the sampler works.

    Reference: Kumar, Deleu and Bengio, The Effect of Diversity in Meta-Learning, AAAI 2023.
    """

    description = "brings back the tasks with the lowest accuracy so far, for half of each batch"

    hardest_tasks: Tensor
    """`buffer_size x way` int64, sorted within a row; the hardest is first."""
    scores: Tensor
    """`buffer_size`, lowest first; infinity where the buffer is empty."""
    n_updates: Tensor
    """Scalar int64: the number of updates so far."""

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        share: float = 0.5,
        buffer_size: int = 50,
        warmup: int = 32,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, share=share, seed=seed, device=device)
        self.buffer_size = check_integer("buffer_size", buffer_size, low=1)
        self.warmup = check_integer("warmup", warmup, low=0)
        empty = torch.arange(self.n_way, device=device).repeat(self.buffer_size, 1)
        self.register_buffer("hardest_tasks", empty)
        self.register_buffer("scores", torch.full((self.buffer_size,), torch.inf, device=device))
        self.register_buffer("n_updates", torch.zeros((), dtype=torch.int64, device=device))

    def is_ready(self) -> Tensor:
        """Return whether the buffer is used yet."""
        return (self.n_updates >= self.warmup) & self.scores[0].isfinite()

    def draw_special(self, turns: Tensor) -> Tensor:
        """Return tasks of the buffer in random order, again and again, `tasks x way`."""
        is_filled = self.scores.isfinite()
        noise = self.uniform_noise(self.buffer_size)
        order = noise.masked_fill(~is_filled, torch.inf).argsort()
        return self.hardest_tasks[order[turns % is_filled.sum().clamp_min(1)]]

    def special_log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of each category set as a task of the buffer."""
        is_filled = self.scores.isfinite()
        same = (class_ids.sort(-1).values[:, None] == self.hardest_tasks).all(-1) & is_filled
        return (same.sum(-1).double() / is_filled.sum().clamp_min(1)).log()

    def learn(self, feedback: Feedback) -> None:
        """Keep the tasks with the lowest scores, old and new."""
        new_tasks = torch.as_tensor(feedback.class_ids).sort(-1).values
        new_scores = torch.as_tensor(feedback.confusion).diagonal(dim1=1, dim2=2).mean(-1)
        counts = torch.ones_like(new_scores, dtype=torch.bool)
        if feedback.accepted is not None:
            counts = torch.as_tensor(feedback.accepted)
            new_scores = new_scores.where(counts, 0)
        # A set that comes more than once: the mean at its first place, nothing at the others.
        same = (new_tasks[:, None] == new_tasks).all(-1) & counts
        new_scores = (same * new_scores).sum(-1) / same.sum(-1)
        is_first = ~same.tril(-1).any(-1) & counts
        returned = ((self.hardest_tasks[:, None] == new_tasks).all(-1) & counts).any(-1)
        tasks = torch.cat((self.hardest_tasks, new_tasks))
        scores = torch.cat(
            (
                self.scores.masked_fill(returned, torch.inf),
                new_scores.masked_fill(~is_first, torch.inf),
            )
        )
        kept = scores.argsort(stable=True)[: self.buffer_size]
        no_task = torch.arange(self.n_way, device=self.device)
        self.scores.copy_(scores[kept])
        self.hardest_tasks.copy_(tasks[kept].where(self.scores.isfinite()[:, None], no_task))
        self.n_updates += counts.any()

    def _check_buffers(self, buffers: dict[str, Tensor]) -> None:
        tasks, scores = buffers["hardest_tasks"], buffers["scores"]
        if not bool(classes_fit(tasks, self.n_classes).all()) or scores.isnan().any():
            raise StateError(
                "hardest_tasks of the state must be sets of classes, and scores numbers; the "
                "state is damaged."
            )

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        return f"{super().extra_repr()}, buffer_size={self.buffer_size}, warmup={self.warmup}"
