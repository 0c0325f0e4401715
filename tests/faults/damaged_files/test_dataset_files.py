"""Whatever is in a dataset, prepared or not: it is read, or an error of ours comes out.

Nothing in it is executed. Each case damages a file as this package or that of others writes it.
"""

import hashlib
import io
import json
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from adaptask.data.archives import open_source
from adaptask.data.benchmarks import Benchmark
from adaptask.data.cache import check_cache, is_cache_of, read_cache, read_statistics
from adaptask.data.convert import ImageFormat, Piece, decode, problems_found
from adaptask.data.episodes import EpisodeSource
from adaptask.data.prepare import prepare_benchmark, prepare_folder
from adaptask.data.safe_pickle import load_pickle

SPLITS = ("train", "val", "test")


def forge_meta(damage):
    def forge(content, rng):
        meta = json.loads(content)
        del meta["sha256"]
        meta = damage.tree(meta, rng)
        if isinstance(meta, dict):
            told = json.dumps(meta, sort_keys=True).encode()
            meta = meta | {"sha256": hashlib.sha256(told).hexdigest()}
        return json.dumps(meta).encode()

    return forge


def forge_pickle(damage):
    def forge(content, rng):
        tree = damage.tree(pickle.loads(content), rng)
        if rng.random() < 0.2:
            harm = damage.payload()
            tree = {"data": tree, "labels": harm} if rng.random() < 0.5 else [harm, tree]
        return pickle.dumps(tree, protocol=rng.randrange(6))

    return forge


def cache_loaders(left, damage, loading):
    files = loading.files_of(left.cache)

    def read(path):
        check_cache(path.parent)

    def draw(path):
        for split in SPLITS:
            statistics = read_statistics(path.parent)
            source = EpisodeSource(read_cache(path.parent, split), normalization=statistics)
            source.draw(torch.tensor([[0, 1]]), n_shot=1, n_query=1)

    def ask(path):
        is_cache_of(path.parent, "made for the tests")

    reads = loading.each(read, draw, ask)
    beside = {name: content for name, content in files.items() if name != "meta.json"}
    return {
        "meta.json": loading.Loader(
            "meta.json", files["meta.json"], reads, forge_meta(damage), beside
        ),
        "val.npy": loading.Loader("val.npy", files["val.npy"], reads, None, files),
    }


def pixels(seed, n=2, size=4):
    return np.random.default_rng(seed).integers(256, size=(n, size, size, 3), dtype=np.uint8)


def encoded(image, kind="png", **options):
    out = io.BytesIO()
    Image.fromarray(image).save(out, kind, **options)
    return out.getvalue()


def benchmark(name, classes, size):
    """A benchmark of one or two small classes a split."""
    n_images = 2 * sum(map(len, classes.values()))
    form = ImageFormat(channels=3, height=size, width=size)
    return Benchmark(name, "", "nowhere", form, classes, (2, 2), n_images)


