"""`adaptask data extract`: what a trained backbone computes of every image, as a dataset."""

import shutil
from dataclasses import replace

import pytest
import torch

from adaptask import (
    EpisodeSource,
    Evaluator,
    build_backbone,
    build_learner,
    load_run,
    open_episodes,
)
from adaptask.cli import main
from adaptask.data import load, load_statistics
from adaptask.data.cache import cache_root, write_cache
from adaptask.data.datasets import DATASETS, dataset_folder, splits_of
from adaptask.data.images import resize_images
from adaptask.errors import ArgumentError

TASKS = {"n_way": 3, "n_shot": 2, "n_query": 4, "n_episodes": 20, "seed": 5}


@pytest.fixture
def own_cache(tiny, tiny_cache, tmp_path, monkeypatch):
    """A cache of its own, in which new datasets may be made."""
    shutil.copytree(tiny_cache, tmp_path / "cache")
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def run(tiny_run, own_cache, tmp_path):
    assert main([*tiny_run, "--output", str(tmp_path / "run"), "--quiet"]) == 0
    return tmp_path / "run"


def extract(run, name, **options):
    from adaptask.experiments.extract_command import extract_features

    return extract_features(run, name, **options)


def assert_same_answers(learner, images, features):
    """Assert that nearest means of the features answer as the learner does on the images."""
    of_images = EpisodeSource(images, normalization=load_statistics("tiny"))
    of_features = EpisodeSource(features, normalization=None)
    as_they_are = build_backbone("identity", image_shape=features.image_shape)
    nearest = build_learner("protonet", backbone=as_they_are).eval()
    ours = Evaluator(of_features, **TASKS)(nearest).accuracies
    theirs = Evaluator(of_images, **TASKS)(learner.eval()).accuracies
    # But for a query in the middle between two classes, where rounding decides.
    assert (ours != theirs).float().mean() <= 0.1
    assert ours.mean() > 0.4
    torch.testing.assert_close(ours.mean(), theirs.mean(), rtol=0, atol=0.01)


def test_tasks_of_the_features_are_answered_as_the_run_answers_those_of_the_images(run, capsys):
    assert main(["data", "extract", str(run), "--name", "seen"]) == 0
    said = capsys.readouterr().out
    assert "seen prepared in" in said
    assert "from: tiny as run sees it, features of size 4" in said
    for split in ("train", "val", "test"):
        images, features = load("tiny", split), load("seen", split)
        assert features.class_names == images.class_names
        assert torch.equal(features.class_starts, images.class_starts)
        assert_same_answers(load_run(run).learner, images, features)


def test_the_features_can_be_trained_on(run, tmp_path, capsys):
    assert main(["data", "extract", str(run), "--name", "seen"]) == 0
    again = ["train", "--dataset", "seen", "--backbone", "linear", "--n-way", "3", "--steps", "3"]
    again += ["--n-query", "4", "--evaluation.n-episodes", "4", "--evaluation.n-validation", "4"]
    assert main([*again, "--device", "cpu", "--output", str(tmp_path / "again"), "--quiet"]) == 0
    assert load_run(tmp_path / "again").test_accuracies is not None
    capsys.readouterr()
    assert main(["data", "extract", str(tmp_path / "again"), "--name", "twice"]) == 1
    assert "trained on features" in capsys.readouterr().err


