"""Datasets that are Python objects: torchvision's, your own, or rows as of Hugging Face.

Neither library is imported: what counts is `len(dataset)` and `dataset[i]`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from adaptask.arguments import check_integer, format_value
from adaptask.data.convert import ImageFormat, Progress, convert_image
from adaptask.errors import ArgumentError, DataError

_BATCH = 64


def read_dataset(
    dataset: Any,
    *,
    columns: tuple[str, str],
    image_size: int | None,
    gray: bool,
    workers: int,
    progress: Progress | None,
) -> tuple[Tensor, list[str] | list[int]]:
    """Return the images and labels of a dataset; see `EpisodeSource.from_dataset`.

    Labels are names if the dataset has them: its `classes`, or the names of its label column.

    Raises:
        ArgumentError: If it is not a map-style dataset, or an argument cannot be used.
        DataError: If an item cannot be read or used.
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__") or not len(dataset):
        raise ArgumentError(
            "dataset must be map-style, with one item or more, which len(dataset) counts and "
            f"dataset[i] returns; got {format_value(dataset)}. Make a list of an iterable one."
        )
    if image_size is not None:
        image_size = check_integer("image_size", image_size, low=1, high=4096)
    workers = check_integer("workers", workers, low=0)
    progress = progress or _show_progress
    loader = DataLoader(
        _Items(dataset, columns, image_size, gray),
        batch_size=_BATCH,
        num_workers=workers,
        collate_fn=list,
        generator=torch.Generator(),  # otherwise it would draw from the global one
    )
    labels: list[Any] = []
    images: Any = None
    for batch in loader:
        for item in batch:
            if isinstance(item, DataError):
                raise item
            image, label = item
            if images is None:
                images = np.empty((len(dataset), *image.shape), image.dtype)
            if image.shape != images.shape[1:] or image.dtype != images.dtype:
                raise DataError(
                    f"all images must have one shape and type; item 0 is {images.dtype} of shape "
                    f"{images.shape[1:]}, item {len(labels)} is {image.dtype} of shape "
                    f"{image.shape}. Give image_size, or resize them in the dataset."
                )
            images[len(labels)] = image
            labels.append(label)
        progress(len(labels), len(dataset))
    if len({type(label) for label in labels}) > 1:
        raise DataError("labels must be all integers or all names; the dataset has both.")
    return torch.from_numpy(images), _named(labels, dataset, columns[1])


class _Items(Dataset[tuple[np.ndarray[Any, Any], Any] | DataError]):
    """The items of a dataset as arrays with labels; in a class, so that processes can read them.

    The error of an item that cannot be used is returned: raised in a worker process it would be
    reported with the code of the worker.
    """

    def __init__(
        self, dataset: Any, columns: tuple[str, str], image_size: int | None, gray: bool
    ) -> None:
        self._dataset, self._columns = dataset, columns
        self._image_size, self._gray = image_size, gray

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], Any] | DataError:
        try:
            item = self._dataset[index]
            image, label = self._pair(item)
            return self._pixels(image), _plain_label(label)
        except Exception as error:  # whatever the code of the dataset raises
            refusal = DataError(
                f"item {index} of the dataset cannot be used: {type(error).__name__}: {error}"
            )
            refusal.__cause__ = error
            return refusal

    def _pair(self, item: Any) -> tuple[Any, Any]:
        if isinstance(item, Mapping):
            missing = [name for name in self._columns if name not in item]
            if missing:
                raise ValueError(
                    f"it has no column {' or '.join(map(repr, missing))}, only {list(item)}; name "
                    'those of image and label: columns=("img", "fine_label")'
                )
            return item[self._columns[0]], item[self._columns[1]]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(f"expected an image and a label, got {format_value(item)}")
        return item[0], item[1]

    def _pixels(self, image: Any) -> np.ndarray[Any, Any]:
        """Return an image as `channels x height x width` uint8, or a vector as it is."""
        if not isinstance(image, Image.Image):
            array = _bytes_of(image)
            if self._image_size is None and not self._gray:
                return array
            if len(array) not in (1, 3) or array.ndim != 3:
                raise ValueError(
                    "image_size and gray are for images of 1 or 3 channels; got shape "
                    f"{array.shape}. Convert others in the dataset"
                )
            image = Image.fromarray(
                array[0] if len(array) == 1 else np.ascontiguousarray(np.moveaxis(array, 0, -1))
            )
        width, height = image.size
        image_format = ImageFormat(
            channels=1 if self._gray else 3,
            height=self._image_size or height,
            width=self._image_size or width,
        )
        return np.moveaxis(convert_image(image, image_format), -1, 0)


