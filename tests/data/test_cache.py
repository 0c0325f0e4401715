import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from adaptask.data import atomic_folder, cache
from adaptask.data.images import ImageSet
from adaptask.errors import ArgumentError, DataError


def image_set(split="train", counts=(3, 2), seed=0, shape=(3, 4, 5)):
    generator = torch.Generator().manual_seed(seed)
    starts = torch.tensor([0, *counts]).cumsum(0)
    size = (int(starts[-1]), *shape)
    images = torch.randint(256, size, generator=generator, dtype=torch.uint8)
    names = tuple(f"{split}-{i}" for i in range(len(counts)))
    return ImageSet("toy", split, images, names, starts)


@pytest.fixture
def splits():
    return {"train": image_set(), "val": image_set("val", (1,), 1), "test": image_set("test", (4,))}


@pytest.fixture
def folder(tmp_path, splits):
    cache.write_cache(tmp_path / "toy", splits, source="made by the test")
    return tmp_path / "toy"


def test_a_written_cache_reads_back_as_it_was(folder, splits):
    for name, written in splits.items():
        read = cache.read_cache(folder, name)
        assert torch.equal(read.images, written.images)
        assert torch.equal(read.class_starts, written.class_starts)
        assert read.class_starts.dtype == torch.int64
        assert (read.class_names, read.dataset, read.split) == (written.class_names, "toy", name)


def test_the_folder_holds_the_documented_files_and_nothing_lies_beside_it(folder):
    assert {f.name for f in folder.iterdir()} == {"train.npy", "val.npy", "test.npy", "meta.json"}
    assert list(folder.parent.iterdir()) == [folder]


def test_writing_into_read_images_does_not_reach_the_file(folder, splits):
    cache.read_cache(folder, "train").images.zero_()
    assert torch.equal(cache.read_cache(folder, "train").images, splits["train"].images)


def test_statistics_are_those_of_the_training_pixels(folder, splits):
    pixels = splits["train"].images.double() / 255
    mean, std = cache.read_statistics(folder)
    assert mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-12)
    assert std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-12)


def test_a_cache_can_be_replaced_while_its_old_images_are_mapped(folder, splits):
    old = cache.read_cache(folder, "train")
    cache.write_cache(folder, {"train": image_set(seed=7)}, source="second")
    assert torch.equal(old.images, splits["train"].images)
    assert torch.equal(cache.read_cache(folder, "train").images, image_set(seed=7).images)
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), None])
def test_a_write_that_fails_leaves_the_existing_cache_untouched(folder, splits, error):
    def chunks():
        yield splits["train"].images.numpy()[:2]
        raise error or KeyboardInterrupt

    expected = DataError if error else KeyboardInterrupt
    with (
        pytest.raises(expected, match="No space left.*ADAPTASK_CACHE" if error else None),
        cache.open_cache_writer(folder, dataset="toy", source="", image_shape=(3, 4, 5)) as writer,
    ):
        writer.write_split("train", ["a"], [5], chunks())
    assert torch.equal(cache.read_cache(folder, "train").images, splits["train"].images)
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is full")
def test_a_disk_that_is_full_gives_a_data_error(tmp_path, monkeypatch, splits):
    real_open = Path.open

    def open_on_a_full_device(self, mode="r", **options):
        return real_open(Path("/dev/full") if self.name == "val.npy" else self, mode, **options)

    monkeypatch.setattr(Path, "open", open_on_a_full_device)
    with pytest.raises(DataError, match=r"No space left on device\. Nothing was changed"):
        cache.write_cache(tmp_path / "toy", splits, source="")
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_said_before_anything_is_written(tmp_path, monkeypatch, splits):
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataError, match="MB are free"):
        cache.write_cache(tmp_path / "toy", splits, source="")
    assert list(tmp_path.iterdir()) == []


