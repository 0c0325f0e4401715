"""What is known of a dataset before it is opened; nothing here needs torch."""

from __future__ import annotations

from itertools import pairwise

from adaptask.data import glyphs
from adaptask.data.cache import cache_root, read_meta
from adaptask.data.registry import (
    DATASETS,
    Benchmark,
    Generated,
    dataset_folder,
    is_prepared,
    names,
)
from adaptask.errors import ArgumentError


def check_dataset_name(name: str) -> None:
    """Check that there is a dataset of that name, prepared or not.

    Raises:
        ArgumentError: If there is none.
    """
    if name not in names():
        raise ArgumentError(f"there is no dataset '{name}'; there are {', '.join(names())}.")


def is_at_hand(name: str) -> bool:
    """Return whether a dataset can be opened without making or preparing it first."""
    return is_prepared(cache_root() / name)


def needs_preparing(name: str) -> bool:
    """Return whether the user must do something before a dataset can be used."""
    return not is_at_hand(name) and not isinstance(DATASETS.get(name), Generated)


def images_a_class(name: str) -> int | None:
    """Return how many images the smallest class of a dataset has, if that is known."""
    entry = DATASETS.get(name)
    if is_at_hand(name):
        splits = read_meta(cache_root() / name)["splits"].values()
        return min(int(b - a) for split in splits for a, b in pairwise(split["class_starts"]))
    if isinstance(entry, Benchmark):
        return entry.class_size[0]
    return glyphs.N_EXAMPLES if name == glyphs.NAME else None


def image_shape(name: str) -> tuple[int, int, int]:
    """Return channels, height and width of a dataset's images.

    Raises:
        DataError: If the dataset has not been prepared, and is none whose images are known.
    """
    entry = DATASETS.get(name)
    if isinstance(entry, Benchmark):
        return entry.form.channels, entry.form.height, entry.form.width
    if name == glyphs.NAME:
        return 1, glyphs.IMAGE_SIZE, glyphs.IMAGE_SIZE
    channels, height, width = read_meta(dataset_folder(name))["image_shape"]
    return channels, height, width
