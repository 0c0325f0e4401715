"""Networks that know nothing of tasks, as backbones."""

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from adaptask.backbones import Conv4, NetworkBackbone, build_backbone
from adaptask.conformance import check_learner
from adaptask.conformance.learners import LearnerSubject
from adaptask.errors import ArgumentError
from adaptask.learners import LEARNERS, build_learner

SHAPE = (2, 16, 16)


def small(width: int = 4, *, image_shape):
    """A convolution with all that makes trouble: batch normalization and dropout."""
    return nn.Sequential(
        nn.Conv2d(image_shape[0], width, 3, stride=2, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.1),
    )


def lazy():
    """Layers that find out their sizes themselves."""
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(6))


def lazy_vectors():
    """A layer that would also take the images of a task for one vector."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(6))


class Counting(nn.Module):
    """Counts its calls, and draws, in evaluation too; has an attribute of a name that is ours."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(512, 7)
        self.n_features = "the number of something else"
        self.register_buffer("n_calls", torch.zeros(()))

    def forward(self, images):
        assert images.ndim == 4
        self.n_calls += 1
        torch.rand(())
        return self.layer(images.flatten(1))


class Attention(nn.Module):
    """One layer of attention over rows of pixels."""

    def __init__(self, *, by_hand=False):
        super().__init__()
        self.layer, self.by_hand = nn.Linear(32, 24), by_hand

    def forward(self, images):
        rows = images.transpose(1, 2).flatten(2)
        query, key, value = self.layer(rows).chunk(3, dim=-1)
        if self.by_hand:
            return (torch.softmax(query @ key.mT / 8**0.5, -1) @ value).mean(1)
        query, key, value = (part.unsqueeze(1) for part in (query, key, value))
        return scaled_dot_product_attention(query, key, value).squeeze(1).mean(1)


def address(thing):
    return f"{__name__}:{thing.__name__}"


def given(name):
    """Return the sizes that a learner is built with."""
    parameters = inspect.signature(LEARNERS[name]).parameters
    return {size: n for size, n in (("n_way", 4), ("n_classes", 8)) if size in parameters}


def test_images_of_all_tasks_go_through_the_network_in_one_batch():
    backbone = build_backbone(address(small), image_shape=SHAPE, width=3).train()
    twin, images = copy.deepcopy(backbone.network), torch.randn(2, 5, *SHAPE)
    torch.manual_seed(0)
    features = backbone(images)
    torch.manual_seed(0)
    expected = twin(images.flatten(0, 1)).unflatten(0, (2, 5))
    assert torch.equal(features, expected)
    assert backbone.n_features == features.shape[-1] == 48
    assert torch.equal(backbone.eval()(images[0]), backbone.network(images[0]))
    with pytest.raises(ArgumentError, match=r"built for .*2 x 16 x 16"):
        backbone(images[..., :8])


def test_counting_the_features_leaves_network_and_random_stream_as_they_were():
    network = nn.Sequential(Counting(), nn.BatchNorm1d(7))
    network[1].eval()
    stream, state = torch.get_rng_state(), copy.deepcopy(network.state_dict())
    backbone = NetworkBackbone(network, image_shape=SHAPE)
    assert backbone.n_features == 7
    assert torch.equal(stream, torch.get_rng_state())
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    assert (network.training, network[0].training, network[1].training) == (True, True, False)


def test_the_stages_of_a_network_are_its_children_with_parameters():
    backbone = build_backbone(address(small), image_shape=SHAPE)
    assert backbone.blocks == (backbone.network[0], backbone.network[1])


def test_lazy_layers_draw_their_weights_once_from_the_stream():
    torch.manual_seed(0)
    backbone = build_backbone(address(lazy), image_shape=SHAPE)
    assert backbone.n_features == 6
    again = nn.Linear(784, 6)
    assert not torch.equal(again.weight, backbone.network[3].weight)
    torch.manual_seed(0)
    twin = build_backbone(address(lazy), image_shape=SHAPE)
    assert torch.equal(twin.network[3].weight, backbone.network[3].weight)
    assert build_backbone(address(lazy_vectors), image_shape=SHAPE).n_features == 6


def test_a_class_needs_neither_our_base_class_nor_the_shape_of_the_images():
    backbone = build_backbone(address(Counting), image_shape=SHAPE)
    assert isinstance(backbone, NetworkBackbone)
    assert backbone.n_features == 7


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda x: x, r"returned 2 x 2 x 16 x 16 of torch.float32. Pool and flatten"),
        (lambda x: x[0, 0], "returned 16 x 16 .* Return one vector per image"),
        (lambda x: x.flatten(2), r"returned 2 x 2 x 256 .* class token, output\[:, 0\]"),
        (lambda x: (x.flatten(1), x), "returned a tuple. Return the tensor of features alone"),
        (lambda x: {"features": x.flatten(1)}, "returned a dict"),
        (lambda x: x.flatten(1).long(), "torch.int64"),
        (lambda x: x.mean(), "Return one vector per image"),
        (lambda x: x @ torch.ones(3, 3), "cannot process images of 2 x 2 x 16 x 16.*RuntimeError"),
    ],
)
def test_what_does_not_return_vectors_is_refused(output, message):
    class Wrong(nn.Module):
        def forward(self, images):
            return output(images)

    with pytest.raises(ArgumentError, match=message):
        NetworkBackbone(Wrong(), image_shape=SHAPE)


