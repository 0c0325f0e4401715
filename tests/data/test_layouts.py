"""The same images, laid out in every way in which people have them, give the same cache."""

import dataclasses
import io
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from adaptask.data import prepare
from adaptask.data.class_lists import SPLITS, class_lists
from adaptask.data.prepare import prepare_benchmark
from adaptask.data.registry import DATASETS, load
from adaptask.errors import DataError

N_EACH = 2


def small(name, n_classes=None):
    """Return a benchmark with two images a class, and the first few classes of each split."""
    benchmark = DATASETS[name]
    classes = {split: names[:n_classes] for split, names in benchmark.classes.items()}
    n_images = N_EACH * sum(map(len, classes.values()))
    return dataclasses.replace(
        benchmark, classes=classes, class_size=(N_EACH, N_EACH), n_images=n_images
    )


def make_truth(benchmark, size):
    """Return random images for every class of every split, `2 x size x size x 3`."""
    rng = np.random.default_rng(0)
    return {
        split: {
            name: rng.integers(256, size=(N_EACH, size, size, 3), dtype=np.uint8) for name in names
        }
        for split, names in benchmark.classes.items()
    }


def dump(path, value, protocol=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value, protocol=protocol))


def save_class(folder, images, suffix="png"):
    folder.mkdir(parents=True)
    for i, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{folder.name}_s_{i:06d}.{suffix}")


def bertinetto(root, truth):
    (root / "splits" / "bertinetto").mkdir(parents=True)
    for split, classes in truth.items():
        (root / "splits" / "bertinetto" / f"{split}.txt").write_text("\n".join(classes) + "\n")
        for name, images in classes.items():
            save_class(root / "data" / name, images)
            (root / "data" / name / ".DS_Store").write_bytes(b"not an image")


def direct_folders(root, truth):
    for classes in truth.values():
        for name, images in classes.items():
            save_class(root / name, images)


def split_folders(root, truth):
    for split, classes in truth.items():
        for name, images in classes.items():
            save_class(root / split / name, images)


def images_folder(root, truth):
    direct_folders(root / "CUB_200_2011" / "images", truth)


def cifar_100_python(root, truth):
    classes = {name: images for split in truth.values() for name, images in split.items()}
    names = sorted(classes)
    folder = root / "cifar-100-python"
    dump(folder / "meta", {b"fine_label_names": [name.encode() for name in names]})
    for i, part in enumerate(("train", "test")):
        rows = [classes[name][i].transpose(2, 0, 1).reshape(-1) for name in names]
        order = np.random.default_rng(i).permutation(len(names))
        content = {b"data": np.stack(rows)[order], b"fine_labels": order.tolist()}
        dump(folder / part, content)


def labelled(root, truth, files, numbers, extra=lambda _: {}):
    """Write MetaOptNet's pickles, classes mixed, labels as `numbers` gives them."""
    for split, classes in truth.items():
        labels = np.repeat([numbers(split, i, name) for i, name in enumerate(classes)], N_EACH)
        pixels = np.concatenate(list(classes.values()))
        # Mixed, but so that the images of a class keep their order.
        order = np.arange(len(labels)).reshape(-1, N_EACH).T.reshape(-1)
        content = {"data": pixels[order], "labels": labels[order].tolist()} | extra(classes)
        dump(root / files[split], content)


def fine_number(_, __, name):
    return sorted(n for names in class_lists("cifar-fs").values() for n in names).index(name)


def cifar_fs_pickles(root, truth):
    labelled(root, truth, {s: f"CIFAR_FS_{s}.pickle" for s in SPLITS}, fine_number)


def fc100_pickles(root, truth):
    labelled(root, truth, {s: f"FC100_{s}.pickle" for s in SPLITS}, fine_number)


MINI_FILES = {
    "train": "miniImageNet_category_split_train_phase_train.pickle",
    "val": "miniImageNet_category_split_val.pickle",
    "test": "miniImageNet_category_split_test.pickle",
}


def mini_category_split(root, truth):
    labelled(
        root,
        truth,
        MINI_FILES,
        lambda split, i, _: i + 100 * SPLITS.index(split),
        lambda classes: {
            "catname2label": {
                name: i + 100 * SPLITS.index(split)
                for split, own in truth.items()
                if own is classes
                for i, name in enumerate(classes)
            }
        },
    )


def mini_cache(root, truth):
    # As some published versions have it: val and test the wrong way round.
    for split, file in zip(SPLITS, ("train", "test", "val"), strict=True):
        names = list(truth[split])
        pixels = np.concatenate([truth[split][name] for name in reversed(names)])
        starts = {name: N_EACH * i for i, name in enumerate(reversed(names))}
        class_dict = {name: list(range(s, s + N_EACH)) for name, s in starts.items()}
        dump(
            root / f"mini-imagenet-cache-{file}.pkl",
            {"image_data": pixels, "class_dict": class_dict},
        )


