"""Every dataset by its name: benchmarks, the built-in ones, the user's own, and plug-ins.

A plug-in is a function that returns the images of a split. It is named by its address,
`package.module:function`, or by the name of an entry point in the group `adaptask.datasets`:

    def shapes(split: str) -> tuple[Tensor, Sequence[str]] | None:
        '''Return images, `images x channels x height x width` uint8, and a label for each.'''

It may return an `ImageSet` instead, and None for a split that it does not have.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeVar

from adaptask.arguments import check_choice, format_value
from adaptask.data import glyphs
from adaptask.data.atomic_folder import restore_folder, restore_folders
from adaptask.data.benchmarks import BENCHMARKS, Benchmark
from adaptask.data.cache import (
    cache_root,
    is_cache_of,
    read_cache,
    read_meta,
    read_statistics,
    write_cache,
)
from adaptask.data.images import SPLITS, ImageSet
from adaptask.data.normalization import channel_statistics, divisors
from adaptask.errors import AdaptaskError, ArgumentError, DataError
from adaptask.registry import import_object, is_address

_Content = TypeVar("_Content")


@dataclass(frozen=True)
class Generated:
    """A dataset that is made on first use and needs no source."""

    name: str
    description: str
    generate: Callable[[], Mapping[str, ImageSet]]
    version: int = 1
    """Raised when `generate` makes other images, so that caches of the old ones are replaced."""
    augmentation: str = "none"
    group_of: Callable[[str], str | None] | None = None
    """The group of a class by its name, if names do not have the form group/class."""

    @property
    def source(self) -> str:
        """What the cache says about the origin of its images."""
        return f"generated, version {self.version}"


@dataclass(frozen=True)
class OwnImages:
    """The user's own images or features, under a name of their choice."""

    name: str
    description: str
    augmentation: str = "crop-flip"
    group_of: None = None


GLYPHS = Generated(
    glyphs.NAME,
    "300 written characters, made on first use",
    glyphs.generate,
    group_of=glyphs.script_of,
)
TURNED_GLYPHS = Generated(
    glyphs.TURNED_NAME,
    "glyphs in 4 rotations, made on first use",
    lambda: {split: glyphs.turn(load(glyphs.NAME, split)) for split in SPLITS},
    group_of=glyphs.script_of,
)
FOLDER = OwnImages("folder", "your own images")
FEATURES = OwnImages("features", "your own features", augmentation="none")

DATASETS: dict[str, Benchmark | Generated | OwnImages] = {
    GLYPHS.name: GLYPHS,
    TURNED_GLYPHS.name: TURNED_GLYPHS,
    **{benchmark.name: benchmark for benchmark in BENCHMARKS},
    FOLDER.name: FOLDER,
    FEATURES.name: FEATURES,
}
"""The built-in datasets. The user's own images and plug-ins add theirs."""


def load(name: str, split: str) -> ImageSet:
    """Return a split of a dataset that has been prepared, is made on first use, or is a plug-in.

    Args:
        name: A dataset of `adaptask data list`, or the address of your own,
            `package.module:function`.
        split: `train`, `val` or `test`.

    Raises:
        ArgumentError: If there is no dataset of that name, or no such split.
        DataError: If the dataset has not been prepared, has no such split, or is damaged.
    """
    check_choice("split", split, SPLITS)
    if is_plugin(name):
        return _load_plugin(name, split)
    group_of = DATASETS.get(name, FOLDER).group_of
    return _read(name, lambda folder: read_cache(folder, split, group_of))


