"""One training step: draw tasks, learn from them, and update the sampler."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy

from adaptask.arguments import check_choice, check_integer, check_number
from adaptask.backbones.base import evaluation_mode
from adaptask.errors import ArgumentError, TrainingError
from adaptask.interfaces import (
    EpisodeLearner,
    Episodes,
    Outcome,
    TaskSampler,
    TaskSource,
    gives_task_losses,
    select_tasks,
)
from adaptask.kernels import find_kernels
from adaptask.samplers.base import check_tensor
from adaptask.training.distributed import SINGLE_PROCESS, ProcessGroup

Precision = Literal["float32", "bfloat16"]

Outcomes = Callable[[EpisodeLearner, Episodes], Any]

# Of one function, for different learners and shapes; torch gives up after 8.
_MOST_VARIANTS = 64


class TrainingStep:
    """Trains a learner on the tasks that a sampler chooses; nothing in it waits for a GPU.

    Arguments are those of `Trainer`. With `accumulate`, the gradient is that of the mean over all
    tasks, and the sampler is updated once. `report` is called if the step cannot be compiled.

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
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.learner, self.sampler, self.source = learner, sampler, source
        self.optimizer, self.group = optimizer, group
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
        self.precision = check_choice("precision", precision, get_args(Precision))
        self._uses_features = _uses_features(sampler, learner)
        self._n_candidates = check_hooks(
            sampler, learner, n_tasks=n_tasks, accumulate=accumulate, n_processes=group.size
        )
        self._weighs = hasattr(sampler, "weigh")
        self._outcome: Outcomes = per_task_outcome if self._weighs else training_outcome
        self._score: Outcomes = score_tasks
        if compiled:
            self._outcome = Compiled(self._outcome, report)
            self._score = Compiled(self._score, report)
        device = source.device
        self.metrics = RunningMetrics(device)
        class_names = getattr(getattr(source, "image_set", None), "class_names", None)
        self.loss_check = LossCheck(device, class_names)
        self._kernels = find_kernels("adaptask.training.triton_kernels", device)
        self._one = torch.ones((), dtype=torch.int64, device=device)
        self._step_number = torch.zeros((), dtype=torch.int64, device=device)
        self._next_step: int | None = None
        n_classes: int | None = getattr(sampler, "n_classes", None)
        self.class_counts: Tensor | None = None
        """How often each class was drawn, `classes`; None if the sampler has no `n_classes`."""
        if n_classes is not None:
            self.class_counts = torch.zeros(n_classes, dtype=torch.int64, device=device)

    def __call__(self, step: int) -> None:
        """Train on new tasks, as step number `step`, counted from 0.

        Raises:
            TrainingError: On the CPU, if the loss is not finite. Weights, buffers such as the
                statistics of batch normalization, metrics and what the sampler has learned are
                then as they were before the step. Random streams have moved on, so that another
                step draws other tasks.
        """
        self.set_number(step)
        with self._restored_on_error() if self.source.device.type == "cpu" else nullcontext():
            self.run()

    def set_number(self, step: int) -> None:
        """Set the number of the next step; on the device it is then counted up by `run`."""
        if self._next_step != step:
            self._step_number.fill_(step)
        self._next_step = step + 1

    def run(self, beside: Any = None) -> None:
        """Train on new tasks; the same operations each time, so that a graph can hold them.

        With `beside`, a CUDA stream, the sampler learns on it while the gradient is computed.
        """
        if self.accumulate > 1 or self.group.is_connected:  # the feedback is not known before
            beside = None
        class_ids, parts = self._next_tasks()
        for parameters in self.optimizer.param_groups:
            for parameter in parameters["params"]:  # zero_grad() takes ten times as long
                parameter.grad = None
        feedback = _joined([self._add_gradient(episodes, beside) for episodes in parts])
        if self.group.is_connected:
            feedback = self._gather_feedback(feedback)
            self.group.average_gradients(self.learner.parameters())
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.learner.parameters(), self.clip_norm)
        self.optimizer.step()
        if beside is None:
            self._inform_sampler(class_ids, feedback)
        else:
            with torch.cuda.stream(beside):
                self._inform_sampler(class_ids, feedback)
            torch.cuda.current_stream().wait_stream(beside)
        self._step_number += 1

    def _next_tasks(self) -> tuple[Tensor, Iterable[Episodes]]:
        """Return the classes of this step's tasks, and this process's episodes of them, in parts.

        The images of a part are drawn when it is its turn.
        """
        if self._n_candidates is not None:
            class_ids, episodes = self._choose_tasks(self._n_candidates)
            return class_ids, (episodes,)
        class_ids = draw_tasks(self.sampler, self.n_tasks)
        return class_ids, map(self._draw, class_ids.chunk(self.accumulate))

    def _draw(self, class_ids: Tensor) -> Episodes:
        """Return this process's share of new episodes."""
        return self.group.draw(self.source, class_ids, n_shot=self.n_shot, n_query=self.n_query)

    @torch.no_grad()
    def _choose_tasks(self, n_candidates: int) -> tuple[Tensor, Episodes]:
        """Return the tasks that the sampler chooses from candidates: classes, and own episodes.

        Candidates are scored in training mode. The learner's buffers are restored, such as the
        statistics of batch normalization. Every process scores its share, but has the images of
        all, since any of them may become its own.
        """
        sampler: Any = self.sampler
        class_ids = draw_tasks(self.sampler, n_candidates)
        episodes = self.source.draw(class_ids, n_shot=self.n_shot, n_query=self.n_query)
        buffers = list(self.learner.buffers())
        before = [buffer.clone() for buffer in buffers]
        with autocast(self.source.device, self.precision):
            own_losses = self._score(self.learner, self.group.share(episodes))
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
        losses = self.group.gather_tasks(own_losses)
        positions: Tensor = sampler.choose(class_ids, losses, self.n_tasks)
        check_tensor("what choose() returns", positions, "int64", losses.device, (self.n_tasks,))
        chosen = select_tasks(episodes, positions)
        return chosen.class_ids, self.group.share(chosen)

    def _add_gradient(self, episodes: Episodes, beside: Any = None) -> tuple[Tensor, ...]:
        """Add the gradient of some tasks; return what the sampler learns from.

        Query probabilities and labels, and class features if the sampler uses them. The stream
        `beside` may use them before there is a gradient.
        """
        with autocast(self.source.device, self.precision):
            outcome: Outcome = self._outcome(self.learner, episodes)
        self._measure(outcome, episodes)
        features = [self._class_features(outcome, episodes)] if self._uses_features else []
        loss = outcome.loss
        if self._weighs:
            assert outcome.losses is not None  # `per_task_outcome` has checked it
            loss = (self._weights(outcome.losses) * outcome.losses).mean()
        elif self.accumulate > 1:
            loss = loss / self.accumulate
        probabilities = outcome.query_logits.float().softmax(-1)
        if beside is not None:
            beside.wait_stream(torch.cuda.current_stream())
        loss.backward()  # type: ignore[no-untyped-call]
        return probabilities, episodes.query_labels, *features

    @torch.no_grad()
    def _weights(self, own_losses: Tensor) -> Tensor:
        """Return the weights of the tasks of this process; the sampler sees those of all."""
        sampler: Any = self.sampler
        losses = self.group.gather_tasks(own_losses.detach())
        if self.group.is_connected and losses.device.type == "cpu" and not losses.isfinite().all():
            # All processes stop in `_gather_feedback`; the sampler must not learn from the step.
            return torch.ones_like(own_losses)
        weights: Tensor = sampler.weigh(losses)
        check_tensor("what weigh() returns", weights, "floating-point", losses.device, losses.shape)
        return weights.view(self.group.size, -1)[self.group.rank].to(own_losses.dtype)

    @torch.no_grad()
    def _class_features(self, outcome: Outcome, episodes: Episodes) -> Tensor:
        """Return the mean feature of every class of a task, `tasks x way x d` float32."""
        features = outcome.features
        if features is None:
            with autocast(self.source.device, self.precision):
                features = embed_support(self.learner, episodes)
        means = class_means if self._kernels is None else self._kernels.class_means
        n_way, labels = episodes.class_ids.shape[1], [episodes.support_labels]
        if features.shape[1:2] != labels[0].shape[1:]:
            labels.append(episodes.query_labels)
        n_images = sum(part.shape[1] for part in labels)
        if features.ndim < 3 or features.shape[:2] != (len(episodes.class_ids), n_images):
            raise ArgumentError(
                "the features of an outcome must be those of the support images, or of these and "
                f"the query images, `tasks x images x ...`, here {len(episodes.class_ids)} x "
                f"{n_images} x ...; got the shape {tuple(features.shape)}."
            )
        result: Tensor = means(features.detach().flatten(2), labels, n_way)
        return result

    def _measure(self, outcome: Outcome, episodes: Episodes) -> None:
        """Add the outcome to the metrics, and check whether the loss is finite."""
        if self._kernels is None:
            self.loss_check.add(self._step_number, outcome, episodes.class_ids)
            if self.group.size == 1:  # several processes stop together, in `_gather_feedback`
                self._raise_at_once()
            self.metrics.add(outcome, episodes.query_labels)
            return
        self.loss_check.allocate(episodes.class_ids.shape[1])
        self._kernels.measure(
            outcome.loss,
            outcome.query_logits,
            episodes.query_labels,
            episodes.class_ids,
            self._step_number,
            sums=self.metrics.sums,
            bad_step=self.loss_check.step,
            bad_class_ids=self.loss_check.class_ids,
        )

    def _gather_feedback(self, feedback: Sequence[Tensor]) -> list[Tensor]:
        """Return the outcome of the tasks of all processes; a loss that is not finite stops all."""
        found = [self.loss_check.step, self.loss_check.class_ids]
        gathered, (steps, class_ids) = self.group.gather_feedback(
            *feedback, extra=found, n_parts=self.accumulate
        )
        self.loss_check.merge(steps.long(), class_ids.long())
        self._raise_at_once()
        return gathered

    def _inform_sampler(self, class_ids: Tensor, feedback: Sequence[Tensor]) -> None:
        """Let the sampler learn, and count the classes."""
        probabilities, labels, *features = feedback
        given = {"class_features": features[0]} if features else {}
        self.sampler.update(class_ids, probabilities, labels, **given)
        if self.class_counts is not None:
            drawn = class_ids.flatten()
            self.class_counts.index_add_(0, drawn, self._one.expand_as(drawn))

    def _raise_at_once(self) -> None:
        """Refuse a loss that is not finite before anything is learned from it; on the CPU only."""
        if self.source.device.type == "cpu":
            self.loss_check.raise_if_found()

    @contextmanager
    def _restored_on_error(self) -> Iterator[None]:
        """Undo what a forward pass has changed if the loss of the step is not finite."""
        changed = [*self.learner.buffers(), self.metrics.sums]
        before = [tensor.clone() for tensor in changed]
        try:
            yield
        except TrainingError:
            for tensor, value in zip(changed, before, strict=True):
                tensor.copy_(value)
            raise


