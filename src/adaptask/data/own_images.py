"""The user's own images: one folder a class, split by folders, by lists or by fractions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adaptask.arguments import check_number, check_seed
from adaptask.data.class_lists import SPLITS
from adaptask.data.layouts import ClassImages, image_files
from adaptask.errors import ArgumentError, DataError

FRACTIONS = (0.64, 0.16, 0.2)


@dataclass(frozen=True)
class OwnSplits:
    """What was found in the user's images."""

    splits: dict[str, list[ClassImages]]
    how: str
    """By what they were split, in words."""
    left_out: list[str]
    """The folders that are in no split, each with the reason."""


def find_own_images(
    source: Path, *, fractions: Sequence[float] | None, seed: int | None, split_lists: Path | None
) -> OwnSplits:
    """Return the classes of each split of the user's images.

    Args:
        source: A folder with one folder a class, or with `train/`, `val/` and `test/` of such.
        fractions: The part of the classes that goes to train, val and test, where neither such
            folders nor lists say it; `FRACTIONS` where they are not given.
        seed: Decides which classes go where, likewise; 0 where it is not given.
        split_lists: A folder with `train.txt`, `val.txt` and `test.txt`, one class a line; where
            it is not given, `source` and `source/splits` are searched for them.

    Raises:
        ArgumentError: Fractions or a seed are given that cannot be used, or where folders or lists
            decide.
        DataError: The folder cannot be split as it is.
    """
    is_asked_at_random = not (fractions is None and seed is None)
    fractions = FRACTIONS if fractions is None else _checked_fractions(fractions)
    seed = 0 if seed is None else check_seed("seed", seed)
    parts = {s: _class_folders(source / s) for s in SPLITS if (source / s).is_dir()}
    # A class may be called 'train' too: then its folder has images in it, not folders.
    if split_lists is None and parts.get("train"):
        if is_asked_at_random:
            raise _no_use("the folders train/, val/ and test/")
        return _split_by_folders(source, parts)
    folders = {folder.name: folder for folder in _class_folders(source)}
    left_out = _without_images(source)
    if not folders:
        raise DataError(
            f"{source} has no folders with images in them; expected one a class, found "
            f"{_some(left_out) or 'no folders'}."
        )
    places = [split_lists] if split_lists else [source, source / "splits"]
    lists = next((place for place in places if (place / "train.txt").is_file()), None)
    if lists is not None:
        if is_asked_at_random:
            raise _no_use(f"the lists in {lists}")
        parts = _by_lists(lists, folders)
        listed = {folder.name for part in parts.values() for folder in part}
        left_out += [f"{name}/ (in no list)" for name in folders if name not in listed]
        return OwnSplits(_images(parts), f"split by the lists in {lists}", left_out)
    if split_lists is not None:
        raise DataError(f"{split_lists} has no train.txt; expected train.txt, val.txt, test.txt.")
    parts = _at_random(fractions, seed, folders)
    how = ", ".join(f"{fraction:g}" for fraction in fractions)
    return OwnSplits(_images(parts), f"split by class at random ({how}), seed {seed}", left_out)


def unwrapped(source: Path) -> Path:
    """Return the folder that has the classes: `source`, or what it wraps in one or two folders."""
    for _ in range(2):
        inside = _children(source)
        # A class, which has images in it, wraps nothing; nor does a lonely train/.
        if inside != _folders(source) or len(inside) != 1 or inside[0].name in SPLITS:
            break
        if image_files(inside[0]):
            break
        source = inside[0]
    return source


