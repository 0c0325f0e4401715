"""Every part of MAML++ does what its equation says, and without them it is MAML."""

import copy
import itertools
from functools import partial

import pytest
import torch

from adaptask.backbones import build_backbone
from adaptask.errors import ArgumentError
from adaptask.learners import build_learner

N_WAY, N_STEPS = 3, 3
PARTS = ("multi_step_loss", "anneal_order", "per_step_norm", "per_layer_rates")
OFF = dict.fromkeys(PARTS, False)


@pytest.fixture
def make_episodes(make_episodes):
    """Makes episodes of two tasks, of images without color."""
    return partial(make_episodes, n_tasks=2, image_shape=(1, 8, 8))


def build(name="maml++", **settings):
    torch.manual_seed(0)
    backbone = build_backbone("conv4", image_shape=(1, 8, 8), filters=4, n_pooled=2)
    settings = {"inner_steps": N_STEPS, "inner_lr": 0.1, **settings}
    return build_learner(name, backbone=backbone, n_way=N_WAY, **settings).double()


def gradient_of(learner, episodes):
    learner.zero_grad()
    learner.training_step(episodes).loss.backward()
    return {n: p.grad.clone() for n, p in learner.named_parameters() if p.requires_grad}


def loss_after(learner, episodes, n_steps):
    """The query loss after so many updates, by way of evaluation."""
    shorter = copy.deepcopy(learner).eval()
    shorter.evaluation_steps = n_steps
    with torch.no_grad():
        return float(shorter.loss(shorter(episodes), episodes.query_labels))


def test_with_every_part_off_it_is_maml(make_episodes):
    episodes, maml, plus = make_episodes(), build("maml"), build(**OFF)
    plus.begin_step(1, 10)
    assert plus.state_dict().keys() == maml.state_dict().keys()
    expected = gradient_of(maml, episodes)
    for name, gradient in gradient_of(plus, episodes).items():
        assert torch.equal(gradient, expected[name])
    assert torch.equal(maml.eval()(episodes), plus.eval()(episodes))


@pytest.mark.parametrize("part", PARTS)
def test_each_part_changes_training(part, make_episodes):
    episodes, maml = make_episodes(), build("maml")
    plus = build(**OFF | {part: True})
    plus.begin_step(0, 100)
    expected = gradient_of(maml, episodes)["backbone.blocks.0.convolution.weight"]
    got = gradient_of(plus, episodes)["backbone.blocks.0.convolution.weight"]
    same = (got - expected).norm() < 1e-5 * expected.norm()  # 0.1 in float32 is not 0.1
    # Learned rates start out as the fixed one: what is new is that they have a gradient.
    if part == "per_layer_rates":
        assert same
        assert plus.step_rates.grad.any()
    else:
        assert not same


@pytest.mark.parametrize("step", [0, 3, 7, 15, 99])
def test_the_weights_of_the_losses_sum_to_one_and_move_to_the_last(step, make_episodes):
    learner, episodes = build(**OFF | {"multi_step_loss": True}), make_episodes()
    learner.begin_step(step, 100)
    done = min(1, step / 15)
    weights = [(1 - done) / N_STEPS] * N_STEPS
    weights[-1] += done
    assert sum(weights) == pytest.approx(1)
    found = {at: float(weight) for at, weight in learner._importances().items()}
    assert found == {at + 1: pytest.approx(w) for at, w in enumerate(weights) if w}
    losses = [loss_after(learner, episodes, at + 1) for at in range(N_STEPS)]
    expected = sum(weight * loss for weight, loss in zip(weights, losses, strict=True))
    assert learner.training_step(episodes).loss.item() == pytest.approx(expected, abs=1e-7)


def test_the_logits_that_feed_the_sampler_are_those_after_the_last_update(make_episodes):
    episodes = make_episodes()
    learner = build(**OFF | {"multi_step_loss": True})
    learner.begin_step(0, 100)
    assert torch.equal(learner.training_step(episodes).query_logits, learner(episodes).detach())


