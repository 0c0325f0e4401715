"""The real benchmarks, where they are there; small parts of them where all would take long."""

import dataclasses
import time
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from adaptask.data.benchmarks import class_lists
from adaptask.data.cache import check_cache, read_cache, read_statistics, write_cache
from adaptask.data.datasets import DATASETS, load
from adaptask.data.images import SPLITS, ImageSet
from adaptask.data.prepare import prepare_benchmark


@pytest.fixture(scope="module")
def cifar_fs(real_data):
    """All of CIFAR-FS, `images x 3 x 32 x 32` a split."""
    return {
        split: np.concatenate([real_data.cifar_class(split, name) for name in names])
        for split, names in class_lists("cifar-fs").items()
    }


@pytest.fixture(scope="module")
def cifar_fs_cache(cifar_fs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches") / "cifar-fs"
    splits = {}
    for split, names in class_lists("cifar-fs").items():
        images = torch.from_numpy(cifar_fs[split]).permute(0, 3, 1, 2)
        starts = torch.arange(len(names) + 1) * 600
        splits[split] = ImageSet("cifar-fs", split, images, names, starts)
    write_cache(folder, splits, source="sheets")
    return folder


def test_cifar_fs_has_fifteen_images_in_two_splits(cifar_fs_cache):
    report = check_cache(cifar_fs_cache)
    assert report.n_images == 60_000
    pairs = {frozenset((a[1], b[1])): n for (a, b), n in report.duplicates.items()}
    assert pairs == {
        frozenset(("otter", "seal")): 7,
        frozenset(("baby", "girl")): 4,
        frozenset(("snake", "worm")): 2,
        frozenset(("shark", "whale")): 1,
        frozenset(("crab", "spider")): 1,
    }


def test_cifar_fs_has_superclasses_that_its_split_divides(cifar_fs_cache):
    group_of = DATASETS["cifar-fs"].group_of
    sizes = {s: Counter(read_cache(cifar_fs_cache, s, group_of).groups) for s in SPLITS}
    assert {split: max(found.values()) for split, found in sizes.items()} == {
        "train": 5,
        "val": 2,
        "test": 3,
    }
    assert set((sizes["train"] + sizes["val"] + sizes["test"]).values()) == {5}


def test_cifar_fs_loads_in_under_a_second(cifar_fs_cache, cifar_fs):
    start = time.perf_counter()
    images = {split: read_cache(cifar_fs_cache, split) for split in SPLITS}
    assert time.perf_counter() - start < 1
    assert np.array_equal(images["val"].images.permute(0, 2, 3, 1).numpy(), cifar_fs["val"])


def test_the_statistics_of_cifar_fs_are_those_of_its_pixels(cifar_fs_cache, cifar_fs):
    mean, std = read_statistics(cifar_fs_cache)
    for channel in range(3):
        pixels = cifar_fs["train"][..., channel].astype(np.uint16)
        expected = pixels.mean(dtype=np.float64)
        variance = (pixels**2).mean(dtype=np.float64) - expected**2
        assert mean[channel] * 255 == pytest.approx(expected, abs=1e-6)
        assert std[channel] * 255 == pytest.approx(np.sqrt(variance), abs=1e-6)


def test_real_classes_are_prepared_from_their_png_files(real_data, tmp_path, cache_home):
    benchmark = DATASETS["cifar-fs"]
    classes = {split: names[:2] for split, names in benchmark.classes.items()}
    for split, names in classes.items():
        for name in names:
            folder = tmp_path / "source" / "data" / name
            folder.mkdir(parents=True)
            for i, image in enumerate(real_data.cifar_class(split, name)):
                file = folder / f"{name}_s_{i:06d}.png"
                Image.fromarray(image).save(file, compress_level=1)
    small = dataclasses.replace(benchmark, classes=classes, n_images=3600)
    prepare_benchmark(small, tmp_path / "source")
    for split, names in classes.items():
        expected = np.concatenate([real_data.cifar_class(split, name) for name in names])
        images = load("cifar-fs", split)
        assert images.class_names == names
        assert np.array_equal(images.images.permute(0, 2, 3, 1).numpy(), expected)


def test_real_characters_are_prepared_with_bright_strokes(real_data, tmp_path, cache_home):
    benchmark = DATASETS["omniglot"]
    classes = {
        split: tuple(name for name in names if name.startswith(alphabet))[:8]
        for (split, names), alphabet in zip(
            benchmark.classes.items(), ("Greek/", "Hebrew/", "Tengwar/"), strict=True
        )
    }
    for part, alphabet in (
        ("background", "Greek"),
        ("background", "Hebrew"),
        ("evaluation", "Tengwar"),
    ):
        drawings = real_data.omniglot_alphabet(f"images_{part}", alphabet)[:2]
        for number, character in enumerate(drawings, start=1):
            folder = tmp_path / "s" / f"images_{part}" / alphabet / f"character{number:02d}"
            folder.mkdir(parents=True)
            for i, drawing in enumerate(character):
                Image.fromarray(drawing).save(folder / f"{number:04d}_{i + 1:02d}.png")
    small = dataclasses.replace(benchmark, classes=classes, n_images=3 * 8 * 20)
    prepare_benchmark(small, tmp_path / "s")
    images = load("omniglot", "train").images
    ink = 1 - real_data.omniglot_alphabet("images_background", "Greek")[0].mean((1, 2))
    bright = images[:20].double().mean((1, 2, 3)) / 255
    # Bringing a drawing to 28x28 keeps how much of the paper is ink.
    assert bright.tolist() == pytest.approx(ink.tolist(), abs=0.01)
    assert torch.equal(images[20:40], images[:20].rot90(1, (2, 3)))
    for split, alphabet in zip(SPLITS, ("Greek", "Hebrew", "Tengwar"), strict=True):
        found = load("omniglot", split)
        assert set(found.groups) == {alphabet}
        assert found.variant_of.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
