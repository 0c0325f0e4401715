"""Tables in a terminal, as wide as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from adaptask.report.table import Cell, Table
from adaptask.report.wording import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

_GAP = 2
# What stays on one line: a bracket with all that is in it, a mean with its interval, a word.
_TOKEN = re.compile(r"\([^)]*\)|\[[^\]]*\]|\S+ ± \S+|\S+")


def print_table(table: Table, console: Console) -> None:
    """Print the table, its title and its notes.

    Where there is no room for all of it, headings are wrapped first. Then the columns that the
    table can spare are left out, and named. Then figures are broken before their brackets; then
    the labels share a column. What is too wide even so is broken anywhere.
    """
    from rich.text import Text

    title, notes = plain(table.title), [plain(note) for note in table.notes]
    fitted, left_out = _fitted(_plain(table), console.width)
    console.print(Text(title, style="bold"))
    console.print(_drawn(fitted, console.width))
    explained = tuple(f"{heading}: " for heading in left_out)
    said = [note for note in notes if not note.startswith(explained)]
    if left_out:
        said.append(f"For lack of room without: {'; '.join(left_out)}.")
    if said:
        console.print()
    for note in said:
        console.print(Text(note, style="dim"))


def _plain(table: Table) -> Table:
    """Return the table with every text on one line."""
    rows = tuple(tuple(Cell(plain(c.text), c.is_best) for c in row) for row in table.rows)
    return replace(table, headings=tuple(map(plain, table.headings)), rows=rows)


def _fitted(table: Table, width: int) -> tuple[Table, list[str]]:
    """Return the table as it fits best, and the headings of the columns that were left out."""
    for n_gone in range(len(table.expendable) + 1):
        gone = set(table.expendable[:n_gone])
        left = _without(table, gone)
        if _total(_widths(left)) <= width:
            break
    left_out = [heading for i, heading in enumerate(table.headings) if i in gone]
    if _total(_widths(left)) > width:
        left = _broken(left)
    if _total(_widths(left)) > width and left.n_labels:
        left = _with_one_label(left, width)
    return left, left_out


def _widths(table: Table) -> list[int]:
    """Return how wide each column must be, with its heading in as many lines as it has words."""
    from rich.cells import cell_len

    columns = [
        [*heading.split(), *(line for row in table.rows for line in row[i].text.split("\n"))]
        for i, heading in enumerate(table.headings)
    ]
    return [max(map(cell_len, column), default=0) for column in columns]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _without(table: Table, gone: set[int]) -> Table:
    kept = [i for i in range(len(table.headings)) if i not in gone]
    return replace(
        table,
        headings=tuple(table.headings[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in table.rows),
        n_labels=sum(i < table.n_labels for i in kept),
        expendable=(),
    )


def _broken(table: Table) -> Table:
    """Break figures before their brackets."""

    def cell(entry: Cell, i: int) -> Cell:
        if i < table.n_labels:
            return entry
        return replace(entry, text=re.sub(r" (?=[(\[])", "\n", entry.text))

    rows = tuple(tuple(cell(entry, i) for i, entry in enumerate(row)) for row in table.rows)
    return replace(table, rows=rows)


def _with_one_label(table: Table, width: int) -> Table:
    """Put all labels into one column, and the words of every cell below each other as need be."""
    n = table.n_labels
    headings = (", ".join(table.headings[:n]), *table.headings[n:])
    rows = tuple(
        (Cell(", ".join(c.text for c in row[:n] if c.text)), *row[n:]) for row in table.rows
    )
    merged = replace(table, headings=headings, rows=rows, n_labels=1)
    narrowest = replace(merged, rows=tuple(tuple(_filled(c, 0) for c in row) for row in rows))
    widths = _widths(narrowest)
    widths[0] += max(0, width - _total(widths))
    filled = (
        tuple(_filled(cell, room) for cell, room in zip(row, widths, strict=True)) for row in rows
    )
    return replace(merged, rows=tuple(filled))


def _filled(cell: Cell, width: int) -> Cell:
    """Put as many words on a line as fit."""
    from rich.cells import cell_len

    lines: list[str] = []
    for token in _TOKEN.findall(cell.text):
        if lines and cell_len(f"{lines[-1]} {token}") <= width:
            lines[-1] += f" {token}"
        else:
            lines.append(token)
    return replace(cell, text="\n".join(lines))


def _drawn(table: Table, width: int) -> RichTable:
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table as RichTable
    from rich.text import Text

    # Between two columns the box has one space and the padding another.
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    widths = _widths(table)
    headings = zip(widths, map(cell_len, table.headings), strict=True)
    in_one_line = [max(at_least, heading) for at_least, heading in headings]
    # Left to itself, Rich would rather break figures than headings.
    is_tight = _total(widths) <= width < _total(in_one_line)
    for i, heading in enumerate(table.headings):
        drawn.add_column(
            Text(heading),
            justify="left" if i < table.n_labels else "right",
            overflow="fold",
            width=widths[i] if is_tight else None,
        )
    firsts = [row[0].text if row else "" for row in table.rows]
    has_groups = len(set(firsts)) < len(firsts)
    for i, row in enumerate(table.rows):
        ends = has_groups and i + 1 < len(firsts) and firsts[i + 1] != firsts[i]
        texts = (Text(cell.text, style="bold" if cell.is_best else "") for cell in row)
        drawn.add_row(*texts, end_section=ends)
    return drawn
