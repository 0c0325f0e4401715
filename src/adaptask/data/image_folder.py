"""The user's own images: one folder per class, split by folders, by lists or by fractions.

Folders of classes may be in folders of groups; a class is then called `group/class`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from adaptask.arguments import check_number, check_seed
from adaptask.data.images import SPLITS
from adaptask.data.layouts import (
    ClassImages,
    Found,
    entries,
    image_files,
    left_out_of,
    split_folders,
    subfolders,
)
from adaptask.errors import ArgumentError, DataError

FRACTIONS = (0.64, 0.16, 0.2)

_Class = TypeVar("_Class")


def find_classes(
    source: Path, *, fractions: Sequence[float] | None, seed: int | None, split_lists: Path | None
) -> Found:
    """Return the classes of each split of the user's images.

    Args:
        source: A folder with one folder per class, or with one per group that has those of its
            classes, or with `train/`, `val/` and `test/` of such.
        fractions: The shares of the classes for train, val and test, if neither such folders nor
            lists decide; of the groups if there are groups. `FRACTIONS` by default.
        seed: Decides which classes go where, likewise; 0 by default.
        split_lists: A folder with `train.txt`, `val.txt` and `test.txt`, one class per line; by
            default `source` and `source/splits` are searched for them.

    Raises:
        ArgumentError: If fractions or a seed cannot be used, or folders or lists decide.
        DataError: If the folder cannot be split as it is.
    """
    is_random = not (fractions is None and seed is None)
    fractions = FRACTIONS if fractions is None else check_fractions(fractions)
    seed = 0 if seed is None else check_seed("seed", seed)
    outer, source = source, _unwrap(source)
    given = split_folders(source) if split_lists is None else {}
    if given:
        if is_random:
            raise not_random("the folders train/, val/ and test/")
        return _split_by_folders(source, given)
    folders = _class_folders(source)
    if len({folder.parent for folder in folders.values()}) == 1:  # images/ beside notes/: no group
        folders = {folder.name: folder for folder in folders.values()}
    left_out = [*_left_out(source, folders), *left_out_of(folders.values(), source)]
    if not folders:
        raise _no_classes(source, left_out)
    places = (source, source / "splits", outer, outer / "splits")
    lists = next((p for p in ([split_lists] if split_lists else places) if has_lists(p)), None)
    if lists is not None:
        if is_random:
            raise not_random(f"the lists in {lists}")
        parts = split_by_lists(lists, folders)
        listed = {name for part in parts.values() for name in part}
        left_out += [f"{name}/ (in no list)" for name in folders if name not in listed]
        return Found(_images(parts), f"split by the lists in {lists}", left_out)
    if split_lists is not None:
        raise DataError(f"{split_lists} has no train.txt; expected train.txt, val.txt, test.txt.")
    parts = split_at_random(fractions, seed, folders, lambda: _classes_found(folders))
    how = ", ".join(f"{fraction:g}" for fraction in fractions)
    how = f"split by {split_unit(folders)} at random ({how}), seed {seed}"
    return Found(_images(parts), how, left_out)


def _classes_found(folders: Mapping[str, Path]) -> str:
    found = [f"{name}/ ({len(image_files(folder)):,} images)" for name, folder in folders.items()]
    return f"Each folder with images in it is a class; found {', '.join(found)}."


def _class_folders(place: Path) -> dict[str, Path]:
    """Return the folders of classes by name; by group and name if no folder has images itself."""
    inside = subfolders(place)
    if direct := {folder.name: folder for folder in inside if image_files(folder)}:
        return direct
    return {
        f"{group.name}/{folder.name}": folder
        for group in inside
        for folder in subfolders(group)
        if image_files(folder)
    }


def split_unit(names: Iterable[str]) -> str:
    """Return what a random split does not divide: a "group", or a "class" if there are none."""
    return "group" if any("/" in name for name in names) else "class"


def check_dataset_name(name: str, taken: Sequence[str]) -> None:
    """Refuse names that cannot be folders or that belong to other datasets."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise ArgumentError(
            "the name of a dataset consists of lower-case letters, digits, '.', '_' and '-', and "
            f"starts with a letter or digit; got '{name}'."
        )
    if name == "downloads":
        raise ArgumentError("the name 'downloads' belongs to the folder of downloads; use another.")
    if name in taken:
        raise ArgumentError(f"the name '{name}' belongs to a dataset of the package; use another.")


