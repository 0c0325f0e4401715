"""The one form in which every dataset is held: the images of a split, grouped by class."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ImageSet:
    """The images of one split of a dataset, those of a class standing together.

    Class `c` owns `images[class_starts[c] : class_starts[c + 1]]`. Classes are numbered in the
    order of `class_names`, from 0, within the split.
    """

    dataset: str
    """The dataset's name, such as `cifar-fs`."""
    split: str
    """`train`, `val` or `test`."""
    images: Tensor
    """`images x channels x height x width`, uint8; memory-mapped where it comes from a cache."""
    class_names: tuple[str, ...]
    class_starts: Tensor
    """`classes + 1` int64; the last entry is the number of images."""
    file: tuple[object, ...] | None = field(default=None, init=False, repr=False, compare=False)
    """Tells the file of which the images are a map, and its version. It is no argument, so that a
    set made from another by `dataclasses.replace` has none."""

    @property
    def n_classes(self) -> int:
        """Number of classes in the split."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width
