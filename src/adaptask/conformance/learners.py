"""The laws of learners: each raises an `AssertionError` that says what was expected and what came.

Laws about equality hold in float64 and in evaluation, where a learner draws no random numbers and
tasks do not influence each other.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from adaptask.conformance.laws import check_laws, equal, require
from adaptask.errors import AdaptaskError
from adaptask.interfaces import Episodes, Outcome, gives_task_losses, take_tasks

LearnerFactory = Callable[[int], Any]
"""Builds a fresh learner; torch's random stream has been seeded with the number it is given."""

_TOLERANCE = 1e-7


def check_learner(
    build: LearnerFactory,
    *,
    image_shape: tuple[int, int, int] = (1, 16, 16),
    n_way: int = 4,
    bfloat16_tolerance: float = 0.05,
    device: torch.device | str = "cpu",
) -> None:
    """Check a learner against every law of this module.

    The order of classes is checked unless the learner has an attribute `order_free` that is False.

    Args:
        build: Returns a fresh learner. Torch's random stream is seeded before, with the number
            that it is given. Keep it small: few filters, small images.
        image_shape: Channels, height and width of the images that it takes.
        n_way: Number of classes per task; others are tried too, and may be refused with an
            `AdaptaskError`.
        bfloat16_tolerance: By how much a probability may differ in mixed precision.
        device: Where the learner is tested.

    Raises:
        AssertionError: If a law is broken.
    """
    subject = LearnerSubject(build, image_shape, n_way, bfloat16_tolerance, device)
    check_laws((is_a_module, *LEARNER_LAWS), subject)


def is_a_module(subject: LearnerSubject) -> None:
    """It can be built, and is a `torch.nn.Module`."""
    learner = subject.build(0)
    require(isinstance(learner, nn.Module), "a learner is a torch.nn.Module", type(learner))


def logits_have_their_form(subject: LearnerSubject) -> None:
    """Logits are finite and `tasks x queries x way`, for any number of tasks, shots and queries."""
    for training in (True, False):
        learner = subject.learner(0, training=training)
        for n_tasks, n_shot, n_query in ((1, 1, 2), (2, 5, 1), (3, 2, 4)):
            episodes = subject.episodes(0, n_tasks=n_tasks, n_shot=n_shot, n_query=n_query)
            _require_form(learner(episodes), episodes)
        require(learner.training == training, "forward leaves training or evaluation as it is")


def other_ways_work_or_are_refused(subject: LearnerSubject) -> None:
    """Tasks of more or fewer classes are classified, or refused with an AdaptaskError."""
    learner = subject.learner(1, training=False)
    for n_way in (2, subject.n_way + 1):
        episodes = subject.episodes(1, n_way=n_way)
        try:
            query_logits = learner(episodes)
        except AdaptaskError as error:
            require(len(str(error)) > 20, f"the error on {n_way} ways says what to do", error)
        else:
            _require_form(query_logits, episodes)


def permuting_the_classes_permutes_the_logits(subject: LearnerSubject) -> None:
    """No position in a task is special, unless the learner says so: `order_free = False`."""
    learner, episodes = subject.trained(2, dtype=torch.float64), _float64(subject, 2)
    if not getattr(learner, "order_free", True):
        return
    order = torch.arange(subject.n_way, device=subject.device).roll(1)
    moved = replace(
        episodes,
        class_ids=episodes.class_ids[:, order],
        support_images=_blocks(episodes.support_images, order),
        query_images=_blocks(episodes.query_images, order),
    )
    expected = _blocks(_evaluate(learner, episodes), order)[..., order]
    law = "permuting the classes permutes the logits, or order_free is False"
    _require_close(_evaluate(learner, moved), expected, law)


def the_order_of_shots_does_not_matter(subject: LearnerSubject) -> None:
    """The support images of a class may come in any order, unless `order_free` is False."""
    learner, episodes = subject.trained(3, dtype=torch.float64), _float64(subject, 3, n_shot=3)
    if not getattr(learner, "order_free", True):
        return
    places = torch.arange(3 * subject.n_way, device=subject.device)
    order = places.view(-1, 3).roll(1, dims=1).flatten()
    reordered = replace(episodes, support_images=episodes.support_images[:, order])
    law = "the order of shots does not matter, or order_free is False"
    _require_close(_evaluate(learner, reordered), _evaluate(learner, episodes), law)


