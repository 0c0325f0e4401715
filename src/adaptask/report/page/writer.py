"""The report of a study: one HTML file that needs nothing else, plots and tables beside it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from adaptask.atomic_file import not_written, replace_file
from adaptask.report.page.arm_plots import curves_section, distribution_section, settings_section
from adaptask.report.page.data import clean
from adaptask.report.page.figures import Section
from adaptask.report.page.provenance import describe_runs
from adaptask.report.page.showcase import StudyData, read_data
from adaptask.report.page.showcase_plots import (
    map_section,
    pairs_section,
    potentials_section,
    tasks_section,
)
from adaptask.report.study import Study
from adaptask.report.tables import Table

FILE = "report.html"

Formats = Mapping[str, Callable[[Table], bytes]]
"""The content of a table's file, by its ending."""

SECTIONS: tuple[Callable[[StudyData], Section | None], ...] = (
    curves_section,
    settings_section,
    potentials_section,
    pairs_section,
    map_section,
    tasks_section,
    distribution_section,
)
"""In the order of the page, between the tables and the set-up; None leaves a section out."""


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
    so is what cannot be read. Plots and tables of the page before this one that are not in this
    one are removed.

    Args:
        folder: Of the study; the runs are below it.
        study: What was planned.
        tables: The main one first.
        verdicts: What follows from them, a sentence each.
        headline: A sentence over all verdicts, where they are several.
        formats: How tables are written beside the page, by file ending; none where it is None.

    Raises:
        TrainingError: If something cannot be written.
    """
    formats = formats or {}
    path = folder / FILE
    old_files = _files_of(path)
    for name in ("plots", "tables") if formats else ("plots",):
        try:
            (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise not_written(folder / name, error) from error
    for table in tables:
        for ending, write in formats.items():
            replace_file(folder / "tables" / f"{table.name}.{ending}", write(table))
    data = read_data(folder, study)
    content = _render(
        sections=[section for make in SECTIONS if (section := make(data)) is not None],
        study=study,
        # After the sections: by then it is known which files are damaged.
        provenance=describe_runs(study, data.panels),
        tables=_with_notes_once(study, tables),
        verdicts=verdicts,
        headline=headline,
        formats=sorted(formats),
    )
    replace_file(path, content.encode("utf-8"))
    for file in old_files - _files_of(path):
        with suppress(OSError):  # it does no harm
            (folder / file).unlink()
    return path


def _files_of(page: Path) -> set[str]:
    """Return the files that a page names as its own."""
    try:
        text = page.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    # Names and titles cannot pass for one: in the page their markup is escaped.
    named = re.findall(r"<code>((?:plots|tables)/[\w-]+\.\w+)</code>", text)
    return {file for name in named for file in (name, name.replace(".png", ".svg"))}


def _with_notes_once(study: Study, tables: Sequence[Table]) -> list[Table]:
    """Return the tables without notes that the page has said by then."""
    said, shown = set(study.notes), []
    for table in tables:
        shown.append(replace(table, notes=tuple(n for n in table.notes if n not in said)))
        said |= set(table.notes)
    return shown


def _render(**values: Any) -> str:
    """Return the page as text, from the templates and all that it shows."""
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
    environment.filters["script_json"] = lambda value: Markup(script_json(value))
    # SVG elements are made by matplotlib and an XML writer, which escape the text in them.
    environment.filters["svg"] = Markup
    templates = resources.files("adaptask.report.page") / "templates"
    script = "".join((templates / f"{name}.js").read_text("utf-8") for name in ("heatmap", "page"))
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return environment.get_template("report.html.j2").render(
        style=Markup((templates / "report.css").read_text("utf-8")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        **values,
    )


def script_json(value: object) -> str:
    r"""Return JSON that is safe inside a script element: no markup, only ASCII.

    >>> script_json(["</script>"])
    '["\\u003c/script\\u003e"]'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
