"""The same images, laid out in every way in which people have them, give the same cache."""

import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from adaptask.data.datasets import load
from adaptask.data.images import SPLITS
from adaptask.data.prepare import prepare_benchmark
from adaptask.errors import DataError

N_EACH = 2

LAYOUTS = [
    ("cifar-fs", None, 32, "bertinetto", "one folder per class"),
    ("cifar-fs", None, 32, "split_folders", "one folder per class"),
    ("cifar-fs", None, 32, "cifar_100_python", "cifar-100-python"),
    ("cifar-fs", None, 32, "cifar_fs_pickles", "CIFAR_FS_"),
    ("fc100", None, 32, "cifar_100_python", "cifar-100-python"),
    ("fc100", None, 32, "fc100_pickles", "FC100_"),
    ("fc100", None, 32, "direct_folders", "one folder per class"),
    ("mini-imagenet", 4, 84, "ravi_csv", "Ravi"),
    ("mini-imagenet", 4, 84, "direct_folders", "one folder per class"),
    ("mini-imagenet", 4, 84, "split_folders", "one folder per class"),
    ("mini-imagenet", 4, 84, "mini_cache", "mini-imagenet-cache"),
    ("mini-imagenet", 4, 84, "mini_category_split", "category_split"),
    ("tiered-imagenet", 4, 84, "tiered_png", "images_png.pkl"),
    ("tiered-imagenet", 4, 84, "tiered_npz", "images.npz"),
    ("tiered-imagenet", 4, 84, "split_folders", "one folder per class"),
    ("cub", 4, 84, "images_folder", "one folder per class"),
]


def assert_equal_to(truth, name):
    for split, classes in truth.items():
        images = load(name, split)
        assert images.class_names == tuple(classes)
        assert images.class_starts.tolist() == [N_EACH * i for i in range(len(classes) + 1)]
        expected = np.concatenate(list(classes.values())).transpose(0, 3, 1, 2)
        assert torch.equal(images.images, torch.from_numpy(expected.copy()))


@pytest.mark.parametrize(
    ("name", "n_classes", "size", "lay_out", "recognized"),
    LAYOUTS,
    ids=[f"{name}-{lay_out}" for name, _, _, lay_out, _ in LAYOUTS],
)
def test_every_layout_gives_the_images_that_were_laid_out(
    writers, tmp_path, cache_home, name, n_classes, size, lay_out, recognized
):
    benchmark = writers.small(name, n_classes)
    truth = writers.make_truth(benchmark, size)
    source = tmp_path / "source"
    source.mkdir()
    getattr(writers, lay_out)(source, truth)
    done = prepare_benchmark(benchmark, source)
    assert recognized in done.source
    assert done.n_classes == {split: len(names) for split, names in benchmark.classes.items()}
    assert_equal_to(truth, name)
    assert [path.name for path in cache_home.iterdir()] == [name]


@pytest.mark.parametrize("suffix", ["zip", "tar.gz"])
def test_an_archive_does_as_well_as_a_folder(writers, tmp_path, cache_home, suffix):
    benchmark = writers.small("cub", 3)
    truth = writers.make_truth(benchmark, 84)
    writers.images_folder(tmp_path / "unpacked", truth)
    archive = tmp_path / f"cub.{suffix}"
    files = [path for path in (tmp_path / "unpacked").rglob("*") if path.is_file()]
    if suffix == "zip":
        with zipfile.ZipFile(archive, "w") as out:
            for path in files:
                out.write(path, path.relative_to(tmp_path / "unpacked"))
    else:
        with tarfile.open(archive, "w:gz") as out:
            out.add(tmp_path / "unpacked", "some-folder")
    prepare_benchmark(benchmark, archive)
    assert_equal_to(truth, "cub")
    assert [path.name for path in cache_home.iterdir()] == ["cub"]


def test_numbered_classes_are_named_by_their_numbers(writers, tmp_path, cache_home):
    benchmark = writers.small("cifar-fs")
    truth = writers.make_truth(benchmark, 32)
    first = {"train": 0, "val": 64, "test": 80}
    writers.labeled(
        tmp_path,
        truth,
        {s: f"CIFAR_FS_{s}.pickle" for s in SPLITS},
        lambda split, i, _: first[split] + i,
    )
    prepare_benchmark(benchmark, tmp_path)
    assert load("cifar-fs", "val").class_names[:2] == ("label-064", "label-065")
    expected = np.concatenate(list(truth["val"].values())).transpose(0, 3, 1, 2)
    assert torch.equal(load("cifar-fs", "val").images, torch.from_numpy(expected.copy()))


