"""From a name to episodes: the whole way from the cache to normalized images."""

import pytest
import torch

import adaptask.data
from adaptask.data import EpisodeSource, open_episodes
from adaptask.data.cache import write_cache
from adaptask.data.datasets import DATASETS, default_augmentation
from adaptask.data.images import ImageSet
from adaptask.errors import ArgumentError, DataError


@pytest.fixture
def birds(cache_home):
    """A prepared dataset of the user's own, three classes a split."""
    generator = torch.Generator().manual_seed(0)
    splits = {
        split: ImageSet(
            dataset="birds",
            split=split,
            images=torch.randint(256, (30, 3, 8, 8), generator=generator, dtype=torch.uint8),
            class_names=("emu", "owl", "tit"),
            class_starts=torch.tensor([0, 10, 20, 30]),
        )
        for split in ("train", "val", "test")
    }
    write_cache(cache_home / "birds", splits, source="a test")
    return splits


def test_images_are_normalized_with_the_statistics_of_the_training_split(birds):
    source = open_episodes("birds", "train", augmentation="none")
    assert isinstance(source, EpisodeSource)
    episodes = source.draw(torch.tensor([[0, 1, 2]]), n_shot=4, n_query=6)
    drawn = torch.cat((episodes.support_images, episodes.query_images), dim=1)
    # All 30 images are drawn, so their mean and deviation are those of the split.
    torch.testing.assert_close(drawn.mean((0, 1, 3, 4)), torch.zeros(3), atol=1e-4, rtol=0)
    deviation = drawn.transpose(0, 2).flatten(1).std(1, correction=0)
    torch.testing.assert_close(deviation, torch.ones(3), atol=1e-4, rtol=0)
    pixels = birds["val"].images.float() / 255
    train = birds["train"].images.float() / 255
    mean, std = train.mean((0, 2, 3)), train.transpose(0, 1).flatten(1).std(1, correction=0)
    expected = (pixels - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    val = open_episodes("birds", "val").draw(torch.tensor([[0, 1, 2]]), n_shot=5, n_query=5)
    got = torch.cat((val.support_images, val.query_images), dim=1)[0]
    assert torch.allclose(got.sum((0, 2, 3)), expected.sum((0, 2, 3)), atol=1e-2)


def test_a_constant_channel_is_only_shifted(cache_home):
    images = torch.randint(256, (30, 3, 8, 8), dtype=torch.uint8)
    images[:, 1] = 51
    splits = {
        split: ImageSet("flat", split, images, ("a", "b", "c"), torch.tensor([0, 10, 20, 30]))
        for split in ("train", "val", "test")
    }
    write_cache(cache_home / "flat", splits, source="a test")
    source = open_episodes("flat", "train", augmentation="none")
    drawn = source.draw(torch.tensor([[0, 1, 2]]), n_shot=1, n_query=1).query_images
    assert drawn[:, :, 1].abs().max() < 1e-6
    assert drawn[:, :, 0].std() > 0.5


def test_only_training_images_are_augmented_by_default(birds):
    class_ids = torch.tensor([[0, 1]])
    for split, same in (("train", False), ("val", True), ("test", True)):
        plain = open_episodes("birds", split, seed=3, augmentation="none")
        default = open_episodes("birds", split, seed=3)
        images = [s.draw(class_ids, n_shot=2, n_query=3).query_images for s in (plain, default)]
        assert torch.equal(*images) == same


def test_characters_are_not_augmented_and_photographs_are():
    assert {name: default_augmentation(name) for name in DATASETS} == {
        "glyphs": "none",
        "turned-glyphs": "none",
        "cifar-fs": "crop-flip",
        "fc100": "crop-flip",
        "mini-imagenet": "crop-flip",
        "tiered-imagenet": "crop-flip",
        "omniglot": "none",
        "cub": "crop-flip",
        "folder": "crop-flip",
        "features": "none",
    }


def test_what_is_not_there_is_said(cache_home):
    with pytest.raises(DataError, match="adaptask data prepare cifar-fs --source PATH"):
        open_episodes("cifar-fs", "train")
    with pytest.raises(ArgumentError, match="there is no dataset 'mnist'"):
        open_episodes("mnist", "train")
    with pytest.raises(ArgumentError, match="split must be"):
        open_episodes("cifar-fs", "training")


def test_every_public_name_is_there_and_others_are_not():
    for name in adaptask.data.__all__:
        assert getattr(adaptask.data, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'mnist'"):
        _ = adaptask.data.mnist


def test_glyphs_are_made_once_and_then_loaded(cache_home, monkeypatch):
    calls = []
    original = DATASETS["glyphs"].generate

    def counted():
        calls.append(1)
        return original()

    entry = DATASETS["glyphs"]
    monkeypatch.setitem(DATASETS, "glyphs", type(entry)(entry.name, entry.description, counted))
    first, second = open_episodes("glyphs", "test"), open_episodes("glyphs", "test")
    assert len(calls) == 1
    assert first.n_classes == second.n_classes == 60
    episodes = first.draw(torch.tensor([[0, 59]]), n_shot=1, n_query=39)
    assert episodes.query_images.shape == (1, 78, 1, 28, 28)


def test_sources_of_smaller_images_share_them(birds):
    sources = [open_episodes("birds", "train", shrink=2, augmentation="none") for _ in range(2)]
    assert sources[0].image_set.image_shape == (3, 4, 4)
    assert sources[0].image_set.images.data_ptr() == sources[1].image_set.images.data_ptr()
    episodes = sources[0].draw(torch.tensor([[0, 1, 2]]), n_shot=4, n_query=6)
    assert episodes.query_images.shape == (1, 18, 3, 4, 4)
    drawn = torch.cat((episodes.support_images, episodes.query_images), dim=1)
    # Averages keep the mean, but for the rounding to 256 levels.
    torch.testing.assert_close(drawn.mean((0, 1, 3, 4)), torch.zeros(3), atol=0.01, rtol=0)
