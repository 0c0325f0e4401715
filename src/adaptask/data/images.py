"""The one form in which every dataset is held: the images of a split, grouped by class.

A vector of d features is an image of d channels and one pixel, in float16 or float32.

Torch is imported when it is used: `adaptask data list` reads this module and needs no tensors.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from adaptask.arguments import check_integer
from adaptask.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from torch import Tensor

SPLITS = ("train", "val", "test")
EvaluationTasks = Literal["uniform", "within-group"]
"""Whose classes an evaluation task has: any of the split, or those of one group."""

BRIGHTNESS = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in brightness, ITU-R BT.601, as Pillow has them."""
_BATCH = 1024

_ROTATION = re.compile(r"/rot\d{3}$")

_shrunk: WeakValueDictionary[tuple[object, int], Tensor] = WeakValueDictionary()
"""Smaller images by their file and factor, so that all runs of a process share them."""


@dataclass(frozen=True)
class ImageSet:
    """The images of one split of a dataset, those of a class next to each other.

    Class `c` owns `images[class_starts[c] : class_starts[c + 1]]`. Classes are numbered in the
    order of `class_names`, from 0, within the split. `from_labels` makes an image set of images
    in any order.
    """

    dataset: str
    """The name of the dataset, such as `cifar-fs`."""
    split: str
    """`train`, `val` or `test`."""
    images: Tensor
    """`images x channels x height x width` uint8, or features, `vectors x size x 1 x 1` float16 or
    float32; memory-mapped if it comes from a cache."""
    class_names: tuple[str, ...]
    class_starts: Tensor
    """`classes + 1` int64; the last entry is the number of images."""
    groups: Sequence[str] | None = None
    """The group of every class, such as its alphabet, for test tasks within a group. By default
    it is what precedes the first `/` of the class names, if all have one: `Greek/character01`."""
    variant_of: Tensor | None = None
    """`classes` int64: classes with the same number are variants of one original. By default
    rotations are: classes whose names differ only in their ends, `/rot000` to `/rot270`."""
    file: tuple[object, ...] | None = field(default=None, init=False, repr=False, compare=False)
    """Identifies the file that the images are a map of, and its version. It is not an argument, so
    that a set made from another by `dataclasses.replace` has none."""

    def __post_init__(self) -> None:
        originals = [_ROTATION.sub("", name) for name in self.class_names]
        if self.groups is None and all("/" in name for name in originals):
            groups = tuple(name.partition("/")[0] for name in originals)
            object.__setattr__(self, "groups", groups)
        if self.variant_of is None and tuple(originals) != self.class_names:
            import torch

            number = {name: i for i, name in enumerate(dict.fromkeys(originals))}
            variant_of = torch.tensor([number[name] for name in originals])
            object.__setattr__(self, "variant_of", variant_of)

    @classmethod
    def from_labels(cls, images: Any, labels: Any, *, dataset: str, split: str) -> ImageSet:
        """Group images by their labels.

        Args:
            images: `images x channels x height x width` uint8, or features, `vectors x size`
                float16 or float32; a tensor or a NumPy array.
            labels: One per image: names of classes, or integers; a sequence, an array or a tensor.
                Classes are put in order.
            dataset: The name of the dataset.
            split: `train`, `val` or `test`.

        Raises:
            DataError: If there is not one label per image, the images have another form, or
                features are not finite.
        """
        import numpy as np
        import torch

        with warnings.catch_warnings():
            # Of an array that is mapped for reading only; nobody writes into images.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            pixels, flat = torch.as_tensor(images), label_array(labels)
        noun = "vector" if pixels.ndim == 2 else "image"
        if pixels.ndim == 2 and pixels.dtype in (torch.float16, torch.float32):
            pixels = pixels[:, :, None, None]
        if flat.shape != pixels.shape[:1] or flat.dtype.kind not in "iuU" or not len(flat):
            raise DataError(
                f"{dataset} ({split}) must have one label per {noun}, integers or names of "
                f"classes; got {pixels.shape[0] if pixels.ndim else 'no'} {noun}s and labels of "
                f"type {flat.dtype} and shape {flat.shape}."
            )
        names, counts = np.unique(flat, return_counts=True)
        in_order = bool((flat[:-1] <= flat[1:]).all())  # then they need not be copied
        order = torch.from_numpy(np.argsort(flat, kind="stable"))
        image_set = cls(
            dataset=dataset,
            split=split,
            images=pixels if in_order else pixels[order.to(pixels.device)],
            class_names=tuple(str(name) for name in names),
            class_starts=torch.tensor([0, *np.cumsum(counts).tolist()]),
        )
        image_set.class_counts()  # checks the form of the images
        if image_set.holds_features and not is_finite(image_set.images):
            raise DataError(
                f"features of {dataset} ({split}) must be finite; some are NaN or infinite. Leave "
                "those vectors out, or compute them again."
            )
        return image_set

    def __repr__(self) -> str:
        # Short, since an object that holds one shows it; and of one that is not laid out well, too.
        sizes = " x ".join(map(str, self.images.shape))
        return f"ImageSet({self.dataset!r}, {self.split!r}: {self.n_classes} classes, {sizes})"

    @property
    def n_classes(self) -> int:
        """Number of classes in the split."""
        return len(self.class_names)

    @property
    def holds_features(self) -> bool:
        """Whether the images are vectors of features."""
        return self.images.is_floating_point()

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def class_counts(self) -> list[int]:
        """Return the number of images of every class, after checking how the split is laid out.

        Raises:
            DataError: If it is not laid out as this class says.
        """
        import torch

        images, starts = self.images, self.class_starts
        name = f"{self.dataset} ({self.split})"
        are_features = images.dtype in (torch.float16, torch.float32) and images.numel() > 0
        if images.ndim != 4 or not (
            images.dtype == torch.uint8 or (are_features and images.shape[2:] == (1, 1))
        ):
            advice = "Convert other numbers yourself: features.float()."
            if images.ndim == 4 and images.is_floating_point() and images.shape[2:] != (1, 1):
                advice = (
                    "Convert images from 0 to 1 yourself: (255 * images).round().to(torch.uint8)."
                )
            raise DataError(
                f"images of {name} must be uint8, `images x channels x height x width`, and "
                f"features float16 or float32, `vectors x size`; got {images.dtype} of shape "
                f"{tuple(images.shape)}. {advice}"
            )
        if starts.ndim != 1 or starts.dtype != torch.int64:
            raise DataError(f"class_starts of {name} must be `classes + 1` int64.")
        bounds = starts.tolist()
        counts = [end - start for start, end in pairwise(bounds)]
        in_order = len(bounds) == self.n_classes + 1 > 1 and bounds[0] == 0
        if not in_order or bounds[-1] != len(images) or min(counts) < 1:
            raise DataError(
                f"class_starts of {name} must rise from 0 to {len(images)}, the number of images, "
                f"in {self.n_classes + 1} entries, one class or more; got {bounds[:8]}"
                f"{'...' if len(bounds) > 8 else ''}."
            )
        if self.groups is not None and len(self.groups) != self.n_classes:
            raise DataError(
                f"groups of {name} must have one name for each of the {self.n_classes} classes; "
                f"got {len(self.groups)}."
            )
        if (variants := self.variant_of) is not None and (
            variants.shape != (self.n_classes,) or variants.dtype != torch.int64
        ):
            raise DataError(
                f"variant_of of {name} must be int64, one number for each of the {self.n_classes} "
                f"classes; got {variants.dtype} of shape {tuple(variants.shape)}."
            )
        return counts


