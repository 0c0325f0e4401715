"""What crosses the folders of the package: plain data and the protocols behind it.

One step of training reads, with every tensor on one device:

    class_ids = sampler.sample(n_tasks)                                # which classes
    episodes = source.draw(class_ids, n_shot=n_shot, n_query=n_query)  # which images
    query_logits = learner(episodes)                                   # what the learner says
    loss.backward(); optimizer.step()
    sampler.update(class_ids, query_logits.softmax(-1), episodes.query_labels)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class TaskSampler(Protocol):
    """Chooses the classes of the next tasks and learns from how well they were told apart.

    `adaptask.conformance.check_sampler` checks an implementation against this protocol. Deriving
    from `adaptask.samplers.Sampler` provides everything but the algorithm itself.

    A run keeps snapshots of what the distribution follows from, where a sampler has it: a tensor
    `log_potentials`, `classes x classes`, or `log_weights`, `classes`.
    """

    n_classes: int
    """Number of training classes, n."""
    n_way: int
    """Number of classes in a task, K."""

    def sample(self, n_tasks: int) -> Tensor:
        """Return the `class_ids` of new tasks, `tasks x way` int64, distinct within a row."""
        ...

    def update(self, class_ids: Tensor, probabilities: Tensor, labels: Tensor) -> None:
        """Take in how the queries of some tasks were classified.

        Args:
            class_ids: The classes of each task, `tasks x way`.
            probabilities: What the learner gave every query, `tasks x queries x way`.
            labels: The right answers as positions in the task, `tasks x queries` or `queries`;
                every class has at least one.
        """
        ...

    def log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of drawing each category set, `tasks`."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to draw on exactly."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Draw on from where `state_dict` was taken."""
        ...


@dataclass(frozen=True)
class Episodes:
    """The images and labels of a batch of tasks, on one device.

    The images of a class stand together, classes in the order of `class_ids`: with one shot,
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


def take_tasks(episodes: Episodes, start: int, stop: int) -> Episodes:
    """Return the episodes of tasks `start` to `stop - 1`."""
    return Episodes(*(getattr(episodes, field.name)[start:stop] for field in fields(Episodes)))


@dataclass(frozen=True)
class Outcome:
    """What a learner made of a batch of episodes in training."""

    loss: Tensor
    """Scalar, the mean over tasks; its gradient is what the optimiser follows."""
    query_logits: Tensor
    """`tasks x queries x way`, the predictions that feed the sampler; never differentiated."""


@runtime_checkable
class EpisodeLearner(Protocol):
    """Classifies the queries of tasks from their support sets: any module with this `forward`.

    A module that has nothing else is trained with the cross-entropy of its logits. One that wants
    another objective adds `training_step(episodes) -> Outcome`; one whose training changes with
    time adds `begin_step(step, n_steps)`, called before every step. `adaptask.learners.Learner`
    has both.
    """

    def __call__(self, episodes: Episodes) -> Tensor:
        """Return the query logits, `tasks x queries x way`."""
        ...
