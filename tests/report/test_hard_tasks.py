"""Hard test tasks in a report: the hardest tenth, and tasks within groups with their own tests."""

import json

import numpy as np
import pytest
from scipy import stats

from adaptask.report.report import make_report, print_report
from adaptask.report.run import Run, read_test
from adaptask.report.statistics import hardest_tenth
from adaptask.report.study import read_study
from adaptask.report.summary import summarize
from adaptask.report.tables import main_tables, tables_of
from adaptask.report.verdicts import headline, verdicts

UNIFORM = {0: 0.50, 1: 0.52, 2: 0.48, 3: 0.51, 4: 0.49}
RESULTS = {
    ("protonet", "uniform"): UNIFORM,
    ("protonet", "c"): {0: 0.51, 1: 0.51, 2: 0.49, 3: 0.50, 4: 0.51},
    ("protonet", "gcp"): {0: 0.49, 1: 0.53, 2: 0.48, 3: 0.51, 4: 0.50},
}
GAIN = {"uniform": 0.0, "c": 0.001, "gcp": 0.03}


@pytest.fixture
def folder(study_folder):
    """A study in which gcp gains nothing in uniform tasks, and three points within groups."""
    path = study_folder(RESULTS)
    random = np.random.default_rng(0)
    for arm in read_study(path).arms:
        for run in arm.runs:
            mean = 0.4 + GAIN[arm.labels["sampler"]] + random.normal(0, 0.002)
            spread = np.linspace(-0.1, 0.1, 200)
            add(run, **{"within-group": {"accuracies": (mean + spread).tolist()}})
    return path


def add(run, **values):
    path = run.path / "test.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def without_within(path):
    for arm in read_study(path).arms:
        for run in arm.runs:
            found = json.loads((run.path / "test.json").read_text())
            found.pop("within-group")
            (run.path / "test.json").write_text(json.dumps(found))
    return summarize(read_study(path))


def table(summary, name):
    return {table.name: table for table in tables_of(summary)}[name]


def column(table, heading):
    return [row[table.headings.index(heading)].text for row in table.rows]


