"""MAML's gradient is exact: against finite differences, closed forms and a loop over tasks."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from adaptask.backbones import build_backbone
from adaptask.errors import ArgumentError
from adaptask.learners import build_learner

N_WAY = 3


class Flat(nn.Module):
    """Pixels as features, so that the whole network is softmax regression."""

    def __init__(self, image_shape):
        super().__init__()
        self.image_shape = image_shape
        self.n_features = int(np.prod(image_shape))

    def forward(self, images):
        return images.flatten(-3)


def in_float32(episodes):
    return replace(
        episodes,
        support_images=episodes.support_images.float(),
        query_images=episodes.query_images.float(),
    )


def build(backbone="conv4", name="maml", image_shape=(2, 8, 8), norm="batch", seed=0, **settings):
    torch.manual_seed(seed)
    if backbone == "conv4":
        network = build_backbone("conv4", image_shape=image_shape, filters=4, n_pooled=2, norm=norm)
    elif backbone == "mlp":
        network = build_backbone("mlp", image_shape=image_shape, hidden=6, norm=norm)
    elif backbone == "resnet12":
        network = build_backbone("resnet12", image_shape=(2, 16, 16), widths=(2, 2, 2, 2))
    else:
        network = Flat(image_shape)
    learner = build_learner(name, backbone=network, n_way=N_WAY, **settings).double()
    with torch.no_grad():
        for parameter in learner.parameters():  # scales of both signs, biases that are not zero
            parameter.add_(0.3 * torch.randn_like(parameter))
    return learner


def gradient_of(learner, episodes):
    learner.zero_grad()
    outcome = learner.training_step(episodes)
    outcome.loss.backward()
    return [p.grad.clone() for p in learner.parameters() if p.requires_grad]


def looped_loss(learner, episodes, *, first_order=False):
    """The query loss by the plain loop: one task after the other, torch's own layers."""
    losses = []
    start = {n: p for n, p in learner.named_parameters() if n.startswith(("backbone", "head"))}
    rates = dict.fromkeys(start, learner.inner_lr)
    if learner.inner_rates is not None:
        rates = dict(zip(start, learner.inner_rates, strict=True))

    def logits(weights, images):
        own = {n.removeprefix("backbone."): w for n, w in weights.items() if "backbone" in n}
        features = functional_call(learner.backbone, own, (images,))
        return features @ weights["head.weight"].T + weights["head.bias"]

    for task in range(len(episodes.class_ids)):
        weights = start
        for _ in range(learner.inner_steps):
            support = logits(weights, episodes.support_images[task])
            gradients = torch.autograd.grad(
                cross_entropy(support, episodes.support_labels[task]),
                list(weights.values()),
                create_graph=not first_order,
            )
            pairs = zip(weights.items(), gradients, strict=True)
            weights = {name: weight - rates[name] * gradient for (name, weight), gradient in pairs}
        losses.append(
            cross_entropy(logits(weights, episodes.query_images[task]), episodes.query_labels[task])
        )
    return torch.stack(losses).mean()


@pytest.mark.parametrize("learn_inner_lr", [False, True])
@pytest.mark.parametrize("inner_steps", [1, 3])
@pytest.mark.parametrize("backbone", ["conv4", "flat"])
def test_the_second_order_gradient_equals_finite_differences(
    backbone, inner_steps, learn_inner_lr, make_episodes
):
    learner = build(backbone, inner_steps=inner_steps, inner_lr=0.1, learn_inner_lr=learn_inner_lr)
    episodes = make_episodes()
    gradients = gradient_of(learner, episodes)
    for seed in range(5):
        random = torch.Generator().manual_seed(seed)
        directions = [torch.randn(g.shape, generator=random).double() for g in gradients]
        directions = [direction / direction.norm() for direction in directions]
        losses = []
        for sign in (1, -1):
            moved = copy.deepcopy(learner)
            with torch.no_grad():
                torch._foreach_add_(list(moved.parameters()), directions, alpha=sign * 1e-6)
                losses.append(moved.loss(moved(episodes), episodes.query_labels).item())
        expected = (losses[0] - losses[1]) / 2e-6
        got = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
        assert got == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("first_order", [False, True])