def label_array(labels: Any) -> Any:
    """Return labels as an array: of integers or names if it can be, though held as objects."""
    import numpy as np

    flat = np.asarray(labels)
    if flat.dtype.kind == "U" and isinstance(labels, list | tuple):
        # NumPy would turn a missing label, such as the NaN of a data frame, into a name.
        flat = np.asarray(labels, dtype=object)
    if flat.dtype == object:  # as a column of a data frame is
        kinds = {type(label) for label in flat.flat}
        if kinds <= {str, np.str_}:
            return flat.astype(str)
        if all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds):
            return np.asarray(flat.tolist())  # still of objects if some exceed 64 bits
    return flat


def is_finite(features: Tensor) -> bool:
    """Return whether there is neither a NaN nor an infinity, without a copy of all features."""
    import torch

    return all(bool(part.isfinite().all()) for part in torch.split(features, 1 << 16))


def resize_images(image_set: ImageSet, image_shape: tuple[int, int, int]) -> ImageSet:
    """Return a split with images of another shape: resized, and in gray or in three channels.

    A model that was trained on one dataset can so be tested on another. Gray images are repeated
    in every channel; colors become their brightness.

    Args:
        image_set: The split.
        image_shape: Channels, height and width of the result.

    Raises:
        ArgumentError: If the numbers of channels differ and are not 1 and 3, or one of the two
            shapes is that of features.
    """
    import torch

    if image_set.image_shape == image_shape:
        return image_set
    if image_set.holds_features or image_shape[1:] == (1, 1):
        found_shape, wanted_shape = (
            " x ".join(map(str, shape)) for shape in (image_set.image_shape, image_shape)
        )
        raise ArgumentError(
            f"{image_set.dataset} is {found_shape}, and {wanted_shape} is wanted; features are "
            "not converted. Use a dataset of features of that size, by the same network."
        )
    found, wanted = image_set.image_shape[0], image_shape[0]
    if found != wanted and {found, wanted} != {1, 3}:
        raise ArgumentError(
            f"images of {image_set.dataset} have {found} channels, and {wanted} are wanted; only "
            "gray images and those of three channels are turned into each other."
        )
    parts = [_resize(part, image_shape) for part in torch.split(image_set.images, _BATCH)]
    return replace(image_set, images=torch.cat(parts))


