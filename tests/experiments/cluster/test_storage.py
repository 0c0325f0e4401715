"""Runs kept in a storage: what a kill leaves there can be gone on from, whenever it comes."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from adaptask.errors import ArgumentError, TrainingError
from adaptask.experiments.backends.storage import StoredFolder
from adaptask.experiments.config_file import load_config
from adaptask.experiments.run import run_steps
from adaptask.report.run import Run
from adaptask.training.device_steps import finish
from adaptask.training.displays import Silent
from adaptask.training.run_folder import RunFolder


class CopyCheckpoints(Silent):
    """Copies every checkpoint to a storage."""

    def __init__(self, stored):
        self.stored = stored

    def advance(self, step, metrics=None):
        self.stored.push_checkpoint()


def make(config, url, path):
    """Make a run in a folder that is a copy of the storage's, as a worker does."""
    stored = StoredFolder(url, path)
    stored.fetch(with_checkpoints=True)
    finish(run_steps(config, path, display=CopyCheckpoints(stored)))
    stored.push_run()


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def records(folder):
    """The records of a run, but for times."""
    return [{k: v for k, v in r.items() if k != "seconds"} for r in Run(folder).metrics]


@pytest.fixture
def operations(tiny_config, tmp_path, monkeypatch):
    """All that a run of 12 steps, gone on with to 16, does to its storage; and both results."""
    done, results = [], {}
    upload, remove = StoredFolder.upload, StoredFolder.remove

    def log_upload(stored, name):
        done.append((name, (stored.path / name).read_bytes()))
        upload(stored, name)

    def log_remove(stored, name):
        done.append((name, None))
        remove(stored, name)

    monkeypatch.setattr(StoredFolder, "upload", log_upload)
    monkeypatch.setattr(StoredFolder, "remove", log_remove)
    url = f"file://{tmp_path}/storage"
    for steps in (12, 16):
        scratch = tmp_path / f"scratch-{steps}"
        make(replace(tiny_config, steps=steps), url, scratch)
        results[steps] = (scratch / "test.json").read_bytes(), records(scratch)
        local = contents(scratch)
        kept = {name for name in local if name not in ("lock", "previous.pt")}
        there = contents(tmp_path / "storage")
        assert there == {name: local[name] for name in kept}
    return done, results


