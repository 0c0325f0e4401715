import pytest
import torch
from torch.nn.functional import cross_entropy

from adaptask.backbones import build_backbone
from adaptask.errors import ArgumentError
from adaptask.learners import RelationNet


def build(*, side=16, filters=4, n_pooled=2, **settings):
    torch.manual_seed(0)
    backbone = build_backbone(
        "conv4", image_shape=(1, side, side), filters=filters, n_pooled=n_pooled
    )
    return RelationNet(backbone=backbone, **settings)


@pytest.mark.parametrize("side", [16, 44])
@pytest.mark.parametrize("shots", ["sum", "mean"])
def test_scores_are_those_of_the_concatenated_maps(episodes, random_norms, shots, side):
    learner = random_norms(build(side=side, shots=shots).double()).eval()
    module = learner.relation
    batch = episodes(image_shape=(1, side, side))
    scores = learner(batch).exp()
    for t, labels in enumerate(batch.support_labels):
        support = learner.backbone.feature_maps(batch.support_images[t])
        for q, query in enumerate(learner.backbone.feature_maps(batch.query_images[t])):
            for k in range(3):
                of_class = support[labels == k].sum(0)
                if shots == "mean":
                    of_class = of_class / 2
                pair = torch.cat((of_class, query)).unsqueeze(0)
                maps = module.second(module.first(pair))
                relation = module.output(module.hidden(maps.flatten(1)).clamp(min=0))
                expected = relation.sigmoid().squeeze()
                torch.testing.assert_close(scores[t, q, k], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("side", "n_hidden_inputs"),
    # 64 and 576 stand in Sung et al. for 28 and 84 pixels; 32 pixels they did not have.
    [(28, 64), (32, 256), (84, 576)],
)
def test_the_published_sizes(side, n_hidden_inputs):
    module = build(side=side, filters=64).relation
    assert module.hidden.in_features == n_hidden_inputs
    assert module.hidden.out_features == 8
    convolutions = 9 * 128 * 64 + 9 * 64 * 64  # their biases have no effect before a norm
    norms = 2 * 2 * 64
    layers = 8 * n_hidden_inputs + 8 + 8 + 1
    assert sum(p.numel() for p in module.parameters()) == convolutions + norms + layers


def test_the_published_loss_is_the_mean_squared_error_of_the_scores(episodes):
    learner, batch = build().double(), episodes()
    outcome = learner.training_step(batch)
    scores = outcome.query_logits.exp()
    total = 0.0
    for row, label in zip(scores.flatten(0, 1), batch.query_labels.flatten(), strict=True):
        total += sum((float(s) - (k == int(label))) ** 2 for k, s in enumerate(row))
    assert float(outcome.loss.detach()) == pytest.approx(total / scores.numel(), rel=1e-9)
    shares = scores / scores.sum(-1, keepdim=True)
    torch.testing.assert_close(outcome.query_logits.softmax(-1), shares)


def test_cross_entropy_takes_the_relations_as_logits(episodes, random_norms):
    published, other = build().double(), build(loss="cross-entropy").double()
    random_norms(published).eval()
    other.load_state_dict(published.state_dict())
    other.eval()
    batch = episodes()
    torch.testing.assert_close(other(batch).sigmoid(), published(batch).exp())
    outcome = other.training_step(batch)
    expected = cross_entropy(other(batch).flatten(0, 1), batch.query_labels.flatten())
    torch.testing.assert_close(outcome.loss, expected)


def test_maps_that_are_too_small_are_refused():
    with pytest.raises(ArgumentError, match=r"at least 4 x 4; got 2 x 2.*n_pooled=2"):
        build(side=32, n_pooled=4)


@pytest.mark.parametrize(
    "settings", [{"loss": "hinge"}, {"shots": "max"}, {"hidden": 0}, {"norm": "group"}]
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(ArgumentError):
        build(**settings)
