"""Sources of one file share a copy on a device; torch's device of shapes alone stands for one."""

import gc
from dataclasses import replace

import pytest
import torch

from adaptask.data.cache import read_cache, write_cache
from adaptask.data.images import ImageSet
from adaptask.data.storage import copy_to, has_copy

DEVICE = torch.device("meta")


def some_images(value):
    return ImageSet(
        dataset="few",
        split="train",
        images=torch.full((6, 3, 4, 4), value, dtype=torch.uint8),
        class_names=("a", "b"),
        class_starts=torch.tensor([0, 3, 6]),
    )


@pytest.fixture
def folder(tmp_path):
    write_cache(tmp_path / "few", {"train": some_images(1)}, source="test")
    return tmp_path / "few"


def test_images_of_one_file_are_copied_once_for_all_who_hold_them(folder):
    first = copy_to(read_cache(folder, "train"), DEVICE)
    assert first.device == DEVICE
    assert first.shape == (6, 3, 4, 4)
    assert has_copy(read_cache(folder, "train"), DEVICE)
    assert copy_to(read_cache(folder, "train"), DEVICE) is first
    del first
    gc.collect()
    assert not has_copy(read_cache(folder, "train"), DEVICE)


def test_images_that_differ_are_copied_anew(folder):
    first = copy_to(read_cache(folder, "train"), DEVICE)
    edited = read_cache(folder, "train")
    edited.images[0] = 7
    derived = replace(read_cache(folder, "train"), images=torch.zeros(6, 3, 2, 2))
    write_cache(folder, {"train": some_images(2)}, source="test")
    prepared_anew = read_cache(folder, "train")
    for image_set in (edited, derived, prepared_anew, some_images(1)):
        assert not has_copy(image_set, DEVICE)
        assert copy_to(image_set, DEVICE) is not first
        assert copy_to(image_set, DEVICE).shape == image_set.images.shape


def test_images_loaded_in_inference_mode_are_copied(folder):
    with torch.inference_mode():
        image_set = read_cache(folder, "train")
    assert not has_copy(image_set, DEVICE)
    assert copy_to(image_set, DEVICE).shape == image_set.images.shape


def test_where_the_images_are_nothing_is_copied(folder):
    image_set = read_cache(folder, "train")
    assert has_copy(image_set, torch.device("cpu"))
    assert copy_to(image_set, torch.device("cpu")) is image_set.images
