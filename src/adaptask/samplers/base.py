"""What every sampler shares: `sample`, `update` and the checks around drawing and learning.

Types, shapes and devices are checked at once. Values are checked without reading them on the
host, so that nothing waits for a device: each check gives one bool per task, and the sampler
leaves out a task that fails one.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from adaptask.arguments import check_integer
from adaptask.errors import ArgumentError
from adaptask.kernels import find_kernels
from adaptask.randomness import RandomModule
from adaptask.samplers.update_rule import Array, namespace, view

# A softmax sums to one only up to rounding; these are a few units of the last place.
_ROW_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 5e-3}
_BFLOAT16_TOLERANCE = 3e-2

PROBLEMS = (
    "class_ids must be distinct classes between 0 and n_classes - 1",
    "labels must be positions in the task, between 0 and n_way - 1",
    "every class of a task needs at least one query",
    "probabilities must be finite, not negative, and sum to one over the classes of the task "
    "(if these are logits, apply softmax first)",
    "class_features must be finite",
)
"""What each check of values demands of a task; the last only of samplers that use features."""


@dataclass(slots=True)
class Feedback:
    """The outcome of some tasks, for samplers to learn from.

    The fields are NumPy arrays on the CPU, where small arrays are quicker so, and tensors on other
    devices. `torch.as_tensor` makes a tensor of either, without a copy.
    """

    class_ids: Array
    """Classes of each task, `tasks x way`, in range and distinct."""
    confusion: Array
    """`tasks x way x way`: at `[t, y, c]`, the mean probability that the queries of class `y` give
    to class `c`. Any value if a task was refused."""
    query_counts: Array
    """Number of queries of each class as floating-point numbers, `tasks x way`, or `way` if all
    tasks share them."""
    accuracy: Array
    """Share of the queries whose own class has the highest probability, `tasks`; ties are wrong.
    Any value from 0 to 1 if a task was refused."""
    accepted: Array | None
    """Whether a task passed every check, `tasks` bool; None if all did, as always on the CPU.
    Refused tasks are still there, so that shapes stay fixed, with harmless classes."""
    class_features: Array | None = None
    """The mean feature of every class of a task, `tasks x way x d`; None unless the sampler
    `uses_class_features`. Any value, also NaN, if a task was refused."""


class FeedbackModule(RandomModule, ABC):
    """A module that takes feedback and refuses bad values without making a device wait.

    On the CPU a bad value raises at once and nothing is applied. On other devices bad entries are
    left out and counted there. The error is raised when the host next reads the module: in
    `check()` or `state_dict()`.
    """

    description: ClassVar[str] = ""
    """One sentence for `adaptask list` and the report, such as "prefers classes that were seen
    least often"."""
    learns: ClassVar[bool] = True
    """Whether feedback changes what it draws."""
    draws: ClassVar[str] = "tasks"
    """What it draws: "tasks", or "examples"."""
    variants: ClassVar[tuple[str, ...]] = ()
    """Options that make other algorithms of it, such as "target=easy", which `adaptask compare
    --samplers all` runs beside the one by default."""

    _problems: ClassVar[tuple[str, ...]]
    """What each check of values demands."""
    _refusals: Tensor

    def __init__(self, *, seed: int, device: torch.device | str | None) -> None:
        super().__init__(seed=seed, device=device)
        refusals = torch.zeros(1 + len(self._problems), dtype=torch.int64, device=device)
        self.register_buffer("_refusals", refusals, persistent=False)

    def _count_refusals(self, passed: Tensor) -> None:
        """Count the failures, given which entry passed which check, `entries x checks` bool.

        Checks at the end may be missing: those of what was not given.
        """
        passed = torch.cat((passed.all(-1, keepdim=True), passed), dim=-1)
        self._refusals[: passed.shape[1]] += passed.logical_not().sum(0)

    def check(self) -> None:
        """Raise an error for bad values that `update` has found on the device since the last check.

        Raises:
            ArgumentError: If anything was refused; the count starts again from zero.
        """
        n_refused, *by_problem = self._refusals.tolist()
        if n_refused:
            self._refusals.zero_()
            found = zip(by_problem, self._problems, strict=True)
            raise ArgumentError(
                f"{n_refused} entries given to update() since the last check were refused and "
                "changed nothing. " + "; ".join(f"{n} times: {text}" for n, text in found if n)
                + "."
            )  # fmt: skip

    def get_extra_state(self) -> dict[str, Any]:
        """Return identity and random stream, after reporting what was refused."""
        self.check()
        return super().get_extra_state()


