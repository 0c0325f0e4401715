"""One copy of a split on a device, however many sources cut from it."""

from __future__ import annotations

import threading
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from adaptask.data.images import ImageSet

_copies: WeakValueDictionary[tuple[object, torch.device], Tensor] = WeakValueDictionary()
_copying = threading.Lock()


def copy_to(image_set: ImageSet, device: torch.device) -> Tensor:
    """Return the images on a device; all who ask for those of one file get the same tensor.

    Runs that share a GPU would else each hold all images. Nobody may write into the copy. Images
    that were changed by torch are copied by themselves; changes through NumPy go unnoticed.
    """
    images, key = image_set.images, _key(image_set, device)
    if key is None:
        return images.to(device)
    with _copying:
        copy = _copies.get(key)
        if copy is None:
            copy = _copies[key] = images.to(device)
    return copy


def has_copy(image_set: ImageSet, device: torch.device) -> bool:
    """Return whether `copy_to` would take no further memory."""
    return image_set.images.device == device or _key(image_set, device) in _copies


def _key(image_set: ImageSet, device: torch.device) -> tuple[object, torch.device] | None:
    images, file = image_set.images, image_set.file
    # Images that were written to are no longer those of the file.
    if images.device == device or file is None or images.is_inference() or images._version:
        return None
    return file, device
