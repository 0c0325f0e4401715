"""`adaptask evaluate`: the same episodes again, other tasks, another dataset."""

import json

import pytest
import torch

from adaptask import load_run
from adaptask.cli import main
from adaptask.data import load
from adaptask.data.cache import write_cache
from adaptask.data.images import ImageSet
from adaptask.experiments import evaluate_command
from adaptask.experiments.evaluate_command import evaluate_run
from adaptask.report.run import read_metrics


@pytest.fixture
def run(tiny_run, tmp_path):
    assert main([*tiny_run, "--output", str(tmp_path / "run"), "--quiet"]) == 0
    return tmp_path / "run"


def test_it_measures_what_training_did_at_its_end(run, capsys):
    assert main(["evaluate", str(run)]) == 0
    test = json.loads((run / "test.json").read_text())
    said = capsys.readouterr().out
    assert f"{100 * test['accuracy']:.2f}" in said
    assert "tiny (test), 3-way 1-shot, 6 episodes" in said
    assert evaluate_run(run).accuracies.tolist() == test["accuracies"]
    record = read_metrics(run / "evaluations.jsonl")[0]
    assert record["accuracy"] == test["accuracy"]
    assert record["split"] == "tiny/test"
    assert (record["n_way"], record["n_episodes"]) == (3, 6)


@pytest.mark.parametrize(
    ("tested_in", "pays", "expected"),
    [
        ("float32", True, "float32"),
        ("bfloat16", True, "bfloat16"),
        ("bfloat16", False, "float32"),
    ],
)
def test_it_computes_as_the_run_was_tested_where_that_pays(
    run, monkeypatch, tested_in, pays, expected
):
    text = (run / "config.toml").read_text()
    assert 'precision = "float32"' in text
    (run / "config.toml").write_text(text.replace('"float32"', f'"{tested_in}"'))
    monkeypatch.setattr(evaluate_command, "half_precision_pays", lambda device: pays)
    build, built = evaluate_command.build_evaluator, []
    monkeypatch.setattr(
        evaluate_command, "build_evaluator", lambda *args: built.append(build(*args)) or built[0]
    )
    evaluate_run(run)
    assert [evaluator.precision for evaluator in built] == [expected]


def test_other_tasks_are_measured_too(run, capsys):
    flags = "--n-way 5 --n-shot 3 --n-query 2 --n-episodes 9 --split val --seed 4 --weights last"
    assert main(["evaluate", str(run), *flags.split()]) == 0
    said = capsys.readouterr().out
    assert "tiny (val), 5-way 3-shot, 9 episodes" in said
    assert "Weights after step 12" in said
    seeds = [evaluate_run(run, seed=seed).accuracies.tolist() for seed in (4, 4, 5)]
    assert seeds[0] == seeds[1] != seeds[2]


def test_another_dataset_is_brought_to_the_shape_the_run_knows(run, tiny_cache, capsys):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (60, 3, 20, 20), generator=generator).to(torch.uint8)
    names = tuple("abcdef")
    splits = {
        split: ImageSet("colors", split, images, names, torch.arange(7) * 10)
        for split in ("train", "val", "test")
    }
    if not (tiny_cache / "colors").exists():
        write_cache(tiny_cache / "colors", splits, source="made for the test")
    assert main(["evaluate", str(run), "--dataset", "colors"]) == 0
    assert "colors (test), 3-way" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--n-way 9", "between 2 and 8"),
        ("--n-shot 12", "has 16 images"),
        ("--n-episodes 1", "n_episodes"),
        ("--n-way 0", "n_way"),
        ("--n-query 0", "n_query"),
        ("--seed -1", "seed"),
        ("--dataset nothing", "no dataset 'nothing'"),
    ],
)
def test_what_cannot_be_is_refused(run, capsys, flags, message):
    assert main(["evaluate", str(run), *flags.split()]) == 1
    assert message in capsys.readouterr().err
    assert not (run / "evaluations.jsonl").exists()


def test_a_way_that_was_asked_for_brings_no_hint_at_other_flags(run, capsys):
    assert main(["evaluate", str(run), "--n-way", "9"]) == 1
    assert "--evaluation" not in capsys.readouterr().err


def test_folders_without_weights_are_refused(run, tmp_path, capsys):
    assert main(["evaluate", str(tmp_path / "nothing")]) == 1
    assert "holds no run" in capsys.readouterr().err
    (run / "best.pt").unlink()
    assert main(["evaluate", str(run)]) == 1
    assert "--weights last" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--weights", "last"]) == 0


def test_a_result_that_cannot_be_recorded_is_printed_with_a_warning(run, capsys):
    (run / "evaluations.jsonl").mkdir()  # cannot be written, also by root
    assert main(["evaluate", str(run)]) == 0
    said = capsys.readouterr()
    assert "tiny (test), 3-way 1-shot, 6 episodes" in said.out
    assert said.err.startswith("adaptask: Warning: the result above could not be recorded: ")


def test_weights_of_another_architecture_are_refused(run, capsys):
    config = run / "config.toml"
    config.write_text(config.read_text().replace("filters = 4", "filters = 5"))
    assert main(["evaluate", str(run)]) == 1
    assert "another architecture" in capsys.readouterr().err


def test_a_run_on_smaller_images_is_tested_and_loaded_and_resumed_on_them(tiny_run, tmp_path):
    path = tmp_path / "run"
    words = [word.replace("backbone.filters", "backbone.hidden") for word in tiny_run]
    flags = ["--data.shrink", "2", "--backbone", "mlp"]
    assert main([*words, *flags, "--output", str(path), "--quiet"]) == 0
    assert "shrink = 2" in (path / "config.toml").read_text()
    test = json.loads((path / "test.json").read_text())
    assert evaluate_run(path).accuracies.tolist() == test["accuracies"]
    full = load("tiny", "train").image_shape
    small = load_run(path).learner.backbone.image_shape
    assert small == (full[0], full[1] // 2, full[2] // 2)
    assert main(["train", "--resume", str(path), "--steps", "14", "--quiet"]) == 0
    assert load_run(path).config.steps == 14
