import pytest
import torch

from adaptask.backbones import build_backbone
from adaptask.errors import ArgumentError
from adaptask.learners import MetaBaseline


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    return build_backbone("conv4", image_shape=(1, 16, 16), filters=6).double()


def test_logits_are_scaled_cosines_with_the_class_means(backbone, episodes):
    batch = episodes()
    learner = MetaBaseline(backbone=backbone, scale=7.0).double().eval()
    expected = torch.empty(2, 12, 3, dtype=torch.float64)
    for t in range(2):
        support, query = backbone(batch.support_images[t]), backbone(batch.query_images[t])
        for k in range(3):
            mean = support[batch.support_labels[t] == k].mean(0)
            for q in range(12):
                cosine = (query[q] @ mean) / (query[q].norm() * mean.norm())
                expected[t, q, k] = 7 * cosine
    torch.testing.assert_close(learner(batch), expected, rtol=1e-6, atol=1e-9)


def test_the_scale_is_learned_as_it_is_unless_told_otherwise(backbone):
    learned, fixed = (MetaBaseline(backbone=backbone, learn_scale=flag) for flag in (True, False))
    assert float(dict(learned.named_parameters())["scale"].detach()) == 10
    assert "scale" not in dict(fixed.named_parameters())
    assert float(fixed.state_dict()["scale"]) == 10


@pytest.mark.parametrize("scale", [0, -1, "large"])
def test_bad_scales_are_refused(backbone, scale):
    with pytest.raises(ArgumentError, match="scale must be a number between"):
        MetaBaseline(backbone=backbone, scale=scale)
