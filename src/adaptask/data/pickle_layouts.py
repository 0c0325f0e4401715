"""Layouts in which the images of a split are one pickle or one archive of arrays."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adaptask.data.class_lists import SPLITS, ClassLists
from adaptask.data.layouts import ClassImages, Layout, Rows, Splits
from adaptask.data.safe_pickle import load_pickle
from adaptask.errors import DataError

_Labels = np.ndarray[Any, np.dtype[np.int64]]
_Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def _has(*names: str) -> Callable[[Path, ClassLists], bool]:
    return lambda root, _: all((root / name).is_file() for name in names)


def _get(content: Any, key: str, path: Path) -> Any:
    if not isinstance(content, dict) or key not in content:
        found = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise DataError(f"{path} must be a dictionary with '{key}'; found {found}.")
    return content[key]


def _pixels(value: Any, path: Path) -> _Pixels:
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 4:
        raise DataError(f"{path} must hold its images as one uint8 array of 4 dimensions.")
    return value


def _labels(value: Any, n_images: int, path: Path) -> _Labels:
    labels = np.asarray(value)
    if labels.dtype.kind not in "iu" or labels.shape != (n_images,):
        raise DataError(f"{path} must hold one whole number for each of its {n_images} images.")
    return labels.astype(np.int64)


def _decoded(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


# --- cifar-100-python, as torchvision keeps it --------------------------------------------------


def _cifar100_read(root: Path, lists: ClassLists, _: Path) -> Splits:
    names = [
        _decoded(n) for n in _get(load_pickle(root / "meta"), "fine_label_names", root / "meta")
    ]
    pixels, labels = [], []
    for path in (root / "train", root / "test"):
        content = load_pickle(path)
        flat = _get(content, "data", path)
        if flat.dtype != np.uint8 or flat.ndim != 2 or flat.shape[1] != 3072:
            raise DataError(f"{path} must hold images of 3072 bytes; got {flat.shape}.")
        pixels.append(flat)
        labels.append(_labels(_get(content, "fine_labels", path), len(flat), path))
    images = np.concatenate(pixels).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    all_labels = np.concatenate(labels)
    rows = {name: Rows(images, np.flatnonzero(all_labels == i)) for i, name in enumerate(names)}
    absent = Rows(images, [])
    return {
        split: [ClassImages(name, rows.get(name, absent), str(root)) for name in lists[split]]
        for split in SPLITS
    }


CIFAR_100 = Layout(
    "cifar-100-python (train, test, meta), as torchvision keeps it",
    _has("train", "test", "meta"),
    _cifar100_read,
)


# --- MetaOptNet: {'data', 'labels'[, 'catname2label']} ------------------------------------------


def labelled_pickles(description: str, files: Mapping[str, str]) -> Layout:
    """One pickle a split with `data` and `labels`, by the name of its file."""

    def read(root: Path, lists: ClassLists, _: Path) -> Splits:
        splits = {}
        for split in SPLITS:
            path = root / files[split]
            content = load_pickle(path)
            pixels = _pixels(_get(content, "data", path), path)
            labels = _labels(_get(content, "labels", path), len(pixels), path)
            categories = {
                int(label): _decoded(name)
                for name, label in content.get("catname2label", {}).items()
            }
            names = _names_of_labels(labels, lists, split, categories)
            splits[split] = _by_label(labels, names, pixels, path)
        return splits

    return Layout(description, _has(*files.values()), read)


def _names_of_labels(
    labels: _Labels, lists: ClassLists, split: str, categories: Mapping[int, str]
) -> dict[int, str]:
    """Name the labels of a split: as the file says, else by CIFAR-100's numbers, else by number."""
    numbers = [int(label) for label in np.unique(labels)]
    if set(numbers) <= set(categories):
        return {number: categories[number] for number in numbers}
    everything = sorted(name for names in lists.values() for name in names)
    official = {everything.index(name): name for name in lists[split]}
    if set(numbers) <= set(official):
        return official
    return {number: f"label-{number:03d}" for number in numbers}


