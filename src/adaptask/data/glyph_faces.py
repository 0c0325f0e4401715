"""The type faces that matplotlib carries, and characters drawn with them.

The font files come from matplotlib's own data folder, so that no system font can slip in. Pillow
draws them, since its FreeType is fixed by its version and works in integers; `Layout.BASIC` keeps
out the text-shaping library that some builds lack. The Computer Modern files are left out: they
put symbols at the places of letters.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

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
        """Whether the face draws the character itself and not the box for missing ones."""
        return ord(character) in self.code_points

    def draw(
        self, character: str, *, canvas: int, size: int = 0, extent: int = 0, margin: int = 4
    ) -> Pixels:
        """Draw a character, its bounding box centred, `canvas x canvas`.

        Args:
            character: What to draw.
            canvas: Height and width of the picture in pixels.
            size: Size of the em in pixels; lowered where the character would not fit.
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
        """Draw at a size and cut off what is empty (the font's own box counts side bearings)."""
        sheet = Image.new("L", (3 * size, 3 * size))
        font = _open_font(self.path, size)
        ImageDraw.Draw(sheet).text((size, size), character, font=font, fill=255)
        return sheet.crop(sheet.getbbox())


@functools.lru_cache(maxsize=256)
def _open_font(path: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


def load_faces(files: Sequence[str] = FACE_FILES) -> tuple[Face, ...]:
    """Return the faces in the order of `files`, each with its character map."""
    # Imported here: the package works without matplotlib until somebody wants glyphs.
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
