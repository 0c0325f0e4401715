"""The interior-point steps of `svm_solver` as Triton kernels, two launches per step.

In torch a step is about 85 small kernels, and a GPU spends its time between them. Here a step is

- `_invert`, one program per task and class: the inverse of H + D_k by symmetric Gauss-Jordan
  elimination, and its product with the right side,
- `_advance`, one program per task: the Schur complement of the sums over classes, predictor,
  corrector, length of the step and the step.

The program of a task that has converged returns at once, so that further steps cost almost nothing.

The arithmetic is that of `svm_solver`, in a different order. Inverses by elimination lose digits
if points are nearly dependent. The Schur complement is therefore not inverted but factorized, LDL',
and every solution with it is refined once. The sums over classes should be zero; each step corrects
what rounding has left of them.

This module needs Triton. There is no autotuning and no read on the host, so that the kernels can be
captured in a graph after a first run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptask.triton_names import constexpr, jit, tensor, tl, triton

LARGEST = 128
"""Maximal number of support points: the matrix of a class must fit into registers."""
WARPS = {16: 1, 32: 4, 64: 8, 128: 16}
"""Warps of a program by the size of its matrices."""


def fits(n_support: int) -> bool:
    """Return whether tasks with this many support points can be solved here."""
    return n_support <= LARGEST


def search(
    hessian: Tensor,
    threshold: Tensor,
    start: tuple[Tensor, Tensor, Tensor, Tensor],
    *,
    n_steps: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return u, its slack and the multipliers after the last step.

    Args:
        hessian: Regularized H, `tasks x support x support`.
        threshold: Mean product of slack and multiplier at which a task has converged, `tasks`.
        start: Initial u, slacks, nu and multipliers, `tasks x way x support`, nu with 1 way; they
            are not modified.
        n_steps: Maximal number of steps.

    All tensors are float64.
    """
    n_tasks, n_way, n_support = start[0].shape
    # u, slacks, multipliers, right sides, and products of the right sides with the inverses.
    rows = hessian.new_empty(n_tasks, 5, n_way, n_support)
    torch.stack((start[0], start[1], start[3]), dim=1, out=rows[:, :3])
    # The inverses of the classes, their sum and its factor.
    matrices = hessian.new_empty(n_tasks, n_way + 2, n_support, n_support)
    tensors = (hessian.contiguous(), threshold.contiguous(), start[2].clone(), rows, matrices)
    size = max(16, triton.next_power_of_2(n_support))
    sizes = (n_way, n_support, triton.next_power_of_2(n_way), size)
    for _ in range(n_steps):
        _invert[(n_tasks, n_way)](*tensors, *sizes, num_warps=WARPS[size])
        _advance[(n_tasks,)](*tensors, *sizes, num_warps=WARPS[size])
    return rows[:, 0], rows[:, 1], rows[:, 2]


# In the kernels, `way x n` numbers lie in tiles of `ways x size`, powers of two. The padding of a
# tile is zero, or one if something is divided by it.


