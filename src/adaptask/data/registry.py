"""Every dataset by its name: what it is, where it is to be had, how it is read and loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from adaptask.arguments import check_choice, shown
from adaptask.data import glyphs
from adaptask.data.atomic_folder import restore_folder, restore_folders
from adaptask.data.cache import (
    cache_root,
    is_cache_of,
    read_cache,
    read_meta,
    read_statistics,
    write_cache,
)
from adaptask.data.class_lists import SPLITS, ClassLists, class_lists, with_rotations
from adaptask.data.convert import ImageForm
from adaptask.data.folder_layouts import OMNIGLOT, RAVI_CSV, class_folders
from adaptask.data.images import ImageSet
from adaptask.data.layouts import Layout
from adaptask.data.pickle_layouts import (
    CIFAR_100,
    IMAGE_DATA,
    TIERED_NPZ,
    TIERED_PNG,
    labelled_pickles,
)
from adaptask.errors import ArgumentError, DataError

_Content = TypeVar("_Content")


@dataclass(frozen=True)
class Benchmark:
    """A dataset of the field, prepared once from what the user has of it."""

    name: str
    description: str
    home: str
    """Where the data is to be had."""
    form: ImageForm
    classes: ClassLists
    class_size: tuple[int, int]
    """Fewest and most images a class has."""
    n_images: int
    """Number of images of all splits together."""
    layouts: tuple[Layout, ...]

    @property
    def augmentation(self) -> str:
        """What is usual for its training images: nothing for grey characters."""
        return "crop-flip" if self.form.channels == 3 else "none"


@dataclass(frozen=True)
class Generated:
    """A dataset that is made on first use and needs no source."""

    name: str
    description: str
    generate: Callable[[], Mapping[str, ImageSet]]
    version: int = 1
    """Raised when `generate` makes other images, so that caches of the old ones are replaced."""
    augmentation: str = "none"

    @property
    def source(self) -> str:
        """What the cache says of where its images come from."""
        return f"generated, version {self.version}"


@dataclass(frozen=True)
class OwnImages:
    """The user's own images, under a name of their choice."""

    name: str
    description: str
    augmentation: str = "crop-flip"


_CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/cifar.html (cifar-100-python.tar.gz)"
_IMAGENET_HOME = "https://image-net.org (ILSVRC 2012, after registration)"

_BENCHMARKS = (
    Benchmark(
        name="cifar-fs",
        description="CIFAR-100, Bertinetto's split",
        home=_CIFAR_HOME,
        form=ImageForm(channels=3, height=32, width=32),
        classes=class_lists("cifar-fs"),
        class_size=(600, 600),
        n_images=60_000,
        layouts=(
            CIFAR_100,
            labelled_pickles(
                "CIFAR_FS_{train,val,test}.pickle (MetaOptNet)",
                {split: f"CIFAR_FS_{split}.pickle" for split in SPLITS},
            ),
            class_folders("data/<class>/*.png with splits/bertinetto/*.txt (Bertinetto)"),
        ),
    ),
    Benchmark(
        name="fc100",
        description="CIFAR-100, split by superclass",
        home=_CIFAR_HOME,
        form=ImageForm(channels=3, height=32, width=32),
        classes=class_lists("fc100"),
        class_size=(600, 600),
        n_images=60_000,
        layouts=(
            CIFAR_100,
            labelled_pickles(
                "FC100_{train,val,test}.pickle (MetaOptNet)",
                {split: f"FC100_{split}.pickle" for split in SPLITS},
            ),
            class_folders("one folder a class"),
        ),
    ),
    Benchmark(
        name="mini-imagenet",
        description="ImageNet, Ravi's split",
        home=_IMAGENET_HOME + ", with the lists of Ravi and Larochelle",
        form=ImageForm(channels=3, height=84, width=84),
        classes=class_lists("mini-imagenet"),
        class_size=(600, 600),
        n_images=60_000,
        layouts=(
            IMAGE_DATA,
            labelled_pickles(
                "miniImageNet_category_split_*.pickle (MetaOptNet)",
                {
                    "train": "miniImageNet_category_split_train_phase_train.pickle",
                    "val": "miniImageNet_category_split_val.pickle",
                    "test": "miniImageNet_category_split_test.pickle",
                },
            ),
            RAVI_CSV,
            class_folders("one folder a class, directly or under train/, val/ and test/"),
        ),
    ),
    Benchmark(
        name="tiered-imagenet",
        description="ImageNet, split by parent class",
        home=_IMAGENET_HOME + ", or as published by Ren et al.",
        form=ImageForm(channels=3, height=84, width=84),
        classes=class_lists("tiered-imagenet"),
        class_size=(732, 1300),
        n_images=779_165,
        layouts=(
            TIERED_PNG,
            TIERED_NPZ,
            class_folders("one folder a class, directly or under train/, val/ and test/"),
        ),
    ),
    Benchmark(
        name="omniglot",
        description="characters in 4 rotations, Vinyals' split",
        home="https://github.com/brendenlake/omniglot (images_background, images_evaluation)",
        form=ImageForm(channels=1, height=28, width=28, invert=True),
        classes=with_rotations(class_lists("omniglot")),
        class_size=(20, 20),
        n_images=129_840,
        layouts=(OMNIGLOT,),
    ),
    Benchmark(
        name="cub",
        description="birds of CUB-200-2011",
        home="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        form=ImageForm(channels=3, height=84, width=84),
        classes=class_lists("cub"),
        class_size=(41, 60),
        n_images=11_788,
        layouts=(class_folders("images/<class>/*.jpg"),),
    ),
)

