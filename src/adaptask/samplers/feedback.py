"""What samplers learn from: the feedback on some tasks, checked and condensed.

Values are checked without reading them on the host, so that nothing waits for a device: each check
gives one bool per task, and the sampler leaves out a task that fails one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptask.arguments import format_value
from adaptask.errors import ArgumentError
from adaptask.samplers.update_rule import Array, count, namespace, view

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
    positions = count(n_way, ids, xp)
    # `way x queries`, or `tasks x way x queries`; NumPy is quicker if the longer dimension is last.
    is_answer = answers[..., None, :] == positions[:, None]
    one_hot = xp.asarray(is_answer, dtype=probs.dtype)
    counts = one_hot.sum(-1)
    accepted: Array | None = None
    passed: Array | None = None
    values = (ids, probs, features, counts, answers.shape[-1], n_classes, tolerance)
    if xp is torch:
        passed = _which_pass(*values, xp)
        accepted = passed.all(-1)
        ids = torch.where(accepted[:, None], ids, positions)
    elif not _surely_fit(ids, probs, features, is_answer, counts, n_classes, tolerance):
        found = _which_pass(*values, xp)
        if not found.all():
            got = format_value(ids[int(found.all(-1).argmin())].tolist())
            classes = f"{PROBLEMS[0]} = {n_classes - 1}, got {got}"
            raise ArgumentError(describe_refusal(found, (classes, *PROBLEMS[1:])))
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
    ids: Array,
    probs: Array,
    features: Array | None,
    is_answer: Array,
    counts: Array,
    n_classes: int,
    tolerance: float,
) -> bool:
    """Return whether all tasks pass at a glance, in a third of the time of the checks below."""
    if features is not None and not np.isfinite(features).all():
        return False
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