def test_tiered_classes_with_the_same_words_stay_apart(writers, tmp_path, cache_home):
    benchmark = writers.small("tiered-imagenet", 3)
    truth = writers.make_truth(benchmark, 84)
    for split, classes in truth.items():
        writers.tiered_labels(tmp_path, split, ["crane", "crane", "finch"], wordy=True)
        np.savez(tmp_path / f"{split}_images.npz", images=np.concatenate(list(classes.values())))
    prepare_benchmark(benchmark, tmp_path)
    assert load("tiered-imagenet", "test").class_names == ("crane", "crane (1)", "finch")


def test_tiered_labels_may_be_numbers_only(writers, tmp_path, cache_home):
    benchmark = writers.small("tiered-imagenet", 3)
    for split, classes in writers.make_truth(benchmark, 84).items():
        writers.tiered_labels(tmp_path, split, classes, wordy=False)
        np.savez(tmp_path / f"{split}_images.npz", images=np.concatenate(list(classes.values())))
    prepare_benchmark(benchmark, tmp_path)
    assert load("tiered-imagenet", "val").class_names == ("label-000", "label-001", "label-002")


def test_large_images_are_brought_to_the_size_of_the_dataset(writers, tmp_path, cache_home):
    benchmark = writers.small("cub", 2)
    grey_value = 10
    for names in benchmark.classes.values():
        for name in names:
            folder = tmp_path / "images" / name
            folder.mkdir(parents=True)
            for i in range(N_EACH):
                Image.new("L", (200, 120), grey_value).save(folder / f"{i}.jpg")
            grey_value += 20
    prepare_benchmark(benchmark, tmp_path)
    images = load("cub", "train").images
    assert images.shape == (2 * N_EACH, 3, 84, 84)
    assert images.flatten(1).float().mean(1).tolist() == [10, 10, 30, 30]


def test_omniglot_has_bright_strokes_and_rotations_as_classes(writers, tmp_path, cache_home):
    benchmark = writers.small("omniglot", 8)
    writers.omniglot(tmp_path, benchmark)
    done = prepare_benchmark(benchmark, tmp_path)
    assert done.n_classes == {"train": 8, "val": 8, "test": 8}
    images = load("omniglot", "train")
    assert images.class_names[:2] == (
        "Alphabet_of_the_Magi/character01/rot000",
        "Alphabet_of_the_Magi/character01/rot090",
    )
    assert images.images.shape == (8 * N_EACH, 1, 28, 28)
    upright, quarter, half, three = images.images[: 4 * N_EACH : N_EACH, 0]
    assert upright[3, 3] == 255
    assert upright[24, 24] == 0
    # Turned counter-clockwise: what was at the upper left comes to the lower left.
    assert torch.equal(quarter, upright.rot90(1))
    assert torch.equal(half, upright.rot90(2))
    assert torch.equal(three, upright.rot90(3))
    assert quarter[24, 3] == 255


