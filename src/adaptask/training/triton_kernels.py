"""What a step measures, by one Triton kernel each: metrics and a bad loss; class features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adaptask.triton_names import constexpr, jit, tensor, tl, triton

_CELLS = 1024
# Of a block of features that one program loads at a time.
_ROWS, _COLUMNS = 32, 64


@jit
def _measure(
    loss: tensor,
    logits: tensor,
    labels: tensor,
    class_ids: tensor,
    step_number: tensor,
    sums: tensor,
    bad_step: tensor,
    bad_ids: tensor,
    n_rows: tensor,
    n_queries: tensor,
    n_way: tensor,
    ways: constexpr,
    rows: constexpr,
) -> None:
    """Add one part of a step to the sums; keep the first one whose loss is not finite."""
    way = tl.arange(0, ways)
    n_right = 0
    first_bad = n_rows
    for start in range(0, n_rows, rows):
        row = start + tl.arange(0, rows)
        exists = row < n_rows
        cells = exists[:, None] & (way < n_way)[None, :]
        at = row[:, None] * n_way + way[None, :]
        value = tl.load(logits + at, mask=cells, other=-float("inf")).to(tl.float32)
        label = tl.load(labels + row, mask=exists, other=-1)
        n_right += tl.sum(((tl.argmax(value, 1) == label) & exists).to(tl.int32), 0)
        # NaN and infinity fail this comparison.
        is_bad = cells & ((tl.abs(value) < float("inf")).to(tl.int32) == 0)
        worst = tl.max(is_bad.to(tl.int32), 1)
        task = tl.where(worst > 0, row // n_queries, n_rows)
        first_bad = tl.minimum(first_bad, tl.min(task, 0))
    value = tl.load(loss).to(tl.float64)
    tl.store(sums, tl.load(sums) + value)
    tl.store(sums + 1, tl.load(sums + 1) + tl.cast(n_right, tl.float64) / n_rows)
    tl.store(sums + 2, tl.load(sums + 2) + 1.0)
    is_fine = tl.abs(value) < float("inf")
    if (is_fine.to(tl.int32) == 0) & (tl.load(bad_step) < 0):
        tl.store(bad_step, tl.load(step_number))
        chosen = tl.where(first_bad < n_rows, first_bad, 0)
        ids = tl.load(class_ids + chosen * n_way + way, mask=way < n_way, other=0)
        tl.store(bad_ids + way, ids, mask=way < n_way)


def measure(
    loss: Tensor,
    query_logits: Tensor,
    query_labels: Tensor,
    class_ids: Tensor,
    step_number: Tensor,
    *,
    sums: Tensor,
    bad_step: Tensor,
    bad_class_ids: Tensor,
) -> None:
    """Do what `RunningMetrics.add` and `LossCheck.add` do.

    Args:
        loss: Of this part of the step.
        query_logits: `tasks x queries x way`.
        query_labels: `tasks x queries`.
        class_ids: `tasks x way`.
        step_number: Of the step, int64.
        sums: Of loss, accuracy and parts, `3` float64; added to.
        bad_step: The first step whose loss was not finite, int64; below 0 while there is none.
        bad_class_ids: The classes of its first task whose logits are not finite, `way` int64.
    """
    n_tasks, n_queries, n_way = query_logits.shape
    ways = triton.next_power_of_2(n_way)
    _measure[(1,)](
        loss.detach(),
        query_logits.detach().contiguous(),
        query_labels.contiguous(),
        class_ids.contiguous(),
        step_number,
        sums,
        bad_step,
        bad_class_ids,
        n_tasks * n_queries,
        n_queries,
        n_way,
        ways=ways,
        rows=max(1, _CELLS // ways),
        num_warps=8,
    )


@jit
def _class_means(
    features: tensor,
    support_labels: tensor,
    query_labels: tensor,
    means: tensor,
    n_support: tensor,
    n_images: tensor,
    n_way: tensor,
    n_features: tensor,
    rows: constexpr,
    columns: constexpr,
) -> None:
    """Average some features of the images of one class of a task."""
    task, position = tl.program_id(0) // n_way, tl.program_id(0) % n_way
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    total = tl.zeros((columns,), dtype=tl.float32)
    count = 0
    for start in range(0, n_images, rows):
        image = start + tl.arange(0, rows)
        of_support = tl.load(
            support_labels + task * n_support + image, mask=image < n_support, other=-1
        )
        of_query = tl.load(
            query_labels + task * (n_images - n_support) + image - n_support,
            mask=(image >= n_support) & (image < n_images),
            other=-1,
        )
        is_own = tl.maximum(of_support, of_query) == position
        at = (task * n_images + image[:, None]) * n_features + column[None, :]
        own = is_own[:, None] & (column < n_features)[None, :]
        total += tl.sum(tl.load(features + at, mask=own, other=0.0).to(tl.float32), 0)
        count += tl.sum(is_own.to(tl.int32), 0)
    at = means + tl.program_id(0) * n_features + column
    tl.store(at, total / tl.cast(count, tl.float32), mask=column < n_features)


def class_means(features: Tensor, labels: Sequence[Tensor], n_way: int) -> Tensor:
    """Do what `class_means` of `adaptask.training.step` does, in one launch."""
    n_tasks, n_images, n_features = features.shape
    means = features.new_empty((n_tasks, n_way, n_features), dtype=torch.float32)
    columns = min(_COLUMNS, triton.next_power_of_2(n_features))
    _class_means[(n_tasks * n_way, triton.cdiv(n_features, columns))](
        features.contiguous(),
        labels[0].contiguous(),
        labels[-1].contiguous(),
        means,
        labels[0].shape[1],
        n_images,
        n_way,
        n_features,
        rows=_ROWS,
        columns=columns,
        num_warps=4,
    )
    return means
