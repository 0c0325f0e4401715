"""Drawing and learning of samplers as Triton kernels.

On a GPU the arithmetic of a sampler costs nothing and its thirty small kernels cost everything.
These compute the same as `greedy_draw` and `PairPotentialSampler`. A draw of all tasks and all
classes is one launch, after the noise. An update checks the feedback, condenses it to one number
per pair, raises the potentials of the pairs, and sums their rows again. For one task that is one
launch. For several it is three, each of which needs all of the one before: a pair may be in many
tasks, and a class too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptask.triton_names import constexpr, jit, tensor, tl, triton

# Sums over tasks are taken over integers, so that the order of tasks does not matter; see
# `mean_by_key` in `adaptask.samplers.update_rule`.
_UNIT = tl.constexpr(2.0**44)
STRATEGIES = ("hard", "easy", "uncertain")
# Of a block that one program holds.
_MOST_NUMBERS = 1 << 15


@jit
def _draw(
    potentials: tensor,
    row_weights: tensor,
    noise: tensor,
    drawn: tensor,
    n_tasks: tensor,
    n_classes: tensor,
    n_way: tensor,
    width: constexpr,
) -> None:
    """Draw a task: the largest of log-weight minus log-noise, one class after the other."""
    task = tl.program_id(0)
    at = tl.arange(0, width)
    inside = at < n_classes
    log_weights = tl.load(row_weights + at, mask=inside, other=-float("inf"))
    exponential = tl.load(noise + task * n_classes + at, mask=inside, other=1.0)
    for k in range(n_way):
        score = tl.where(inside, log_weights - tl.log(exponential), -float("inf"))
        # What the next class needs is on its way while this one is being chosen.
        following = tl.minimum(k + 1, n_way - 1) * n_tasks + task
        exponential = tl.load(noise + following * n_classes + at, mask=inside, other=1.0)
        chosen = tl.argmax(score, 0)
        tl.store(drawn + task * n_way + k, chosen.to(tl.int64))
        row = tl.load(potentials + chosen * n_classes + at, mask=inside, other=-float("inf"))
        # The first class has been drawn by its row's sum; from then on rows add up.
        log_weights = tl.where(k == 0, row, log_weights + row)


def greedy_draw(log_potentials: Tensor, log_row_weights: Tensor, noise: Tensor) -> Tensor:
    """Return the classes of each task, `tasks x way` int64.

    Args:
        log_potentials: `classes x classes` float32.
        log_row_weights: `classes` float32.
        noise: `way x tasks x classes`, independent Exp(1) draws.
    """
    n_way, n_tasks, n_classes = noise.shape
    drawn = torch.empty(n_tasks, n_way, dtype=torch.int64, device=noise.device)
    width = triton.next_power_of_2(n_classes)
    _draw[(n_tasks,)](
        log_potentials,
        log_row_weights,
        noise,
        drawn,
        n_tasks,
        n_classes,
        n_way,
        width=width,
        num_warps=n_warps(width),
    )
    return drawn


@jit
def _choose(
    noise: tensor, drawn: tensor, n_classes: tensor, n_way: tensor, width: constexpr
) -> None:
    """Choose the classes of the largest numbers, the largest first."""
    task = tl.program_id(0)
    at = tl.arange(0, width)
    score = tl.load(noise + task * n_classes + at, mask=at < n_classes, other=-1.0)
    for k in range(n_way):
        chosen = tl.argmax(score, 0)
        tl.store(drawn + task * n_way + k, chosen.to(tl.int64))
        score = tl.where(at == chosen, -1.0, score)


def largest(noise: Tensor, n_way: int) -> Tensor:
    """Return the positions of the largest numbers of each row, `tasks x way` int64.

    What `topk` gives, in one launch.

    Args:
        noise: `tasks x classes` float32, not negative.
        n_way: How many.
    """
    n_tasks, n_classes = noise.shape
    drawn = torch.empty(n_tasks, n_way, dtype=torch.int64, device=noise.device)
    width = triton.next_power_of_2(n_classes)
    _choose[(n_tasks,)](noise, drawn, n_classes, n_way, width=width, num_warps=n_warps(width))
    return drawn


@jit
def _checked_pairs(
    class_ids: tensor,
    probabilities: tensor,
    labels: tensor,
    label_stride: tensor,
    refusals: tensor,
    n_queries: tensor,
    n_way: tensor,
    n_classes: tensor,
    tolerance: tensor,
    share: tensor,
    ways: constexpr,
    queries: constexpr,
) -> tuple[tensor, tensor, tensor]:
    """Check a task, count what is wrong; return p of Eq. 6, right answers, and if it is fine."""
    task = tl.program_id(0)
    way, query = tl.arange(0, ways), tl.arange(0, queries)
    is_way, is_query = way < n_way, query < n_queries
    ids = tl.load(class_ids + task * n_way + way, mask=is_way, other=-1)
    same = (ids[:, None] == ids[None, :]) & is_way[:, None] & is_way[None, :]
    in_range = (ids >= 0) & (ids < n_classes)
    ids_fit = (tl.sum(tl.sum(same.to(tl.int32), 1), 0) == n_way) & (
        tl.sum((in_range & is_way).to(tl.int32), 0) == n_way
    )
    answers = tl.load(labels + task * label_stride + query, mask=is_query, other=-1)
    known = tl.sum(((answers >= 0) & (answers < n_way) & is_query).to(tl.int32), 0)
    confusion = tl.zeros((ways, ways), dtype=tl.float32)
    for c in range(n_way):
        column = tl.load(
            probabilities + (task * n_queries + query) * n_way + c, mask=is_query, other=0.0
        ).to(tl.float32)
        of_class = tl.sum(tl.where(answers[None, :] == way[:, None], column[None, :], 0.0), 1)
        confusion = tl.where(way[None, :] == c, of_class[:, None], confusion)
    counts = tl.sum((answers[None, :] == way[:, None]).to(tl.float32), 1)
    at = (task * n_queries + query[:, None]) * n_way + way[None, :]
    cells = is_query[:, None] & is_way[None, :]
    every = tl.load(probabilities + at, mask=cells, other=0.0).to(tl.float32)
    misses = tl.abs(tl.sum(every, 1) - 1.0)
    # Comparisons are of what fits: NaN fails them.
    rows_fit = tl.sum(((misses <= tolerance) & is_query).to(tl.int32), 0) == n_queries
    cells_fit = tl.sum(tl.sum(((every >= -tolerance) & cells).to(tl.int32), 1), 0)
    probabilities_fit = rows_fit & (cells_fit == n_queries * n_way)
    all_asked = tl.sum(((counts > 0) & is_way).to(tl.int32), 0) == n_way
    labels_fit = known == n_queries
    is_fine = ids_fit & labels_fit & all_asked & probabilities_fit
    # Nothing waits for the counters, and nothing is added if the task is fine.
    tl.atomic_add(refusals, 1, mask=is_fine == 0, sem="relaxed")
    tl.atomic_add(refusals + 1, 1, mask=ids_fit == 0, sem="relaxed")
    tl.atomic_add(refusals + 2, 1, mask=labels_fit == 0, sem="relaxed")
    tl.atomic_add(refusals + 3, 1, mask=all_asked == 0, sem="relaxed")
    tl.atomic_add(refusals + 4, 1, mask=probabilities_fit == 0, sem="relaxed")
    mean = confusion / tl.maximum(counts, 1.0)[:, None]
    own = tl.sum(tl.where(answers[:, None] == way[None, :], every, 0.0), 1)
    n_as_high = tl.sum(((every >= own[:, None]) & cells).to(tl.int32), 1)
    n_right = tl.sum(((n_as_high == 1) & is_query).to(tl.int32), 0)
    return (mean + tl.trans(mean)) * share, n_right, is_fine


@jit
def _scaled(p: tensor) -> tensor:
    """Return numbers as integers, rounded to the nearest as those of the plain version are."""
    return tl.floor(p.to(tl.float64) * _UNIT + 0.5).to(tl.int64)


@jit
def _raise(
    potentials: tensor,
    ids: tensor,
    total: tensor,
    count: tensor,
    where: tensor,
    n_classes: tensor,
    alpha: tensor,
    tau: tensor,
    strategy: constexpr,
) -> None:
    """Update the pairs of some classes by a mean, given as sum and number."""
    mean = (total.to(tl.float64) / tl.maximum(count, 1).to(tl.float64) / _UNIT).to(tl.float32)
    gained = mean
    if strategy == 1:
        gained = 1.0 - mean
    if strategy == 2:
        gained = mean * (1.0 - mean)
    cells = potentials + ids[:, None] * n_classes + ids[None, :]
    old = tl.load(cells, mask=where, other=0.0)
    tl.store(cells, tau * old + alpha * gained, mask=where)


@jit
def _learn_one(
    potentials: tensor,
    row_weights: tensor,
    refusals: tensor,
    class_ids: tensor,
    probabilities: tensor,
    labels: tensor,
    n_queries: tensor,
    n_way: tensor,
    n_classes: tensor,
    tolerance: tensor,
    share: tensor,
    alpha: tensor,
    tau: tensor,
    strategy: constexpr,
    ways: constexpr,
    queries: constexpr,
    width: constexpr,
) -> None:
    """Do everything for the only task."""
    pairs, _, is_fine = _checked_pairs(
        class_ids,
        probabilities,
        labels,
        0,
        refusals,
        n_queries,
        n_way,
        n_classes,
        tolerance,
        share,
        ways,
        queries,
    )
    if is_fine:
        way, at = tl.arange(0, ways), tl.arange(0, width)
        is_way = way < n_way
        ids = tl.load(class_ids + way, mask=is_way, other=0)
        both = is_way[:, None] & is_way[None, :] & (way[:, None] != way[None, :])
        one = tl.full((ways, ways), 1, dtype=tl.int32)
        _raise(potentials, ids, _scaled(pairs), one, both, n_classes, alpha, tau, strategy)
        tl.debug_barrier()  # all threads have stored what all threads read now
        inside = at[None, :] < n_classes
        cells = potentials + ids[:, None] * n_classes + at[None, :]
        rows = tl.load(cells, mask=inside, other=-float("inf"))
        largest = tl.max(rows, 1)
        total = tl.sum(tl.where(inside, tl.exp(rows - largest[:, None]), 0.0), 1)
        tl.store(row_weights + ids, largest + tl.log(total), mask=is_way)


@jit
def _condense(
    class_ids: tensor,
    probabilities: tensor,
    labels: tensor,
    label_stride: tensor,
    pair_confusion: tensor,
    accepted: tensor,
    right: tensor,
    refusals: tensor,
    n_queries: tensor,
    n_way: tensor,
    n_classes: tensor,
    tolerance: tensor,
    share: tensor,
    ways: constexpr,
    queries: constexpr,
) -> None:
    """Check a task and condense what its queries got to one number per pair, Eq. 6."""
    pairs, n_right, is_fine = _checked_pairs(
        class_ids,
        probabilities,
        labels,
        label_stride,
        refusals,
        n_queries,
        n_way,
        n_classes,
        tolerance,
        share,
        ways,
        queries,
    )
    task, way = tl.program_id(0), tl.arange(0, ways)
    is_way = way < n_way
    tl.store(accepted + task, is_fine.to(tl.int32))
    tl.store(right + task, n_right)
    at = pair_confusion + (task * n_way + way[:, None]) * n_way + way[None, :]
    tl.store(at, pairs, mask=is_way[:, None] & is_way[None, :])


@jit
def _learn(
    potentials: tensor,
    class_ids: tensor,
    pair_confusion: tensor,
    accepted: tensor,
    n_tasks: tensor,
    n_way: tensor,
    n_classes: tensor,
    alpha: tensor,
    tau: tensor,
    strategy: constexpr,
    ways: constexpr,
) -> None:
    """Update the pairs of a task by their mean over all tasks; the first that has one does it."""
    task = tl.program_id(0)
    way = tl.arange(0, ways)
    is_way = way < n_way
    ids = tl.load(class_ids + task * n_way + way, mask=is_way, other=-1)
    total = tl.zeros((ways, ways), dtype=tl.int64)
    count = tl.zeros((ways, ways), dtype=tl.int32)
    first = tl.full((ways, ways), 1 << 30, dtype=tl.int32)
    for t in range(n_tasks):
        others = tl.load(class_ids + t * n_way + way, mask=is_way, other=-2)
        match = ids[:, None] == others[None, :]
        has = tl.sum(match.to(tl.int32), 1) * tl.load(accepted + t) > 0
        position = tl.sum(tl.where(match, way[None, :], 0), 1)
        shared = has[:, None] & has[None, :] & (way[:, None] != way[None, :])
        at = pair_confusion + (t * n_way + position[:, None]) * n_way + position[None, :]
        total += tl.where(shared, _scaled(tl.load(at, mask=shared, other=0.0)), 0)
        count += shared.to(tl.int32)
        first = tl.where(shared & (first > t), t, first)
    ours = (first == task) & (count > 0)
    _raise(potentials, ids, total, count, ours, n_classes, alpha, tau, strategy)


@jit
def _refresh(
    potentials: tensor,
    row_weights: tensor,
    class_ids: tensor,
    accepted: tensor,
    n_way: tensor,
    n_classes: tensor,
    width: constexpr,
) -> None:
    """Recompute the row sum of a class that was in a task."""
    entry = tl.program_id(0)
    if tl.load(accepted + entry // n_way) > 0:
        at = tl.arange(0, width)
        inside = at < n_classes
        chosen = tl.load(class_ids + entry)
        row = tl.load(potentials + chosen * n_classes + at, mask=inside, other=-float("inf"))
        largest = tl.max(row, 0)
        total = tl.sum(tl.where(inside, tl.exp(row - largest), 0.0), 0)
        tl.store(row_weights + chosen, largest + tl.log(total))


def condense(
    refusals: Tensor,
    class_ids: Tensor,
    probabilities: Tensor,
    labels: Tensor,
    *,
    n_classes: int,
    share: float,
    tolerance: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Check feedback, count what is not fine, and condense it to one number per pair.

    Args:
        refusals: At least 5 int64: tasks that were refused, and how often by each of the four
            checks of classes, labels and probabilities; added to.
        class_ids: `tasks x way` int64.
        probabilities: `tasks x queries x way`.
        labels: `tasks x queries`, or `queries` if all tasks share them.
        n_classes: Number of training classes.
        share: 1 for the sum of both directions, 1/2 for their mean.
        tolerance: By how much a row of probabilities may miss one.

    Returns:
        p of Eq. 6, `tasks x way x way` float32; which tasks are fine, `tasks` int32; and the
        number of queries whose own class has strictly the highest probability, `tasks` int32.
    """
    (n_tasks, n_way), n_queries = class_ids.shape, probabilities.shape[1]
    confusion = class_ids.new_empty((n_tasks, n_way, n_way), dtype=torch.float32)
    accepted, right = class_ids.new_empty((2, n_tasks), dtype=torch.int32)
    ways, queries = triton.next_power_of_2(n_way), triton.next_power_of_2(n_queries)
    _condense[(n_tasks,)](
        class_ids.contiguous(),
        probabilities.detach().contiguous(),
        labels.contiguous(),
        n_queries if labels.ndim == 2 else 0,
        confusion,
        accepted,
        right,
        refusals,
        n_queries,
        n_way,
        n_classes,
        tolerance,
        share,
        ways=ways,
        queries=queries,
        num_warps=n_warps(ways * queries),
    )
    return confusion, accepted, right


