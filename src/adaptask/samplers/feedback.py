"""What a learner made of some tasks, checked and condensed to what samplers learn from.

Types, shapes and devices are checked at once. Values are checked without reading them on the
host, so that nothing waits for a device: each check yields one bool a task, and the sampler
leaves out a task that fails one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptask.errors import ArgumentError
from adaptask.samplers.arrays import Array, namespace, view

# A softmax sums to one only up to rounding; these are a few units of the last place.
_ROW_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 5e-3}
_BFLOAT16_TOLERANCE = 3e-2
_QUICK = (torch.float32, torch.float64)

PROBLEMS = (
    "class_ids must be distinct classes between 0 and n_classes - 1",
    "labels must be positions in the task, between 0 and n_way - 1",
    "every class of a task needs at least one query",
    "probabilities must be finite, not negative, and sum to one over the classes of the task "
    "(if these are logits, apply softmax first)",
)
"""What each check of values demands of a task."""


@dataclass(slots=True)
class Feedback:
    """The outcome of some tasks, for samplers to learn from.

    The fields are what the sampler computes with: NumPy arrays on the CPU, tensors elsewhere (see
    `adaptask.samplers.arrays`). `torch.as_tensor` makes a tensor of either.
    """

    class_ids: Array
    """Classes of each task, `tasks x way`, in range and distinct."""
    confusion: Array
    """`tasks x way x way`: at `[t, y, c]`, the mean probability of the queries of class `y` of
    falling on class `c`. Anything where a task was refused."""
    query_counts: Array
    """Number of queries of each class as floating-point numbers, `tasks x way`, or `way` where
    all tasks share them."""
    accepted: Array | None
    """Whether a task passed every check, `tasks` bool; None if all did, as always on the CPU.
    Tasks that were refused are still there, so that shapes stay fixed, with harmless classes."""


def condense(
    class_ids: Tensor, probabilities: Tensor, labels: Tensor, *, n_classes: int, dtype: torch.dtype
) -> tuple[Feedback, Tensor | None]:
    """Check what a learner made of some tasks, and condense it.

    Args:
        class_ids: `tasks x way`.
        probabilities: `tasks x queries x way`, any floating type.
        labels: `tasks x queries`, or `queries` where all tasks share them.
        n_classes: Number of training classes.
        dtype: The precision to compute in.

    Returns:
        The feedback, and which task passed which check, `tasks x len(PROBLEMS)` bool, or None on
        the CPU.

    Raises:
        ArgumentError: On the CPU, if any task failed any check.
    """
    xp = namespace(class_ids)
    ids, answers, probs = view(class_ids), view(labels), view(probabilities.detach().to(dtype))
    positions = xp.arange(ids.shape[1], device=ids.device)
    one_hot = xp.asarray(answers[..., None] == positions, dtype=probs.dtype)
    counts = one_hot.sum(-2)
    tolerance = row_tolerance(probabilities.dtype)
    with np.errstate(all="ignore"):
        passed = which_pass(ids, probs, counts, answers.shape[-1], n_classes, tolerance, xp)
        confusion = one_hot.swapaxes(-1, -2) @ probs / counts[..., None]
    if xp is np:
        if not passed.all():
            raise ArgumentError(describe_refusal(passed, PROBLEMS))
        return Feedback(ids, confusion, counts, None), None
    accepted = passed.all(-1)
    ids = xp.where(accepted[:, None], ids, positions)
    return Feedback(ids, confusion, counts, accepted), passed


def mean_queries(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return one query a class that stands for all of its queries: their mean.

    A `Sampler` learns the same from it where all classes of a task have equally many queries, and
    it is the smallest form in which an outcome can be sent elsewhere. Tasks with values that are
    no numbers, unknown labels or a class without queries become NaN, which samplers refuse.

    Args:
        probabilities: `tasks x queries x way`.
        labels: `tasks x queries` or `queries`.

    Returns:
        Mean probabilities, `tasks x way x way`, and the labels that belong to them, `way`.
    """
    positions = torch.arange(probabilities.shape[-1], device=probabilities.device)
    one_hot = (labels.unsqueeze(-1) == positions).to(probabilities.dtype)
    means = one_hot.mT @ probabilities / one_hot.sum(-2).unsqueeze(-1)
    known = one_hot.sum(-1, keepdim=True).amin(-2, keepdim=True)
    return torch.where(known > 0, means, torch.nan), positions


def condense_quickly(
    class_ids: Tensor, probabilities: Tensor, labels: Tensor, *, n_classes: int, n_way: int
) -> Feedback | None:
    """Do what the checks and `condense` do, in the usual case, on the CPU, in half the time.

    Computes in the precision of the probabilities.

    Returns:
        None where it is not the usual case (float32 or float64, labels int64) or not certain at a
        glance that all is well. That says nothing: the full checks then tell.
    """
    try:
        ids, answers = class_ids.numpy(), labels.numpy()
        probs = probabilities.detach().numpy()
    except (AttributeError, TypeError, RuntimeError):
        return None
    if ids.ndim != 2 or answers.ndim not in (1, 2) or not answers.size or not ids.size:
        return None
    n_tasks, n_queries = len(ids), answers.shape[-1]
    if (
        not (ids.dtype == answers.dtype == np.int64 and probabilities.dtype in _QUICK)
        or ids.shape[1] != n_way
        or probs.shape != (n_tasks, n_queries, n_way)
        or (answers.ndim == 2 and len(answers) != n_tasks)
        or not probs.min() >= 0
    ):
        return None
    ones, positions = _ones_and_positions(n_way, probs.dtype)
    misses = (probs @ ones - 1).reshape(-1)
    one_hot = (answers[..., None] == positions).astype(probs.dtype)
    counts = one_hot.sum(-2)
    if (
        not misses @ misses <= _ROW_TOLERANCE[probabilities.dtype] ** 2
        or not counts.min() > 0
        or counts.sum() != answers.size
        or not _classes_all_fit(ids, n_classes)
    ):
        return None
    confusion = one_hot.swapaxes(-1, -2) @ probs / counts[..., None]
    return Feedback(ids, confusion, counts, None)


