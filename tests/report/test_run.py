"""Runs are read back as they were written, and damage is told from absence."""

import json
import pickle
import random

import numpy as np
import pytest

from adaptask.errors import StateError
from adaptask.report.run import (
    Algorithm,
    Run,
    read_metrics,
    read_preview,
    read_settings,
    read_snapshots,
    read_test,
)


@pytest.fixture
def run(tmp_path, write_run):
    return write_run(tmp_path / "run", seed=3, accuracy=0.5, sampler="gcp", arrays=True)


def test_a_finished_run_is_read_back(run):
    record = Run(run)
    assert record.is_finished
    assert (record.settings["seed"], record.n_steps, record.steps_done) == (3, 1000, 1000)
    assert record.is_readable
    assert record.settings["sampler"]["name"] == "gcp"
    assert record.test.accuracies.shape == (200,)
    assert record.test.accuracies.mean() == pytest.approx(0.5)
    assert record.failure is None
    assert record.environment[0]["torch"] == "2.13.0"
    snapshots = read_snapshots(run / "snapshots")
    assert [snapshot.step for snapshot in snapshots] == [500, 1000]
    assert snapshots[1].class_counts.tolist() == [i * 1000 for i in range(8)]
    assert snapshots[0].distribution[0, 0] == -np.inf
    assert record.last_snapshot.step == 1000
    assert record.preview.class_names[7] == "class 7"
    assert record.preview.images.shape == (8, 2, 8, 8, 1)


def test_a_folder_without_a_run_has_nothing_and_says_no_more(tmp_path):
    record = Run(tmp_path / "nowhere")
    assert not record.is_finished
    assert not record.is_readable
    assert (record.metrics, record.last_snapshot, record.environment) == ([], None, [])
    assert (record.test, record.failure, record.preview, record.seconds_per_step) == (None,) * 4
    assert record.steps_done == 0
    assert record.curve("train", "loss")[0].shape == (0,)
    assert (record.settings, record.damage) == ({}, {})
    with pytest.raises(StateError, match=r"there is no file .*config\.toml"):
        read_settings(record.path / "config.toml")


def test_the_time_of_a_step_leaves_out_what_is_done_once(run):
    # The first record is a second late; all steps take 10 ms.
    assert Run(run).seconds_per_step == pytest.approx(0.01)


def write_seconds(run, points):
    lines = [json.dumps({"step": s, "split": "train", "seconds": t}) + "\n" for s, t in points]
    (run / "metrics.jsonl").write_text("".join(lines))
    return Run(run).seconds_per_step


def test_the_time_of_a_step_is_a_median_over_records_of_any_length(run):
    # 0.2, 0.1 and 0.9 a step after the first record; a break of the machine does not count.
    assert write_seconds(run, [(10, 50), (20, 52), (60, 56), (70, 65)]) == pytest.approx(0.2)


def test_a_single_record_has_to_do(run):
    assert write_seconds(run, [(10, 5.0)]) == pytest.approx(0.5)


def test_records_without_a_time_are_no_records_of_time(run):
    assert write_seconds(run, [(10, None), (20, None)]) is None
    assert write_seconds(run, [(10, 1.0), (20, None), (30, 5.0)]) == pytest.approx(0.2)
    # A clock that stands still, or a step that is repeated, has no pace.
    assert write_seconds(run, [(10, 1.0), (10, 2.0), (20, 2.0)]) == pytest.approx(0.1)


def test_a_curve_has_the_numbers_of_one_split(run):
    (run / "metrics.jsonl").write_text(
        '{"step": 1, "split": "train", "loss": 2}\n'
        '{"step": 2, "split": "val", "loss": 9.0}\n'
        '{"step": 3, "split": "train", "loss": null}\n'
        '{"step": 4, "split": "train", "loss": 1.5}\n'
    )
    steps, values = Run(run).curve("train", "loss")
    assert steps.tolist() == [1, 4]
    assert values.tolist() == [2, 1.5]


def test_a_run_made_in_python_says_what_it_knows(tmp_path):
    known = {"steps": 30, "task": {"n_way": 3}, "sampler": {"name": "Mine"}}
    (tmp_path / "run.json").write_text(json.dumps(known))
    record = Run(tmp_path)
    assert record.is_readable
    assert (record.n_steps, record.settings) == (30, known)
    (tmp_path / "run.json").write_text("{")
    assert not Run(tmp_path).is_readable


def test_algorithms_are_described_by_the_folder_or_else_by_their_names(run):
    found = Run(run).algorithms
    assert [found[kind].name for kind in ("sampler", "learner", "backbone")] == [
        *("gcp", "protonet", "conv4"),
    ]
    assert found["sampler"].learns
    described = {"name": "no_such.module:Mine", "description": "draws at will.", "learns": False}
    (run / "algorithms.json").write_text(json.dumps({"sampler": described}))
    found = Run(run).algorithms
    assert found["sampler"] == Algorithm("Mine", "draws at will", learns=False)
    assert found["learner"].name == "protonet"