GLYPHS = Generated(glyphs.NAME, "300 written characters, made on first use", glyphs.generate)
FOLDER = OwnImages("folder", "your own images")

DATASETS: dict[str, Benchmark | Generated | OwnImages] = {
    GLYPHS.name: GLYPHS,
    **{benchmark.name: benchmark for benchmark in _BENCHMARKS},
    FOLDER.name: FOLDER,
}
"""The datasets there are; images of the user's own add theirs by the name they are given."""


def load(name: str, split: str) -> ImageSet:
    """Return a split of a dataset that has been prepared, or is made on first use.

    Args:
        name: A key of `DATASETS`, or the name given to images of your own.
        split: `train`, `val` or `test`.

    Raises:
        ArgumentError: There is no dataset of that name, or no such split.
        DataError: The dataset has not been prepared, or its cache is damaged.
    """
    check_choice("split", split, SPLITS)
    return _read(name, lambda folder: read_cache(folder, split))


def load_statistics(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of the training pixels, each `channels`, in [0, 1].

    The deviation of a channel that is constant, as of images without colour in it, is taken as 1.
    """
    mean, deviation = _read(name, read_statistics)
    return mean, tuple(value or 1.0 for value in deviation)


def _read(name: str, read: Callable[[Path], _Content]) -> _Content:
    folder = dataset_folder(name)
    try:
        return read(folder)
    except DataError:
        # Another process may have been replacing the cache just now.
        return read(dataset_folder(name))


def default_augmentation(name: str) -> str:
    """Return the augmentation that is usual for the training images of a dataset."""
    return DATASETS.get(_checked(name), FOLDER).augmentation


def dataset_folder(name: str) -> Path:
    """Return the folder of a dataset's cache, made first where the dataset is generated."""
    folder = cache_root() / _checked(name)
    entry = DATASETS.get(name)
    if isinstance(entry, Generated):
        made = partial(is_cache_of, folder, entry.source)
        if not made():
            # Others may make it at the same time; the first to be done wins, and all use that one.
            write_cache(folder, entry.generate(), source=entry.source, unless=made)
        return folder
    if name in names() and is_prepared(folder):
        return folder
    if entry is None:
        raise ArgumentError(f"there is no dataset '{name}'; there are {', '.join(names())}.")
    where = f" The data is to be had from {entry.home}." if isinstance(entry, Benchmark) else ""
    raise DataError(
        f"the dataset '{name}' has not been prepared in {cache_root()}. "
        f"Run: adaptask data prepare {name} --source PATH.{where}"
    )


def _checked(name: str) -> str:
    """Return a name if it is a text that can be part of a path."""
    if not isinstance(name, str) or "\0" in name:
        raise ArgumentError(f"the name of a dataset must be a text; got {shown(name)}.")
    return name


def names() -> list[str]:
    """Return the names of all datasets, those of the user's own images last."""
    root = cache_root()
    restore_folders(root)
    found = sorted(path.parent.name for path in root.glob("*/meta.json")) if root.is_dir() else []
    return [*DATASETS, *(n for n in found if n not in DATASETS and not n.startswith("."))]


def is_prepared(folder: Path) -> bool:
    """Return whether there is a cache."""
    restore_folder(folder)
    return (folder / "meta.json").is_file()


@dataclass(frozen=True)
class Status:
    """How a dataset stands on this machine."""

    name: str
    description: str
    folder: Path
    is_prepared: bool
    needs_source: bool
    """Whether it must be prepared before use."""
    n_classes: int = 0
    n_images: int = 0
    n_bytes: int = 0
    problem: str = ""
    """What is wrong with the cache, where something is."""


def status() -> list[Status]:
    """Return how every dataset stands: prepared or not, how many classes, images and bytes."""
    return [_status(name) for name in names()]


def _status(name: str) -> Status:
    entry = DATASETS.get(name, FOLDER)
    folder = cache_root() / name
    needs_source = not isinstance(entry, Generated)
    if not is_prepared(folder):
        counts = (0, 0)
        if isinstance(entry, Benchmark):
            counts = sum(map(len, entry.classes.values())), entry.n_images
        return Status(name, entry.description, folder, False, needs_source, *counts)
    try:
        meta = read_meta(folder)
    except DataError as error:
        problem = str(error) if needs_source else ""
        return Status(name, entry.description, folder, False, needs_source, problem=problem)
    splits = meta["splits"].values()
    return Status(
        name,
        meta["source"] if isinstance(entry, OwnImages) else entry.description,
        folder,
        True,
        needs_source,
        n_classes=sum(len(split["class_names"]) for split in splits),
        n_images=sum(split["class_starts"][-1] for split in splits),
        n_bytes=sum(file.stat().st_size for file in folder.iterdir()),
    )
