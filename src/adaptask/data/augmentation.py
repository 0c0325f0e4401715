"""Augmentation of a whole batch on its device, with separate random numbers for every image.

Each step is a frozen dataclass called with images, `batch x channels x height x width` float from
0 to 1, and a generator on their device. It returns images of the same shape, synchronizes nothing
and never loops over images.

Drawing and applying are separate, so that a process that has a share of the images can draw for
all of them, as one process would, and change only its own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from adaptask.arguments import check_number, format_value
from adaptask.data.images import BRIGHTNESS
from adaptask.errors import ArgumentError

_BOX_ATTEMPTS = 10


class Augmentation(Protocol):
    """Changes every image of a batch at random."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return augmented images, the shape of `images`."""
        ...


@dataclass(frozen=True)
class Share:
    """Some images of a batch whose others are elsewhere."""

    n_images: int
    """How many images the batch has."""
    places: Tensor
    """Which of them are here, `share` int64."""


class DrawnAugmentation(ABC):
    """An augmentation that first draws what to do: override `draw` and `apply`."""

    @abstractmethod
    def draw(
        self, n_images: int, size: Sequence[int], device: torch.device, generator: torch.Generator
    ) -> Tensor:
        """Return what is done to each image, `... x batch`.

        Args:
            n_images: Number of images.
            size: Their height and width.
            device: Where the draw is made.
            generator: Source of randomness, on that device.
        """

    @abstractmethod
    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Return the images, each changed as was drawn for it."""

    def draw_for(
        self,
        n_images: int,
        size: Sequence[int],
        device: torch.device,
        generator: torch.Generator,
        share: Share | None = None,
    ) -> Tensor:
        """Return what is done to each image here; draw for the others of its batch as well."""
        if share is None:
            return self.draw(n_images, size, device, generator)
        return self.draw(share.n_images, size, device, generator).index_select(-1, share.places)

    def __call__(
        self, images: Tensor, generator: torch.Generator, share: Share | None = None
    ) -> Tensor:
        """Return the images, each changed by its own random numbers."""
        size = images.shape[-2:]
        return self.apply(images, self.draw_for(len(images), size, images.device, generator, share))


def steps_of(augmentation: Augmentation | None) -> tuple[Augmentation, ...]:
    """Return what an augmentation consists of, in order."""
    if augmentation is None:
        return ()
    if not isinstance(augmentation, Compose):
        return (augmentation,)
    return tuple(leaf for step in augmentation.steps for leaf in steps_of(step))


def can_share(augmentation: Augmentation | None) -> bool:
    """Return whether an augmentation can be applied to a share of a batch."""
    return all(isinstance(step, DrawnAugmentation) for step in steps_of(augmentation))


@dataclass(frozen=True)
class Compose:
    """Applies its steps in order; without steps it changes nothing."""

    steps: tuple[Augmentation, ...] = ()

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return `images` after every step."""
        for step in self.steps:
            images = step(images, generator)
        return images


@dataclass(frozen=True, kw_only=True)
class HorizontalFlip(DrawnAugmentation):
    """Mirrors each image left to right with a probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        """Check the range."""
        if not 0 <= self.probability <= 1:
            raise ArgumentError(
                f"probability of a flip must be between 0 and 1; got {self.probability}."
            )

    def draw(
        self, n_images: int, size: Sequence[int], device: torch.device, generator: torch.Generator
    ) -> Tensor:
        """Return which images are mirrored, `batch` bool."""
        return torch.rand(n_images, generator=generator, device=device) < self.probability

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Return the images, some mirrored."""
        return torch.where(drawn[:, None, None, None], images.flip(-1), images)


