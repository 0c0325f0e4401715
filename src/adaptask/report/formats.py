"""Tables as Markdown, CSV and LaTeX; names may hold anything and come out harmless.

`print_table`, for terminals, has a module of its own.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from adaptask.report.table import Cell, Table
from adaptask.report.terminal import print_table
from adaptask.report.wording import plain

__all__ = ["print_table", "to_csv", "to_latex", "to_markdown"]

_LATEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # By their numbers: their names need a font encoding or a package.
    '"': r"\char34{}",
    "`": r"\char96{}",
    "±": r"$\pm$",
    # At the start of a row these would be read as belonging to the end of the one before.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
}


def to_markdown(table: Table) -> str:
    """Return the table as Markdown with pipes, its title above and its notes below."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def cell(entry: Cell) -> str:
        text = _markdown(entry.text)
        return f"**{text}**" if entry.is_best and text else text

    rules = [":---" if i < table.n_labels else "---:" for i in range(len(table.headings))]
    lines = [f"**{_markdown(table.title)}**", ""] if plain(table.title).strip() else []
    lines += [line([_markdown(heading) for heading in table.headings]), line(rules)]
    lines += [line([cell(entry) for entry in row]) for row in table.rows]
    notes = [f"- {_markdown(note)}" for note in table.notes]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def _markdown(text: str) -> str:
    escaped = re.sub(r"([\\|`*_<>~&$])", r"\\\1", plain(text).strip())
    # Brackets alone, as of an interval, are no link.
    return escaped.replace("[", r"\[") if "](" in escaped else escaped


def to_csv(table: Table) -> str:
    """Return headings and rows as comma-separated values.

    A spreadsheet takes what begins with `=`, `+`, `-` or `@` for a formula; before such a text
    that is no figure an apostrophe is put. Write it with a byte order mark (`utf-8-sig`), which
    some spreadsheets need to see that it is UTF-8.
    """
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow([_harmless(heading, is_figure=False) for heading in table.headings])
    for row in table.rows:
        writer.writerow(
            [_harmless(entry.text, is_figure=i >= table.n_labels) for i, entry in enumerate(row)]
        )
    return content.getvalue()


def _harmless(text: str, *, is_figure: bool) -> str:
    text = plain(text)
    # Figures of ours hold no letters: nothing that a spreadsheet could call.
    figure = r"[-+]?[\d.]+([\s±\[\],.\d+-]*)" if is_figure else r"[-+]?\d+(\.\d+)?"
    if text.lstrip()[:1] in ("=", "+", "-", "@") and text != "-" and not re.fullmatch(figure, text):
        return f"'{text}"
    return text


def to_latex(table: Table) -> str:
    """Return the table for LaTeX with the package booktabs."""

    def line(cells: Sequence[str]) -> str:
        return f"    {' & '.join(cells)} \\\\"

    def cell(entry: Cell) -> str:
        text = _latex(entry.text)
        return rf"\textbf{{{text}}}" if entry.is_best and text else text

    n_figures = len(table.headings) - table.n_labels
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "  \\centering",
        f"  \\caption{{{_latex(table.title)}}}",
        f"  \\begin{{tabular}}{{@{{}}{'l' * table.n_labels}{'r' * n_figures}@{{}}}}",
        "    \\toprule",
        line([_latex(heading) for heading in table.headings]),
        "    \\midrule",
        *(line([cell(entry) for entry in row]) for row in table.rows),
        "    \\bottomrule",
        "  \\end{tabular}",
        *(f"  \\par\\smallskip{{\\footnotesize {_latex(note)}\\par}}" for note in table.notes),
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex(text: str) -> str:
    # A minus before a figure is one; elsewhere it is a hyphen.
    parts = re.split(r"((?<![^\s\[])-(?=\d))", plain(text).strip())
    escaped = (
        "$-$" if i % 2 else "".join(_LATEX.get(c, c) for c in part) for i, part in enumerate(parts)
    )
    # Two hyphens together would become a dash.
    return re.sub("-(?=-)", "-{}", "".join(escaped))
