"""A table as it is meant, before it becomes Markdown, CSV, LaTeX, or part of a page or terminal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One entry: plain text, never markup."""

    text: str
    is_best: bool = False
    """Whether it is set in bold."""


@dataclass(frozen=True)
class Table:
    """Headings, rows and what must be said of them."""

    name: str
    """Of its files, such as `results`."""
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    n_labels: int = 1
    """How many columns, from the left, say what a row is; the others are figures."""
    notes: tuple[str, ...] = ()
    """Sentences below it."""
    heading: str = ""
    """What it is called on a page that has the title of the study already; empty: its title."""
    expendable: tuple[int, ...] = ()
    """Columns that a narrow terminal may leave out, the first to go first."""
