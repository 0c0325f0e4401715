"""A picture of a dataset: a row of images for each of some classes, with its name."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from adaptask.data.images import ImageSet
from adaptask.errors import ArgumentError

_CELL = 64
_GAP = 4
_MARGIN = 16
_TITLE = 36
_NAMES = 190
_PAPER, _INK, _FAINT = (255, 255, 255), (30, 30, 36), (120, 120, 128)


def contact_sheet(image_set: ImageSet, *, n_classes: int = 12, n_images: int = 12) -> Image.Image:
    """Draw images of a split, a row for each of some classes spread evenly over all of them.

    Args:
        image_set: The split to draw.
        n_classes: Largest number of rows.
        n_images: Largest number of images in a row.

    Raises:
        ArgumentError: If a number is below 1, or the split holds features.
    """
    if n_classes < 1 or n_images < 1:
        raise ArgumentError(
            f"n_classes and n_images must be at least 1; got {n_classes} and {n_images}."
        )
    if image_set.holds_features:
        raise ArgumentError(f"{image_set.dataset} holds features, which have no picture.")
    starts = image_set.class_starts.tolist()
    chosen = _spread(image_set.n_classes, n_classes)
    sizes = [starts[c + 1] - starts[c] for c in chosen]
    step = _CELL + _GAP
    n_columns = min(n_images, max(sizes))
    width = 2 * _MARGIN + _NAMES + n_columns * step - _GAP
    height = 2 * _MARGIN + _TITLE + len(chosen) * step - _GAP
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    title = (
        f"{image_set.dataset} · {image_set.split} · {image_set.n_classes:,} classes, "
        f"{starts[-1]:,} images"
    )
    draw.text(
        (_MARGIN, _MARGIN), _shortened(title, _font(18), width - 2 * _MARGIN), _INK, _font(18)
    )
    for row, (c, size) in enumerate(zip(chosen, sizes, strict=True)):
        top = _MARGIN + _TITLE + row * step
        # In one line: a class may be a folder with a line break in its name.
        words = image_set.class_names[c].replace("_", " ").split()
        name = _shortened(" ".join(words), _font(13), _NAMES - 12)
        draw.text((_MARGIN, top + _CELL // 2 - 9), name, _INK, _font(13))
        draw.text((_MARGIN, top + _CELL // 2 + 8), f"{size} images", _FAINT, _font(10))
        for column, i in enumerate(_spread(size, n_images)):
            left = _MARGIN + _NAMES + column * step
            sheet.paste(_cell(image_set.images[starts[c] + i].numpy()), (left, top))
    return sheet


def _spread(n: int, most: int) -> list[int]:
    """Return up to `most` of the numbers below `n`, evenly spaced."""
    return [i * n // min(n, most) for i in range(min(n, most))]


def _cell(pixels: np.ndarray) -> Image.Image:
    # Of images that are neither gray nor in color, the first channel is shown.
    image = Image.fromarray(np.moveaxis(pixels, 0, -1) if len(pixels) == 3 else pixels[0])
    # Small images keep their pixels sharp, large ones are averaged.
    resampling = Image.Resampling.NEAREST if max(image.size) < _CELL else Image.Resampling.LANCZOS
    return image.convert("RGB").resize((_CELL, _CELL), resampling)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    # Class names can be in any script; the font that matplotlib carries has most of them.
    try:
        from matplotlib.font_manager import findfont

        return ImageFont.truetype(findfont("DejaVu Sans"), size)
    except ImportError:
        return ImageFont.load_default(size)


def _shortened(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """Leave out the middle of a text that is too wide: names often differ at their ends."""
    short, kept = text, len(text)
    while font.getlength(short) > width and kept > 2:
        kept -= 1
        short = text[: (kept + 1) // 2] + "…" + text[len(text) - kept // 2 :]
    return short
