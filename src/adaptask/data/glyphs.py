"""`glyphs`, the built-in dataset: characters drawn from the fonts that matplotlib carries.

A class is a character. An example is a face under a random affine map, stroke and noise, 28x28
gray. Everything random is drawn as integers from a generator per class, and pixels are computed
in integers: the same versions of NumPy, Pillow and matplotlib give the same bytes on every
machine.

Which characters are one class was decided by comparing pixels, and is written in
`splits/glyphs.json`. Characters that look the same in nearly every face (Latin A, Greek Alpha,
Cyrillic A) are one class. Classes that look alike at the same size (c and C, Cyrillic En and Pe)
form a cluster, and a cluster is not divided between splits. Tests compare all pixels again.

The font files come from matplotlib's data folder, so that no system font is used by accident.
Pillow draws them, since its FreeType is fixed by its version and works in integers;
`Layout.BASIC` avoids the text-shaping library that some builds lack. The Computer Modern files
are left out: they have symbols at the places of letters.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from adaptask.data.benchmarks import OMNIGLOT_ROTATIONS, class_lists, with_rotations
from adaptask.data.images import ImageSet

NAME = "glyphs"
TURNED_NAME = "turned-glyphs"
IMAGE_SIZE = 28
N_EXAMPLES = 40
"""Examples per class."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Integers = np.ndarray[Any, np.dtype[np.integer[Any]]]

_SCRIPTS = ("latin", "greek", "cyrillic", "armenian", "georgian")
_EXAMPLES_SEED = 28
_CANVAS = 112
_EM = 96
_SAMPLES = 3  # on each side of a pixel
_ONE = 1 << 16  # of the fixed-point coordinates

# Largest changes of an example, in thousandths.
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
    return {
        split: _image_set(split, [characters[0] for characters in classes], faces)
        for split, classes in class_lists(NAME).items()
    }


def name_of(character: str) -> str:
    """Return the readable name of a class after its first character.

    >>> name_of("a")
    'latin-small-a'
    """
    return unicodedata.name(character).lower().replace(" letter", "").replace(" ", "-")


def script_of(name: str) -> str:
    """Return the group of a class by its name: its script, or `symbol`; digits are symbols.

    >>> script_of("greek-small-alpha"), script_of("euro-sign")
    ('greek', 'symbol')
    """
    script = name.partition("-")[0]
    return script if script in _SCRIPTS else "symbol"


def _image_set(split: str, characters: Sequence[str], faces: Sequence[Face]) -> ImageSet:
    import torch  # here, so that the list of datasets can be read without it

    images = np.concatenate([draw_examples(character, faces) for character in characters])
    return ImageSet(
        dataset=NAME,
        split=split,
        images=torch.from_numpy(images)[:, None],
        class_names=tuple(map(name_of, characters)),
        class_starts=torch.arange(len(characters) + 1) * N_EXAMPLES,
    )


def turn(image_set: ImageSet) -> ImageSet:
    """Return a split of `turned-glyphs`: each class four times, turned by quarter circles.

    As on Omniglot, angles are counterclockwise and end the names: `latin-small-a/rot090`.
    """
    import torch

    names = with_rotations({image_set.split: image_set.class_names})[image_set.split]
    classes = torch.unflatten(image_set.images, 0, (image_set.n_classes, -1))
    turned = [torch.rot90(classes, angle // 90, (3, 4)) for angle in OMNIGLOT_ROTATIONS]
    return ImageSet(
        dataset=TURNED_NAME,
        split=image_set.split,
        images=torch.stack(turned, dim=1).flatten(0, 2),
        class_names=names,
        class_starts=torch.arange(len(names) + 1) * classes.shape[1],
    )


# --- faces ----------------------------------------------------------------------------------------

FACE_FILES = (
    *(f"DejaVuSans{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}.ttf" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}.ttf" for style in ("", "Bol", "Italic", "BolIta")),
)


@dataclass(frozen=True)
class Face:
    """One font file and the characters that it really has."""

    path: Path
    code_points: frozenset[int]

    def has(self, character: str) -> bool:
        """Return whether the face draws the character itself, not the box for missing ones."""
        return ord(character) in self.code_points

    def draw(
        self, character: str, *, canvas: int, size: int = 0, extent: int = 0, margin: int = 4
    ) -> Pixels:
        """Draw a character, its bounding box centered, `canvas x canvas`.

        Args:
            character: What to draw.
            canvas: Height and width of the picture in pixels.
            size: Size of the em in pixels; lowered if the character would not fit.
            extent: If given, the longer side of the character itself; the size follows from it.
            margin: Pixels left free on every side.
        """
        longest = extent or canvas - 2 * margin
        ink = self._ink(character, size or 2 * longest)
        if extent or max(ink.size) > longest:
            ink = self._ink(character, (size or 2 * longest) * longest // max(ink.size))
        picture = Image.new("L", (canvas, canvas))
        picture.paste(ink, ((canvas - ink.width) // 2, (canvas - ink.height) // 2))
        return np.asarray(picture)

    def _ink(self, character: str, size: int) -> Image.Image:
        """Draw at a size and cut off what is empty (the box of the font includes side bearings)."""
        sheet = Image.new("L", (3 * size, 3 * size))
        font = _open_font(self.path, size)
        ImageDraw.Draw(sheet).text((size, size), character, font=font, fill=255)
        return sheet.crop(sheet.getbbox())


@functools.lru_cache(maxsize=256)
def _open_font(path: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


def load_faces(files: Sequence[str] = FACE_FILES) -> tuple[Face, ...]:
    """Return the faces in the order of `files`, each with its character map."""
    # Imported here: the package works without matplotlib until glyphs are needed.
    import matplotlib
    from matplotlib.ft2font import FT2Font

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    faces = []
    for file in files:
        # Index 0 is the box that stands for missing characters.
        charmap = FT2Font(str(folder / file)).get_charmap()
        drawn = frozenset(code for code, glyph_index in charmap.items() if glyph_index)
        faces.append(Face(folder / file, drawn))
    return tuple(faces)


# --- examples -------------------------------------------------------------------------------------


def draw_examples(character: str, faces: Sequence[Face]) -> Pixels:
    """Draw all examples of one class, `examples x 28 x 28`, each face about equally often."""
    random = np.random.Generator(np.random.PCG64([_EXAMPLES_SEED, ord(character)]))
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
    gray: Integers = paper + (ink - paper) * coverage // 255 + noise
    return gray.clip(0, 255).astype(np.uint8)


def _thicken(masks: Pixels, growth: int) -> Pixels:
    """Widen strokes by `growth` pixels on every side."""
    for _ in range(growth):
        for axis in (1, 2):
            # A roll carries only empty margin around the edge.
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
    # Not the sine and cosine of the machine: they differ in the last bit between machines.
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
