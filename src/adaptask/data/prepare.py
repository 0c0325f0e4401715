"""From the files that the user has of a dataset to its cache: recognize, check, convert, write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptask.arguments import check_integer
from adaptask.data.archives import open_source
from adaptask.data.atomic_folder import scratch_folder
from adaptask.data.benchmarks import Benchmark
from adaptask.data.cache import cache_root, open_cache_writer
from adaptask.data.class_splits import SplitOptions
from adaptask.data.convert import Converter, ImageFormat, Progress, problems_found, worker_pool
from adaptask.data.datasets import (
    DATASETS,
    FEATURES,
    FOLDER,
    Generated,
    OwnImages,
    check_new_name,
    is_plugin,
)
from adaptask.data.features import PICKLES, SUFFIXES, Array, FoundFeatures, find_features
from adaptask.data.image_folder import find_classes
from adaptask.data.images import SPLITS
from adaptask.data.layouts import Found, Layout, candidate_folders
from adaptask.errors import AdaptaskError, ArgumentError, DataError


@dataclass(frozen=True)
class Prepared:
    """The result of a preparation."""

    dataset: str
    folder: Path
    source: str
    """What was recognized, in words."""
    n_classes: dict[str, int]
    n_images: dict[str, int]
    seconds: float
    left_out: tuple[str, ...] = ()
    """What was not read, each with the reason."""


def prepare(
    name: str,
    source: Path,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Convert a benchmark from any of its layouts into its cache, replacing one that is there.

    Args:
        name: A benchmark of `DATASETS`, such as `cifar-fs`.
        source: The folder, or a `.zip` or `.tar` archive, that has the data.
        workers: Number of processes; all cores by default.
        progress: Called with the number of images done and the number of all.

    Raises:
        ArgumentError: If there is no benchmark of that name.
        DataError: If the source is not recognized, incomplete, damaged or not to be trusted, or
            the disk is full. It names the first ten things that are wrong. Nothing was changed.
    """
    entry = DATASETS.get(name)
    if isinstance(entry, Generated):
        raise ArgumentError(
            f"'{name}' needs no preparation: it is made on first use, and again if "
            f"{cache_root() / name} has been removed."
        )
    if is_plugin(name):
        raise ArgumentError(f"'{name}' needs no preparation: it is a plug-in.")
    if entry is FEATURES:
        return prepare_features(source, progress=progress)
    if isinstance(entry, OwnImages):
        return prepare_folder(source, workers=workers, progress=progress)
    if entry is None:
        raise ArgumentError(
            f"there is no benchmark '{name}'; there are {', '.join(DATASETS)}. For your own images "
            f"run: adaptask data prepare folder --name {name} --source {source}"
        )
    return prepare_benchmark(entry, source, workers=workers, progress=progress)


