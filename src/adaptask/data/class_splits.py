"""Which classes are for training, validation and testing: by name, by lists, or at random.

A class called `group/class` belongs to a group, which a random split does not divide.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from adaptask.arguments import check_number, check_seed, format_value
from adaptask.data.images import SPLITS, ImageSet
from adaptask.errors import ArgumentError, DataError

FRACTIONS = (0.64, 0.16, 0.2)

ClassSplits = Mapping[str, Sequence[str | int]] | tuple[float, float, float]
"""The classes of `train`, `val` and `test`, or which fraction of the classes each of them gets."""

_Class = TypeVar("_Class")


# --- classes in files -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitOptions:
    """What the user says about the splits of classes that are in files.

    Raises:
        ArgumentError: If fractions or a seed cannot be used.
    """

    fractions: Sequence[float] | None = None
    """The shares of the classes, or groups, for train, val and test; `FRACTIONS` by default."""
    seed: int | None = None
    """Decides which classes go where; 0 by default."""
    lists: Path | None = None
    """A folder with `train.txt`, `val.txt` and `test.txt`, one class per line."""

    def __post_init__(self) -> None:
        """Check the values, before anything is read."""
        if self.fractions is not None:
            check_fractions(self.fractions)
        if self.seed is not None:
            check_seed("seed", self.seed)

    def check_not_random(self, what: str) -> None:
        """Refuse fractions and a seed where something else decides the splits.

        Raises:
            ArgumentError: If there are any.
        """
        if self.fractions is not None or self.seed is not None:
            raise ArgumentError(
                f"fractions and seed are for splitting at random, but {what} decide which class "
                "goes where. Omit the options, or move the folders or lists elsewhere."
            )

    def divide(
        self, classes: Mapping[str, _Class], places: Sequence[Path], explain: Callable[[], str]
    ) -> tuple[dict[str, dict[str, _Class]], str, list[str]]:
        """Divide classes by lists if there are any, else at random.

        Args:
            classes: All classes by name.
            places: Folders that may have lists, if the user gave none.
            explain: Returns the classes that there are, in words, if they are too few.

        Returns:
            The classes of each split by name, what decided it, in words, and the names of classes
            in no list, if lists decided.

        Raises:
            ArgumentError: If lists decide, but fractions or a seed were given.
            DataError: If the classes cannot be divided so.
        """
        lists = next((p for p in ([self.lists] if self.lists else places) if has_lists(p)), None)
        if lists is not None:
            self.check_not_random(f"the lists in {lists}")
            parts = _split_by_lists(lists, classes)
            listed = {name for part in parts.values() for name in part}
            unlisted = [name for name in classes if name not in listed]
            return parts, f"split by the lists in {lists}", unlisted
        if self.lists is not None:
            raise DataError(
                f"{self.lists} has no train.txt; expected train.txt, val.txt, test.txt."
            )
        fractions = FRACTIONS if self.fractions is None else self.fractions
        seed = self.seed or 0
        parts = split_at_random(fractions, seed, classes, explain)
        shares = ", ".join(f"{fraction:g}" for fraction in fractions)
        return parts, f"split by {_unit(classes)} at random ({shares}), seed {seed}", []


def has_lists(folder: Path) -> bool:
    """Return whether a folder has lists of classes."""
    return (folder / "train.txt").is_file()


def repeated_classes(parts: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the classes that are in two splits, or twice in one."""
    counts = Counter(name for part in parts.values() for name in part)
    return sorted(name for name, count in counts.items() if count > 1)


def _split_by_lists(lists: Path, classes: Mapping[str, _Class]) -> dict[str, dict[str, _Class]]:
    parts: dict[str, dict[str, _Class]] = {}
    owner: dict[str, str] = {}
    missing = []
    for split in SPLITS:
        file = lists / f"{split}.txt"
        if not file.is_file():
            continue
        lines = [line.strip() for line in file.read_text("utf-8-sig", "replace").splitlines()]
        wanted = [name for name in lines if name]
        missing += [f"'{name}' ({file.name})" for name in wanted if name not in classes]
        for name in wanted:
            if name in owner:
                raise DataError(f"{file} names the class '{name}', which is in '{owner[name]}'.")
            owner[name] = split
        parts[split] = {name: classes[name] for name in wanted if name in classes}
    if missing:
        noun = "a class" if len(missing) == 1 else f"{len(missing)} classes"
        raise DataError(f"the lists in {lists} name {noun} without content: {', '.join(missing)}.")
    return parts


# --- at random ------------------------------------------------------------------------------------


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


def split_at_random(
    fractions: Sequence[float],
    seed: int,
    classes: Mapping[str, _Class],
    explain: Callable[[], str],
) -> dict[str, dict[str, _Class]]:
    """Return the classes of each split. Groups are not divided, so that they keep their size.

    Args:
        fractions: The shares of the classes for train, val and test.
        seed: Decides which classes go where.
        classes: The classes by name.
        explain: Returns the classes that there are, in words, if they are too few.

    Raises:
        DataError: If there are fewer classes, or groups, than splits.
    """
    units: dict[str, list[str]] = defaultdict(list)
    for name in sorted(classes):
        units[name.partition("/")[0]].append(name)
    shuffled = np.random.default_rng(seed).permutation(sorted(units)).tolist()
    parts: dict[str, dict[str, _Class]] = {}
    start = 0
    shares = _shares(fractions, classes, len(units), explain)
    for split, share in zip(SPLITS, shares, strict=True):
        if share:
            chosen = sorted(
                name for unit in shuffled[start : start + share] for name in units[unit]
            )
            parts[split] = {name: classes[name] for name in chosen}
        start += share
    return parts