@pytest.mark.parametrize("content", ["", "[]", '{"sampler": 3}', '{"sampler": {}}'])
def test_damaged_descriptions_of_algorithms_leave_the_names(run, content):
    (run / "algorithms.json").write_text(content)
    record = Run(run)
    assert record.algorithms["sampler"].name == "gcp"
    assert "algorithms.json is damaged" in record.damage["algorithms.json"]


def test_a_torn_last_line_is_left_out(run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1050, "spl')
    assert Run(run).steps_done == 1000


@pytest.mark.parametrize(
    "line", ["{", "[]", "{}", '{"step": 1}', '{"step": "1", "split": "train"}', "\x00\x00"]
)
def test_another_bad_line_is_named(run, line):
    path = run / "metrics.jsonl"
    path.write_text('{"step": 1, "split": "train"}\n' + line + "\n")
    with pytest.raises(StateError, match=r"metrics\.jsonl is damaged: line 2 is not a record"):
        read_metrics(path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"accuracies": [], "loss": 1.0, "steps": [1]}',
        '{"accuracies": 0.5, "loss": 1.0, "steps": [1]}',
        '{"accuracies": [[0.5]], "loss": 1.0, "steps": [1]}',
        '{"accuracies": [0.5, NaN], "loss": 1.0, "steps": [1]}',
        '{"accuracies": [50.0], "loss": 1.0, "steps": [1]}',
        '{"accuracies": [0.5, "x"], "loss": 1.0, "steps": [1]}',
        '{"accuracies": [0.5, null], "loss": 1.0, "steps": [1]}',
    ],
)
def test_a_damaged_test_result_is_no_result(run, content):
    (run / "test.json").write_text(content)
    with pytest.raises(StateError, match=r"test\.json is damaged: .*Remove it and resume"):
        read_test(run / "test.json")
    record = Run(run)
    assert (record.test, record.is_finished) == (None, True)
    assert "test.json is damaged" in record.damage["test.json"]


@pytest.mark.parametrize("content", [b"seed = ", b"\xff\xfe", b'seed = "x"', b"seed = 1.5"])
def test_a_damaged_configuration_is_named(run, content):
    (run / "config.toml").write_bytes(content)
    with pytest.raises(StateError, match=r"config\.toml"):
        read_settings(run / "config.toml")
    record = Run(run)
    assert not record.is_readable
    assert record.settings == {}
    assert "config.toml" in record.damage["config.toml"]


@pytest.mark.parametrize("content", ["", "{", "{}", "3", "[1, null]"])
def test_a_damaged_environment_is_not_known(run, content):
    (run / "environment.json").write_text(content)
    assert Run(run).environment == []


def test_a_failure_is_read_whatever_its_bytes(run):
    (run / "failure.txt").write_bytes(b"no room on \xff\n")
    assert Run(run).failure == "no room on \ufffd"


def damaged(content, generator):
    """Some bytes changed, or the end cut off."""
    changed = bytearray(content)
    for _ in range(generator.randint(1, 3)):
        changed[generator.randrange(len(changed))] = generator.randrange(256)
    return (
        bytes(changed[: generator.randrange(len(changed))]) if generator.random() < 0.3 else changed
    )


@pytest.mark.parametrize("name", ["portrait.npz", "snapshots/step-0000500.npz"])
def test_damaged_arrays_raise_nothing_but_an_error_of_ours(run, name):
    path, generator = run / name, random.Random(0)
    whole, messages = path.read_bytes(), []
    for _ in range(300):
        path.write_bytes(damaged(whole, generator))
        try:
            read_preview(run / "portrait.npz")
            read_snapshots(run / "snapshots")
        except StateError as error:
            messages.append(str(error))
    assert len(messages) > 200
    assert all("is damaged" in message and "Remove it" in message for message in messages)


def test_arrays_that_do_not_fit_are_refused(run):
    parts = dict(np.load(run / "portrait.npz"))
    np.savez(run / "portrait.npz", **(parts | {"class_names": np.array(["a", "b"])}))
    with pytest.raises(StateError, match="do not fit 2 class names"):
        read_preview(run / "portrait.npz")


def test_what_is_no_archive_is_refused(run):
    for path in (run / "portrait.npz", run / "snapshots" / "step-0000500.npz"):
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    with pytest.raises(StateError, match="damaged"):
        read_preview(run / "portrait.npz")
    with pytest.raises(StateError, match="damaged"):
        read_snapshots(run / "snapshots")


def test_snapshots_come_in_order_of_steps_and_other_files_are_left_alone(run):
    folder = run / "snapshots"
    np.savez(folder / "step-12000000.npz", class_counts=np.ones(8, np.int64))
    (folder / "step-x.npz").write_text("no snapshot")
    found = read_snapshots(folder)
    assert [snapshot.step for snapshot in found] == [500, 1000, 12000000]
    assert found[2].distribution is None


def test_a_run_reads_each_file_once_and_can_be_sent_to_another_process(run):
    record = Run(run, 3, "a run")
    assert pickle.loads(pickle.dumps(record)) == record
    first = record.metrics
    (run / "metrics.jsonl").unlink()
    assert record.metrics is first
    assert Run(run).metrics == []