def prepare_benchmark(
    benchmark: Benchmark,
    source: Path,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Do what `prepare` does, for a benchmark that need not be in `DATASETS`."""
    start = time.perf_counter()
    workers = _check_workers(workers)
    with _opened(source) as (opened, scratch):
        layout, folder = _recognize(benchmark, opened, source)
        found = _read(layout, folder, benchmark, scratch)
        if problems := _problems(benchmark, found):
            raise problems_found(
                problems,
                f"The source was read as: {layout.description}. Download or extract what is "
                "missing, or give another folder.",
            )
        description = layout.description + (f", {found.how}" if found.how else "")
        return _write_images(
            benchmark.name, description, found, benchmark.image_format, workers, progress, start
        )


def prepare_folder(
    source: Path,
    *,
    name: str = "folder",
    image_size: int = 84,
    gray: bool = False,
    fractions: Sequence[float] | None = None,
    seed: int | None = None,
    split_lists: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Convert the user's own images into a cache under a name of their choice.

    Args:
        source: A folder or archive with one folder per class.
        name: The name of the dataset, by which `load` and all commands then know it.
        image_size: Height and width of the images in the cache.
        gray: Whether images are made gray.
        fractions: Shares of the classes for train, val and test.
        seed: Decides which classes go where; 0 by default.
        split_lists: A folder with lists of classes, instead of fractions.
        workers: As for `prepare`.
        progress: As for `prepare`.
    """
    start = time.perf_counter()
    check_new_name(name, but=FOLDER.name)
    workers = _check_workers(workers)
    options = SplitOptions(fractions, seed, split_lists)
    image_size = check_integer("image_size", image_size, low=1, high=4096)
    image_format = ImageFormat(
        channels=1 if gray else 3, height=image_size, width=image_size, turn=True
    )
    with _opened(source) as (opened, _):
        found = find_classes(opened, options)
        how = found.how if opened == source else found.how.replace(str(opened), source.name)
        description = f"{source.resolve().name}, {how}"
        return _write_images(name, description, found, image_format, workers, progress, start)


def prepare_features(
    source: Path,
    *,
    name: str = FEATURES.name,
    fractions: Sequence[float] | None = None,
    seed: int | None = None,
    split_lists: Path | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Write the user's own features, computed by another network, as a cache under a name.

    Args:
        source: A `.npy`, `.npz` or `.safetensors` file, or a folder of them; see `find_features`.
        name: The name of the dataset, by which `load` and all commands then know it.
        fractions: Shares of the classes for train, val and test.
        seed: Decides which classes go where; 0 by default.
        split_lists: A folder with lists of classes, instead of fractions.
        progress: Called with the number of vectors done and the number of all.

    Raises:
        ArgumentError: If an argument cannot be used.
        DataError: If the features cannot be read, are of another type or size, or are not finite,
            or the disk is full. Nothing was changed.
    """
    start = time.perf_counter()
    check_new_name(name, but=FEATURES.name)
    options = SplitOptions(fractions, seed, split_lists)
    # A file of torch is a zip archive too, and is refused for what it is.
    is_plain = not source.exists() or source.suffix.lower() in (*SUFFIXES, *PICKLES)
    with _opened(source, is_plain=is_plain) as (opened, scratch):
        found = find_features(opened, scratch, options)
        how = found.how.replace(str(opened), source.name)
        return _write(
            name,
            f"{source.resolve().name}, features of size {found.size}, {how}",
            found,
            lambda classes: (chunk for vectors in classes for chunk in vectors.chunks()),
            image_shape=(found.size, 1, 1),
            dtype=found.dtype,
            progress=progress,
            start=start,
        )


def _check_workers(workers: int | None) -> int | None:
    return None if workers is None else check_integer("workers", workers, low=1)


@contextmanager
def _opened(source: Path, *, is_plain: bool = False) -> Iterator[tuple[Path, Path]]:
    """Yield a source, extracted if it is an archive, and an empty folder to work in."""
    root = cache_root()
    with (
        nullcontext(source) if is_plain else open_source(source, scratch=root) as opened,
        scratch_folder(root / "unpacked") as scratch,
        _clear_errors(source, opened),
    ):
        yield opened, scratch


def _write_images(
    dataset: str,
    source: str,
    found: Found,
    image_format: ImageFormat,
    workers: int | None,
    progress: Progress | None,
    start: float,
) -> Prepared:
    """Convert the images that were found, and write them as a cache."""
    n_images = sum(len(images) for classes in found.splits.values() for images in classes)
    with worker_pool(n_images, workers) as pool:
        converter = Converter(image_format, pool)
        return _write(
            dataset,
            source,
            found,
            converter.convert,
            image_shape=image_format.shape,
            progress=progress,
            start=start,
            finish=converter.finish,
        )


def _write(
    dataset: str,
    source: str,
    found: Found | FoundFeatures,
    pieces: Callable[[Any], Iterable[Array]],
    *,
    image_shape: tuple[int, int, int],
    dtype: str = "uint8",
    progress: Progress | None,
    start: float,
    finish: Callable[[], None] = lambda: None,
) -> Prepared:
    """Write what was found as a cache, or leave the one that is there as it was.

    `pieces` returns the images of some classes, in order, in pieces that fit memory. `finish` is
    called after all of them, and raises if some could not be read.
    """
    n_images = {split: sum(map(len, classes)) for split, classes in found.splits.items()}
    total, n_done = sum(n_images.values()), 0

    def counted(images: Iterable[Array]) -> Iterator[Array]:
        nonlocal n_done
        for piece in images:
            yield piece
            n_done += len(piece)
            if progress is not None:
                progress(n_done, total)

    folder = cache_root() / dataset
    with open_cache_writer(
        folder, dataset=dataset, source=source, image_shape=image_shape, dtype=dtype
    ) as writer:
        for split, classes in found.splits.items():
            names, counts = [c.name for c in classes], [len(c) for c in classes]
            writer.write_split(split, names, counts, counted(pieces(classes)))
        finish()
    return Prepared(
        dataset=dataset,
        folder=folder,
        source=source,
        n_classes={split: len(classes) for split, classes in found.splits.items()},
        n_images=n_images,
        seconds=time.perf_counter() - start,
        left_out=tuple(found.left_out),
    )


@contextmanager
def _clear_errors(source: Path, opened: Path) -> Iterator[None]:
    """Turn errors of reading into ours, and name the files of an archive after it."""
    try:
        yield
    except (ArgumentError, DataError) as error:
        if opened == source:
            raise
        raise type(error)(str(error).replace(str(opened), source.name)) from error
    except OSError as error:
        where = str(error.filename or source).replace(str(opened), str(source))
        raise DataError(
            f"{where} cannot be read: {error.strerror or error}. Nothing was changed."
        ) from error


def _recognize(benchmark: Benchmark, opened: Path, source: Path) -> tuple[Layout, Path]:
    for folder in candidate_folders(opened):
        for layout in benchmark.layouts:
            if layout.recognizes(folder, benchmark.classes):
                return layout, folder
    known = "".join(f"\n  - {layout.description}" for layout in benchmark.layouts)
    raise DataError(
        f"{source} is not a known layout of '{benchmark.name}'. Known are:{known}\n"
        f"The data is published at {benchmark.home}."
    )


def _read(layout: Layout, folder: Path, benchmark: Benchmark, scratch: Path) -> Found:
    try:
        return layout.read(folder, benchmark.classes, scratch)
    except (AdaptaskError, OSError):
        raise
    except Exception as error:
        # Files that can be opened may hold anything.
        raise DataError(
            f"{folder} looks like {layout.description}, but the content of its files has another "
            f"form ({type(error).__name__}: {error}). Nothing was changed; download the data again."
        ) from error


def _problems(benchmark: Benchmark, found: Found) -> list[str]:
    """Return what is wrong with the classes and counts of a source, in words."""
    problems = []
    fewest, most = benchmark.class_size
    expected = str(fewest) if fewest == most else f"{fewest} to {most}"
    for split in SPLITS:
        official = benchmark.classes[split]
        names = [c.name for c in found.splits[split]]
        # Some layouts number the classes instead of naming them: then only the number counts.
        if not set(names) & set(official) and len(names) != len(official):
            problems.append(f"split '{split}' must have {len(official)} classes, has {len(names)}")
        elif set(names) & set(official):
            for name in sorted(set(names) - set(official)):
                problems.append(f"class '{name}' does not belong to split '{split}'")
        for c in found.splits[split]:
            if not len(c.images):
                problems.append(f"class '{c.name}' ({split}) is missing: no images in {c.where}")
            elif not fewest <= len(c.images) <= most:
                problems.append(
                    f"class '{c.name}' ({split}) must have {expected} images, has "
                    f"{len(c.images)} in {c.where}"
                )
    n_images = sum(len(c.images) for split in SPLITS for c in found.splits[split])
    if not problems and n_images != benchmark.n_images:
        problems.append(f"there must be {benchmark.n_images} images in all, there are {n_images}")
    return problems