def permuting_the_queries_permutes_the_rows(subject: LearnerSubject) -> None:
    """Where a query stands tells nothing about its class."""
    learner, episodes = subject.trained(4, dtype=torch.float64), _float64(subject, 4)
    n_queries = episodes.query_images.shape[1]
    order = torch.randperm(n_queries, generator=torch.Generator().manual_seed(0))
    order = order.to(subject.device)
    moved = replace(
        episodes,
        query_images=episodes.query_images[:, order],
        query_labels=episodes.query_labels[:, order],
    )
    law = "permuting the queries permutes the rows of the logits"
    _require_close(_evaluate(learner, moved), _evaluate(learner, episodes)[:, order], law)


def the_answers_are_not_read(subject: LearnerSubject) -> None:
    """Predictions do not depend on the query labels, nor on which dataset classes these are."""
    learner, episodes = subject.trained(5), subject.episodes(5)
    expected = _evaluate(learner, episodes)
    other_answers = replace(episodes, query_labels=episodes.query_labels.flip(1))
    same = torch.equal(_evaluate(learner, other_answers), expected)
    require(same, "predictions do not depend on the query labels")
    other_names = replace(episodes, class_ids=episodes.class_ids + 1)
    same = torch.equal(_evaluate(learner, other_names), expected)
    require(same, "predictions do not depend on the names of the classes")


def the_support_set_is_read(subject: LearnerSubject) -> None:
    """Predictions depend on the support set of their task."""
    learner, episodes = subject.trained(6), subject.episodes(6)
    order = torch.arange(subject.n_way, device=subject.device).roll(1)
    other = replace(episodes, support_images=_blocks(episodes.support_images, order))
    same = torch.equal(_evaluate(learner, other), _evaluate(learner, episodes))
    require(not same, "predictions depend on the support set")


def tasks_do_not_influence_each_other(subject: LearnerSubject) -> None:
    """In evaluation a batch of tasks gives what each gives alone."""
    learner, episodes = subject.trained(7, dtype=torch.float64), _float64(subject, 7)
    together = _evaluate(learner, episodes)
    for task in range(len(together)):
        one = take_tasks(episodes, task, task + 1)
        law = "in evaluation a batch of tasks gives what each gives alone"
        _require_close(together[task : task + 1], _evaluate(learner, one), law)


def training_has_an_outcome(subject: LearnerSubject) -> None:
    """The loss is a finite scalar to differentiate, the logits are detached."""
    learner, episodes = subject.learner(8, training=True), subject.episodes(8)
    outcome = _outcome_of(learner, episodes)
    require(outcome.loss.shape == (), "the loss is a scalar", tuple(outcome.loss.shape))
    require(bool(outcome.loss.isfinite()), "the loss is finite", outcome.loss)
    require(outcome.loss.requires_grad, "the loss can be differentiated")
    require(not outcome.query_logits.requires_grad, "the outcome's logits are detached")
    _require_form(outcome.query_logits, episodes)


def gradients_reach_every_parameter(subject: LearnerSubject) -> None:
    """Every parameter gets a finite gradient; none that is a matrix or a number gets only zeros.

    Vectors may: normalization removes what a bias before it adds.
    """
    learner = subject.learner(9, training=True)
    _outcome_of(learner, subject.episodes(9)).loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in learner.named_parameters():
        if parameter.requires_grad:
            require(parameter.grad is not None, f"the gradient reaches {name}")
            require(bool(parameter.grad.isfinite().all()), f"the gradient of {name} is finite")
            if parameter.ndim != 1:
                require(bool(parameter.grad.any()), f"the gradient of {name} is not zero")


def training_lowers_the_loss(subject: LearnerSubject) -> None:
    """Thirty steps of Adam on the same episodes lower the cross-entropy of their logits."""
    learner = subject.learner(10, training=True)
    losses = _train(learner, subject.episodes(10), n_steps=30)
    before, after = sum(losses[:3]) / 3, sum(losses[-3:]) / 3
    require(after < before, "training lowers the loss", f"{before:.4f}, then {after:.4f}")


def evaluation_changes_nothing(subject: LearnerSubject) -> None:
    """In evaluation logits repeat to the last bit; state, gradients and episodes stay."""
    learner, episodes = subject.trained(11), subject.episodes(11)
    learner.zero_grad()
    state, given = copy.deepcopy(learner.state_dict()), copy.deepcopy(vars(episodes))
    stream = torch.get_rng_state()
    first, second = _evaluate(learner, episodes), _evaluate(learner, episodes)
    still = torch.equal(stream, torch.get_rng_state())
    promised = not getattr(learner, "draws_in_evaluation", True)
    require(still or not promised, "what has draws_in_evaluation = False draws nothing there")
    require(torch.equal(first, second), "in evaluation logits repeat to the last bit")
    require(equal(state, learner.state_dict()), "evaluation changes no parameter and no buffer")
    require(equal(given, vars(episodes)), "episodes are left as they were")
    with_gradient = [name for name, p in learner.named_parameters() if p.grad is not None]
    require(not with_gradient, "evaluation leaves no gradients", with_gradient)


