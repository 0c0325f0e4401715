"""Ridge regression and R2-D2: the closed forms, written out, and their derivatives."""

import math

import numpy as np
import pytest
import torch

from adaptask.errors import ArgumentError
from adaptask.learners import R2D2, MetaOptNetRidge


def random_features(n_tasks, n_way, n_shot, n_features=6, *, size=1.0, dtype=torch.float64):
    random = torch.Generator().manual_seed(n_shot)
    support = torch.randn(n_tasks, n_way, n_shot, n_features, generator=random, dtype=torch.float64)
    query = torch.randn(n_tasks, 4, n_features, generator=random, dtype=torch.float64)
    return (size * support).to(dtype), (size * query).to(dtype)


def primal(support, query, regularization, *, intercept):
    """Return the logits by the normal equations in feature space, one task after the other."""
    logits = []
    for points, queries in zip(support.numpy(), query.numpy(), strict=True):
        n_way, n_shot, n_features = points.shape
        points = points.reshape(-1, n_features)
        if intercept:
            points = np.concatenate((points, np.ones((len(points), 1))), axis=1)
            queries = np.concatenate((queries, np.ones((len(queries), 1))), axis=1)
        targets = np.eye(n_way).repeat(n_shot, axis=0)
        normal = points.T @ points + regularization * np.eye(points.shape[1])
        logits.append(queries @ np.linalg.solve(normal, points.T @ targets))
    return torch.from_numpy(np.stack(logits))


SHAPES = [(2, 3, 1), (2, 3, 5), (1, 5, 15), (1, 2, 2), (1, 20, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("regularization", [50.0, 0.1])
def test_ridge_logits_are_the_closed_form(shape, regularization, flat, feature_episodes):
    support, query = random_features(*shape)
    learner = MetaOptNetRidge(backbone=flat, regularization=regularization, scale=3.0).double()
    expected = 3 * 2 * primal(support, query, regularization, intercept=False)
    logits = learner(feature_episodes(support, query))
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-12)


def test_ridge_is_the_quadratic_program_that_metaoptnet_writes(flat, feature_episodes):
    """1/2 z' (K + 50 I) z - 2 z' y is least at z; checked by its gradient."""
    support, query = random_features(1, 3, 2)
    logits = MetaOptNetRidge(backbone=flat).double()(feature_episodes(support, query))
    points = support[0].flatten(0, 1)
    targets = torch.eye(3, dtype=torch.float64).repeat_interleave(2, dim=0)
    # With the points themselves as queries the logits are K z.
    fitted = MetaOptNetRidge(backbone=flat).double()(feature_episodes(support, points[None]))
    z = (2 * targets - fitted[0]) / 50
    torch.testing.assert_close(points @ points.T @ z, fitted[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(query[0] @ points.T @ z, logits[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("regularization", [50.0, 0.1])
def test_r2d2_logits_are_the_closed_form(shape, regularization, flat, feature_episodes):
    support, query = random_features(*shape)
    learner = R2D2(backbone=flat, regularization=regularization, scale=3.0).double()
    torch.nn.init.constant_(learner.bias, 0.25)
    n_support = shape[1] * shape[2]
    expected = 3 * primal(support, query, n_support * regularization, intercept=True) + 0.25
    logits = learner(feature_episodes(support, query))
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-9)  # log(lambda) is float32


@pytest.mark.parametrize("kind", [MetaOptNetRidge, R2D2])
def test_derivatives_equal_finite_differences(kind, flat):
    support, query = random_features(2, 3, 2, 4)
    learner = kind(backbone=flat, regularization=0.5, scale=1.0).double()
    inputs = (support.requires_grad_(), query.requires_grad_(), *learner.parameters())

    def logits(support, query, *_):
        return learner.classify(support, query)

    assert torch.autograd.gradcheck(logits, inputs)


def test_hyperparameters_start_as_published_and_are_learnt(flat):
    ridge, r2d2 = MetaOptNetRidge(backbone=flat), R2D2(backbone=flat)
    assert dict(ridge.named_parameters()).keys() == {"scale"}
    assert dict(r2d2.named_parameters()).keys() == {"scale", "bias", "log_regularization"}
    assert (ridge.regularization, ridge.scale.item()) == (50.0, 1.0)
    start = (r2d2.scale.item(), r2d2.bias.item(), r2d2.log_regularization.exp().item())
    assert start == pytest.approx((1e-4, 0.0, 50.0), rel=1e-6)
    fixed = R2D2(backbone=flat, learn_regularization=False)
    assert "log_regularization" not in dict(fixed.named_parameters())
    assert "log_regularization" in fixed.state_dict()


def duplicates(support):
    return support[:, :, :1].expand_as(support)


def collinear(support):
    factors = torch.linspace(-1, 2, support[0, ..., 0].numel()).view(*support.shape[1:3], 1)
    return factors.to(support.dtype) * support[:, :1, :1]


@pytest.mark.parametrize("kind", [MetaOptNetRidge, R2D2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("change", [None, duplicates, collinear])
@pytest.mark.parametrize(("n_way", "n_shot"), [(5, 1), (2, 5), (20, 2)])
def test_hard_cases_are_right(kind, dtype, size, change, n_way, n_shot, flat, feature_episodes):
    support, query = random_features(2, n_way, n_shot, 64, size=size, dtype=dtype)
    support = change(support) if change else support
    learner = kind(backbone=flat, scale=1.0)
    logits = learner(feature_episodes(support, query))
    assert logits.dtype == torch.float32
    regularization = 50.0 * (n_way * n_shot if kind is R2D2 else 1)
    expected = primal(support.double(), query.double(), regularization, intercept=kind is R2D2) * (
        1 if kind is R2D2 else 2
    )
    largest = float(expected.abs().max())
    torch.testing.assert_close(logits.double(), expected, rtol=0, atol=2e-4 * largest)


@pytest.mark.parametrize(
    "settings",
    [
        {"regularization": 0},
        {"regularization": -1},
        {"scale": math.nan},
        {"scale": "large"},
        {"label_smoothing": 0.6},
        {"label_smoothing": -0.1},
    ],
)
@pytest.mark.parametrize("kind", [MetaOptNetRidge, R2D2])
def test_bad_settings_are_refused(kind, settings, flat):
    with pytest.raises(ArgumentError, match=f"{next(iter(settings))} must be a number between"):
        kind(backbone=flat, **settings)