class Sampler(FeedbackModule):
    """A task sampler: override `draw`, `learn` and, if it can be computed, `log_prob`.

    Loops call `sample` and `update`, which check their arguments and call `draw` and `learn`.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        seed: Seed of the random stream.
        device: Where the sampler works.

    Raises:
        ArgumentError: If `n_way` is not between 2 and `n_classes`, or the seed is below 0.
    """

    uses_class_features: ClassVar[bool] = False
    """Whether it learns from class features, so that `update` must be given them."""
    n_features: int | None = None
    """Size d of the class features; set by samplers that use them."""
    _problems = PROBLEMS

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(seed=seed, device=device)
        self.n_classes = check_integer("n_classes", n_classes, low=2)
        self.n_way = check_integer(
            "n_way", n_way, low=2, high=self.n_classes, meaning="the number of training classes"
        )

    @property
    def dtype(self) -> torch.dtype:
        """The precision in which the sampler draws and learns."""
        return torch.float32

    @abstractmethod
    def draw(self, n_tasks: int) -> Tensor:
        """Return the classes of new tasks, `tasks x way` int64, distinct within a row."""

    @abstractmethod
    def learn(self, feedback: Feedback) -> None:
        """Learn from the outcome of some tasks; leave out those that were not accepted."""

    def log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of drawing each category set, in any order.

        Decorate an override with `of_category_sets`, which checks `class_ids`.

        Args:
            class_ids: `tasks x way` int64, distinct within a row.

        Returns:
            `tasks` float64.

        Raises:
            ArgumentError: If `class_ids` do not fit, or the probability cannot be computed; the
                message says what can be computed instead.
        """
        raise ArgumentError(f"{type(self).__name__} does not compute probabilities: no log_prob.")

    def sample(self, n_tasks: int = 1) -> Tensor:
        """Return the `class_ids` of new tasks, `tasks x way` int64, distinct within a row.

        Raises:
            ArgumentError: If `n_tasks` is not a positive integer.
        """
        return self.draw(check_integer("n_tasks", n_tasks, low=1))

    def update(
        self,
        class_ids: Tensor,
        probabilities: Tensor,
        labels: Tensor,
        *,
        class_features: Tensor | None = None,
    ) -> None:
        """Learn from how the queries of some tasks were classified.

        On the CPU bad values raise at once and nothing is applied. On other devices only wrong
        types and shapes do. Values are checked there without waiting: a task with a bad value is
        left out and counted, and `check()` or `state_dict()` raises.

        Args:
            class_ids: The classes of each task, `tasks x way` int64.
            probabilities: Query probabilities, `tasks x queries x way`, rows summing to one.
            labels: Right answers as positions in the task, 0 to way - 1, `tasks x queries`, or
                `queries` if all tasks share them. Every class needs at least one query.
            class_features: The mean feature of every class of a task, `tasks x way x d`, finite.
                Needed if the sampler `uses_class_features`; otherwise ignored.

        Raises:
            ArgumentError: If anything does not fit.
        """
        device = self.device
        check_tensor("class_ids", class_ids, "int64", device, ("tasks", self.n_way), per_task=True)
        shape = (class_ids.shape[0], "queries", self.n_way)
        check_tensor("probabilities", probabilities, "floating-point", device, shape, per_task=True)
        n_tasks, n_queries, _ = probabilities.shape
        check_tensor("labels", labels, "integer", device, (n_tasks, n_queries), (n_queries,))
        if not self.uses_class_features:
            class_features = None
        elif class_features is None:
            raise ArgumentError(
                f"{type(self).__name__} learns from class features: give update() class_features, "
                "the mean feature of every class of a task, `tasks x way x d`; got None."
            )
        else:
            sizes = (n_tasks, self.n_way, self.n_features or "d")
            check_tensor(
                "class_features", class_features, "floating-point", device, sizes, per_task=True
            )
        kernels = None if device.type == "cpu" else self._kernels()
        if kernels is not None and kernels.fits(self.n_way, n_queries) and self._kernels_learn():
            tolerance = row_tolerance(probabilities.dtype)
            given = (class_ids, probabilities, labels, tolerance, class_features)
            if self._learn_by_kernels(kernels, *given):
                return
        feedback, passed = condense(
            class_ids,
            probabilities,
            labels,
            class_features,
            n_classes=self.n_classes,
            dtype=self.dtype,
        )
        if passed is not None:
            self._count_refusals(passed)
        self.learn(feedback)

    def prepare(self) -> None:
        """Bring what is derived from the buffers up to date, as `sample` does by itself.

        Call it before a device graph of `sample` and `update` is replayed.
        """

    def _kernels(self) -> Any:
        """Return the Triton kernels to draw and learn with; None if they cannot be used."""
        if self.device.type == "cpu" or self.dtype != torch.float32:
            return None
        return find_kernels("adaptask.samplers.triton_kernels", self.device)

    def _kernels_learn(self) -> bool:
        """Return whether the kernels do what `learn` does: not if a subclass overrides it alone."""
        owners = {
            name: next(base for base in type(self).__mro__ if name in vars(base))
            for name in ("learn", "_learn_by_kernels")
        }
        return issubclass(owners["_learn_by_kernels"], owners["learn"])

    def _learn_by_kernels(
        self,
        kernels: Any,
        class_ids: Tensor,
        probabilities: Tensor,
        labels: Tensor,
        tolerance: float,
        class_features: Tensor | None,
    ) -> bool:
        """Check values and learn by kernels; return whether that was possible."""
        del kernels, class_ids, probabilities, labels, tolerance, class_features
        return False

    def _estimate_log_prob(self, class_ids: Tensor) -> tuple[Tensor, float]:
        """Return log-probabilities, exact or not, and the standard error they have in common."""
        return self.log_prob(class_ids), 0.0

    def _which_are_sets(self, class_ids: Tensor) -> Tensor:
        """Return which rows are category sets, `tasks` bool; on the CPU raise if one is not."""
        check_tensor("class_ids", class_ids, "int64", self.device, ("tasks", self.n_way))
        are_sets: Tensor = classes_fit(class_ids, self.n_classes)
        if self.device.type == "cpu" and not are_sets.all():
            raise ArgumentError(f"{PROBLEMS[0]}; got {class_ids[~are_sets][0].tolist()}.")
        return are_sets

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "n_classes": self.n_classes}

    def extra_repr(self) -> str:
        """Show the sizes in `print(sampler)`."""
        return f"n_classes={self.n_classes}, n_way={self.n_way}"


SamplerT = TypeVar("SamplerT", bound=Sampler)


def of_category_sets(
    log_prob: Callable[[SamplerT, Tensor], Tensor],
) -> Callable[[SamplerT, Tensor], Tensor]:
    """Check the `class_ids` that a `log_prob` method is given; a decorator.

    On the CPU a row that is not a category set raises an `ArgumentError`. On other devices, where
    values are not read, its log-probability is NaN.
    """

    @functools.wraps(log_prob)
    def checked(self: SamplerT, class_ids: Tensor) -> Tensor:
        are_sets = self._which_are_sets(class_ids)
        positions = torch.arange(self.n_way, device=self.device)
        safe_ids = torch.where(are_sets.unsqueeze(-1), class_ids, positions)
        return log_prob(self, safe_ids).masked_fill(~are_sets, torch.nan)

    return checked


def condense(
    class_ids: Tensor,
    probabilities: Tensor,
    labels: Tensor,
    class_features: Tensor | None = None,
    *,
    n_classes: int,
    dtype: torch.dtype,
) -> tuple[Feedback, Tensor | None]:
    """Check the values of feedback, and condense it to what samplers learn from.

    Args:
        class_ids: `tasks x way`.
        probabilities: `tasks x queries x way`, any floating type.
        labels: `tasks x queries`, or `queries` if all tasks share them.
        class_features: `tasks x way x d`, any floating type, if the sampler uses them.
        n_classes: Number of training classes.
        dtype: The precision to compute in.

    Returns:
        The feedback, and which task passed which check, `tasks x checks` bool, in the order of
        `PROBLEMS`, or None on the CPU.

    Raises:
        ArgumentError: On the CPU, if any task failed any check.
    """
    xp = namespace(class_ids)
    tolerance = row_tolerance(probabilities.dtype)
    if probabilities.requires_grad or probabilities.dtype != dtype:
        probabilities = probabilities.detach().to(dtype)
    ids, answers, probs = view(class_ids), view(labels), view(probabilities)
    features = None if class_features is None else view(class_features.detach().to(dtype))
    n_way = ids.shape[1]
    positions = _positions(n_way) if xp is np else torch.arange(n_way, device=ids.device)
    # `way x queries`, or `tasks x way x queries`; NumPy is quicker if the longer dimension is last.
    is_answer = answers[..., None, :] == positions[:, None]
    one_hot = xp.asarray(is_answer, dtype=probs.dtype)
    counts = one_hot.sum(-1)
    accepted: Array | None = None
    passed: Array | None = None
    if xp is np:
        fits = _surely_fit(ids, probs, is_answer, counts, n_classes, tolerance)
        if not (fits and (features is None or np.isfinite(features).all())):
            found = _which_pass(
                ids, probs, features, counts, answers.shape[-1], n_classes, tolerance, xp
            )
            if not found.all():
                raise ArgumentError(describe_refusal(found, PROBLEMS))
    else:
        passed = _which_pass(
            ids, probs, features, counts, answers.shape[-1], n_classes, tolerance, xp
        )
        accepted = passed.all(-1)
        ids = torch.where(accepted[:, None], ids, positions)
    confusion = one_hot @ probs / counts[..., None]
    accuracy = _accuracy(probs, one_hot, xp)
    return Feedback(ids, confusion, counts, accuracy, accepted, features), passed


def _accuracy(probs: Array, one_hot: Array, xp: Any) -> Array:
    """Return the share of queries that give their own class the highest probability, `tasks`."""
    # A sum, not a product of matrices, which a device may round.
    own = (xp.swapaxes(one_hot, -1, -2) * probs).sum(-1)
    is_right = (probs >= own[..., None]).sum(-1) == 1
    return xp.asarray(is_right, dtype=probs.dtype).mean(-1)


def _surely_fit(
    ids: Array, probs: Array, is_answer: Array, counts: Array, n_classes: int, tolerance: float
) -> bool:
    """Return whether all tasks pass at a glance, in a third of the time of the checks below."""
    if not probs.min() >= 0:  # NaN fails it too
        return False
    n_way = ids.shape[1]
    misses = (probs @ _ones(n_way, probs.dtype) - 1).reshape(-1)
    if not misses @ misses <= tolerance**2:
        return False
    every_label_fits = np.count_nonzero(is_answer) * n_way == is_answer.size
    if not every_label_fits or np.count_nonzero(counts) != counts.size:
        return False
    if len(ids) < 8:  # so few are checked sooner without NumPy
        return all(
            len(set(row)) == len(row) and min(row) >= 0 and max(row) < n_classes
            for row in ids.tolist()
        )
    n_same = np.count_nonzero(ids[:, :, None] == ids[:, None, :])
    return bool(n_same == ids.size and ids.min() >= 0 and ids.max() < n_classes)


@functools.cache
def _positions(size: int) -> Array:
    return np.arange(size)


@functools.cache
def _ones(size: int, dtype: Any) -> Array:
    return np.ones(size, dtype=dtype)


def _which_pass(
    ids: Array,
    probs: Array,
    features: Array | None,
    counts: Array,
    n_queries: int,
    n_classes: int,
    tolerance: float,
    xp: Any,
) -> Array:
    """Return which task passes which check, `tasks x checks` bool."""
    counts = xp.broadcast_to(counts, ids.shape)
    with np.errstate(invalid="ignore"):
        checks = [
            classes_fit(ids, n_classes),
            counts.sum(-1) == n_queries,
            (counts > 0).all(-1),
            rows_fit(probs, tolerance),
        ]
    if features is not None:
        checks.append(xp.isfinite(features).reshape(len(features), -1).all(-1))
    return xp.stack(checks, -1)


def classes_fit(ids: Array, n_classes: int) -> Array:
    """Return which rows hold distinct classes in range, `tasks` bool."""
    n_same = (ids[:, :, None] == ids[:, None, :]).sum((-1, -2))
    return (n_same == ids.shape[1]) & ((ids >= 0) & (ids < n_classes)).all(-1)


def rows_fit(probs: Array, tolerance: float) -> Array:
    """Return which matrices, `tasks`, hold nothing but rows of probabilities.

    Args:
        probs: `tasks x queries x way`.
        tolerance: By how much a row may differ from one, or an entry from zero.
    """
    # NaN and infinity fail these comparisons too.
    sums_fit = abs(probs.sum(-1) - 1) <= tolerance
    return sums_fit.all(-1) & (probs >= -tolerance).reshape(len(probs), -1).all(-1)


def row_tolerance(dtype: torch.dtype) -> float:
    """Return by how much the sum of a row of probabilities of that type may differ from one."""
    return _ROW_TOLERANCE.get(dtype, _BFLOAT16_TOLERANCE)


def describe_refusal(passed: Array, problems: tuple[str, ...]) -> str:
    """Say which entry failed which check first, given `entries x checks` bool."""
    failed = np.logical_not(passed)
    n_refused = int(failed.any(-1).sum())
    entry = int(failed.any(-1).argmax())
    return (
        f"{problems[int(failed[entry].argmax())]}; entry {entry} does not comply ({n_refused} of "
        f"{len(failed)} refused). Nothing of this update was applied."
    )


def check_tensor(
    name: str,
    value: object,
    kind: str,
    device: torch.device,
    *shapes: tuple[int | str, ...],
    per_task: bool = False,
) -> None:
    """Check type, shape and device of a tensor.

    Args:
        name: What the user calls it.
        value: What came.
        kind: "int64", "integer" or "floating-point".
        device: Where it must be.
        *shapes: The shapes allowed; a word, such as "tasks", stands for any positive number.
        per_task: Whether the first axis is the tasks; the error says so if an axis is missing.

    Raises:
        ArgumentError: If it does not fit.
    """
    if not isinstance(value, Tensor):
        raise ArgumentError(f"{name} must be a tensor; got a {type(value).__name__}.")
    is_dense = value.layout is torch.strided
    if not is_dense or not _is_of_kind(value.dtype, kind):
        got = value.dtype if is_dense else value.layout
        raise ArgumentError(f"{name} must be a dense {kind} tensor; got {got}.")
    came = value.shape
    if not _has_shape(came, shapes):
        allowed = " or ".join(" x ".join(map(str, shape)) for shape in shapes)
        # The usual mistake: a loop of one task at a time, or the queries of all tasks in a row.
        lacks_tasks = per_task and len(came) + 1 == len(shapes[0])
        hint = f" The first axis is the tasks; for a single task give {name}[None]."
        raise ArgumentError(
            f"{name} must have the shape {allowed}; got {tuple(came)}." + hint * lacks_tasks
        )
    if value.device != device:
        raise ArgumentError(
            f"{name} must be on the sampler's device, {device}; got {value.device}. "
            f"Move it with .to({str(device)!r}), or the sampler with .to({str(value.device)!r})."
        )


def _is_of_kind(dtype: torch.dtype, kind: str) -> bool:
    if kind == "integer":
        return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
    return dtype.is_floating_point if kind == "floating-point" else dtype == torch.int64


def _has_shape(came: tuple[int, ...], shapes: tuple[tuple[int | str, ...], ...]) -> bool:
    if came in shapes:
        return True
    for shape in shapes:
        if len(shape) == len(came):
            wanted = [
                n if isinstance(size, str) else size for size, n in zip(shape, came, strict=True)
            ]
            if came == tuple(wanted) and 0 not in came:
                return True
    return False
