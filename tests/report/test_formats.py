"""Every format gives back the texts that went in, whatever they are."""

import csv
import io
import re

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from adaptask.report.formats import clean, print_table, to_csv, to_latex, to_markdown
from adaptask.report.tables import Cell, Table

NASTY = [
    "a|b",
    "a & b",
    "100 %",
    "n_way",
    "<script>alert(1)</script>",
    "two\nlines",
    'say "so"',
    "it's",
    "back\\slash",
    "\\",
    "**bold**",
    "`code`",
    "[text](http://x)",
    "=1+1",
    "+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "{}$#^~",
    "--- and --",
    "[0]",
    "*",
    "\x1b[31mred\x07",
    ":smile: [bold]x[/bold]",
    "\ud800",
    "名前",
    "&lt;",
    "é\u2028ß",
    "",
    " ",
]
# No private use: `_hidden` below puts characters that were escaped there.
ANYTHING = st.text(st.characters(exclude_categories=["Co"]), max_size=8)
TEXT = st.one_of(st.sampled_from(NASTY), ANYTHING)


@st.composite
def any_table(draw):
    n = draw(st.integers(1, 4))
    texts = st.lists(TEXT, min_size=n, max_size=n)
    cell = st.builds(Cell, TEXT, st.booleans())
    row = st.lists(cell, min_size=n, max_size=n).map(tuple)
    return Table(
        name=draw(TEXT),
        title=draw(TEXT),
        headings=tuple(draw(texts)),
        rows=tuple(draw(st.lists(row, max_size=3))),
        n_labels=draw(st.integers(0, n)),
        notes=tuple(draw(st.lists(TEXT, max_size=2))),
    )


SMALL = Table(
    name="results",
    title="A & B",
    headings=("learner", "accuracy (%)", "difference"),
    rows=(
        (Cell("protonet"), Cell("50.00 ± 1.07"), Cell("")),
        (Cell("maml_x"), Cell("51.25 ± 1.07", is_bold=True), Cell("-1.25 [-2.00, +0.50]")),
    ),
    notes=("100 % of it.",),
)


def expected(table):
    """Headings and cells as they should come back: on one line, without space around."""
    rows = [table.headings, *([cell.text for cell in row] for row in table.rows)]
    return [[clean(text) for text in row] for row in rows]


def test_texts_lose_their_lines_and_what_steers_a_terminal():
    assert clean("two\r\nlines\x1b[31m\x07\ud800") == "two lines\ufffd[31m\ufffd\ufffd"


# Markdown


def from_markdown(text):
    """Cells, split on pipes that no backslash escapes, unescaped and without bold."""
    lines = [line for line in text.split("\n") if line.startswith("|")]
    assert re.fullmatch(r"\| (:---|---:)( \| (:---|---:))* \|", lines[1])
    rows = []
    for line in (lines[0], *lines[2:]):
        cells = _hidden(line).split("|")[1:-1]
        rows.append([_shown(cell.strip()) for cell in cells])
    return rows


def _hidden(line):
    return re.sub(r"\\(.)", lambda match: chr(0xE000 + ord(match[1])), line)


def _shown(cell):
    bold = re.fullmatch(r"\*\*(.*)\*\*", cell)
    inner = bold[1] if bold else cell
    assert not re.search(r"[<>*_`|]", inner)  # all that is left is escaped
    return re.sub("[\ue000-\ue07f]", lambda match: chr(ord(match[0]) - 0xE000), inner)


@settings(deadline=None)
@given(any_table())
def test_markdown_comes_back(table):
    assert from_markdown(to_markdown(table)) == expected(table)


def test_markdown_reads_well_as_it_is():
    assert to_markdown(SMALL) == (
        "**A \\& B**\n\n"
        "| learner | accuracy (%) | difference |\n"
        "| :--- | ---: | ---: |\n"
        "| protonet | 50.00 ± 1.07 |  |\n"
        "| maml\\_x | **51.25 ± 1.07** | -1.25 [-2.00, +0.50] |\n"
        "\n- 100 % of it.\n"
    )


def test_markdown_makes_no_links_of_names():
    table = Table("t", "t", ("a",), ((Cell("![x](http://x)"),),))
    assert "!\\[x](http://x)" in to_markdown(table)


# CSV


