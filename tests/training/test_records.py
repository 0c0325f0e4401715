"""What a run writes down, and what becomes of it when the run is resumed."""

import errno
import json
import math
import os
import platform
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from adaptask.errors import StateError, TrainingError
from adaptask.report.run import read_metrics, read_snapshots
from adaptask.samplers import build_sampler
from adaptask.training import run_folder
from adaptask.training.loggers import MetricsLog
from adaptask.training.run_folder import Snapshots, environment, record_environment


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_records_are_lines_of_strict_json(path):
    log = MetricsLog(path)
    log.log(10, "train", {"loss": 1.25, "accuracy": np.float32(0.5), "tasks": 4})
    log.log(10, "val", {"accuracy": torch.tensor(0.25), "loss": math.nan, "rate": -math.inf})
    text = path.read_text()
    assert text.endswith("}\n")
    assert "NaN" not in text
    assert "Infinity" not in text
    assert read_metrics(path) == [
        {"step": 10, "split": "train", "loss": 1.25, "accuracy": 0.5, "tasks": 4},
        {"step": 10, "split": "val", "accuracy": 0.25, "loss": None, "rate": None},
    ]


def test_a_line_is_with_the_system_as_soon_as_it_is_logged(path):
    log = MetricsLog(path)
    for step in range(3):
        log.log(step, "train", {"loss": 1})
        assert len(read_metrics(path)) == step + 1
        assert log.size == path.stat().st_size


def test_lines_after_the_checkpoint_vanish_on_resume(path):
    log = MetricsLog(path)
    log.log(1, "train", {"loss": 1})
    size = log.size
    log.log(2, "train", {"loss": 2})
    resumed = MetricsLog(path)
    assert resumed.truncate(size) == 0
    assert resumed.size == size
    resumed.log(2, "train", {"loss": 3})
    assert [record["loss"] for record in read_metrics(path)] == [1, 3]


def test_a_torn_last_line_is_left_out_and_cut_off_at_the_next_opening(path):
    log = MetricsLog(path)
    log.log(1, "train", {"loss": 1})
    whole = log.size
    log.log(2, "train", {"loss": 2})
    for size in range(whole, path.stat().st_size):
        os.truncate(path, size)
        assert [record["step"] for record in read_metrics(path)] == [1]
        log = MetricsLog(path)
        assert log.size == whole
        log.log(2, "train", {"loss": 2})
        assert [record["step"] for record in read_metrics(path)] == [1, 2]


