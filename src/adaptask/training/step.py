"""One training step: draw, cut, learn, and tell the sampler; compiled if that is asked for."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy

from adaptask.arguments import check_choice, check_flag, check_integer, check_number
from adaptask.errors import ArgumentError
from adaptask.interfaces import EpisodeLearner, Episodes, Outcome, TaskSampler
from adaptask.kernels import find_kernels
from adaptask.training.evaluation import PRECISIONS, autocast, check_logits
from adaptask.training.group import ALONE, Group, TaskSource
from adaptask.training.metrics import DivergenceWatch, RunningMetrics

Outcomes = Callable[[EpisodeLearner, Episodes], Outcome]

# Of one function, for different learners and shapes; torch gives up after 8.
_MOST_VARIANTS = 64


class Compiled:
    """A function of learner and episodes, compiled when it is first called.

    Learners of the same kind share what was compiled: their weights are arguments. If it cannot be
    compiled, for lack of a compiler perhaps, `report` is told why, and it is called as it is.
    """

    def __init__(self, outcomes: Outcomes, report: Callable[[str], None]) -> None:
        self._plain, self._report = outcomes, report
        self._fast: Outcomes | None = _compiled(outcomes)

    def __call__(self, learner: EpisodeLearner, episodes: Episodes) -> Outcome:
        """Return what the function returns."""
        if self._fast is not None:
            from torch._dynamo.exc import TorchDynamoException

            try:
                return self._fast(learner, episodes)
            except TorchDynamoException as error:
                self._fast = None
                reason = " ".join(str(error).strip().splitlines()[:2])
                self._report(f"Steps are not compiled: {reason}")
        return self._plain(learner, episodes)


@functools.cache
def _compiled(outcomes: Outcomes) -> Outcomes:
    from torch._dynamo import config

    settings: Any = config
    settings.cache_size_limit = max(settings.cache_size_limit, _MOST_VARIANTS)
    # Its checks may follow modules of runs that have ended (torch 2.11; 2.12 leaves them out: pull
    # request 181925).
    if hasattr(settings, "use_recursive_dict_tags_for_guards"):
        settings.use_recursive_dict_tags_for_guards = False
    # It warns of what it could do better, which nobody who trains can act on.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._(dynamo|inductor)")
    # The shapes of a run are fixed: each gets its own kernels.
    return torch.compile(outcomes, dynamic=False)


class TrainingStep:
    """Trains a learner on the tasks that a sampler chooses; nothing in it waits for a GPU.

    Arguments are those of `Trainer`. With `accumulate`, the gradient is that of the mean over all
    tasks, and the sampler is updated once. `report` is told if the step cannot be compiled.

    Raises:
        ArgumentError: If an argument cannot be used.
    """

    def __init__(
        self,
        learner: nn.Module,
        sampler: TaskSampler,
        source: TaskSource,
        optimizer: optim.Optimizer,
        *,
        n_shot: int,
        n_query: int,
        n_tasks: int,
        accumulate: int = 1,
        clip_norm: float | None = None,
        precision: str = "float32",
        compiled: bool = False,
        report: Callable[[str], None] = warnings.warn,
        group: Group = ALONE,
    ) -> None:
        self.group = group
        self.learner, self.sampler, self.source = learner, sampler, source
        check_flag("compiled", compiled)
        self._outcome = Compiled(training_outcome, report) if compiled else training_outcome
        self.optimizer = optimizer
        self.n_shot = check_integer("n_shot", n_shot, low=1)
        self.n_query = check_integer("n_query", n_query, low=1)
        self.n_tasks = check_integer("n_tasks", n_tasks, low=1)
        self.accumulate = check_integer("accumulate", accumulate, low=1)
        if self.n_tasks % (self.accumulate * group.size):
            by_processes = f" times the {group.size} processes" if group.size > 1 else ""
            raise ArgumentError(
                f"n_tasks must be a multiple of accumulate, {accumulate}{by_processes}, so that "
                f"all parts of a step are equal; got {n_tasks}."
            )
        self.clip_norm = clip_norm
        if clip_norm is not None and check_number("clip_norm", clip_norm, low=0, high=inf) == 0:
            raise ArgumentError("clip_norm must be above 0, or nothing is learned; got 0.")
        self.precision = check_choice("precision", precision, PRECISIONS)
        self.metrics = RunningMetrics(source.device)
        class_names = getattr(getattr(source, "image_set", None), "class_names", None)
        self.divergence = DivergenceWatch(
            source.device, sampler.n_way, class_names, is_alone=group.size == 1
        )
        self._kernels = find_kernels("adaptask.training.fused", source.device)
        self._number = torch.zeros((), dtype=torch.int64, device=source.device)
        self._next: int | None = None
        n_classes: int | None = getattr(sampler, "n_classes", None)
        self.class_counts: Tensor | None = None
        """How often each class was drawn, `classes`; None if the sampler has no `n_classes`."""
        if n_classes is not None:
            self.class_counts = torch.zeros(n_classes, dtype=torch.int64, device=source.device)

    def __call__(self, step: int) -> None:
        """Train on new tasks, as step number `step`, counted from 0.

        Raises:
            TrainingError: On the CPU, if the loss is not finite; the weights and the sampler are
                then as they were.
        """
        self.set_number(step)
        self.run()

    def set_number(self, step: int) -> None:
        """Set the number of the next step; on the device it is then counted up by `run`."""
        if self._next != step:
            self._number.fill_(step)
        self._next = step + 1

    def run(self) -> None:
        """Train on new tasks; the same operations each time, so that a graph can hold them."""
        class_ids = self.sampler.sample(self.n_tasks)
        self.optimizer.zero_grad()
        parts = [self._learn(ids) for ids in class_ids.chunk(self.accumulate)]
        probabilities, labels = (torch.cat(part) for part in zip(*parts, strict=True))
        feedback = self.group.exchange(
            self.sampler, probabilities, labels, self.divergence, n_parts=self.accumulate
        )
        self.group.average_gradients(self.learner.parameters())
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.learner.parameters(), self.clip_norm)
        self.optimizer.step()
        self.sampler.update(class_ids, *feedback)
        if self.class_counts is not None:
            drawn = class_ids.flatten()
            self.class_counts.index_add_(0, drawn, torch.ones_like(drawn))
        self._number += 1

    def _note(self, outcome: Outcome, episodes: Episodes) -> None:
        """Add the outcome to the metrics, and check whether the loss is finite."""
        if self._kernels is None:
            self.divergence.watch(self._number, outcome, episodes.class_ids)
            self.metrics.add(outcome, episodes.query_labels)
            return
        self._kernels.note_part(
            outcome.loss,
            outcome.query_logits,
            episodes.query_labels,
            episodes.class_ids,
            self._number,
            sums=self.metrics.sums,
            bad_step=self.divergence.step,
            bad_class_ids=self.divergence.class_ids,
        )

    def _learn(self, class_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Add the gradient of some tasks; return their query probabilities and labels."""
        episodes = self.group.draw(self.source, class_ids, n_shot=self.n_shot, n_query=self.n_query)
        with autocast(self.source.device, self.precision):
            outcome = self._outcome(self.learner, episodes)
        self._note(outcome, episodes)
        (outcome.loss / self.accumulate).backward()  # type: ignore[no-untyped-call]
        return outcome.query_logits.float().softmax(-1), episodes.query_labels


def training_outcome(learner: EpisodeLearner, episodes: Episodes) -> Outcome:
    """Return loss and logits of the learner; cross-entropy if it has no `training_step`."""
    if hasattr(learner, "training_step"):
        outcome: Outcome = learner.training_step(episodes)
        check_logits(outcome.query_logits, episodes)
        return outcome
    query_logits = learner(episodes)
    check_logits(query_logits, episodes)
    loss = cross_entropy(query_logits.flatten(0, 1).float(), episodes.query_labels.flatten())
    return Outcome(loss=loss, query_logits=query_logits.detach())
