"""The support vector machine as a learner: what it says, and what it does when it cannot."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from adaptask.errors import ArgumentError, TrainingError
from adaptask.learners import LEARNERS, MetaOptNetSVM, build_learner, svm_solver


def random_features(n_tasks=3, n_way=5, n_shot=5, n_features=64, *, dtype=torch.float64):
    random = torch.Generator().manual_seed(n_shot)
    support = torch.randn(n_tasks, n_way, n_shot, n_features, generator=random, dtype=torch.float64)
    query = torch.randn(n_tasks, 4, n_features, generator=random, dtype=torch.float64)
    return support.to(dtype), query.to(dtype)


def hinge_objective(weights, support, penalty):
    """Return 1/2 |w|^2 + C sum of the losses, one point after the other."""
    total = 0.5 * float(weights.square().sum())
    for label, points in enumerate(support):
        for point in points:
            scores = weights @ point
            losses = [float(s - scores[label]) + (k != label) for k, s in enumerate(scores)]
            total += penalty * max(losses)
    return total


def test_logits_are_those_of_the_best_weights(flat, feature_episodes):
    """No small change of the weights has a lower objective."""
    support, _ = random_features(1, 3, 4, 5)
    learner = MetaOptNetSVM(backbone=flat, penalty=0.2, scale=3.0).double()
    # Unit vectors as queries read the weights off.
    queries = torch.eye(5, dtype=torch.float64)[None]
    weights = learner(feature_episodes(support, queries))[0].T.detach() / 3
    least = hinge_objective(weights, support[0], 0.2)
    random = torch.Generator().manual_seed(0)
    for size in (1e-1, 1e-3, 1e-5):
        for _ in range(50):
            change = torch.randn(weights.shape, generator=random, dtype=torch.float64)
            assert hinge_objective(weights + size * change, support[0], 0.2) > least


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_shot", [1, 5, 15])
def test_in_lower_precision_logits_are_those_of_the_rounded_features(
    n_shot, dtype, flat, feature_episodes
):
    support, query = random_features(n_shot=n_shot, dtype=dtype)
    learner = MetaOptNetSVM(backbone=flat)
    logits = learner(feature_episodes(support, query))
    assert logits.dtype == torch.float32
    exact = learner.double()(feature_episodes(support.double(), query.double()))
    torch.testing.assert_close(logits.double(), exact, rtol=0, atol=1e-5)


def published_logits(support, query, penalty):
    """Return the logits of one task as MetaOptNet's code poses them, with SciPy as the solver."""
    n_way, n_shot, n_features = support.shape
    points, n_support = support.reshape(-1, n_features), n_way * n_shot
    blocks = np.kron(points @ points.T, np.eye(n_way)) + np.eye(n_support * n_way)
    labels = np.eye(n_way).repeat(n_shot, axis=0).ravel()
    sums = np.kron(np.eye(n_support), np.ones((1, n_way)))
    found = minimize(
        lambda z: 0.5 * z @ blocks @ z - labels @ z,
        np.zeros(n_support * n_way),
        jac=lambda z: blocks @ z - labels,
        bounds=[(None, high) for high in penalty * labels],
        constraints={"type": "eq", "fun": lambda z: sums @ z, "jac": lambda z: sums},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return query @ points.T @ found.x.reshape(n_support, n_way)


@pytest.mark.parametrize("size", [0.1, 0.5, 2.0])
@pytest.mark.parametrize(("n_way", "n_shot"), [(5, 1), (3, 3)])
def test_with_a_regularization_of_1_logits_are_those_of_the_published_head(
    n_way, n_shot, size, flat, feature_episodes
):
    support, query = (size * part for part in random_features(1, n_way, n_shot, 8))
    expected = published_logits(support[0].numpy(), query[0].numpy(), 0.1)
    learner = MetaOptNetSVM(backbone=flat, regularization=1.0).double()
    logits = learner(feature_episodes(support, query))[0].detach().numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-6)
    without = MetaOptNetSVM(backbone=flat).double()(feature_episodes(support, query))[0]
    assert np.abs(without.detach().numpy() - expected).max() > 1e-4


