"""ANIL's written-out inner loop equals gradient descent on the head."""

from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy

from adaptask.backbones import build_backbone
from adaptask.errors import ArgumentError
from adaptask.learners import build_learner

N_WAY = 3


@pytest.fixture
def make_episodes(make_episodes):
    """Makes episodes of two tasks, of images without color."""
    return partial(make_episodes, n_tasks=2, image_shape=(1, 16, 16))


def build(**settings):
    torch.manual_seed(0)
    backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=4, norm="task")
    return build_learner("anil", backbone=backbone, n_way=N_WAY, **settings).double()


def by_autograd(learner, episodes):
    """The query loss, with the gradients of the head left to torch."""
    images = torch.cat((episodes.support_images, episodes.query_images), dim=1)
    features = learner.backbone(images)
    n_support = episodes.support_images.shape[1]
    rates = learner.inner_lr if learner.inner_rates is None else learner.inner_rates
    logits = []
    for task, rows in enumerate(features):
        head = learner.head
        for _ in range(learner.inner_steps):
            support = rows[:n_support] @ head[:, :-1].T + head[:, -1]
            loss = cross_entropy(support, episodes.support_labels[task])
            (gradient,) = torch.autograd.grad(
                loss, head, create_graph=not learner.first_order, retain_graph=True
            )
            head = head - rates * gradient
        logits.append(rows[n_support:] @ head[:, :-1].T + head[:, -1])
    return cross_entropy(torch.cat(logits), episodes.query_labels.flatten())


@pytest.mark.parametrize("learn_inner_lr", [False, True])
@pytest.mark.parametrize("first_order", [False, True])
def test_the_gradient_equals_autograds(first_order, learn_inner_lr, make_episodes):
    learner = build(
        inner_steps=3, inner_lr=0.3, first_order=first_order, learn_inner_lr=learn_inner_lr
    )
    episodes, parameters = make_episodes(), list(learner.parameters())
    loss = learner.training_step(episodes).loss
    expected = by_autograd(learner, episodes)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)  # the loss is in float32
    got = torch.autograd.grad(loss, parameters)
    for left, right in zip(got, torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-5)


def test_the_features_stay_as_they_are(make_episodes):
    """Without its inner steps it is a linear classifier, and these change the head alone."""
    episodes, learner = make_episodes(), build(inner_steps=0, evaluation_steps=2)
    images = torch.cat((episodes.support_images, episodes.query_images), dim=1)
    features = learner.backbone(images)[:, 6:]
    plain = features @ learner.head[:, :-1].T + learner.head[:, -1]
    torch.testing.assert_close(learner(episodes), plain)
    adapted = learner.eval()(episodes)
    solution = torch.linalg.lstsq(
        torch.cat((features, torch.ones_like(features[..., :1])), -1), adapted
    ).solution
    reached = torch.cat((features, torch.ones_like(features[..., :1])), -1) @ solution
    torch.testing.assert_close(reached, adapted)  # still linear in the same features
    assert not torch.allclose(adapted, plain)


def test_another_way_is_refused(make_episodes):
    with pytest.raises(ArgumentError, match="built for tasks of 3 classes"):
        build()(make_episodes(n_way=4))
