"""Tables as Markdown, CSV, LaTeX and in a terminal; any text in them comes out harmless."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from adaptask.report.tables import Cell, Table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

_GAP = 2
"""Spaces between two columns in a terminal."""

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


def print_table(table: Table, console: Console) -> None:
    """Print the table, its title and its notes.

    Where there is no room for all of it, headings are wrapped first. Then the columns that the
    table can spare are left out, and named. Then figures are broken before their brackets. What is
    too wide even so is broken anywhere.
    """
    from rich.text import Text

    headings = [plain(heading) for heading in table.headings]
    rows = [[plain(cell.text) for cell in row] for row in table.rows]
    shown = list(range(len(headings)))
    for column in table.expendable:
        if _total(_widths(headings, rows, shown)) > console.width:
            shown.remove(column)
    if _total(_widths(headings, rows, shown)) > console.width:
        rows = [_broken(row, table.n_labels) for row in rows]
    console.print(Text(plain(table.title), style="bold"))
    console.print(_drawn(table, headings, rows, shown, console.width))
    left_out = [heading for i, heading in enumerate(headings) if i not in shown]
    explained = tuple(f"{heading}: " for heading in left_out)
    notes = [note for note in map(plain, table.notes) if not note.startswith(explained)]
    if left_out:
        notes.append(f"For lack of room without: {'; '.join(left_out)}.")
    if notes:
        console.print()
    for note in notes:
        console.print(Text(note, style="dim"))


def _widths(
    headings: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[int]
) -> list[int]:
    """Return how wide columns must be, with headings in as many lines as they have words."""
    from rich.cells import cell_len

    columns = (
        [*headings[i].split(), *(line for row in rows for line in row[i].split("\n"))]
        for i in shown
    )
    return [max(map(cell_len, column), default=0) for column in columns]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _broken(row: Sequence[str], n_labels: int) -> list[str]:
    """Break figures before their brackets."""
    return [*row[:n_labels], *(re.sub(r" (?=[(\[])", "\n", text) for text in row[n_labels:])]


def _drawn(
    table: Table,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    shown: Sequence[int],
    width: int,
) -> RichTable:
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table as RichTable
    from rich.text import Text

    # Between two columns the box has one space and the padding another.
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    widths = _widths(headings, rows, shown)
    in_one_line = [max(w, cell_len(headings[i])) for i, w in zip(shown, widths, strict=True)]
    # Left to itself, Rich would rather break figures than headings.
    is_tight = _total(widths) <= width < _total(in_one_line)
    for i, column_width in zip(shown, widths, strict=True):
        drawn.add_column(
            Text(headings[i]),
            justify="left" if i < table.n_labels else "right",
            overflow="fold",
            width=column_width if is_tight else None,
        )
    firsts = [row[0] for row in rows]
    has_groups = len(set(firsts)) < len(firsts)
    for number, row in enumerate(rows):
        ends = has_groups and number + 1 < len(rows) and firsts[number + 1] != firsts[number]
        bold = [table.rows[number][i].is_best for i in shown]
        cells = zip(shown, bold, strict=True)
        texts = (Text(row[i], style="bold" if is_bold else "") for i, is_bold in cells)
        drawn.add_row(*texts, end_section=ends)
    return drawn


def plain(text: str) -> str:
    """Return a text on one line, without characters that steer a terminal or are no Unicode.

    >>> plain("a" + chr(10) + "b" + chr(27) + "[31m")
    'a b [31m'
    """
    kinds = {"Cc": " ", "Zl": " ", "Zp": " ", "Cs": "\ufffd"}
    return "".join(kinds.get(unicodedata.category(c), c) for c in text)