def _unit(names: Iterable[str]) -> str:
    """Return what a random split does not divide: a "group", or a "class" if there are none."""
    return "group" if any("/" in name for name in names) else "class"


def _shares(
    fractions: Sequence[float],
    classes: Mapping[str, object],
    n_units: int,
    explain: Callable[[], str],
) -> list[int]:
    """Return how many classes, or groups, each split gets: as the fractions say, at least one."""
    n_parts = sum(fraction > 0 for fraction in fractions)
    if n_units < n_parts:
        if _unit(classes) == "group":
            raise DataError(
                f"{n_units} groups cannot be split into {n_parts} parts, since a group is not "
                "divided. Say which classes go where: by folders or files train, val and test, by "
                "lists of classes, as group/class, in train.txt, val.txt and test.txt, or in "
                "Python by class_splits."
            )
        raise DataError(f"{len(classes)} classes cannot be split into {n_parts} parts. {explain()}")
    edges = np.rint(np.cumsum(fractions) * n_units).astype(int)
    shares: list[int] = np.diff(edges, prepend=0).tolist()
    for i, fraction in enumerate(fractions):
        if fraction > 0 and shares[i] == 0:
            shares[int(np.argmax(shares))] -= 1
            shares[i] = 1
    return shares


# --- classes in memory ----------------------------------------------------------------------------


def split_classes(whole: ImageSet, class_splits: ClassSplits | None) -> dict[str, ImageSet]:
    """Return an image set by split: `train` has all classes if nothing is said.

    Args:
        whole: All classes.
        class_splits: The classes of each split by name, or three fractions, drawn with seed 0.

    Raises:
        ArgumentError: If a split is not known, has no classes, or shares one with another.
        DataError: If there is one class only, or fewer than splits.
    """
    names = {name: name for name in whole.class_names}
    if len(names) < 2:
        raise DataError(
            f"{whole.dataset} has one class, {whole.class_names[0]!r}; a task needs at least 2."
        )
    if class_splits is None:
        return {"train": whole}
    class_splits = _plain(class_splits)
    if isinstance(class_splits, Mapping):
        given = {split: _plain(part) for split, part in class_splits.items()}
        for split, part in given.items():
            if isinstance(part, str | bytes) or not isinstance(part, Iterable):
                raise ArgumentError(
                    f"class_splits must have a list of classes for '{split}'; got "
                    f"{format_value(part)}. Fractions are three numbers: (0.64, 0.16, 0.2)."
                )
        parts = {split: [str(name) for name in part] for split, part in given.items()}
    elif isinstance(class_splits, str) or not isinstance(class_splits, Sequence):
        raise ArgumentError(
            "class_splits must be the classes of each split, such as {'train': [...], 'test': "
            "[...]}, or three fractions for train, val and test, such as (0.64, 0.16, 0.2); got "
            f"{format_value(class_splits)}."
        )
    else:
        fractions = check_fractions(class_splits)
        drawn = split_at_random(fractions, 0, names, lambda: f"Found {', '.join(names)}.")
        parts = {split: list(part) for split, part in drawn.items()}
    if "train" not in parts or not parts.keys() <= set(SPLITS):
        raise ArgumentError(
            f"class_splits must have the classes of 'train', and may have those of 'val' and "
            f"'test'; got {list(parts)}."
        )
    if shared := repeated_classes(parts):
        raise ArgumentError(f"class_splits must name a class once; twice: {shared[:5]}.")
    return {split: _take(whole, parts[split], split) for split in SPLITS if split in parts}


def _plain(value: Any) -> Any:
    """Return the content of a tensor or an array, and anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _take(whole: ImageSet, class_names: Sequence[str], split: str) -> ImageSet:
    """Return some classes of an image set, in the order given, as a split of their own."""
    import torch  # here: the commands for datasets need none

    place = {name: i for i, name in enumerate(whole.class_names)}
    unknown = [name for name in class_names if name not in place]
    if unknown or not class_names:
        raise ArgumentError(
            f"the split '{split}' must name one or more different classes of {whole.dataset}, "
            f"such as '{whole.class_names[0]}'; got {list(class_names)[:5]}"
            + (f", of which {unknown[:5]} are not there." if unknown else ".")
        )
    starts = whole.class_starts.tolist()
    images = [whole.images[starts[place[name]] : starts[place[name] + 1]] for name in class_names]
    return ImageSet(
        dataset=whole.dataset,
        split=split,
        images=torch.cat(images),
        class_names=tuple(class_names),
        class_starts=torch.tensor([0, *map(len, images)]).cumsum(0),
    )
