"""What an episode source checks and settles before its first draw."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from adaptask.arguments import check_choice, shown
from adaptask.data.augmentation import AUGMENTATIONS, Augmentation
from adaptask.data.device_copies import has_copy
from adaptask.data.images import ImageSet
from adaptask.errors import ArgumentError, DataError

Storage = Literal["auto", "device", "host"]
_STORAGES = ("auto", "device", "host")


def check_values(class_ids: Tensor, n_classes: int) -> None:
    """Check that classes are in range and distinct within a task; reads them.

    Raises:
        ArgumentError: If they are not.
    """
    low, high = (int(bound) for bound in class_ids.aminmax())
    if low < 0 or high >= n_classes:
        raise ArgumentError(
            f"class_ids must be between 0 and {n_classes - 1}; got {low if low < 0 else high}. "
            "Was the sampler made for another split?"
        )
    in_order = class_ids.sort(dim=1).values
    repeated = (in_order[:, 1:] == in_order[:, :-1]).any(dim=1)
    if bool(repeated.any()):
        row = class_ids[repeated][0].tolist()
        raise ArgumentError(f"class_ids must be distinct within a task; got {row}.")


def class_counts(image_set: ImageSet) -> list[int]:
    """Return the number of images of every class, after checking the layout of the split.

    Raises:
        ArgumentError: If it is no `ImageSet`.
        DataError: If it is not laid out as `ImageSet` says.
    """
    if not isinstance(image_set, ImageSet):
        raise ArgumentError(f"image_set must be an ImageSet; got {shown(image_set)}.")
    images, starts = image_set.images, image_set.class_starts
    if not (_is_dense(images) and _is_dense(starts) and _are_names(image_set)):
        raise DataError(
            "an ImageSet must have its images and class_starts as tensors, dataset and split as "
            "texts, and its class_names as a tuple of texts."
        )
    name = f"{image_set.dataset} ({image_set.split})"
    if images.ndim != 4 or images.dtype != torch.uint8:
        raise DataError(
            f"images of {name} must be uint8, `images x channels x height x width`; got "
            f"{images.dtype} of shape {tuple(images.shape)}. Prepare the dataset again."
        )
    if starts.ndim != 1 or starts.dtype != torch.int64:
        raise DataError(f"class_starts of {name} must be `classes + 1` int64.")
    bounds = starts.tolist()
    counts = [end - start for start, end in pairwise(bounds)]
    in_order = len(bounds) == image_set.n_classes + 1 > 1 and bounds[0] == 0
    if not in_order or bounds[-1] != len(images) or min(counts) < 1:
        raise DataError(
            f"class_starts of {name} must rise from 0 to {len(images)}, the number of images, in "
            f"{image_set.n_classes + 1} entries, one class or more; got {bounds[:8]}"
            f"{'...' if len(bounds) > 8 else ''}. Prepare the dataset again."
        )
    return counts


def _is_dense(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def _are_names(image_set: ImageSet) -> bool:
    names = image_set.class_names
    texts = (image_set.dataset, image_set.split, *(names if isinstance(names, tuple) else ()))
    return isinstance(names, tuple) and all(isinstance(text, str) for text in texts)


def choose_augmentation(augmentation: str | Augmentation | None) -> Augmentation | None:
    """Return the augmentation of that name, or the one given; None where it changes nothing.

    Raises:
        ArgumentError: If there is none of that name.
    """
    if isinstance(augmentation, str):
        # What is no name is refused below, as what is no callable is.
        augmentation = AUGMENTATIONS.get(augmentation, augmentation)
    if augmentation is not None and not callable(augmentation):
        raise ArgumentError(
            f"augmentation must be one of {', '.join(AUGMENTATIONS)}, or a callable; got "
            f"{shown(augmentation)}."
        )
    return None if augmentation == AUGMENTATIONS["none"] else augmentation


def choose_storage(
    storage: Storage, image_set: ImageSet, device: torch.device
) -> Literal["device", "host"]:
    """Return where to hold images: half of a device's memory is left to model and activations.

    Raises:
        ArgumentError: If there is no such storage.
    """
    check_choice("storage", storage, _STORAGES)
    if storage == "auto":
        if device.type != "cuda" or has_copy(image_set, device):
            return "device"
        free, _ = torch.cuda.mem_get_info(device)
        return "device" if image_set.images.nbytes <= free // 2 else "host"
    return storage
