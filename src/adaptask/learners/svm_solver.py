"""The multi-class support vector machine of Crammer and Singer, for many tasks at once.

With the Gram matrix K of the support features and the indicators Y, 1 if a point belongs to a class
and else 0, the dual is a quadratic program in alpha, `way x support`:

    minimize  1/2 sum_k alpha_k' K alpha_k - sum_k alpha_k' Y_k
    subject to  alpha <= C Y  and, for every point,  sum_k alpha_k = 0.

Two methods solve it. Both solve linear systems with one block K + D_k per class, D_k diagonal,
which the sums over classes couple: way + 1 factorizations of `support x support` matrices instead
of one of `(way support) x (way support)`.

- An interior-point method. Its number of steps is fixed and it reads no value on the host, so that
  a GPU never waits and the solver can be captured in a CUDA graph. `svm_triton_kernels` has its
  steps as fused kernels.
- On the CPU, where reading values costs nothing, an active-set method goes first. It ends after 1
  to 10 steps if the features are in general position; otherwise the interior-point method follows.

Crammer and Singer, *On the Algorithmic Implementation of Multiclass Kernel-based Vector Machines*
(2001). Mehrotra, *On the Implementation of a Primal-Dual Interior Point Method* (1992).
Hintermueller et al., *The Primal-Dual Active Set Strategy as a Semismooth Newton Method* (2002).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from adaptask.kernels import find_kernels

N_STEPS = 20
"""Interior-point steps of a small task; five ways needed 7 to 17 in training. One more is made per
hundred variables: twenty ways of five shots have needed thirty."""
MOST_STEPS = 60
"""Maximal number of interior-point steps on a CPU, where the solver stops when it has converged."""
N_SWITCHES = 12
"""Maximal number of active-set steps."""
TOLERANCE = 1e-4
"""Largest error bound of the weights that counts as solved."""

# Fraction of the way to the boundary that a step goes, and what it is less if the predictor of the
# step could not go far. Without the second, a rare task (one of 20,000 to 100,000 on features of a
# ResNet-12) stays beside the boundary for ten steps and is not solved by the end.
_STEP = 0.999
_CAUTION = 0.1
# Largest complementarity product that a variable starts with.
_START = 1e4
# Added to the diagonal, relative to its mean, to keep systems regular if points are linearly
# dependent: in the search, which ends at the same optimum, and in its derivative.
_RIDGE = 1e-13
_SMOOTHING = 1e-10
# Mean product of slack and multiplier, relative to the mean diagonal, at convergence.
_CONVERGED = 1e-13
# Relative change of the weights that the error bound attributes to rounding.
_ROUNDING = 1e-10

State = tuple[Tensor, Tensor, Tensor, Tensor]
"""u, its slack, nu and the multipliers, `tasks x way x support`; nu has 1 way."""


@dataclass(frozen=True)
class Program:
    """The dual, scaled so that everything is of order one.

    With s = max(1, C mean(diag K)), u = s alpha / C and H = C K / s the objective is
    1/2 u'Hu - u'Y and the bound s Y.
    """

    hessian: Tensor
    """H, `tasks x support x support`."""
    targets: Tensor
    """Y, `way x support`."""
    unit: Tensor
    """s, `tasks x 1 x 1`."""
    size: Tensor
    """Mean of the diagonal of H, at most 1, `tasks x 1 x 1`; 1 if H is zero."""

    def residual(self, u: Tensor) -> Tensor:
        """Return minus the gradient of the objective, Y - uH, `tasks x way x support`."""
        return torch.baddbmm(self.targets.expand_as(u), u, self.hessian, alpha=-1)


def solve_crammer_singer(gram: Tensor, *, n_way: int, penalty: float) -> tuple[Tensor, Tensor]:
    """Return the dual solution, differentiable in the Gram matrix, and a bound on its error.

    The bound is a certificate, computed from the solution alone. The weights w_k = X' alpha_k
    differ from the optimal ones by at most this, relative to the root of the sum of
    (alpha_ik |x_i|)^2, the terms that they are sums of.

    Args:
        gram: Inner products of the support features, `tasks x support x support`, preferably
            computed in float64; grouped by class, the same number of points in each.
        n_way: Number of classes.
        penalty: C, the largest weight of a point.

    Returns:
        alpha, `tasks x way x support`, and the bound, `tasks`, both float64.
    """
    alpha: Tensor
    error: Tensor
    alpha, error = _Solve.apply(gram.double(), n_way, penalty)  # type: ignore[no-untyped-call]
    return alpha, error


class _Solve(torch.autograd.Function):
    """The solution, and its derivative by the implicit function theorem."""

    @staticmethod
    def forward(ctx: Any, gram: Tensor, n_way: int, penalty: float) -> tuple[Tensor, Tensor]:
        """Solve, and save what the derivative needs."""
        program = _program(gram, n_way, penalty)
        u, free, error = _solve(program)
        alpha = u * (penalty / program.unit)
        ctx.penalty = penalty
        hessian = program.hessian + torch.diag_embed(_ridge(program, _SMOOTHING))
        ctx.save_for_backward(hessian, program.unit, free, alpha)
        ctx.mark_non_differentiable(error)
        return alpha, error

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_alpha: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        """Differentiate the optimality conditions, with the active bounds fixed.

        Free variables satisfy H du + dH u + dnu = 0 with sums over classes of 0; the others do not
        change. With the symmetric inverse M of that system, d alpha = -(C / s) M (dK alpha).

        If all features are zero, so is dK. Any feasible alpha with C for the own class is then
        optimal; the ridge selects -C / (way - 1) for the others, and d weights = alpha dX are the
        partial derivatives of the weights.
        """
        hessian, unit, free, alpha = ctx.saved_tensors
        moved, _ = _restricted(hessian, free).solve(grad_alpha)
        outer = moved.transpose(1, 2) @ alpha
        return (outer + outer.transpose(1, 2)) * (-0.5 * ctx.penalty / unit), None, None


class _Newton:
    """The system  B_k x_k + nu = r_k for every class, with given sums over classes of x.

    Args:
        blocks: B, symmetric positive definite, `tasks x way x support x support`.
        mask: Entries of their inverses to keep; all by default.
    """

    def __init__(self, blocks: Tensor, mask: Tensor | None = None) -> None:
        identity = torch.eye(blocks.shape[-1], dtype=blocks.dtype, device=blocks.device)
        factors = torch.linalg.cholesky_ex(blocks).L
        halves = torch.linalg.solve_triangular(factors, identity, upper=False)
        self.inverses = halves.mT @ halves
        if mask is not None:
            self.inverses = self.inverses * mask
        self.schur_factor = torch.linalg.cholesky_ex(self.inverses.sum(1)).L

    def solve(self, right: Tensor, sums: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
        """Return x, `tasks x way x support`, and nu, `tasks x 1 x support`."""
        # Sums of products: faster than matrix products for single columns.
        x = (self.inverses * right.unsqueeze(-2)).sum(-1)
        factor, total = self.schur_factor, (x.sum(1) - sums).unsqueeze(-1)
        half = torch.linalg.solve_triangular(factor, total, upper=False)
        nu = torch.linalg.solve_triangular(factor.mT, half, upper=True).mT
        return x - (self.inverses * nu.unsqueeze(1)).sum(-1), nu


def _program(gram: Tensor, n_way: int, penalty: float) -> Program:
    n_tasks, n_support = gram.shape[:2]
    size = penalty * gram.diagonal(dim1=1, dim2=2).mean(-1).view(n_tasks, 1, 1)
    unit = size.clamp(min=1)
    targets = torch.eye(n_way, dtype=gram.dtype, device=gram.device)
    targets = targets.repeat_interleave(n_support // n_way, dim=1)
    # Tolerances and ridges are relative to the size. Those of a zero matrix must not be zero: its
    # systems would be singular, and the derivative NaN.
    size = torch.where(size == 0, 1.0, size / unit)
    return Program(gram * (penalty / unit), targets, unit, size)


def _restricted(hessian: Tensor, free: Tensor) -> _Newton:
    """Return the system in the free variables, `tasks x way x support` bool; the others are 0."""
    both = free.unsqueeze(-1) & free.unsqueeze(-2)
    blocks = hessian.unsqueeze(1) * both + torch.diag_embed((~free).to(hessian.dtype))
    return _Newton(blocks, both)


def _solve(program: Program) -> tuple[Tensor, Tensor, Tensor]:
    """Return u, which of its variables are free, and the bound on its error."""
    quick = None
    if program.hessian.device.type == "cpu":
        quick = _active_set(program)
        if all((quick[2] <= TOLERANCE).tolist()):
            return quick
    u, slack, multipliers = _interior_point(program)
    free = multipliers < slack * program.size
    error = _error_bound(program, u, slack)
    if quick is None:
        return u, free, error
    keep = (quick[2] <= TOLERANCE).view(-1, 1, 1)
    u, free = torch.where(keep, quick[0], u), torch.where(keep, quick[1], free)
    return u, free, torch.where(keep.view(-1), quick[2], error)


def _active_set(program: Program) -> tuple[Tensor, Tensor, Tensor]:
    """Return u, its free variables and the bound on its error, infinite if it did not converge.

    Variables that are not free are at their bound. Those that would exceed it are fixed there;
    those whose multiplier is negative are freed. If nothing changes, the solution is optimal.
    """
    bound = program.unit * program.targets
    hessian = program.hessian + torch.diag_embed(_ridge(program))
    free = torch.ones_like(bound, dtype=torch.bool)
    for _ in range(N_SWITCHES):
        fixed = bound.masked_fill(free, 0.0)
        right = program.residual(fixed)
        moved, nu = _restricted(hessian, free).solve(right, -fixed.sum(1))
        u = moved + fixed
        switched = torch.where(free, u <= bound, program.residual(u) < nu)
        converged = (switched == free).flatten(1).all(-1)
        if all(converged.tolist()):
            break
        free = switched
    error = _error_bound(program, u, bound - u)
    return u, free, error.masked_fill(~converged, torch.inf)


def _ridge(program: Program, share: float = _RIDGE) -> Tensor:
    """Return the addition to the diagonal, `tasks x support`."""
    return (share * program.size.squeeze(-1)).expand(-1, program.hessian.shape[-1])


def _interior_point(program: Program) -> tuple[Tensor, Tensor, Tensor]:
    """Return u, its slack and the multipliers, `tasks x way x support` each."""
    hessian = program.hessian + torch.diag_embed(_ridge(program))
    state = _start(program)
    n_steps = _n_steps(state[0])
    kernels = _kernels(hessian)
    if kernels is not None:
        threshold = _CONVERGED * program.size.flatten()
        found: tuple[Tensor, Tensor, Tensor] = kernels.search(
            hessian, threshold, state, n_steps=n_steps
        )
        return found
    for _ in range(n_steps):
        u, slack, _, multipliers = state
        center = (multipliers * slack).mean((1, 2), keepdim=True)
        if u.device.type == "cpu" and _has_converged(center, program.size):
            break
        state = _step(program, hessian, center, state)
    u, slack, _, multipliers = state
    return u, slack, multipliers


def _start(program: Program) -> State:
    n_way = len(program.targets)
    u = (program.targets - 1 / n_way).expand(len(program.hessian), -1, -1)
    slack = program.unit * program.targets - u
    residual = program.residual(u)
    nu = residual.amin(1, keepdim=True) - 1
    # Multipliers match the residual, unless the bound is so far away that it hardly matters.
    return u, slack, nu, torch.minimum(residual - nu, _START / slack)


def _step(program: Program, hessian: Tensor, center: Tensor, state: State) -> State:
    u, slack, nu, multipliers = state
    ratio = multipliers / slack
    system = _Newton(hessian.unsqueeze(1) + torch.diag_embed(ratio))
    right = program.residual(u) - nu
    du, _ = system.solve(right)
    share = du / slack
    missing = _missing(share)
    shift = _corrector(share, du * multipliers, missing, center) / slack
    du, dnu = system.solve(right - shift)
    target = torch.addcmul(shift, ratio, du)
    reach = torch.maximum(du / slack, 1 - target / multipliers).amax((1, 2), keepdim=True)
    step = ((_STEP - _CAUTION * missing**2) / reach).clamp(max=1)
    u, slack = torch.addcmul(u, step, du), torch.addcmul(slack, step, du, value=-1)
    return u, slack, torch.addcmul(nu, step, dnu), torch.lerp(multipliers, target, step)


def _kernels(hessian: Tensor) -> Any:
    """Return the module of Triton kernels, or None if they cannot solve this."""
    module = find_kernels("adaptask.learners.svm_triton_kernels", hessian.device)
    return module if module is not None and module.fits(hessian.shape[-1]) else None


def _n_steps(u: Tensor) -> int:
    """Return the maximal number of steps; the fixed number if no value is read."""
    return MOST_STEPS if u.device.type == "cpu" else _fixed_steps(u)


def _fixed_steps(u: Tensor) -> int:
    return N_STEPS + u[0].numel() // 100


def _has_converged(center: Tensor, size: Tensor) -> bool:
    """Return whether all tasks are solved to the last digits."""
    return all(share <= _CONVERGED for share in (center / size).flatten().tolist())


def _missing(share: Tensor) -> Tensor:
    """Return which part of the predictor's step the bounds cut off, from 0 to 1, `tasks x 1 x 1`.

    The step aims at products of slack and multiplier of zero: it changes slacks by -share times
    themselves, and multipliers by share - 1 times themselves.
    """
    return 1 - 1 / ((share - 0.5).abs().amax((1, 2), keepdim=True) + 0.5).clamp(min=1)


def _corrector(share: Tensor, scaled: Tensor, missing: Tensor, center: Tensor) -> Tensor:
    """Return Mehrotra's target for the products of slacks and multipliers.

    It compensates for the product of both changes of the predictor, and is further from zero the
    earlier the predictor's step would reach a bound.
    """
    return torch.addcmul(scaled * share - scaled, missing**3, center)


def _error_bound(program: Program, u: Tensor, slack: Tensor) -> Tensor:
    """Return a bound on the error of the weights, relative to the terms they are sums of, `tasks`.

    The best multipliers for a given u are r - min_k r with r = Y - uH, and the gap between primal
    and dual is then the sum of their products with the slacks. The primal is strongly convex in
    the weights, so half the squared distance from the optimum is at most the gap.
    """
    residual = program.residual(u)
    losses = residual - residual.amin(1, keepdim=True)
    # A hinge loss that is only rounding would count C times; slightly longer weights have none.
    losses = losses - _ROUNDING * program.targets
    gap = (slack * losses.clamp(min=0)).sum((1, 2))
    terms = (u.square().sum(1) * program.hessian.diagonal(dim1=1, dim2=2)).sum(-1)
    # Features that are all zero have no weights, and no error.
    relative = gap / terms.clamp(min=torch.finfo(u.dtype).tiny) * (terms > 0)
    return (2 * (relative + _ROUNDING)).sqrt()
