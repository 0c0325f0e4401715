"""Whatever is wrong with a source is named, and no cache appears."""

import dataclasses
import errno
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from adaptask.data import prepare
from adaptask.data.datasets import DATASETS
from adaptask.data.images import SPLITS
from adaptask.data.prepare import prepare_benchmark
from adaptask.errors import DataError


@pytest.fixture
def folder_source(writers, tmp_path):
    benchmark = writers.small("mini-imagenet", 6)
    truth = writers.make_truth(benchmark, 84)
    writers.split_folders(tmp_path / "source", truth)
    return benchmark, tmp_path / "source"


def refused(benchmark, source, cache_home):
    with pytest.raises(DataError) as caught:
        prepare_benchmark(benchmark, source)
    assert not cache_home.exists() or list(cache_home.iterdir()) == []
    return str(caught.value)


def test_a_missing_class_is_named(folder_source, cache_home):
    benchmark, source = folder_source
    name = benchmark.classes["val"][1]
    for file in (source / "val" / name).iterdir():
        file.unlink()
    (source / "val" / name).rmdir()
    message = refused(benchmark, source, cache_home)
    assert f"class '{name}' (val) is missing: no images in {source / 'val' / name}" in message
    assert "nothing was written" in message


def test_a_wrong_count_is_named(folder_source, cache_home):
    benchmark, source = folder_source
    folder = source / "test" / benchmark.classes["test"][0]
    next(folder.iterdir()).unlink()
    message = refused(benchmark, source, cache_home)
    assert f"must have 2 images, has 1 in {folder}" in message


def test_corrupt_images_are_named(folder_source, cache_home):
    benchmark, source = folder_source
    folder = source / "train" / benchmark.classes["train"][2]
    first, second = sorted(folder.iterdir())
    first.write_bytes(first.read_bytes()[:200])
    second.write_bytes(b"not an image")
    message = refused(benchmark, source, cache_home)
    assert f"{first} cannot be read as an image" in message
    assert f"{second} cannot be read as an image" in message


def test_the_first_ten_of_many_faults_are_named(folder_source, cache_home):
    benchmark, source = folder_source
    files = sorted(source.rglob("*.png"))
    for file in files[:14]:
        file.unlink()
    message = refused(benchmark, source, cache_home)
    assert message.count("\n  - ") == 7
    for file in sorted(source.rglob("*.png"))[:22]:
        file.unlink()
    message = refused(benchmark, source, cache_home)
    assert message.count("\n  - ") == 10
    assert "and 8 more" in message


def test_ten_corrupt_images_end_the_preparation(folder_source, cache_home):
    benchmark, source = folder_source
    for file in sorted(source.rglob("*.png")):
        file.write_bytes(b"")
    assert refused(benchmark, source, cache_home).count("cannot be read as an image") == 10


def test_a_wrong_total_is_refused(folder_source, cache_home):
    benchmark, source = folder_source
    benchmark = dataclasses.replace(benchmark, class_size=(1, 3), n_images=37)
    assert "must be 37 images in all, there are 36" in refused(benchmark, source, cache_home)


def test_the_csv_files_may_start_with_a_byte_order_mark(writers, tmp_path, cache_home):
    benchmark = writers.small("mini-imagenet", 2)
    writers.ravi_csv(tmp_path / "s", writers.make_truth(benchmark, 84))
    for file in (tmp_path / "s").glob("*.csv"):
        file.write_text(file.read_text(), "utf-8-sig")
    assert prepare_benchmark(benchmark, tmp_path / "s").n_images["train"] == 4


def test_fc100_is_made_from_the_folder_of_cifar_fs(writers, tmp_path, cache_home):
    truth = writers.make_truth(writers.small("cifar-fs"), 32)
    writers.bertinetto(tmp_path / "s", truth)
    done = prepare_benchmark(writers.small("fc100"), tmp_path / "s")
    assert done.n_classes == {"train": 60, "val": 20, "test": 20}


def test_an_unknown_layout_lists_the_known_ones(writers, tmp_path, cache_home):
    (tmp_path / "s" / "something").mkdir(parents=True)
    message = refused(writers.small("mini-imagenet"), tmp_path / "s", cache_home)
    for layout in DATASETS["mini-imagenet"].layouts:
        assert layout.description in message
    assert "image-net.org" in message


def test_a_folder_named_train_does_not_make_it_cifar(writers, tmp_path, cache_home):
    # 'train' is a class of CIFAR-100 as well.
    writers.split_folders(tmp_path / "s", {"train": {"pizza": np.zeros((1, 4, 4, 3), np.uint8)}})
    assert "is not a known layout" in refused(writers.small("cifar-fs"), tmp_path / "s", cache_home)