def _bytes_of(image: Any) -> np.ndarray[Any, Any]:
    """Return an array or tensor as bytes; a vector of floats, which is features, as it is."""
    if isinstance(image, Tensor) and image.dtype == torch.bfloat16:
        raise ValueError("bfloat16 is not read; convert it in the dataset: x.float()")
    array: np.ndarray[Any, Any] = (
        image.numpy(force=True) if isinstance(image, Tensor) else np.asarray(image)
    )
    if array.ndim == 1 and array.dtype.kind == "f":
        # Numbers of Python have no type of their own; so a row of Hugging Face has its vectors.
        return array.astype(np.float32) if isinstance(image, list | tuple) else array
    if array.ndim != 3 or 0 in array.shape:
        got = f"{array.dtype} of shape {array.shape}"
        raise ValueError(
            "an image is of Pillow, or channels x height x width, and features are a vector of "
            f"floats; got {format_value(image) if array.dtype == object else got}"
        )
    if array.shape[0] not in (1, 3, 4) and array.shape[2] in (1, 3, 4):
        raise ValueError(
            f"an image is channels x height x width; the shape {array.shape} looks like height x "
            "width x channels: transpose it with .transpose(2, 0, 1), or give PIL images"
        )
    if array.dtype.kind in "iu" and array.min() >= 0 and array.max() <= 255:
        return array.astype(np.uint8)
    if array.dtype.kind != "f" or not (array.min() >= 0 and array.max() <= 1):
        raise ValueError(
            f"pixels must be integers from 0 to 255, or floats from 0 to 1; got {array.dtype} from "
            f"{array.min()} to {array.max()}. Leave normalization out of the transform: a source "
            "normalizes"
        )
    pixels: np.ndarray[Any, Any] = np.rint(array * 255).astype(np.uint8)
    return pixels


def _plain_label(label: Any) -> int | str:
    is_number = isinstance(label, np.generic) or (isinstance(label, Tensor) and label.numel() == 1)
    value = label.item() if is_number else label
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"a label is an integer or a name, got {format_value(label)}")
    return value


def _named(labels: list[Any], dataset: Any, column: str) -> list[Any]:
    """Return the names of labels, if the dataset knows them and they differ."""
    features = getattr(dataset, "features", None)
    of_column = features.get(column) if isinstance(features, Mapping) else None
    names = getattr(of_column, "names", None) or _classes_of(dataset)
    if not isinstance(labels[0], int) or not isinstance(names, Sequence):
        return labels
    is_known = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    if not is_known or min(labels) < 0 or max(labels) >= len(names):
        return labels
    return [names[label] for label in labels]


def _classes_of(dataset: Any) -> Any:
    """Return the `classes` of a dataset, also of what Subset and ConcatDataset are made of."""
    if (names := getattr(dataset, "classes", None)) is not None:
        return names
    if (whole := getattr(dataset, "dataset", None)) is not None:
        return _classes_of(whole)
    parts = getattr(dataset, "datasets", None)
    found = [_classes_of(part) for part in parts] if isinstance(parts, list) else []
    return found[0] if found and all(names == found[0] for names in found) else None


def _show_progress(n_done: int, n_items: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if n_done == n_items else ""
        sys.stderr.write(f"\rreading {n_done:,} of {n_items:,} images{end}")
        sys.stderr.flush()
