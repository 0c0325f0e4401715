import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from adaptask.backbones import build_backbone
from adaptask.errors import ArgumentError
from adaptask.interfaces import gives_task_losses
from adaptask.learners import Classifier, MetaBaseline


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    return build_backbone("conv4", image_shape=(1, 16, 16), filters=6).double()


def plain_batch(episodes):
    """Return images and dataset-wide classes of a step, one after the other."""
    images, classes = [], []
    for t in range(len(episodes.class_ids)):
        parts = (
            (episodes.support_images[t], episodes.support_labels[t]),
            (episodes.query_images[t], episodes.query_labels[t]),
        )
        for part, labels in parts:
            for image, label in zip(part, labels, strict=True):
                images.append(image)
                classes.append(int(episodes.class_ids[t, label]))
    return torch.stack(images), torch.tensor(classes)


def gradients(module):
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("rotation", [0.0, 0.5])
def test_loss_and_gradients_are_those_of_a_plain_classifier(backbone, episodes, rotation):
    batch = episodes()
    learner = Classifier(backbone=backbone, n_classes=20, rotation=rotation).double().train()
    twin, heads = copy.deepcopy(backbone), copy.deepcopy([learner.head, learner.rotation_head])
    outcome = learner.training_step(batch)
    outcome.loss.backward()

    images, classes = plain_batch(batch)
    # The statistics of batch normalization are over all images of a step, in any order.
    turned = [torch.rot90(images, k, (2, 3)) for k in range(4)] if rotation else [images]
    features = twin(torch.cat(turned))
    logits = heads[0](features[: len(images)])
    expected = cross_entropy(logits, classes)
    if rotation:
        quarters = torch.tensor([0, 1, 2, 3]).repeat_interleave(len(images))
        expected = expected + rotation * cross_entropy(heads[1](features), quarters)
    expected.backward()
    torch.testing.assert_close(outcome.loss, expected, rtol=1e-12, atol=0)
    theirs = [*gradients(twin), *(g for head in heads if head for g in gradients(head))]
    for ours, other in zip(gradients(learner), theirs, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-7, atol=1e-12)
    for name, buffer in learner.backbone.named_buffers():
        torch.testing.assert_close(buffer, dict(twin.named_buffers())[name])
    # Queries come after the 6 support images of their task, 18 images each.
    for t in range(2):
        own = logits[18 * t + 6 : 18 * (t + 1), batch.class_ids[t]].detach()
        torch.testing.assert_close(outcome.query_logits[t], own)


def test_smoothing_is_over_all_training_classes(backbone, episodes):
    batch = episodes()
    learner = Classifier(backbone=backbone, n_classes=20, label_smoothing=0.1).double().eval()
    images, classes = plain_batch(batch)
    logs = learner.head(backbone(images)).log_softmax(-1)
    target = torch.full((len(images), 20), 0.1 / 19, dtype=torch.float64)
    target[range(len(images)), classes] = 0.9
    expected = -(target * logs).sum(-1).mean()
    torch.testing.assert_close(learner.training_step(batch).loss, expected)


def test_new_classes_are_told_apart_by_the_cosines_with_their_means(backbone, episodes):
    batch = episodes()
    learner = Classifier(backbone=backbone, n_classes=20).double().eval()
    other = MetaBaseline(backbone=backbone).double().eval()
    torch.testing.assert_close(learner(batch), other(batch))


def test_its_loss_is_of_a_batch_and_not_of_tasks():
    assert not gives_task_losses(Classifier)


def test_only_square_images_are_turned():
    wide = build_backbone("conv4", image_shape=(1, 16, 32), filters=4)
    Classifier(backbone=wide, n_classes=4)
    with pytest.raises(ArgumentError, match="must be square; these are 16 x 32"):
        Classifier(backbone=wide, n_classes=4, rotation=1.0)
    vectors = build_backbone("linear", image_shape=(8, 1, 1))
    with pytest.raises(ArgumentError, match="these are 1 x 1"):
        Classifier(backbone=vectors, n_classes=4, rotation=1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_classes": 1}, "n_classes must be"),
        ({"n_classes": 4, "rotation": -1}, "rotation must be"),
        ({"n_classes": 4, "label_smoothing": 1}, "label_smoothing must be"),
    ],
)
def test_bad_arguments_are_refused(backbone, settings, message):
    with pytest.raises(ArgumentError, match=message):
        Classifier(backbone=backbone, **settings)


def test_a_backbone_that_does_not_tell_its_features_is_refused():
    with pytest.raises(ArgumentError, match="n_features"):
        Classifier(backbone=nn.Flatten(), n_classes=4)