def _by_label(
    labels: _Labels, names: Mapping[int, str], images: _Pixels | list[bytes], path: Path
) -> list[ClassImages]:
    order = np.argsort(labels, kind="stable")
    edges = np.searchsorted(labels[order], [[n, n + 1] for n in names])
    classes = []
    for name, (start, stop) in zip(names.values(), edges, strict=True):
        chosen = order[start:stop]
        of_class = [images[i] for i in chosen] if isinstance(images, list) else Rows(images, chosen)
        classes.append(ClassImages(name, of_class, str(path)))
    return classes


# --- mini-imagenet-cache-*.pkl: {'image_data', 'class_dict'} ------------------------------------


def _image_data_read(root: Path, lists: ClassLists, _: Path) -> Splits:
    found: dict[str, ClassImages] = {}
    for split in SPLITS:
        path = root / _IMAGE_DATA[split]
        content = load_pickle(path)
        pixels = _pixels(_get(content, "image_data", path), path)
        for name, indices in _get(content, "class_dict", path).items():
            chosen = np.asarray(indices, dtype=np.int64)
            if len(chosen) and not 0 <= chosen.min() <= chosen.max() < len(pixels):
                raise DataError(f"{path} lists images of '{name}' that it does not hold.")
            found[_decoded(name)] = ClassImages(_decoded(name), Rows(pixels, chosen), str(path))
    # Classes go by their name, not by their file: versions are about that have val and test
    # the wrong way round.
    return {
        split: [found.get(n, ClassImages(n, [], str(root))) for n in lists[split]]
        for split in SPLITS
    }


_IMAGE_DATA = {split: f"mini-imagenet-cache-{split}.pkl" for split in SPLITS}
IMAGE_DATA = Layout(
    "mini-imagenet-cache-{train,val,test}.pkl", _has(*_IMAGE_DATA.values()), _image_data_read
)


# --- tieredImageNet: encoded images in a pickle, or pixels in an npz, beside *_labels.pkl ---------


def _tiered_labels(root: Path, split: str, n_images: int) -> tuple[_Labels, dict[int, str]]:
    path = root / f"{split}_labels.pkl"
    content = load_pickle(path)
    key = "label_specific" if "label_specific" in content else "labels"
    labels = _labels(_get(content, key, path), n_images, path)
    given = [_decoded(name) for name in content.get("label_specific_str", [])]
    numbers = [int(label) for label in np.unique(labels)]
    names: dict[int, str] = {}
    for number in numbers:
        name = given[number] if 0 <= number < len(given) else f"label-{number:03d}"
        # Two classes of ImageNet can have the same words.
        names[number] = name if name not in names.values() else f"{name} ({number})"
    return labels, names


def _png_read(root: Path, _: ClassLists, __: Path) -> Splits:
    splits = {}
    for split in SPLITS:
        path = root / f"{split}_images_png.pkl"
        encoded = [np.asarray(image).tobytes() for image in load_pickle(path)]
        labels, names = _tiered_labels(root, split, len(encoded))
        splits[split] = _by_label(labels, names, encoded, path)
    return splits


def _npz_read(root: Path, _: ClassLists, scratch: Path) -> Splits:
    splits = {}
    for split in SPLITS:
        path = root / f"{split}_images.npz"
        # Mapped from disk: the training images alone are 9.5 GB.
        unpacked = scratch / f"{split}_images.npy"
        try:
            with (
                zipfile.ZipFile(path) as archive,
                archive.open("images.npy") as member,
                unpacked.open("wb") as out,
            ):
                shutil.copyfileobj(member, out, 1 << 20)
            pixels = np.load(unpacked, mmap_mode="r", allow_pickle=False)
        except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
            raise DataError(f"{path} is truncated or has no 'images' ({error}).") from error
        labels, names = _tiered_labels(root, split, len(pixels))
        splits[split] = _by_label(labels, names, _pixels(pixels, path), path)
    return splits


_TIERED_LABELS = [f"{split}_labels.pkl" for split in SPLITS]
TIERED_PNG = Layout(
    "{train,val,test}_images_png.pkl with *_labels.pkl",
    _has(*_TIERED_LABELS, *(f"{split}_images_png.pkl" for split in SPLITS)),
    _png_read,
)
TIERED_NPZ = Layout(
    "{train,val,test}_images.npz with *_labels.pkl (MetaOptNet)",
    _has(*_TIERED_LABELS, *(f"{split}_images.npz" for split in SPLITS)),
    _npz_read,
)
