import dataclasses
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from adaptask.data.benchmarks import class_lists
from adaptask.data.datasets import DATASETS
from adaptask.data.images import SPLITS


@pytest.fixture
def cache_home(tmp_path, monkeypatch):
    """Caches go into a folder of the test's own."""
    home = tmp_path / "cache"
    monkeypatch.setenv("ADAPTASK_CACHE", str(home))
    return home


@pytest.fixture
def dead_pid():
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


class RealData:
    """The real benchmarks, packed as one lossless sheet a class or alphabet."""

    def __init__(self, folder):
        self.folder = folder

    def cifar_class(self, split, name):
        """Return the images of a class of CIFAR-FS, `600 x 32 x 32 x 3`."""
        pixels = np.asarray(Image.open(self._sheet(split, name)).convert("RGB"))
        return pixels.reshape(25, 32, 24, 32, 3).swapaxes(1, 2).reshape(600, 32, 32, 3)

    def _sheet(self, split, name):
        return self.folder / "cifar_fs" / split / f"{name}.webp"

    def omniglot_alphabet(self, part, alphabet):
        """Return the drawings of an alphabet, `characters x 20 x 105 x 105`, True on paper."""
        pixels = np.asarray(Image.open(self.folder / "omniglot" / part / f"{alphabet}.png"))
        return pixels.reshape(-1, 105, 20, 105).swapaxes(1, 2).astype(bool)


@pytest.fixture(scope="session")
def real_data():
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("ADAPTASK_REAL_DATA", beside))
    if not (folder / "cifar_fs").is_dir():
        pytest.skip(f"no real data at {folder}; ADAPTASK_REAL_DATA can say where it is")
    return RealData(folder)


# --- the layouts in which people have the benchmarks, written with two images per class ---------

N_EACH = 2


def small(name, n_classes=None):
    """Return a benchmark with two images per class, and the first few classes of each split."""
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


def labeled(root, truth, files, numbers, extra=lambda _: {}):
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
    labeled(root, truth, {s: f"CIFAR_FS_{s}.pickle" for s in SPLITS}, fine_number)


def fc100_pickles(root, truth):
    labeled(root, truth, {s: f"FC100_{s}.pickle" for s in SPLITS}, fine_number)


MINI_FILES = {
    "train": "miniImageNet_category_split_train_phase_train.pickle",
    "val": "miniImageNet_category_split_val.pickle",
    "test": "miniImageNet_category_split_test.pickle",
}


def mini_category_split(root, truth):
    labeled(
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


@pytest.fixture(scope="session")
def writers():
    """Functions that lay out given images, a dictionary of classes a split, under a folder."""
    return SimpleNamespace(
        small=small,
        make_truth=make_truth,
        dump=dump,
        save_class=save_class,
        bertinetto=bertinetto,
        direct_folders=direct_folders,
        split_folders=split_folders,
        images_folder=images_folder,
        cifar_100_python=cifar_100_python,
        labeled=labeled,
        fine_number=fine_number,
        cifar_fs_pickles=cifar_fs_pickles,
        fc100_pickles=fc100_pickles,
        mini_category_split=mini_category_split,
        mini_cache=mini_cache,
        ravi_csv=ravi_csv,
        png=png,
        tiered_labels=tiered_labels,
        tiered_png=tiered_png,
        tiered_npz=tiered_npz,
        omniglot=omniglot,
    )
