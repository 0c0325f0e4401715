"""Small images of classes as PNG data that a page can hold."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LARGEST = 40
"""Height and width of an image in a page at most, in its own pixels."""

Images = NDArray[np.uint8]


def thumbnails(images: Images, largest: int = LARGEST) -> Images:
    """Return images that are at most so large: means over whole blocks of pixels.

    Args:
        images: `... x height x width x channels`.
        largest: Their height and width at most.
    """
    height, width, channels = images.shape[-3:]
    block = -(-max(height, width) // largest)
    if block <= 1:
        return images
    height, width = height // block, width // block
    cut = images[..., : height * block, : width * block, :]
    blocks = cut.reshape(*images.shape[:-3], height, block, width, block, channels)
    return np.asarray(np.round(blocks.mean(axis=(-4, -2))), dtype=np.uint8)


def strip(images: Images, gap: int = 2) -> NDArray[np.uint8]:
    """Return images side by side on a transparent ground, `height x width x 4`.

    Args:
        images: `images x height x width x channels`, with 1 or 3 channels.
        gap: Pixels between them.
    """
    count, height, width, _ = images.shape
    sheet = np.zeros((height, count * (width + gap) - gap, 4), dtype=np.uint8)
    for number, image in enumerate(images):
        left = number * (width + gap)
        sheet[:, left : left + width, :3] = image
        sheet[:, left : left + width, 3] = 255
    return sheet


def sprite(images: Images, columns: int = 32) -> NDArray[np.uint8]:
    """Return images as a sheet with so many a row, `height x width x 3`.

    Args:
        images: `images x height x width x channels`, with 1 or 3 channels.
        columns: Images a row.
    """
    count, height, width, _ = images.shape
    rows = -(-count // columns)
    sheet = np.zeros((rows * height, min(columns, count) * width, 3), dtype=np.uint8)
    for number, image in enumerate(images):
        row, column = divmod(number, columns)
        sheet[row * height : (row + 1) * height, column * width : (column + 1) * width] = image
    return sheet


def coloured(values: NDArray[np.floating], colours: Sequence[str]) -> NDArray[np.uint8]:
    """Return values from 0 to 1 as pixels on a scale of colours, `... x 3`.

    Args:
        values: Any shape; what lies outside is shown as the nearest end.
        colours: From the lowest to the highest, such as `#ffffff`.
    """
    stops = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in colours], np.float64)
    place = np.clip(values, 0, 1) * (len(stops) - 1)
    parts = [np.interp(place, np.arange(len(stops)), stops[:, part]) for part in range(3)]
    return np.asarray(np.round(np.stack(parts, axis=-1)), dtype=np.uint8)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels as a PNG file.

    Args:
        pixels: `height x width x channels`, 3 or 4 of them.
    """
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, format="PNG", optimize=True)
    return file.getvalue()


def data_uri(content: bytes, kind: str = "image/png") -> str:
    """Return a file as an address that holds it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
