"""Write the report of a study: one HTML file that needs no other, plots and tables beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from adaptask.atomic_file import create_folder, replace_file
from adaptask.report.formats import FORMATS, clean
from adaptask.report.page.arm_plots import (
    DIFFICULTY,
    DIVERGENCE,
    VALIDATION,
    counts_plot,
    curve_plot,
    differences_plot,
    settings_plots,
)
from adaptask.report.page.class_plots import map_plot, pairs_values, potentials_plots, tasks_values
from adaptask.report.page.data import StudyData, read_data
from adaptask.report.page.figures import Plot
from adaptask.report.page.provenance import describe_runs
from adaptask.report.summary import StudySummary
from adaptask.report.tables import Table
from adaptask.report.verdicts import choice, headline, missing_runs, verdicts

FILE = "report.html"

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


def _verdicts(data: StudyData) -> dict[str, Any]:
    """Return the values of `verdicts.html.j2`; empty for a sweep, which chooses by validation."""
    sentences = [] if data.study.by_validation else verdicts(data.summary)
    return {"verdicts": sentences} if sentences else {}


SECTIONS = (
    Section(
        *("verdicts", "Verdicts", "Differences to the baseline"),
        template="verdicts.html.j2",
        values=_verdicts,
        plots=(differences_plot,),
    ),
    Section("tables", "Tables", "Results", template="tables.html.j2"),
    Section("settings", "Settings", "Settings of the sampler", plots=(settings_plots,)),
    Section(
        *("curves", "Training", "Over training"),
        plots=(
            partial(curve_plot, metric=VALIDATION),
            partial(curve_plot, metric=DIFFICULTY),
            partial(curve_plot, metric=DIVERGENCE),
            counts_plot,
        ),
    ),
    Section(
        *("potentials", "Potentials", "What the sampler has learned: potentials of class pairs"),
        template="pairs.html.j2",
        values=pairs_values,
        plots=(potentials_plots,),
    ),
    Section("map", "Map", "Which classes look alike to the model", plots=(map_plot,)),
    Section(*("tasks", "Tasks", "Drawn tasks"), template="tasks.html.j2", values=tasks_values),
    Section(*("provenance", "Setup", "Setup, and how to repeat it"), template="provenance.html.j2"),
)
"""The page, in its order. To add a plot, write a function from `StudyData` to a `Plot`, or to None
if there is nothing to draw, and put it into `plots` of a section."""


def write_report(folder: Path, summary: StudySummary, tables: Sequence[Table]) -> Path:
    """Write `report.html` into the folder of a study, and `plots` and `tables` beside it.

    Every file is replaced atomically. Sections without records are left out.

    Args:
        folder: Folder of the study.
        summary: The results of the study.
        tables: The main one first.

    Raises:
        TrainingError: If something cannot be written.
    """
    path = folder / FILE
    for name in ("plots", "tables"):
        create_folder(folder / name)
    for table in tables:
        for ending, write in FORMATS.items():
            replace_file(folder / "tables" / f"{table.name}.{ending}", write(table))
    data = read_data(folder, summary)
    sections = [_fill(section, data) for section in SECTIONS]
    # The figure that a study reproduces comes first.
    sections.sort(key=lambda section: section.id != data.study.first_section)
    content = _render(
        sections=[section for section in sections if section.plots or section.template],
        study=data.study,
        headline=headline(summary),
        # After the sections: only then it is known which files are damaged.
        provenance=describe_runs(data),
        tables=_with_notes_once(
            tables, {*data.study.notes, *missing_runs(summary), *choice(summary)}
        ),
        formats=sorted(FORMATS),
    )
    replace_file(path, content.encode("utf-8"))
    return path


def _fill(section: Section, data: StudyData) -> SimpleNamespace:
    """Return the content of a section for the templates."""
    plots: list[Plot] = []
    for draw in section.plots:
        found = draw(data)
        plots += [found] if isinstance(found, Plot) else found or []
    values = section.values(data) if section.values else {}
    template = section.template if values or section.values is None else ""
    filled = {"values": values, "plots": plots, "template": template}
    return SimpleNamespace(**{**vars(section), **filled})


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
    # matplotlib and the XML writer escape the text in SVG elements.
    environment.filters["svg"] = Markup
    style = resources.files("adaptask.report.page") / "templates" / "report.css"
    return environment.get_template("report.html.j2").render(
        style=Markup(style.read_text("utf-8")),
        **values,
    )
