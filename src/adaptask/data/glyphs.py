"""`glyphs`, the built-in dataset: characters drawn from the fonts that matplotlib carries.

A class is a character. An example is a face under a random affine map, stroke and noise, 28x28
gray. Everything random is drawn as integers from a generator per class, and pixels are computed
in integers: the same versions of NumPy, Pillow and matplotlib give the same bytes on every
machine.

Which characters are one class is decided by comparing pixels. Two characters that look the same
in nearly every face (Latin A, Greek Alpha, Cyrillic A) become one class. Classes that look alike
at the same size (c and C, Cyrillic En and Pe) form a cluster, and a cluster is never divided
between splits.

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

from adaptask.data.benchmarks import OMNIGLOT_ROTATIONS, with_rotations
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
    classes = choose_classes(faces)
    return {
        split: _image_set(split, [c for c in classes if c.split == split], faces)
        for split in ("train", "val", "test")
    }


def script_of(name: str) -> str:
    """Return the group of a class by its name: its script, or `symbol`; digits are symbols.

    >>> script_of("greek-small-alpha"), script_of("euro-sign")
    ('greek', 'symbol')
    """
    script = name.partition("-")[0]
    return script if script in _SCRIPTS else "symbol"


def _image_set(split: str, classes: Sequence[GlyphClass], faces: Sequence[Face]) -> ImageSet:
    import torch  # here, so that the list of datasets can be read without it

    images = np.concatenate([draw_examples(c.characters[0], faces) for c in classes])
    return ImageSet(
        dataset=NAME,
        split=split,
        images=torch.from_numpy(images)[:, None],
        class_names=tuple(c.name for c in classes),
        class_starts=torch.arange(len(classes) + 1) * N_EXAMPLES,
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


# --- classes --------------------------------------------------------------------------------------

Distances = np.ndarray[Any, np.dtype[np.float64]]

FRACTIONS = {"train": 0.64, "val": 0.16, "test": 0.20}
SAME_BELOW = 0.095
# From 0.36 on, chains of small resemblances join half of all letters into one group.
ALIKE_BELOW = 0.35
_LEAST_FACES = 12
_SPLITS_SEED = 20200717

# In the order in which a class takes its name from its first character.
CANDIDATES = (
    *(chr(code) for code in range(ord("A"), ord("Z") + 1)),
    *(chr(code) for code in range(ord("a"), ord("z") + 1)),
    *"0123456789",
    *"ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩαβγδεζηθικλμνξοπρςστυφχψω",
    *(chr(code) for code in range(ord("А"), ord("я") + 1)),  # noqa: RUF001
    *(chr(code) for code in range(0x531, 0x557)),  # Armenian capitals
    *(chr(code) for code in range(0x561, 0x587)),  # Armenian small letters
    *(chr(code) for code in range(0x10D0, 0x10F1)),  # Georgian
    *"!?#$%&@*+=<>/(){}[]§¶£¥€©®±×∞∂∑√∫≠←↑→↓↔■▲●♠♣♥♦♪♫ßæœøþ",  # noqa: RUF001
)


@dataclass(frozen=True)
class GlyphClass:
    """One class of `glyphs`."""

    characters: tuple[str, ...]
    """All that look the same; the first is drawn."""
    group: int
    """Number of its group of look-alikes."""
    split: str

    @property
    def name(self) -> str:
        """A readable name after the first character, such as `latin-small-a`."""
        words = unicodedata.name(self.characters[0]).lower().replace(" letter", "")
        return words.replace(" ", "-")


def choose_classes(faces: Sequence[Face]) -> tuple[GlyphClass, ...]:
    """Return all classes in the order of `CANDIDATES`, each with its group and split."""
    present = [c for c in CANDIDATES if sum(face.has(c) for face in faces) >= _LEAST_FACES]
    alike_as_drawn = compare(present, faces, canvas=112, size=96, block=8)
    classes = cluster(alike_as_drawn, below=SAME_BELOW)
    drawn = [present[members[0]] for members in classes]
    alike_at_one_size = compare(drawn, faces, canvas=72, extent=64, block=6)
    groups = cluster(alike_at_one_size, below=ALIKE_BELOW)
    splits = assign_splits([len(members) for members in groups])
    group_of = {c: number for number, members in enumerate(groups) for c in members}
    return tuple(
        GlyphClass(
            characters=tuple(present[member] for member in members),
            group=group_of[number],
            split=splits[group_of[number]],
        )
        for number, members in enumerate(classes)
    )


def compare(
    characters: Sequence[str],
    faces: Sequence[Face],
    *,
    canvas: int,
    block: int,
    size: int = 0,
    extent: int = 0,
) -> Distances:
    """Return how different characters look, from 0 (the same) to 1, `characters x characters`.

    The ink of two characters that is not shared, over the ink of both on top of each other
    (one minus Jaccard's index, for gray pixels averaged over blocks), averaged over the faces that
    have both.
    """
    n_cells = canvas // block
    total = np.zeros((len(characters), len(characters)))
    n_shared = np.zeros_like(total)
    for face in faces:
        has = [index for index, character in enumerate(characters) if face.has(character)]
        cells = np.zeros((len(has), n_cells * n_cells), dtype=np.int32)
        for row, index in enumerate(has):
            ink = face.draw(characters[index], canvas=canvas, size=size, extent=extent)
            blocks = ink.astype(np.int32).reshape(n_cells, block, n_cells, block)
            cells[row] = blocks.sum((1, 3)).ravel()
        ink_sums = cells.sum(1)
        for row, index in enumerate(has):
            unshared = np.abs(cells - cells[row]).sum(1)
            # Twice the union, since sum(max(a, b)) = (a + b + |a - b|) / 2.
            total[index, has] += 2 * unshared / (ink_sums + ink_sums[row] + unshared)
            n_shared[index, has] += 1
    return total / n_shared


def cluster(distances: Distances, *, below: float) -> list[list[int]]:
    """Join everything that is nearer than a bound, directly or through others (single linkage).

    Returns:
        The clusters, each in ascending order, ordered by their first members.
    """
    cluster_of = list(range(len(distances)))
    for first, second in np.argwhere(np.triu(distances < below, k=1)).tolist():
        kept, dropped = sorted((cluster_of[first], cluster_of[second]))
        cluster_of = [kept if number == dropped else number for number in cluster_of]
    numbers = sorted(set(cluster_of))
    return [[i for i, number in enumerate(cluster_of) if number == n] for n in numbers]


def assign_splits(group_sizes: Sequence[int]) -> list[str]:
    """Return a split for every group such that classes are divided as `FRACTIONS` says.

    Large groups are placed first, each in a split drawn in proportion to the free places among
    those where it fits; the many groups of one class fill the rest exactly.
    """
    n_classes = sum(group_sizes)
    places = {split: round(fraction * n_classes) for split, fraction in FRACTIONS.items()}
    places["train"] += n_classes - sum(places.values())
    random = np.random.Generator(np.random.PCG64(_SPLITS_SEED))
    order = sorted(range(len(group_sizes)), key=lambda group: -group_sizes[group])
    chosen = [""] * len(group_sizes)
    for group in order:
        fitting = [split for split in places if places[split] >= group_sizes[group]]
        tickets = [split for split in fitting for _ in range(places[split])]
        chosen[group] = tickets[int(random.integers(len(tickets)))]
        places[chosen[group]] -= group_sizes[group]
    return chosen


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
