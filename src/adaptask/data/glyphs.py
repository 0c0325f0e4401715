"""`glyphs`, the embedded dataset: written characters drawn from the fonts that matplotlib carries.

A class is a character, an example is a face under a random affine map, stroke and noise, 28x28
grey. Everything random is drawn as integers from a generator of the class's own, and pixels are
computed in integers: the same versions of numpy, Pillow and matplotlib give the same bytes on
every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adaptask.data.glyph_classes import GlyphClass, choose_classes
from adaptask.data.glyph_faces import Face, Pixels, load_faces
from adaptask.data.images import ImageSet

NAME = "glyphs"
IMAGE_SIZE = 28
N_EXAMPLES = 40
"""Examples a class."""

Integers = np.ndarray[Any, np.dtype[np.integer[Any]]]

_SEED = 28
_CANVAS = 112
_EM = 96
_SAMPLES = 3  # a side of each pixel
_ONE = 1 << 16  # of the fixed-point coordinates

# How far each example may stray, in thousandths.
_TURN = 200  # tangent of half the angle: 0.2 is 22.6 degrees
_SHEAR = 250
_SCALE = (780, 1120)
_STRETCH = 150
_SHIFT = 2500  # of a pixel
# Pixels of the canvas, a quarter of an image's pixel, by which strokes grow on every side. They
# never shrink: the hairlines of STIX would vanish and leave halves of characters.
_STROKES = (0, 1, 2)
_INK = (130, 255)
_PAPER = (0, 60)
_NOISE = 24  # half-width of each of four uniform terms


def generate() -> dict[str, ImageSet]:
    """Make the dataset: `train`, `val` and `test` with 192, 48 and 60 classes of 40 images."""
    faces = load_faces()
    classes = choose_classes(faces)
    return {
        split: _image_set(split, [c for c in classes if c.split == split], faces)
        for split in ("train", "val", "test")
    }


def draw_examples(character: str, faces: Sequence[Face]) -> Pixels:
    """Draw all examples of one class, `examples x 28 x 28`, each face about equally often."""
    random = np.random.Generator(np.random.PCG64([_SEED, ord(character)]))
    having = [face for face in faces if face.has(character)]
    masks = np.stack([face.draw(character, canvas=_CANVAS, size=_EM) for face in having])
    strokes = np.stack([_thicken(masks, growth) for growth in _STROKES])
    face = random.permutation(np.arange(N_EXAMPLES) % len(having))
    stroke = random.integers(len(_STROKES), size=N_EXAMPLES)
    rows, columns = _source_pixels(random)
    sampled = strokes[stroke[:, None, None], face[:, None, None], rows, columns]
    cells = sampled.astype(np.int32).reshape(N_EXAMPLES, IMAGE_SIZE, _SAMPLES, IMAGE_SIZE, _SAMPLES)
    coverage = cells.sum((2, 4)) // _SAMPLES**2
    ink = random.integers(*_INK, size=(N_EXAMPLES, 1, 1), endpoint=True)
    paper = random.integers(*_PAPER, size=(N_EXAMPLES, 1, 1), endpoint=True)
    noise = random.integers(-_NOISE, _NOISE, size=(4, *coverage.shape), endpoint=True).sum(0)
    grey: Integers = paper + (ink - paper) * coverage // 255 + noise
    return grey.clip(0, 255).astype(np.uint8)


def _image_set(split: str, classes: Sequence[GlyphClass], faces: Sequence[Face]) -> ImageSet:
    import torch  # here, so that the registry of datasets can be read without it

    images = np.concatenate([draw_examples(c.characters[0], faces) for c in classes])
    return ImageSet(
        dataset=NAME,
        split=split,
        images=torch.from_numpy(images)[:, None],
        class_names=tuple(c.name for c in classes),
        class_starts=torch.arange(len(classes) + 1) * N_EXAMPLES,
    )


def _thicken(masks: Pixels, growth: int) -> Pixels:
    """Widen strokes by `growth` pixels on every side."""
    for _ in range(growth):
        for axis in (1, 2):
            # What a roll carries around the edge is margin, which is empty.
            sides = np.maximum(np.roll(masks, 1, axis), np.roll(masks, -1, axis))
            masks = np.maximum(masks, sides)
    return masks


def _source_pixels(random: np.random.Generator) -> tuple[Integers, Integers]:
    """Draw an affine map for every example and return the canvas pixels that its samples hit.

    Returns:
        Rows and columns, each `examples x 84 x 84`.
    """

    def within(low: int, high: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        return random.integers(low, high, size=(N_EXAMPLES, 1, 1), endpoint=True) / 1000

    half_turn, shear = within(-_TURN, _TURN), within(-_SHEAR, _SHEAR)
    scale, stretch = within(*_SCALE), 1 + within(-_STRETCH, _STRETCH)
    shift_x, shift_y = within(-_SHIFT, _SHIFT), within(-_SHIFT, _SHIFT)
    # Sine and cosine without the machine's own: these differ in the last bit between machines.
    cosine = (1 - half_turn**2) / (1 + half_turn**2)
    sine = 2 * half_turn / (1 + half_turn**2)
    n_samples = IMAGE_SIZE * _SAMPLES
    steps = 2 * np.arange(n_samples, dtype=np.int32) + 1 - n_samples  # half samples from the middle
    x, y = steps[None, None, :], steps[None, :, None]
    unit = _ONE * _CANVAS / (2 * n_samples)
    per_pixel = _ONE * _CANVAS / IMAGE_SIZE

    def along(by_x: Any, by_y: Any, shift: Any) -> Integers:
        terms = [np.rint(by_x * unit), np.rint(by_y * unit), np.rint(shift * per_pixel)]
        a, b, c = (term.astype(np.int32) for term in terms)
        hit: Integers = ((a * x + b * y + c) >> 16) + _CANVAS // 2
        return hit.clip(0, _CANVAS - 1)

    wide, high = scale * stretch, scale / stretch
    columns = along((cosine + shear * sine) / wide, (shear * cosine - sine) / wide, shift_x)
    rows = along(sine / high, cosine / high, shift_y)
    return rows, columns
