"""Evaluation episodes that depend on a seed alone."""

from collections import Counter
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from adaptask.data import EpisodePlan, EpisodeSource, ImageSet
from adaptask.errors import ArgumentError, DataError

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, and this machine has none"
)


def make_set(counts):
    """A split in which every image is two pixels: its class and its number in the class."""
    starts = torch.tensor([0, *counts]).cumsum(0)
    rows = [[label, i] for label, count in enumerate(counts) for i in range(count)]
    images = torch.tensor(rows, dtype=torch.uint8).view(-1, 1, 1, 2)
    return ImageSet("toy", "val", images, tuple(f"class-{c}" for c in range(len(counts))), starts)


COUNTS = [12, 7, 9, 20, 8]
WISH = {"n_episodes": 40, "n_way": 3, "n_shot": 2, "n_query": 5, "seed": 4}


def same(first, second):
    return all(
        torch.equal(getattr(first, name), getattr(second, name))
        for name in ("class_ids", "image_ids")
    )


def test_a_plan_holds_distinct_images_of_distinct_classes():
    source = EpisodeSource(make_set(COUNTS))
    plan = source.plan(**WISH)
    assert len(plan) == 40
    assert plan.class_ids.shape == (40, 3)
    assert plan.image_ids.shape == (40, 3, 7)
    assert plan.n_shot == 2
    assert plan.class_ids.dtype == plan.image_ids.dtype == torch.int64
    for classes, images in zip(plan.class_ids.tolist(), plan.image_ids.tolist(), strict=True):
        assert len(set(classes)) == 3
        for label, row in zip(classes, images, strict=True):
            assert len(set(row)) == 7
            assert all(sum(COUNTS[:label]) <= i < sum(COUNTS[: label + 1]) for i in row)


def test_every_order_of_classes_and_every_choice_of_images_is_equally_likely():
    counts, n_episodes = [2, 3, 4], 24_000
    plan = EpisodeSource(make_set(counts)).plan(
        n_episodes=n_episodes, n_way=2, n_shot=1, n_query=1, seed=1
    )
    seen = Counter(map(tuple, plan.class_ids.tolist()))
    assert chisquare([seen[pair] for pair in permutations(range(3), 2)]).pvalue > 1e-3
    starts = [0, 2, 5]
    for label, count in enumerate(counts):
        rows = (plan.image_ids[plan.class_ids == label] - starts[label]).tolist()
        found = Counter(map(tuple, rows))
        assert chisquare([found[pair] for pair in permutations(range(count), 2)]).pvalue > 1e-3


def test_a_plan_depends_on_its_arguments_alone_and_leaves_every_generator_as_it_was():
    source = EpisodeSource(make_set(COUNTS), seed=1)
    state, global_state = source.state_dict(), torch.get_rng_state()
    plan = source.plan(**WISH)
    source.cut(plan, 0, 40)
    assert torch.equal(source.state_dict()["choice"], state["choice"])
    assert torch.equal(torch.get_rng_state(), global_state)
    source.draw(torch.tensor([[0, 1]]), n_shot=1, n_query=1)
    torch.rand(3)
    assert same(plan, source.plan(**WISH))
    assert same(plan, EpisodeSource(make_set(COUNTS), seed=99).plan(**WISH))
    assert not same(plan, source.plan(**WISH | {"seed": 5}))


def test_cut_gives_the_images_that_the_plan_names():
    image_set = make_set(COUNTS)
    source = EpisodeSource(image_set, normalization=((0.5,), (0.25,)))
    plan = source.plan(**WISH)
    episodes = source.cut(plan, 10, 30)
    assert torch.equal(episodes.class_ids, plan.class_ids[10:30])
    truth = (image_set.images.double() / 255 - 0.5) / 0.25
    support, query = plan.image_ids[10:30, :, :2], plan.image_ids[10:30, :, 2:]
    for images, ids in ((episodes.support_images, support), (episodes.query_images, query)):
        torch.testing.assert_close(images.double(), truth[ids.flatten(1)], atol=1e-6, rtol=0)
    labels = torch.arange(3)
    assert torch.equal(episodes.support_labels, labels.repeat_interleave(2).expand(20, -1))
    assert torch.equal(episodes.query_labels, labels.repeat_interleave(5).expand(20, -1))


