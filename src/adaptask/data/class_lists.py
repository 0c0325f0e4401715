"""The official class lists of every benchmark, as files of the package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources

SPLITS = ("train", "val", "test")

ClassLists = Mapping[str, tuple[str, ...]]
"""The classes of each split, in the order in which they are numbered."""

OMNIGLOT_ROTATIONS = (0, 90, 180, 270)


@cache
def class_lists(dataset: str) -> ClassLists:
    """Return the classes of each split of a benchmark, such as `cifar-fs`.

    >>> {split: len(names) for split, names in class_lists("cifar-fs").items()}
    {'train': 64, 'val': 16, 'test': 20}
    """
    file = resources.files("adaptask.data") / "splits" / f"{dataset}.json"
    splits = json.loads(file.read_text(encoding="utf-8"))["splits"]
    return {split: tuple(splits[split]) for split in SPLITS}


def with_rotations(lists: ClassLists) -> ClassLists:
    """Return class lists in which each class appears four times, turned by quarter circles."""
    return {
        split: tuple(f"{name}/rot{angle:03d}" for name in names for angle in OMNIGLOT_ROTATIONS)
        for split, names in lists.items()
    }
