"""Every published figure stands as the paper prints it."""

import re
from pathlib import Path

import pytest

from adaptask.experiments.paper.published import TABLE_3, TABLE_4, TABLE_5
from adaptask.experiments.paper.targets import TARGETS

TABLES = {
    int(target.number.removeprefix("Table ")): target.table
    for target in TARGETS.values()
    if target.table is not None
}
LABELS = {
    1: "table_sota_miniimagenet",
    2: "table_sota_cifarfs",
    3: "table_effect_of_adaptive_sampling",
    4: "table_sampling_strategies",
    5: "table_training_time",
    6: "table_sota_tieredImageNet",
}
"""The names of the tables in the source of the paper."""
PAPER = Path(__file__).parents[4] / "shared" / "paper" / "adaptive-task-sampling.tex"


@pytest.fixture(scope="module")
def paper():
    if not PAPER.exists():
        pytest.skip(f"the source of the paper is not at {PAPER}")
    text = PAPER.read_text()
    return re.sub(r"(?<!\\)%.*", "", text)  # comments hold figures that are not printed


def printed_rows(paper, label):
    """Yield the lines of a table that hold figures, as lists of cells."""
    end = paper.index(r"\label{" + label)
    table = paper[paper.rindex(r"\begin{tabular}", 0, end) : end]
    for line in table.split(r"\\"):
        cells = [re.sub(r"\\textbf\{(.*?)\}", r"\1", cell) for cell in line.split("&")]
        if len(cells) > 1 and re.search(r"\d\.\d", line):
            yield cells


def figure(cell):
    """Return a cell as it is written here: '49.42 ± 0.78'."""
    numbers = re.findall(r"\d+\.\d+", cell)
    return " ± ".join(numbers)


def method(cell):
    """Return the name of a method without marks and citation."""
    name = re.sub(r"\\(hline|noalign\{.*?\}|smallskip)|\\cite\{.*?\}|\$.*?\$|~", "", cell)
    return " ".join(name.replace("}", "").split())


@pytest.mark.parametrize("number", TABLES)
def test_a_table_of_accuracies_is_as_printed(paper, number):
    found = {}
    for cells in printed_rows(paper, LABELS[number]):
        has_backbone = cells[1].strip() in ("CONV-4", "ResNet-12")
        name, figures = method(cells[0]), cells[1 + has_backbone :]
        if has_backbone and cells[1].strip() == "CONV-4" and not name.startswith("MAML++"):
            continue  # quoted by the paper, and not run here
        found[name] = tuple(map(figure, figures))
    assert found.items() >= TABLES[number].rows.items()


def test_the_table_of_times_is_as_printed(paper):
    rows = list(printed_rows(paper, LABELS[5]))
    names = {"Conv-4": "conv4", "ResNet-12": "resnet12"}
    for cells, row in zip(rows, TABLE_5, strict=True):
        way, shot, backbone = re.search(r"(\d+)-way-(\d+)-shot, (\S+)", cells[0]).groups()
        assert (int(way), int(shot), names[backbone]) == (row.n_way, row.n_shot, row.backbone)
        assert [float(figure(cell)) for cell in cells[1:]] == [row.uniform, row.gcp, row.factor]


def test_tables_and_figures_have_the_numbers_that_the_paper_gives_them(paper):
    paper = re.sub(r"\\if 0.*?\\fi", "", paper, flags=re.S)
    labels = re.findall(r"\\label\{(table_\w+)\}", paper)
    assert labels == list(LABELS.values())
    figures = re.findall(r"\\begin\{(?:figure\*?|SCfigure)\}.*?\\label\{(\w+)\}", paper, flags=re.S)
    assert figures == [
        "episode",
        "showcase",
        "fig_hyper_parameters",
        "fig_case_embedding_spacce",
        "fig_class_correlation_heatmap",
        "fig_instance_sampling_examples",
        "fig_heatmaps",
    ]


def test_the_text_has_the_gains_that_contradict_the_table(paper):
    assert "1.84 and 1.2 percentage points in miniImageNet and 1.89 and 1.0" in paper


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_figure_is_an_accuracy(table):
    for name, cells in table.rows.items():
        assert len(cells) == len(table.columns)
        for dataset, shots in table.columns:
            found = table.published(name, dataset, shots)
            assert 20 < found.accuracy < 100
            assert found.interval is None or 0 < found.interval < 2


def test_a_column_that_the_table_does_not_have_is_not_published():
    assert TABLE_3.published("PN", "glyphs", 1) is None
    assert TABLE_3.published("PN", "cifar-fs", 10) is None


def test_the_tables_contradict_each_other_in_one_place_alone():
    same = {
        "MAML++": "random sampling",
        "MAML++ with gcp-sampling": "gcp-sampling with hard class",
    }
    differing = []
    for in_table_3, in_table_4 in same.items():
        for column in TABLE_3.columns:
            one = TABLE_3.published(in_table_3, *column)
            other = TABLE_4.published(in_table_4, *column)
            if one != other:
                differing.append((column, one.accuracy, other.accuracy))
    assert differing == [
        (("cifar-fs", 5), 73.86, 73.36),
        (("cifar-fs", 5), 73.98, 74.58),
    ]
