import math

import pytest
import torch

from adaptask.errors import ArgumentError, StateError
from adaptask.training.optimizer import (
    StepSchedule,
    build_optimizer,
    constant,
    cosine,
    load_optimizer,
)


def test_adam_moves_by_the_learning_rate_at_its_first_step():
    # With bias correction the first step of Adam is lr * g / (|g| + eps), whatever the gradient.
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    weight.grad = torch.tensor([0.3, -7.0])
    build_optimizer("adam", [weight], lr=0.1).step()
    torch.testing.assert_close(weight.detach(), torch.tensor([0.9, -1.9]))


def test_sgd_follows_nesterov_with_decay():
    # Two steps by hand: d = g + wd w; v <- m v + d; w <- w - lr (d + m v).
    weight = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    optimizer = build_optimizer("sgd", [weight], lr=0.1, weight_decay=0.5, momentum=0.9)
    w, velocity = 2.0, 0.0
    for gradient in (1.0, -3.0):
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        d = gradient + 0.5 * w
        velocity = 0.9 * velocity + d
        w -= 0.1 * (d + 0.9 * velocity)
    assert weight.item() == pytest.approx(w, abs=1e-12)


def test_sgd_without_momentum_is_plain():
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = build_optimizer("sgd", [weight], lr=0.5, momentum=0.0)
    weight.grad = torch.tensor([1.0])
    for _ in range(2):
        optimizer.step()
    assert weight.item() == 1.0


@pytest.mark.parametrize(
    "bad",
    [{"lr": 0}, {"lr": -1}, {"lr": math.nan}, {"weight_decay": -1}, {"momentum": 1.5}],
    ids=str,
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(ArgumentError, match=next(iter(bad))):
        build_optimizer("sgd", [torch.nn.Parameter(torch.ones(1))], **bad)


def test_an_unknown_optimizer_is_refused_with_the_choices():
    with pytest.raises(ArgumentError, match="adam, sgd"):
        build_optimizer("adamw", [torch.nn.Parameter(torch.ones(1))])


def test_cosine_falls_from_one_to_zero_through_a_half():
    assert cosine(0, 100) == 1
    assert cosine(50, 100) == pytest.approx(0.5)
    assert cosine(25, 100) == pytest.approx((1 + math.sqrt(0.5)) / 2)
    assert cosine(100, 100) == pytest.approx(0)
    assert cosine(150, 100) == pytest.approx(0)
    assert constant(7, 9) == 1


def test_the_step_schedule_is_metaoptnets():
    # 0.1, then 0.006, 0.0012 and 0.00024 from epochs 20, 40 and 50 on.
    schedule = StepSchedule((20, 40, 50), (0.06, 0.012, 0.0024))
    rates = [round(0.1 * schedule(epoch, 60), 8) for epoch in (0, 19, 20, 39, 40, 49, 50, 59)]
    assert rates == [0.1, 0.1, 0.006, 0.006, 0.0012, 0.0012, 0.00024, 0.00024]


@pytest.mark.parametrize(
    ("milestones", "factors"),
    [
        ((), ()),
        ((3,), ()),
        ((3, 2), (1.0, 1.0)),
        ((3, 3), (1.0, 1.0)),
        ((0,), (1.0,)),
        ((3,), (-1.0,)),
    ],
)
def test_a_step_schedule_that_makes_no_sense_is_refused(milestones, factors):
    with pytest.raises(ArgumentError):
        StepSchedule(milestones, factors)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda state: state["param_groups"][0].pop("eps"), "no eps"),
        (lambda state: state["param_groups"][0].update(weight_decay="x"), "no weight_decay"),
        (lambda state: state["state"][0].update(exp_avg=torch.zeros(1)), "exp_avg of the opt"),
    ],
)
def test_a_state_from_which_no_step_can_be_made_is_refused(damage, message):
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.grad = torch.ones(3)
    optimizer = build_optimizer("adam", [weight])
    optimizer.step()
    state = optimizer.state_dict()
    load_optimizer(optimizer, state)
    damage(state)
    with pytest.raises(StateError, match=message):
        load_optimizer(optimizer, state)
