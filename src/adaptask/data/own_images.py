"""The user's own images: one folder a class, split by folders, by lists or by fractions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from adaptask.data.class_lists import SPLITS
from adaptask.data.layouts import ClassImages, image_files
from adaptask.errors import ArgumentError, DataError


def find_own_images(
    source: Path, *, fractions: Sequence[float], seed: int, split_lists: Path | None
) -> tuple[dict[str, list[ClassImages]], str]:
    """Return the classes of each split of the user's images, and in words how they were split.

    Args:
        source: A folder with one folder a class, or with `train/`, `val/` and `test/` of such.
        fractions: The part of the classes that goes to train, val and test, where neither such
            folders nor lists say it.
        seed: Decides which classes go where.
        split_lists: A folder with `train.txt`, `val.txt` and `test.txt`, one class a line; where
            it is not given, `source` and `source/splits` are searched for them.
    """
    parts = {s: _class_folders(source / s) for s in SPLITS if (source / s).is_dir()}
    # A class may be called 'train' too: then its folder has images in it, not folders.
    if split_lists is None and parts.get("train"):
        _check_disjoint(source, parts)
        return _images(parts), "split by its folders train/, val/ and test/"
    folders = {folder.name: folder for folder in _class_folders(source)}
    if not folders:
        raise DataError(f"{source} has no folders with images in them; expected one a class.")
    places = [split_lists] if split_lists else [source, source / "splits"]
    lists = next((place for place in places if (place / "train.txt").is_file()), None)
    if lists is not None:
        return _images(_by_lists(lists, folders)), f"split by the lists in {lists}"
    if split_lists is not None:
        raise DataError(f"{split_lists} has no train.txt; expected train.txt, val.txt, test.txt.")
    shares = _shares(fractions, len(folders))
    shuffled = np.random.default_rng(seed).permutation(sorted(folders)).tolist()
    parts, start = {}, 0
    for split, share in zip(SPLITS, shares, strict=True):
        if share:
            parts[split] = [folders[name] for name in sorted(shuffled[start : start + share])]
        start += share
    how = ", ".join(f"{fraction:g}" for fraction in fractions)
    return _images(parts), f"split by class at random ({how}), seed {seed}"


def check_own_name(name: str, taken: Sequence[str]) -> None:
    """Refuse names that cannot be folders or that belong to other datasets."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise ArgumentError(
            "the name of a dataset consists of lower-case letters, digits, '.', '_' and '-', and "
            f"starts with a letter or digit; got '{name}'."
        )
    if name in taken:
        raise ArgumentError(f"the name '{name}' belongs to a dataset of the package; take another.")


def _class_folders(folder: Path) -> list[Path]:
    return [
        child
        for child in sorted(folder.iterdir())
        if child.is_dir() and not child.name.startswith(".") and image_files(child)
    ]


def _images(parts: dict[str, list[Path]]) -> dict[str, list[ClassImages]]:
    for split, folders in parts.items():
        if not folders:
            raise DataError(f"the split '{split}' has no classes; expected folders with images.")
    return {
        split: [ClassImages(folder.name, image_files(folder), str(folder)) for folder in folders]
        for split, folders in parts.items()
    }


def _check_disjoint(source: Path, parts: dict[str, list[Path]]) -> None:
    """Refuse split folders that divide the images of each class, as classifiers want it."""
    counts = Counter(folder.name for folders in parts.values() for folder in folders)
    shared = sorted(name for name, count in counts.items() if count > 1)
    if shared:
        raise DataError(
            f"{' and '.join(f'{split}/' for split in parts)} in {source} share "
            f"{len(shared)} class{'es' if len(shared) > 1 else ''}: {_some(shared)}. Few-shot "
            "splits are by class: put each class, with all its images, into one folder beside the "
            "others, and let --fractions or lists say which classes train."
        )


def _some(names: Sequence[str], most: int = 5) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _by_lists(lists: Path, folders: dict[str, Path]) -> dict[str, list[Path]]:
    parts: dict[str, list[Path]] = {}
    owner: dict[str, str] = {}
    for split in SPLITS:
        file = lists / f"{split}.txt"
        if not file.is_file():
            continue
        wanted = [line.strip() for line in file.read_text("utf-8", "replace").splitlines()]
        for name in filter(None, wanted):
            if name not in folders:
                raise DataError(f"{file} names the class '{name}', which has no images.")
            if name in owner:
                raise DataError(f"{file} names the class '{name}', which is in '{owner[name]}'.")
            owner[name] = split
        parts[split] = [folders[name] for name in wanted if name]
    return parts


def _shares(fractions: Sequence[float], n_classes: int) -> list[int]:
    """Return how many classes each split gets: as the fractions say, and at least one."""
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise ArgumentError(
            f"fractions must be three numbers, for train, val and test, that sum to 1; "
            f"got {tuple(fractions)}."
        )
    if fractions[0] == 0:
        raise ArgumentError("the fraction of classes for train must be above 0.")
    asked = sum(fraction > 0 for fraction in fractions)
    if n_classes < asked:
        raise DataError(f"{n_classes} classes cannot be split into {asked} parts.")
    edges = np.rint(np.cumsum(fractions) * n_classes).astype(int)
    shares: list[int] = np.diff(edges, prepend=0).tolist()
    for i, fraction in enumerate(fractions):
        if fraction > 0 and shares[i] == 0:
            shares[int(np.argmax(shares))] -= 1
            shares[i] = 1
    return shares
