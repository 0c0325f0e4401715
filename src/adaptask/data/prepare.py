"""From what the user has of a dataset to its cache: recognise, check, convert, write."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from adaptask.arguments import check_integer
from adaptask.data.archives import open_source
from adaptask.data.atomic_folder import scratch_folder
from adaptask.data.cache import cache_root, open_cache_writer
from adaptask.data.class_lists import SPLITS
from adaptask.data.convert import Converter, ImageForm, Progress, problems_found, worker_pool
from adaptask.data.layouts import Layout, Splits, candidate_folders
from adaptask.data.own_images import check_own_name, find_own_images, unwrapped
from adaptask.data.registry import DATASETS, Benchmark, Generated, OwnImages
from adaptask.errors import AdaptaskError, ArgumentError, DataError


@dataclass(frozen=True)
class Prepared:
    """What a preparation did."""

    dataset: str
    folder: Path
    source: str
    """What was recognised, in words."""
    n_classes: dict[str, int]
    n_images: dict[str, int]
    seconds: float
    left_out: tuple[str, ...] = ()
    """For images of the user's own: the folders that are in no split, each with the reason."""


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
        workers: Number of processes; as many as there are cores where it is not given.
        progress: Called with the numbers of images done and of all.

    Raises:
        ArgumentError: There is no benchmark of that name.
        DataError: The source is not recognised, incomplete, damaged or not to be trusted, or the
            disk is full. It names the first ten things that are wrong. Nothing was changed.
    """
    if workers is not None:
        workers = check_integer("workers", workers, low=1)
    entry = DATASETS.get(name)
    if isinstance(entry, Generated):
        raise ArgumentError(
            f"'{name}' needs no preparation: it is made on first use, and anew where "
            f"{cache_root() / name} has been removed."
        )
    if isinstance(entry, OwnImages):
        return prepare_own(source, workers=workers, progress=progress)
    if entry is None:
        raise ArgumentError(
            f"there is no benchmark '{name}'; there are {', '.join(DATASETS)}. For images of your "
            f"own run: adaptask data prepare folder --called {name} --source {source}"
        )
    return prepare_benchmark(entry, source, workers=workers, progress=progress)


def prepare_benchmark(
    benchmark: Benchmark,
    source: Path,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Do what `prepare` does, for a benchmark that need not be in the registry."""
    start = time.perf_counter()
    root = cache_root()
    with open_source(source, scratch=root) as opened, scratch_folder(root / "unpacked") as scratch:
        try:
            layout, folder = _recognise(benchmark, opened, source)
            splits = _read(layout, folder, benchmark, scratch)
        except OSError as error:
            raise DataError(f"{source} cannot be read: {error}. Nothing was changed.") from error
        problems = _problems(benchmark, splits)
        if problems:
            raise problems_found(problems)
        write = _Writing(benchmark.name, layout.description, benchmark.form, workers, progress)
        write.splits(root / benchmark.name, splits)
    return write.summary(root / benchmark.name, splits, time.perf_counter() - start)