def _unwrap(source: Path) -> Path:
    """Return the folder that has the classes: `source`, or what it wraps in one or two folders."""
    for _ in range(2):
        inside = subfolders(source)
        # A folder with images in it is a class, and a single train/ is a split: no wrappers. Other
        # files, such as a README, may be beside a wrapper.
        if len(inside) != 1 or image_files(source) or image_files(inside[0]):
            break
        if split_folders(source):
            break
        source = inside[0]
    return source


def has_lists(folder: Path) -> bool:
    """Return whether a folder has lists of classes."""
    return (folder / "train.txt").is_file()


def _files_beside(folder: Path) -> list[str]:
    """Return a count and an example of the files beside the folders of classes."""
    images = [path.name for path in image_files(folder)]
    lists = [f"{split}.txt" for split in SPLITS]
    read = {*images, *lists, *(path.name for path in subfolders(folder))}
    others = [entry.name for entry in entries(folder) if entry.name not in read]
    return [
        f"{len(names):,} {kind}{'' if len(names) == 1 else 's'} in no folder of a class, such as "
        f"{names[0]}"
        for kind, names in (("image", images), ("other file", others))
        if names
    ]


def _left_out(place: Path, folders: Mapping[str, Path], within: str = "") -> list[str]:
    """Return what is beside the folders of classes, and of groups, and is not read."""
    groups = sorted({folder.parent for folder in folders.values()} - {place})
    found = [*_files_beside(place), *_without_images(place, within, but=groups)]
    for group in groups:
        found += [*_files_beside(group), *_without_images(group, f"{within}{group.name}/")]
    return found


def _without_images(folder: Path, within: str = "", but: Sequence[Path] = ()) -> list[str]:
    """Return the folders in `folder` that have no images directly in them, and what they have."""
    left_out = []
    for child in subfolders(folder):
        if image_files(child) or has_lists(child) or child in but:
            continue
        files = [entry.name for entry in entries(child)]
        if subfolders(child):
            why = "its images must be directly in it, not in folders"
        elif files:
            kinds = sorted({Path(name).suffix.lower() or name for name in files})
            why = f"no images that can be read, only {name_some(kinds)}"
        else:
            why = "empty"
        left_out.append(f"{within}{child.name}/ ({why})")
    return left_out


def _no_classes(source: Path, left_out: Sequence[str]) -> DataError:
    return DataError(
        f"{source} has no folders with images in them; expected one folder per class, found "
        f"{name_some(left_out) or 'no folders'}."
    )


def _images(parts: Mapping[str, Mapping[str, Path]]) -> dict[str, list[ClassImages]]:
    for split, found in parts.items():
        if not found:
            raise DataError(f"the split '{split}' has no classes; expected folders with images.")
    return {
        split: [
            ClassImages(name, image_files(folder), str(folder)) for name, folder in found.items()
        ]
        for split, found in parts.items()
    }


def _split_by_folders(source: Path, places: Mapping[str, Path]) -> Found:
    parts = {split: _class_folders(place) for split, place in places.items()}
    check_disjoint(source, parts)
    left_out = _files_beside(source)
    left_out += [
        f"{folder.name}/ (beside {places['train'].name}/)"
        for folder in subfolders(source)
        if folder not in places.values() and not has_lists(folder)
    ]
    for split, place in places.items():
        left_out += _left_out(place, parts[split], f"{place.name}/")
    left_out += left_out_of([f for part in parts.values() for f in part.values()], source)
    names = ", ".join(f"{place.name}/" for place in places.values())
    return Found(_images(parts), f"split by its folders {names}", left_out)


def not_random(what: str) -> ArgumentError:
    """Return the error for fractions or a seed where something else decides the splits."""
    return ArgumentError(
        f"fractions and seed are for splitting at random, but {what} decide which class goes "
        "where. Omit the options, or move the folders or lists elsewhere."
    )


