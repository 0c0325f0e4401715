r"""Formulas of the pages as pictures, made when the site is built: no script, no font, no network.

A fence of the language `math` holds LaTeX, a formula a line; `\\` at the end of a line is for those
who read the page elsewhere. Matplotlib, which the package needs anyway, draws it as one path.
"""

from __future__ import annotations

import html
import re
from typing import Any

_FENCE = re.compile(r"^```math\n(.*?)^```$", flags=re.M | re.S)
_UNITS_PER_EM = 10


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the text of a page with its formulas drawn."""
    return _FENCE.sub(lambda fence: block(fence[1]), markdown)


def block(source: str) -> str:
    """Return the HTML of the formulas in a fence.

    Raises:
        ValueError: If one of them cannot be drawn.
    """
    lines = [line.strip().removesuffix("\\\\").strip() for line in source.strip().splitlines()]
    return '<div class="formula">' + "".join(picture(line) for line in lines) + "</div>"


def picture(formula: str) -> str:
    """Return a formula as SVG, in the color of the text around it.

    Raises:
        ValueError: If Matplotlib cannot read it.
    """
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(math_fontfamily="cm")
    path = TextPath((0, 0), f"${formula}$", size=_UNITS_PER_EM, prop=font)
    box = path.get_extents().padded(0.5)
    drawn = path.transformed(_upside_down())
    view = f"{box.x0:.2f} {-box.y1:.2f} {box.width:.2f} {box.height:.2f}"
    size = f"width:{box.width / _UNITS_PER_EM:.2f}em;height:{box.height / _UNITS_PER_EM:.2f}em"
    return (
        f'<svg role="img" aria-label="{html.escape(formula)}" viewBox="{view}" style="{size}">'
        f'<path fill="currentColor" d="{_commands(drawn)}"/></svg>'
    )


def _upside_down() -> Any:
    from matplotlib.transforms import Affine2D

    return Affine2D().scale(1, -1)


def _commands(path: Any) -> str:
    """Return a path in the language of SVG."""
    letters = {path.MOVETO: "M", path.LINETO: "L", path.CURVE3: "Q", path.CURVE4: "C"}
    words = []
    for points, code in path.iter_segments(curves=True, simplify=False):
        if code == path.CLOSEPOLY:
            words.append("Z")
        else:
            words.append(letters[code] + " ".join(f"{x:.2f}" for x in points))
    return "".join(words)