def prepare_own(
    source: Path,
    *,
    name: str = "folder",
    image_size: int = 84,
    grey: bool = False,
    fractions: Sequence[float] | None = None,
    seed: int | None = None,
    split_lists: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Convert the user's own images into a cache under a name of their choice.

    Args:
        source: A folder or archive with one folder a class.
        name: What the dataset is to be called; `load` and all commands then know it.
        image_size: Height and width to which every image is brought.
        grey: Whether images are made grey.
        fractions: Part of the classes for train, val and test; see `find_own_images`.
        seed: Decides which classes go where; 0 where it is not given.
        split_lists: A folder with lists of classes, instead of fractions.
        workers: As for `prepare`.
        progress: As for `prepare`.
    """
    start = time.perf_counter()
    check_own_name(name, [known for known in DATASETS if known != "folder"])
    image_size = check_integer("image_size", image_size, low=1, high=4096)
    if workers is not None:
        workers = check_integer("workers", workers, low=1)
    channels = 1 if grey else 3
    form = ImageForm(channels=channels, height=image_size, width=image_size, turn=True)
    root = cache_root()
    with open_source(source, scratch=root) as opened, _named_after(source, opened):
        found = find_own_images(
            unwrapped(opened), fractions=fractions, seed=seed, split_lists=split_lists
        )
        how = found.how.replace(str(opened), source.name) if opened != source else found.how
        write = _Writing(name, f"{source.resolve().name}, {how}", form, workers, progress)
        write.splits(root / name, found.splits)
    done = write.summary(root / name, found.splits, time.perf_counter() - start)
    return replace(done, left_out=tuple(found.left_out))


@contextmanager
def _named_after(source: Path, opened: Path) -> Iterator[None]:
    """Let errors name the files of an archive after it, not after where they were extracted."""
    try:
        yield
    except (ArgumentError, DataError) as error:
        if opened == source:
            raise
        raise type(error)(str(error).replace(str(opened), source.name)) from error


@dataclass(frozen=True)
class _Writing:
    """How the images of a dataset become its cache."""

    dataset: str
    source: str
    form: ImageForm
    workers: int | None
    progress: Progress | None

    def splits(self, folder: Path, splits: Splits) -> None:
        """Convert images and write them as the cache `folder`, or leave it as it was."""
        n_images = sum(len(c.images) for classes in splits.values() for c in classes)
        with (
            open_cache_writer(
                folder, dataset=self.dataset, source=self.source, image_shape=self.form.shape
            ) as writer,
            worker_pool(n_images, self.workers) as pool,
        ):
            converter = Converter(self.form, n_images=n_images, pool=pool, progress=self.progress)
            for split, classes in splits.items():
                counts = [len(c.images) for c in classes]
                pixels = converter.convert(classes)
                writer.write_split(split, [c.name for c in classes], counts, pixels)
            converter.finish()

    def summary(self, folder: Path, splits: Splits, seconds: float) -> Prepared:
        """Return what was done."""
        return Prepared(
            dataset=self.dataset,
            folder=folder,
            source=self.source,
            n_classes={s: len(classes) for s, classes in splits.items()},
            n_images={s: sum(len(c.images) for c in classes) for s, classes in splits.items()},
            seconds=seconds,
        )


def _recognise(benchmark: Benchmark, opened: Path, source: Path) -> tuple[Layout, Path]:
    for folder in candidate_folders(opened):
        for layout in benchmark.layouts:
            if layout.recognises(folder, benchmark.classes):
                return layout, folder
    known = "".join(f"\n  - {layout.description}" for layout in benchmark.layouts)
    raise DataError(
        f"{source} is not a known layout of '{benchmark.name}'. Known are:{known}\n"
        f"The data is to be had from {benchmark.home}."
    )


def _read(layout: Layout, folder: Path, benchmark: Benchmark, scratch: Path) -> Splits:
    try:
        return layout.read(folder, benchmark.classes, scratch)
    except (AdaptaskError, OSError):
        raise
    except Exception as error:
        # Files that open well can hold anything in the place of what a layout looks for.
        raise DataError(
            f"{folder} looks like {layout.description}, but what its files hold is not of that "
            f"form ({type(error).__name__}: {error}). Nothing was changed; fetch the data again."
        ) from error


def _problems(benchmark: Benchmark, splits: Splits) -> list[str]:
    """Return what is wrong with the classes and counts of a source, in words."""
    problems = []
    fewest, most = benchmark.class_size
    expected = str(fewest) if fewest == most else f"{fewest} to {most}"
    for split in SPLITS:
        official = benchmark.classes[split]
        found = [c.name for c in splits[split]]
        # Some layouts number the classes instead of naming them: then only the number counts.
        if not set(found) & set(official) and len(found) != len(official):
            problems.append(f"split '{split}' must have {len(official)} classes, has {len(found)}")
        elif set(found) & set(official):
            for name in sorted(set(found) - set(official)):
                problems.append(f"class '{name}' does not belong into split '{split}'")
        for c in splits[split]:
            if not len(c.images):
                problems.append(f"class '{c.name}' ({split}) is missing: no images in {c.where}")
            elif not fewest <= len(c.images) <= most:
                problems.append(
                    f"class '{c.name}' ({split}) must have {expected} images, has "
                    f"{len(c.images)} in {c.where}"
                )
    n_images = sum(len(c.images) for split in SPLITS for c in splits[split])
    if not problems and n_images != benchmark.n_images:
        problems.append(f"there must be {benchmark.n_images} images in all, there are {n_images}")
    return problems