def test_groups_and_variants_stay(run, monkeypatch):
    def load_grouped(name, split):
        found = load(name, split)
        names = tuple(f"{split}-{i // 4}/rot{90 * (i % 4):03}" for i in range(found.n_classes))
        groups = tuple(("a/x", "b")[i // 4 % 2] for i in range(found.n_classes))
        return replace(found, class_names=names, groups=groups, variant_of=None)

    monkeypatch.setattr("adaptask.experiments.extract_command.load", load_grouped)
    extract(run, "seen")
    for split in splits_of("tiny"):
        images, features = load_grouped("tiny", split), load("seen", split)
        assert [group.replace("-", "/") for group in features.groups] == list(images.groups)
        assert torch.equal(features.variant_of, images.variant_of)
        assert features.class_names[0] == f"a-x/{split}-0/rot000"


def test_another_dataset_is_brought_to_the_shape_the_run_knows(run, own_cache):
    splits = {}
    for split in splits_of("tiny"):
        found = load("tiny", split)
        larger = found.images.repeat_interleave(2, 2).repeat_interleave(2, 3).expand(-1, 3, -1, -1)
        splits[split] = replace(found, dataset="larger", images=larger)
    write_cache(own_cache / "larger", splits, source="the test")
    extract(run, "other", dataset="larger")
    resized = resize_images(load("larger", "test"), load("tiny", "test").image_shape)
    assert_same_answers(load_run(run).learner, resized, load("other", "test"))


def test_images_are_counted_and_an_interruption_leaves_nothing(run, own_cache):
    said = []
    extract(run, "seen", progress=lambda done, total: said.append((done, total)))
    total = sum(len(load("tiny", split).images) for split in splits_of("tiny"))
    assert said[-1] == (total, total)
    assert sorted(said) == said

    def interrupt(done, total):
        raise KeyboardInterrupt

    before = sorted(own_cache.iterdir())
    with pytest.raises(KeyboardInterrupt):
        extract(run, "again", progress=interrupt)
    assert sorted(own_cache.iterdir()) == before


def test_the_dataset_of_the_run_is_not_replaced_by_features_of_another(run):
    with pytest.raises(ArgumentError, match="need a name of their own; got 'tiny'"):
        extract(run, "tiny", dataset="glyphs")


def test_of_an_ensemble_the_best_member_is_used(run, tiny_run, tmp_path):
    flags = ["--evaluation.keep-best", "2", "--output", str(tmp_path / "several"), "--quiet"]
    assert main([*tiny_run, *flags]) == 0
    assert len(load_run(tmp_path / "several").learner.members) == 2
    extract(run, "one")
    extract(tmp_path / "several", "best")
    assert torch.equal(load("one", "test").images, load("best", "test").images)


@pytest.mark.parametrize(
    "flags", [["--learner", "maml"], ["--learner", "maml++"], ["--backbone.norm", "task"]], ids=str
)
def test_a_backbone_that_mixes_images_is_refused(tiny_run, own_cache, tmp_path, flags):
    folder = tmp_path / "mixing"
    assert main([*tiny_run, *flags, "--output", str(folder), "--quiet"]) == 0
    with pytest.raises(ArgumentError, match="an image has no features of its own"):
        extract(folder, "seen")
    assert not (own_cache / "seen").exists()


def test_feature_maps_and_smaller_images_are_as_in_the_run(tiny_run, own_cache, tmp_path):
    folder = tmp_path / "maps"
    flags = ["--learner", "relationnet", "--data.shrink", "2", "--backbone.n-pooled", "1"]
    assert main([*tiny_run, *flags, "--output", str(folder), "--quiet"]) == 0
    extract(folder, "seen")
    learner = load_run(folder).learner.eval()
    source = open_episodes("tiny", "test", shrink=2)
    of_images = source.draw(torch.tensor([[3, 1]]), n_shot=1, n_query=1).support_images
    features = load("seen", "test").images.flatten(1)
    with torch.no_grad():
        maps = learner.embed(of_images)[0].flatten(1)
    assert features.shape[1] == 4 * 4 * 4
    nearest = (maps[:, None] - features).norm(dim=-1).min(1).values
    assert nearest.max() < 1e-4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("omniglot", "belongs to a dataset of the package"),
        ("Seen", "lower-case letters"),
        ("tiny", "need a name of their own"),
    ],
)
def test_names_that_are_taken_are_refused_before_anything_is_computed(run, name, message):
    assert "omniglot" in DATASETS
    with pytest.raises(ArgumentError, match=message):
        extract(run, name)


def test_weights_that_are_not_finite_leave_what_was_there(run, monkeypatch):
    extract(run, "seen")
    before = load("seen", "test").images.clone()
    from adaptask.backbones.conv4 import Conv4

    whole = Conv4.forward
    monkeypatch.setattr(Conv4, "forward", lambda self, x: whole(self, x) * float("nan"))
    assert main(["data", "extract", str(run), "--name", "seen"]) == 1
    assert torch.equal(load("seen", "test").images, before)
    assert dataset_folder("seen").is_dir()
    assert not list(cache_root().glob("*extracted*"))
