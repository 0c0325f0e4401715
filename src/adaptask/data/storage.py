"""Where the images of a split are held, and one copy of them per device."""

from __future__ import annotations

import threading
from typing import Literal, get_args
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from adaptask.arguments import check_choice
from adaptask.data.images import ImageSet

Storage = Literal["auto", "device", "host"]

_copies: WeakValueDictionary[tuple[object, torch.device], Tensor] = WeakValueDictionary()
_copying = threading.Lock()


def choose_storage(
    storage: Storage, image_set: ImageSet, device: torch.device
) -> Literal["device", "host"]:
    """Return where to hold images: half of a device's memory is left to model and activations.

    Raises:
        ArgumentError: If there is no such storage.
    """
    check_choice("storage", storage, get_args(Storage))
    if storage != "auto":
        return storage
    if device.type != "cuda" or has_copy(image_set, device):
        return "device"
    free, _ = torch.cuda.mem_get_info(device)
    return "device" if image_set.images.nbytes <= free // 2 else "host"


def copy_to(image_set: ImageSet, device: torch.device) -> Tensor:
    """Return the images on a device; everyone who asks for those of one file shares a tensor.

    Otherwise each of the runs that share a GPU would hold all images. Nobody may write into the
    copy. Images that torch has changed are copied separately; changes through NumPy go unnoticed.
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
