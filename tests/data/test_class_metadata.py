"""Groups and variants of classes: from names, from a table, or set by whoever made the split."""

import dataclasses
from collections import Counter

import pytest
import torch

from adaptask.data.benchmarks import class_lists, superclass_of, with_rotations
from adaptask.data.cache import read_cache, write_cache
from adaptask.data.datasets import DATASETS, load
from adaptask.data.images import SPLITS, ImageSet, resize_images
from adaptask.errors import DataError


def toy(*names, **metadata):
    images = torch.zeros((2 * len(names), 1, 3, 3), dtype=torch.uint8)
    starts = torch.arange(len(names) + 1) * 2
    return ImageSet("toy", "train", images, names, starts, **metadata)


def cached(tmp_path, dataset, names):
    """Return what `load` gives for a cache of these classes, written as by any version."""
    write_cache(tmp_path / dataset, {"train": toy(*names)}, source="a test")
    return read_cache(tmp_path / dataset, "train", DATASETS[dataset].group_of)


def test_names_of_the_form_group_slash_class_say_the_group():
    assert toy("owl/barn", "owl/snowy", "gull/herring").groups == ("owl", "owl", "gull")
    assert toy("owl/barn", "gull").groups is None
    assert toy("owl", "gull").variant_of is None


def test_rotations_are_variants_and_no_part_of_the_group():
    names = ("a/1/rot000", "a/1/rot090", "b/1/rot000", "a/2/rot000", "b/1/rot270", "b/rotten")
    found = toy(*names)
    assert found.groups == ("a", "a", "b", "a", "b", "b")
    assert found.variant_of.tolist() == [0, 0, 1, 2, 1, 3]
    turned = toy("ring/rot000", "disk/rot000", "ring/rot180")
    assert turned.groups is None
    assert turned.variant_of.tolist() == [0, 1, 0]


def test_what_is_given_counts_and_is_carried_along():
    given = toy("a/x", "b/x", groups=["one", "one"], variant_of=torch.tensor([7, 7]))
    for found in (given, resize_images(given, (3, 8, 8)), dataclasses.replace(given, split="val")):
        assert list(found.groups) == ["one", "one"]
        assert found.variant_of.tolist() == [7, 7]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"groups": ["a"]}, "one name for each of the 2 classes; got 1"),
        ({"variant_of": torch.tensor([1.0, 2.0])}, "must be int64, one number for each of the 2"),
        ({"variant_of": torch.tensor([1])}, "must be int64, one number for each of the 2"),
    ],
)
def test_metadata_that_does_not_fit_the_classes_is_refused(metadata, message):
    with pytest.raises(DataError, match=message):
        toy("a", "b", **metadata).class_counts()


@pytest.mark.parametrize("split", SPLITS)
def test_characters_of_omniglot_have_their_alphabet_and_four_rotations(tmp_path, split):
    names = with_rotations(class_lists("omniglot"))[split]
    found = cached(tmp_path, "omniglot", names)
    assert list(found.groups) == [name.split("/")[0] for name in names]
    assert set(Counter(found.variant_of.tolist()).values()) == {4}
    for first, second in ((0, 3), (1, 2), (4, 7)):
        assert found.variant_of[first] == found.variant_of[second]
    assert found.variant_of[3] != found.variant_of[4]


def test_the_superclasses_of_cifar_100_are_twenty_of_five_and_fc100_divides_none():
    classes = [name for names in class_lists("cifar-fs").values() for name in names]
    assert sorted(Counter(map(superclass_of, classes)).values()) == [5] * 20
    split_of = {name: split for split, names in class_lists("fc100").items() for name in names}
    pairs = {(superclass_of(name), split) for name, split in split_of.items()}
    assert len(pairs) == 20


def test_a_cache_of_cifar_has_superclasses_unless_its_classes_are_numbered(tmp_path):
    names = ("otter", "rose", "whale")
    assert cached(tmp_path, "cifar-fs", names).groups == (
        "aquatic_mammals",
        "flowers",
        "aquatic_mammals",
    )
    assert cached(tmp_path, "fc100", ("otter", "label-017")).groups is None


def test_glyphs_are_grouped_by_script():
    groups = load("glyphs", "test").groups
    assert Counter(groups).most_common(2) == [("latin", 18), ("symbol", 14)]
    assert set(groups) == {"latin", "greek", "cyrillic", "armenian", "georgian", "symbol"}