def load_statistics(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of the training pixels, each `channels`, in [0, 1].

    Of features: those of every feature. The deviation of a constant is given as 1.
    """
    if is_plugin(name):
        return _plugin_statistics(name)
    mean, deviation = _read(name, read_statistics)
    return mean, divisors(deviation)


def splits_of(name: str) -> tuple[str, ...]:
    """Return the splits that a dataset has; `val` and `test` may be missing.

    Raises:
        ArgumentError: If there is no dataset of that name.
        DataError: If the dataset has not been prepared, or is damaged.
    """
    if is_plugin(name):
        return tuple(split for split in SPLITS if _call_plugin(name, split) is not None)
    found = _read(name, read_meta)["splits"]
    return tuple(split for split in SPLITS if split in found)


def _read(name: str, read: Callable[[Path], _Content]) -> _Content:
    folder = dataset_folder(name)
    try:
        return read(folder)
    except DataError:
        # Another process may have been replacing the cache just now.
        return read(dataset_folder(name))


def default_augmentation(name: str) -> str:
    """Return the augmentation that is usual for the training images of a dataset."""
    return DATASETS.get(name, FOLDER).augmentation


def dataset_folder(name: str) -> Path:
    """Return the folder of a dataset's cache; a generated dataset is made first."""
    folder = cache_root() / name
    entry = DATASETS.get(name)
    if isinstance(entry, Generated):
        made = partial(is_cache_of, folder, entry.source)
        if not made():
            # Others may make it at the same time; the first to finish wins, and all use that one.
            write_cache(folder, entry.generate(), source=entry.source, unless=made)
        return folder
    if name in names() and is_prepared(folder):
        return folder
    if entry is None:
        raise _unknown(name)
    where = how = ""
    if isinstance(entry, Benchmark):
        where = f" The data is published at {entry.home}."
        how = f"adaptask data download {name}, or if you have the data: " if entry.files else ""
    raise DataError(
        f"the dataset '{name}' has not been prepared in {cache_root()}. "
        f"Run: {how}adaptask data prepare {name} --source PATH.{where}"
    )


def check_name(name: str) -> None:
    """Check that there is a dataset of that name, prepared or not.

    Raises:
        ArgumentError: If there is none; the message has the nearest name and all of them.
    """
    if name not in names() and not is_plugin(name):
        raise _unknown(name)


def _unknown(name: str) -> ArgumentError:
    near = difflib.get_close_matches(name, names(), n=1)
    guess = f"did you mean '{near[0]}'? There" if near else "there"
    return ArgumentError(
        f"there is no dataset '{name}'; {guess} are {', '.join(names())}. "
        "Your own function is named as package.module:function."
    )


def check_new_name(name: str, but: str = "") -> None:
    """Check that a dataset of the user's own can be kept under a name.

    Args:
        name: The name.
        but: A name of the package that may be used.

    Raises:
        ArgumentError: If it cannot be that of a folder, or belongs to another dataset.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise ArgumentError(
            "the name of a dataset consists of lower-case letters, digits, '.', '_' and '-', and "
            f"starts with a letter or digit; got '{name}'."
        )
    if name == "downloads":
        raise ArgumentError("the name 'downloads' belongs to the folder of downloads; use another.")
    if name in DATASETS and name != but:
        raise ArgumentError(f"the name '{name}' belongs to a dataset of the package; use another.")
    if name in _installed():
        raise ArgumentError(
            f"the name '{name}' belongs to an installed plug-in, {_installed()[name]}; use another."
        )


def names() -> list[str]:
    """Return the names of all datasets: built in, installed, and the user's own images."""
    root = cache_root()
    restore_folders(root)
    found = sorted(path.parent.name for path in root.glob("*/meta.json")) if root.is_dir() else []
    known = [*DATASETS, *_installed()]
    return [*known, *(n for n in found if n not in known and not n.startswith("."))]


def is_prepared(folder: Path) -> bool:
    """Return whether there is a cache."""
    restore_folder(folder)
    return (folder / "meta.json").is_file()


# --- plug-ins -------------------------------------------------------------------------------------


@cache
def _installed() -> dict[str, str]:
    """Addresses of installed datasets by name; a package cannot replace what is built in."""
    found = entry_points(group="adaptask.datasets")
    return {point.name: point.value for point in found if point.name not in DATASETS}


def is_plugin(name: str) -> bool:
    """Return whether a dataset is code to be imported: installed, or an address."""
    return name in _installed() or is_address(name)


@cache
def _call_plugin(name: str, split: str) -> ImageSet | None:
    """Return a split of a plug-in, once per process; None if it does not have that split."""
    expected = (
        "it must be a function of a split, 'train', 'val' or 'test', that returns images "
        "(uint8, images x channels x height x width, or float features, vectors x size) and one "
        "label per image, or an ImageSet, or None for a split that it does not have"
    )
    function = import_object(_installed().get(name, name), "dataset")
    if not callable(function):
        raise ArgumentError(f"the dataset '{name}' is {format_value(function)}; {expected}.")
    try:
        found = function(split)
    except AdaptaskError:
        raise
    except Exception as error:  # whatever the code of the plug-in raises
        raise DataError(
            f"the dataset '{name}' failed for '{split}': {type(error).__name__}: {error}."
        ) from error
    if found is None:
        return None
    if isinstance(found, ImageSet):
        image_set = found
    else:
        try:
            images, labels = found
            image_set = ImageSet.from_labels(images, labels, dataset=name, split=split)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"the dataset '{name}' returned {format_value(found)} for '{split}'; {expected}."
            ) from error
    image_set.class_counts()  # checks its form
    channels, _, width = image_set.image_shape
    if width in (1, 3) and channels not in (1, 3) and not image_set.holds_features:
        raise DataError(
            f"the dataset '{name}' returned images of shape {tuple(image_set.images.shape)} for "
            f"'{split}', with the channels last; {expected}. Return images.transpose(0, 3, 1, 2) "
            "of an array, images.permute(0, 3, 1, 2) of a tensor."
        )
    # Sources of one device share their copy of the images.
    object.__setattr__(image_set, "file", ("plug-in", name, split))
    return image_set


def _load_plugin(name: str, split: str) -> ImageSet:
    found = _call_plugin(name, split)
    if found is None:
        raise DataError(f"the dataset '{name}' has no split '{split}'.")
    if split != "train" and found.image_shape != _load_plugin(name, "train").image_shape:
        raise DataError(
            f"the images of the dataset '{name}' must have one shape in all splits; '{split}' has "
            f"{found.image_shape}, 'train' has {_load_plugin(name, 'train').image_shape}."
        )
    return found


@cache
def _plugin_statistics(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return channel_statistics(_load_plugin(name, "train").images)


# --- what there is on this machine ----------------------------------------------------------------


@dataclass(frozen=True)
class Status:
    """The state of a dataset on this machine."""

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
    """What is wrong with the cache, if something is."""


def status() -> list[Status]:
    """Return the state of every dataset: prepared or not, how many classes, images and bytes."""
    return [_status(name) for name in names()]


def _status(name: str) -> Status:
    folder = cache_root() / name
    if is_plugin(name):
        return Status(name, f"installed: {_installed()[name]}", folder, False, False)
    entry = DATASETS.get(name, FOLDER)
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
        # The name of a file may be bytes that are not UTF-8, which cannot be printed.
        meta["source"].encode(errors="backslashreplace").decode()
        if isinstance(entry, OwnImages)
        else entry.description,
        folder,
        True,
        needs_source,
        n_classes=sum(len(split["class_names"]) for split in splits),
        n_images=sum(split["class_starts"][-1] for split in splits),
        n_bytes=sum(file.stat().st_size for file in folder.iterdir()),
    )