@functools.cache
def _ones_and_positions(n_way: int, dtype: Any) -> tuple[Array, Array]:
    return np.ones(n_way, dtype=dtype), np.arange(n_way)


def _classes_all_fit(ids: Array, n_classes: int) -> bool:
    """Return `classes_fit(ids, n_classes).all()`, in the quickest way for its size."""
    if len(ids) < 8:
        return all(
            len(set(row)) == len(row) and min(row) >= 0 and max(row) < n_classes
            for row in ids.tolist()
        )
    rows = np.sort(ids, -1)
    return bool(
        rows[:, 0].min() >= 0
        and rows[:, -1].max() < n_classes
        and (rows[:, 1:] > rows[:, :-1]).all()
    )


def which_pass(
    ids: Array,
    probs: Array,
    counts: Array,
    n_queries: int,
    n_classes: int,
    tolerance: float,
    xp: Any,
) -> Array:
    """Return which task passes which check, `tasks x len(PROBLEMS)` bool."""
    counts = xp.broadcast_to(counts, ids.shape)
    fits = (
        classes_fit(ids, n_classes),
        counts.sum(-1) == n_queries,
        (counts > 0).all(-1),
        rows_fit(probs, tolerance),
    )
    return xp.stack(fits, -1)


def classes_fit(ids: Array, n_classes: int) -> Array:
    """Return which rows hold distinct classes in range, `tasks` bool."""
    same = (ids[:, :, None] == ids[:, None, :]).reshape(len(ids), -1)
    return (same.sum(-1) == ids.shape[1]) & ((ids >= 0) & (ids < n_classes)).all(-1)


def rows_fit(probs: Array, tolerance: float) -> Array:
    """Return which matrices, `tasks`, hold nothing but rows of probabilities.

    Args:
        probs: `tasks x queries x way`.
        tolerance: By how much a row may miss one, or an entry zero.
    """
    # NaN and infinity fail these comparisons too.
    fits = abs(probs.sum(-1) - 1) <= tolerance
    return fits.all(-1) & (probs >= -tolerance).reshape(len(probs), -1).all(-1)


def row_tolerance(dtype: torch.dtype) -> float:
    """Return by how much a row of probabilities of that type may miss one."""
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


def check_ids(name: str, ids: Tensor, shape: tuple[int | None, ...], device: torch.device) -> None:
    """Refuse class or instance ids of a wrong type, shape or device.

    Args:
        name: What the user calls them.
        ids: What came.
        shape: The shape expected; None stands for any positive number.
        device: Where they must be.

    Raises:
        ArgumentError: If they do not fit.
    """
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64:
        came = ids.dtype if isinstance(ids, Tensor) else f"a {type(ids).__name__}"
        raise ArgumentError(f"{name} must be an int64 tensor; got {came}.")
    _check_shape(name, ids, shape)
    _check_device(name, ids, device)


def check_predictions(
    probabilities: Tensor, labels: Tensor, shape: tuple[int | None, ...], device: torch.device
) -> None:
    """Refuse predictions of a wrong type, shape or device.

    Args:
        probabilities: What the model said, of the given shape.
        labels: The right answers: that shape without its last dimension, or without the first
            and the last where all tasks share them.
        shape: The shape expected; None stands for any positive number.
        device: Where both must be.

    Raises:
        ArgumentError: If they do not fit.
    """
    if not isinstance(probabilities, Tensor) or not probabilities.is_floating_point():
        kind = getattr(probabilities, "dtype", type(probabilities).__name__)
        raise ArgumentError(f"probabilities must be a floating-point tensor; got {kind}.")
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        kind = getattr(labels, "dtype", type(labels).__name__)
        raise ArgumentError(f"labels must be an integer tensor; got {kind}.")
    _check_shape("probabilities", probabilities, shape)
    if labels.layout is not torch.strided:
        raise ArgumentError(f"labels must be a dense tensor; got {labels.layout}.")
    came, full = tuple(labels.shape), tuple(probabilities.shape)
    if came != full[:-1] and (len(full) < 3 or came != full[1:-1]):
        allowed = (full[:-1], full[1:-1])
        choices = " or ".join(str(choice) for choice in allowed if choice)
        raise ArgumentError(
            f"labels must have the shape {choices}, to go with probabilities of the shape "
            f"{full}; got {came}."
        )
    _check_device("probabilities", probabilities, device)
    _check_device("labels", labels, device)


def _check_shape(name: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    if tensor.layout is not torch.strided:
        raise ArgumentError(f"{name} must be a dense tensor; got {tensor.layout}.")
    came = tuple(tensor.shape)
    if len(came) != len(shape) or 0 in came or came != tuple(map(_pick, shape, came)):
        expected_shape = " x ".join("any" if size is None else str(size) for size in shape)
        raise ArgumentError(
            f"{name} must have the shape {expected_shape} (any: at least one); got {came}."
        )


def _pick(expected: int | None, came: int) -> int:
    return came if expected is None else expected


def _check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise ArgumentError(
            f"{name} must be on the sampler's device, {device}; got {tensor.device}. "
            f"Move it with .to({str(device)!r}), or the sampler with .to({str(tensor.device)!r})."
        )
