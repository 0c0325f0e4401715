"""Drawing and learning of `neighbor` as Triton kernels: one launch each, besides noise and checks.

They compute the same as `NeighborSampler` does in plain torch. A draw has one program per task,
which goes through the features of its pool for every class that it chooses. Where all tasks share
one small pool, another launch has made a table of all similarities before, with one program per
class. An update has one program per class of a task, and one for the strength.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptask.samplers.shuffle import GOLDEN, MIX, n_rounds_of, table_of
from adaptask.samplers.triton_kernels import condense, n_warps
from adaptask.triton_names import constexpr, jit, tensor, tl, triton

_UNIT = tl.constexpr(2.0**44)  # as in `mean_by_key`
_MIX_0, _MIX_1 = tl.constexpr(MIX[0]), tl.constexpr(MIX[1])
_GOLDEN = tl.constexpr(GOLDEN)
# Of the pool, and of a feature, that one program holds.
_LARGEST_POOL, _LARGEST_FEATURE = 4096, 8192
_TILE = 1 << 14
# Classes of a table: with more, its programs have more to do than those of the tasks.
_LARGEST_TABLE = 512


@jit
def _mixed(number: tensor) -> tensor:
    """Return a hash of unsigned 32-bit integers; see `shuffle.mixed`."""
    number = number ^ (number >> 16)
    number = (number * _MIX_0).to(tl.uint32)
    number = number ^ (number >> 15)
    number = (number * _MIX_1).to(tl.uint32)
    return number ^ (number >> 16)


@jit
def _derived_key(key: tensor, number: tensor, purpose: constexpr) -> tensor:
    """Return a key for a number and a purpose; see `shuffle.derived_keys`."""
    offset = (purpose * _GOLDEN) & 0xFFFFFFFF
    inner = (_mixed(number.to(tl.uint32)) + offset).to(tl.uint32)
    return _mixed(key.to(tl.uint32) ^ _mixed(inner))


@jit
def _turned(place: tensor, length: tensor, number: tensor, key: tensor) -> tensor:
    """Return the place in a circle of that length after a turn by a hash of the number."""
    turn = ((number + key) * _MIX_0).to(tl.uint32)
    turn = ((turn ^ (turn >> 15)) * _MIX_1).to(tl.uint32)
    place = (place + (((turn >> 16) * length) >> 16)).to(tl.uint32)
    return tl.where(place >= length, place - length, place).to(tl.uint32)


@jit
def _shuffled(
    place: tensor,
    key: tensor,
    n_columns: constexpr,
    n_rows: constexpr,
    rest: constexpr,
    n_rounds: constexpr,
) -> tensor:
    """Return the items at some places of a shuffled list, int64; see `shuffle.shuffled`."""
    place = place.to(tl.uint32)
    row, column = (place // n_columns).to(tl.uint32), (place % n_columns).to(tl.uint32)
    for k in tl.static_range(n_rounds):
        length = tl.where(row == n_rows - 1, rest, n_columns).to(tl.uint32)
        offset = (2 * k * _GOLDEN) & 0xFFFFFFFF
        column = _turned(column, length, row, _mixed((key + offset).to(tl.uint32)))
        length = tl.where(column >= rest, n_rows - 1, n_rows).to(tl.uint32)
        offset = ((2 * k + 1) * _GOLDEN) & 0xFFFFFFFF
        row = _turned(row, length, column, _mixed((key + offset).to(tl.uint32)))
    return row.to(tl.int64) * n_columns + column.to(tl.int64)


@jit
def _similarities(
    features: tensor,
    chosen: tensor,
    counted: tensor,
    pool: tensor,
    inside: tensor,
    n_features: tensor,
    width: constexpr,
    depth: constexpr,
) -> tuple[tensor, tensor]:
    """Return the cosines of a class to its pool, and the same standardized; see `standardized`.

    `counted` is 1 for the others that have a feature, and 0 for the class itself.
    """
    entry = tl.arange(0, depth)
    cosines = tl.zeros((width,), dtype=tl.float32)
    for start in range(0, n_features, depth):
        is_entry = start + entry < n_features
        vector = tl.load(features + chosen * n_features + start + entry, mask=is_entry, other=0.0)
        cells = features + pool[:, None] * n_features + start + entry[None, :]
        tile = tl.load(cells, mask=inside[:, None] & is_entry[None, :], other=0.0)
        cosines += tl.sum(tile * vector[None, :], 1)
    n_counted = tl.sum(counted, 0) + 1e-9
    centered = (cosines - tl.sum(cosines * counted, 0) / n_counted) * counted
    variance = tl.sum(centered * centered, 0) / n_counted
    return cosines, centered / tl.sqrt(variance + 1e-10)


@jit
def _tabulate(
    features: tensor,
    seen: tensor,
    table: tensor,
    n_classes: tensor,
    n_features: tensor,
    width: constexpr,
    depth: constexpr,
) -> None:
    """Write a row of the table: the standardized similarities of one class to all."""
    own = tl.program_id(0)
    at = tl.arange(0, width)
    inside = at < n_classes
    pool = tl.where(inside, at, 0).to(tl.int64)
    has_feature = tl.load(seen + pool, mask=inside & (at != own), other=0) != 0
    counted = has_feature.to(tl.float32)
    _, similarities = _similarities(
        features, own.to(tl.int64), counted, pool, inside, n_features, width, depth
    )
    tl.store(table + own * n_classes + at, similarities, mask=inside)


@jit
def _draw(
    features: tensor,
    seen: tensor,
    table: tensor,
    variants: tensor,
    noise: tensor,
    drawn: tensor,
    shuffle_key: tensor,
    tasks_drawn: tensor,
    strength: tensor,
    n_tasks: tensor,
    n_classes: tensor,
    n_features: tensor,
    n_way: tensor,
    n_neighborhoods: tensor,
    pool_size: tensor,
    least_coin: tensor,
    duplicate_cosine: tensor,
    pass_columns: constexpr,
    pass_rows: constexpr,
    pass_rest: constexpr,
    pool_columns: constexpr,
    pool_rows: constexpr,
    pool_rest: constexpr,
    pass_rounds: constexpr,
    pool_rounds: constexpr,
    is_whole: constexpr,
    has_variants: constexpr,
    has_duplicates: constexpr,
    has_table: constexpr,
    is_only: constexpr,
    width: constexpr,
    depth: constexpr,
) -> None:
    """Draw a task: its first class and its pool by its number, then class by class."""
    task = tl.program_id(0)
    key = tl.load(shuffle_key)
    number = tl.load(tasks_drawn) + task
    pass_key = _derived_key(key, number // n_classes, 1)
    place = number % n_classes
    first = _shuffled(place, pass_key, pass_columns, pass_rows, pass_rest, pass_rounds)
    coin = _derived_key(key, number, 3).to(tl.int64)
    factor = tl.where(coin >= least_coin, tl.load(strength), 0.0)
    at = tl.arange(0, width)
    inside = at < pool_size
    if is_whole:
        pool = tl.where(inside, at, 0).to(tl.int64)
        chosen_at = first
    else:
        pool_key = _derived_key(key, number, 2)
        before = tl.maximum(at - 1, 0)
        others = _shuffled(before, pool_key, pool_columns, pool_rows, pool_rest, pool_rounds)
        others += (others >= first).to(tl.int64)
        pool = tl.where(inside & (at > 0), others, first)
        chosen_at = first * 0
    chosen = first
    tl.store(drawn + task * n_way, chosen)
    closed = tl.where(inside, 0.0, -float("inf"))
    allowed = tl.full((width,), 1, dtype=tl.int32)
    score = tl.zeros((width,), dtype=tl.float32)
    if has_table == 0:
        has_feature = (tl.load(seen + pool, mask=inside, other=0) != 0).to(tl.float32)
    if has_variants:
        kinds = tl.load(variants + pool, mask=inside, other=0)
    for k in range(1, n_way):
        exponential = tl.load(
            noise + ((k - 1) * n_tasks + task) * pool_size + at, mask=inside, other=1.0
        )
        begins = (k * n_neighborhoods) // n_way > ((k - 1) * n_neighborhoods) // n_way
        own = at == chosen_at
        if has_table:
            similarities = tl.load(table + chosen * pool_size + at, mask=inside, other=0.0)
            score = tl.where(begins, 0.0, score + similarities)
        elif has_duplicates | (begins == 0):
            counted = tl.where(own, 0.0, has_feature)
            cosines, similarities = _similarities(
                features, chosen, counted, pool, inside, n_features, width, depth
            )
            score = tl.where(begins, 0.0, score + similarities)
            if has_duplicates:
                allowed = allowed & (cosines <= duplicate_cosine).to(tl.int32)
        else:
            score = tl.zeros((width,), dtype=tl.float32)
        if has_variants:
            allowed = allowed & (kinds != tl.load(variants + chosen)).to(tl.int32)
        closed = tl.where(own, -float("inf"), closed)
        log_weights = factor * score - tl.log(exponential) + closed
        if has_duplicates | has_variants:
            is_open = (allowed > 0) & (closed == 0.0)
            is_any = tl.sum(is_open.to(tl.int32), 0) > 0
            log_weights = tl.where(is_open | (is_any == 0), log_weights, -float("inf"))
        chosen_at = tl.argmax(log_weights, 0).to(tl.int64)
        chosen = chosen_at if is_whole else tl.sum(tl.where(at == chosen_at, pool, 0), 0)
        tl.store(drawn + task * n_way + k, chosen)
    if is_only:
        tl.debug_barrier()  # all threads have read the number
        tl.store(tasks_drawn, number + 1)


def draw(
    features: Tensor,
    seen: Tensor,
    variants: Tensor | None,
    noise: Tensor,
    shuffle_key: Tensor,
    tasks_drawn: Tensor,
    strength: Tensor,
    *,
    least_coin: int,
    n_neighborhoods: int,
    duplicate_cosine: float | None,
) -> Tensor:
    """Return the classes of each task, `tasks x way` int64.

    Args:
        features: `classes x features` float32.
        seen: `classes` bool.
        variants: `classes` int64, or None.
        noise: `(way - 1) x tasks x pool`, independent Exp(1) draws.
        shuffle_key: Scalar int64.
        tasks_drawn: Scalar int64, the number of the first task; raised by the number of tasks.
        strength: Scalar float32.
        least_coin: Tasks whose coin is below it are drawn with strength 0.
        n_neighborhoods: Number of neighborhoods of a task.
        duplicate_cosine: Classes with a larger cosine do not meet.
    """
    (n_steps, n_tasks, pool_size), (n_classes, n_features) = noise.shape, features.shape
    n_way, width = n_steps + 1, triton.next_power_of_2(pool_size)
    is_whole, has_duplicates = pool_size == n_classes, duplicate_cosine is not None
    depth = max(4, min(triton.next_power_of_2(n_features), _TILE // width))
    given = seen.view(torch.uint8)
    drawn = torch.empty(n_tasks, n_way, dtype=torch.int64, device=noise.device)
    has_table = is_whole and n_classes <= _LARGEST_TABLE and not has_duplicates
    table = noise
    if has_table:
        table = noise.new_empty(n_classes, n_classes)
        _tabulate[(n_classes,)](
            features,
            given,
            table,
            n_classes,
            n_features,
            width=width,
            depth=depth,
            num_warps=n_warps(width * depth // 4),
        )
    _draw[(n_tasks,)](
        features,
        given,
        table,
        drawn if variants is None else variants,
        noise,
        drawn,
        shuffle_key,
        tasks_drawn,
        strength,
        n_tasks,
        n_classes,
        n_features,
        n_way,
        n_neighborhoods,
        pool_size,
        least_coin,
        2.0 if duplicate_cosine is None else duplicate_cosine,
        *table_of(n_classes),
        *table_of(n_classes - 1),
        pass_rounds=n_rounds_of(n_classes),
        pool_rounds=n_rounds_of(n_classes - 1),
        is_whole=is_whole,
        has_variants=variants is not None,
        has_duplicates=has_duplicates,
        has_table=has_table,
        is_only=n_tasks == 1,
        width=width,
        depth=depth,
        num_warps=n_warps(width if has_table else width * depth // 4),
    )
    if n_tasks > 1:  # programs of several tasks cannot know when all have read it
        tasks_drawn += n_tasks
    return drawn


@jit
def _unit(vector: tensor) -> tuple[tensor, tensor]:
    """Return a vector of length 1, and whether it has a direction."""
    largest = tl.max(tl.abs(vector), 0)
    known = largest > 1e-30
    scaled = vector / tl.where(known, largest, 1.0)
    length = tl.sqrt(tl.sum(scaled * scaled, 0))
    return scaled / tl.maximum(length, 0.5), known


@jit
def _are_finite(given: tensor, task: tensor, n_numbers: tensor, block: constexpr) -> tensor:
    """Return whether all features of a task, so many numbers, are finite."""
    bad = tl.zeros((block,), dtype=tl.int32)
    for start in range(0, n_numbers, block):
        at = start + tl.arange(0, block)
        cells = given + task * n_numbers + at
        numbers = tl.load(cells, mask=at < n_numbers, other=0.0).to(tl.float32)
        # A comparison of what fits: NaN fails it.
        bad += 1 - (tl.abs(numbers) < float("inf")).to(tl.int32)
    return tl.sum(bad, 0) == 0


@jit
def _follow(
    strength: tensor,
    given: tensor,
    accepted: tensor,
    right: tensor,
    n_tasks: tensor,
    n_queries: tensor,
    n_numbers: tensor,
    beta: tensor,
    target: tensor,
    rate: tensor,
    block: constexpr,
) -> None:
    """Move the strength by the mean accuracy of the tasks that are fine, if any."""
    n_right, n_fine = tl.zeros((), dtype=tl.int64), tl.zeros((), dtype=tl.int64)
    for t in range(n_tasks):
        is_fine = (tl.load(accepted + t) > 0) & _are_finite(given, t, n_numbers, block)
        n_right += tl.where(is_fine, tl.load(right + t), 0)
        n_fine += is_fine.to(tl.int64)
    n_asked = tl.maximum(n_fine, 1) * n_queries
    excess = (n_right.to(tl.float64) / n_asked.to(tl.float64)).to(tl.float32) - target
    moved = tl.load(strength) + tl.where(n_fine > 0, rate * excess, 0.0)
    tl.store(strength, tl.minimum(tl.maximum(moved, 0.0), beta))


@jit
def _move(
    entry: tensor,
    features: tensor,
    seen: tensor,
    refusals: tensor,
    class_ids: tensor,
    given: tensor,
    accepted: tensor,
    n_tasks: tensor,
    n_way: tensor,
    n_features: tensor,
    momentum: tensor,
    ways: constexpr,
    width: constexpr,
    block: constexpr,
) -> None:
    """Move the feature of a class by the mean over its tasks; the first that has it does it."""
    task = entry // n_way
    is_finite = _are_finite(given, task, n_way * n_features, block)
    is_fine = tl.load(accepted + task) > 0
    counts = (entry % n_way == 0) & (is_finite == 0)
    tl.atomic_add(refusals, 1, mask=counts & is_fine, sem="relaxed")
    tl.atomic_add(refusals + 5, 1, mask=counts, sem="relaxed")
    if is_fine & is_finite:
        way, at = tl.arange(0, ways), tl.arange(0, width)
        is_way, inside = way < n_way, at < n_features
        own = tl.load(class_ids + entry)
        total = tl.zeros((width,), dtype=tl.int64)
        count = tl.zeros((), dtype=tl.int32)
        n_earlier = tl.zeros((), dtype=tl.int32)
        for t in range(n_tasks):
            ids = tl.load(class_ids + t * n_way + way, mask=is_way, other=-1)
            match = (ids == own) & is_way
            if tl.sum(match.to(tl.int32), 0) * tl.load(accepted + t) > 0:  # noqa: SIM102
                # A condition with `and` would look at the features of every task.
                if _are_finite(given, t, n_way * n_features, block):
                    n_earlier += (task > t).to(tl.int32)
                    position = tl.sum(tl.where(match, way, 0), 0)
                    cells = given + (t * n_way + position) * n_features + at
                    vector = tl.load(cells, mask=inside, other=0.0).to(tl.float32)
                    unit, known = _unit(vector)
                    total += tl.floor(unit.to(tl.float64) * _UNIT + 0.5).to(tl.int64)
                    count += known.to(tl.int32)
        mean = (total.to(tl.float64) / tl.maximum(count, 1).to(tl.float64) / _UNIT).to(tl.float32)
        old = tl.load(features + own * n_features + at, mask=inside, other=0.0)
        was_seen = tl.load(seen + own) > 0
        new, known = _unit(tl.where(was_seen, momentum * old + (1 - momentum) * mean, mean))
        if (n_earlier == 0) & (count > 0) & known:
            tl.store(features + own * n_features + at, new, mask=inside)
            tl.store(seen + own, 1)


@jit
def _learn(
    features: tensor,
    seen: tensor,
    strength: tensor,
    refusals: tensor,
    class_ids: tensor,
    given: tensor,
    accepted: tensor,
    right: tensor,
    n_tasks: tensor,
    n_way: tensor,
    n_queries: tensor,
    n_features: tensor,
    momentum: tensor,
    beta: tensor,
    target: tensor,
    rate: tensor,
    ways: constexpr,
    width: constexpr,
    block: constexpr,
) -> None:
    """Update the feature of one class, or, in the last program, the strength."""
    entry = tl.program_id(0)
    if entry < n_tasks * n_way:
        _move(
            entry,
            features,
            seen,
            refusals,
            class_ids,
            given,
            accepted,
            n_tasks,
            n_way,
            n_features,
            momentum,
            ways,
            width,
            block,
        )
    else:
        _follow(
            strength,
            given,
            accepted,
            right,
            n_tasks,
            n_queries,
            n_way * n_features,
            beta,
            target,
            rate,
            block,
        )


def learn(
    features: Tensor,
    seen: Tensor,
    strength: Tensor,
    refusals: Tensor,
    class_ids: Tensor,
    probabilities: Tensor,
    labels: Tensor,
    class_features: Tensor,
    *,
    momentum: float,
    beta: float,
    target_accuracy: float | None,
    rate: float,
    tolerance: float,
) -> None:
    """Update the features of all classes that were in a task which is fine; count the others.

    Args:
        features: `classes x features` float32; changed in place.
        seen: `classes` bool; changed in place.
        strength: Scalar float32; changed in place.
        refusals: `6` int64: tasks that were refused, and how often by each check; added to.
        class_ids: `tasks x way` int64.
        probabilities: `tasks x queries x way`.
        labels: `tasks x queries`, or `queries` if all tasks share them.
        class_features: `tasks x way x features`.
        momentum: How much of an old feature is kept.
        beta: Largest strength.
        target_accuracy: Above it the strength rises, below it falls; None: it stays.
        rate: How far it moves per unit of accuracy.
        tolerance: By how much a row of probabilities may miss one.
    """
    (n_tasks, n_way), (n_classes, n_features) = class_ids.shape, features.shape
    ids = class_ids.contiguous()
    checks = {"share": 1.0, "tolerance": tolerance}
    _, accepted, right = condense(
        refusals, ids, probabilities, labels, n_classes=n_classes, **checks
    )
    width = triton.next_power_of_2(n_features)
    block = min(triton.next_power_of_2(n_way * n_features), _LARGEST_FEATURE)
    follows = target_accuracy is not None
    _learn[(n_tasks * n_way + follows,)](
        features,
        seen.view(torch.uint8),
        strength,
        refusals,
        ids,
        class_features.detach().contiguous(),
        accepted,
        right,
        n_tasks,
        n_way,
        probabilities.shape[1],
        n_features,
        momentum,
        beta,
        target_accuracy or 0.0,
        rate,
        ways=triton.next_power_of_2(n_way),
        width=width,
        block=block,
        num_warps=n_warps(max(width, block // 4)),
    )


def fits(pool_size: int, n_features: int) -> bool:
    """Return whether a pool and a feature are small enough to be held by one program."""
    return pool_size <= _LARGEST_POOL and n_features <= _LARGEST_FEATURE
