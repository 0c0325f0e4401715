"""What a step measures, by one kernel in Triton: metrics, and a loss that is not finite."""

from __future__ import annotations

from torch import Tensor

from adaptask.triton_names import constexpr, jit, tensor, tl, triton

_CELLS = 1024


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