@jit
def _invert(
    hessian: tensor,
    threshold: tensor,
    nu: tensor,
    rows: tensor,
    matrices: tensor,
    way: constexpr,
    n: constexpr,
    ways: constexpr,
    size: constexpr,
) -> None:
    """Store the inverse of H + D_k of class k, its right side and their product."""
    task, k = tl.program_id(0), tl.program_id(1)
    hessian, nu, rows = hessian + task * n * n, nu + task * n, rows + task * 5 * way * n
    matrices += task * (way + 2) * n * n
    if _is_active(threshold + task, rows, way, n, ways, size):
        at = tl.arange(0, size)
        down, across, real, own = at[:, None], at[None, :], at < n, rows + k * n + at
        block = _square(hessian, n, size)
        u = tl.load(own, mask=real, other=0.0)
        slack = tl.load(own + way * n, mask=real, other=1.0)
        multipliers = tl.load(own + 2 * way * n, mask=real, other=0.0)
        target = tl.where(at // (n // way) == k, 1.0, 0.0)
        right = target - tl.sum(block * u[:, None], axis=0) - tl.load(nu + at, mask=real, other=0.0)
        right = tl.where(real, right, 0.0)
        block += tl.where(down == across, (multipliers / slack)[None, :], 0.0)
        # Each pivot replaces its row and column by those of minus the inverse.
        for pivot in range(n):
            line = tl.sum(tl.where(down == pivot, block, 0.0), axis=0)
            diagonal = tl.sum(tl.where(at == pivot, line, 0.0), axis=0)
            line = tl.where(at == pivot, -1.0, line)
            rest = tl.where((down == pivot) | (across == pivot), 0.0, block)
            block = rest - line[:, None] * (line / diagonal)[None, :]
        block = -block
        inverse = matrices + k * n * n + down * n + across
        tl.store(inverse, block, mask=(down < n) & (across < n))
        tl.store(own + 3 * way * n, right, mask=real)
        tl.store(own + 4 * way * n, tl.sum(block * right[:, None], axis=0), mask=real)


@jit
def _advance(
    hessian: tensor,
    threshold: tensor,
    nu: tensor,
    rows: tensor,
    matrices: tensor,
    way: constexpr,
    n: constexpr,
    ways: constexpr,
    size: constexpr,
) -> None:
    """Make the step of one task: predict, correct, and go as far as the bounds allow."""
    task = tl.program_id(0)
    nu, rows, matrices = (
        nu + task * n,
        rows + task * 5 * way * n,
        matrices + task * (way + 2) * n * n,
    )
    if _is_active(threshold + task, rows, way, n, ways, size):
        pivots = _factorize_schur(matrices, way, n, size)
        u = _rows(rows, 0.0, way, n, ways, size)
        slack = _rows(rows + way * n, 1.0, way, n, ways, size)
        multipliers = _rows(rows + 2 * way * n, 1.0, way, n, ways, size)
        at = tl.arange(0, size)
        real = (tl.arange(0, ways)[:, None] < way) & (at[None, :] < n)
        off = tl.sum(u, axis=0)

        du = _rows(rows + 4 * way * n, 0.0, way, n, ways, size)
        du, _ = _balance(du, off, matrices, pivots, way, n, ways, size)
        share, scaled = du / slack, du * multipliers
        missing = 1 - 1 / tl.maximum(_largest(tl.abs(share - 0.5)) + 0.5, 1.0)
        center = _total(tl.where(real, multipliers * slack, 0.0)) / (way * n)
        shift = (scaled * share - scaled + missing * missing * missing * center) / slack
        shift = tl.where(real, shift, 0.0)

        right = _rows(rows + 3 * way * n, 0.0, way, n, ways, size)
        du = _times(matrices, right - shift, way, n, ways, size)
        du, dnu = _balance(du, off, matrices, pivots, way, n, ways, size)
        target = shift + multipliers / slack * du
        reach = tl.where(real, tl.maximum(du / slack, 1 - target / multipliers), 0.0)
        most = 0.999 - 0.1 * missing * missing
        step = most / tl.maximum(_largest(reach), most)

        before = tl.load(nu + at, mask=at < n, other=0.0)
        tl.store(nu + at, before + step * dnu, mask=at < n)
        _store_rows(rows, u + step * du, way, n, ways, size)
        _store_rows(rows + way * n, slack - step * du, way, n, ways, size)
        moved = multipliers + step * (target - multipliers)
        _store_rows(rows + 2 * way * n, moved, way, n, ways, size)


@jit
def _is_active(
    threshold: tensor, rows: tensor, way: constexpr, n: constexpr, ways: constexpr, size: constexpr
) -> tensor:
    slack = _rows(rows + way * n, 0.0, way, n, ways, size)
    multipliers = _rows(rows + 2 * way * n, 0.0, way, n, ways, size)
    # False if a product is NaN.
    return _total(slack * multipliers) > tl.load(threshold) * (way * n)


@jit
def _factorize_schur(matrices: tensor, way: constexpr, n: constexpr, size: constexpr) -> tensor:
    """Store the sum S of the inverses, and M; return d, with S^-1 = M' diag(1 / d) M.

    M is lower triangular with ones on its diagonal.
    """
    at = tl.arange(0, size)
    down, across = at[:, None], at[None, :]
    block = _square(matrices, n, size)
    for k in range(1, way):
        block += _square(matrices + k * n * n, n, size)
    schur, inside = matrices + way * n * n + down * n + across, (down < n) & (across < n)
    tl.store(schur, block, mask=inside)
    pivots = tl.full([size], 1.0, tl.float64)
    # Left of the pivot is M, right of it what is not yet eliminated.
    for pivot in range(n):
        line = tl.sum(tl.where(down == pivot, block, 0.0), axis=0)
        diagonal = tl.sum(tl.where(at == pivot, line, 0.0), axis=0)
        pivots = tl.where(at == pivot, diagonal, pivots)
        factors = tl.where(at > pivot, line, 0.0) / diagonal
        line = tl.where(at == pivot, 1.0, line)
        rest = tl.where((across == pivot) & (down > pivot), 0.0, block)
        block = rest - factors[:, None] * line[None, :]
    block = tl.where(down == across, 1.0, tl.where(down > across, block, 0.0))
    tl.store(schur + n * n, block, mask=inside)
    # Other threads load what a thread has stored.
    tl.debug_barrier()
    return pivots


@jit
def _balance(
    du: tensor,
    off: tensor,
    matrices: tensor,
    pivots: tensor,
    way: constexpr,
    n: constexpr,
    ways: constexpr,
    size: constexpr,
) -> tensor:
    """Return du with sums over classes of -off, and the change of nu that achieves this."""
    total = tl.sum(du, axis=0) + off
    schur = matrices + way * n * n
    dnu = _divide(total, schur + n * n, pivots, n, size)
    # One step of refinement, for rounding errors.
    left = total - tl.sum(_square(schur, n, size) * dnu[:, None], axis=0)
    dnu += _divide(left, schur + n * n, pivots, n, size)
    same = tl.zeros([ways, size], tl.float64) + dnu[None, :]
    return du - _times(matrices, same, way, n, ways, size), dnu


@jit
def _divide(total: tensor, factor: tensor, pivots: tensor, n: constexpr, size: constexpr) -> tensor:
    """Return S^-1 total."""
    lower = _square(factor, n, size)
    half = tl.sum(lower * total[None, :], axis=1) / pivots
    return tl.sum(lower * half[:, None], axis=0)


@jit
def _times(
    matrices: tensor,
    vectors: tensor,
    way: constexpr,
    n: constexpr,
    ways: constexpr,
    size: constexpr,
) -> tensor:
    """Return the product of the inverse of every class with its row, `ways x size`."""
    classes = tl.arange(0, ways)[:, None]
    products = tl.zeros([ways, size], tl.float64)
    for k in range(way):
        vector = tl.sum(tl.where(classes == k, vectors, 0.0), axis=0)
        product = tl.sum(_square(matrices + k * n * n, n, size) * vector[:, None], axis=0)
        products = tl.where(classes == k, product[None, :], products)
    return products


@jit
def _square(pointer: tensor, n: constexpr, size: constexpr) -> tensor:
    rows, columns = tl.arange(0, size)[:, None], tl.arange(0, size)[None, :]
    return tl.load(pointer + rows * n + columns, mask=(rows < n) & (columns < n), other=0.0)


@jit
def _rows(
    pointer: tensor, other: tensor, way: constexpr, n: constexpr, ways: constexpr, size: constexpr
) -> tensor:
    classes, at = tl.arange(0, ways)[:, None], tl.arange(0, size)[None, :]
    return tl.load(pointer + classes * n + at, mask=(classes < way) & (at < n), other=other)


@jit
def _store_rows(
    pointer: tensor, values: tensor, way: constexpr, n: constexpr, ways: constexpr, size: constexpr
) -> None:
    classes, at = tl.arange(0, ways)[:, None], tl.arange(0, size)[None, :]
    tl.store(pointer + classes * n + at, values, mask=(classes < way) & (at < n))


@jit
def _total(values: tensor) -> tensor:
    return tl.sum(tl.sum(values, axis=1), axis=0)


@jit
def _largest(values: tensor) -> tensor:
    return tl.max(tl.max(values, axis=1), axis=0)