def killed_while_writing(folder):
    """Run a writer in a process of its own, kill it in the middle, return what it left."""
    script = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        import numpy as np
        from adaptask.data.cache import open_cache_writer

        def chunks():
            yield np.zeros((2, 3, 4, 5), dtype=np.uint8)
            print("half", flush=True)
            time.sleep(60)

        with open_cache_writer(
            Path(sys.argv[1]), dataset="toy", source="", image_shape=(3, 4, 5)
        ) as writer:
            writer.write_split("train", ["a"], [5], chunks())
        """
    )
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    return [path for path in folder.parent.iterdir() if path != folder]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_run_leaves_no_cache_and_the_next_run_cleans_up_after_it(tmp_path, splits):
    folder = tmp_path / "toy"
    (leftover,) = killed_while_writing(folder)
    assert "partial" in leftover.name
    with pytest.raises(DataError, match="there is no cache"):
        cache.read_cache(folder, "train")
    cache.write_cache(folder, splits, source="")
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_run_leaves_the_existing_cache_as_it_was(folder, splits):
    killed_while_writing(folder)
    assert torch.equal(cache.read_cache(folder, "train").images, splits["train"].images)


def test_a_cache_moved_aside_by_a_run_that_died_is_put_back(folder, splits, dead_pid):
    host = atomic_folder._host()
    folder.rename(folder.parent / f".toy.retired.{host}.{dead_pid}.0123abcd")
    assert torch.equal(cache.read_cache(folder, "train").images, splits["train"].images)
    assert list(folder.parent.iterdir()) == [folder]


def test_a_failing_write_also_puts_back_what_a_dead_run_had_moved_aside(folder, splits, dead_pid):
    host = atomic_folder._host()
    folder.rename(folder.parent / f".toy.retired.{host}.{dead_pid}.0123abcd")
    with pytest.raises(ArgumentError):
        cache.write_cache(folder, {"val": image_set("val")}, source="")
    assert torch.equal(cache.read_cache(folder, "train").images, splits["train"].images)
    assert list(folder.parent.iterdir()) == [folder]


def test_a_rename_that_fails_brings_the_old_cache_back(folder, splits, monkeypatch):
    real_rename = Path.rename

    def rename(self, target):
        if "partial" in self.name:
            raise OSError(errno.EIO, "Input/output error")
        return real_rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(DataError, match="Input/output error"):
        cache.write_cache(folder, {"train": image_set(seed=7)}, source="")
    assert torch.equal(cache.read_cache(folder, "train").images, splits["train"].images)
    assert list(folder.parent.iterdir()) == [folder]


def test_a_folder_that_somebody_else_puts_there_in_between_is_replaced(folder, monkeypatch):
    real_rename = Path.rename
    others = iter([image_set(seed=8)])

    def rename(self, target):
        if "partial" in self.name and target == folder:
            for other in others:
                cache.write_cache(folder, {"train": other}, source="")
        return real_rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    own = image_set(seed=7)
    cache.write_cache(folder, {"train": own}, source="")
    assert torch.equal(cache.read_cache(folder, "train").images, own.images)
    assert list(folder.parent.iterdir()) == [folder]


def test_a_cache_that_is_to_stay_stays(folder, splits):
    cache.write_cache(folder, {"train": image_set(seed=7)}, source="", unless=lambda: True)
    assert torch.equal(cache.read_cache(folder, "train").images, splits["train"].images)
    assert list(folder.parent.iterdir()) == [folder]


def test_the_folder_of_a_run_that_is_still_going_is_left_alone(folder, splits):
    host = atomic_folder._host()
    own = folder.parent / f".toy.partial.{host}.{os.getpid()}.0123abcd"
    elsewhere = folder.parent / ".toy.partial.another-host.1.0123abcd"
    stale = folder.parent / ".toy.partial.another-host.2.0123abcd"
    for path in (own, elsewhere, stale):
        path.mkdir()
    os.utime(stale, (time.time() - 90_000,) * 2)
    cache.write_cache(folder, splits, source="")
    assert set(folder.parent.iterdir()) == {folder, own, elsewhere}


def test_what_killed_runs_of_other_datasets_left_is_removed_too(folder, splits, dead_pid):
    owner = f"{atomic_folder._host()}.{dead_pid}.0123abcd"
    for name in (".birds.partial", ".extracted.partial", ".my.birds.partial", ".birds.retired"):
        (folder.parent / f"{name}.{owner}").mkdir()
    stranger = folder.parent / ".notes.partial.1"
    stranger.mkdir()
    cache.write_cache(folder, splits, source="")
    # The retired one may be all there is of that dataset.
    expected = {folder, stranger, folder.parent / f".birds.retired.{owner}"}
    assert set(folder.parent.iterdir()) == expected


@pytest.mark.parametrize("keep", [0, 40, -1])
def test_a_truncated_array_is_named_as_damaged(folder, keep):
    path = folder / "train.npy"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"train\.npy is damaged.*Prepare the dataset again"):
        cache.read_cache(folder, "train")


@pytest.mark.parametrize(
    "array", [np.zeros((5, 3, 4, 4), np.uint8), np.zeros((5, 3, 4, 5), np.int8)]
)
def test_an_array_of_another_shape_or_type_is_refused(folder, array):
    np.save(folder / "train.npy", array)
    with pytest.raises(DataError, match="expected uint8"):
        cache.read_cache(folder, "train")


def test_an_array_of_pickled_objects_is_refused(folder):
    np.save(folder / "train.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="damaged"):
        cache.read_cache(folder, "train")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', "\xff\xfe"])
def test_a_damaged_description_is_refused(folder, text):
    (folder / "meta.json").write_text(text, encoding="latin1")
    with pytest.raises(DataError, match=r"meta\.json is damaged"):
        cache.read_cache(folder, "train")


def test_a_changed_description_does_not_match_its_checksum(folder):
    path = folder / "meta.json"
    path.write_text(path.read_text().replace('"train-0"', '"train-9"'))
    with pytest.raises(DataError, match="does not match its checksum"):
        cache.read_statistics(folder)


def test_a_cache_of_another_format_is_to_be_prepared_again(folder):
    path = folder / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(DataError, match=r"format 99.*Prepare the dataset again"):
        cache.read_cache(folder, "train")


def test_a_missing_split_lists_those_there_are(tmp_path):
    cache.write_cache(tmp_path / "toy", {"train": image_set()}, source="")
    with pytest.raises(DataError, match="no split 'val'; it has 'train'"):
        cache.read_cache(tmp_path / "toy", "val")


@pytest.mark.parametrize(
    ("splits", "error", "message"),
    [
        ({}, ArgumentError, "no splits"),
        ({"val": image_set("val")}, ArgumentError, "needs a 'train' split"),
        ({"extra": image_set("extra")}, ArgumentError, "'train', 'val' or 'test'; got 'extra'"),
        ({"train": image_set(counts=(2, 0))}, DataError, "'train-1' of split 'train' has no"),
        ({"train": image_set(), "val": image_set("val", shape=(3, 4, 4))}, DataError, "shape"),
    ],
)
def test_splits_that_make_no_cache_are_refused(tmp_path, splits, error, message):
    with pytest.raises(error, match=message):
        cache.write_cache(tmp_path / "toy", splits, source="")
    assert list(tmp_path.iterdir()) == []


def test_a_stream_that_brings_too_few_images_makes_no_cache(tmp_path):
    with (
        pytest.raises(DataError, match="must have 5 images; got 2"),
        cache.open_cache_writer(
            tmp_path / "toy", dataset="toy", source="", image_shape=(3, 4, 5)
        ) as writer,
    ):
        writer.write_split("train", ["a"], [5], [np.zeros((2, 3, 4, 5), np.uint8)])
    assert list(tmp_path.iterdir()) == []


def test_class_names_of_a_split_must_be_distinct(tmp_path):
    twice = ImageSet("toy", "train", torch.zeros(2, 1, 2, 2, dtype=torch.uint8), ("a", "a"),
                     torch.tensor([0, 1, 2]))  # fmt: skip
    with pytest.raises(DataError, match=r"distinct; twice: \['a'\]"):
        cache.write_cache(tmp_path / "toy", {"train": twice}, source="")


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({"ADAPTASK_CACHE": "/chosen", "XDG_CACHE_HOME": "/xdg"}, "linux", "/chosen"),
        ({"XDG_CACHE_HOME": "/xdg"}, "linux", "/xdg/adaptask"),
        ({"XDG_CACHE_HOME": "not/absolute"}, "linux", "/home/me/.cache/adaptask"),
        ({}, "linux", "/home/me/.cache/adaptask"),
        ({}, "darwin", "/home/me/Library/Caches/adaptask"),
        ({}, "win32", "/home/me/AppData/Local/adaptask/cache"),
        ({"LOCALAPPDATA": "/local"}, "win32", "/local/adaptask/cache"),
    ],
)
def test_the_cache_folder_follows_the_platform(monkeypatch, environment, platform, expected):
    for name in ("ADAPTASK_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cache.sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    assert cache.cache_root() == Path(expected)