def ravi_csv(root, truth):
    (root / "images").mkdir(parents=True)
    for split, classes in truth.items():
        lines = ["filename,label"]
        for name, images in classes.items():
            for i, image in enumerate(images):
                lines.append(f"{name}{i:08d}.png,{name}")
                Image.fromarray(image).save(root / "images" / f"{name}{i:08d}.png")
        (root / f"{split}.csv").write_text("\n".join(lines) + "\n")


def png(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    return np.frombuffer(file.getvalue(), dtype=np.uint8)[:, None]


def tiered_labels(root, split, classes, wordy):
    numbers = np.repeat(np.arange(len(classes), dtype=np.int32), N_EACH)
    words = {"label_specific": numbers, "label_specific_str": list(classes)}
    content = words if wordy else {"labels": numbers.tolist()}
    dump(root / f"{split}_labels.pkl", content)


def tiered_png(root, truth):
    for split, classes in truth.items():
        tiered_labels(root, split, classes, wordy=True)
        images = [png(image) for images in classes.values() for image in images]
        dump(root / f"{split}_images_png.pkl", images)


def tiered_npz(root, truth):
    for split, classes in truth.items():
        tiered_labels(root, split, classes, wordy=True)
        np.savez(root / f"{split}_images.npz", images=np.concatenate(list(classes.values())))


LAYOUTS = [
    ("cifar-fs", None, 32, bertinetto, "Bertinetto"),
    ("cifar-fs", None, 32, split_folders, "Bertinetto"),
    ("cifar-fs", None, 32, cifar_100_python, "cifar-100-python"),
    ("cifar-fs", None, 32, cifar_fs_pickles, "CIFAR_FS_"),
    ("fc100", None, 32, cifar_100_python, "cifar-100-python"),
    ("fc100", None, 32, fc100_pickles, "FC100_"),
    ("fc100", None, 32, direct_folders, "one folder a class"),
    ("mini-imagenet", 4, 84, ravi_csv, "Ravi"),
    ("mini-imagenet", 4, 84, direct_folders, "one folder a class"),
    ("mini-imagenet", 4, 84, split_folders, "one folder a class"),
    ("mini-imagenet", 4, 84, mini_cache, "mini-imagenet-cache"),
    ("mini-imagenet", 4, 84, mini_category_split, "category_split"),
    ("tiered-imagenet", 4, 84, tiered_png, "images_png.pkl"),
    ("tiered-imagenet", 4, 84, tiered_npz, "images.npz"),
    ("tiered-imagenet", 4, 84, split_folders, "one folder a class"),
    ("cub", 4, 84, images_folder, "images/<class>"),
]


def assert_equal_to(truth, name):
    for split, classes in truth.items():
        images = load(name, split)
        assert images.class_names == tuple(classes)
        assert images.class_starts.tolist() == [N_EACH * i for i in range(len(classes) + 1)]
        expected = np.concatenate(list(classes.values())).transpose(0, 3, 1, 2)
        assert torch.equal(images.images, torch.from_numpy(expected.copy()))


@pytest.mark.parametrize(
    ("name", "n_classes", "size", "lay_out", "recognised"),
    LAYOUTS,
    ids=[f"{name}-{lay_out.__name__}" for name, _, _, lay_out, _ in LAYOUTS],
)
def test_every_layout_gives_the_images_that_were_laid_out(
    tmp_path, cache_home, name, n_classes, size, lay_out, recognised
):
    benchmark = small(name, n_classes)
    truth = make_truth(benchmark, size)
    source = tmp_path / "source"
    source.mkdir()
    lay_out(source, truth)
    done = prepare_benchmark(benchmark, source)
    assert recognised in done.source
    assert done.n_classes == {split: len(names) for split, names in benchmark.classes.items()}
    assert_equal_to(truth, name)
    assert [path.name for path in cache_home.iterdir()] == [name]


@pytest.mark.parametrize("suffix", ["zip", "tar.gz"])
def test_an_archive_does_as_well_as_a_folder(tmp_path, cache_home, suffix):
    benchmark = small("cub", 3)
    truth = make_truth(benchmark, 84)
    images_folder(tmp_path / "unpacked", truth)
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


def test_numbered_classes_are_named_by_their_numbers(tmp_path, cache_home):
    benchmark = small("cifar-fs")
    truth = make_truth(benchmark, 32)
    first = {"train": 0, "val": 64, "test": 80}
    labelled(
        tmp_path,
        truth,
        {s: f"CIFAR_FS_{s}.pickle" for s in SPLITS},
        lambda split, i, _: first[split] + i,
    )
    prepare_benchmark(benchmark, tmp_path)
    assert load("cifar-fs", "val").class_names[:2] == ("label-064", "label-065")
    expected = np.concatenate(list(truth["val"].values())).transpose(0, 3, 1, 2)
    assert torch.equal(load("cifar-fs", "val").images, torch.from_numpy(expected.copy()))


def test_tiered_classes_with_the_same_words_stay_apart(tmp_path, cache_home):
    benchmark = small("tiered-imagenet", 3)
    truth = make_truth(benchmark, 84)
    for split, classes in truth.items():
        tiered_labels(tmp_path, split, ["crane", "crane", "finch"], wordy=True)
        np.savez(tmp_path / f"{split}_images.npz", images=np.concatenate(list(classes.values())))
    prepare_benchmark(benchmark, tmp_path)
    assert load("tiered-imagenet", "test").class_names == ("crane", "crane (1)", "finch")


def test_tiered_labels_may_be_numbers_only(tmp_path, cache_home):
    benchmark = small("tiered-imagenet", 3)
    for split, classes in make_truth(benchmark, 84).items():
        tiered_labels(tmp_path, split, classes, wordy=False)
        np.savez(tmp_path / f"{split}_images.npz", images=np.concatenate(list(classes.values())))
    prepare_benchmark(benchmark, tmp_path)
    assert load("tiered-imagenet", "val").class_names == ("label-000", "label-001", "label-002")


def test_large_images_are_brought_to_the_size_of_the_dataset(tmp_path, cache_home):
    benchmark = small("cub", 2)
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


def omniglot(root, benchmark):
    """Draw every character as one dark block in the upper left on white paper."""
    characters = {name.rpartition("/")[0] for names in benchmark.classes.values() for name in names}
    for character in characters:
        part = "images_background" if "Alphabet" in character else "images_evaluation"
        folder = root / part / character
        folder.mkdir(parents=True)
        paper = np.full((105, 105), 255, dtype=np.uint8)
        paper[:50, :30] = 0
        for i in range(N_EACH):
            Image.fromarray(paper).convert("1").save(folder / f"0001_{i:02d}.png")


def test_omniglot_has_bright_strokes_and_rotations_as_classes(tmp_path, cache_home):
    benchmark = small("omniglot", 8)
    omniglot(tmp_path, benchmark)
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


# --- what can be wrong -------------------------------------------------------------------------


@pytest.fixture
def folder_source(tmp_path):
    benchmark = small("mini-imagenet", 6)
    truth = make_truth(benchmark, 84)
    split_folders(tmp_path / "source", truth)
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


def test_split_lists_that_are_not_the_official_ones_are_refused(tmp_path, cache_home):
    benchmark = small("cifar-fs")
    bertinetto(tmp_path / "s", make_truth(benchmark, 32))
    lists = tmp_path / "s" / "splits" / "bertinetto"
    (lists / "val.txt").write_text("apple\n")
    message = refused(benchmark, tmp_path / "s", cache_home)
    assert f"{lists / 'val.txt'} does not list the official classes" in message


def test_an_unknown_layout_lists_the_known_ones(tmp_path, cache_home):
    (tmp_path / "s" / "something").mkdir(parents=True)
    message = refused(small("mini-imagenet"), tmp_path / "s", cache_home)
    for layout in DATASETS["mini-imagenet"].layouts:
        assert layout.description in message
    assert "image-net.org" in message


def test_a_folder_named_train_does_not_make_it_cifar(tmp_path, cache_home):
    # 'train' is a class of CIFAR-100 as well.
    split_folders(tmp_path / "s", {"train": {"pizza": np.zeros((1, 4, 4, 3), np.uint8)}})
    assert "is not a known layout" in refused(small("cifar-fs"), tmp_path / "s", cache_home)


def test_a_source_that_cannot_be_read_is_named(tmp_path, cache_home, monkeypatch):
    def denied(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(prepare, "candidate_folders", denied)
    message = refused(small("cifar-fs"), tmp_path, cache_home)
    assert f"{tmp_path} cannot be read: [Errno 13] Permission denied" in message


def test_an_image_missing_from_ravis_folder_is_named(tmp_path, cache_home):
    benchmark = small("mini-imagenet", 3)
    ravi_csv(tmp_path / "s", make_truth(benchmark, 84))
    gone = sorted((tmp_path / "s" / "images").iterdir())[0]
    gone.unlink()
    assert f"{gone} is missing" in refused(benchmark, tmp_path / "s", cache_home)


def test_a_class_in_the_wrong_csv_is_named(tmp_path, cache_home):
    benchmark = small("mini-imagenet", 3)
    ravi_csv(tmp_path / "s", make_truth(benchmark, 84))
    train = (tmp_path / "s" / "train.csv").read_text()
    other = benchmark.classes["test"][0]
    (tmp_path / "s" / "train.csv").write_text(train + f"{other}00000000.png,{other}\n")
    message = refused(benchmark, tmp_path / "s", cache_home)
    assert f"class '{other}' does not belong into split 'train'" in message


def test_a_csv_without_its_columns_is_refused(tmp_path, cache_home):
    benchmark = small("mini-imagenet", 3)
    ravi_csv(tmp_path / "s", make_truth(benchmark, 84))
    (tmp_path / "s" / "val.csv").write_text("a,b\n1,2\n")
    assert "'filename' and 'label'" in refused(benchmark, tmp_path / "s", cache_home)


def test_too_few_numbered_classes_are_refused(tmp_path, cache_home):
    benchmark = small("tiered-imagenet", 3)
    for split, classes in make_truth(benchmark, 84).items():
        kept = dict(list(classes.items())[:2]) if split == "val" else classes
        tiered_labels(tmp_path, split, kept, wordy=False)
        np.savez(tmp_path / f"{split}_images.npz", images=np.concatenate(list(kept.values())))
    assert "split 'val' must have 3 classes, has 2" in refused(benchmark, tmp_path, cache_home)


def test_a_corrupt_image_inside_a_pickle_is_named_by_its_place(tmp_path, cache_home):
    benchmark = small("tiered-imagenet", 3)
    tiered_png(tmp_path, make_truth(benchmark, 84))
    path = tmp_path / "val_images_png.pkl"
    images = pickle.loads(path.read_bytes())
    images[3] = images[3][:50]
    dump(path, images)
    name = benchmark.classes["val"][1]
    message = refused(benchmark, tmp_path, cache_home)
    assert f"image 1 of class '{name}' in {path} cannot be read as an image" in message


DAMAGES = {
    "CIFAR_FS_val.pickle": lambda data: data[: len(data) // 2],
    "CIFAR_FS_test.pickle": lambda _: pickle.dumps({"data": [1], "labels": [0]}),
    "CIFAR_FS_train.pickle": lambda _: pickle.dumps([1, 2]),
}


@pytest.mark.parametrize("file", DAMAGES)
def test_a_damaged_pickle_is_named(tmp_path, cache_home, file):
    benchmark = small("cifar-fs")
    cifar_fs_pickles(tmp_path, make_truth(benchmark, 32))
    path = tmp_path / file
    path.write_bytes(DAMAGES[file](path.read_bytes()))
    assert str(path) in refused(benchmark, tmp_path, cache_home)


def test_labels_that_do_not_fit_the_images_are_refused(tmp_path, cache_home):
    benchmark = small("cifar-fs")
    cifar_fs_pickles(tmp_path, make_truth(benchmark, 32))
    path = tmp_path / "CIFAR_FS_val.pickle"
    dump(path, pickle.loads(path.read_bytes()) | {"labels": [1, 2, 3]})
    assert "one whole number for each of its 32 images" in refused(benchmark, tmp_path, cache_home)


def test_a_truncated_npz_is_named(tmp_path, cache_home):
    benchmark = small("tiered-imagenet", 3)
    tiered_npz(tmp_path, make_truth(benchmark, 84))
    path = tmp_path / "test_images.npz"
    path.write_bytes(path.read_bytes()[:-3000])
    assert f"{path} is truncated" in refused(benchmark, tmp_path, cache_home)


def test_an_npz_of_pickled_objects_is_refused(tmp_path, cache_home):
    benchmark = small("tiered-imagenet", 3)
    tiered_npz(tmp_path, make_truth(benchmark, 84))
    np.savez(tmp_path / "train_images.npz", images=np.array([{}], dtype=object))
    assert "train_images.npz" in refused(benchmark, tmp_path, cache_home)


def test_a_malicious_pickle_in_a_source_is_refused_and_does_nothing(tmp_path, cache_home):
    class Attack:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    benchmark = small("cifar-fs")
    source = tmp_path / "source"
    cifar_100_python(source, make_truth(benchmark, 32))
    dump(source / "cifar-100-python" / "train", {"data": Attack()})
    message = refused(benchmark, source, cache_home)
    assert str(source / "cifar-100-python" / "train") in message
    assert not (tmp_path / "owned").exists()
