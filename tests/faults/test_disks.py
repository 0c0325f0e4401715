"""Disks that are full or cannot be written: said in an error of ours, and nothing is lost."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from adaptask.cli import main
from adaptask.errors import TrainingError
from adaptask.report.report import make_report
from adaptask.report.run import Run
from adaptask.training.checkpoints import load_checkpoint

IS_ROOT = sys.platform == "linux" and os.geteuid() == 0
pytestmark = pytest.mark.skipif(not IS_ROOT, reason="mounting a file system needs root on Linux")


@pytest.fixture
def disk(tmp_path):
    """A file system of a megabyte: it can be filled, emptied and made read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    ballast = folder / "ballast"

    def fill(n_free):
        """Leave so many bytes free, in whole pages."""
        ballast.unlink(missing_ok=True)
        status = os.statvfs(folder)
        ballast.write_bytes(bytes(max(0, status.f_bavail * status.f_frsize - n_free)))

    def remount(how):
        subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)

    yield SimpleNamespace(folder=folder, fill=fill, remount=remount, empty=ballast.unlink)
    subprocess.run(["umount", "-l", str(folder)], check=True)


def result(run):
    return json.loads((run / "test.json").read_text())


def weights(run):
    state = load_checkpoint(run / "last.pt")["trainer"]["learner"]
    return {name: value.tolist() for name, value in state.items()}


@pytest.mark.parametrize("n_free", [0, 8192, 40_000, 110_000])
def test_a_run_on_a_full_disk_says_so_and_goes_on_when_there_is_room(
    tiny_run, tmp_path, disk, capsys, n_free
):
    alone, run = tmp_path / "alone", disk.folder / "run"
    assert main([*tiny_run, "--output", str(alone), "--quiet"]) == 0
    disk.fill(n_free)
    assert main([*tiny_run, "--output", str(run), "--quiet"]) == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert "free some space" in said
    disk.empty()
    again = ["train", "--resume", str(run)] if (run / "config.toml").exists() else None
    assert main([*(again or [*tiny_run, "--output", str(run)]), "--quiet"]) == 0
    assert result(run) == result(alone)
    assert weights(run) == weights(alone)
    assert not list(run.rglob("*.tmp"))


def test_a_report_on_a_full_disk_leaves_the_one_before(left_behind, disk, monkeypatch):
    monkeypatch.setattr("adaptask.report.report.write_report", write_page)
    study = disk.folder / "study"
    for path in left_behind.study.rglob("*"):
        if path.is_file() and path.suffix != ".pt":
            target = study / path.relative_to(left_behind.study)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    make_report(study)
    before = (study / "report.html").read_bytes()
    disk.fill(0)
    with pytest.raises(TrainingError, match="No space left on device"):
        make_report(study)
    assert (study / "report.html").read_bytes() == before


def write_page(folder, summary, *_):
    """In place of the page with its plots, which takes seconds: a file written as that one is."""
    from adaptask.atomic_file import replace_file

    replace_file(folder / "report.html", summary.study.title.encode() * 1000)
    return folder / "report.html"


def test_a_comparison_on_a_full_disk_says_so_and_goes_on(
    tiny_comparison, tmp_path, disk, capsys, monkeypatch
):
    monkeypatch.setattr("adaptask.report.report.write_report", write_page)
    alone, study = tmp_path / "alone", disk.folder / "study"
    assert main([*tiny_comparison, "--output", str(alone)]) == 0
    disk.fill(250_000)
    assert main([*tiny_comparison, "--output", str(study)]) == 1
    assert "No space left on device" in capsys.readouterr().err
    disk.empty()
    assert main([*tiny_comparison, "--output", str(study)]) == 0
    found = sorted(study.rglob("test.json"))
    assert len(found) == 4
    for path in found:
        assert path.read_bytes() == (alone / path.relative_to(study)).read_bytes()


def test_a_folder_that_cannot_be_written_is_named(tiny_run, left_behind, disk, tmp_path, capsys):
    run = disk.folder / "run"
    shutil.copytree(left_behind.run, run)
    disk.remount("ro")
    for command in (
        [*tiny_run, "--output", str(disk.folder / "new")],
        ["train", "--resume", str(run), "--steps", "9"],
    ):
        assert main([*command, "--quiet"]) == 1
        said = capsys.readouterr().err
        assert f"could not write {disk.folder}" in said
        assert "Read-only file system" in said
        assert "Traceback" not in said


def test_what_only_reads_needs_no_disk_that_can_be_written(
    left_behind, tiny_run, disk, tmp_path, capsys, monkeypatch
):
    run = disk.folder / "run"
    shutil.copytree(left_behind.run, run)
    shutil.copytree(left_behind.cache, disk.folder / "tiny")
    disk.remount("ro")
    monkeypatch.setenv("ADAPTASK_CACHE", str(disk.folder))
    assert Run(run).test is not None
    assert main(["evaluate", str(run), "--n-episodes", "4", "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert "4 episodes" in said.out
    assert "could not write" in said.err
    assert main(["watch", str(run), "--once"]) == 0
    assert main([*tiny_run, "--steps", "2", "--output", str(tmp_path / "new"), "--quiet"]) == 0
