"""A dataset may lack validation or test classes: what can be done then, and what is refused."""

import json
import re

import pytest
import torch

import adaptask
from adaptask.cli import main
from adaptask.data.cache import write_cache
from adaptask.data.datasets import load
from adaptask.report.grouping import find_study
from adaptask.report.summary import summarize
from adaptask.report.verdicts import missing_runs
from adaptask.training.checkpoints import load_checkpoint


@pytest.fixture
def keep_splits(tiny, tmp_path, monkeypatch):
    """Makes `tiny` a dataset with some of its splits."""
    whole = {split: load(tiny, split) for split in ("train", "val", "test")}

    def keep(*names):
        splits = {name: whole[name] for name in names}
        write_cache(tmp_path / "cache" / tiny, splits, source="made for the tests")
        monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path / "cache"))

    return keep


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def test_without_validation_the_last_weights_are_tested(keep_splits, tiny_run, folder, capsys):
    keep_splits("train", "test")
    assert main([*tiny_run, "--output", str(folder)]) == 0
    said = capsys.readouterr().err
    assert "tiny has no val classes" in said.splitlines()[0]
    assert "of the last weights" in said
    result = json.loads((folder / "test.json").read_text())
    assert result["steps"] == [12]
    run = adaptask.load_run(folder)
    assert run.test_accuracies.mean() == pytest.approx(result["accuracy"])
    last = load_checkpoint(folder / "last.pt")["trainer"]["learner"]
    assert all(torch.equal(value, last[name]) for name, value in run.learner.state_dict().items())
    assert main(["evaluate", str(folder), "--device", "cpu"]) == 0
    assert f"{100 * result['accuracy']:.2f}" in capsys.readouterr().out


def test_without_test_classes_a_run_ends_after_training(keep_splits, tiny_run, folder, capsys):
    keep_splits("train", "val")
    assert main([*tiny_run, "--output", str(folder)]) == 0
    said = capsys.readouterr().err
    assert "tiny has no test classes" in said.splitlines()[0]
    assert "best in validation" in said
    assert "Test accuracy" not in said
    run = adaptask.load_run(folder)
    assert run.test_accuracies is None
    assert "not tested" in repr(run)
    assert main(["watch", str(folder), "--once"]) == 0
    assert "1 finished" in capsys.readouterr().out
    summary = summarize(find_study(folder))
    assert summary.arms[0].n_finished == 1
    assert summary.arms[0].mean is None
    (reason,) = missing_runs(summary)
    assert reason.endswith("seed 0 not tested: its dataset has no test classes.")
    assert main(["evaluate", str(folder), "--split", "val", "--device", "cpu"]) == 0
    assert main(["evaluate", str(folder), "--device", "cpu"]) == 1
    said = capsys.readouterr().err
    assert "the dataset 'tiny' has no split 'test'; choose --split train or --split val." in said


def test_a_run_without_test_classes_is_finished_and_may_get_more_steps(
    keep_splits, tiny_run, folder, capsys
):
    keep_splits("train")
    assert main([*tiny_run, "--output", str(folder)]) == 0
    assert "Kept the last weights, not tested." in capsys.readouterr().err
    assert main(["train", "--resume", str(folder)]) == 0
    assert "has made its 12 steps" in capsys.readouterr().err
    assert main(["train", "--resume", str(folder), "--steps", "14"]) == 0
    assert json.loads((folder / "test.json").read_text()) == {"steps": [14], "accuracies": None}


def test_its_report_shows_no_accuracy(keep_splits, tiny_run, folder, capsys):
    keep_splits("train")
    assert main([*tiny_run, "--output", str(folder)]) == 0
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "not tested: its dataset has no test classes" in page
    assert "all are finished" in page
    assert "failed" not in capsys.readouterr().out


def test_a_comparison_works_without_validation_and_needs_test_classes(
    keep_splits, tiny_comparison, folder, capsys, no_page
):
    keep_splits("train", "val")
    words = [*tiny_comparison, "--output", str(folder)]
    assert main(words) == 1
    assert re.search("no test classes.*data prepare", capsys.readouterr().err)
    assert not folder.exists()
    keep_splits("train", "test")
    assert main(words) == 0


def test_a_sweep_works_without_test_classes_and_needs_validation(
    keep_splits, tiny_words, folder, capsys, no_page
):
    pytest.importorskip("optuna")
    words = ["sweep", *tiny_words, "--tau", "0.3", "0.5", "--workers", "1"]
    words += ["--output", str(folder)]
    keep_splits("train", "test")
    assert main(words) == 1
    assert re.search("no val classes.*data prepare", capsys.readouterr().err)
    assert not folder.exists()
    keep_splits("train", "val")
    assert main(words) == 0
    assert "The dataset has no test classes" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_split_of_one_class_says_so(tiny, tiny_run, folder, tmp_path, monkeypatch, capsys, split):
    splits = {name: load(tiny, name) for name in ("train", "val", "test")}
    whole = splits[split]
    splits[split] = type(whole)(
        dataset=tiny,
        split=split,
        images=whole.images[:16],
        class_names=whole.class_names[:1],
        class_starts=whole.class_starts[:2],
    )
    write_cache(tmp_path / "cache" / tiny, splits, source="made for the tests")
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path / "cache"))
    assert main([*tiny_run, "--output", str(folder)]) == 1
    said = capsys.readouterr().err
    assert f"tiny ({split}) has one class" in said
    assert "between 2 and 1" not in said
    assert not folder.exists()
