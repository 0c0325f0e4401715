"""The dual is solved: against other solvers, by weak duality, and so are its derivatives."""

import importlib.util
import json
import os
import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from adaptask.learners import svm_solver
from adaptask.learners.svm_solver import TOLERANCE, solve_crammer_singer

FOLDER = Path(__file__).parent / "references"
REFERENCES = json.loads((FOLDER / "crammer_singer.json").read_text())
features_of = runpy.run_path(str(FOLDER / "make_crammer_singer.py"))["features"]


def went_astray(program):
    """What the active-set method returns where it does not end."""
    nothing = torch.zeros_like(program.unit * program.targets)
    return nothing, nothing.bool(), torch.full((len(nothing),), torch.inf, dtype=torch.float64)


def as_on_a_gpu(monkeypatch):
    """Interior-point steps alone, and nobody looks whether they are done."""
    monkeypatch.setattr(svm_solver, "_active_set", went_astray)
    monkeypatch.setattr(svm_solver, "_has_converged", lambda *_: False)
    monkeypatch.setattr(svm_solver, "_n_steps", svm_solver._fixed_steps)


# Without a GPU, Triton can interpret its kernels: the same operations one after the other in numpy.
INTERPRETED = not torch.cuda.is_available()
needs_kernels = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None
    or (INTERPRETED and os.environ.get("TRITON_INTERPRET") != "1"),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)


def by_kernels(monkeypatch):
    """Interior-point steps alone, by the kernels in Triton."""
    as_on_a_gpu(monkeypatch)
    interior_point = svm_solver._interior_point
    calls = []
    if INTERPRETED:
        module = importlib.import_module("adaptask.learners.svm_triton_kernels")
        monkeypatch.setattr(svm_solver, "_kernels", lambda hessian: module)
    else:
        assert svm_solver._kernels(torch.eye(25, device="cuda")[None]) is not None

    def elsewhere(program):
        calls.append(program)
        if not INTERPRETED:
            program = svm_solver.Program(
                *(getattr(program, part).cuda() for part in ("hessian", "targets", "unit", "size"))
            )
        return tuple(part.cpu() for part in interior_point(program))

    monkeypatch.setattr(svm_solver, "_interior_point", elsewhere)
    return calls


@pytest.fixture(params=["active set", "interior point", "interior point, every step"])
def method(request, monkeypatch):
    """Each method by itself; the last as on a GPU, where nobody looks whether it is done."""
    if request.param == "active set":

        def forbidden(program):
            raise AssertionError("the active-set method was to solve this")

        monkeypatch.setattr(svm_solver, "_interior_point", forbidden)
    else:
        monkeypatch.setattr(svm_solver, "_active_set", went_astray)
    if request.param.endswith("every step"):
        as_on_a_gpu(monkeypatch)
    return request.param


def gram(features):
    return features @ features.transpose(1, 2)