def learn(
    log_potentials: Tensor,
    log_row_weights: Tensor,
    refusals: Tensor,
    class_ids: Tensor,
    probabilities: Tensor,
    labels: Tensor,
    *,
    share: float,
    tolerance: float,
    alpha: float,
    tau: float,
    strategy: str,
) -> None:
    """Update the potentials of all pairs that were in a task which is fine; count the others.

    Args:
        log_potentials: `classes x classes` float32; changed in place.
        log_row_weights: `classes` float32; changed in place.
        refusals: See `condense`.
        class_ids: `tasks x way` int64.
        probabilities: `tasks x queries x way`.
        labels: `tasks x queries`, or `queries` if all tasks share them.
        share: 1 for the sum of both directions, 1/2 for their mean.
        tolerance: By how much a row of probabilities may miss one.
        alpha: Weight of the new observation.
        tau: Memory.
        strategy: One of `STRATEGIES`.
    """
    (n_tasks, n_way), n_classes = class_ids.shape, len(log_potentials)
    ways, width = triton.next_power_of_2(n_way), triton.next_power_of_2(n_classes)
    ids, rule = class_ids.contiguous(), (alpha, tau, STRATEGIES.index(strategy))
    if n_tasks == 1 and ways * width <= _MOST_NUMBERS:
        n_queries = probabilities.shape[1]
        queries = triton.next_power_of_2(n_queries)
        feedback = (ids, probabilities.detach().contiguous(), labels.contiguous())
        numbers = (n_queries, n_way, n_classes, tolerance, share, *rule)
        blocks = {"ways": ways, "queries": queries, "width": width}
        blocks["num_warps"] = n_warps(ways * max(queries, width))
        _learn_one[(1,)](log_potentials, log_row_weights, refusals, *feedback, *numbers, **blocks)
        return
    checks = {"share": share, "tolerance": tolerance}
    p, accepted, _ = condense(refusals, ids, probabilities, labels, n_classes=n_classes, **checks)
    sizes, warps = (n_tasks, n_way, n_classes), n_warps(ways * ways)
    _learn[(n_tasks,)](log_potentials, ids, p, accepted, *sizes, *rule, ways=ways, num_warps=warps)
    rows = (log_potentials, log_row_weights)
    _refresh[(n_tasks * n_way,)](
        *rows, ids, accepted, n_way, n_classes, width=width, num_warps=n_warps(width)
    )


def n_warps(n_numbers: int) -> int:
    """Return how many warps share a block of that size."""
    return max(1, min(16, n_numbers // 256))


def fits(n_way: int, n_queries: int) -> bool:
    """Return whether a task is small enough to be held by one program."""
    size = triton.next_power_of_2(n_way) * triton.next_power_of_2(n_queries)
    return bool(size <= _MOST_NUMBERS)
