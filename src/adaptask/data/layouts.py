"""What every reader of a layout gives: for each class of each split, where its images are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptask.data.class_lists import ClassLists

IMAGE_SUFFIXES = frozenset(
    [".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"]
)


@dataclass(frozen=True)
class Rows:
    """Some images of a larger array, taken out only when they are needed."""

    array: np.ndarray[Any, np.dtype[np.uint8]]
    """`images x height x width x channels`."""
    indices: Sequence[int] | np.ndarray[Any, np.dtype[np.int64]]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, piece: slice) -> np.ndarray[Any, np.dtype[np.uint8]]:
        chosen: np.ndarray[Any, np.dtype[np.uint8]] = self.array[np.asarray(self.indices[piece])]
        return chosen


@dataclass(frozen=True)
class ClassImages:
    """The images of one class as they lie in the source: files, encoded images or pixels."""

    name: str
    images: Sequence[Path] | Sequence[bytes] | Rows
    where: str
    """The file or folder they are in, for messages."""
    rotation: int = 0
    """By how many degrees they are to be turned, counter-clockwise: 0, 90, 180 or 270."""


Splits = Mapping[str, Sequence[ClassImages]]


@dataclass(frozen=True)
class Layout:
    """One way in which people have a dataset on disk."""

    description: str
    """One line for people: in messages, in the documentation and in `meta.json`."""
    recognises: Callable[[Path, ClassLists], bool]
    """Whether a folder is laid out like this."""
    read: Callable[[Path, ClassLists, Path], Splits]
    """Find the images in a folder, given the class lists and an empty folder to work in."""


def image_files(folder: Path) -> list[Path]:
    """Return the images directly in a folder, by name; an absent folder has none."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        folder / name
        for name in names
        if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES
    ]


def candidate_folders(source: Path, *, most: int = 64) -> Iterator[Path]:
    """Yield a folder and those in it, two levels down: archives like to wrap their content."""
    level = [source]
    for _ in range(3):
        yield from level
        level = [
            child
            for folder in level
            for child in sorted(folder.iterdir())[:most]
            if child.is_dir() and not child.name.startswith(".")
        ][:most]
