"""Draw figures with matplotlib, write them as PNG and SVG, and embed them in a page.

The same input gives the same bytes: no dates, no random identifiers.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from adaptask.atomic_file import create_folder, replace_file
from adaptask.report.page.data import Style, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Panels = Sequence[tuple[str, Callable[["Axes"], object]]]
"""The title of each panel, and a function that draws it."""
Legend = tuple[tuple[str, Style], ...]

PANEL = (4.7, 2.9)
"""Size of a panel in inches: the width of a phone, so that text keeps its size there."""
INK = "#20242b"
"""Color of text and axes in `report.mplstyle`; in a page it becomes the color of its text."""
FAINT = "#8a929e"
"""Color of grid and frames there, on light and dark backgrounds."""

_XLINK = "{http://www.w3.org/1999/xlink}href"
_NO_METADATA: Any = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


@dataclass(frozen=True)
class Plot:
    """A plot in the page, and the name of its files."""

    name: str
    title: str
    caption: str
    panels: tuple[str, ...]
    """SVG elements."""
    legend: Legend = ()
    small: bool = False
    """Whether many panels fit into a row."""


@contextmanager
def plot_style() -> Iterator[None]:
    """Apply `report.mplstyle` to figures that are made and written inside."""
    import matplotlib as mpl

    style = resources.files("adaptask.report.page") / "templates" / "report.mplstyle"
    with resources.as_file(style) as path, warnings.catch_warnings(), mpl.rc_context(fname=path):
        # Characters of a name that the font lacks become boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=Warning)
        yield


def make_plot(
    folder: Path,
    panels: Panels,
    *,
    name: str,
    title: str,
    caption: str,
    legend: Legend = (),
    size: tuple[float, float] = PANEL,
    columns: int = 3,
) -> Plot:
    """Write the files of a plot, and return it for the page.

    Args:
        folder: For the files of all plots.
        panels: Titles and functions that draw; the width of the page decides how many fit in a row.
        name: Name of the files, unique in the page.
        title: Heading in the page; screen readers read it with the title of a panel.
        caption: How to read the plot.
        legend: Names and styles of the lines.
        size: Size of a panel in inches.
        columns: Panels per row in the files.
    """
    with plot_style():
        write_figure(folder, name, grid(panels, size, columns, legend))
        elements = tuple(
            inline_svg(
                grid([panel], size),
                f"{name}-{number}",
                f"{title}: {panel[0]}".removesuffix(": "),
            )
            for number, panel in enumerate(panels, start=1)
        )
    return Plot(name, title, caption, elements, legend, small=columns > 3)


def grid(
    panels: Panels, size: tuple[float, float] = PANEL, columns: int = 3, legend: Legend = ()
) -> Figure:
    """Return a figure with panels and one legend above them; see `make_plot`."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    for number, (title, draw) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        axes.set_title(shorten(title, 46))
        draw(axes)
    if legend:
        lines = [
            Line2D([], [], color=style.color, dashes=style.dashes or (None, None))
            for _, style in legend
        ]
        names = [shorten(name, 40) for name, _ in legend]
        place: Any = "outside upper left"
        figure.legend(lines, names, loc=place, ncols=2 * columns)
    return figure


def write_figure(folder: Path, name: str, figure: Figure) -> None:
    """Write a figure as `name.png` and `name.svg`, each replaced whole.

    Raises:
        TrainingError: If it cannot be written.
    """
    create_folder(folder)
    for kind, metadata in _NO_METADATA.items():
        file = io.BytesIO()
        figure.savefig(file, format=kind, facecolor="white", metadata=metadata)
        replace_file(folder / f"{name}.{kind}", file.getvalue())
        figure.set_layout_engine("none")  # keep the layout that was computed


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """Return a figure as an SVG element for a page.

    Ids that nothing refers to are removed; the others are unique if names of figures are. It refers
    to nothing outside. Parts in the color `INK` take the color of the text around. Screen readers
    read the description.
    """
    import matplotlib as mpl

    file = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": name}):  # makes the ids
        figure.savefig(file, format="svg", transparent=True, metadata=_NO_METADATA["svg"])
    root = ElementTree.fromstring(file.getvalue())
    root.remove(root[0])  # metadata
    elements = list(root.iter())
    references = (e.get(key, "") for e in elements for key in ("clip-path", "style", _XLINK))
    referred = {found for text in references for found in re.findall(r"#(\w+)", text)}
    for element in elements:
        if element.get("id") not in referred:
            element.attrib.pop("id", None)
        if _XLINK in element.attrib:
            element.set("href", element.attrib.pop(_XLINK))
        if "style" in element.attrib:
            element.set("style", element.attrib["style"].replace(INK, "currentColor"))
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": description}
    ElementTree.register_namespace("", "http://www.w3.org/2000/svg")
    return ElementTree.tostring(root, encoding="unicode")
