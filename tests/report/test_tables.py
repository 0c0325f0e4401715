"""The tables of a study have every figure in its place."""

import pytest

from adaptask.report.study import Citation, Published, read_study
from adaptask.report.summary import summarize
from adaptask.report.tables import tables_of

UNIFORM = {0: 0.50, 1: 0.52, 2: 0.48}
GCP = {0: 0.53, 1: 0.551, 2: 0.509}


def tables(folder):
    return {table.name: table for table in tables_of(summarize(read_study(folder)))}


def column(table, heading):
    i = table.headings.index(heading)
    return [row[i].text for row in table.rows]


def best(table):
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
    assert column(table, "runs") == ["3/3", "3/3", "2/3", "2/3"]
    means = [text.split(" ± ")[0] for text in column(table, "accuracy (%)")]
    assert means == ["50.00", "53.00", "40.50", "38.50"]
    assert column(table, "sd") == ["2.00", "2.10", "0.71", "0.71"]
    assert column(table, "difference to uniform") == ["", "+3.00 [+2.75, +3.25]", "", "-1.00"]
    assert column(table, "verdict") == ["", "better", "", "one seed"]
    assert column(table, "ms per step") == ["100.00", "107.50", "10.00", "10.00"]
    assert [len(row) for row in table.rows] == [len(table.headings)] * 4


def test_the_best_of_each_group_is_bold_in_its_accuracy_alone(compared):
    table = compared["results"]
    i = table.headings.index("accuracy (%)")
    assert [j for j, cell in enumerate(table.rows[1]) if cell.is_bold] == [i]
    # maml has not finished the same seeds with both samplers: neither is the best.
    assert best(table) == [False, True, False, False]


def test_notes_explain_the_columns_and_name_what_is_missing(compared):
    notes = compared["results"].notes
    for heading in ("accuracy (%)", "sd", "difference to uniform", "p"):
        assert sum(note.startswith(f"{heading}: ") for note in notes) == 1
    assert "maml uniform, seed 1 failed: too hot" in notes
    assert "maml gcp, seed 2 not finished: 1000 of 1000 steps, not tested." in notes
    assert "Small scale." in notes


def test_every_run_has_its_place_in_the_table_of_seeds(compared):
    table = compared["seeds"]
    assert table.headings == ("learner", "sampler", "seed 0", "seed 1", "seed 2")
    assert [[cell.text for cell in row[2:]] for row in table.rows] == [
        ["50.00", "52.00", "48.00"],
        ["53.00", "55.10", "50.90"],
        ["40.00", "failed", "41.00"],
        ["39.00", "38.00", "unfinished"],
    ]


def test_columns_that_would_be_empty_are_left_out(study_folder):
    found = tables(study_folder({("maml", "uniform"): {0: 0.5}}))
    assert list(found) == ["results", "seeds"]
    assert found["results"].headings == (
        "learner",
        "sampler",
        "runs",
        "accuracy (%)",
        "ms per step",
    )
    assert best(found["results"]) == [False]
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


def test_arms_with_other_options_of_the_sampler_share_the_group_of_their_baseline(
    tmp_path, write_run
):
    from adaptask.report.grouping import find_study

    write_run(tmp_path / "u", sampler="uniform", accuracy=0.5)
    for alpha, accuracy in ((0.5, 0.55), (2.0, 0.45)):
        changes = {"sampler.alpha": alpha}
        write_run(tmp_path / str(alpha), sampler="gcp", accuracy=accuracy, changes=changes)
    [results, _] = tables_of(summarize(find_study(tmp_path)))
    assert best(results) == [False, True, False]


def test_equal_means_are_both_bold(study_folder):
    found = tables(study_folder({("maml", "uniform"): {0: 0.5}, ("maml", "gcp"): {0: 0.5}}))
    assert best(found["results"]) == [True, True]


PUBLISHED = {
    ("protonet", "1", "uniform"): {"accuracy": 54.87, "interval": 0.72},
    ("protonet", "1", "gcp"): {"accuracy": 56.12, "interval": 0.8},
    ("protonet", "5", "uniform"): {"accuracy": 71.6, "interval": 0.5},
}


@pytest.fixture
def reproduced(study_folder):
    """Two columns; a cited method, and a cited figure of one that is run in another column."""
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
            citations=(
                Citation({"learner": "TPN", "shots": "1"}, Published(59.91, 0.94)),
                Citation({"learner": "TPN", "shots": "10"}, Published(73.3)),
                Citation(
                    {"learner": "maml", "shots": "5", "sampler": "uniform"}, Published(63.11, 0.92)
                ),
            ),
        )
    )


def test_the_table_of_the_paper_has_our_figures_beside_its_own(reproduced):
    table = reproduced["paper"]
    assert table.headings == ("learner", "sampler", "shots 1", "shots 5", "shots 10")
    assert table.n_labels == 2
    rows = [[cell.text for cell in row] for row in table.rows]
    half = reproduced["results"].rows[0][4].text.partition(" ± ")[2]
    assert rows == [
        ["TPN", "", "paper 59.91 ± 0.94", "", "paper 73.3"],
        ["protonet", "uniform", f"50.00 ± {half} (paper 54.87)", "- (paper 71.6)", ""],
        ["protonet", "gcp", f"53.00 ± {half} (paper 56.12)", "", ""],
        ["maml", "uniform", f"50.00 ± {half}", "paper 63.11 ± 0.92", ""],
    ]
    assert best(table) == [False, False, True, False]


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


def test_in_a_sweep_validation_is_bold_and_first_and_the_test_decides_nothing(study_folder):
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
    assert column(table, "validation (%)") == ["50.00", "62.50", "50.00"]
    bold = [[table.headings[i] for i, c in enumerate(row) if c.is_bold] for row in table.rows]
    assert bold == [[], ["validation (%)"], []]
    assert table.headings.index("validation (%)") < table.headings.index("accuracy (%)")
    assert any("nothing is chosen by it" in note for note in table.notes)
