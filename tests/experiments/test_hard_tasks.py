"""Test tasks within groups: beside uniform ones or alone, in every command."""

import json
from dataclasses import replace

import pytest
import torch

import adaptask
from adaptask.cli import main
from adaptask.data.cache import read_cache, write_cache
from adaptask.errors import ArgumentError
from adaptask.experiments.config import EvaluationConfig, RunConfig, check_config
from adaptask.experiments.config_file import dump_config, parse_config
from adaptask.experiments.factory import build_testers
from adaptask.experiments.run import resolve_auto
from adaptask.report.run import read_metrics

BOTH = ("--evaluation.tasks", "uniform", "within-group")


@pytest.fixture
def grouped(tiny_cache, tmp_path, monkeypatch):
    """The dataset `tiny` with two groups of four test classes."""
    splits = {s: read_cache(tiny_cache / "tiny", s) for s in ("train", "val", "test")}
    names = tuple(f"{'ab'[i % 2]}/{i}" for i in range(8))
    splits["test"] = replace(splits["test"], class_names=names)
    write_cache(tmp_path / "cache" / "tiny", splits, source="a test")
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path / "cache"))


def result_of(folder):
    return json.loads((folder / "test.json").read_text())


def test_both_kinds_are_tested_and_the_uniform_result_is_as_without(
    tiny_run, grouped, tmp_path, capsys
):
    alone, both = tmp_path / "alone", tmp_path / "both"
    assert main([*tiny_run, "--output", str(alone), "--quiet"]) == 0
    assert main([*tiny_run, *BOTH, "--output", str(both)]) == 0
    said = capsys.readouterr()
    found = result_of(both)
    within = found.pop("within-group")
    assert found == result_of(alone)
    assert found["tasks"] == "uniform"
    assert within["tasks"] == "within-group"
    assert len(within["accuracies"]) == 6
    for kind, result in (("", found), ("within groups ", within)):
        assert result["hardest_tenth"] == min(result["accuracies"])
        text = f"Test accuracy {kind}{100 * result['accuracy']:.2f}"
        assert text in said.out + said.err
    run = adaptask.load_run(both)
    assert run.test.within_group.tolist() == within["accuracies"]
    assert run.test_accuracies.tolist() == found["accuracies"]
    assert adaptask.load_run(alone).test.within_group is None


def test_evaluate_measures_as_the_run_was_tested_or_either_kind(
    tiny_run, grouped, tmp_path, capsys
):
    run = tmp_path / "run"
    assert main([*tiny_run, *BOTH, "--output", str(run), "--quiet"]) == 0
    found = result_of(run)
    for options, kinds in (
        ((), ("", "/within-group")),
        (("--tasks", "within-group"), ("/within-group",)),
        (("--tasks", "uniform"), ("",)),
    ):
        (run / "evaluations.jsonl").unlink(missing_ok=True)
        assert main(["evaluate", str(run), *options]) == 0
        records = read_metrics(run / "evaluations.jsonl")
        assert [record["split"] for record in records] == [f"tiny/test{kind}" for kind in kinds]
        for record in records:
            expected = found["within-group"] if "within" in record["split"] else found
            assert record["accuracy"] == expected["accuracy"]
    assert "3-way 1-shot, within groups, 6 episodes" in capsys.readouterr().out


def test_what_no_group_allows_is_refused_before_training(tiny_run, grouped, tmp_path, capsys):
    words = [*tiny_run, *BOTH, "--output", str(tmp_path / "run")]
    assert main([*words, "--n-way", "5"]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "no group of tiny (test) has 5 classes for a task within it" in said
    assert "has 4. Test with at most 4 ways (--evaluation.n-way 4), or uniform tasks" in said
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    # The message is followed: fewer ways.
    assert main([*words, "--n-way", "5", "--evaluation.n-way", "4", "--quiet"]) == 0


def test_classes_without_groups_are_refused_before_a_comparison(tiny_comparison, tmp_path, capsys):
    assert main([*tiny_comparison, *BOTH, "--output", str(tmp_path / "study")]) != 0
    assert "those of tiny (test) have none" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.glob("study/runs/*/*/config.toml"))


def test_a_comparison_answers_both_questions(tiny, grouped, tmp_path, capsys):
    result = adaptask.compare(
        ["uniform", "gcp"],
        dataset="tiny",
        seeds=2,
        steps=4,
        n_way=3,
        n_query=4,
        workers=1,
        device="cpu",
        backbone={"filters": 4},
        evaluation={
            "tasks": ["within-group", "uniform"],
            "n_episodes": 6,
            "n_validation": 4,
            "n_query": 5,
        },
        output=tmp_path / "study",
    )
    text = str(result)
    assert "within groups (%)" in text
    assert "hardest tenth (%)" in text
    assert all("Within groups: " in sentence for sentence in result.verdicts)
    within = result.summary.within_group.arm("protonet gcp")
    for run in within.tested:
        found = 100 * adaptask.load_run(run.path).test.within_group.mean()
        assert within.accuracies[run.seed] == pytest.approx(found)


def test_learners_meet_the_same_tasks_and_a_seed_decides_them(tiny_config, grouped):
    device = torch.device("cpu")
    tested = replace(tiny_config.evaluation, tasks=("within-group", "uniform"))
    config = resolve_auto(replace(tiny_config, evaluation=tested), device)
    first, second = (build_testers(replace(config, seed=seed), device) for seed in (0, 1))
    assert [tester.tasks for tester in first] == ["uniform", "within-group"]
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.plan.image_ids, other.plan.image_ids)
    groups = first[1].source.image_set.groups
    for task in first[1].plan.class_ids.tolist():
        assert len({groups[c] for c in task}) == 1


def test_the_setting_survives_its_file_and_old_files_mean_uniform():
    config = RunConfig(evaluation=EvaluationConfig(tasks=("uniform", "within-group")))
    text = dump_config(config)
    assert parse_config(text).evaluation.tasks == ("uniform", "within-group")
    old = "".join(line for line in text.splitlines(True) if not line.startswith("tasks"))
    assert parse_config(old).evaluation.tasks == ("uniform",)


@pytest.mark.parametrize("tasks", [(), ("uniform", "uniform")])
def test_kinds_that_are_missing_or_twice_are_refused(tasks):
    with pytest.raises(ArgumentError, match="must be uniform, within-group, or both; got"):
        check_config(RunConfig(evaluation=EvaluationConfig(tasks=tasks)))
