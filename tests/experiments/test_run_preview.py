"""The preview of a run: images, similarity of classes, tasks."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from adaptask.backbones import build_backbone
from adaptask.data import EpisodeSource, open_episodes
from adaptask.data.images import ImageSet
from adaptask.experiments.run_preview import N_TASKS, prototype_similarity, save_preview
from adaptask.learners import LEARNERS, build_learner
from adaptask.report.run import Run
from adaptask.samplers import build_sampler


@pytest.fixture
def source(tiny):
    return open_episodes(tiny, "train", seed=1)


def learner(source, name="protonet"):
    torch.manual_seed(0)
    options = {} if name in ("protonet", "matchingnet", "relationnet") else {"n_way": 3}
    options = options if name in ("maml", "maml++", "anil", "reptile") else {}
    options = {"n_classes": source.image_set.n_classes} if name == "classifier" else options
    pooled = {"n_pooled": 2} if name == "relationnet" else {}
    backbone = build_backbone(
        "conv4", image_shape=source.image_set.image_shape, filters=16, **pooled
    )
    return build_learner(name, backbone=backbone, **options)


def test_it_holds_what_was_there(source, tmp_path):
    sampler = build_sampler("gcp", n_classes=12, n_way=3, seed=0)
    save_preview(tmp_path, learner(source), sampler, source)
    preview = Run(tmp_path).preview
    assert preview.class_names == source.image_set.class_names
    assert preview.images.shape == (12, 4, 16, 16, 1)
    for c, start in enumerate(source.image_set.class_starts[:-1]):
        for i in range(4):
            truth = source.image_set.images[start + i].permute(1, 2, 0).numpy()
            np.testing.assert_array_equal(preview.images[c, i], truth)
    assert preview.tasks.shape == (N_TASKS, 3)
    assert all(len(set(task)) == 3 for task in preview.tasks.tolist())
    assert preview.similarity.shape == (12, 12)


def test_similarity_is_the_cosine_of_the_mean_features(source):
    model = learner(source).eval()
    images, starts = source.image_set.images.float() / 255, source.image_set.class_starts
    plan = source.plan(n_episodes=8, n_way=12, n_shot=1, n_query=1, seed=0)
    scale, shift = source._scale, source._shift
    means = []
    for c in range(12):
        chosen = [
            int(i)
            for row, ids in zip(plan.class_ids, plan.image_ids, strict=True)
            for i in ids[row.tolist().index(c)]
        ]
        assert all(starts[c] <= i < starts[c + 1] for i in chosen)
        batch = images[chosen] * scale + shift
        means.append(model.backbone(batch.unsqueeze(0))[0].detach().double().mean(0))
    found = prototype_similarity(model, source)
    for i in range(12):
        for j in range(12):
            truth = float(cosine_similarity(means[i], means[j], dim=0))
            assert float(found[i, j]) == pytest.approx(truth, abs=1e-5)


def test_more_classes_than_a_map_shows_are_not_embedded(tmp_path, source, monkeypatch):
    monkeypatch.setattr("adaptask.experiments.run_preview._MOST_EMBEDDED_CLASSES", 11)
    model = learner(source)
    save_preview(tmp_path, model, build_sampler("gcp", n_classes=12, n_way=5), source)
    preview = Run(tmp_path).preview
    assert preview.similarity.shape == (0, 0)
    assert len(preview.images) == 12


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_has_one_and_is_not_disturbed(source, tmp_path, name):
    model, sampler = learner(source, name).train(), build_sampler("gcp", n_classes=12, n_way=3)
    before = copy.deepcopy((model.state_dict(), sampler.state_dict(), source.state_dict()))
    save_preview(tmp_path, model, sampler, source)
    similarity = Run(tmp_path).preview.similarity
    np.testing.assert_allclose(similarity.diagonal(), 1, atol=1e-5)
    assert len(np.unique(similarity.round(5))) > 12  # classes are told apart
    after = (model.state_dict(), sampler.state_dict(), source.state_dict())
    for old, new in zip(before, after, strict=True):
        assert all(
            torch.equal(torch.as_tensor(old[k]), torch.as_tensor(new[k]))
            for k in old
            if isinstance(old[k], torch.Tensor)
        )
    assert model.backbone.training


def test_large_images_of_many_classes_are_kept_small(tmp_path):
    n_classes = 130
    images = torch.zeros(n_classes * 3, 3, 96, 64, dtype=torch.uint8)
    images[:, 0] = 200
    image_set = ImageSet(
        dataset="large",
        split="train",
        images=images,
        class_names=tuple(str(i) for i in range(n_classes)),
        class_starts=torch.arange(n_classes + 1) * 3,
    )
    source = EpisodeSource(image_set)
    sampler = build_sampler("uniform", n_classes=n_classes, n_way=5)
    save_preview(tmp_path, learner(source), sampler, source)
    preview = Run(tmp_path).preview
    assert preview.images.shape == (n_classes, 2, 40, 27, 3)
    assert (preview.images == [200, 0, 0]).all()