def test_an_output_that_changes_in_training_is_refused_there():
    class Auxiliary(nn.Module):
        def forward(self, images):
            return (images, images) if self.training else images.flatten(1)

    backbone = NetworkBackbone(Auxiliary(), image_shape=SHAPE)
    with pytest.raises(ArgumentError, match=r"3 images to 3 x 512 .*returned a tuple"):
        backbone(torch.zeros(3, *SHAPE))


def test_a_network_must_be_a_module():
    with pytest.raises(ArgumentError, match=r"must be a torch\.nn\.Module; got 'resnet18'"):
        NetworkBackbone("resnet18", image_shape=SHAPE)


def not_a_module():
    return "resnet18"


def fails():
    raise OSError("no network")


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (not_a_module, "must return a torch.nn.Module; got 'resnet18'"),
        (fails, "cannot be built: OSError: no network"),
    ],
)
def test_what_does_not_build_a_network_is_refused(thing, message):
    with pytest.raises(ArgumentError, match=message):
        build_backbone(address(thing), image_shape=SHAPE)


def test_logits_of_imagenet_are_said_to_be_none():
    network = nn.Sequential(nn.Flatten(), nn.Linear(512, 1000))
    with pytest.warns(UserWarning, match=r"1000 numbers per image.*torch\.nn\.Identity"):
        NetworkBackbone(network, image_shape=SHAPE)


def test_the_state_is_that_of_the_network_itself():
    learner, other = (
        build_learner("protonet", backbone=build_backbone(address(small), image_shape=SHAPE))
        for _ in range(2)
    )
    plain = learner.backbone.network.state_dict()
    assert learner.backbone.state_dict().keys() == plain.keys()
    assert {f"backbone.{name}" for name in plain} < learner.state_dict().keys()
    other.backbone.load_state_dict(plain)
    for name, value in other.backbone.network.state_dict().items():
        assert torch.equal(value, plain[name])
    nn.init.zeros_(other.backbone.network[0].weight)
    other.load_state_dict(learner.state_dict())
    assert torch.equal(other.backbone.network[0].weight, plain["0.weight"])
    with pytest.raises(RuntimeError, match="Missing key"):
        other.backbone.load_state_dict({"0.weight": plain["0.weight"]})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        other.backbone.load_state_dict({**plain, "fc.weight": torch.zeros(())})


@pytest.mark.parametrize("name", ["maml", "anil", "relationnet"])
def test_a_learner_that_is_given_a_plain_network_says_what_to_do(name):
    with pytest.raises(ArgumentError, match=r"Linear has no .*NetworkBackbone"):
        build_learner(name, backbone=nn.Linear(3, 3), **given(name))


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_obeys_every_law(name):
    def build(seed):
        backbone = build_backbone(address(small), image_shape=SHAPE, width=8)
        more = {"evaluation_steps": 10} if name == "reptile" else {}
        return build_learner(name, backbone=backbone, **given(name), **more)

    tolerance = 0.05 if LEARNERS[name].supports_bfloat16 else 0.25
    check_learner(build, image_shape=SHAPE, bfloat16_tolerance=tolerance)


def plain_conv4(filters):
    """Conv-4 as anybody would write it."""
    layers = []
    for n_in in (SHAPE[0], filters, filters, filters):
        convolution = nn.Conv2d(n_in, filters, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(filters), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten())


@pytest.mark.parametrize("name", [name for name in LEARNERS if name != "relationnet"])
def test_a_network_trains_as_the_built_in_one_of_the_same_layers(name):
    """Batch normalization included, which learners with an inner loop treat specially."""
    learners = []
    for made in (Conv4(image_shape=SHAPE, filters=4), plain_conv4(4)):
        torch.manual_seed(1)
        backbone = NetworkBackbone(made, image_shape=SHAPE) if learners else made
        learners.append(build_learner(name, backbone=backbone, **given(name)).double())
    ours, theirs = learners
    with torch.no_grad():
        pairs = zip(theirs.parameters(), ours.parameters(), strict=True)
        for parameter, value in pairs:
            parameter.copy_(value)
    subject = LearnerSubject(lambda seed: None, image_shape=SHAPE)
    for seed in range(2):
        episodes = subject.episodes(seed, dtype=torch.float64)
        outcomes = [learner.train().training_step(episodes) for learner in learners]
        assert torch.allclose(outcomes[0].loss, outcomes[1].loss, atol=1e-12)
        for learner, outcome in zip(learners, outcomes, strict=True):
            learner.zero_grad()
            outcome.loss.backward()
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None)
            assert one.grad is None or torch.allclose(one.grad, other.grad, atol=1e-9)
    with torch.no_grad():
        logits = [learner.eval()(episodes) for learner in learners]
    assert torch.allclose(*logits, atol=1e-9)


@pytest.mark.parametrize("name", ["maml", "maml++"])
def test_attention_has_second_derivatives(name):
    """Torch's fast kernels have none."""
    gradients, subject = [], LearnerSubject(lambda seed: None, image_shape=SHAPE)
    for by_hand in (True, False):
        torch.manual_seed(0)
        backbone = NetworkBackbone(Attention(by_hand=by_hand), image_shape=SHAPE)
        learner = build_learner(name, backbone=backbone, n_way=4, inner_lr=0.5).double()
        learner.training_step(subject.episodes(0, dtype=torch.float64)).loss.backward()
        gradients.append(learner.backbone.network.layer.weight.grad)
    assert torch.allclose(*gradients, atol=1e-12)


def test_statistics_of_single_images_are_not_kept_by_what_adapts():
    network = nn.Sequential(nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten())
    backbone = NetworkBackbone(network, image_shape=SHAPE)
    learner = build_learner("maml", backbone=backbone, n_way=4)
    assert not list(learner.backbone.buffers())