def clustered(n_way, n_shot, *, n_tasks=3, n_features=64, seed=0):
    """Return features around a center for every class, after a ReLU, `tasks x support x ...`."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, n_features, generator=random, dtype=torch.float64)

    features = 0.5 * normal(n_tasks, n_way, 1) + normal(n_tasks, n_way, n_shot)
    return features.clamp(min=0).flatten(1, 2)


@pytest.mark.parametrize("solver", ["cvxpy", "scikit-learn"])
@pytest.mark.parametrize("case", REFERENCES, ids=lambda c: f"{c['n_shot']}-{c['size']}")
def test_logits_are_those_of_other_solvers(case, solver, method):
    features = features_of(case["n_way"], case["n_shot"], case["size"])
    support, query = (torch.from_numpy(part)[None] for part in features)
    alpha, error = solve_crammer_singer(gram(support), n_way=case["n_way"], penalty=case["penalty"])
    logits = query @ (alpha @ support).transpose(1, 2)
    expected = torch.tensor(case["logits"][solver], dtype=torch.float64)[None]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)
    assert error.item() < TOLERANCE


def by_general_solver(kernel, n_way, penalty):
    """Return the dual solution for one Gram matrix by SciPy, `way x support`."""
    n_support = len(kernel)
    targets = np.eye(n_way).repeat(n_support // n_way, axis=1)

    def objective(flat):
        alpha = flat.reshape(n_way, n_support)
        return 0.5 * np.sum(alpha @ kernel * alpha) - np.sum(alpha * targets)

    found = minimize(
        objective,
        np.zeros(n_way * n_support),
        jac=lambda flat: (flat.reshape(n_way, n_support) @ kernel - targets).ravel(),
        bounds=[(None, high) for high in (penalty * targets).ravel()],
        constraints={"type": "eq", "fun": lambda flat: flat.reshape(n_way, n_support).sum(0)},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return found.x.reshape(n_way, n_support)


def test_the_solution_is_that_of_a_general_solver(method):
    features = 0.3 * clustered(3, 2, n_tasks=1, n_features=5)
    kernel, targets = gram(features)[0].numpy(), np.eye(3).repeat(2, axis=1)
    penalty = 0.4
    expected = by_general_solver(kernel, 3, penalty)
    alpha, _ = solve_crammer_singer(gram(features), n_way=3, penalty=penalty)
    np.testing.assert_allclose(alpha[0], expected, atol=1e-5)
    assert (alpha[0].numpy() > penalty * targets - 1e-9).any()  # some at their bound, some not
    assert (alpha[0].numpy() < penalty * targets - 1e-3).any()


def weak_duality(features, alpha, n_way, penalty):
    """Return a bound on the error of the weights that only needs alpha to be feasible.

    No dual objective is above any primal one, and half the squared distance of weights from the
    optimal ones is at most the difference. Also longer weights may be tried: they have no loss
    where the others have one of mere rounding.
    """
    labels = np.arange(n_way).repeat(features.shape[1] // n_way)
    bounds = []
    for points, dual in zip(features.numpy(), alpha.numpy(), strict=True):
        targets = np.eye(n_way)[labels].T
        np.testing.assert_array_less(dual, penalty * targets + 1e-9 * penalty)
        assert np.abs(dual.sum(0)).max() <= 1e-9 * penalty
        weights = dual @ points
        objective = np.sum(dual * targets) - 0.5 * np.sum(weights**2)
        gaps = []
        for stretch in (0.0, 1e-12, 1e-11, 1e-10, 1e-9):
            longer = (1 + stretch) * weights
            margins = longer @ points.T
            right = margins[labels, np.arange(len(labels))]
            losses = (margins + 1 - targets - right).max(0)
            gaps.append(0.5 * np.sum(longer**2) + penalty * losses.sum() - objective)
        terms = np.sum((dual**2).sum(0) * np.sum(points**2, axis=1))
        bounds.append(np.sqrt(2 * max(min(gaps), 0) / terms) + 1e-9)
    return np.array(bounds)


def with_duplicates(features, n_way):
    """Two equal points of a class, and two of different ones, which no machine can tell apart."""
    features = features.clone()
    features[:, 1] = features[:, 0]
    features[:, -1] = features[:, 2]
    return features


def collinear(features, n_way):
    factors = torch.linspace(-1, 2, features.shape[1], dtype=torch.float64)
    return factors[:, None] * features[:, :1]


HARD = {
    "one shot": (5, 1, lambda f, n: f),
    "five shots": (5, 5, lambda f, n: f),
    "fifteen shots": (5, 15, lambda f, n: f),
    "two ways": (2, 5, lambda f, n: f),
    "twenty ways": (20, 2, lambda f, n: f),
    "size 1e-4": (5, 5, lambda f, n: 1e-4 * f),
    "size 1e4": (5, 5, lambda f, n: 1e4 * f),
    "duplicates": (5, 5, with_duplicates),
    "one shot twice": (5, 2, lambda f, n: f[:, ::2].repeat_interleave(2, dim=1)),
    "all equal": (5, 3, lambda f, n: f[:, :1].expand_as(f)),
    "collinear": (5, 5, collinear),
    "few features": (5, 15, lambda f, n: f[..., :3]),
    "far from the origin": (5, 5, lambda f, n: f + 5),
    "bfloat16": (5, 15, lambda f, n: f.bfloat16().double()),
}


@pytest.mark.parametrize("penalty", [0.1, 1.0])
@pytest.mark.parametrize("path", ["as it comes", "as on a GPU"])
@pytest.mark.parametrize("name", HARD)
def test_hard_cases_are_right(name, path, penalty, monkeypatch):
    if path == "as on a GPU":
        as_on_a_gpu(monkeypatch)
    n_way, n_shot, change = HARD[name]
    features = change(clustered(n_way, n_shot), n_way)
    points = features.clone().requires_grad_()
    alpha, error = solve_crammer_singer(gram(points), n_way=n_way, penalty=penalty)
    assert (error <= TOLERANCE).all()
    assert (weak_duality(features, alpha.detach(), n_way, penalty) <= TOLERANCE).all()
    (features @ (alpha @ points).transpose(1, 2)).square().sum().backward()
    assert points.grad.isfinite().all()


def test_features_that_are_all_zero_have_no_weights_and_no_error(method):
    kernel = torch.zeros(2, 10, 10, dtype=torch.float64, requires_grad=True)
    alpha, error = solve_crammer_singer(kernel, n_way=5, penalty=0.1)
    assert alpha.isfinite().all()
    assert (error <= TOLERANCE).all()
    alpha.square().sum().backward()
    assert kernel.grad.isfinite().all()


def weights_of(points, n_way, penalty):
    alpha, _ = solve_crammer_singer(gram(points), n_way=n_way, penalty=penalty)
    return alpha @ points


@pytest.mark.parametrize(("n_way", "n_shot"), [(2, 3), (3, 2), (5, 1)])
def test_at_zero_features_derivatives_equal_finite_differences(n_way, n_shot, method):
    points = torch.zeros(1, n_way * n_shot, 4, dtype=torch.float64, requires_grad=True)

    def weights(points):
        return weights_of(points, n_way, 0.2)

    assert torch.autograd.gradcheck(weights, (points,), eps=1e-6, atol=1e-6)


@pytest.mark.parametrize(("n_way", "n_shot"), [(2, 3), (3, 2), (5, 1)])
def test_at_zero_features_derivatives_are_those_of_a_general_solver(n_way, n_shot):
    penalty, step, n_support = 0.2, 0.1, n_way * n_shot
    zero = torch.zeros(1, n_support, 4, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: weights_of(x, n_way, penalty)[0], zero)
    jacobian = jacobian[:, :, 0].numpy()  # way x features x support x features
    for i in range(n_support):
        ends = []
        for sign in (1, -1):
            points = np.zeros((n_support, 4))
            points[i, 0] = sign * step
            ends.append(by_general_solver(points @ points.T, n_way, penalty) @ points)
        expected = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(jacobian[:, :, i, 0], expected, atol=1e-5)


def test_with_two_ways_the_derivative_at_zero_features_is_that_beside_it():
    """With more ways the weights have a kink there, and it depends on the direction."""
    beside = 1e-8 * clustered(2, 3, n_tasks=1, n_features=4)
    expected, found = (
        torch.autograd.functional.jacobian(lambda x: weights_of(x, 2, 0.1), points)
        for points in (beside, torch.zeros_like(beside))
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_a_task_of_zeros_does_not_change_the_others(method):
    features = clustered(5, 3)
    features[1] = 0
    points = features.clone().requires_grad_()
    weights_of(points, 5, 0.1).square().sum().backward()
    others = features[[0, 2]].clone().requires_grad_()
    weights_of(others, 5, 0.1).square().sum().backward()
    torch.testing.assert_close(points.grad[[0, 2]], others.grad)
    assert points.grad.isfinite().all()


def test_the_bound_covers_the_error_of_a_solution_that_is_not_reached(monkeypatch):
    features = clustered(5, 5)
    best, _ = solve_crammer_singer(gram(features), n_way=5, penalty=0.1)
    monkeypatch.setattr(svm_solver, "_active_set", went_astray)
    bounds = []
    for n_steps in (1, 2, 4, 6):
        monkeypatch.setattr(svm_solver, "MOST_STEPS", n_steps)
        alpha, bound = solve_crammer_singer(gram(features), n_way=5, penalty=0.1)
        distance = ((alpha - best) @ features).square().sum((1, 2)).sqrt()
        terms = (alpha.square().sum(1) * features.square().sum(-1)).sum(-1).sqrt()
        assert (distance / terms <= bound).all()
        bounds.append(bound.max().item())
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > 0.1


def test_what_is_no_number_is_not_called_solved():
    kernel = gram(clustered(5, 5))
    kernel[1, 3, 3] = torch.nan
    _, error = solve_crammer_singer(kernel, n_way=5, penalty=0.1)
    assert (error <= TOLERANCE).tolist() == [True, False, True]


def test_a_task_is_solved_alike_alone_and_beside_one_that_takes_longer():
    easy, hard = clustered(5, 3, n_tasks=1), with_duplicates(clustered(5, 3, n_tasks=1, seed=1), 5)
    alone, _ = solve_crammer_singer(gram(easy), n_way=5, penalty=1.0)
    together, _ = solve_crammer_singer(gram(torch.cat((easy, hard))), n_way=5, penalty=1.0)
    torch.testing.assert_close(together[:1], alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("n_way", "n_shot", "size", "penalty"),
    [(5, 1, 1.0, 0.1), (3, 3, 1.0, 0.1), (3, 3, 0.3, 0.3), (2, 4, 0.1, 1.0), (3, 2, 10.0, 10.0)],
)
def test_derivatives_equal_finite_differences(n_way, n_shot, size, penalty, method):
    support = size * clustered(n_way, n_shot, n_tasks=1, n_features=7)
    query = size * clustered(n_way, 1, n_tasks=1, n_features=7, seed=1)

    def logits(points, queries):
        alpha, _ = solve_crammer_singer(gram(points), n_way=n_way, penalty=penalty)
        return queries @ (alpha @ points).transpose(1, 2)

    inputs = (support.requires_grad_(), query.requires_grad_())
    step = 1e-6 * size
    assert torch.autograd.gradcheck(logits, inputs, eps=step, atol=1e-5, rtol=1e-4)


def test_nothing_warns(method):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel = gram(clustered(5, 5)).requires_grad_()
        solve_crammer_singer(kernel, n_way=5, penalty=0.1)[0].sum().backward()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("path", ["as it comes", "as on a GPU"])
def test_many_ways_with_few_features_are_solved(seed, path, monkeypatch):
    # Twenty steps were not enough for some of these.
    if path == "as on a GPU":
        as_on_a_gpu(monkeypatch)
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(2, 100, 8, generator=random, dtype=torch.float64).relu()
    _, error = solve_crammer_singer(features @ features.mT, n_way=20, penalty=0.1)
    assert (error <= svm_solver.TOLERANCE).all()


SLOW = torch.from_numpy(np.load(FOLDER / "slow_gram.npy")).double()
"""Three tasks of a ResNet-12 on CIFAR-FS, of 100,000, that took 17 to 20 steps when all steps went
equally near to the bounds."""


@pytest.mark.parametrize("path", ["torch", pytest.param("kernels", marks=needs_kernels)])
def test_steps_that_come_near_to_the_bounds_too_early_do_not_delay_the_end(path, monkeypatch):
    (as_on_a_gpu if path == "torch" else by_kernels)(monkeypatch)
    monkeypatch.setattr(svm_solver, "_n_steps", lambda u: 13)
    _, error = solve_crammer_singer(SLOW, n_way=5, penalty=0.1)
    assert (error <= TOLERANCE).all()


@pytest.mark.parametrize("penalty", [0.1, 1.0])
@pytest.mark.parametrize("name", HARD)
@needs_kernels
def test_kernels_solve_hard_cases_as_torch_does(name, penalty, monkeypatch):
    n_way, n_shot, change = HARD[name]
    if INTERPRETED:  # full sizes take minutes
        n_way, n_shot = min(n_way, 3), min(n_shot, 2)
        if penalty != 1.0:
            pytest.skip("interpreted, all of them take minutes")
    features = change(clustered(n_way, n_shot, n_tasks=1 if INTERPRETED else 3), n_way)
    with monkeypatch.context() as patch:
        as_on_a_gpu(patch)
        expected, _ = solve_crammer_singer(gram(features), n_way=n_way, penalty=penalty)
    calls = by_kernels(monkeypatch)
    points = features.clone().requires_grad_()
    alpha, error = solve_crammer_singer(gram(points), n_way=n_way, penalty=penalty)
    assert len(calls) == 1
    assert (error <= TOLERANCE).all()
    assert (weak_duality(features, alpha.detach(), n_way, penalty) <= TOLERANCE).all()
    weights, others = alpha @ points, expected @ features
    # Both are within the bound on the error of the best ones, and mostly much nearer.
    terms = (alpha.detach().square().sum(1) * features.square().sum(-1)).sum(-1).sqrt()
    distance = (weights - others).detach().square().sum((1, 2)).sqrt()
    assert (distance <= 1e-5 * terms).all()
    (features @ weights.transpose(1, 2)).square().sum().backward()
    assert points.grad.isfinite().all()


@pytest.mark.parametrize("case", REFERENCES, ids=lambda c: f"{c['n_shot']}-{c['size']}")
@needs_kernels
def test_logits_by_kernels_are_those_of_other_solvers(case, monkeypatch):
    if INTERPRETED and (case["n_shot"], case["size"]) != (1, 1.0):
        pytest.skip("interpreted, this takes minutes")
    by_kernels(monkeypatch)
    features = features_of(case["n_way"], case["n_shot"], case["size"])
    support, query = (torch.from_numpy(part)[None] for part in features)
    alpha, _ = solve_crammer_singer(gram(support), n_way=case["n_way"], penalty=case["penalty"])
    logits = query @ (alpha @ support).transpose(1, 2)
    for expected in case["logits"].values():
        expected = torch.tensor(expected, dtype=torch.float64)[None]
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)


@needs_kernels
def test_kernels_solve_a_task_alike_beside_others_and_refuse_what_is_no_number(monkeypatch):
    by_kernels(monkeypatch)
    easy, hard = clustered(3, 2, n_tasks=1), with_duplicates(clustered(3, 2, n_tasks=1, seed=1), 3)
    kernel = gram(torch.cat((easy, hard, easy)))
    kernel[2, 3, 3] = torch.nan
    together, error = solve_crammer_singer(kernel, n_way=3, penalty=1.0)
    alone, _ = solve_crammer_singer(kernel[:1], n_way=3, penalty=1.0)
    # Not to the last bit: a GPU may multiply a batch of matrices otherwise than a single one.
    torch.testing.assert_close(together[:1], alone, rtol=0, atol=1e-12)
    assert (error <= TOLERANCE).tolist() == [True, True, False]


@needs_kernels
def test_kernels_have_the_derivative_at_zero_features_that_torch_has(monkeypatch):
    points = torch.zeros(1, 6, 4, dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(lambda x: weights_of(x, 3, 0.1), points)
    by_kernels(monkeypatch)
    found = torch.autograd.functional.jacobian(lambda x: weights_of(x, 3, 0.1), points)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@needs_kernels
def test_kernels_that_stop_early_are_not_called_solved(monkeypatch):
    features = clustered(3, 2)
    best, _ = solve_crammer_singer(gram(features), n_way=3, penalty=0.1)
    by_kernels(monkeypatch)
    for n_steps in (1, 3):
        monkeypatch.setattr(svm_solver, "_n_steps", lambda u, n=n_steps: n)
        alpha, bound = solve_crammer_singer(gram(features), n_way=3, penalty=0.1)
        distance = ((alpha - best) @ features).square().sum((1, 2)).sqrt()
        terms = (alpha.square().sum(1) * features.square().sum(-1)).sum(-1).sqrt()
        assert (distance / terms <= bound).all()
        assert (bound > TOLERANCE).all()


def test_kernels_are_for_gpus_that_have_triton_and_tasks_that_fit(monkeypatch):
    class OnGpu:
        device = torch.device("cuda")
        shape = (8, 200, 200)

    assert svm_solver._kernels(torch.eye(25)[None]) is None
    with monkeypatch.context() as patch:
        patch.setattr(svm_solver, "find_kernels", lambda module, device: None)
        assert svm_solver._kernels(OnGpu()) is None
    if importlib.util.find_spec("triton"):
        assert svm_solver._kernels(OnGpu()) is None
        OnGpu.shape = (8, 128, 128)
        assert svm_solver._kernels(OnGpu()) is not None
