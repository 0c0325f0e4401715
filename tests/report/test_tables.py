"""The tables of a study have every figure in its place."""

import pytest

from adaptask.report.study import read_study
from adaptask.report.summary import summarize
from adaptask.report.tables import tables_of

UNIFORM = {0: 0.50, 1: 0.52, 2: 0.48, 3: 0.51, 4: 0.49}
GCP = {0: 0.53, 1: 0.551, 2: 0.509, 3: 0.54, 4: 0.52}


def tables(folder):
    return {table.name: table for table in tables_of(summarize(read_study(folder)))}


def column(table, heading):
    i = table.headings.index(heading)
    return [row[i].text for row in table.rows]


def bold(table):
    return [any(cell.is_bold for cell in row) for row in table.rows]


@pytest.fixture
def compared(study_folder):
    return tables(
        study_folder(
            {
                ("protonet", "uniform"): UNIFORM,
                ("protonet", "gcp"): GCP,
                ("maml", "uniform"): {0: 0.4, 1: "too hot", 2: 0.41},
                ("maml", "gcp"): {0: 0.39, 1: 0.38, 2: None},
            },
            seconds={("protonet", "uniform"): 0.1, ("protonet", "gcp"): 0.1075},
            notes=("Small scale.",),
        )
    )


def test_the_long_table_has_a_row_an_arm(compared):
    table = compared["results"]
    assert table.n_labels == 2
    assert column(table, "learner") == ["protonet", "protonet", "maml", "maml"]
    assert column(table, "sampler") == ["uniform", "gcp", "uniform", "gcp"]
    assert column(table, "runs") == ["5/5", "5/5", "2/3", "2/3"]
    means = [text.split(" ± ")[0] for text in column(table, "accuracy (%)")]
    assert means == ["50.00", "53.00", "40.50", "38.50"]
    assert column(table, "sd") == ["1.58", "1.64", "0.71", "0.71"]
    assert column(table, "difference to uniform") == ["", "+3.00 [+2.91, +3.09]", "", "-1.00"]
    assert column(table, "verdict") == ["", "better", "", "one seed"]
    assert column(table, "ms per step") == ["100.00", "107.50", "10.00", "10.00"]
    assert column(table, "factor") == ["", "1.07", "", "1.00"]
    assert [len(row) for row in table.rows] == [len(table.headings)] * 4


def test_what_is_significantly_better_is_bold_in_its_accuracy_alone(compared):
    table = compared["results"]
    i = table.headings.index("accuracy (%)")
    assert [j for j, cell in enumerate(table.rows[1]) if cell.is_bold] == [i]
    assert bold(table) == [False, True, False, False]
    assert any("bold: significantly better than its baseline" in note for note in table.notes)


def test_nothing_is_bold_that_is_worse_or_not_significant_or_of_too_few_seeds(study_folder):
    results = {
        ("protonet", "uniform"): UNIFORM,
        ("protonet", "gcp"): {seed: value - 0.01 * (seed + 1) for seed, value in UNIFORM.items()},
        ("maml", "uniform"): UNIFORM,
        ("maml", "gcp"): {seed: value + 0.1 * (-1) ** seed for seed, value in UNIFORM.items()},
        ("anil", "uniform"): {0: 0.5, 1: 0.51},
        ("anil", "gcp"): {0: 0.6, 1: 0.6101},
    }
    found = tables(study_folder(results))["results"]
    assert column(found, "verdict")[1::2] == ["worse", "not significant", "too few seeds"]
    assert bold(found) == [False] * 6
    assert not any("bold" in note for note in found.notes)


def test_notes_explain_the_columns_and_name_what_is_missing(compared):
    notes = compared["results"].notes
    for heading in ("accuracy (%)", "sd", "difference to uniform", "p"):
        assert sum(note.startswith(f"{heading}: ") for note in notes) == 1
    assert "maml uniform, seed 1 failed: too hot" in notes
    assert "maml gcp, seed 2 not finished: 1000 of 1000 steps, not tested." in notes
    assert "Small scale." in notes


def test_every_run_has_its_place_in_the_table_of_seeds(compared):
    table = compared["seeds"]
    assert table.headings == ("learner", "sampler", *(f"seed {seed}" for seed in range(5)))
    assert [[cell.text for cell in row[2:]] for row in table.rows] == [
        ["50.00", "52.00", "48.00", "51.00", "49.00"],
        ["53.00", "55.10", "50.90", "54.00", "52.00"],
        ["40.00", "failed", "41.00", "", ""],
        ["39.00", "38.00", "unfinished", "", ""],
    ]