def test_both_orders_equal_the_closed_form_for_softmax_regression(first_order, make_episodes):
    """One step of softmax regression: its gradient and Hessian are in every textbook."""
    rate = 0.2
    learner = build(
        "flat", image_shape=(1, 2, 2), inner_steps=1, inner_lr=rate, first_order=first_order
    )
    episodes = make_episodes(n_tasks=1, image_shape=(1, 2, 2))
    # Weights as one vector, class by class, the bias last in each.
    start = torch.cat((learner.head.weight, learner.head.bias[:, None]), 1).detach().numpy()

    def rows(images):
        return np.c_[images[0].flatten(1).numpy(), np.ones(images.shape[1])]

    def probabilities(weights, x):
        scores = np.exp(x @ weights.T)
        return scores / scores.sum(1, keepdims=True)

    def gradient(weights, x, y):
        return (probabilities(weights, x) - y).T @ x / len(x)

    def hessian(weights, x):
        total = 0
        for row, p in zip(x, probabilities(weights, x), strict=True):
            total = total + np.kron(np.diag(p) - np.outer(p, p), np.outer(row, row))
        return total / len(x)

    x, z = rows(episodes.support_images), rows(episodes.query_images)
    y, answers = (
        np.eye(N_WAY)[labels[0]] for labels in (episodes.support_labels, episodes.query_labels)
    )
    adapted = start - rate * gradient(start, x, y)
    expected = gradient(adapted, z, answers)
    if not first_order:
        through = np.eye(start.size) - rate * hessian(start, x)
        expected = (through @ expected.ravel()).reshape(start.shape)
    weight, bias = gradient_of(learner, episodes)
    np.testing.assert_allclose(np.c_[weight, bias], expected, atol=1e-12)


CASES = [
    {"inner_steps": 3, "inner_lr": 0.1},
    {"inner_steps": 2, "inner_lr": 0.1, "learn_inner_lr": True},
    {"inner_steps": 3, "inner_lr": 0.1, "first_order": True},
    {"inner_steps": 2, "inner_lr": 0.1, "first_order": True, "learn_inner_lr": True},
]


@pytest.mark.parametrize("settings", CASES, ids=str)
@pytest.mark.parametrize(
    ("backbone", "norm"),
    [
        *(("conv4", norm) for norm in ("batch", "task", "none")),
        *(("mlp", norm) for norm in ("batch", "task", "none", "layer")),
    ],
)
def test_all_tasks_at_once_equal_the_loop_over_tasks(settings, backbone, norm, make_episodes):
    learner, episodes = build(backbone, norm=norm, **settings), make_episodes()
    got = gradient_of(learner, episodes)
    loss = looped_loss(learner, episodes, first_order=learner.first_order)
    parameters = list(learner.parameters())
    expected = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    assert learner.training_step(episodes).loss.item() == pytest.approx(loss.item(), abs=1e-12)
    for left, right in zip(got, expected, strict=True):
        assert (left - right).abs().max() < 1e-9


def test_a_residual_backbone_adapts_too(make_episodes):
    learner = build("resnet12", inner_steps=2, inner_lr=0.1).eval()  # without dropout
    episodes = make_episodes(image_shape=(2, 16, 16))
    expected = torch.autograd.grad(looped_loss(learner, episodes), list(learner.parameters()))
    for left, right in zip(gradient_of(learner, episodes), expected, strict=True):
        assert (left - right).abs().max() < 1e-9


def test_differentiating_the_logits_gives_the_same_gradient(make_episodes):
    learner, episodes = build(inner_steps=2, inner_lr=0.1), make_episodes()
    expected = gradient_of(learner, episodes)
    loss = learner.loss(learner(episodes), episodes.query_labels)
    got = torch.autograd.grad(
        loss, list(learner.parameters()), allow_unused=True, materialize_grads=True
    )
    for left, right in zip(got, expected, strict=True):
        assert (left - right).abs().max() < 1e-12


def test_without_inner_steps_it_is_the_plain_network(make_episodes):
    learner, episodes = build(inner_steps=0), make_episodes()
    plain = torch.stack([learner.head(learner.backbone(x)) for x in episodes.query_images])
    torch.testing.assert_close(learner(episodes), plain, atol=1e-12, rtol=0)
    loss = cross_entropy(plain.flatten(0, 1), episodes.query_labels.flatten())
    expected = torch.autograd.grad(
        loss, list(learner.parameters()), allow_unused=True, materialize_grads=True
    )
    for left, right in zip(gradient_of(learner, episodes), expected, strict=True):
        assert (left - right).abs().max() < 1e-12


def test_training_and_evaluation_have_steps_of_their_own(make_episodes):
    episodes = make_episodes()
    learner = build(inner_steps=1, evaluation_steps=4, inner_lr=0.1)
    longer = build(inner_steps=4, inner_lr=0.1)
    assert torch.equal(learner.eval()(episodes), longer(episodes))
    assert not torch.allclose(learner.train()(episodes), longer(episodes))