@dataclass(frozen=True, kw_only=True)
class RandomCrop(DrawnAugmentation):
    """Pads each image with black and cuts a window of the old size out of it at random.

    `padding` is in pixels on every side; by default 4 up to a height of 48 (as usual for 32x32)
    and 8 above (for 84x84).
    """

    padding: int | None = None

    def __post_init__(self) -> None:
        """Check the range."""
        if self.padding is not None and self.padding < 0:
            raise ArgumentError(f"padding must be at least 0 pixels; got {self.padding}.")

    def draw(
        self, n_images: int, size: Sequence[int], device: torch.device, generator: torch.Generator
    ) -> Tensor:
        """Return the first row and column of each window, `2 x batch` int64."""
        padding = self.padding
        if padding is None:
            padding = 4 if size[0] <= 48 else 8
        return torch.randint(
            -padding, padding + 1, (2, n_images), generator=generator, device=device
        )

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Return a window of each padded image."""
        return crop_windows(images, drawn[0], drawn[1])


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop(DrawnAugmentation):
    """Cuts a box of random area and shape out of each image and stretches it to the old size.

    The distribution is that of torchvision: the area is uniform within `scale` times that of the
    image, and the logarithm of width over height uniform within `ratio`. Of ten boxes the first
    that fits is placed at random; if none does, the largest centered box within `ratio` is used.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if not 0 < low <= high < math.inf:
                raise ArgumentError(
                    f"{name} must be a range (low, high) with 0 < low <= high; got ({low}, {high})."
                )

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Return a stretched box of each image."""
        return resize_boxes(images, drawn)

    def draw(
        self, n_images: int, size: Sequence[int], device: torch.device, generator: torch.Generator
    ) -> Tensor:
        """Return a box for each image: top, left, height and width in pixels, `4 x batch`."""
        height, width = size
        tries = (_BOX_ATTEMPTS, n_images)
        area = height * width * _uniform(tries, *self.scale, device, generator)
        low, high = (math.log(bound) for bound in self.ratio)
        ratio = _uniform(tries, low, high, device, generator).exp()
        widths = (area * ratio).sqrt().round()
        heights = (area / ratio).sqrt().round()
        fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
        # argmax finds the first attempt that fits; all-False gives attempt 0, replaced below.
        first = fits.int().argmax(0, keepdim=True)
        found = fits.gather(0, first)[0]
        central_height, central_width = self._central_box(height, width)
        box_heights = torch.where(found, heights.gather(0, first)[0], central_height)
        box_widths = torch.where(found, widths.gather(0, first)[0], central_width)
        place = _uniform((2, n_images), 0.0, 1.0, device, generator)
        # Rounding may carry the product up to the bound itself, hence the minimum.
        tops = torch.minimum((place[0] * (height - box_heights + 1)).floor(), height - box_heights)
        lefts = torch.minimum((place[1] * (width - box_widths + 1)).floor(), width - box_widths)
        tops = torch.where(found, tops, (height - central_height) // 2)
        lefts = torch.where(found, lefts, (width - central_width) // 2)
        return torch.stack((tops, lefts, box_heights, box_widths)).long()

    def _central_box(self, height: int, width: int) -> tuple[int, int]:
        low, high = self.ratio
        if width / height < low:
            return min(round(width / low), height), width
        if width / height > high:
            return height, min(round(height * high), width)
        return height, width


@dataclass(frozen=True, kw_only=True)
class ColorJitter(DrawnAugmentation):
    """Changes brightness, contrast and saturation of each image, in random order.

    Each factor is uniform from `max(0, 1 - strength)` to `1 + strength`, as in torchvision's
    `ColorJitter`; every image draws its own three factors and its own order.
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4

    def __post_init__(self) -> None:
        """Check the strengths."""
        for name in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ArgumentError(f"{name} must be at least 0; got {getattr(self, name)}.")

    def draw(
        self, n_images: int, size: Sequence[int], device: torch.device, generator: torch.Generator
    ) -> Tensor:
        """Return the three factors of each image, and then their order, `6 x batch`."""
        factors = [
            _uniform((n_images,), max(0.0, 1 - strength), 1 + strength, device, generator)
            for strength in (self.brightness, self.contrast, self.saturation)
        ]
        keys = torch.rand((n_images, 3), generator=generator, device=device)
        return torch.cat((torch.stack(factors), keys.argsort(dim=1).T.float()))

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Return the images with their colors changed."""
        return jitter_colors(images, drawn[:3].T, drawn[3:].T.long())


@dataclass(frozen=True, kw_only=True)
class GaussianNoise:
    """Adds Gaussian noise to every number: for features, in units of their deviation.

    Features are normalized before, so that a strength of 0.1 is a tenth of the deviation of each
    feature over the training vectors. Of images it is on the scale from 0 to 1.
    """

    strength: float = 0.1

    def __post_init__(self) -> None:
        """Check the strength."""
        check_number("strength of noise", self.strength, low=0, high=math.inf)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the images with noise."""
        # Not torch.randn_like(): it takes no generator.
        noise = torch.randn(images.shape, generator=generator, device=images.device)
        return images + self.strength * noise


def _uniform(
    shape: Sequence[int],
    low: float,
    high: float,
    device: torch.device,
    generator: torch.Generator,
) -> Tensor:
    return torch.rand(*shape, generator=generator, device=device) * (high - low) + low


AUGMENTATIONS: dict[str, Augmentation] = {
    "none": Compose(),
    "crop-flip": Compose((RandomCrop(), HorizontalFlip())),
    "crop-jitter-flip": Compose((RandomCrop(), ColorJitter(), HorizontalFlip())),
    "resized-crop-jitter-flip": Compose((RandomResizedCrop(), ColorJitter(), HorizontalFlip())),
    "noise": GaussianNoise(),
}
"""Augmentations by name; Omniglot and glyphs use `none`, features `none` or `noise`."""


