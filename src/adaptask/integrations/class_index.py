"""From the labels of a dataset to class ids, and to the images of each class."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptask.arguments import shown
from adaptask.data.subsets import ordered_subsets
from adaptask.errors import ArgumentError, DataError

_MOST_NAMED = 5
_EXPECTED = "labels must be one integer or string for every item of the dataset; got {}."


@dataclass(frozen=True)
class ClassIndex:
    """Which images of a dataset belong to which class; made by `index_labels`."""

    classes: tuple[int | str, ...]
    """The labels in ascending order: the class id of a label is its position here."""
    images: Tensor
    """Positions in the dataset, those of a class together, classes in order, `images` int64."""
    starts: Tensor
    """Where each class begins in `images`, `classes` int64."""
    counts: Tensor
    """How many images each class has, `classes` int64."""
    digest: str
    """Tells the labels of one dataset from those of another."""

    def choose(self, class_ids: Tensor, n_images: int, generator: torch.Generator) -> Tensor:
        """Choose distinct images of each class, every ordered choice equally likely.

        Args:
            class_ids: `tasks x way` int64, on the CPU.
            n_images: How many of each class.
            generator: Source of randomness, on the CPU.

        Returns:
            Positions in the dataset, `tasks x way x images` int64.
        """
        flat = class_ids.flatten()
        sizes = self.counts.index_select(0, flat)
        offsets = ordered_subsets(sizes, n_images, largest=len(self.images), generator=generator)
        positions = offsets + self.starts.index_select(0, flat)[:, None]
        return self.images.take(positions).view(*class_ids.shape, n_images)

    def check_counts(self, n_images: int) -> None:
        """Check that every class has so many images.

        Raises:
            DataError: If some have fewer; the message names them.
        """
        short = (self.counts < n_images).nonzero().flatten().tolist()
        if short:
            named = ", ".join(
                f"{self.classes[c]!r} ({int(self.counts[c])})" for c in short[:_MOST_NAMED]
            )
            more = f" and {len(short) - _MOST_NAMED} more" if len(short) > _MOST_NAMED else ""
            raise DataError(
                f"every class needs n_shot + n_query = {n_images} images, since they are drawn "
                f"without replacement; these have fewer: {named}{more}. Ask for fewer images, or "
                "leave out those classes."
            )


def index_labels(labels: Sequence[int] | Sequence[str] | np.ndarray | Tensor) -> ClassIndex:
    """Sort a dataset by class.

    Args:
        labels: The label of every image, in the order of the dataset: integers or strings, in a
            list, an array or a tensor. Class ids are the positions of the labels in ascending
            order; labels 0 to n - 1 are their own class ids.

    Raises:
        ArgumentError: If they are neither, or not one a dataset item.
    """
    names = _as_array(labels)
    classes, class_ids = np.unique(names, return_inverse=True)
    counts = torch.from_numpy(np.bincount(class_ids))
    # Stable, so that images of a class stay in the order of the dataset on every platform.
    images = torch.from_numpy(np.argsort(class_ids, kind="stable"))
    identity = "\0".join(map(str, classes.tolist())).encode() + class_ids.astype("<i8").tobytes()
    return ClassIndex(
        classes=tuple(classes.tolist()),
        images=images,
        starts=counts.cumsum(0) - counts,
        counts=counts,
        digest=hashlib.sha256(identity).hexdigest(),
    )


def _as_array(labels: object) -> np.ndarray:
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    elif not isinstance(labels, np.ndarray):
        # A list of scalar tensors, as datasets collect them, would become an array of objects.
        items = _items(labels)
        kinds = {isinstance(item, str) for item in items}
        if len(kinds) > 1:
            raise ArgumentError("labels must be all integers or all strings; got both.")
        try:
            labels = np.asarray(items)
        except Exception:  # lists of other lengths, integers of too many digits
            raise ArgumentError(_EXPECTED.format(shown(items))) from None
    if labels.ndim != 1 or labels.size == 0 or labels.dtype.kind not in "iuU":
        raise ArgumentError(_EXPECTED.format(f"{labels.dtype} of shape {labels.shape}"))
    return labels


def _items(labels: Any) -> list[Any]:
    try:
        return [item.item() if isinstance(item, Tensor) else item for item in labels]
    except Exception:  # no list at all, or tensors of several numbers
        raise ArgumentError(_EXPECTED.format(shown(labels))) from None
