"""Evaluation episodes that depend on a seed alone."""

from collections import Counter
from dataclasses import replace
from itertools import permutations, product

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


# --- tasks within a group -------------------------------------------------------------------------

GROUPS = ("b", "a", "b", "c", "a", "b", "a", "a")  # b: 0, 2, 5; a: 1, 4, 6, 7; c: 3
WITHIN = {"n_way": 3, "n_shot": 1, "n_query": 1, "tasks": "within-group"}


def grouped(groups=GROUPS, variant_of=None):
    variants = None if variant_of is None else torch.tensor(variant_of)
    return replace(make_set([3] * len(groups)), groups=groups, variant_of=variants)


def slow_within_group(groups, variant_of, n_way):
    """Return the probability of every ordered task, by the law in words."""
    originals = {}
    for c, (group, original) in enumerate(zip(groups, variant_of, strict=True)):
        originals.setdefault(group, {}).setdefault(original, []).append(c)
    usable = {group: found for group, found in originals.items() if len(found) >= n_way}
    total = sum(map(len, usable.values()))
    law = Counter()
    for found in usable.values():
        orders = list(permutations(found, n_way))
        for order in orders:
            tasks = list(product(*(found[original] for original in order)))
            for task in tasks:
                law[task] += len(found) / total / len(orders) / len(tasks)
    return law


@pytest.mark.parametrize(
    ("groups", "variant_of"),
    [
        (GROUPS, None),
        (GROUPS, [0, 1, 2, 3, 4, 5, 6, 6]),  # a has three originals, one of them twice
        (GROUPS[::-1], [0, 0, 2, 9, 4, 5, 7, 7]),  # b and a have variants
        (("x",) * 4, None),
    ],
)
def test_tasks_within_a_group_follow_their_law(groups, variant_of):
    plan = EpisodeSource(grouped(groups, variant_of)).plan(n_episodes=40_000, seed=3, **WITHIN)
    law = slow_within_group(groups, variant_of or range(len(groups)), 3)
    seen = Counter(map(tuple, plan.class_ids.tolist()))
    assert seen.keys() <= law.keys()
    expected = [40_000 * p for p in law.values()]
    assert chisquare([seen[task] for task in law], expected).pvalue > 1e-3


def test_every_class_of_a_usable_group_is_tested_equally_often():
    plan = EpisodeSource(grouped()).plan(n_episodes=40_000, seed=0, **WITHIN)
    counts = plan.class_ids.flatten().bincount(minlength=8)
    assert counts[3] == 0  # alone in its group
    assert chisquare(counts[counts > 0]).pvalue > 1e-3


def test_images_within_a_group_are_those_of_their_classes_and_a_seed_decides():
    source = EpisodeSource(grouped())
    plan = source.plan(n_episodes=20, seed=3, **WITHIN)
    assert torch.equal(plan.image_ids // 3, plan.class_ids[..., None].expand(-1, -1, 2))
    assert same(plan, EpisodeSource(grouped(), seed=8).plan(n_episodes=20, seed=3, **WITHIN))
    assert not same(plan, source.plan(n_episodes=20, seed=4, **WITHIN))
    renamed = grouped([group.upper() for group in reversed("zxyw")] * 2)
    other = grouped(["1", "2", "3", "4"] * 2)
    wish = WITHIN | {"n_way": 2}
    assert same(*(EpisodeSource(s).plan(n_episodes=9, seed=0, **wish) for s in (renamed, other)))


@pytest.mark.parametrize(
    ("groups", "variant_of", "message"),
    [
        (None, None, "those of toy .val. have none. Test with uniform tasks, or name the classes"),
        (
            ("a", "a", "b", "c"),
            None,
            "no group of toy .val. has 3 classes for a task within it; the largest, 'a', has 2. "
            "Test with at most 2 ways .--evaluation.n-way 2., or uniform tasks",
        ),
        (("a",) * 4, [0, 0, 1, 1], "'a', has 2, variants of a class counted once. Test with at"),
        (("a", "b", "c"), None, "has 1. Test with uniform tasks"),
    ],
)
def test_groups_that_are_missing_or_too_small_are_refused(groups, variant_of, message):
    image_set = make_set([3] * 4) if groups is None else grouped(groups, variant_of)
    with pytest.raises(ArgumentError, match=message):
        EpisodeSource(image_set).plan(n_episodes=5, seed=0, **WITHIN)


def test_an_unknown_kind_of_tasks_is_refused():
    with pytest.raises(ArgumentError, match="tasks must be"):
        EpisodeSource(make_set(COUNTS)).plan(**WISH, tasks="hard")