def check_disjoint(source: Path, parts: Mapping[str, Mapping[str, object]]) -> None:
    """Refuse split folders that divide the images of each class, as for classifiers."""
    counts = Counter(name for folders in parts.values() for name in folders)
    shared = sorted(name for name, count in counts.items() if count > 1)
    if shared:
        raise DataError(
            f"{' and '.join(f'{split}/' for split in parts)} in {source} share "
            f"{len(shared)} class{'es' if len(shared) > 1 else ''}: {name_some(shared)}. Few-shot "
            "splits are by class: put each class, with all its images, into one folder beside the "
            "others, and let --fractions or lists decide which classes train."
        )


def name_some(names: Sequence[str], most: int = 5) -> str:
    """Return the first of some names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def split_by_lists(lists: Path, folders: Mapping[str, _Class]) -> dict[str, dict[str, _Class]]:
    """Return the classes of each split, as `train.txt`, `val.txt` and `test.txt` name them.

    Raises:
        DataError: If they name a class twice, or one that there is not.
    """
    parts: dict[str, dict[str, _Class]] = {}
    owner: dict[str, str] = {}
    missing = []
    for split in SPLITS:
        file = lists / f"{split}.txt"
        if not file.is_file():
            continue
        lines = [line.strip() for line in file.read_text("utf-8-sig", "replace").splitlines()]
        wanted = [name for name in lines if name]
        missing += [f"'{name}' ({file.name})" for name in wanted if name not in folders]
        for name in wanted:
            if name in owner:
                raise DataError(f"{file} names the class '{name}', which is in '{owner[name]}'.")
            owner[name] = split
        parts[split] = {name: folders[name] for name in wanted if name in folders}
    if missing:
        noun = "a class" if len(missing) == 1 else f"{len(missing)} classes"
        raise DataError(f"the lists in {lists} name {noun} without content: {', '.join(missing)}.")
    return parts


def split_at_random(
    fractions: Sequence[float],
    seed: int,
    folders: Mapping[str, _Class],
    explain: Callable[[], str],
) -> dict[str, dict[str, _Class]]:
    """Return the classes of each split. Groups are not divided, so that they keep their size.

    Args:
        fractions: The shares of the classes for train, val and test.
        seed: Decides which classes go where.
        folders: The classes by name.
        explain: Returns the classes that there are, in words, if they are too few.

    Raises:
        DataError: If there are fewer classes, or groups, than splits.
    """
    units: dict[str, list[str]] = defaultdict(list)
    for name in sorted(folders):
        units[name.partition("/")[0]].append(name)
    shuffled = np.random.default_rng(seed).permutation(sorted(units)).tolist()
    parts: dict[str, dict[str, _Class]] = {}
    start = 0
    shares = _shares(fractions, folders, len(units), explain)
    for split, share in zip(SPLITS, shares, strict=True):
        if share:
            chosen = sorted(
                name for unit in shuffled[start : start + share] for name in units[unit]
            )
            parts[split] = {name: folders[name] for name in chosen}
        start += share
    return parts


def check_fractions(fractions: Sequence[float]) -> Sequence[float]:
    """Return three fractions that sum to 1.

    Raises:
        ArgumentError: If they do not.
    """
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


def _shares(
    fractions: Sequence[float],
    folders: Mapping[str, object],
    n_units: int,
    explain: Callable[[], str],
) -> list[int]:
    """Return how many classes, or groups, each split gets: as the fractions say, at least one."""
    n_parts = sum(fraction > 0 for fraction in fractions)
    if n_units < n_parts:
        if split_unit(folders) == "group":
            raise DataError(
                f"{n_units} groups cannot be split into {n_parts} parts, since a group is not "
                "divided. Say which classes go where: by folders or files train, val and test, by "
                "lists of classes, as group/class, in train.txt, val.txt and test.txt, or in "
                "Python by class_splits."
            )
        raise DataError(f"{len(folders)} classes cannot be split into {n_parts} parts. {explain()}")
    edges = np.rint(np.cumsum(fractions) * n_units).astype(int)
    shares: list[int] = np.diff(edges, prepend=0).tolist()
    for i, fraction in enumerate(fractions):
        if fraction > 0 and shares[i] == 0:
            shares[int(np.argmax(shares))] -= 1
            shares[i] = 1
    return shares