def test_zero_support_features_have_a_finite_gradient(flat, feature_episodes):
    """Moving the features against it lowers the loss; the task beside it is not disturbed."""
    support, query = random_features(n_tasks=2, dtype=torch.float32)
    support[0] = 0
    episodes = feature_episodes(support.requires_grad_(), query)
    learner = MetaOptNetSVM(backbone=flat)
    loss = learner.loss(learner(episodes), episodes.query_labels)
    loss.backward()
    assert support.grad.isfinite().all()
    assert support.grad[0].any()
    assert learner.scale.grad.isfinite()
    with torch.no_grad():
        lower = feature_episodes(support - 0.01 * support.grad, query)
        assert learner.loss(learner(lower), lower.query_labels) < loss


@pytest.mark.parametrize("regularization", [0.0, 1.0])
def test_derivatives_equal_finite_differences(regularization, flat):
    support, query = random_features(1, 3, 2, 4)
    learner = MetaOptNetSVM(backbone=flat, penalty=0.3, regularization=regularization).double()
    inputs = (support.requires_grad_(), query.requires_grad_(), *learner.parameters())

    def logits(support, query, *_):
        return learner.classify(support, query)

    assert torch.autograd.gradcheck(logits, inputs, atol=1e-5)


def test_a_machine_that_is_not_solved_raises(monkeypatch, flat, feature_episodes):
    episodes = feature_episodes(*random_features())
    learner = MetaOptNetSVM(backbone=flat)
    expected = learner(episodes)
    monkeypatch.setattr(svm_solver, "N_SWITCHES", 1)
    monkeypatch.setattr(svm_solver, "MOST_STEPS", 2)
    with pytest.raises(TrainingError, match=r"machines of 3 tasks were not solved to 0\.0001"):
        learner(episodes)
    monkeypatch.undo()
    assert torch.equal(learner(episodes), expected)  # what was refused is forgotten


def test_features_that_are_no_numbers_raise(flat, feature_episodes):
    support, query = random_features()
    support[1, 2, 0, 0] = torch.nan
    with pytest.raises(TrainingError, match=r"1 tasks .* features are not finite"):
        MetaOptNetSVM(backbone=flat).double()(feature_episodes(support, query))


def test_where_nothing_may_be_read_the_logits_say_it(monkeypatch, flat, feature_episodes):
    """As on a GPU: the task has NaN for logits, the others are as they were."""
    support, query = random_features()
    learner = MetaOptNetSVM(backbone=flat).double()
    expected = learner(feature_episodes(support, query))
    support[1, 2, 0, 0] = torch.nan
    monkeypatch.setattr(MetaOptNetSVM, "_check", lambda self, solved: None)
    logits = learner(feature_episodes(support, query))
    assert logits[1].isnan().all()
    torch.testing.assert_close(logits[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize(
    "settings",
    [
        {"penalty": 0},
        {"penalty": "soft"},
        {"regularization": -1},
        {"scale": -1},
        {"label_smoothing": 0.9},
    ],
)
def test_bad_settings_are_refused(settings, flat):
    with pytest.raises(ArgumentError, match=f"{next(iter(settings))} must be a number between"):
        MetaOptNetSVM(backbone=flat, **settings)


@pytest.mark.parametrize("name", ["protonet", "metaoptnet-ridge", "metaoptnet-svm", "r2d2"])
@pytest.mark.parametrize("n_way", [2, 5])
def test_smoothed_labels_give_the_other_classes_equal_shares(name, n_way, flat):
    learner = build_learner(name, backbone=flat, label_smoothing=0.1)
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, n_way, generator=random, dtype=torch.float64)
    labels = torch.randint(0, n_way, (2, 3), generator=random)
    total = 0.0
    for row, label in zip(logits.flatten(0, 1), labels.flatten(), strict=True):
        shares = torch.full((n_way,), 0.1 / (n_way - 1), dtype=torch.float64)
        shares[label] = 0.9
        total -= float((shares * row.log_softmax(0)).sum())
    assert float(learner.loss(logits, labels)) == pytest.approx(total / 6, rel=1e-9)


def test_nobody_smooths_unless_asked(flat):
    for name in ("protonet", "metaoptnet-ridge", "metaoptnet-svm", "r2d2"):
        assert build_learner(name, backbone=flat).label_smoothing == 0
    assert all(kind.label_smoothing == 0 for kind in LEARNERS.values())
