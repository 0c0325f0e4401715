"""Write the report of a study: one HTML file that needs no other, plots and tables beside it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from adaptask.atomic_file import not_written, replace_file
from adaptask.report.formats import clean
from adaptask.report.page.arm_plots import (
    DIFFICULTY,
    DIVERGENCE,
    TRAINING_LOSS,
    VALIDATION,
    curve_plot,
    differences_plot,
    settings_plots,
)
from adaptask.report.page.class_plots import (
    class_accuracy_plot,
    class_confusion_plot,
    counts_plot,
    map_plot,
    tasks_values,
)
from adaptask.report.page.data import StudyData, read_data
from adaptask.report.page.figures import Plot
from adaptask.report.page.potential_plots import evolution_plot, heatmap_values, pairs_values
from adaptask.report.page.provenance import describe_runs
from adaptask.report.study import Study
from adaptask.report.tables import Table
from adaptask.report.verdicts import missing_runs

FILE = "report.html"

Formats = Mapping[str, Callable[[Table], bytes]]
"""The content of a table's file, by file ending."""
PlotFunction = Callable[[StudyData], Plot | list[Plot] | None]


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    id: str
    nav: str
    """Its name in the table of contents."""
    title: str
    plots: tuple[PlotFunction, ...] = ()
    template: str = ""
    """A template that is shown above the plots."""
    values: Callable[[StudyData], Mapping[str, Any]] | None = None
    """Computes the values of the template, which is left out if there are none."""
    absent: str = ""
    """What the page says if there is nothing to show; empty leaves the section out."""


SECTIONS = (
    Section(
        *("verdicts", "Verdicts", "What the tests say"),
        template="verdicts.html.j2",
        plots=(differences_plot,),
    ),
    Section("tables", "Tables", "Results", template="tables.html.j2"),
    Section(
        *("curves", "Curves", "Training and validation"),
        plots=(partial(curve_plot, metric=VALIDATION), partial(curve_plot, metric=TRAINING_LOSS)),
        absent="No curves: no run has recorded anything yet.",
    ),
    Section("settings", "Settings", "Settings of the sampler", plots=(settings_plots,)),
    Section(
        *("potentials", "Potentials", "What the sampler has learned: potentials of class pairs"),
        template="heatmap.html.j2",
        values=heatmap_values,
        plots=(evolution_plot,),
        absent="No potentials to show: none of these runs has a sampler that learns potentials of "
        "class pairs and has recorded a snapshot of them.",
    ),
    Section(
        *("pairs", "Pairs", "Pairs with the highest and the lowest potentials"),
        template="pairs.html.j2",
        values=pairs_values,
        absent="No pairs to show: that takes potentials of class pairs, and there are none.",
    ),
    Section("map", "Map", "Which classes look alike to the model", plots=(map_plot,)),
    Section(
        *("tasks", "Tasks", "Drawn tasks"),
        template="tasks.html.j2",
        values=tasks_values,
        absent="No tasks to show: they are recorded when a run ends, and none has.",
    ),
    Section(
        *("distribution", "Distribution", "The distribution over tasks"),
        plots=(
            partial(curve_plot, metric=DIFFICULTY),
            partial(curve_plot, metric=DIVERGENCE),
            counts_plot,
        ),
        absent="Nothing about the distribution over tasks has been recorded yet.",
    ),
    Section(
        *("classes", "Test classes", "Test classes"),
        plots=(class_accuracy_plot, class_confusion_plot),
    ),
    Section(*("provenance", "Setup", "Setup, and how to repeat it"), template="provenance.html.j2"),
)
"""The page, in its order. To add a plot, write a function from `StudyData` to a `Plot`, or to None
if there is nothing to draw, and put it into `plots` of a section."""


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

    Every file is replaced atomically. Parts without records are left out, and the page says why.
    Plots and tables of the previous page that this one does not have are removed.

    Args:
        folder: Folder of the study.
        study: The study, with its runs.
        tables: The main one first.
        verdicts: One sentence per comparison.
        headline: A sentence about all of them; empty if there is none.
        formats: How tables are written beside the page, by file ending; None writes none.

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
    # The figure that a study reproduces comes first.
    ordered = sorted(SECTIONS, key=lambda section: section.id != study.first_section)
    sections = [_fill(section, data) for section in ordered]
    content = _render(
        sections=[section for section in sections if section.absent or not section.is_empty],
        study=study,
        # After the sections: only then it is known which files are damaged.
        provenance=describe_runs(data),
        tables=_with_notes_once(tables, {*study.notes, *missing_runs(data.summary)}),
        verdicts=verdicts,
        headline=headline,
        formats=sorted(formats),
    )
    replace_file(path, content.encode("utf-8"))
    for file in old_files - _files_of(path):
        with suppress(OSError):  # it does no harm
            (folder / file).unlink()
    return path


def _fill(section: Section, data: StudyData) -> SimpleNamespace:
    """Return the content of a section for the templates."""
    values = section.values(data) if section.values else {}
    plots: list[Plot] = []
    for draw in section.plots:
        found = draw(data)
        plots += [found] if isinstance(found, Plot) else found or []
    template = section.template if values or not section.values else ""
    filled = {"values": values, "plots": plots, "template": template}
    return SimpleNamespace(**{**vars(section), **filled, "is_empty": not (plots or template)})


def _files_of(page: Path) -> set[str]:
    """Return the plots and tables that a page names."""
    try:
        text = page.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    # Names and titles cannot look like this, since their markup is escaped in the page.
    named = re.findall(r"<code>((?:plots|tables)/[\w-]+\.\w+)</code>", text)
    return {file for name in named for file in (name, name.replace(".png", ".svg"))}


def _with_notes_once(tables: Sequence[Table], said: set[str]) -> list[Table]:
    """Return the tables without notes that the page has elsewhere."""
    shown = []
    for table in tables:
        shown.append(replace(table, notes=tuple(n for n in table.notes if n not in said)))
        said |= set(table.notes)
    return shown


def _render(**values: Any) -> str:
    """Return the page as text, from the templates and their values."""
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
    # matplotlib and the XML writer escape the text in SVG elements.
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