def source_loaders(damage, loading):
    """Layouts of benchmarks, each with one of its files damaged."""
    classes = {"train": ("a", "b"), "val": ("c",), "test": ("d",)}
    names = [name for part in classes.values() for name in part]

    def loader(name, files, chosen, forge, size=4):
        made_up = benchmark(name, classes, size)
        read = lambda path: prepare_benchmark(made_up, path.parent, workers=1)  # noqa: E731
        return loading.Loader(chosen, files[chosen], read, forge, files)

    rows = np.concatenate([pixels(i, 1, 32) for i in range(4)]).transpose(0, 3, 1, 2).reshape(4, -1)
    part = pickle.dumps({b"data": rows, b"fine_labels": [0, 1, 2, 3]}, protocol=2)
    meta = pickle.dumps({b"fine_label_names": [n.encode() for n in names]}, protocol=2)
    cifar = {"train": part, "test": part, "meta": meta}
    mini, png, npz, ravi = {}, {}, {}, {}
    for split, own in classes.items():
        images = np.concatenate([pixels(i) for i in range(len(own))])
        members = {name: [2 * i, 2 * i + 1] for i, name in enumerate(own)}
        content = {"image_data": images, "class_dict": members}
        mini[f"mini-imagenet-cache-{split}.pkl"] = pickle.dumps(content, protocol=4)
        numbers = np.repeat(np.arange(len(own)), 2)
        labels = pickle.dumps({"label_specific": numbers, "label_specific_str": list(own)})
        png[f"{split}_labels.pkl"] = npz[f"{split}_labels.pkl"] = labels
        whole = [np.frombuffer(encoded(image), dtype=np.uint8) for image in images]
        png[f"{split}_images_png.pkl"] = pickle.dumps(whole)
        archive = io.BytesIO()
        np.savez(archive, images=images)
        npz[f"{split}_images.npz"] = archive.getvalue()
        lines = [f"{name}{i}.png,{name}" for name in own for i in range(2)]
        ravi[f"{split}.csv"] = "\n".join(["filename,label", *lines, ""]).encode()
        ravi |= {f"{name}{i}.png": encoded(pixels(i)[0]) for name in own for i in range(2)}
    forged, arrays = forge_pickle(damage), damage.arrays
    return {
        "cifar-100": loader("cifar-fs", cifar, "train", forged, 32),
        "cifar-100 meta": loader("cifar-fs", cifar, "meta", forged, 32),
        "mini-imagenet": loader("mini-imagenet", mini, "mini-imagenet-cache-val.pkl", forged),
        "tiered labels": loader("tiered-imagenet", png, "train_labels.pkl", forged),
        "tiered png": loader("tiered-imagenet", png, "val_images_png.pkl", forged),
        "tiered npz": loader("tiered-imagenet", npz, "val_images.npz", arrays),
        "ravi.csv": loader("mini-imagenet", ravi, "train.csv", None),
        "pickle": loading.Loader(
            "x.pkl", mini["mini-imagenet-cache-train.pkl"], load_pickle, forged
        ),
    }


def image_loaders(damage, loading, folder):
    images = {f"{name}/0.png": encoded(pixels(i)[0]) for i, name in enumerate("abc")}
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in images.items():
            archive.writestr(name, content)
    with tarfile.open(fileobj=tarred, mode="w:gz") as archive:
        for name, content in images.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a/b"))

    def prepare(source):
        prepare_folder(source, image_size=8, workers=1)

    def extract(path):
        with open_source(path, scratch=folder / "scratch"):
            pass

    def look_at(path):
        _, problems = decode([Piece([path], "a", "here", 0, 0)], ImageFormat(3, 8, 8, turn=True))
        if problems:
            raise problems_found(problems)

    photo = pixels(0, 1, 24)[0]
    kinds = {
        "png": encoded(photo),
        "jpg": encoded(photo, "jpeg"),
        "gif": encoded(photo, "gif"),
        "webp": encoded(photo, "webp"),
        "tif": encoded(photo, "tiff", compression="tiff_lzw"),
        "bmp": encoded(photo, "bmp"),
    }
    found = {
        f"image.{kind}": loading.Loader(f"1.{kind}", content, look_at)
        for kind, content in kinds.items()
    }
    lists = {
        f"{split}.txt": f"{name}\n".encode() for split, name in zip(SPLITS, "abc", strict=True)
    }
    return found | {
        "zip": loading.Loader("x.zip", zipped.getvalue(), prepare, damage.zip),
        "tar.gz": loading.Loader("x.tar.gz", tarred.getvalue(), prepare),
        "tar": loading.Loader("x.tar", plain.getvalue(), extract),
        "lists": loading.Loader(
            "train.txt", lists["train.txt"], lambda path: prepare(path.parent), None, images | lists
        ),
    }


NAMES = (
    *("meta.json", "val.npy", "cifar-100", "cifar-100 meta", "mini-imagenet", "tiered labels"),
    *("tiered png", "tiered npz", "ravi.csv", "pickle", "image.png", "image.jpg", "image.gif"),
    *("image.webp", "image.tif", "image.bmp", "zip", "tar.gz", "tar", "lists"),
)


@pytest.fixture
def loaders(left_behind, damage, loading, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path / "caches"))
    return {
        **cache_loaders(left_behind, damage, loading),
        **source_loaders(damage, loading),
        **image_loaders(damage, loading, tmp_path),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_of_a_dataset_is_read_or_refused(name, loaders, read_damaged):
    assert loaders.keys() == set(NAMES)
    read_damaged(name, loaders[name])