def test_a_source_that_cannot_be_read_is_named(writers, tmp_path, cache_home, monkeypatch):
    def denied(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(prepare, "candidate_folders", denied)
    message = refused(writers.small("cifar-fs"), tmp_path, cache_home)
    assert f"{tmp_path} cannot be read: Permission denied" in message


@pytest.mark.parametrize("packed", [False, True])
def test_a_cache_folder_that_is_a_file_is_named(folder_source, cache_home, packed):
    benchmark, source = folder_source
    if packed:
        source = shutil.make_archive(source, "tar", source)
    cache_home.write_text("a file")
    with pytest.raises(DataError, match=f"{cache_home} is a file.*set ADAPTASK_CACHE to"):
        prepare_benchmark(benchmark, Path(source))


@pytest.mark.parametrize("packed", [False, True])
def test_a_cache_folder_on_a_read_only_disk_is_named(
    folder_source, cache_home, monkeypatch, packed
):
    benchmark, source = folder_source
    if packed:
        source = shutil.make_archive(source, "tar", source)

    def mkdir(self, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    message = refused(benchmark, Path(source), cache_home)
    assert "Read-only file system" in message
    assert "set ADAPTASK_CACHE to a folder that can be written" in message


def test_an_image_missing_from_ravis_folder_is_named(writers, tmp_path, cache_home):
    benchmark = writers.small("mini-imagenet", 3)
    writers.ravi_csv(tmp_path / "s", writers.make_truth(benchmark, 84))
    gone = sorted((tmp_path / "s" / "images").iterdir())[0]
    gone.unlink()
    assert f"{gone} is missing" in refused(benchmark, tmp_path / "s", cache_home)


def test_a_class_in_the_wrong_csv_is_named(writers, tmp_path, cache_home):
    benchmark = writers.small("mini-imagenet", 3)
    writers.ravi_csv(tmp_path / "s", writers.make_truth(benchmark, 84))
    train = (tmp_path / "s" / "train.csv").read_text()
    other = benchmark.classes["test"][0]
    (tmp_path / "s" / "train.csv").write_text(train + f"{other}00000000.png,{other}\n")
    message = refused(benchmark, tmp_path / "s", cache_home)
    assert f"class '{other}' does not belong to split 'train'" in message


def test_a_csv_without_its_columns_is_refused(writers, tmp_path, cache_home):
    benchmark = writers.small("mini-imagenet", 3)
    writers.ravi_csv(tmp_path / "s", writers.make_truth(benchmark, 84))
    (tmp_path / "s" / "val.csv").write_text("a,b\n1,2\n")
    assert "'filename' and 'label'" in refused(benchmark, tmp_path / "s", cache_home)


def test_too_few_numbered_classes_are_refused(writers, tmp_path, cache_home):
    benchmark = writers.small("tiered-imagenet", 3)
    for split, classes in writers.make_truth(benchmark, 84).items():
        kept = dict(list(classes.items())[:2]) if split == "val" else classes
        writers.tiered_labels(tmp_path, split, kept, wordy=False)
        np.savez(tmp_path / f"{split}_images.npz", images=np.concatenate(list(kept.values())))
    assert "split 'val' must have 3 classes, has 2" in refused(benchmark, tmp_path, cache_home)


def test_a_corrupt_image_inside_a_pickle_is_named_by_its_place(writers, tmp_path, cache_home):
    benchmark = writers.small("tiered-imagenet", 3)
    writers.tiered_png(tmp_path, writers.make_truth(benchmark, 84))
    path = tmp_path / "val_images_png.pkl"
    images = pickle.loads(path.read_bytes())
    images[3] = images[3][:50]
    writers.dump(path, images)
    name = benchmark.classes["val"][1]
    message = refused(benchmark, tmp_path, cache_home)
    assert f"image 1 of class '{name}' in {path} cannot be read as an image" in message


DAMAGES = {
    "CIFAR_FS_val.pickle": lambda data: data[: len(data) // 2],
    "CIFAR_FS_test.pickle": lambda _: pickle.dumps({"data": [1], "labels": [0]}),
    "CIFAR_FS_train.pickle": lambda _: pickle.dumps([1, 2]),
}


@pytest.mark.parametrize("file", DAMAGES)
def test_a_damaged_pickle_is_named(writers, tmp_path, cache_home, file):
    benchmark = writers.small("cifar-fs")
    writers.cifar_fs_pickles(tmp_path, writers.make_truth(benchmark, 32))
    path = tmp_path / file
    path.write_bytes(DAMAGES[file](path.read_bytes()))
    assert str(path) in refused(benchmark, tmp_path, cache_home)


def one_each(names, value):
    return {names.format(split): value for split in SPLITS}


PIXELS = np.zeros((2, 32, 32, 3), np.uint8)
CIFAR_FS, MINI = "CIFAR_FS_{}.pickle", "mini-imagenet-cache-{}.pkl"
PNG, NPZ, LABELS = "{}_images_png.pkl", "{}_images.npz", "{}_labels.pkl"
MALFORMED = {
    "pixels in a list": (
        "cifar-fs",
        {"meta": {"fine_label_names": []}, "train": {"data": [[1]]}, "test": {}},
    ),
    "a number for names": (
        "cifar-fs",
        {"meta": {"fine_label_names": 3}, "train": {}, "test": {}},
    ),
    "categories in a list": (
        "cifar-fs",
        one_each(CIFAR_FS, {"data": PIXELS, "labels": [0, 1], "catname2label": [1]}),
    ),
    "ragged labels": ("cifar-fs", one_each(CIFAR_FS, {"data": PIXELS, "labels": [0, [1]]})),
    "classes in a list": (
        "mini-imagenet",
        one_each(MINI, {"image_data": PIXELS, "class_dict": [1]}),
    ),
    "words for indices": (
        "mini-imagenet",
        one_each(MINI, {"image_data": PIXELS, "class_dict": {"a": ["x"]}}),
    ),
    "indices past all bounds": (
        "mini-imagenet",
        one_each(MINI, {"image_data": PIXELS, "class_dict": {"a": [2**70]}}),
    ),
    "a number for images": ("tiered-imagenet", one_each(PNG, 3) | one_each(LABELS, {})),
    "a number for labels": ("tiered-imagenet", one_each(PNG, [b"x"]) | one_each(LABELS, 3)),
    "one number in an npz": (
        "tiered-imagenet",
        one_each(NPZ, np.uint8(3)) | one_each(LABELS, {"labels": [1]}),
    ),
}


@pytest.mark.parametrize(("name", "files"), MALFORMED.values(), ids=MALFORMED)
def test_files_that_hold_something_else_are_refused(writers, tmp_path, cache_home, name, files):
    for file, value in files.items():
        if file.endswith(".npz"):
            np.savez(tmp_path / file, images=value)
        else:
            writers.dump(tmp_path / file, value)
    message = refused(writers.small(name), tmp_path, cache_home)
    assert f"{tmp_path} looks like " in message
    assert "has another form" in message


def test_labels_that_do_not_fit_the_images_are_refused(writers, tmp_path, cache_home):
    benchmark = writers.small("cifar-fs")
    writers.cifar_fs_pickles(tmp_path, writers.make_truth(benchmark, 32))
    path = tmp_path / "CIFAR_FS_val.pickle"
    writers.dump(path, pickle.loads(path.read_bytes()) | {"labels": [1, 2, 3]})
    assert "one whole number for each of its 32 images" in refused(benchmark, tmp_path, cache_home)


def test_a_truncated_npz_is_named(writers, tmp_path, cache_home):
    benchmark = writers.small("tiered-imagenet", 3)
    writers.tiered_npz(tmp_path, writers.make_truth(benchmark, 84))
    path = tmp_path / "test_images.npz"
    path.write_bytes(path.read_bytes()[:-3000])
    assert f"{path} is truncated" in refused(benchmark, tmp_path, cache_home)


def test_an_npz_of_pickled_objects_is_refused(writers, tmp_path, cache_home):
    benchmark = writers.small("tiered-imagenet", 3)
    writers.tiered_npz(tmp_path, writers.make_truth(benchmark, 84))
    np.savez(tmp_path / "train_images.npz", images=np.array([{}], dtype=object))
    assert "train_images.npz" in refused(benchmark, tmp_path, cache_home)


def test_a_malicious_pickle_in_a_source_is_refused_and_does_nothing(writers, tmp_path, cache_home):
    class Attack:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    benchmark = writers.small("cifar-fs")
    source = tmp_path / "source"
    writers.cifar_100_python(source, writers.make_truth(benchmark, 32))
    writers.dump(source / "cifar-100-python" / "train", {"data": Attack()})
    message = refused(benchmark, source, cache_home)
    assert str(source / "cifar-100-python" / "train") in message
    assert not (tmp_path / "owned").exists()