def _joined(parts: list[tuple[Tensor, ...]]) -> Sequence[Tensor]:
    """Return the feedback on the tasks of all parts of a step."""
    if len(parts) == 1:  # as they are: a step of a small network on a CPU is short
        return parts[0]
    return [torch.cat(part) for part in zip(*parts, strict=True)]


def training_outcome(learner: EpisodeLearner, episodes: Episodes) -> Outcome:
    """Return loss and logits of the learner; cross-entropy if it has no `training_step`."""
    if hasattr(learner, "training_step"):
        outcome: Outcome = learner.training_step(episodes)
        _check_outcome("training_step", learner, outcome)
        check_logits(outcome.query_logits, episodes.class_ids, episodes.query_labels)
        return outcome
    query_logits = learner(episodes)
    check_logits(query_logits, episodes.class_ids, episodes.query_labels)
    loss = cross_entropy(query_logits.flatten(0, 1).float(), episodes.query_labels.flatten())
    return Outcome(loss=loss, query_logits=query_logits.detach())


def _check_outcome(method: str, learner: EpisodeLearner, outcome: object) -> None:
    if not isinstance(outcome, Outcome):
        raise ArgumentError(
            f"{method} of the learner {type(learner).__name__} must return an "
            "adaptask.interfaces.Outcome(loss=..., query_logits=...); got a "
            f"{type(outcome).__name__}."
        )


