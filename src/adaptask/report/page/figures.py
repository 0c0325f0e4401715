"""Figures without a screen: made, written as PNG and SVG, and put into a page.

The same input gives the same bytes: no dates, no random identifiers.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from adaptask.atomic_file import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#20242b"
"""Of text and axes; in a page it becomes the colour of the text around."""
FAINT = "#8a929e"
"""Of grid and frames, on light and dark grounds."""

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "{http://www.w3.org/1999/xlink}href"
_REFERENCE = re.compile(r"#([^)\s;]+)")

_LOOK: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.9,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "savefig.dpi": 140,
    "svg.fonttype": "none",
    "svg.hashsalt": "adaptask",
    # A name may hold a dollar sign.
    "text.parse_math": False,
}


@contextmanager
def look() -> Iterator[None]:
    """Give figures made and written inside their look."""
    import matplotlib as mpl

    with warnings.catch_warnings(), mpl.rc_context(_LOOK):
        # A name may hold characters that the font has not; they become boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=Warning)
        yield


def new_figure(width: float, height: float, *, fit: bool = True) -> Figure:
    """Return an empty figure of so many inches, tied to no screen.

    Args:
        width: Inches.
        height: Inches.
        fit: Whether room is made for what stands beside axes: takes half the time of a figure.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained" if fit else None)
    FigureCanvasAgg(figure)
    return figure


def write_figure(folder: Path, name: str, figure: Figure) -> None:
    """Write a figure as `name.png` and `name.svg`, each replaced whole.

    Raises:
        TrainingError: If it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        file = io.BytesIO()
        figure.savefig(file, format=kind, facecolor="white", metadata=metadata)
        replace_file(folder / f"{name}.{kind}", file.getvalue())
        figure.set_layout_engine("none")  # it has its places now


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """Return a figure as an SVG element for a page.

    Its ids begin with `name` and are kept only where something refers to them; it refers to
    nothing outside. What has the colour of ink takes that of the text around.

    Args:
        figure: Anything.
        name: Unlike that of any other figure in the page.
        description: What is read aloud in its place.
    """
    file = io.BytesIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(file.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{{{_SVG}}}metadata":
                parent.remove(child)
    referred = {
        match for element in root.iter() for match in _REFERENCE.findall(_references(element))
    }
    for element in root.iter():
        _adapt(element, name, referred)
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    root.set("role", "img")
    root.set("aria-label", description)
    ElementTree.register_namespace("", _SVG)
    return ElementTree.tostring(root, encoding="unicode")


def _references(element: ElementTree.Element) -> str:
    values = (element.get("clip-path", ""), element.get(_XLINK, ""), element.get("style", ""))
    return " ".join(value for value in values if "#" in value)


def _adapt(element: ElementTree.Element, name: str, referred: set[str]) -> None:
    own = element.attrib.pop("id", None)
    if own in referred:
        element.set("id", f"{name}-{own}")
    link = element.attrib.pop(_XLINK, None)
    if link is not None:
        element.set("href", f"#{name}-{link[1:]}" if link.startswith("#") else link)
    clip = element.get("clip-path")
    if clip:
        element.set("clip-path", clip.replace("#", f"#{name}-"))
    style = element.get("style")
    if style:
        element.set("style", style.replace(INK, "currentColor"))