def test_a_file_that_lost_lines_is_used_as_it_is_and_says_how_many_bytes_are_missing(path):
    log = MetricsLog(path)
    log.log(1, "train", {"loss": 1})
    first = log.size
    log.log(2, "train", {"loss": 2})
    both = log.size
    os.truncate(path, first + 5)
    log = MetricsLog(path)
    assert log.truncate(both) == both - first
    assert log.size == first


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on the size of files")
def test_a_full_disk_leaves_whole_lines(path):
    code = (
        "import resource, signal, sys\nfrom pathlib import Path\n"
        "from adaptask.errors import TrainingError\n"
        "from adaptask.training.loggers import MetricsLog\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        "log = MetricsLog(Path(sys.argv[1]))\n"
        "try:\n    for step in range(100): log.log(step, 'train', {'loss': 1.5})\n"
        "except TrainingError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert "could not write" in done.stdout
    assert "File too large" in done.stdout
    content = path.read_bytes()
    assert 900 < len(content) <= 1000
    assert content.endswith(b"}\n")
    assert [record["step"] for record in read_metrics(path)] == list(range(content.count(b"\n")))


def test_files_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(TrainingError, match=r"could not write .*gone/metrics.jsonl"):
        MetricsLog(tmp_path / "gone" / "metrics.jsonl").log(1, "train", {})
    with pytest.raises(StateError, match=r"there is no file .*none.jsonl"):
        read_metrics(tmp_path / "none.jsonl")
    path = tmp_path / "bad.jsonl"
    for line in ("{nonsense", "[1]", '{"step": 1}'):
        path.write_text('{"step": 1, "split": "val"}\n' + line + "\n")
        with pytest.raises(StateError, match=rf"bad.jsonl is damaged: line 2 .*{re.escape(line)}"):
            read_metrics(path)


def test_the_environment_says_what_a_run_was_made_with_and_not_where(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = environment()
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__
    assert found["cpu_count"] == os.cpu_count()
    assert len(found["devices"]) == torch.cuda.device_count()
    assert found["git"] is None
    assert json.loads(json.dumps(found)) == found
    assert platform.node() not in json.dumps(found) or len(platform.node()) < 4
    assert str(tmp_path) not in json.dumps(found)


def test_the_revision_is_that_of_the_working_directory(tmp_path, monkeypatch):
    def git(*arguments):
        settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *settings, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init")
    (tmp_path / "code.py").write_text("1")
    git("add", "code.py")
    git("commit", "-m", "first")
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    expected = {"revision": git("rev-parse", "HEAD"), "dirty": False}
    assert environment()["git"] == expected
    (tmp_path / "runs.txt").write_text("not tracked")
    assert environment()["git"] == expected
    (tmp_path / "code.py").write_text("2")
    assert environment()["git"] == expected | {"dirty": True}


@pytest.mark.parametrize("failure", [RuntimeError("driver"), UserWarning("old driver")])
def test_the_environment_never_fails(monkeypatch, failure, tmp_path):
    def fail(*arguments, **settings):
        raise failure

    monkeypatch.setattr(torch.cuda, "device_count", fail)
    monkeypatch.setattr(torch.backends.cudnn, "version", fail)
    monkeypatch.setattr(subprocess, "run", fail)
    found = environment()
    assert (found["devices"], found["cudnn"], found["git"]) == ([], None, None)


def test_environments_are_listed_as_they_change(tmp_path, monkeypatch):
    path = tmp_path / "environment.json"
    here = environment() | {"device": None}
    record_environment(path)
    record_environment(path, step=50)
    assert json.loads(path.read_text()) == [{"step": 0} | here]
    other = here | {"torch": "9.9"}
    monkeypatch.setattr(run_folder, "environment", lambda: other)
    record_environment(path, step=80)
    assert json.loads(path.read_text()) == [{"step": 0} | here, {"step": 80} | other]
    path.write_text("[{")
    record_environment(path, step=90)
    assert json.loads(path.read_text()) == [{"step": 90} | other]


@pytest.mark.parametrize(
    ("name", "attribute"),
    [("gcp", "log_potentials"), ("cp", "log_potentials"), ("c", "log_weights")],
)
def test_snapshots_are_read_as_they_were_taken(tmp_path, name, attribute):
    sampler = build_sampler(name, n_classes=6, n_way=3).double()
    snapshots, truth = Snapshots(tmp_path / "potentials"), []
    counts = torch.zeros(6, dtype=torch.int64)
    labels = torch.arange(3).repeat_interleave(2)
    for step in (0, 500, 12_000_000):
        snapshots.save(step, sampler, counts)
        assert (snapshots.folder / f"step-{step:07d}.npz").exists()
        truth.append((getattr(sampler, attribute).float().numpy().copy(), counts.numpy().copy()))
        counts += torch.arange(6)
        sampler.update(sampler.sample(2), torch.rand(2, 6, 3).softmax(-1), labels)
    found = read_snapshots(tmp_path / "potentials")
    assert [snapshot.step for snapshot in found] == [0, 500, 12_000_000]
    for snapshot, (distribution, class_counts) in zip(found, truth, strict=True):
        assert snapshot.distribution.dtype == np.float32
        np.testing.assert_array_equal(snapshot.distribution, distribution)
        np.testing.assert_array_equal(snapshot.class_counts, class_counts)
    assert not np.array_equal(found[0].distribution, found[1].distribution)


def test_of_a_sampler_that_learns_nothing_only_the_counts_are_kept(tmp_path):
    sampler, snapshots = build_sampler("uniform", n_classes=6, n_way=3), Snapshots(tmp_path / "s")
    snapshots.save(5, sampler)
    assert list(tmp_path.iterdir()) == []
    assert read_snapshots(snapshots.folder) == []
    snapshots.save(5, sampler, torch.arange(6))
    (snapshot,) = read_snapshots(snapshots.folder)
    assert snapshot.distribution is None
    assert snapshot.class_counts.tolist() == [0, 1, 2, 3, 4, 5]


def test_snapshots_after_the_checkpoint_are_removed_on_resume(tmp_path):
    sampler, snapshots = build_sampler("gcp", n_classes=6, n_way=3), Snapshots(tmp_path)
    for step in (0, 100, 200, 300):
        snapshots.save(step, sampler)
    (tmp_path / "step-notes.npz").write_text("somebody else's")
    snapshots.discard_after(200)
    assert [s.step for s in read_snapshots(tmp_path)] == [0, 100, 200]
    assert (tmp_path / "step-notes.npz").exists()
    Snapshots(tmp_path / "none").discard_after(0)


def test_a_damaged_snapshot_is_named(tmp_path):
    Snapshots(tmp_path).save(7, build_sampler("gcp", n_classes=6, n_way=3))
    path = tmp_path / "step-0000007.npz"
    for content in (path.read_bytes()[:-3], b"", b"text"):
        path.write_bytes(content)
        with pytest.raises(StateError, match=r"step-0000007.npz is damaged"):
            read_snapshots(tmp_path)


def test_a_snapshot_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    sampler = build_sampler("gcp", n_classes=6, n_way=3)
    with pytest.raises(TrainingError, match=r"step-0000007.npz: No space left.*free some space"):
        Snapshots(tmp_path).save(7, sampler)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="could not write"):
        Snapshots(tmp_path / "file").save(7, sampler)