def per_task_outcome(learner: EpisodeLearner, episodes: Episodes) -> Outcome:
    """Return what `training_outcome` does, with one loss per task."""
    if not hasattr(learner, "training_step"):
        query_logits = learner(episodes)
        check_logits(query_logits, episodes.class_ids, episodes.query_labels)
        losses = task_cross_entropies(query_logits, episodes.query_labels)
        return Outcome(loss=losses.mean(), query_logits=query_logits.detach(), losses=losses)
    stepper: Any = learner
    outcome: Outcome = stepper.training_step_per_task(episodes)
    _check_outcome("training_step_per_task", learner, outcome)
    check_logits(outcome.query_logits, episodes.class_ids, episodes.query_labels)
    shape = episodes.query_labels.shape[:1]
    if outcome.losses is None or outcome.losses.shape != shape:
        raise ArgumentError(
            f"training_step_per_task of the learner {type(learner).__name__} must return an "
            f"Outcome with one loss per task, `losses` of the shape {tuple(shape)}; got "
            f"{None if outcome.losses is None else tuple(outcome.losses.shape)}."
        )
    return outcome


def score_tasks(learner: EpisodeLearner, episodes: Episodes) -> Tensor:
    """Return the cross-entropy of every task, `tasks` float32, as the learner is."""
    query_logits = learner(episodes)
    check_logits(query_logits, episodes.class_ids, episodes.query_labels)
    return task_cross_entropies(query_logits, episodes.query_labels)


