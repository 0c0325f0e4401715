import csv

import pytest

from adaptask.data.benchmarks import class_lists, with_rotations
from adaptask.data.images import SPLITS

COUNTS = {
    "cifar-fs": (64, 16, 20),
    "fc100": (60, 20, 20),
    "mini-imagenet": (64, 16, 20),
    "tiered-imagenet": (351, 97, 160),
    "omniglot": (1028, 172, 423),
    "cub": (100, 50, 50),
}


@pytest.mark.parametrize("dataset", COUNTS)
def test_splits_have_the_published_numbers_of_classes_and_share_none(dataset):
    lists = class_lists(dataset)
    assert tuple(len(lists[split]) for split in SPLITS) == COUNTS[dataset]
    everything = [name for split in SPLITS for name in lists[split]]
    assert len(set(everything)) == len(everything)


def test_both_splits_of_cifar_100_have_the_same_hundred_classes():
    first, second = (
        sorted(name for names in class_lists(dataset).values() for name in names)
        for dataset in ("cifar-fs", "fc100")
    )
    assert first == second
    assert len(first) == 100


def test_fc100_has_the_fine_labels_seen_in_metaoptnets_pickles():
    # The numbers of the training classes as printed in issue 55 of kjunelee/MetaOptNet.
    seen = (
        "0 1 5 8 9 10 12 13 16 17 20 22 23 25 27 28 29 32 33 37 39 40 41 44 47 48 49 51 52 53 "
        "54 56 57 58 59 60 61 62 67 68 69 70 71 73 76 78 81 82 83 84 85 86 87 89 90 91 92 93 94 96"
    )
    lists = class_lists("fc100")
    names = sorted(name for split in lists.values() for name in split)
    assert [names.index(name) for name in lists["train"]] == [int(n) for n in seen.split()]


def test_cub_takes_every_second_class_for_training_and_halves_the_rest():
    lists = class_lists("cub")
    birds = sorted(name for names in lists.values() for name in names)
    assert [int(name[:3]) for name in birds] == list(range(1, 201))
    assert lists["train"] == tuple(birds[0::2])
    assert lists["val"] == tuple(birds[1::4])
    assert lists["test"] == tuple(birds[3::4])


def test_omniglot_keeps_alphabets_together_but_for_one():
    alphabets = {
        split: {name.partition("/")[0] for name in names}
        for split, names in class_lists("omniglot").items()
    }
    assert alphabets["val"] == {
        "Armenian", "Bengali", "Early_Aramaic", "Hebrew", "Mkhedruli_(Georgian)"
    }  # fmt: skip
    assert alphabets["train"] & alphabets["test"] == {"Gurmukhi"}
    assert len(set.union(*alphabets.values())) == 50


def test_rotations_make_four_classes_of_one():
    assert with_rotations({"train": ("a/b",)}) == {
        "train": ("a/b/rot000", "a/b/rot090", "a/b/rot180", "a/b/rot270")
    }


@pytest.mark.parametrize(
    ("dataset", "file"),
    [
        ("cifar-fs", "cifar_fs_{}.txt"),
        ("fc100", "fc100_{}.txt"),
        ("mini-imagenet", "miniimagenet_{}.txt"),
        ("tiered-imagenet", "tieredimagenet/{}.csv"),
    ],
)
def test_the_lists_are_those_that_were_published(real_data, dataset, file):
    for split in SPLITS:
        with (real_data.folder / "splits" / file.format(split)).open() as lines:
            published = [row[0] for row in csv.reader(lines) if row]
        assert class_lists(dataset)[split] == tuple(published)


def test_the_characters_are_those_of_omniglot(real_data):
    found = {
        f"{sheet.stem}/character{i + 1:02d}"
        for sheet in (real_data.folder / "omniglot").glob("images_*/*.png")
        for i in range(len(real_data.omniglot_alphabet(sheet.parent.name, sheet.stem)))
    }
    assert found == {name for names in class_lists("omniglot").values() for name in names}
