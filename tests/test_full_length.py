"""The script that makes the runs of the paper's length that are still to be made."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from adaptask.experiments.evaluate_command import evaluate_run
from adaptask.experiments.paper.reproduction import plan

SETTINGS = {
    1: ("table-cifar", "protonet", 1),
    2: ("table-cifar", "metaoptnet-svm", 5),
    3: ("table-compat", "maml++", 1),
    4: ("table-compat", "maml++", 5),
    5: ("table-cifar", "protonet", 5),
    6: ("table-cifar", "metaoptnet-ridge", 5),
}


@pytest.fixture(scope="module")
def script(benchmark_script):
    return benchmark_script("full_length")


@pytest.fixture
def call(script, monkeypatch, tmp_path):
    """Calls the script as if nothing were recorded; returns the lines of its output."""
    monkeypatch.setattr(script, "FULL_LENGTH", tmp_path / "records.csv")

    def run(*words, output="new.csv"):
        place = tmp_path / output
        options = ["--folder", tmp_path / "runs", "--output", place, *words]
        monkeypatch.setattr("sys.argv", ["full_length.py", *map(str, options)])
        script.main()
        return script.read_rows(place)

    return run


@pytest.fixture
def made(script, monkeypatch):
    """Names of the runs that were begun; nothing is trained."""
    names = []

    def make(planned, arguments):
        names.append(planned.name)
        columns = ("learner", "backbone", "shots", "sampler", "seed")
        return [dict(zip(columns, key, strict=True)) for key in planned.keys]

    monkeypatch.setattr(script, "make", make)
    return names


@pytest.mark.parametrize("number", SETTINGS)
def test_runs_are_configured_as_reproduce_does(script, number):
    target, learner, shots = SETTINGS[number]
    planned = plan(target, dataset="cifar-fs", rows=[learner], shots=[shots])
    theirs = {
        (t.config.sampler.name, s): replace(t.config, seed=s)
        for t in planned.trials
        for s in (0, 3)
    }
    ours = script.plan_row(script.ROWS[number], ["uniform", "gcp"], [0, 3])
    assert {(p.config.sampler.name, p.config.seed): p.config for p in ours} == theirs
    (neighbor,) = script.plan_row(script.ROWS[number], ["neighbor"], [3])
    assert replace(neighbor.config, sampler=ours[-1].config.sampler) == ours[-1].config


def test_one_training_is_tested_with_both_shots(script, call, tiny, tmp_path):
    words = ("--row", 2, "--seeds", 1, "--samplers", "gcp", "--dataset", tiny, "--quick")
    first, second = call(*words, "--code", "abc")
    assert [(row["shots"], row["validated_shots"]) for row in (first, second)] == [
        ("5", "5"),
        ("1", "5"),
    ]
    (folder,) = (tmp_path / "runs").iterdir()
    test = json.loads((folder / "test.json").read_text())
    assert float(first["accuracy"]) == pytest.approx(100 * np.mean(test["accuracies"]), abs=1e-4)
    (again,) = map(json.loads, (folder / "evaluations.jsonl").read_text().splitlines())
    assert again["n_shot"] == 1
    assert float(second["accuracy"]) == pytest.approx(100 * again["accuracy"], abs=1e-4)
    shared = ("best_step", "validation", "train_loss", "kl", "sampler", "seed")
    assert all(first[name] == second[name] for name in shared)
    assert (first["sampler"], first["seed"], first["code"]) == ("gcp", "1", "abc")
    assert not list(folder.glob("*.pt"))
    assert call(*words) == [first, second], "what is recorded is not made again"


def test_the_second_test_is_on_the_tasks_of_the_first(script, tiny, tmp_path):
    (planned,) = script.plan_row(script.ROWS[1], ["uniform"], [0], dataset=tiny, quick=True)
    script.finish(script.run_steps(planned.config, tmp_path, display=script.Progress("run")))
    again = evaluate_run(tmp_path, n_shot=1)
    assert again.accuracies.tolist() == script.read_test(tmp_path)["accuracies"]


def test_what_is_in_either_file_of_records_is_not_made_again(call, made):
    for seed, output in enumerate(("records.csv", "new.csv")):
        call("--row", 1, "--seeds", seed, "--samplers", "gcp", output=output)
    made.clear()
    call("--row", 1)
    runs = [("uniform", 0), ("uniform", 1), ("uniform", 2), ("gcp", 2)]
    runs += [("uniform", 3), ("gcp", 3), ("uniform", 4), ("gcp", 4)]
    assert made == [f"protonet-resnet12-1shot-{sampler}-seed{seed}" for sampler, seed in runs]


def test_the_parts_of_a_pair_are_made_by_two_processes(call, made):
    for part, sampler in (("1/2", "uniform"), ("2/2", "gcp")):
        made.clear()
        call("--row", 3, "--part", part)
        assert made == [f"maml++-conv4-1shot-{sampler}-seed{seed}" for seed in (0, 1, 2)]


def test_no_run_begins_that_cannot_end_in_time(script, call, made, monkeypatch):
    clock = iter(range(0, 10_000, 100))  # every look takes 100 s, a run 200 s
    monkeypatch.setattr(script, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    call("--row", 3, "--minutes", 10)
    assert len(made) == 2
    call("--row", 3, "--minutes", 0)
    assert len(made) == 3, "the first begins in any case"


def test_lines_of_another_file_are_joined_once(call, made, tmp_path):
    new = call("--row", 5, "--seeds", 0, output="elsewhere.csv")
    assert len(new) == 2
    call("--row", 5, "--seeds", 0, "--samplers", "uniform")
    for _ in range(2):
        joined = call("--add", tmp_path / "elsewhere.csv")
    assert [row["sampler"] for row in joined] == ["uniform", "gcp"]


def test_a_trial_does_not_end_in_the_records(script, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["full_length.py", "--quick"])
    with pytest.raises(SystemExit):
        script.main()
    assert "another --output" in capsys.readouterr().err