@pytest.mark.parametrize("size", [1, 7, 16])
def test_the_size_of_the_batches_changes_no_bit(size):
    source = EpisodeSource(make_set(COUNTS), normalization=((0.3,), (0.7,)))
    plan = source.plan(**WISH)
    whole = source.cut(plan, 0, 40)
    parts = [source.cut(plan, np.int64(i), min(i + size, 40)) for i in range(0, 40, size)]
    for name in ("class_ids", "support_images", "support_labels", "query_images", "query_labels"):
        assert torch.equal(torch.cat([getattr(p, name) for p in parts]), getattr(whole, name))


def test_cut_does_not_augment():
    def black(images, generator):
        return images * 0

    image_set = make_set(COUNTS)
    augmenting = EpisodeSource(image_set, augmentation=black)
    plan = augmenting.plan(**WISH)
    plain = EpisodeSource(image_set).cut(plan, 0, 5)
    assert plain.query_images.any()
    assert torch.equal(augmenting.cut(plan, 0, 5).query_images, plain.query_images)
    assert not augmenting.draw(plan.class_ids[:5], n_shot=1, n_query=1).query_images.any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_way": 6}, r"between 2 and 5, the number of classes in toy \(val\); got 6"),
        ({"n_way": 1}, "n_way must be between 2 and 5.*got 1"),
        ({"n_way": 2.0}, "n_way must be an integer"),
        ({"n_episodes": 0}, "n_episodes must be at least 1; got 0"),
        ({"n_shot": 0}, "n_shot must be at least 1; got 0"),
        ({"n_query": 0}, "n_query must be at least 1; got 0"),
        ({"seed": -1}, "seed must be at least 0; got -1"),
        ({"seed": 2**63}, "seed must be at"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ArgumentError, match=message):
        EpisodeSource(make_set(COUNTS)).plan(**WISH | changes)


def test_a_split_of_one_class_has_no_tasks():
    with pytest.raises(DataError, match=r"toy \(val\) has one class, 'class-0'; a task needs at"):
        EpisodeSource(make_set([12])).plan(**WISH)


def test_a_class_with_too_few_images_for_a_plan_is_named():
    with pytest.raises(DataError, match=r"class 'class-1' of toy \(val\) has 7 images.*= 8"):
        EpisodeSource(make_set(COUNTS)).plan(**WISH | {"n_query": 6})


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 41), (3, 3), (5, 2), (40, 41)])
def test_episodes_that_a_plan_does_not_have_are_refused(start, stop):
    source = EpisodeSource(make_set(COUNTS))
    with pytest.raises(ArgumentError, match=f"stop <= 40.*got {start} and {stop}"):
        source.cut(source.plan(**WISH), start, stop)


@pytest.mark.parametrize("counts", [[12, 7, 9], [7, 12, 9, 20, 8], [12, 7, 9, 20, 7]])
def test_a_plan_of_another_split_is_refused(counts):
    plan = EpisodeSource(make_set(COUNTS)).plan(**WISH)
    with pytest.raises(ArgumentError, match="made for another one"):
        EpisodeSource(make_set(counts)).cut(plan, 0, 40)


def test_a_plan_with_classes_below_zero_is_refused():
    source = EpisodeSource(make_set(COUNTS))
    plan = source.plan(**WISH)
    with pytest.raises(ArgumentError, match="made for another one"):
        source.cut(replace(plan, class_ids=plan.class_ids - 5), 0, 40)


@needs_gpu
@pytest.mark.parametrize("storage", ["device", "host"])
def test_a_gpu_is_given_the_same_episodes(storage):
    here = EpisodeSource(make_set(COUNTS), normalization=((0.3,), (0.7,)))
    there = EpisodeSource(
        make_set(COUNTS), device="cuda", storage=storage, normalization=((0.3,), (0.7,))
    )
    plan = there.plan(**WISH)
    assert isinstance(plan, EpisodePlan)
    assert same(plan, here.plan(**WISH))
    cut, expected = there.cut(plan, 3, 30), here.cut(plan, 3, 30)
    assert cut.query_images.device == there.device
    torch.testing.assert_close(cut.support_images.cpu(), expected.support_images)
    torch.testing.assert_close(cut.query_images.cpu(), expected.query_images)