def move_images(root, truth, place):
    """Lay out csv files with the images of each class at `place`."""
    for split, classes in truth.items():
        lines = ["filename,label"]
        for name, images in classes.items():
            folder = root / place.format(label=name)
            folder.mkdir(parents=True, exist_ok=True)
            for i, image in enumerate(images):
                lines.append(f"{name}{i:08d}.png,{name}")
                Image.fromarray(image).save(folder / f"{name}{i:08d}.png")
        (root / f"{split}.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("place", [".", "images", "images/{label}", "{label}"])
def test_csv_files_may_name_images_in_class_folders(writers, tmp_path, cache_home, place):
    benchmark = writers.small("mini-imagenet", 3)
    truth = writers.make_truth(benchmark, 84)
    move_images(tmp_path / "s", truth, place)
    assert "Ravi" in prepare_benchmark(benchmark, tmp_path / "s").source
    assert_equal_to(truth, "mini-imagenet")


@pytest.mark.parametrize("images", ["images", "images/{label}"])
def test_csv_files_may_be_in_a_folder_beside_the_images(writers, tmp_path, cache_home, images):
    benchmark = writers.small("mini-imagenet", 3)
    truth = writers.make_truth(benchmark, 84)
    move_images(tmp_path / "s", truth, images)
    (tmp_path / "s" / "split").mkdir()
    for split in SPLITS:
        (tmp_path / "s" / f"{split}.csv").rename(tmp_path / "s" / "split" / f"{split}.csv")
    prepare_benchmark(benchmark, tmp_path / "s")
    assert_equal_to(truth, "mini-imagenet")


def test_csv_files_beside_class_folders_with_other_file_names(writers, tmp_path, cache_home):
    benchmark = writers.small("mini-imagenet", 3)
    truth = writers.make_truth(benchmark, 84)
    writers.direct_folders(tmp_path / "s", truth)
    for split in SPLITS:
        lines = [f"{name}0000.jpg,{name}" for name in truth[split]]
        (tmp_path / "s" / f"{split}.csv").write_text("\n".join(["filename,label", *lines]))
    assert "one folder per class" in prepare_benchmark(benchmark, tmp_path / "s").source
    assert_equal_to(truth, "mini-imagenet")


@pytest.mark.parametrize("name", ["mini-imagenet", "cub"])
@pytest.mark.parametrize("parts", [("train", "val"), ("train", "val", "test"), ("Train", "valid")])
def test_the_split_of_a_classifier_becomes_the_official_one(
    writers, tmp_path, cache_home, name, parts
):
    benchmark = writers.small(name, 4)
    truth = writers.make_truth(benchmark, 84)
    for classes in truth.values():
        for label, images in classes.items():
            for i, image in enumerate(images):
                folder = tmp_path / "s" / parts[i % len(parts)] / label
                folder.mkdir(parents=True)
                Image.fromarray(image).save(folder / f"{i}.png")
    done = prepare_benchmark(benchmark, tmp_path / "s")
    assert "12 classes moved to their official split" in done.source
    assert_equal_to(truth, name)


@pytest.mark.parametrize("names", [("Train", "Val", "Test"), ("train", "valid", "test")])
def test_split_folders_may_have_other_usual_names(writers, tmp_path, cache_home, names):
    benchmark = writers.small("cifar-fs", 4)
    truth = writers.make_truth(benchmark, 32)
    writers.split_folders(tmp_path / "wrapped" / "s", truth)
    (tmp_path / "wrapped" / "README.md").write_text("about")
    for split, name in zip(SPLITS, names, strict=True):
        (tmp_path / "wrapped" / "s" / split).rename(tmp_path / "wrapped" / "s" / name)
    done = prepare_benchmark(benchmark, tmp_path / "wrapped")
    assert "moved" not in done.source
    assert_equal_to(truth, "cifar-fs")


def test_what_is_passed_over_in_a_benchmark_is_counted(writers, tmp_path, cache_home):
    benchmark = writers.small("cub", 3)
    truth = writers.make_truth(benchmark, 84)
    writers.images_folder(tmp_path, truth)
    folder = next((tmp_path / "CUB_200_2011" / "images").iterdir())
    (folder / "notes.txt").write_text("a bird")
    (folder / "more").mkdir()
    for i in range(2):
        Image.new("RGB", (8, 8)).save(folder / "more" / f"{i}.png")
    left_out = prepare_benchmark(benchmark, tmp_path).left_out
    assert [line.split(" files")[0].split(" file")[0] for line in left_out] == ["2", "1"]
    assert f"images/{folder.name}/more/" in left_out[0]
    assert f"images/{folder.name}/notes.txt" in left_out[1]


def test_a_wrong_layout_is_not_told_to_be_downloaded_again(writers, tmp_path, cache_home):
    benchmark = writers.small("mini-imagenet", 3)
    writers.direct_folders(tmp_path / "s", {"train": writers.make_truth(benchmark, 84)["train"]})
    with pytest.raises(DataError) as refusal:
        prepare_benchmark(benchmark, tmp_path / "s")
    assert "was read as: one folder per class" in str(refusal.value)
    assert "files named again" not in str(refusal.value)