def apply(operation, folder):
    name, content = operation
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def test_a_storage_can_be_gone_on_from_after_every_operation(operations, tiny_config, tmp_path):
    done, results = operations
    folder = tmp_path / "replayed"
    folder.mkdir()
    n_with_checkpoint, resumed = 0, []
    extended = done.index(("test.json", None))
    for number, operation in enumerate(done):
        apply(operation, folder)
        test = folder / "test.json"
        if test.exists():
            # It stands for a run that has ended, with as many steps as the configuration says.
            assert test.read_bytes() == results[load_config(folder / "config.toml").steps][0]
        saved = RunFolder(folder).load(pytest.fail)
        if saved is not None:
            n_with_checkpoint += 1
            assert (folder / "metrics.jsonl").stat().st_size >= saved.metrics_size
            due = [step for step in (5, 10, 15) if step <= saved.trainer["step"]]
            assert all((folder / f"snapshots/step-{step:07}.npz").exists() for step in due)
        if number == 0 or number % (len(done) // 6) == 3:
            again = tmp_path / f"again-{number}"
            shutil.copytree(folder, again)
            steps = 12 if number < extended else 16
            finish(run_steps(replace(tiny_config, steps=steps), again, display=Silent()))
            assert ((again / "test.json").read_bytes(), records(again)) == results[steps]
            resumed.append(number)
    assert n_with_checkpoint > 10
    assert len(resumed) >= 5
    assert results[12] != results[16]
    assert resumed[0] < extended < resumed[-1]


def test_a_file_that_is_cut_off_on_its_way_leaves_the_old_one(tmp_path, monkeypatch):
    source = tmp_path / "run/deep/down/file"
    source.parent.mkdir(parents=True)
    source.write_text("old")
    stored = StoredFolder(f"file://{tmp_path}/storage", tmp_path / "run")
    stored.upload("deep/down/file")
    source.write_text("new and longer")
    real = type(stored._files).put_file

    def half(files, local, remote, **kwargs):
        with open(remote, "w") as file:  # noqa: PTH123
            file.write("new a")
        raise ConnectionResetError("cut off")

    monkeypatch.setattr(type(stored._files), "put_file", half)
    with pytest.raises(TrainingError, match=r"could not write file://.*ConnectionResetError: cut"):
        stored.upload("deep/down/file")
    target = tmp_path / "storage" / "deep" / "down" / "file"
    assert target.read_text() == "old"
    assert stored.names() == ["deep/down/file"]  # what is unfinished does not count
    monkeypatch.setattr(type(stored._files), "put_file", real)
    stored.upload("deep/down/file")
    assert target.read_text() == "new and longer"
    stored.remove("deep/down/file")
    stored.remove("deep/down/file")
    assert stored.names() == []


def test_only_what_has_changed_is_copied(tmp_path, monkeypatch):
    local, copied = tmp_path / "run", []
    local.mkdir()
    upload = StoredFolder.upload
    monkeypatch.setattr(
        StoredFolder, "upload", lambda s, name: (copied.append(name), upload(s, name))
    )
    for name in (
        "test.json",
        "metrics.jsonl",
        "last.pt",
        "best.pt",
        "previous.pt",
        "lock",
        "a.tmp",
    ):
        (local / name).write_text(name)
    stored = StoredFolder(f"file://{tmp_path}/storage", local)
    stored.push_run()
    assert copied == ["best.pt", "metrics.jsonl", "last.pt", "test.json"]  # in this order
    copied.clear()
    stored.push_run()
    stored.push_checkpoint()
    assert copied == []
    (local / "metrics.jsonl").write_text("more of it")
    stored.push_checkpoint()
    assert copied == []  # it waits for the next checkpoint
    (local / "last.pt").write_text("another checkpoint")
    stored.push_checkpoint()
    assert copied == ["metrics.jsonl", "last.pt"]


def test_a_copy_without_checkpoints_is_that_of_the_storage(tmp_path):
    there, here = tmp_path / "storage", tmp_path / "run"
    for folder, names in (
        (there, ("config.toml", "metrics.jsonl", "last.pt", "best.pt")),
        (here, ("config.toml", "last.pt", "previous.pt", "failure.txt", "test.json")),
    ):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(f"{folder.name} {name}")
    StoredFolder(f"file://{there}", here).fetch()
    # Checkpoints of another time would not fit the records, nor would its result.
    names = ("config.toml", "metrics.jsonl", "best.pt")
    assert contents(here) == {name: f"storage {name}".encode() for name in names}
    StoredFolder(f"file://{tmp_path}/nothing", here).fetch()
    assert set(contents(here)) == set(names)


def test_a_study_is_handed_from_machine_to_machine(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    url = f"file://{tmp_path}/storage"
    files = {
        "study.json": "{}",
        "tables/results.csv": "1,2",
        "lock": "",
        "runs/a/seed-0/config.toml": "steps = 1",
        "runs/a/seed-0/last.pt": "weights",
        "runs/a/lock": "",
    }
    for name, text in files.items():
        (first / name).parent.mkdir(parents=True, exist_ok=True)
        (first / name).write_text(text)
    StoredFolder(url, first).push_study()
    StoredFolder(url, second).fetch()
    small = ("study.json", "tables/results.csv", "runs/a/seed-0/config.toml")
    assert contents(second) == {name: files[name].encode() for name in small}
    assert (tmp_path / "storage/runs/a/seed-0/last.pt").exists()
    # Where the storage has something of a run, that alone counts.
    (second / "runs/a/seed-0/test.json").write_text("of another time")
    (second / "study.json").write_text('{"a": 1}')
    StoredFolder(url, second).push_study()
    StoredFolder(url, first).fetch()
    assert (first / "study.json").read_text() == '{"a": 1}'
    assert not (first / "runs/a/seed-0/test.json").exists()
    # Trained further elsewhere: other steps, as many bytes.
    config = tmp_path / "storage/runs/a/seed-0/config.toml"
    config.write_text("x" * len(config.read_text()))
    StoredFolder(url, first).fetch()
    assert (first / "runs/a/seed-0/config.toml").read_text() == config.read_text()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("runs/study", "storage must be a URL .*--output"),
        ("nosuch://study", "cannot be used: .*nosuch"),
    ],
)
def test_what_is_no_storage_is_refused(url, message, tmp_path):
    with pytest.raises(ArgumentError, match=message):
        StoredFolder(url, tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_storage_that_cannot_be_written_says_so(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(TrainingError, match=r"could not write .*PermissionError"):
        StoredFolder(f"file://{tmp_path}/storage", tmp_path).upload("x")
    tmp_path.chmod(0o700)


def test_without_fsspec_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ArgumentError, match=r"pip install 'fsspec>=2024.6'"):
        StoredFolder("s3://bucket/study", tmp_path)


class Buckets(MemoryFileSystem):
    """Object stores as they are: a folder is nothing by itself, and buckets are made by hand."""

    protocol = ("s3", "s3a")
    store: ClassVar = {}
    buckets: ClassVar = set()

    def makedirs(self, path, exist_ok=False):
        self.buckets.add(bucket_of(path))

    def pipe_file(self, path, value, **kwargs):
        if bucket_of(path) not in self.buckets:
            raise FileNotFoundError("The specified bucket does not exist")
        super().pipe_file(path, value, **kwargs)

    def put_file(self, lpath, rpath, **kwargs):
        self.pipe_file(rpath, Path(lpath).read_bytes())


def bucket_of(path):
    return path.removeprefix("s3://").strip("/").split("/")[0]


@pytest.fixture
def buckets(monkeypatch):
    monkeypatch.setitem(_registry, "s3", Buckets)
    monkeypatch.setattr(Buckets, "buckets", {"there"})
    yield
    Buckets.store.clear()


def test_the_bucket_of_a_mistyped_url_is_not_made(buckets, tmp_path):
    url = "s3://their/study"
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(TrainingError, match=f"could not write {url}: .*not exist"):
        StoredFolder(url, tmp_path).push_study()
    assert Buckets.buckets == {"there"}
    assert not Buckets.store


@pytest.mark.parametrize("url", ["s3://there/study", "file://{}/not/yet/there"])
def test_objects_and_files_are_copied_there_and_back(buckets, tmp_path, url):
    here = tmp_path / "here"
    stored = StoredFolder(url.format(tmp_path), here)
    stored.fetch()
    assert stored.names() == []
    (here / "runs").mkdir(parents=True)
    (here / "runs/a").write_text("text")
    stored.push_study()
    assert stored.names() == ["runs/a"]
    (here / "runs/a").unlink()
    stored.fetch()
    assert (here / "runs/a").read_text() == "text"
