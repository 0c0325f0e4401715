"""The data that passes between the parts of the package, and the protocols of these parts.

One training step, with every tensor on one device:

    class_ids = sampler.sample(n_tasks)                                # which classes
    episodes = source.draw(class_ids, n_shot=n_shot, n_query=n_query)  # which images
    query_logits = learner(episodes)                                   # predictions
    loss.backward(); optimizer.step()
    sampler.update(class_ids, query_logits.softmax(-1), episodes.query_labels)
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class TaskSampler(Protocol):
    """Chooses the classes of the next tasks and learns from how their queries were classified.

    Any object with these two methods can be trained with. If it has more, that is used too:

    - `state_dict` and `load_state_dict`, to resume a run exactly;
    - `n_classes` and `n_way`, to check that it fits the data;
    - `uses_class_features`: if it is true, `update` is also given the keyword argument
      `class_features`, the mean feature of every class of a task, `tasks x way x d`, detached;
    - `weigh(losses)`, how much each task of a step counts: from one loss per task, `tasks` float32,
      detached, to one weight per task. The step follows the gradient of the mean over tasks of
      weight * loss; with weights of 1 it is the usual one;
    - `choose(class_ids, losses, n_tasks)`, which tasks to train on: the step draws
      `n_candidates(n_tasks)` tasks, at least `n_tasks`, computes the cross-entropy of each without
      gradient, `candidates` float32, and trains on those whose positions, `n_tasks` distinct
      int64, it returns. `update` gets these alone;
    - `log_prob(class_ids)`, the log-probability of each category set, `tasks`;
    - a tensor `log_potentials`, `classes x classes`, or `log_weights`, `classes`, to save how its
      distribution develops;
    - `prepare()` and `generator`, to be part of a CUDA graph.

    `adaptask.samplers.Sampler` provides everything but the algorithm.
    `adaptask.conformance.check_sampler` checks an implementation.
    """

    def sample(self, n_tasks: int) -> Tensor:
        """Return the `class_ids` of new tasks, `tasks x way` int64, distinct within a row."""
        ...

    def update(self, class_ids: Tensor, probabilities: Tensor, labels: Tensor) -> None:
        """Learn from how the queries of some tasks were classified.

        Args:
            class_ids: The classes of each task, `tasks x way`.
            probabilities: Of every query for every class of its task, `tasks x queries x way`.
            labels: The right answers as positions in the task, `tasks x queries` or `queries`;
                every class has at least one.
        """
        ...


@dataclass(frozen=True)
class Episodes:
    """The images and labels of a batch of tasks, on one device.

    The images of a class are together, classes in the order of `class_ids`: with one shot,
    `support_images[t, k]` is of class `class_ids[t, k]`.
    """

    class_ids: Tensor
    """Dataset-wide classes of each task, `tasks x way` int64."""
    support_images: Tensor
    """`tasks x (way * shot) x channels x height x width`, float."""
    support_labels: Tensor
    """`tasks x (way * shot)` int64, positions in the task, 0 to way - 1."""
    query_images: Tensor
    """`tasks x (way * query) x channels x height x width`, float."""
    query_labels: Tensor
    """`tasks x (way * query)` int64, positions in the task, 0 to way - 1."""


class TaskSource(Protocol):
    """Turns classes into episodes: `adaptask.data.EpisodeSource`, or anything with this method."""

    device: torch.device

    def draw(self, class_ids: Tensor, *, n_shot: int, n_query: int) -> Episodes:
        """Return new episodes of the classes given, `tasks x way`."""
        ...


def take_tasks(episodes: Episodes, start: int, stop: int) -> Episodes:
    """Return the episodes of tasks `start` to `stop - 1`."""
    return Episodes(*(getattr(episodes, field.name)[start:stop] for field in fields(Episodes)))


def select_tasks(episodes: Episodes, positions: Tensor) -> Episodes:
    """Return the episodes at some positions, `tasks` int64, without reading them on the host."""
    parts = (getattr(episodes, field.name) for field in fields(Episodes))
    return Episodes(*(part.index_select(0, positions) for part in parts))


@dataclass(frozen=True)
class Outcome:
    """The result of a learner on a batch of episodes in training."""

    loss: Tensor
    """Scalar, the mean over tasks; its gradient is what the optimizer follows."""
    query_logits: Tensor
    """`tasks x queries x way`, the predictions that feed the sampler; never differentiated."""
    features: Tensor | None = None
    """Features of the images, `tasks x images x ...`, detached: the support images in order, and
    after them the query images where the learner embeds both alike. None if there are none."""
    losses: Tensor | None = None
    """The loss of every task, `tasks`, each with its gradient; their mean is `loss`. Only of
    `training_step_per_task`."""


@runtime_checkable
class EpisodeLearner(Protocol):
    """Classifies the queries of tasks from their support sets: any module with this `forward`.

    A module that has nothing else is trained with the cross-entropy of its logits. For another
    objective add `training_step(episodes) -> Outcome`, and for samplers that weigh tasks
    `training_step_per_task(episodes) -> Outcome` with `losses`; if training changes with time add
    `begin_step(step, n_steps)`, which is called before every step. `adaptask.learners.Learner` has
    them all.
    """

    def __call__(self, episodes: Episodes) -> Tensor:
        """Return the query logits, `tasks x queries x way`."""
        ...


def gives_task_losses(learner: type | object) -> bool:
    """Return whether a learner, or a class of them, has the loss of every task.

    It does if it has no `training_step`, since its loss is then the cross-entropy, or if its
    `training_step_per_task` belongs to its `training_step`: a subclass that overrides only the
    latter trains in another way. A learner that went through `torch.compile` is what it was before.
    """
    learner = getattr(learner, "_orig_mod", learner)
    bases = (learner if isinstance(learner, type) else type(learner)).__mro__
    owners = {
        name: next((base for base in bases if name in vars(base)), None)
        for name in ("training_step", "training_step_per_task")
    }
    step, per_task = owners["training_step"], owners["training_step_per_task"]
    return step is None or (per_task is not None and issubclass(per_task, step))
