"""Tables as Markdown, CSV and LaTeX, and in a terminal. Any text in them is escaped."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from adaptask.report.tables import Table

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod

# Control characters, direction marks, unpaired surrogates, unassigned characters and line ends
# steer a terminal, break XML or the layout of a page. Joiners are invisible too, but Persian,
# Indian scripts and many emoji need them.
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_JOINERS = "\u200c\u200d"

_LATEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # By number, since their names need a font encoding or a package.
    '"': r"\char34{}",
    "`": r"\char96{}",
    "±": r"$\pm$",
    # At the start of a row LaTeX would read these as arguments of the line break before.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
}


def to_markdown(table: Table) -> str:
    """Return the table as Markdown with pipes, its title above and its notes below."""
    headings, *rows = _escape(table, _markdown, bold="**{}**")
    rules = [":---" if i < table.n_labels else "---:" for i in range(len(headings))]
    lines = [f"| {' | '.join(row)} |" for row in (headings, rules, *rows)]
    title = [f"**{_markdown(table.title)}**", ""] if clean(table.title) else []
    notes = ["", *(f"- {_markdown(note)}" for note in table.notes)] if table.notes else []
    return "\n".join([*title, *lines, *notes]) + "\n"


def _escape(table: Table, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    """Return headings and rows for a format, with cells in bold where they should be."""
    rows = [[escape(heading) for heading in table.headings]]
    for row in table.rows:
        texts = [(escape(cell.text), cell.is_bold) for cell in row]
        rows.append([bold.format(text) if text and is_bold else text for text, is_bold in texts])
    return rows


def _markdown(text: str) -> str:
    escaped = re.sub(r"([\\|`*_<>~&$])", r"\\\1", clean(text))
    # Brackets alone, such as those of an interval, are not a link.
    return escaped.replace("[", r"\[") if "](" in escaped else escaped


def to_csv(table: Table) -> str:
    """Return headings and rows as comma-separated values.

    Write it with a byte order mark (`utf-8-sig`): some spreadsheets need it to recognize UTF-8.
    """
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    for row in (table.headings, *([cell.text for cell in row] for row in table.rows)):
        writer.writerow(map(clean, row))
    return content.getvalue()


def to_latex(table: Table) -> str:
    """Return the table for LaTeX with the package booktabs."""
    n_figures = len(table.headings) - table.n_labels
    rows = _escape(table, _latex, bold=r"\textbf{{{}}}")
    headings, *body = (f"    {' & '.join(row)} \\\\" for row in rows)
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "  \\centering",
        f"  \\caption{{{_latex(table.title)}}}",
        f"  \\begin{{tabular}}{{@{{}}{'l' * table.n_labels}{'r' * n_figures}@{{}}}}",
        "    \\toprule",
        headings,
        "    \\midrule",
        *body,
        "    \\bottomrule",
        "  \\end{tabular}",
        *(f"  \\par\\smallskip{{\\footnotesize {_latex(note)}\\par}}" for note in table.notes),
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex(text: str) -> str:
    # Before a figure it is a minus sign, elsewhere a hyphen.
    parts = re.split(r"(?<![^\s\[])-(?=\d)", clean(text))
    return "$-$".join("".join(_LATEX.get(c, c) for c in part) for part in parts)


def print_table(table: Table, console: Console) -> None:
    """Print the table with its title and notes; only brief columns and their notes."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = table.brief or range(len(table.headings))
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for i in shown:
        justify: JustifyMethod = "left" if i < table.n_labels else "right"
        drawn.add_column(Text(clean(table.headings[i])), justify=justify, overflow="fold")
    for row in table.rows:
        cells = (row[i] for i in shown)
        drawn.add_row(*(Text(clean(c.text), style="bold" if c.is_bold else "") for c in cells))
    console.print(Text(clean(table.title), style="bold"))
    console.print(drawn)
    console.print()
    hidden = tuple(f"{name}: " for i, name in enumerate(table.headings) if i not in shown)
    for note in table.notes:
        if not note.startswith(hidden):
            console.print(Text(clean(note), style="dim"))


FORMATS: Mapping[str, Callable[[Table], bytes]] = {
    "md": lambda table: to_markdown(table).encode(),
    # With a byte order mark, by which spreadsheets recognize UTF-8.
    "csv": lambda table: to_csv(table).encode("utf-8-sig"),
    "tex": lambda table: to_latex(table).encode(),
}
"""How tables are written beside the page, by file ending."""


def clean(text: str) -> str:
    r"""Return a text on one line, with U+FFFD in place of invisible characters.

    >>> clean("a\tb\u202ec")
    'a b�c'
    >>> clean("\u0645\u06cc\u200c\u0631\u0648\u0645") == "\u0645\u06cc\u200c\u0631\u0648\u0645"
    True
    """
    return "".join(
        "\ufffd" if unicodedata.category(c) in _INVISIBLE and c not in _JOINERS else c
        for c in " ".join(text.split())
    )
