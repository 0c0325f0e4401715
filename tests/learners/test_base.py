import copy
import inspect
from dataclasses import replace

import pytest
import torch

from adaptask.backbones import build_backbone
from adaptask.errors import ArgumentError
from adaptask.learners import LEARNERS, build_learner


@pytest.fixture
def backbone():
    return build_backbone("conv4", image_shape=(1, 16, 16), filters=4, n_pooled=2).double()


def test_support_and_queries_of_all_tasks_go_through_the_backbone_in_one_call(backbone, episodes):
    shapes = []
    backbone.register_forward_pre_hook(lambda module, inputs: shapes.append(inputs[0].shape))
    build_learner("protonet", backbone=backbone)(episodes(n_tasks=5))
    assert shapes == [(5, 3 * (2 + 4), 1, 16, 16)]


@pytest.mark.parametrize("name", ["protonet", "matchingnet", "relationnet"])
def test_shapes_that_do_not_belong_together_are_refused(name, backbone, episodes):
    learner = build_learner(name, backbone=backbone).double()
    good = episodes()
    learner(good)
    bad = [
        {"class_ids": good.class_ids[:1]},
        {"class_ids": good.class_ids[0]},
        {"support_images": good.support_images[:, :5]},
        {"support_images": good.support_images[:, :0]},
        {"query_images": good.query_images[:1]},
        {"query_images": good.query_images[0]},
    ]
    for part in bad:
        with pytest.raises(ArgumentError, match=r"Episodes need class_ids .*; got class_ids \("):
            learner(replace(good, **part))
    wide = torch.zeros(2, 12, 1, 20, 16, dtype=torch.float64)
    narrow = torch.zeros(2, 6, 1, 20, 16, dtype=torch.float64)
    with pytest.raises(ArgumentError, match="image_shape"):
        learner(replace(good, query_images=wide, support_images=narrow))


def test_support_and_queries_must_be_of_one_size(backbone, episodes):
    batch = episodes()
    wide = torch.zeros(2, 12, 1, 20, 16, dtype=torch.float64)
    with pytest.raises(ArgumentError, match="Episodes need"):
        build_learner("protonet", backbone=backbone)(replace(batch, query_images=wide))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("prototype", {}, "no learner 'prototype'; did you mean 'protonet'"),
        ("protonet", {"scale": 2}, "The learner 'protonet' takes no scale; it takes backbone, tem"),
        ("protonet", {"backbone": None}, r"backbone must be a torch\.nn\.Module.*got None"),
    ],
)
def test_what_cannot_be_built_is_refused(name, settings, message, backbone):
    with pytest.raises(ArgumentError, match=message):
        build_learner(name, **{"backbone": backbone, **settings})


def test_the_loss_keeps_double_precision_and_widens_half(backbone, episodes):
    learner, batch = build_learner("protonet", backbone=backbone), episodes()
    logits = torch.randn(2, 12, 3, dtype=torch.float64)
    expected = -logits.log_softmax(-1).gather(-1, batch.query_labels.unsqueeze(-1)).mean()
    torch.testing.assert_close(learner.loss(logits, batch.query_labels), expected)
    assert learner.loss(logits.bfloat16(), batch.query_labels).dtype == torch.float32


@pytest.mark.parametrize("name", ["protonet", "matchingnet"])
def test_in_mixed_precision_features_are_compared_in_single(name, episodes):
    """The logits are those that the features, rounded as they are, have in float64."""
    backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=16, n_pooled=2)
    learner, batch = build_learner(name, backbone=backbone).eval(), episodes()
    single = replace(
        batch, support_images=batch.support_images.float(), query_images=batch.query_images.float()
    )
    seen = []
    backbone.register_forward_hook(lambda module, inputs, features: seen.append(features))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = learner(single)
    assert (seen[0].dtype, logits.dtype) == (torch.bfloat16, torch.float32)
    features = seen[0].double()
    expected = learner.classify(features[:, :6].unflatten(1, (3, 2)), features[:, 6:])
    torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "settings", "missing"),
    [
        ("protonet", {"scale_by_dimension": True}, "n_features"),
        ("matchingnet", {"full_context": True}, "n_features"),
        ("relationnet", {}, "feature_shape, feature_maps"),
        ("anil", {"n_way": 3}, "n_features"),
        ("maml", {"n_way": 3}, "n_features, image_shape"),
        ("reptile", {"n_way": 3}, "n_features, image_shape"),
    ],
)
def test_a_backbone_that_lacks_what_a_learner_reads_of_it_is_refused(name, settings, missing):
    with pytest.raises(ArgumentError, match=f"Flatten has no {missing}"):
        build_learner(name, backbone=torch.nn.Flatten(), **settings)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_describes_itself(name):
    kind = LEARNERS[name]
    assert 10 < len(kind.description) < 100
    assert kind.has_fixed_way == ("n_way" in inspect.signature(kind).parameters)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("protonet", {}, False),
        ("maml", {}, False),
        ("maml++", {}, True),
        ("maml++", {"multi_step_loss": False}, True),
        ("maml++", {"multi_step_loss": False, "anneal_order": False}, False),
        ("reptile", {}, True),
        ("reptile", {"anneal": False}, False),
    ],
)
def test_what_is_annealed_depends_on_the_number_of_steps(name, settings, expected, backbone):
    if LEARNERS[name].has_fixed_way:
        settings = {"n_way": 3, **settings}
    learner = build_learner(name, backbone=backbone, **settings)
    assert learner.depends_on_total_steps is expected


def test_a_backbone_that_returns_other_shapes_is_named(episodes):
    class Mixed(torch.nn.Module):
        def forward(self, images):
            return images.flatten(0, 1).flatten(1)

    learner = build_learner("protonet", backbone=Mixed())
    with pytest.raises(ArgumentError, match=r"map 2 x 18 x 1 x 16 x 16 .* Mixed returned 36 x 256"):
        learner(episodes())


def test_an_error_of_a_network_that_takes_images_says_how_to_make_it_a_backbone(episodes):
    learner = build_learner("protonet", backbone=torch.nn.Conv2d(1, 4, 3).double())
    with pytest.raises(RuntimeError, match="input to conv2d") as raised:
        learner(episodes())
    (note,) = raised.value.__notes__
    assert "Conv2d was given 2 x 18 x 1 x 16 x 16 (tasks x images" in note
    assert "NetworkBackbone(network, image_shape=...)" in note


def test_frozen_parts_stay_in_evaluation_in_copies_too():
    backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=4)
    learner = build_learner("protonet", backbone=backbone)
    learner.freeze(*backbone.blocks[:2])
    for found in (learner, copy.deepcopy(learner)):
        for mode in (True, False, True):
            blocks = found.train(mode).backbone.blocks
            assert [block.norm.training for block in blocks] == [False, False, mode, mode]
            assert [block.training for block in blocks] == [False, False, mode, mode]
        assert [p.requires_grad for p in blocks.parameters()] == [False] * 6 + [True] * 6
        assert found.training
    assert "frozen" not in "".join(learner.state_dict())
