"""What can be said of a cache by reading all of it: is it whole, and do its splits overlap?"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, groupby, islice, product
from pathlib import Path

from adaptask.data.cache import read_cache, read_meta
from adaptask.data.images import ImageSet
from adaptask.errors import DataError

MAX_EXAMPLES = 100

ClassPlace = tuple[str, str]
"""A class: its split and its name."""


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
    duplicates: Counter[tuple[ClassPlace, ClassPlace]]
    """Number of pairs of images in different splits that are the same in every pixel, by class."""
    examples: list[tuple[ImagePlace, ImagePlace]]
    """The first `MAX_EXAMPLES` of these pairs."""


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
    duplicates: Counter[tuple[ClassPlace, ClassPlace]] = Counter()
    examples: list[tuple[ImagePlace, ImagePlace]] = []
    for first, second in _equal_in_two_splits(sets):
        # All pairs are as many as the product of the two: they are counted, not listed.
        for (a, n_a), (b, n_b) in product(_class_counts(first), _class_counts(second)):
            duplicates[a, b] += n_a * n_b
        examples += islice(product(first, second), MAX_EXAMPLES - len(examples))
    return CacheReport(sum(len(s.images) for s in sets), duplicates, examples)


def _class_counts(places: list[ImagePlace]) -> Iterable[tuple[ClassPlace, int]]:
    return Counter((place.split, place.class_name) for place in places).items()


def _equal_in_two_splits(
    sets: list[ImageSet],
) -> Iterator[tuple[list[ImagePlace], list[ImagePlace]]]:
    """Yield, for every image that is in two splits, its places in the one and in the other."""
    seen: dict[bytes, list[ImagePlace]] = defaultdict(list)
    for images in sets:
        pixels = images.images.numpy()
        starts = images.class_starts.tolist()
        for name, start, stop in zip(images.class_names, starts[:-1], starts[1:], strict=True):
            for index in range(start, stop):
                digest = hashlib.blake2b(pixels[index].data, digest_size=16).digest()
                seen[digest].append(ImagePlace(images.split, name, index - start))
    for places in seen.values():
        by_split = [list(group) for _, group in groupby(places, key=lambda place: place.split)]
        yield from combinations(by_split, 2)
