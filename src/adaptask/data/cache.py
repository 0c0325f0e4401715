"""Prepared datasets on disk: one memory-mapped array of images per split, and one `meta.json`.

Torch is imported when images are read: `adaptask data list` reads `meta.json` alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from adaptask.data.atomic_folder import not_written, replace_folder, restore_folder
from adaptask.data.images import SPLITS, ImageSet
from adaptask.data.normalization import statistics_for
from adaptask.errors import ArgumentError, DataError
from adaptask.parsing import parse_json

FORMAT = 1
"""Version of the layout written here; a cache of another version must be prepared again."""

Pixels = np.ndarray[Any, np.dtype[Any]]
"""Bytes of images, or floats of features."""
_DTYPES = {"uint8": "|u1", "float16": "<f2", "float32": "<f4"}
"""What a cache may hold, and how NumPy writes it."""


def cache_root() -> Path:
    """Return the folder that holds all caches: `$ADAPTASK_CACHE`, or the user's cache folder."""
    chosen = os.environ.get("ADAPTASK_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():
        return xdg / "adaptask"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "adaptask"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "adaptask" / "cache"
    return Path.home() / ".cache" / "adaptask"


class CacheWriter:
    """Writes the splits of one cache, image by image, without ever holding a whole split.

    Made by `open_cache_writer`. It writes in the ordinary way, not into a mapped file: on a full
    disk a write fails with an error, whereas a store into a mapped page would kill the process.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dataset: str,
        source: str,
        image_shape: tuple[int, int, int],
        dtype: str = "uint8",
    ) -> None:
        self._folder = folder
        self._image_shape = image_shape
        self._dtype = np.dtype(_DTYPES[dtype])
        self._meta: dict[str, Any] = {
            "format": FORMAT,
            "dataset": dataset,
            "source": source,
            "image_shape": list(image_shape),
            "splits": {},
        }
        if dtype != "uint8":
            self._meta["dtype"] = dtype

    def write_split(
        self,
        split: str,
        class_names: Sequence[str],
        class_counts: Sequence[int],
        chunks: Iterable[Pixels],
    ) -> None:
        """Write one split from consecutive pieces of it.

        Args:
            split: `train`, `val` or `test`.
            class_names: Names of the classes, distinct.
            class_counts: Number of images of each class, at least 1.
            chunks: The images in the order of the classes, each piece
                `images x channels x height x width`, of the type of the cache.
        """
        _check_classes(split, class_names, class_counts)
        starts = [0, *np.cumsum(class_counts).tolist()]
        shape = (starts[-1], *self._image_shape)
        n_bytes = int(np.prod(shape, dtype=np.int64)) * self._dtype.itemsize
        _check_space(self._folder, n_bytes)
        n_written, statistics, digest = self._write_array(split, shape, chunks)
        if n_written != starts[-1]:
            raise DataError(f"split '{split}' must have {starts[-1]} images; got {n_written}.")
        if split == "train":
            self._meta["mean"], self._meta["std"] = statistics
        self._meta["splits"][split] = {
            "class_names": list(class_names),
            "class_starts": starts,
            "sha256": digest,
        }

    def _write_array(
        self, split: str, shape: tuple[int, ...], chunks: Iterable[Pixels]
    ) -> tuple[int, tuple[list[float], list[float]], str]:
        """Return the number of images, mean and deviation, and the file's checksum."""
        statistics = statistics_for(self._dtype, shape[1])
        n_written = 0
        with (self._folder / f"{split}.npy").open("wb") as file:
            sink = _HashingSink(file)
            header = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(sink, header)
            for chunk in chunks:
                self._check_chunk(split, chunk)
                sink.write(np.ascontiguousarray(chunk, dtype=self._dtype).data)
                statistics.add(chunk)
                n_written += len(chunk)
            file.flush()
            os.fsync(file.fileno())
        return n_written, statistics.result(), sink.hexdigest()

    def finish(self) -> None:
        """Write `meta.json`; without it the folder is not a cache."""
        if "train" not in self._meta["splits"]:
            raise ArgumentError("a cache needs a 'train' split: its statistics normalize images.")
        meta = self._meta | {"sha256": _digest(self._meta)}
        with (self._folder / "meta.json").open("w", encoding="utf-8") as file:
            json.dump(meta, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    def _check_chunk(self, split: str, chunk: Pixels) -> None:
        if chunk.dtype != self._dtype or chunk.shape[1:] != self._image_shape:
            raise DataError(
                f"images of split '{split}' must be {self._dtype} of shape {self._image_shape} "
                f"each; got {chunk.dtype} of shape {chunk.shape[1:]}."
            )
        if self._dtype.kind == "f" and not np.isfinite(chunk).all():
            raise DataError(
                f"features of split '{split}' must be finite; some are NaN or infinite. Leave "
                "those vectors out, or compute them again."
            )


@contextmanager
def open_cache_writer(
    folder: Path,
    *,
    dataset: str,
    source: str,
    image_shape: tuple[int, int, int],
    dtype: str = "uint8",
    unless: Callable[[], bool] = lambda: False,
) -> Iterator[CacheWriter]:
    """Yield a writer whose splits become the cache `folder` when the block ends well.

    A block that fails, also because the disk is full, leaves `folder` as it was and nothing beside
    it. So does a block at whose end `unless` is true.
    """
    try:
        with replace_folder(folder, unless=unless) as partial:
            writer = CacheWriter(
                partial, dataset=dataset, source=source, image_shape=image_shape, dtype=dtype
            )
            yield writer
            writer.finish()
    except OSError as error:
        raise not_written(folder, error) from error


def write_cache(
    folder: Path,
    splits: Mapping[str, ImageSet],
    *,
    source: str,
    unless: Callable[[], bool] = lambda: False,
) -> None:
    """Write `splits`, held in memory, as the cache `folder`, replacing one that is there.

    Args:
        folder: Where the cache will be.
        splits: The image sets by the name of their split, `train` among them.
        source: Where the images came from, in words.
        unless: Called at the end; if it returns true, the cache that is there by then stays.
    """
    if not splits:
        raise ArgumentError("a cache needs a 'train' split; got no splits.")
    first = next(iter(splits.values()))
    with open_cache_writer(
        folder,
        dataset=first.dataset,
        source=source,
        image_shape=first.image_shape,
        dtype=str(first.images.dtype).removeprefix("torch."),
        unless=unless,
    ) as writer:
        for split, images in splits.items():
            counts = images.class_starts.diff().tolist()
            pixels = images.images.numpy(force=True)
            pieces = (pixels[i : i + 4096] for i in range(0, len(pixels), 4096))
            writer.write_split(split, images.class_names, counts, pieces)


def read_cache(
    folder: Path, split: str, group_of: Callable[[str], str | None] | None = None
) -> ImageSet:
    """Return a split of a cache, its images mapped from disk and read as they are used.

    Args:
        folder: The cache.
        split: `train`, `val` or `test`.
        group_of: The group of a class by its name. Classes have groups if all are known.

    The file is checked against `meta.json` for size and shape, not for its content: `adaptask data
    check` does that. Writing into the images changes only the copy of this process.
    """
    import torch

    meta = read_meta(folder)
    if split not in meta["splits"]:
        raise DataError(f"{folder} has no split '{split}'; it has {_listed(meta['splits'])}.")
    entry = meta["splits"][split]
    starts = entry["class_starts"]
    path = folder / f"{split}.npy"
    shape = (starts[-1], *meta["image_shape"])
    try:
        status = path.stat()
        pixels = np.load(path, mmap_mode="c", allow_pickle=False)
    except Exception as error:  # a file with wrong bytes can fail in any way
        raise _damaged(path, f"it cannot be mapped ({error})") from error
    dtype = meta.get("dtype", "uint8")
    if pixels.dtype != dtype or pixels.shape != shape:
        raise _damaged(path, f"expected {dtype} {shape}, got {pixels.dtype} {pixels.shape}")
    groups = [group for name in entry["class_names"] if group_of and (group := group_of(name))]
    image_set = ImageSet(
        dataset=meta["dataset"],
        split=split,
        images=torch.from_numpy(pixels),
        class_names=tuple(entry["class_names"]),
        class_starts=torch.tensor(starts, dtype=torch.int64),
        groups=tuple(groups) if len(groups) == len(entry["class_names"]) else None,
    )
    file = (str(path), status.st_ino, status.st_mtime_ns, status.st_size)
    object.__setattr__(image_set, "file", file)  # frozen, and not an argument: see there
    return image_set


def read_statistics(folder: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of the training pixels, each `channels`, in [0, 1].

    Of features: those of every feature, in their own units.
    """
    meta = read_meta(folder)
    return tuple(meta["mean"]), tuple(meta["std"])


def is_cache_of(folder: Path, source: str) -> bool:
    """Return whether there is a cache from `source` with all its files, without reading them."""
    try:
        meta = read_meta(folder)
        for split in meta["splits"]:
            read_cache(folder, split)
    except DataError:
        return False
    return bool(meta["source"] == source)


def read_meta(folder: Path) -> dict[str, Any]:
    """Return the content of `meta.json`, after verifying its checksum."""
    restore_folder(folder)
    path = folder / "meta.json"
    try:
        meta = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"there is no cache at {folder}: {path.name} is missing.") from error
    except (OSError, ValueError) as error:
        raise _damaged(path, f"it cannot be read ({error})") from error
    if not isinstance(meta, dict) or "format" not in meta:
        raise _damaged(path, "it is not the description of a cache")
    if meta["format"] != FORMAT:
        raise DataError(
            f"{folder} has cache format {meta['format']}, this version of adaptask reads {FORMAT}. "
            "Prepare the dataset again."
        )
    digest = meta.pop("sha256", None)
    if digest != _digest(meta):
        raise _damaged(path, "its content does not match its checksum")
    if not _is_description(meta):
        raise _damaged(path, "it is not the description of a cache")
    return meta


def _is_description(meta: dict[str, Any]) -> bool:
    """Return whether all entries are there and of the right type."""
    try:
        shape, splits = meta["image_shape"], meta["splits"]
        statistics = [*meta["mean"], *meta["std"]]
        is_image = meta.get("dtype", "uint8") == "uint8"
        return (
            all(isinstance(meta[name], str) for name in ("dataset", "source"))
            and all(type(size) is int and size > 0 for size in shape)
            and len(shape) == 3
            and len(meta["mean"]) == len(meta["std"]) == shape[0]
            and meta.get("dtype", "uint8") in _DTYPES
            and all(isinstance(value, float) and isfinite(value) for value in statistics)
            and (not is_image or all(0 <= value <= 1 for value in statistics))
            and (is_image or shape[1:] == [1, 1])
            and all(map(_is_split, splits.items()))
        )
    except (AttributeError, KeyError, TypeError):
        return False


def _is_split(item: tuple[str, dict[str, Any]]) -> bool:
    name, entry = item
    class_names, starts = entry["class_names"], entry["class_starts"]
    return (
        name in SPLITS
        and isinstance(entry["sha256"], str)
        and all(isinstance(name, str) for name in class_names)
        and all(type(start) is int and start < 1 << 62 for start in starts)
        and len(starts) == len(class_names) + 1 > 1
        and starts[0] == 0
        and all(start < stop for start, stop in pairwise(starts))
    )


def _damaged(path: Path, what: str) -> DataError:
    return DataError(f"the cache file {path} is damaged: {what}. Prepare the dataset again.")


def _digest(meta: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


class _HashingSink:
    """Writes to a file and hashes what is written, so that nothing is read back."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> int:
        self._hash.update(data)
        return self._file.write(data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def _check_classes(split: str, class_names: Sequence[str], class_counts: Sequence[int]) -> None:
    if split not in SPLITS:
        raise ArgumentError(f"a split is 'train', 'val' or 'test'; got '{split}'.")
    if len(class_names) != len(class_counts) or not class_names:
        raise ArgumentError(
            f"split '{split}' needs one count for each of its classes, at least one; got "
            f"{len(class_names)} names and {len(class_counts)} counts."
        )
    if len(set(class_names)) != len(class_names):
        twice = sorted({name for name in class_names if class_names.count(name) > 1})
        raise DataError(f"class names of split '{split}' must be distinct; twice: {twice[:10]}.")
    for name, count in zip(class_names, class_counts, strict=True):
        if count < 1:
            raise DataError(f"class '{name}' of split '{split}' has no images.")


def _check_space(folder: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise DataError(
            f"the cache needs {n_bytes / 1e6:,.0f} MB in {folder.parent}, {free / 1e6:,.0f} MB "
            "are free. Make room there, or set ADAPTASK_CACHE to a folder with more."
        )


# --- checking a whole cache -----------------------------------------------------------------------

ClassPlace = tuple[str, str]
"""A class: its split and its name."""


@dataclass(frozen=True)
class CacheReport:
    """The result of a check of a dataset."""

    n_images: int
    duplicates: Counter[tuple[ClassPlace, ClassPlace]]
    """Number of pairs of images in different splits that are equal in every pixel, by class."""


def check_cache(folder: Path) -> CacheReport:
    """Read a whole cache, compare it with its checksums and look for images in two splits.

    Raises:
        DataError: If a file is not what was written.
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
    return find_duplicates([read_cache(folder, split) for split in splits])


def find_duplicates(image_sets: Sequence[ImageSet]) -> CacheReport:
    """Look for images that are in two splits of a dataset."""
    seen: dict[bytes, Counter[ClassPlace]] = defaultdict(Counter)
    for image_set in image_sets:
        pixels = image_set.images.numpy(force=True)
        names = np.repeat(np.arange(image_set.n_classes), image_set.class_counts())
        for image, number in zip(pixels, names.tolist(), strict=True):
            digest = hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=16).digest()
            seen[digest][image_set.split, image_set.class_names[number]] += 1
    duplicates: Counter[tuple[ClassPlace, ClassPlace]] = Counter()
    for places in seen.values():
        for first, second in combinations(places, 2):
            if first[0] != second[0]:
                duplicates[first, second] += places[first] * places[second]
    return CacheReport(sum(len(images.images) for images in image_sets), duplicates)
