"""The report of a study: one HTML file that needs nothing else, plots and tables beside it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from adaptask.atomic_file import not_written, replace_file
from adaptask.report.page.close_up import (
    DrawnTasks,
    Frame,
    Pair,
    drawn_tasks,
    evolution_of,
    map_plot,
    pairs_of,
    write_potentials,
)
from adaptask.report.page.names import clean
from adaptask.report.page.panels import Panel, Style, panels_of, styles_of
from adaptask.report.page.provenance import Provenance, provenance_of
from adaptask.report.page.sections import DISTRIBUTION, TRAINING, Plot, counts_plot, curve_plot
from adaptask.report.page.settings_plot import settings_plots
from adaptask.report.page.showcase import Showcase, find_showcases, heatmap_data, seeks_hard
from adaptask.report.study import Study
from adaptask.report.tables import Table

FILE = "report.html"

Formats = Mapping[str, Callable[[Table], bytes]]
"""The content of a table's file, by its ending."""
_PLOTS = (
    *("validation", "training-loss", "difficulty", "kl", "entropy", "class-counts", "class-map"),
    *("potentials", "evolution", "pairs", "tasks", "settings-alpha", "settings-tau"),
)
_TABLES = ("results", "paper", "seeds")


@dataclass(frozen=True, eq=False)
class CloseUp:
    """What is shown of the run that is looked at most closely; parts may be missing."""

    shown: Showcase | None
    hardest: list[Pair]
    easiest: list[Pair]
    tasks: list[DrawnTasks]
    class_map: Plot | None
    frames: list[Frame]
    frame_names: list[str]
    hard: bool
    """Whether a high potential means that two classes are confused."""


def write_report(
    folder: Path,
    study: Study,
    tables: Sequence[Table],
    verdicts: Sequence[str],
    *,
    headline: str = "",
    formats: Formats | None = None,
) -> Path:
    """Write `report.html` into the folder of a study, and `plots` and `tables` beside it.

    Every file is replaced whole. What there are no records for is left out, and the page says why;
    so is what cannot be read. Plots and tables of an earlier report that this lacks are removed.

    Args:
        folder: Of the study; the runs are below it.
        study: What was planned.
        tables: The main one first.
        verdicts: What follows from them, a sentence each.
        headline: A sentence over all verdicts, where they are several.
        formats: How tables are written beside the page, by file ending; none where it is None.

    Returns:
        The path of the page.

    Raises:
        TrainingError: If something cannot be written.
    """
    with _renewed(folder / "tables", _TABLES, [f".{ending}" for ending in formats or ()]):
        _write_tables(folder / "tables", tables, formats or {})
    panels = panels_of(study)
    with _renewed(folder / "plots", _PLOTS, (".png", ".svg")):
        pictured = _pictured(folder / "plots", panels, by_validation=study.by_validation)
    content = render(
        study=study,
        # Last: by then it is known which files are damaged.
        provenance=provenance_of(study, panels),
        tables=_with_notes_once(study, tables),
        verdicts=verdicts,
        headline=headline,
        formats=sorted(formats or {}),
        **pictured,
    )
    path = folder / FILE
    replace_file(path, content.encode("utf-8"))
    return path


@contextmanager
def _renewed(folder: Path, names: Sequence[str], endings: Sequence[str]) -> Iterator[None]:
    """Make a folder; at the end remove files of ours in it that were not written inside.

    Raises:
        TrainingError: If it cannot be made.
    """
    try:
        if endings:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(folder, error) from error
    ours = [folder / f"{name}{ending}" for name in names for ending in endings]
    # A file that is replaced is another one, of another time.
    old = {path: _identity(path) for path in ours if path.is_file()}
    yield
    for path, identity in old.items():
        if _identity(path) == identity:
            with suppress(OSError):  # it does no harm
                path.unlink()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _with_notes_once(study: Study, tables: Sequence[Table]) -> list[Table]:
    """Return the tables without notes that the page has said by then."""
    said, shown = set(study.notes), []
    for table in tables:
        shown.append(replace(table, notes=tuple(n for n in table.notes if n not in said)))
        said |= set(table.notes)
    return shown


def _pictured(plots: Path, panels: Sequence[Panel], *, by_validation: bool) -> dict[str, Any]:
    """Write all plots, and return what the page shows of them, by its part."""
    styles = styles_of(panels)
    showcases, left_out = find_showcases(panels)
    first = showcases[0] if showcases else None
    training = [curve_plot(plots, metric, panels, styles) for metric in TRAINING]
    distribution = [curve_plot(plots, metric, panels, styles) for metric in DISTRIBUTION]
    distribution.append(counts_plot(plots, panels, styles, first))
    return {
        "training": [plot for plot in training if plot],
        "distribution": [plot for plot in distribution if plot],
        "settings": settings_plots(plots, panels, styles, validation=by_validation),
        "left_out": left_out,
        "all_hard": all(seeks_hard(shown.series) for shown in showcases),
        "close_up": _close_up(plots, panels, first, styles),
        "heatmap": heatmap_data(showcases, styles) if showcases else None,
    }


def _write_tables(folder: Path, tables: Sequence[Table], formats: Formats) -> None:
    for table in tables:
        for ending, write in formats.items():
            replace_file(folder / f"{table.name}.{ending}", write(table))


def _close_up(
    plots: Path, panels: Sequence[Panel], shown: Showcase | None, styles: dict[str, Style]
) -> CloseUp:
    hardest, easiest = pairs_of(plots, shown) if shown else ([], [])
    frames, names = evolution_of(plots, shown) if shown else ([], [])
    if shown:
        write_potentials(plots, shown, styles)
    panel = shown.panel if shown else panels[0]
    return CloseUp(
        shown=shown,
        hardest=hardest,
        easiest=easiest,
        tasks=drawn_tasks(plots, panel, shown, styles),
        class_map=map_plot(plots, panel, shown, styles),
        frames=frames,
        frame_names=names,
        hard=shown is None or seeks_hard(shown.series),
    )


def render(
    *,
    study: Study,
    provenance: Provenance,
    tables: Sequence[Table],
    verdicts: Sequence[str],
    heatmap: dict[str, object] | None,
    **parts: Any,
) -> str:
    """Return the page as text, from the template and all that it shows."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("adaptask.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["clean"] = clean
    # SVG elements are made by matplotlib and an XML writer, which escape what is text in them.
    environment.filters["svg"] = Markup
    script = _own("heatmap.js") + _own("page.js")
    return environment.get_template("report.html.j2").render(
        study=study,
        provenance=provenance,
        tables=tables,
        verdicts=verdicts,
        heatmap=heatmap,
        data=Markup(script_json(heatmap)),
        style=Markup(_own("report.css")),
        script=Markup(script),
        script_hash=_hash(script),
        **parts,
    )


def script_json(value: object) -> str:
    r"""Return JSON that is safe inside a script element: no markup, nothing but ASCII.

    >>> script_json(["</script>"])
    '["\\u003c/script\\u003e"]'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _own(name: str) -> str:
    return (resources.files("adaptask.report.page") / "templates" / name).read_text(
        encoding="utf-8"
    )


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