def a_restored_state_goes_on(subject: LearnerSubject) -> None:
    """A state that went through a file, loaded without pickle, predicts and learns on exactly."""
    original, restored = subject.trained(12), subject.learner(13, training=False)
    file = io.BytesIO()
    torch.save(original.state_dict(), file)
    file.seek(0)
    restored.load_state_dict(torch.load(file, weights_only=True))
    episodes = subject.episodes(12)
    same = torch.equal(_evaluate(original, episodes), _evaluate(restored, episodes))
    require(same, "a restored learner predicts the same to the last bit")
    losses = [_train(learner.train(), episodes, n_steps=3) for learner in (original, restored)]
    require(losses[0] == losses[1], "a restored learner learns on exactly", losses)


def precisions_agree(subject: LearnerSubject) -> None:
    """Probabilities in float32 equal those in float64 to 1e-3, bfloat16's to the tolerance."""
    learner, episodes = subject.trained(14), subject.episodes(14)
    single = _evaluate(learner, episodes).softmax(-1)
    with torch.autocast(episodes.query_images.device.type, dtype=torch.bfloat16):
        half_logits = _evaluate(learner, episodes)
    _require_form(half_logits, episodes)
    gap = float((half_logits.softmax(-1) - single).abs().max())
    limit = subject.bfloat16_tolerance
    require(gap <= limit, f"bfloat16 agrees with float32 to {limit}", gap)
    double = _evaluate(copy.deepcopy(learner).double(), _float64(subject, 14)).softmax(-1)
    require(double.dtype == torch.float64, "float64 stays float64", double.dtype)
    gap = float((double - single).abs().max())
    require(gap < 1e-3, "float32 agrees with float64 to 1e-3", gap)


def no_value_is_read_on_the_host(subject: LearnerSubject) -> None:
    """A step asks for no value: on an accelerator each such question would wait for it."""
    learner, episodes = subject.learner(15, training=True), subject.episodes(15)
    with _RefuseHostReads():  # type: ignore[no-untyped-call]
        _outcome_of(learner, episodes).loss.backward()  # type: ignore[no-untyped-call]
        _evaluate(learner.eval(), episodes)


def losses_of_single_tasks_are_those_of_the_step(subject: LearnerSubject) -> None:
    """If it gives one loss per task, their mean has the value and the gradient of the loss."""
    learner = subject.learner(16, training=True, dtype=torch.float64)
    if not hasattr(learner, "training_step") or not gives_task_losses(learner):
        return
    twin, episodes = copy.deepcopy(learner), _float64(subject, 16)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = learner.training_step(episodes)
        torch.manual_seed(0)
        with _RefuseHostReads():  # type: ignore[no-untyped-call]
            found = twin.training_step_per_task(episodes)
    shape, losses = (len(episodes.class_ids),), found.losses
    is_right = losses is not None and tuple(losses.shape) == shape
    require(is_right, f"training_step_per_task returns losses, one per task, here {shape}", losses)
    for name, mean in (("the loss", found.loss), ("the mean of the losses", losses.mean())):
        gap = float((mean - expected.loss).detach().abs())
        require(gap < _TOLERANCE, f"{name} of training_step_per_task is that of a step", gap)
    expected.loss.backward()
    losses.mean().backward()
    for (name, ours), theirs in zip(twin.named_parameters(), learner.parameters(), strict=True):
        if theirs.grad is not None:
            gap = float((ours.grad - theirs.grad).abs().max())
            require(gap < _TOLERANCE, f"the gradient of {name} is that of a step", gap)


LEARNER_LAWS: tuple[Callable[[LearnerSubject], None], ...] = (
    logits_have_their_form,
    other_ways_work_or_are_refused,
    permuting_the_classes_permutes_the_logits,
    the_order_of_shots_does_not_matter,
    permuting_the_queries_permutes_the_rows,
    the_answers_are_not_read,
    the_support_set_is_read,
    tasks_do_not_influence_each_other,
    training_has_an_outcome,
    gradients_reach_every_parameter,
    training_lowers_the_loss,
    evaluation_changes_nothing,
    a_restored_state_goes_on,
    precisions_agree,
    no_value_is_read_on_the_host,
    losses_of_single_tasks_are_those_of_the_step,
)
"""The laws that `check_learner` checks, each a function of a learner under test."""


