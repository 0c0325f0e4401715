"""What `update` does with class features: checks, refuses, passes on, or ignores them."""

import pytest
import torch

from adaptask.errors import ArgumentError
from adaptask.samplers import SAMPLERS, build_sampler

N_FEATURES = 6
TASK_SAMPLERS = [name for name in SAMPLERS if SAMPLERS[name].draws == "tasks"]
BLIND = [name for name in TASK_SAMPLERS if not SAMPLERS[name].uses_class_features]


@pytest.fixture
def sampler(crowded_sampler):
    return crowded_sampler(n_classes=9, n_way=3, n_features=N_FEATURES)


def features(n_tasks, n_way=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n_tasks, n_way, N_FEATURES, generator=generator)


@pytest.mark.parametrize("on_a_device", [False, True])
def test_features_reach_the_class_they_belong_to(tools, request, sampler, on_a_device):
    if on_a_device:
        request.getfixturevalue("as_on_a_device")
    feedback, given = tools.feedback(4, 3, 9), features(4)
    sampler.update(*feedback, class_features=given)
    expected = torch.zeros(9, N_FEATURES)
    for row, vectors in zip(feedback[0].tolist(), given, strict=True):
        for class_id, vector in zip(row, vectors, strict=True):
            expected[class_id] += vector
    torch.testing.assert_close(sampler.sums, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_floating_type_is_taken_and_no_gradient_kept(tools, sampler, dtype):
    given = features(2).to(dtype).requires_grad_()
    sampler.update(*tools.feedback(2, 3, 9), class_features=given)
    assert sampler.sums.dtype == torch.float32
    assert not sampler.sums.requires_grad
    total = given.detach().float().sum((0, 1))
    torch.testing.assert_close(sampler.sums.sum(0), total)


def test_a_sampler_that_uses_features_demands_them(tools, sampler):
    with pytest.raises(ArgumentError, match=r"CrowdedSampler learns from class features: give"):
        sampler.update(*tools.feedback(2, 3, 9))
    assert not sampler.counts.any()


@pytest.mark.parametrize("name", BLIND)
def test_a_sampler_that_uses_none_ignores_them(tools, name, same):
    plain, given = (build_sampler(name, n_classes=9, n_way=3) for _ in range(2))
    plain.update(*tools.feedback(4, 3, 9))
    given.update(*tools.feedback(4, 3, 9), class_features=features(4) * torch.nan)
    assert same(plain.state_dict(), given.state_dict())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (features(3), "shape 2 x 3 x 6"),
        (features(2, n_way=4), "shape 2 x 3 x 6"),
        (features(2)[..., 1:], "shape 2 x 3 x 6"),
        (features(2)[0], "shape 2 x 3 x 6"),
        (features(2).long(), "floating-point"),
        (features(2).tolist(), "must be a tensor"),
        (features(2, 3).to("meta"), "sampler's device"),
    ],
)
def test_features_of_another_form_are_refused(tools, sampler, wrong, message):
    with pytest.raises(ArgumentError, match=f"class_features must .*{message}|{message}"):
        sampler.update(*tools.feedback(2, 3, 9), class_features=wrong)
    assert not sampler.counts.any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_on_the_cpu_a_feature_that_is_not_finite_raises_and_nothing_is_applied(
    tools, sampler, value
):
    given = features(4)
    given[2, 1, 3] = value
    with pytest.raises(ArgumentError, match=r"class_features must be finite; entry 2 .*\(1 of 4"):
        sampler.update(*tools.feedback(4, 3, 9), class_features=given)
    assert not sampler.counts.any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_on_a_device_the_task_is_left_out_and_counted(
    tools, crowded_sampler, sampler, as_on_a_device, value
):
    class_ids, probabilities, labels = tools.feedback(6, 3, 9)
    given, good = features(6), [0, 1, 3, 5]
    expected = crowded_sampler(n_classes=9, n_way=3, n_features=N_FEATURES)
    feedback = (class_ids[good], probabilities[good], labels[good])
    expected.update(*feedback, class_features=given[good])
    given[2, 1, 3] = value
    probabilities[4, 0, 0] = torch.nan
    sampler.update(class_ids, probabilities, labels, class_features=given)
    torch.testing.assert_close(sampler.sums, expected.sums)
    assert torch.equal(sampler.counts, expected.counts)
    with pytest.raises(
        ArgumentError, match=r"^2 entries .*1 times: probabil.*1 times: class_features must be fin"
    ):
        sampler.check()
    sampler.check()  # reported once
