import math

import pytest
import torch

from adaptask.backbones import build_backbone
from adaptask.errors import ArgumentError
from adaptask.learners import ProtoNet
from adaptask.learners.protonet import squared_distances


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    return build_backbone("conv4", image_shape=(1, 16, 16), filters=6).double()


def looped(backbone, episodes):
    """Return minus the squared distances, one query and one class after the other."""
    n_tasks, n_way = episodes.class_ids.shape
    logits = []
    for t in range(n_tasks):
        support, query = (
            backbone(episodes.support_images[t]),
            backbone(episodes.query_images[t]),
        )
        for feature in query:
            for k in range(n_way):
                prototype = support[episodes.support_labels[t] == k].mean(0)
                logits.append(-sum((feature - prototype) ** 2))
    return torch.stack(logits).view(n_tasks, -1, n_way)


def test_logits_are_minus_the_squared_distances_from_the_prototypes(backbone, episodes):
    batch = episodes()
    learner = ProtoNet(backbone=backbone).eval()
    expected = looped(backbone, batch)
    torch.testing.assert_close(learner(batch), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("learn_temperature", [True, False])
def test_the_temperature_divides_and_so_does_the_dimension(backbone, episodes, learn_temperature):
    batch = episodes()
    plain = ProtoNet(backbone=backbone).eval()(batch)
    settings = {"temperature": 4.0, "learn_temperature": learn_temperature}
    cooled = ProtoNet(backbone=backbone, **settings).double().eval()(batch)
    torch.testing.assert_close(cooled, plain / 4, rtol=1e-6, atol=0)
    settings["scale_by_dimension"] = True
    scaled = ProtoNet(backbone=backbone, **settings).double().eval()(batch)
    torch.testing.assert_close(scaled, plain / 4 / 6, rtol=1e-6, atol=0)


def test_the_temperature_is_a_parameter_only_if_it_is_learnt(backbone):
    names = [dict(ProtoNet(backbone=backbone).named_parameters())]
    names.append(dict(ProtoNet(backbone=backbone, learn_temperature=True).named_parameters()))
    assert [("log_temperature" in n) for n in names] == [False, True]


@pytest.mark.parametrize("temperature", [0, -1, math.inf, "warm"])
def test_bad_temperatures_are_refused(backbone, temperature):
    with pytest.raises(ArgumentError, match="temperature must be a number between"):
        ProtoNet(backbone=backbone, temperature=temperature)


@pytest.mark.parametrize("offset", [0, 100, 10_000])
def test_distances_keep_their_digits_far_from_the_origin(offset):
    torch.manual_seed(0)
    points = torch.randn(2, 30, 64, dtype=torch.float64) + offset
    centers = torch.randn(2, 5, 64, dtype=torch.float64) + offset
    points, centers = points.float(), centers.float()
    exact = (points.double().unsqueeze(2) - centers.double().unsqueeze(1)).square().sum(-1)
    ours = squared_distances(points, centers)
    assert float(((ours - exact) / exact).abs().max()) < 3e-6
    if offset == 10_000:  # the plain formula does not
        products = points @ centers.transpose(1, 2)
        plain = (points**2).sum(-1)[..., None] - 2 * products + (centers**2).sum(-1)[:, None]
        assert float(((plain - exact) / exact).abs().max()) > 0.1


def test_distances_have_the_right_first_and_second_derivatives():
    torch.manual_seed(0)
    points = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    centers = torch.randn(1, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(squared_distances, (points, centers))
    assert torch.autograd.gradgradcheck(squared_distances, (points, centers))