@settings(deadline=None)
@given(any_table())
def test_csv_comes_back(table):
    assert list(csv.reader(io.StringIO(to_csv(table)))) == expected(table)


# LaTeX

COMMANDS = {
    r"\textbackslash{}": "\\",
    r"\textasciitilde{}": "~",
    r"\textasciicircum{}": "^",
    r"\textless{}": "<",
    r"\textgreater{}": ">",
    r"\textbar{}": "|",
    r"\char34{}": '"',
    r"\char96{}": "`",
    r"$\pm$": "±",
    "$-$": "-",
    "{[}": "[",
    "{]}": "]",
    "{*}": "*",
    **{f"\\{c}": c for c in "&%$#_{}"},
}
TOKEN = re.compile("|".join(re.escape(c) for c in sorted(COMMANDS, key=len, reverse=True)) + "|.")


def from_latex_cell(text):
    """The text of a cell; anything that TeX would read as more than text is an error."""
    bold = re.fullmatch(r"\\textbf\{(.*)\}", text)
    found = ""
    for token in TOKEN.findall(bold[1] if bold else text):
        if token not in COMMANDS:
            assert token not in '\\{}$&#%_^~|<>`"[]*'
        found += COMMANDS.get(token, token)
    return found


def from_latex(text):
    body = text.split("\\toprule\n")[1].split("    \\bottomrule")[0].replace("    \\midrule\n", "")
    rows = []
    for line in body.rstrip("\n").split("\n"):
        assert line.endswith(r" \\")
        cells = f" {line[4:-3]} ".split(" & ")  # in a text there is a backslash before
        rows.append([from_latex_cell(cell.strip()) for cell in cells])
    return rows


@settings(deadline=None)
@given(any_table())
def test_latex_comes_back(table):
    assert from_latex(to_latex(table)) == expected(table)


@settings(deadline=None)
@given(any_table())
def test_latex_is_balanced_and_ends_what_it_begins(table):
    text = to_latex(table)
    bare = re.sub(r"\\[{}\\]", "", text)
    assert bare.count("{") == bare.count("}")
    assert re.findall(r"\\(begin|end)\{(\w+)\}", text) == [
        ("begin", "table"),
        ("begin", "tabular"),
        ("end", "tabular"),
        ("end", "table"),
    ]
    n = len(table.headings)
    assert f"{{@{{}}{'l' * table.n_labels}{'r' * (n - table.n_labels)}@{{}}}}" in text


def test_latex_has_rules_signs_and_bold():
    text = to_latex(SMALL)
    assert r"\caption{A \& B}" in text
    assert r"protonet & 50.00 $\pm$ 1.07 &  \\" in text
    assert r"maml\_x & \textbf{51.25 $\pm$ 1.07} & $-$1.25 {[}$-$2.00, +0.50{]} \\" in text
    assert r"\footnotesize 100 \% of it." in text


# Terminal


def shown(table, width):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_table(table, console)
    return console.file.getvalue()


@settings(deadline=None)
@given(any_table(), st.integers(20, 120))
def test_a_terminal_shows_anything_within_its_width(table, width):
    from rich.cells import cell_len

    text = shown(table, width)
    assert "\x1b" not in text
    assert all(cell_len(line) <= width for line in text.split("\n"))


def test_markup_and_emoji_are_shown_as_they_are():
    table = Table("t", "[bold]t[/bold]", ("a",), ((Cell(":smile: [red]x"),),), notes=("[i]",))
    text = shown(table, 80)
    assert "[bold]t[/bold]" in text
    assert ":smile: [red]x" in text
    assert "[i]" in text


def test_a_terminal_shows_the_brief_columns_and_what_is_said_of_them():
    cells = (Cell("protonet"), Cell("3/3"), Cell("+1.25 [-0.50, +3.00]"), Cell("0.012"))
    table = Table(
        name="results",
        title="t",
        headings=("learner", "runs", "difference to uniform", "p"),
        rows=(cells,),
        notes=("runs: finished and planned.", "p: paired.", "All."),
        brief=(0, 2, 3),
    )
    lines = shown(table, 80).splitlines()
    assert lines[1].split() == ["learner", "difference", "to", "uniform", "p"]
    assert lines[3].split() == ["protonet", "+1.25", "[-0.50,", "+3.00]", "0.012"]
    assert lines[4:] == ["", "p: paired.", "All."]
