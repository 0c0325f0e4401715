import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch
from PIL import Image

from adaptask.data import cache, convert, datasets, prepare
from adaptask.data.convert import Converter, ImageFormat, worker_pool
from adaptask.data.datasets import Generated, load
from adaptask.data.layouts import ClassImages
from adaptask.errors import ArgumentError, DataError


@pytest.fixture
def source(tmp_path, write_images):
    """Random images of ten classes, thirty each."""
    return write_images(tmp_path / "source", n_classes=10, n_images=30)


def everything(name):
    return torch.cat([load(name, split).images for split in ("train", "val", "test")])


def test_processes_give_the_same_cache_as_none(source, cache_home):
    prepare.prepare_folder(source, name="alone", image_size=8, workers=1)
    prepare.prepare_folder(source, name="together", image_size=8, workers=2)
    assert torch.equal(everything("alone"), everything("together"))


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_ends_at_all_images(source, cache_home, workers):
    seen = []
    done = prepare.prepare_folder(
        source, image_size=8, workers=workers, progress=lambda *numbers: seen.append(numbers)
    )
    assert [n for n, _ in seen] == sorted(n for n, _ in seen)
    assert seen[-1] == (300, 300)
    assert sum(done.n_images.values()) == 300
    assert done.seconds > 0


def test_faults_found_by_workers_are_named(source, cache_home):
    for folder in source.iterdir():
        (folder / "05.png").write_bytes(b"no image")
    with pytest.raises(DataError) as caught:
        prepare.prepare_folder(source, image_size=8, workers=2)
    assert str(caught.value).count("05.png cannot be read as an image") == 10
    assert list(cache_home.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(source, cache_home, monkeypatch):
    prepare.prepare_folder(source, name="first", image_size=8)
    before = everything("first").clone()
    real_fsync = os.fsync

    def fail_on_the_second(descriptor, calls=[]):  # noqa: B006
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real_fsync(descriptor)

    monkeypatch.setattr(cache.os, "fsync", fail_on_the_second)
    with pytest.raises(DataError, match=r"No space left on device.*ADAPTASK_CACHE"):
        prepare.prepare_folder(source, name="first", image_size=8, seed=1)
    assert torch.equal(everything("first"), before)
    assert [path.name for path in cache_home.iterdir()] == ["first"]


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="mounting a small file system needs root on Linux",
)
def test_a_file_system_that_is_really_full_gives_a_clear_error(source, tmp_path, monkeypatch):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        monkeypatch.setenv("ADAPTASK_CACHE", str(small))
        # Past the check that there is room: the disk fills while the images are written.
        monkeypatch.setattr(cache, "_check_space", lambda *_: None)
        with pytest.raises(DataError, match=r"No space left on device\. Nothing was changed"):
            prepare.prepare_folder(source, image_size=32)
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


SCRIPT = textwrap.dedent(
    """
    import multiprocessing, sys, time
    from pathlib import Path
    from adaptask.data.prepare import prepare_folder

    def progress(done, n_images):
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        time.sleep(60)

    if __name__ == "__main__":
        prepare_folder(Path(sys.argv[1]), image_size=8, workers=2, progress=progress)
    """
)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
def test_a_killed_preparation_leaves_no_cache_and_no_processes(tmp_path, source, cache_home):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        workers = [int(pid) for pid in process.stdout.readline().split()]
        process.send_signal(signal.SIGKILL)
    assert workers
    with pytest.raises(DataError, match="has not been prepared"):
        load("folder", "train")
    deadline = time.monotonic() + 10
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, workers))
    prepare.prepare_folder(source, image_size=8)
    assert [path.name for path in cache_home.iterdir()] == ["folder"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows interrupts in another way")
def test_an_interrupted_preparation_cleans_up_after_itself(tmp_path, source, cache_home):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(source)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        process.stdout.readline()
        # As the terminal does it: to the workers too.
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode != 0
    assert "KeyboardInterrupt" in said
    assert list(cache_home.iterdir()) == []


def test_a_worker_that_dies_is_explained():
    with pytest.raises(DataError, match="a worker process ended unexpectedly"), worker_pool(1, 2):
        raise BrokenProcessPool


def test_small_sources_start_no_processes():
    with worker_pool(convert._WORTH_PROCESSES - 1, None) as pool:
        assert pool is None
    with worker_pool(10**6, 1) as pool:
        assert pool is None


def test_decoding_never_runs_far_ahead_of_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "n_cores", lambda: 2)

    class CountingPool:
        n_submitted = 0

        def submit(self, function, *arguments):
            self.n_submitted += 1
            result = function(*arguments)
            return type("Done", (), {"result": lambda _: result})()

    Image.new("L", (4, 4)).save(tmp_path / "x.png")
    images = ClassImages("a", [tmp_path / "x.png"] * 256 * 12, "here")
    pool = CountingPool()
    converter = Converter(ImageFormat(1, 4, 4), pool)
    pieces = converter.convert([images])
    next(pieces)
    assert pool.n_submitted == 7
    assert sum(len(piece) for piece in pieces) == 256 * 11


def test_unknown_and_generated_datasets_cannot_be_prepared(tmp_path, cache_home, monkeypatch):
    with pytest.raises(ArgumentError, match="workers must be at least 1; got -3"):
        prepare.prepare("cub", tmp_path, workers=-3)
    with pytest.raises(ArgumentError, match="no benchmark 'imagenet'; there are glyphs, turned-"):
        prepare.prepare("imagenet", tmp_path)
    monkeypatch.setitem(datasets.DATASETS, "toy", Generated("toy", "a toy", dict))
    with pytest.raises(ArgumentError, match=f"needs no.* if {cache_home}/toy has been removed"):
        prepare.prepare("toy", tmp_path)


def test_a_benchmark_is_checked_against_its_true_counts(tmp_path, cache_home):
    for split, names in datasets.DATASETS["cub"].classes.items():
        for name in names:
            (tmp_path / "images" / name).mkdir(parents=True)
            Image.new("L", (4, 4)).save(tmp_path / "images" / name / f"{split}.png")
    with pytest.raises(DataError, match=r"must have 41 to 60 images, has 1 in(.|\n)*190 more"):
        prepare.prepare("cub", tmp_path)