def test_the_hardest_tenth_is_the_mean_of_the_lowest_tail():
    random = np.random.default_rng(1)
    for n in (2, 9, 10, 11, 100, 1000):
        values = random.integers(0, 6, n) / 5  # with many ties
        k = -(-n // 10)
        best = min(np.mean(random.permutation(values)[:k]) for _ in range(50))
        found = hardest_tenth(values)
        assert found == pytest.approx(np.mean(sorted(values.tolist())[:k]))
        assert found <= best  # no other choice of tasks has a lower mean
        assert found == hardest_tenth(random.permutation(values))


def test_results_of_versions_without_them_are_read_as_uniform_and_have_a_hardest_tenth(
    write_run, tmp_path
):
    run = Run(write_run(tmp_path / "run", accuracies=[0.2, *[0.5] * 9, 0.4]))
    assert (run.test.tasks, run.test.within_group) == ("uniform", None)
    assert hardest_tenth(run.test.accuracies) == pytest.approx(0.3)


@pytest.mark.parametrize("content", [{}, [], {"accuracies": [2]}, {"accuracies": []}, 3])
def test_a_damaged_result_within_groups_is_named(write_run, tmp_path, content):
    run = Run(write_run(tmp_path / "run", accuracy=0.5))
    add(run, **{"within-group": content})
    assert run.test is None
    assert "test.json is damaged" in run.damage["test.json"]


def test_tasks_within_groups_are_a_second_question_with_tests_of_its_own(folder):
    summary = summarize(read_study(folder))
    within = summary.within_group
    assert [summary.arm(f"protonet {s}").is_significant for s in ("c", "gcp")] == [False, False]
    assert within.arm("protonet gcp").is_significant
    assert within.arm("protonet gcp").difference.mean == pytest.approx(3, abs=0.5)
    # Tasks shift alike, so that the test is the paired t-test over seeds; two tests: Holm.
    values = {
        sampler: [
            100 * read_test(run.path / "test.json").within_group.mean()
            for run in read_study(folder).arms[i].runs
        ]
        for i, sampler in enumerate(("uniform", "c", "gcp"))
    }
    plain = stats.ttest_rel(values["gcp"], values["uniform"]).pvalue
    assert within.arm("protonet gcp").p == pytest.approx(2 * plain, rel=1e-6)


def test_the_first_question_is_answered_as_if_the_second_had_not_been_asked(folder):
    both = summarize(read_study(folder))
    alone = without_within(folder)
    assert alone.within_group is None
    for one, other in zip(both.arms, alone.arms, strict=True):
        assert (one.accuracies, one.p, one.difference) == (
            other.accuracies,
            other.p,
            other.difference,
        )
    assert table(both, "results") == table(alone, "results")
    for one, other in zip(verdicts(both), verdicts(alone), strict=True):
        assert one.startswith(f"{other} Within groups: ")


def test_the_table_has_both_and_verdicts_name_them(folder):
    summary = summarize(read_study(folder))
    found = table(summary, "hard-tasks")
    assert column(found, "verdict") == ["", "not significant", "better"]
    assert [text.split(" ±")[0] for text in column(found, "within groups (%)")] == [
        f"{arm.mean.mean:.2f}" for arm in summary.within_group.arms
    ]
    for arm, text in zip(summary.arms, column(found, "hardest tenth (%)"), strict=True):
        tails = [hardest_tenth(100 * run.test.accuracies) for run in arm.arm.runs]
        assert text.startswith(f"{np.mean(tails):.2f}")
    # The accuracies of the runs are shifts of each other, and so are their tails.
    gains = [summary.arm(f"protonet {s}").difference.mean for s in ("c", "gcp")]
    assert [text.partition(" ")[2] for text in column(found, "hardest tenth (%)")] == [
        "",
        *(f"({gain:+.2f})" for gain in gains),
    ]
    assert "gcp is better than uniform" in verdicts(summary)[1]
    first, _, within = headline(summary).partition(" Within groups: ")
    assert first.startswith("No difference is shown with 5 seeds")
    gain = summary.within_group.arm("protonet gcp").difference.mean
    assert within == (
        f"gcp is better than uniform, by {gain:.2f} points. No difference is shown for c."
    )


def test_a_terminal_prints_hard_tasks_if_groups_were_asked_for(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    report = make_report(folder)
    print_report(report)
    said = capsys.readouterr().out
    assert "within groups (%)" in said
    assert max(map(len, said.splitlines()[:20])) <= 80
    assert "Hard test tasks" in report.page.read_text(encoding="utf-8")
    assert (folder / "tables" / "hard-tasks.csv").exists()
    summary = without_within(folder)
    assert [t.name for t in main_tables(tables_of(summary), summary)] == ["results"]
    assert table(summary, "hard-tasks").headings == ("learner", "sampler", "hardest tenth (%)")


def test_within_groups_alone_is_the_first_question(study_folder):
    folder = study_folder(RESULTS)
    for arm in read_study(folder).arms:
        for run in arm.runs:
            add(run, tasks="within-group")
    summary = summarize(read_study(folder))
    assert (summary.tasks, summary.within_group) == ("within-group", None)
    assert "accuracy within groups (%)" in table(summary, "results").headings
    assert verdicts(summary)[0].startswith("c against uniform within groups: ")


def test_runs_tested_on_different_kinds_are_not_compared_task_by_task(study_folder):
    folder = study_folder({key: RESULTS[key] for key in list(RESULTS)[:2]})
    add(read_study(folder).arms[1].runs[0], tasks="within-group")
    summary = summarize(read_study(folder))
    assert summary.tasks == "uniform"
    assert any("different episodes" in remark for remark in summary.remarks)


def test_runs_without_tasks_within_groups_are_left_out_of_the_second_question(folder):
    run = read_study(folder).arms[2].runs[0]
    found = json.loads((run.path / "test.json").read_text())
    found.pop("within-group")
    (run.path / "test.json").write_text(json.dumps(found))
    within = summarize(read_study(folder)).within_group
    assert within.arm("protonet gcp").difference.seeds == (1, 2, 3, 4)
