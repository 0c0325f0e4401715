"""Reptile moves towards where each task's training ends, and nowhere else."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from adaptask.backbones import build_backbone
from adaptask.errors import ArgumentError
from adaptask.learners import build_learner

N_WAY, N_SHOT = 3, 4
ALL = {"batch_size": N_WAY * N_SHOT, "anneal": False}


@pytest.fixture
def make_episodes(make_episodes):
    """Makes episodes of two tasks, of images without color."""
    return partial(make_episodes, n_tasks=2, n_shot=N_SHOT, n_query=2, image_shape=(1, 8, 8))


def build(**settings):
    torch.manual_seed(0)
    backbone = build_backbone("conv4", image_shape=(1, 8, 8), filters=4, n_pooled=2)
    return build_learner("reptile", backbone=backbone, n_way=N_WAY, **settings).double()


def gradient_of(learner, episodes):
    torch.manual_seed(0)  # of the order of mini-batches
    learner.zero_grad()
    learner.training_step(episodes).loss.backward()
    return {name: p.grad.clone() for name, p in learner.named_parameters()}


def trained_alone(learner, episodes, task, optimizer):
    """The weights after ordinary training on the whole support set of one task."""
    weights = {n: p.detach().clone().requires_grad_() for n, p in learner.named_parameters()}
    optimizer = optimizer(list(weights.values()))
    for _ in range(learner.inner_steps):
        own = {n.removeprefix("backbone."): w for n, w in weights.items() if "backbone" in n}
        features = functional_call(learner.backbone, own, (episodes.support_images[task],))
        logits = features @ weights["head.weight"].T + weights["head.bias"]
        optimizer.zero_grad()
        cross_entropy(logits, episodes.support_labels[task]).backward()
        optimizer.step()
    return {name: weight.detach() for name, weight in weights.items()}


def test_one_inner_step_of_sgd_moves_along_the_plain_gradient(make_episodes):
    learner = build(inner_steps=1, inner_optimizer="sgd", inner_lr=0.1, **ALL)
    episodes = make_episodes()
    losses = []
    for images, labels in zip(episodes.support_images, episodes.support_labels, strict=True):
        losses.append(cross_entropy(learner.head(learner.backbone(images)), labels))
    plain = torch.autograd.grad(torch.stack(losses).mean(), list(learner.parameters()))
    for got, expected in zip(gradient_of(learner, episodes).values(), plain, strict=True):
        assert (got - 0.1 * expected).abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_the_inner_loop_equals_torchs_optimizers(kind, make_episodes):
    learner = build(inner_steps=4, inner_optimizer=kind, inner_lr=0.01, **ALL)
    episodes = make_episodes()
    optimizers = {
        "adam": lambda weights: torch.optim.Adam(weights, lr=0.01, betas=(0.0, 0.999)),
        "sgd": lambda weights: torch.optim.SGD(weights, lr=0.01),
    }
    ends = [trained_alone(learner, episodes, task, optimizers[kind]) for task in range(2)]
    for name, gradient in gradient_of(learner, episodes).items():
        start = learner.get_parameter(name).detach()
        expected = start - torch.stack([end[name] for end in ends]).mean(0)
        assert (gradient - expected).abs().max() < 1e-9, name


def test_sgd_with_a_learning_rate_of_one_ends_where_the_task_does(make_episodes):
    learner, episodes = build(inner_steps=3, **ALL), make_episodes(n_tasks=1)
    end = {n: w[0].detach() for n, w in learner.adapt(episodes, differentiable=False).items()}
    optimizer = torch.optim.SGD(learner.parameters(), lr=1.0)
    learner.training_step(episodes).loss.backward()
    optimizer.step()
    for name, parameter in learner.named_parameters():
        torch.testing.assert_close(parameter.detach(), end[name], atol=1e-12, rtol=0)


def test_the_step_size_falls_linearly(make_episodes):
    settings = {"inner_steps": 2, "batch_size": N_WAY * N_SHOT}
    learner, constant = build(**settings), build(**settings, anneal=False)
    episodes = make_episodes()
    expected = gradient_of(constant, episodes)
    for step, size in ((0, 1.0), (25, 0.75), (99, 0.01)):
        learner.begin_step(step, 100)
        constant.begin_step(step, 100)
        for name, gradient in gradient_of(learner, episodes).items():
            torch.testing.assert_close(gradient, size * expected[name], rtol=1e-5, atol=1e-9)
            assert torch.equal(gradient_of(constant, episodes)[name], expected[name])


def test_held_out_images_take_no_part_in_training(make_episodes):
    learner, episodes = build(inner_steps=2, **ALL), make_episodes()
    other = replace(episodes, query_images=make_episodes(seed=1).query_images)
    first, second = gradient_of(learner, episodes), gradient_of(learner, other)
    assert all(torch.equal(first[name], second[name]) for name in first)
    outcomes = [learner.training_step(e) for e in (episodes, other)]
    assert not torch.allclose(outcomes[0].query_logits, outcomes[1].query_logits)
    loss = cross_entropy(outcomes[0].query_logits.flatten(0, 1), episodes.query_labels.flatten())
    assert outcomes[0].loss.item() == pytest.approx(loss.item())


def test_mini_batches_go_through_all_images_before_they_begin_anew(make_episodes):
    learner, episodes = build(inner_steps=5, batch_size=5), make_episodes(n_tasks=4)
    batches = torch.stack(learner._batches(episodes), dim=1)
    assert batches.shape == (4, 5, 5)
    places = batches.flatten(1)
    for task in places:
        for start in (0, 12):
            assert sorted(task[start : start + 12].tolist()) == list(range(12))
    assert len({tuple(task.tolist()) for task in places}) == 4
    again = torch.stack(learner._batches(episodes), dim=1)
    assert not torch.equal(again, batches)


def test_in_evaluation_every_class_has_its_turn_and_nothing_is_random(make_episodes):
    settings = {"evaluation_steps": 5, "evaluation_batch_size": N_WAY}
    learner, episodes = build(**settings).eval(), make_episodes()
    batches = learner._batches(episodes)
    assert [len(set(episodes.support_labels[0, b[0]].tolist())) for b in batches] == [N_WAY] * 5
    assert len({int(place) for batch in batches for place in batch[0]}) == N_WAY * N_SHOT
    assert torch.equal(learner(episodes), learner(episodes))


def test_without_transduction_a_query_is_classified_beside_the_support_set_alone(make_episodes):
    episodes = make_episodes()
    learner = build(evaluation_steps=2, transductive=False).eval()
    weights = learner.adapt(episodes, differentiable=False)
    got = learner(episodes)
    for query in range(episodes.query_images.shape[1]):
        one = episodes.query_images[:, query : query + 1]
        together = torch.cat((episodes.support_images, one), dim=1)
        expected = learner.logits(weights, together, 2)[:, -1]
        torch.testing.assert_close(got[:, query], expected)


def test_bad_settings_are_refused():
    for settings in ({"inner_optimizer": "lbfgs"}, {"inner_steps": 0}, {"batch_size": 0}):
        with pytest.raises(ArgumentError, match=next(iter(settings))):
            build(**settings)