def test_without_transduction_a_query_does_not_know_the_others(make_episodes):
    episodes = make_episodes()
    fewer = replace(
        episodes,
        query_images=episodes.query_images[:, ::3],
        query_labels=episodes.query_labels[:, ::3],
    )
    for transductive in (True, False):
        learner = build(inner_steps=1, transductive=transductive).eval()
        same = torch.allclose(learner(episodes)[:, ::3], learner(fewer), atol=1e-12)
        assert same != transductive


def test_frozen_parameters_neither_adapt_nor_learn(make_episodes):
    learner, episodes = build(inner_steps=2, inner_lr=0.5), make_episodes()
    before = learner(episodes)
    for parameter in learner.backbone.parameters():
        parameter.requires_grad_(False)
    gradient_of(learner, episodes)
    assert all(p.grad is None for p in learner.backbone.parameters())
    assert learner.head.weight.grad.any()
    features = [learner.backbone(images) for images in episodes.support_images]
    queries = [learner.backbone(images) for images in episodes.query_images]
    for task, (x, z) in enumerate(zip(features, queries, strict=True)):
        head = [p.detach().requires_grad_() for p in learner.head.parameters()]
        for _ in range(2):
            loss = cross_entropy(x @ head[0].T + head[1], episodes.support_labels[task])
            moved = zip(head, torch.autograd.grad(loss, head), strict=True)
            head = [(p - 0.5 * g).detach().requires_grad_() for p, g in moved]
        torch.testing.assert_close(learner(episodes)[task], z @ head[0].T + head[1])
    assert not torch.allclose(before, learner(episodes))


def test_a_learner_that_is_frozen_altogether_says_that_it_cannot_adapt(make_episodes):
    learner = build().requires_grad_(False)
    with pytest.raises(ArgumentError, match="nothing can adapt"):
        learner.eval()(make_episodes())


@pytest.mark.parametrize("name", ["maml", "reptile"])
def test_inference_mode_adapts_all_the_same(name, make_episodes):
    learner = build(name=name).eval()
    with torch.no_grad():
        expected = learner(make_episodes())
        assert not expected.requires_grad
    with torch.inference_mode():
        assert torch.equal(learner(make_episodes()), expected)


@pytest.mark.parametrize("name", ["maml", "reptile"])
def test_mixed_precision_trains_in_the_same_direction(name, make_episodes):
    learner, episodes = build(name=name).float(), in_float32(make_episodes())
    directions = []
    for mixed in (False, True):
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            gradients = gradient_of(learner, episodes)
        assert {gradient.dtype for gradient in gradients} == {torch.float32}
        directions.append(torch.cat([gradient.flatten() for gradient in gradients]))
    assert torch.cosine_similarity(*directions, dim=0) > 0.8


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's memory counter")
def test_memory_stays_flat_over_a_thousand_steps(make_episodes):
    learner = build(inner_steps=1).float()
    optimizer = torch.optim.Adam(learner.parameters(), lr=1e-3)
    episodes = in_float32(make_episodes(n_tasks=1))
    pages = []
    for _ in range(1000):
        optimizer.zero_grad()
        learner.training_step(episodes).loss.backward()
        optimizer.step()
        pages.append(int(Path("/proc/self/statm").read_text().split()[1]))
    assert max(pages[-100:]) <= 1.02 * max(pages[:100])


BAD = [
    ({"inner_steps": -1}, "inner_steps"),
    ({"evaluation_steps": 1.5}, "evaluation_steps"),
    ({"inner_lr": float("nan")}, "inner_lr"),
    ({"n_way": 1}, "n_way"),
    ({"backbone": "conv4"}, "backbone must be a torch.nn.Module"),
]


@pytest.mark.parametrize(("settings", "message"), BAD, ids=str)
def test_bad_settings_are_refused(settings, message):
    backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=2)
    with pytest.raises(ArgumentError, match=message):
        build_learner("maml", **{"backbone": backbone, "n_way": 3, **settings})


def test_episodes_that_do_not_fit_are_refused_before_anything_happens(make_episodes):
    learner, episodes = build(), make_episodes()
    other_way = replace(
        episodes,
        class_ids=torch.zeros(3, 6, dtype=torch.int64),
        support_images=episodes.support_images,
    )
    with pytest.raises(ArgumentError, match="built for tasks of 3 classes"):
        learner.training_step(replace(other_way, query_images=episodes.support_images))
    with pytest.raises(ArgumentError, match=r"images of shape \(2, 8, 8\)"):
        learner(make_episodes(image_shape=(1, 8, 8)))
    assert all(p.grad is None for p in learner.parameters())