def check_own_name(name: str, taken: Sequence[str]) -> None:
    """Refuse names that cannot be folders or that belong to other datasets."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise ArgumentError(
            "the name of a dataset consists of lower-case letters, digits, '.', '_' and '-', and "
            f"starts with a letter or digit; got '{name}'."
        )
    if name in taken:
        raise ArgumentError(f"the name '{name}' belongs to a dataset of the package; take another.")


def _folders(folder: Path) -> list[Path]:
    return [child for child in _children(folder) if child.is_dir()]


def _children(folder: Path) -> list[Path]:
    """Return what the user put into a folder: macOS adds hidden files, and a folder to zips."""
    return [
        child
        for child in sorted(folder.iterdir())
        if not child.name.startswith(".") and child.name != "__MACOSX"
    ]


def _class_folders(folder: Path) -> list[Path]:
    return [child for child in _folders(folder) if image_files(child)]


def _holds_lists(folder: Path) -> bool:
    return (folder / "train.txt").is_file()


def _without_images(folder: Path, within: str = "") -> list[str]:
    """Return the folders in `folder` that have no images directly in them, and what they have."""
    left_out = []
    for child in _folders(folder):
        if image_files(child) or _holds_lists(child):
            continue
        files = [f for f in child.iterdir() if f.is_file() and not f.name.startswith(".")]
        if _folders(child):
            why = "its images must lie directly in it, not in folders"
        elif files:
            kinds = sorted({file.suffix.lower() or file.name for file in files})
            why = f"no images that can be read, only {_some(kinds)}"
        else:
            why = "empty"
        left_out.append(f"{within}{child.name}/ ({why})")
    return left_out


def _images(parts: dict[str, list[Path]]) -> dict[str, list[ClassImages]]:
    for split, folders in parts.items():
        if not folders:
            raise DataError(f"the split '{split}' has no classes; expected folders with images.")
    return {
        split: [ClassImages(folder.name, image_files(folder), str(folder)) for folder in folders]
        for split, folders in parts.items()
    }


def _split_by_folders(source: Path, parts: dict[str, list[Path]]) -> OwnSplits:
    _check_val_name(source)
    _check_disjoint(source, parts)
    left_out = [
        f"{folder.name}/ (beside train/)"
        for folder in _folders(source)
        if folder.name not in SPLITS and not _holds_lists(folder)
    ]
    for split in parts:
        left_out += _without_images(source / split, f"{split}/")
    return OwnSplits(_images(parts), "split by its folders train/, val/ and test/", left_out)


def _no_use(what: str) -> ArgumentError:
    return ArgumentError(
        f"fractions and seed are for splitting at random, but {what} say which class goes where. "
        "Leave the options away, or move the folders or lists elsewhere."
    )


def _check_val_name(source: Path) -> None:
    for folder in _folders(source):
        if folder.name.lower() in ("valid", "validation", "dev"):
            raise DataError(
                f"{folder} would be left out: beside train/, the validation classes are expected "
                "in val/. Rename it to val, or move it elsewhere."
            )


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
        wanted = [line.strip() for line in file.read_text("utf-8-sig", "replace").splitlines()]
        for name in filter(None, wanted):
            if name not in folders:
                raise DataError(f"{file} names the class '{name}', which has no images.")
            if name in owner:
                raise DataError(f"{file} names the class '{name}', which is in '{owner[name]}'.")
            owner[name] = split
        parts[split] = [folders[name] for name in wanted if name]
    return parts


def _at_random(
    fractions: Sequence[float], seed: int, folders: dict[str, Path]
) -> dict[str, list[Path]]:
    shuffled = np.random.default_rng(seed).permutation(sorted(folders)).tolist()
    parts, start = {}, 0
    for split, share in zip(SPLITS, _shares(fractions, len(folders)), strict=True):
        if share:
            parts[split] = [folders[name] for name in sorted(shuffled[start : start + share])]
        start += share
    return parts


def _checked_fractions(fractions: Sequence[float]) -> Sequence[float]:
    for fraction in fractions:
        check_number("each of the fractions", fraction, low=0, high=1)
    if len(fractions) != 3 or abs(sum(fractions) - 1) > 1e-6:
        raise ArgumentError(
            f"fractions must be three numbers, for train, val and test, that sum to 1; "
            f"got {tuple(fractions)}."
        )
    if fractions[0] == 0:
        raise ArgumentError("the fraction of classes for train must be above 0.")
    return fractions


def _shares(fractions: Sequence[float], n_classes: int) -> list[int]:
    """Return how many classes each split gets: as the fractions say, and at least one."""
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