@dataclass(frozen=True)
class LearnerSubject:
    """How to build the learner under test, and which episodes it takes."""

    build: LearnerFactory
    image_shape: tuple[int, int, int] = (1, 16, 16)
    """Channels, height and width."""
    n_way: int = 4
    bfloat16_tolerance: float = 0.05
    """By how much a probability may differ in mixed precision."""
    device: torch.device | str = "cpu"
    """Where the learner is tested."""

    def learner(self, seed: int, *, training: bool, dtype: torch.dtype = torch.float32) -> Any:
        """Return a fresh learner, ready to train or to evaluate."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            learner = self.build(seed)
        return learner.to(self.device, dtype).train(training)

    def trained(self, seed: int, *, dtype: torch.dtype = torch.float32) -> Any:
        """Return a learner after a few training steps, ready to evaluate."""
        learner = self.learner(seed, training=True, dtype=dtype)
        _train(learner, self.episodes(seed, dtype=dtype), n_steps=3)
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
        """Return episodes whose classes can be told apart: one pattern each, plus noise."""
        n_way = self.n_way if n_way is None else n_way
        random = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, *self.image_shape, generator=random, dtype=torch.float64)

        patterns = normal(n_tasks, n_way, 1)
        support = (patterns + 0.5 * normal(n_tasks, n_way, n_shot)).flatten(1, 2).to(dtype)
        query = (patterns + 0.5 * normal(n_tasks, n_way, n_query)).flatten(1, 2).to(dtype)
        positions = torch.arange(n_way)
        names = [torch.randperm(2 * n_way, generator=random)[:n_way] for _ in range(n_tasks)]
        return Episodes(
            class_ids=torch.stack(names).to(self.device),
            support_images=support.to(self.device),
            support_labels=positions.repeat_interleave(n_shot).repeat(n_tasks, 1).to(self.device),
            query_images=query.to(self.device),
            query_labels=positions.repeat_interleave(n_query).repeat(n_tasks, 1).to(self.device),
        )


def _outcome_of(learner: Any, episodes: Episodes) -> Outcome:
    """Return what training makes of episodes: `training_step`, or cross-entropy without one."""
    if hasattr(learner, "training_step"):
        outcome: Outcome = learner.training_step(episodes)
        return outcome
    query_logits = learner(episodes)
    loss = cross_entropy(query_logits.flatten(0, 1), episodes.query_labels.flatten())
    return Outcome(loss=loss, query_logits=query_logits.detach())


def _train(learner: Any, episodes: Episodes, *, n_steps: int) -> list[float]:
    """Train on the same episodes, and return the cross-entropy of the logits at each step."""
    optimizer = torch.optim.Adam(learner.parameters(), lr=3e-3)
    losses = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for step in range(n_steps):
            if hasattr(learner, "begin_step"):
                learner.begin_step(step, n_steps)
            outcome = _outcome_of(learner, episodes)
            optimizer.zero_grad()
            outcome.loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            flat = outcome.query_logits.flatten(0, 1)
            losses.append(float(cross_entropy(flat, episodes.query_labels.flatten())))
    return losses


class _RefuseHostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails where a value of a tensor, or a shape that depends on values, is asked for."""

    _READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        reads = func.name() in self._READS
        require(not reads, "no value is read on the host", func.name())
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def _evaluate(learner: Any, episodes: Episodes) -> Tensor:
    query_logits: Tensor = learner(episodes)
    return query_logits


def _float64(subject: LearnerSubject, seed: int, *, n_shot: int = 2) -> Episodes:
    return subject.episodes(seed, n_shot=n_shot, dtype=torch.float64)


def _blocks(rows: Tensor, order: Tensor) -> Tensor:
    """Put the blocks of rows that belong to each class into another order, `tasks x rows x ...`."""
    return rows.view(len(rows), len(order), -1, *rows.shape[2:])[:, order].reshape(rows.shape)


def _require_form(query_logits: Tensor, episodes: Episodes) -> None:
    shape = (*episodes.query_labels.shape, episodes.class_ids.shape[1])
    came = tuple(query_logits.shape)
    require(came == shape, f"logits are tasks x queries x way, here {shape}", came)
    require(query_logits.is_floating_point(), "logits are floating point", query_logits.dtype)
    require(bool(query_logits.isfinite().all()), "logits are finite", query_logits)


def _require_close(left: Tensor, right: Tensor, law: str) -> None:
    gap = float((left.log_softmax(-1) - right.log_softmax(-1)).abs().max())
    require(gap < _TOLERANCE, f"{law} (to {_TOLERANCE:g} in float64)", gap)