def choose_augmentation(augmentation: str | Augmentation | None) -> Augmentation | None:
    """Return the augmentation of that name, or the one given; None if it changes nothing.

    Raises:
        ArgumentError: If there is none of that name.
    """
    if isinstance(augmentation, str):
        # A name that is not known is refused below, like anything else that is not callable.
        augmentation = AUGMENTATIONS.get(augmentation, augmentation)
    if augmentation is not None and not callable(augmentation):
        raise ArgumentError(
            f"augmentation must be one of {', '.join(AUGMENTATIONS)}, or a callable; got "
            f"{format_value(augmentation)}."
        )
    return None if augmentation == AUGMENTATIONS["none"] else augmentation


def check_for_features(augmentation: Augmentation | None) -> None:
    """Check that an augmentation is not one of ours for pixels.

    Raises:
        ArgumentError: If it is.
    """
    for step in steps_of(augmentation):
        if isinstance(step, DrawnAugmentation) and type(step).__module__ == __name__:
            raise ArgumentError(
                f"the augmentation of features must be none, noise or a callable of yours; got "
                f"{type(step).__name__}, which is for the pixels of images."
            )


# --- the operations, each image with its own parameters --------------------------------------


def crop_windows(images: Tensor, tops: Tensor, lefts: Tensor) -> Tensor:
    """Cut a window of the size of the image from each image, starting at (top, left).

    Args:
        images: `batch x channels x height x width`.
        tops: First row of each window, `batch` int64; negative or too large reaches into black.
        lefts: First column of each window, `batch` int64.
    """
    batch, channels, height, width = images.shape
    rows = torch.arange(height, device=images.device) + tops[:, None]
    columns = torch.arange(width, device=images.device) + lefts[:, None]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[
        :, None, :
    ]
    pixels = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]
    index = pixels.reshape(batch, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, index).view_as(images) * inside[:, None]


def resize_boxes(images: Tensor, boxes: Tensor) -> Tensor:
    """Stretch a box of each image to the size of the image, bilinear between pixel centers.

    Pixels outside a box have no influence: this equals cutting the box out and resizing it.

    Args:
        images: `batch x channels x height x width`.
        boxes: Top, left, height and width in pixels, `4 x batch`.
    """
    height, width = images.shape[-2:]
    tops, lefts, heights, widths = boxes.to(images.dtype)[:, :, None]
    rows = _centers(height, tops, heights, images)
    columns = _centers(width, lefts, widths, images)
    grid = torch.stack(
        (
            ((columns + 0.5) * (2 / width) - 1)[:, None, :].expand(-1, height, -1),
            ((rows + 0.5) * (2 / height) - 1)[:, :, None].expand(-1, -1, width),
        ),
        dim=-1,
    )
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def jitter_colors(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Blend each image with black, its mean gray and its own gray, in the order given.

    A blend is `factor * image + (1 - factor) * reference`, cut off at 0 and 1. The reference is
    black for brightness (0), the mean of the gray image for contrast (1) and the gray image for
    saturation (2).

    Args:
        images: `batch x channels x height x width` with 1 or 3 channels, 0 to 1.
        factors: Of brightness, contrast and saturation, `batch x 3`; 1 changes nothing.
        order: Which of the three comes first, second and third, `batch x 3` int64.
    """
    if images.shape[1] not in (1, 3):
        raise ArgumentError(
            f"color jitter needs images of 1 or 3 channels; got {images.shape[1]}. "
            "Choose an augmentation without it."
        )
    for place in range(3):
        kind = order[:, place, None, None, None]
        factor = factors.gather(1, order[:, place, None])[:, :, None, None]
        gray = _gray(images)
        mean_gray = gray.mean((1, 2, 3), keepdim=True)
        reference = torch.where(kind == 2, gray, torch.where(kind == 1, mean_gray, 0.0))
        # Written as a difference, a factor of 1 leaves every bit as it was.
        images = (images + (factor - 1) * (images - reference)).clamp(0, 1)
    return images


def _centers(size: int, start: Tensor, extent: Tensor, like: Tensor) -> Tensor:
    """Return where the centers of `size` pixels fall in a box, within its outermost centers."""
    steps = torch.arange(size, device=like.device, dtype=like.dtype)
    inside = (steps + 0.5) * (extent / size) - 0.5
    return start + torch.minimum(inside.clamp(min=0), extent - 1)


def _gray(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    red, green, blue = (images[:, c, None] * weight for c, weight in enumerate(BRIGHTNESS))
    return red + green + blue