def _resize(images: Tensor, image_shape: tuple[int, int, int]) -> Tensor:
    import torch
    from torch.nn.functional import interpolate

    channels, *size = image_shape
    pixels = images.float()
    if channels < images.shape[1]:
        weights = torch.tensor(BRIGHTNESS, device=images.device).view(1, 3, 1, 1)
        pixels = (pixels * weights).sum(1, keepdim=True)
    if list(pixels.shape[2:]) != size:
        pixels = interpolate(pixels, size, mode="bilinear", antialias=True)
    return pixels.round_().clamp_(0, 255).to(torch.uint8).expand(-1, channels, -1, -1)


def shrink_images(image_set: ImageSet, factor: int) -> ImageSet:
    """Return a split whose images have one pixel for each square of `factor x factor` pixels.

    It is their average, rounded to an integer, halves upwards.

    Args:
        image_set: The split.
        factor: Side of the squares; 1 changes nothing.

    Raises:
        ArgumentError: If the factor is no positive integer, or does not divide height and width.
    """
    channels, height, width = shrunk_shape(image_set, factor)
    if factor == 1:
        return image_set
    import torch

    key = (image_set.file, factor)
    images = _shrunk.get(key) if image_set.file else None
    if images is None:
        area = factor * factor
        images = image_set.images.new_empty(len(image_set.images), channels, height, width)
        for start in range(0, len(images), _BATCH):
            part = image_set.images[start : start + _BATCH]
            squares = part.view(-1, channels, height, factor, width, factor)
            sums = squares.sum((3, 5), dtype=torch.int32)
            images[start : start + _BATCH] = (2 * sums + area) // (2 * area)
    shrunk = replace(image_set, images=images)
    if image_set.file:
        _shrunk[key] = images
        object.__setattr__(shrunk, "file", key)
    return shrunk


def shrunk_shape(image_set: ImageSet, factor: int) -> tuple[int, int, int]:
    """Return channels, height and width of the images that `shrink_images` returns.

    Raises:
        ArgumentError: If the factor is no positive integer, does not divide height and width, or
            there are features instead of images.
    """
    check_integer("shrink", factor, low=1)
    if image_set.holds_features and factor > 1:
        raise ArgumentError(
            f"shrink is for images, and {image_set.dataset} has features; leave it out, got "
            f"{factor}."
        )
    channels, height, width = image_set.image_shape
    if height % factor or width % factor:
        raise ArgumentError(
            f"shrink must divide the height and width of the images of {image_set.dataset}, "
            f"{height} x {width}; got {factor}."
        )
    return channels, height // factor, width // factor
