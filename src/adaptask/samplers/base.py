"""What every sampler shares: `sample` and `update`, with the checks around drawing and learning.

Types, shapes and devices are checked here, at once. `feedback.py` checks values.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from adaptask.arguments import check_integer
from adaptask.errors import ArgumentError
from adaptask.kernels import find_kernels
from adaptask.randomness import RandomModule
from adaptask.samplers.feedback import PROBLEMS, Feedback, classes_fit, condense, row_tolerance


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

    beside_graph: ClassVar[tuple[str, ...]] = ()
    """Attributes that may change while a CUDA graph is replayed, since no operation of a step
    depends on them."""

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
    note: str | None = None
    """What a user should know of it before training: a run shows it when it begins, so does the
    report, and an `EpisodeBatchSampler` warns with it."""
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
        """The precision in which it draws and learns, that of its first floating-point buffer.

        `sampler.double()` raises it. It is at least float32, as it is without such a buffer.
        """
        for buffer in self._buffers.values():  # quicker than buffers()
            if buffer is not None and buffer.is_floating_point():
                return torch.promote_types(buffer.dtype, torch.float32)
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
        kernels = self._kernels()
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
            row = class_ids[~are_sets][0].tolist()
            raise ArgumentError(f"{PROBLEMS[0]} = {self.n_classes - 1}; got {row}.")
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


def class_pairs(
    n_classes: int, what: str, *, dtype: torch.dtype = torch.float32, device: torch.device
) -> Tensor:
    """Return a matrix of zeros, `classes x classes`.

    Raises:
        ArgumentError: If it does not fit into memory, or has 2^31 entries or more: entries are
            numbered by 32-bit integers on a GPU, and each update reads whole rows. The message has
            `what` the entries are.
    """
    try:
        if n_classes**2 < 2**31:
            return torch.zeros(n_classes, n_classes, dtype=dtype, device=device)
    except RuntimeError:  # of which being out of memory is one
        pass
    raise ArgumentError(
        f"one {what} per pair of {n_classes:,} classes takes "
        f"{n_classes**2 * dtype.itemsize / 1e9:,.1f} GB on {device}, which is too much. For so "
        "many classes use the sampler 'neighbor', which keeps one vector per class."
    )


def check_tensor(
    name: str,
    value: object,
    kind: str,
    device: torch.device | None,
    *shapes: tuple[int | str, ...],
    per_task: bool = False,
) -> None:
    """Check type, shape and device of a tensor.

    Args:
        name: What the user calls it.
        value: What came.
        kind: "int64", "integer" or "floating-point".
        device: Where it must be; None: anywhere.
        *shapes: The shapes allowed; a word, such as "tasks", stands for any positive number.
        per_task: Whether the first axis is the tasks; the error says so if an axis is missing.

    Raises:
        ArgumentError: If it does not fit.
    """
    if not isinstance(value, Tensor):
        raise ArgumentError(
            f"{name} must be a tensor; got a {type(value).__name__}. torch.as_tensor() makes one "
            "of a list or an array."
        )
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
    if device is not None and value.device != device:
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
