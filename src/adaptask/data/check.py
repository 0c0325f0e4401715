"""What can be said of a cache by reading all of it: is it whole, and do its splits overlap?"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from adaptask.data.cache import read_cache, read_meta
from adaptask.data.images import ImageSet
from adaptask.errors import DataError


@dataclass(frozen=True)
class ImagePlace:
    """One image of a dataset."""

    split: str
    class_name: str
    index: int
    """Its number within the class."""


@dataclass(frozen=True)
class CacheReport:
    """What a check of a cache found."""

    n_images: int
    duplicates: list[tuple[ImagePlace, ImagePlace]]
    """Pairs of images in different splits that are the same in every pixel."""


def check_cache(folder: Path) -> CacheReport:
    """Read a whole cache, compare it with its checksums and look for images in two splits.

    Raises:
        DataError: A file is not what was written.
    """
    splits = read_meta(folder)["splits"]
    for split, entry in splits.items():
        path = folder / f"{split}.npy"
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DataError(f"the cache file {path} cannot be read: {error.strerror}.") from error
        if digest != entry["sha256"]:
            raise DataError(
                f"the cache file {path} does not match its checksum: it was changed or is "
                "damaged. Prepare the dataset again."
            )
    sets = [read_cache(folder, split) for split in splits]
    return CacheReport(sum(len(s.images) for s in sets), _duplicates(sets))


def _duplicates(sets: list[ImageSet]) -> list[tuple[ImagePlace, ImagePlace]]:
    seen: dict[bytes, list[ImagePlace]] = defaultdict(list)
    repeated: dict[bytes, None] = {}
    for images in sets:
        pixels = images.images.numpy()
        starts = images.class_starts.tolist()
        for name, start, stop in zip(images.class_names, starts[:-1], starts[1:], strict=True):
            for index in range(start, stop):
                digest = hashlib.blake2b(pixels[index].data, digest_size=16).digest()
                if digest in seen:
                    repeated[digest] = None
                seen[digest].append(ImagePlace(images.split, name, index - start))
    return [
        (first, second)
        for digest in repeated
        for first, second in combinations(seen[digest], 2)
        if first.split != second.split
    ]