def test_the_order_of_derivatives_rises_when_its_share_of_training_is_over(make_episodes):
    episodes = make_episodes()
    learner = build(**OFF | {"anneal_order": True, "first_order_share": 0.3})
    orders = {True: build("maml", first_order=True), False: build("maml")}
    for step in (0, 29, 30, 99):
        learner.begin_step(step, 100)
        expected = gradient_of(orders[step < 30], episodes)
        for name, gradient in gradient_of(learner, episodes).items():
            assert torch.equal(gradient, expected[name]), (step, name)


def test_whoever_does_not_count_steps_gets_the_last_objective():
    learner = build()
    assert learner.phase == (False, True)
    learner.begin_step(0, 100)
    assert learner.phase == (True, False)
    learner.begin_step(20, 100)
    assert learner.phase == (False, False)


def test_a_step_size_belongs_to_one_tensor_and_one_step(make_episodes):
    episodes = make_episodes()
    learner = build(**OFF | {"per_layer_rates": True})
    with torch.no_grad():
        learner.step_rates[1, learner._names.index("head.weight")] = 0
    trajectory = learner._trajectory(episodes, N_STEPS, differentiable=False)
    for name in ("head.weight", "head.bias", "backbone.blocks.2.convolution.weight"):
        moved = [
            not torch.equal(after[name], before[name])
            for before, after in itertools.pairwise(trajectory)
        ]
        assert moved == [True, name != "head.weight", True]


def test_more_steps_in_evaluation_go_on_with_what_the_last_has(make_episodes):
    episodes = make_episodes()
    learner = build(evaluation_steps=5).eval()
    longer = build(inner_steps=5).eval()
    with torch.no_grad():
        for part in (learner.step_rates, *learner.step_norms.values()):
            part.add_(0.1 * torch.rand_like(part))
    rows = torch.tensor([0, 1, 2, 3, 3, 3])
    state = {
        name: value[rows] if "step_norms" in name else value
        for name, value in learner.state_dict().items()
    }
    state["step_rates"] = learner.step_rates[torch.tensor([0, 1, 2, 2, 2])]
    longer.load_state_dict(state)
    torch.testing.assert_close(learner(episodes), longer(episodes))


def test_every_step_has_a_normalization_of_its_own(make_episodes):
    episodes = make_episodes()
    learner = build(**OFF | {"per_step_norm": True}).eval()
    assert {len(rows) for rows in learner.step_norms.values()} == {N_STEPS + 1}
    before = [loss_after(learner, episodes, n) for n in range(N_STEPS + 1)]
    with torch.no_grad():
        learner.step_norms["backbone/blocks/1/norm/bias"][2].add_(0.5)
    after = [loss_after(learner, episodes, n) for n in range(N_STEPS + 1)]
    # Step 2 is where two updates have been made: the third starts from there.
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False, False]


@pytest.mark.parametrize("step", [0, 60])
def test_the_gradient_of_all_parts_together_equals_finite_differences(step, make_episodes):
    learner, episodes = build(first_order_share=0.0), make_episodes()
    learner.begin_step(step, 100)
    gradients = gradient_of(learner, episodes)
    for seed in range(4):
        random = torch.Generator().manual_seed(seed)
        directions = {
            n: torch.randn(g.shape, generator=random).double() for n, g in gradients.items()
        }
        losses = []
        for sign in (1, -1):
            moved = copy.deepcopy(learner)
            with torch.no_grad():
                for name, direction in directions.items():
                    moved.get_parameter(name).add_(direction, alpha=sign * 1e-7)
            losses.append(moved.training_step(episodes).loss.item())
        expected = (losses[0] - losses[1]) / 2e-7
        got = sum(float((gradients[n] * d).sum()) for n, d in directions.items())
        assert got == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_bad_settings_are_refused():
    with pytest.raises(ArgumentError, match="multi_step_share"):
        build(multi_step_share=1.5)