def task_cross_entropies(query_logits: Tensor, query_labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of the queries of every task, `tasks` float32."""
    flat = query_logits.flatten(0, 1).float()
    return (
        cross_entropy(flat, query_labels.flatten(), reduction="none").view_as(query_labels).mean(1)
    )


def check_hooks(
    sampler: object, learner: object, *, n_tasks: int, accumulate: int, n_processes: int = 1
) -> int | None:
    """Check that a sampler that weighs or chooses tasks can do so.

    Returns:
        The number of candidates that it chooses from; None if it does not choose.

    Raises:
        ArgumentError: If the learner has no loss of every task, a step is in parts, or the number
            of candidates does not fit.
    """
    name, hooks = type(sampler).__name__, [h for h in ("weigh", "choose") if hasattr(sampler, h)]
    if hooks and accumulate > 1:
        raise ArgumentError(
            f"accumulate must be 1 with the sampler {name}, which needs the losses of all tasks of "
            f"a step at once; got {accumulate}. Use fewer tasks per step or another sampler."
        )
    if "weigh" in hooks and not gives_task_losses(learner):
        raise ArgumentError(
            f"the sampler {name} weighs the losses of tasks, which the learner "
            f"{type(getattr(learner, '_orig_mod', learner)).__name__} does not have: it has no "
            "training_step_per_task that fits its training_step. Use another learner or another "
            "sampler."
        )
    if "choose" not in hooks:
        return None
    chooser: Any = sampler
    n_candidates = check_integer("n_candidates", chooser.n_candidates(n_tasks), low=n_tasks)
    if n_candidates % n_processes:
        raise ArgumentError(
            f"the number of candidates of the sampler {name} must be a multiple of the "
            f"{n_processes} processes, so that each scores as many; got {n_candidates}. Change its "
            "options, n_tasks or the number of processes."
        )
    return n_candidates


def draw_tasks(sampler: TaskSampler, n_tasks: int) -> Tensor:
    """Return the classes of new tasks, as many as were asked for, `tasks x way`.

    Raises:
        ArgumentError: If the sampler returns something else.
    """
    class_ids = sampler.sample(n_tasks)
    shape = tuple(getattr(class_ids, "shape", ()))
    n_way = getattr(sampler, "n_way", shape[-1] if shape else None)
    if not isinstance(class_ids, Tensor) or shape != (n_tasks, n_way):
        got = shape if isinstance(class_ids, Tensor) else type(class_ids).__name__
        raise ArgumentError(
            f"sample({n_tasks}) of {type(sampler).__name__} must return a tensor of "
            f"classes, {n_tasks} x {n_way or 'way'}; got {got}."
        )
    return class_ids


def n_features_of(learner: object, sampler: str) -> int:
    """Return the number of features of a learner, for a sampler that uses class features.

    Raises:
        ArgumentError: If it has none.
    """
    n_features: int | None = getattr(learner, "n_features", None)
    if n_features is None:
        raise ArgumentError(
            f"the sampler {sampler} learns from class features, which a learner with an attribute "
            f"n_features has; the learner {type(learner).__name__} has none. Use a backbone that "
            "has n_features, another learner, or another sampler, such as uniform or gcp."
        )
    return n_features


def _uses_features(sampler: object, learner: object) -> bool:
    """Return whether a sampler learns from class features; refuse a learner that has others."""
    if not getattr(sampler, "uses_class_features", False):
        return False
    n_features = n_features_of(learner, type(sampler).__name__)
    expected = getattr(sampler, "n_features", None)
    if expected not in (None, n_features):
        raise ArgumentError(
            f"the sampler must be built for the {n_features} features of the learner; got one with "
            f"n_features={expected}."
        )
    return True


def embed_support(learner: nn.Module, episodes: Episodes) -> Tensor:
    """Return the features of the support images, `tasks x images x ...`.

    By `learner.embed` if it has that, or else by `learner.backbone`; in evaluation mode, so that
    neither running statistics nor random streams change.

    Raises:
        ArgumentError: If the learner has neither.
    """
    images = episodes.support_images
    embed: Any = getattr(learner, "embed", None)
    backbone: Any = getattr(learner, "backbone", None)
    if embed is None and backbone is None:
        raise ArgumentError(
            f"the learner {type(learner).__name__} must give its features to the sampler: as "
            "`features` of the Outcome of its training_step, or by a method embed(images)."
        )
    with evaluation_mode(learner):
        if embed is not None:
            features: Tensor = embed(images)
            return features
        # Backbones from elsewhere take images without a dimension of tasks.
        return torch.unflatten(backbone(images.flatten(0, 1)), 0, images.shape[:2])


def class_means(features: Tensor, labels: Sequence[Tensor], n_way: int) -> Tensor:
    """Return the mean feature of every class of a task, `tasks x way x d` float32.

    Args:
        features: `tasks x images x d`.
        labels: Positions of the images' classes in the task, `tasks x images`, in parts.
        n_way: Number of classes per task.
    """
    positions = torch.arange(n_way, device=features.device)
    is_own = (torch.cat(list(labels), dim=1).unsqueeze(1) == positions.unsqueeze(1)).float()
    return is_own @ features.float() / is_own.sum(-1, keepdim=True)


def check_logits(query_logits: Any, class_ids: Tensor, query_labels: Tensor) -> None:
    """Check that a learner returned query logits of the right shape.

    Raises:
        ArgumentError: If it did not.
    """
    shape = (*query_labels.shape, class_ids.shape[1])
    if not isinstance(query_logits, Tensor) or tuple(query_logits.shape) != shape:
        is_tensor = isinstance(query_logits, Tensor)
        got = f"shape {tuple(query_logits.shape)}" if is_tensor else type(query_logits).__name__
        raise ArgumentError(
            f"a learner must return query logits, `tasks x queries x way`, here {shape}; got {got}."
        )


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the context in which a forward pass runs."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


class Compiled:
    """A function of learner and episodes, compiled when it is first called.

    Learners of the same kind share what was compiled: their weights are arguments. If it cannot be
    compiled, for lack of a compiler perhaps, `report` is called with the reason, and the plain
    function is used.
    """

    def __init__(self, outcomes: Outcomes, report: Callable[[str], None]) -> None:
        self._plain, self._report = outcomes, report
        self._fast: Outcomes | None = _compiled(outcomes)

    def __call__(self, learner: EpisodeLearner, episodes: Episodes) -> Any:
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
    # It warns about what could be faster, about which users can do nothing.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._(dynamo|inductor)")
    # The shapes of a run are fixed: each gets its own kernels.
    return torch.compile(outcomes, dynamic=False)


class RunningMetrics:
    """Means of loss and accuracy since they were last read, summed on the device."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)
        """Of loss, accuracy and parts of steps."""

    @torch.no_grad()
    def add(self, outcome: Outcome, query_labels: Tensor) -> None:
        """Count one part of a step; nothing waits for the device."""
        right = (outcome.query_logits.argmax(-1) == query_labels).to(torch.float64).mean()
        loss = outcome.loss.detach().to(torch.float64)
        self.sums += torch.stack((loss, right, torch.ones_like(right)))

    def pop_means(self) -> dict[str, float]:
        """Return the means and start again; empty if nothing was added."""
        loss, right, count = self.sums.tolist()
        self.sums.zero_()
        return {"loss": loss / count, "accuracy": right / count} if count else {}


class LossCheck:
    """Finds the first step whose loss is not finite, without making a GPU wait.

    The step and its classes are kept on the device until `raise_if_found` is called.
    """

    def __init__(self, device: torch.device, class_names: Sequence[str] | None = None) -> None:
        self._class_names = class_names
        self.step = torch.full((), -1, dtype=torch.int64, device=device)
        """The first step whose loss was not finite; -1 if there is none."""
        self.class_ids = torch.zeros(0, dtype=torch.int64, device=device)
        """The classes of its first task whose logits are not finite."""

    def allocate(self, n_way: int) -> None:
        """Make room for the classes of a task, which is known from the first step on."""
        if len(self.class_ids) != n_way:
            self.class_ids = self.class_ids.new_zeros(n_way)

    @torch.no_grad()
    def add(self, step: Tensor, outcome: Outcome, class_ids: Tensor) -> None:
        """Check one part of a step, whose number, counted from 0, is a scalar on the device."""
        self.allocate(class_ids.shape[1])
        is_finite = outcome.loss.isfinite()
        if is_finite.is_cpu and bool(is_finite):  # there is nothing to wait for
            return
        finite_tasks = outcome.query_logits.isfinite().flatten(1).all(-1)
        # By index_select: plain indexing would read the position on the host.
        first_bad = finite_tasks.to(torch.uint8).argmin(keepdim=True)
        bad_classes = class_ids.index_select(0, first_bad).squeeze(0)
        is_first = ~is_finite & (self.step < 0)
        self.step.copy_(torch.where(is_first, step, self.step))
        self.class_ids.copy_(torch.where(is_first, bad_classes, self.class_ids))

    def merge(self, steps: Tensor, class_ids: Tensor) -> None:
        """Combine what all processes found: `steps` is `processes`, ids are `processes x way`."""
        first = (steps >= 0).to(torch.uint8).argmax(keepdim=True)  # 0 if no process found one
        self.step.copy_(steps.index_select(0, first).squeeze(0))
        self.class_ids.copy_(class_ids.index_select(0, first).squeeze(0))

    def reset(self) -> None:
        """Forget what was found."""
        self.step.fill_(-1)

    def raise_if_found(self) -> None:
        """Raise an error if a loss was not finite, and start again.

        Raises:
            TrainingError: If a loss was not finite; names the step and the classes.
        """
        step = int(self.step)
        if step < 0:
            return
        self.reset()
        ids = self.class_ids.tolist()
        names = ids if self._class_names is None else [self._class_names[i] for i in ids]
        raise TrainingError(
            f"the loss of step {step + 1} is not finite; its task has the classes "
            f"{', '.join(map(str, names))}. Start again with a lower learning rate, a clipped "
            "gradient or, instead of bfloat16, float32."
        )