def test_columns_that_would_be_empty_are_left_out(study_folder):
    found = tables(study_folder({("maml", "uniform"): {0: 0.5}}))
    assert list(found) == ["results", "hard-tasks", "seeds"]
    assert found["results"].headings == (
        "learner",
        "sampler",
        "runs",
        "accuracy (%)",
        "ms per step",
    )
    assert bold(found["results"]) == [False]
    assert not any("bold" in note for note in found["results"].notes)


def test_a_study_that_has_not_begun_has_tables_all_the_same(study_folder):
    found = tables(study_folder({("maml", "uniform"): {0: ""}, ("maml", "gcp"): {0: ""}}))
    assert found["results"].headings == ("learner", "sampler", "runs")
    assert column(found["results"], "runs") == ["0/1", "0/1"]
    assert column(found["seeds"], "seed 0") == ["unfinished", "unfinished"]


def test_a_terminal_shows_the_important_columns(compared):
    table = compared["results"]
    assert [table.headings[i] for i in table.brief] == [
        *("learner", "sampler", "runs", "accuracy (%)", "difference to uniform", "verdict"),
    ]


PUBLISHED = {
    ("protonet", "1", "uniform"): {"accuracy": 54.87, "interval": 0.72},
    ("protonet", "1", "gcp"): {"accuracy": 56.12, "interval": 0.8},
    ("protonet", "5", "uniform"): {"accuracy": 71.6, "interval": 0.5},
}


@pytest.fixture
def reproduced(study_folder):
    """Two columns, of which one arm has only the first."""
    return tables(
        study_folder(
            {
                ("protonet", "1", "uniform"): UNIFORM,
                ("protonet", "1", "gcp"): GCP,
                ("protonet", "5", "uniform"): {0: None},
                ("maml", "1", "uniform"): UNIFORM,
            },
            keys=("learner", "shots", "sampler"),
            columns=("shots",),
            published=PUBLISHED,
        )
    )


def test_the_table_of_the_paper_has_our_figures_beside_its_own(reproduced):
    table = reproduced["paper"]
    assert table.headings == ("learner", "sampler", "1-shot", "5-shot")
    assert table.n_labels == 2
    rows = [[cell.text for cell in row] for row in table.rows]
    half = reproduced["results"].rows[0][4].text.partition(" ± ")[2]
    assert rows == [
        ["protonet", "uniform", f"50.00 ± {half} (paper 54.87)", "- (paper 71.6)"],
        ["protonet", "gcp", f"53.00 ± {half} (paper 56.12)", ""],
        ["maml", "uniform", f"50.00 ± {half}", ""],
    ]
    assert bold(table) == [False, True, False]


def test_the_long_table_has_published_figures_and_gains(reproduced):
    table = reproduced["results"]
    assert column(table, "paper (%)") == ["54.87 ± 0.72", "56.12 ± 0.80", "71.6 ± 0.5", ""]
    assert column(table, "paper's gain") == ["", "+1.25", "", ""]


def test_all_labels_may_be_columns(study_folder):
    found = tables(
        study_folder(
            {("uniform",): UNIFORM, ("gcp",): GCP}, keys=("sampler",), columns=("sampler",)
        )
    )
    assert found["paper"].headings == ("uniform", "gcp")
    assert found["paper"].n_labels == 0
    assert found["paper"].title == "A study (test accuracy, %)"  # there is no paper to speak of
    assert found["paper"].notes == ()
    assert len(found["paper"].rows) == 1


def test_in_a_sweep_validation_is_first_and_the_test_decides_nothing(study_folder):
    # What conftest writes has the same validation accuracy, 0.5, in every run.
    folder = study_folder(
        {("1", "gcp"): {0: 0.7}, ("2", "gcp"): {0: 0.6}, ("3", "gcp"): {0: None}},
        keys=("alpha", "sampler"),
        by_validation=True,
    )
    metrics = folder / "runs/1/0/metrics.jsonl"
    lines = metrics.read_text().splitlines()
    lines.append('{"step": 1000, "split": "val", "accuracy": 0.625}')
    metrics.write_text("\n".join(lines) + "\n")
    table = tables(folder)["results"]
    assert read_study(folder).by_validation
    assert column(table, "validation (%)") == ["62.50", "50.00", "50.00"]
    assert bold(table) == [False] * 3
    assert table.headings.index("validation (%)") < table.headings.index("accuracy (%)")
    assert any("nothing is chosen by it" in note for note in table.notes)
