"""Features as a dataset: from files and arrays to episodes, and what is refused on the way."""

import io
import json
import pickle
import shutil
import time
import zipfile

import numpy as np
import pytest
import torch

from adaptask.backbones import build_backbone
from adaptask.data import EpisodeSource, ImageSet, channel_statistics, load, open_episodes
from adaptask.data.augmentation import GaussianNoise
from adaptask.data.cache import cache_root, check_cache, write_cache
from adaptask.data.images import resize_images, shrink_images
from adaptask.data.prepare import prepare_features
from adaptask.errors import AdaptaskError, ArgumentError, DataError
from adaptask.experiments.data_commands import check_dataset, prepare_dataset
from adaptask.learners import build_learner
from adaptask.samplers import build_sampler
from adaptask.training import Evaluator, Trainer

N_CLASSES, N_VECTORS, SIZE = 12, 20, 7


@pytest.fixture
def cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def features_and_labels(dtype=np.float32, names=False):
    """Vectors around the mean of their class, in random order."""
    random = np.random.default_rng(0)
    labels = random.permutation(np.repeat(np.arange(N_CLASSES), N_VECTORS))
    means = 3 * random.standard_normal((N_CLASSES, SIZE))
    features = (means[labels] + random.standard_normal((len(labels), SIZE))).astype(dtype)
    return features, np.array([f"class-{i:02}" for i in labels]) if names else labels


def write_safetensors(path, tensors):
    header, content = {"__metadata__": {"by": "a test"}}, b""
    kinds = {"f2": "F16", "f4": "F32", "f8": "F64", "i8": "I64", "i1": "I8"}
    for name, array in tensors.items():
        end = len(content) + array.nbytes
        kind = kinds[array.dtype.str[1:]]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [len(content), end]}
        content += array.tobytes()
    words = json.dumps(header).encode()
    path.write_bytes(len(words).to_bytes(8, "little") + words + content)


def per_class(features, labels):
    return {f"class-{int(label):02}": features[labels == label] for label in np.unique(labels)}


def write_npz(folder, features, labels):
    np.savez(folder / "x.npz", features=features, labels=labels)
    return folder / "x.npz"


def write_compressed_classes(folder, features, labels):
    np.savez_compressed(folder / "x.npz", **per_class(features, labels))
    return folder / "x.npz"


def write_npy_pair(folder, features, labels):
    np.save(folder / "features.npy", features)
    np.save(folder / "labels.npy", labels)
    return folder / "features.npy"


def write_npy_pair_as_folder(folder, features, labels):
    return write_npy_pair(folder, features, labels).parent


def write_tensors(folder, features, labels):
    write_safetensors(folder / "x.safetensors", {"features": features, "labels": labels})
    return folder / "x.safetensors"


def write_tensors_of_classes(folder, features, labels):
    write_safetensors(folder / "x.safetensors", per_class(features, labels))
    return folder / "x.safetensors"


def write_a_file_per_class(folder, features, labels):
    for name, rows in per_class(features, labels).items():
        np.save(folder / f"{name}.npy", rows)
    return folder


def write_shards(folder, features, labels):
    for i in range(0, len(features), 50):
        np.savez(
            folder / f"shard-{i}.npz", features=features[i : i + 50], labels=labels[i : i + 50]
        )
    return folder


FORMS = [
    *(write_npz, write_compressed_classes, write_npy_pair, write_npy_pair_as_folder),
    *(write_tensors, write_tensors_of_classes, write_a_file_per_class, write_shards),
]


def as_sets(name):
    """The vectors of every class of a prepared dataset, as sets of bytes."""
    found = {}
    for split in ("train", "val", "test"):
        image_set = load(name, split)
        starts = image_set.class_starts.tolist()
        for i, class_name in enumerate(image_set.class_names):
            rows = image_set.images[starts[i] : starts[i + 1]].flatten(1).numpy()
            found[class_name] = {row.tobytes() for row in rows}
    return found


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("write", FORMS)
def test_every_form_gives_every_vector_to_its_class(write, dtype, tmp_path, cache_home):
    features, labels = features_and_labels(dtype)
    (tmp_path / "source").mkdir()
    source = write(tmp_path / "source", features, labels)
    done = prepare_features(source, name="mine")
    assert done.n_classes == {"train": 8, "val": 2, "test": 2}
    assert sum(done.n_images.values()) == len(features)
    assert not done.left_out
    train = load("mine", "train")
    assert train.holds_features
    assert train.image_shape == (SIZE, 1, 1)
    assert str(train.images.dtype) == f"torch.{np.dtype(dtype)}"
    expected = {
        int(k[-2:]): {r.tobytes() for r in v} for k, v in per_class(features, labels).items()
    }
    assert {int(name.split("-")[-1]): rows for name, rows in as_sets("mine").items()} == expected
    assert check_cache(done.folder).n_images == len(features)


def test_names_of_classes_can_be_labels(tmp_path, cache_home):
    features, labels = features_and_labels(names=True)
    prepare_features(write_npz(tmp_path, features, labels), name="mine")
    assert set(as_sets("mine")) == {f"class-{i:02}" for i in range(N_CLASSES)}


def split_files(folder, features, labels, *, npy):
    for split, low, high in (("train", 0, 6), ("val", 6, 9), ("test", 9, 12)):
        chosen = (labels >= low) & (labels < high)
        if npy:
            np.save(folder / f"{split}_features.npy", features[chosen])
            np.save(folder / f"{split}_labels.npy", labels[chosen])
        else:
            np.savez(folder / f"{split}.npz", features=features[chosen], labels=labels[chosen])


@pytest.mark.parametrize("npy", [False, True])
def test_files_called_train_val_and_test_are_the_splits(npy, tmp_path, cache_home):
    source = tmp_path / "source"
    source.mkdir()
    split_files(source, *features_and_labels(), npy=npy)
    (source / "notes.md").write_text("by a network")
    done = prepare_features(source, name="mine")
    assert done.n_classes == {"train": 6, "val": 3, "test": 3}
    assert load("mine", "test").class_names == ("9", "10", "11")
    assert [what.split()[0] for what in done.left_out] == ["notes.md"]
    with pytest.raises(ArgumentError, match="the files train, val and test decide"):
        prepare_features(source, name="mine", seed=3)


def test_folders_called_train_and_test_are_splits_too(tmp_path, cache_home):
    features, labels = features_and_labels()
    for split, low, high in (("train", 0, 8), ("test", 8, 12)):
        (tmp_path / "source" / split).mkdir(parents=True)
        chosen = (labels >= low) & (labels < high)
        write_a_file_per_class(tmp_path / "source" / split, features[chosen], labels[chosen])
    assert prepare_features(tmp_path / "source").n_classes == {"train": 8, "test": 4}
    assert load("features", "test").class_names[0] == "class-08"


def test_classes_of_several_files_are_put_together_and_it_is_said(tmp_path, cache_home):
    features, labels = features_and_labels()
    (tmp_path / "source").mkdir()
    np.savez(tmp_path / "source/a.npz", features=features[:100], labels=labels[:100])
    np.savez(tmp_path / "source/b.npz", features=features[100:], labels=labels[100:])
    done = prepare_features(tmp_path / "source", name="mine")
    assert sum(done.n_classes.values()) == N_CLASSES
    assert done.source.endswith("; 12 classes were put together from several files by their labels")


def test_lists_decide_the_splits(tmp_path, cache_home):
    source = tmp_path / "source"
    source.mkdir()
    write_a_file_per_class(source, *features_and_labels())
    (source / "train.txt").write_text("class-03\nclass-01\n")
    (source / "test.txt").write_text("class-02\n")
    done = prepare_features(source, name="mine")
    assert load("mine", "train").class_names == ("class-03", "class-01")
    assert len(done.left_out) == 9


def test_an_archive_of_files_is_a_source(tmp_path, cache_home):
    (tmp_path / "source").mkdir()
    split_files(tmp_path / "source", *features_and_labels(), npy=True)
    shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path / "source")
    done = prepare_features(tmp_path / "x.zip", name="mine")
    assert done.n_classes == {"train": 6, "val": 3, "test": 3}
    assert str(tmp_path) not in done.source


@pytest.mark.parametrize("wrapped_in", ["dino", "data/dino"])
def test_a_folder_around_the_files_is_opened(wrapped_in, tmp_path, cache_home):
    """As it is in an archive of a folder."""
    folder = tmp_path / "source" / wrapped_in
    folder.mkdir(parents=True)
    write_npz(folder, *features_and_labels())
    (tmp_path / "source" / "README.md").write_text("by a network")
    (folder / "train.txt").write_text("0\n3\n")
    shutil.make_archive(str(tmp_path / "x"), "gztar", tmp_path / "source")
    for source in (tmp_path / "source", tmp_path / "x.tar.gz"):
        prepare_features(source, name="mine")
        assert load("mine", "train").class_names == ("0", "3")


def test_groups_of_classes_are_not_divided(tmp_path, cache_home):
    features, labels = features_and_labels()
    names = np.array([f"group-{label % 4}/class-{label}" for label in labels])
    done = prepare_features(write_npz(tmp_path, features, names), name="mine")
    assert "split by group at random" in done.source
    groups = [set(load("mine", split).groups) for split in ("train", "val", "test")]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 4


def test_the_same_seed_splits_as_for_images_and_another_differently(tmp_path, cache_home):
    source = write_npz(tmp_path, *features_and_labels())
    chosen = []
    for seed in (None, 0, 1):
        prepare_features(source, name="mine", fractions=(0.5, 0.0, 0.5), seed=seed)
        chosen.append(load("mine", "train").class_names)
    assert chosen[0] == chosen[1] != chosen[2]
    assert len(chosen[0]) == 6


def test_statistics_are_those_of_the_training_vectors(tmp_path, cache_home):
    features, labels = features_and_labels(np.float16)
    features[:, 3] = 2  # constant
    prepare_features(write_npz(tmp_path, features, labels), name="mine")
    train = load("mine", "train").images.flatten(1).double()
    source = open_episodes("mine", "train")
    mean, deviation = source.normalization
    torch.testing.assert_close(torch.tensor(mean, dtype=torch.float64), train.mean(0))
    expected = train.std(0, correction=0)
    expected[3] = 1
    torch.testing.assert_close(torch.tensor(deviation, dtype=torch.float64), expected)
    again = channel_statistics(load("mine", "train").images)
    np.testing.assert_allclose(again, (mean, deviation), rtol=1e-9)
    episodes = source.draw(torch.arange(5)[None], n_shot=10, n_query=10)
    vectors = torch.cat((episodes.support_images, episodes.query_images), 1)[0].flatten(1)
    rows = ((train - train.mean(0)) / expected).float()
    assert vectors.dtype == torch.float32
    nearest = torch.cdist(vectors, rows).min(1).values
    assert nearest.max() < 1e-2


# --- bad input ------------------------------------------------------------------------------------


class Explodes:
    def __reduce__(self):
        return pytest.fail, ("a pickle was executed",)


def nan(folder, features, labels):
    features[[17, 30], 2] = np.nan
    return write_npz(folder, features, labels)


def infinite(folder, features, labels):
    features[17, 2] = np.inf
    return write_npy_pair(folder, features, labels)


def short_labels(folder, features, labels):
    return write_npz(folder, features, labels[:-1])


def float_labels(folder, features, labels):
    return write_npz(folder, features, labels.astype(np.float32))


def labels_of_bytes(folder, features, labels):
    return write_npz(folder, features, labels.astype(bytes))


def files_of_other_names(folder, features, labels):
    np.save(folder / "X.npy", features)
    np.save(folder / "y.npy", labels)
    return folder


def one_class(folder, features, labels):
    return write_npz(folder, features, labels * 0)


def two_classes(folder, features, labels):
    return write_npz(folder, features, labels % 2)


def doubles(folder, features, labels):
    return write_npz(folder, features.astype(np.float64), labels)


def bytes_(folder, features, labels):
    return write_tensors(folder, features.astype(np.int8), labels)


def cubes(folder, features, labels):
    return write_npz(folder, features[:, :, None], labels)


def no_labels(folder, features, labels):
    np.save(folder / "features.npy", features)
    return folder / "features.npy"


def empty_class(folder, features, labels):
    np.savez(folder / "x.npz", a=features[:0], b=features, c=features)
    return folder / "x.npz"


def two_sizes(folder, features, labels):
    np.savez(folder / "x.npz", a=features, b=features[:, 1:], c=features)
    return folder / "x.npz"


def two_types(folder, features, labels):
    np.savez(folder / "x.npz", a=features, b=features.astype(np.float16), c=features)
    return folder / "x.npz"


def objects(folder, features, labels):
    array = np.array([Explodes()] * len(labels), dtype=object)
    np.savez(folder / "x.npz", features=features, labels=array, allow_pickle=True)
    return folder / "x.npz"


def a_pickle(folder, features, labels):
    (folder / "x.npy").write_bytes(pickle.dumps(Explodes()))
    return folder / "x.npy"


def cut(write):
    def cut_short(folder, features, labels):
        path = write(folder, features, labels)
        path.write_bytes(path.read_bytes()[: -len(path.read_bytes()) // 3])
        return path

    cut_short.__name__ = f"cut_short_{write.__name__}"
    return cut_short


def a_header_that_lies(folder, features, labels):
    member = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**9, 10**6)}
    np.lib.format.write_array_header_1_0(member, header)
    with zipfile.ZipFile(folder / "x.npz", "w") as archive:
        archive.writestr("../features.npy", member.getvalue())
    return folder / "x.npz"


def bfloat16(folder, features, labels):
    words = json.dumps({"a": {"dtype": "BF16", "shape": [2, 1], "data_offsets": [0, 4]}}).encode()
    path = folder / "x.safetensors"
    path.write_bytes(len(words).to_bytes(8, "little") + words + bytes(4))
    return path


def offsets_beyond_the_end(folder, features, labels):
    words = json.dumps({"a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [8, 16]}}).encode()
    path = folder / "x.safetensors"
    path.write_bytes(len(words).to_bytes(8, "little") + words + bytes(8))
    return path


def a_list_as_header(folder, features, labels):
    path = folder / "x.safetensors"
    path.write_bytes((2).to_bytes(8, "little") + b"[]" + bytes(8))
    return path


def shared_classes(folder, features, labels):
    np.savez(folder / "train.npz", features=features, labels=labels)
    np.savez(folder / "test.npz", features=features, labels=labels)
    return folder


def labels_that_restart(folder, features, labels):
    for name, first, end in (("train", 0, 8), ("test", 8, 12)):
        rows = (labels >= first) & (labels < end)
        np.savez(folder / f"{name}.npz", features=features[rows], labels=labels[rows] - first)
    return folder


def two_groups(folder, features, labels):
    names = np.array([f"{'ab'[label % 2]}/{label}" for label in labels])
    return write_npz(folder, features, names)


def of_torch(folder, features, labels):
    torch.save({"features": torch.tensor(features), "labels": labels}, folder / "x.pt")
    return folder / "x.pt"


def a_folder_of_torch(folder, features, labels):
    return of_torch(folder, features, labels).parent


def nothing(folder, features, labels):
    return folder / "not-there.npz"


def one_training_class(folder, features, labels):
    np.savez(folder / "train.npz", features=features, labels=labels * 0)
    np.savez(folder / "test.npz", features=features, labels=labels + 1)
    return folder


def other_files(folder, features, labels):
    (folder / "x.csv").write_text("1,2,3")
    return folder


def damaged_npy(folder, features, labels):
    path = write_npy_pair(folder, features, labels)
    path.write_bytes(b"\x93NUMPY\x09" + path.read_bytes()[7:])
    return path


BAD = {
    nan: "must be finite; .* infinite values: 2 of 240, the first in row 17, counted from 0",
    infinite: "must be finite; .* infinite values: 1 of 240, the first in row 17, counted from 0",
    short_labels: "one integer or name per vector, 240; those of .* shape \\(239,\\)",
    float_labels: "one integer or name per vector.*float32",
    labels_of_bytes: r"of .*x.npz are \|S.*Save names as labels.astype\(str\)",
    files_of_other_names: r"y.npy has 240 numbers, no vectors\..*features.npy and labels.npy",
    one_class: "one class, '0'; a task needs at least 2",
    two_classes: "2 classes cannot be split into 3 parts",
    doubles: r"must be float16 or float32; .* is float64.*astype\('float32'\)",
    bytes_: "must be float16 or float32; .* is int8",
    cubes: r"must be `vectors x size`.*\(240, 7, 1\)",
    no_labels: "features without labels; expected.*labels.npy beside features.npy",
    empty_class: r"cut short, damaged, or not what|one vector or more",
    two_sizes: "one size and type; .*'a' has vectors of 7 float32, .*'b' of 6 float32",
    two_types: "one size and type; .*'a' has vectors of 7 float32, .*'b' of 7 float16",
    objects: "Python objects",
    a_pickle: "cut short, damaged, or not what its name says",
    cut(write_npz): "cut short, damaged, or not what its name says",
    cut(write_npy_pair): "cut short, damaged, or not what its name says",
    cut(write_tensors): "cut short, damaged.*is not all there",
    a_header_that_lies: "cut short, damaged, or not what its name says",
    bfloat16: "x.safetensors cannot be read: its tensor 'a' is BF16; save it as float16 or float32",
    offsets_beyond_the_end: "'a' is not all there",
    a_list_as_header: "cut short, damaged, or not what its name says",
    shared_classes: "train.npz and test.npz in .* have 12 labels in common: 0, 1, 10, 11, 2 and 7",
    labels_that_restart: "have 4 labels in common: 0, 1, 2, 3.*from 0, save labels that differ",
    two_groups: "2 groups cannot be split into 3 parts.*or files train, val and test",
    one_training_class: "'train' must have 2 classes or more; got .'0'.",
    of_torch: r"x.pt is a pickle.*torch.load\('x.pt', .*np.savez\('features.npz'",
    a_folder_of_torch: "no features that are read. x.pt is a pickle",
    nothing: "does not exist. Give a file that ends with .npy, .npz, .safetensors",
    other_files: "has no features; expected files that end with .npy.*found x.csv",
    damaged_npy: "cut short, damaged, or not what its name says",
}


@pytest.mark.parametrize("write", BAD, ids=lambda write: write.__name__)
def test_bad_input_is_refused_with_a_reason_and_nothing_is_changed(write, tmp_path, cache_home):
    (tmp_path / "good").mkdir()
    (tmp_path / "bad").mkdir()
    prepare_features(write_npz(tmp_path / "good", *features_and_labels()), name="mine")
    before = {p.name: p.read_bytes() for p in (cache_home / "mine").iterdir()}
    source = write(tmp_path / "bad", *features_and_labels())
    with pytest.raises(DataError, match=BAD[write]):
        prepare_features(source, name="mine")
    assert {p.name: p.read_bytes() for p in (cache_home / "mine").iterdir()} == before
    with pytest.raises(DataError):
        prepare_features(source, name="new")
    assert [p.name for p in cache_home.iterdir()] == ["mine"]


@pytest.mark.parametrize("start", range(0, 200, 3))
def test_a_changed_byte_in_a_header_is_survived(start, tmp_path, cache_home):
    """It is read, or refused by an error of ours."""
    source = write_tensors(tmp_path, *features_and_labels())
    content = bytearray(source.read_bytes())
    content[start] ^= 0xFF
    source.write_bytes(content)
    try:
        prepare_features(source, name="mine")
    except AdaptaskError:
        assert not (cache_home / "mine").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f, y: (f.astype(np.float64), y), "float16 or float32; what was given is float64"),
        (lambda f, y: (f.astype(np.int8), y), "float16 or float32; what was given is int8"),
        (lambda f, y: (f.astype(np.uint8), y), "float16 or float32; what was given is uint8"),
        (lambda f, y: (torch.tensor(f).bfloat16(), y), "float32; what was given is bfloat16"),
        (lambda f, y: (f.astype(object), y), "float16 or float32; what was given is object"),
        (lambda f, y: ("x.npz", y), "must be a tensor or an array"),
        (lambda f, y: (None, y), "must be a tensor or an array.*got None"),
        (lambda f, y: (f[:, 0], y), r"`vectors x size`.*what was given has shape \(240,\)"),
        (lambda f, y: (f[:, :0], y), r"`vectors x size`.*what was given has shape \(240, 0\)"),
        (lambda f, y: (f * np.nan, y), "must be finite"),
        (lambda f, y: (f, y[1:]), "one label per vector.*got 240 vectors"),
        (lambda f, y: (f, y.astype(float)), "one label per vector"),
        (lambda f, y: (f, [None, *y[1:]]), "one label per vector.*of type object"),
        (lambda f, y: (f, np.array([np.nan, *map(str, y[1:])], object)), "of type object"),
        (lambda f, y: (f, [np.nan, *map(str, y[1:])]), "of type object"),
        (lambda f, y: (f, [2**70, *y[1:]]), "of type object"),
        (lambda f, y: (f, y * 0), "one class, '0'; a task needs at least 2"),
    ],
)
def test_bad_arrays_are_refused(change, message):
    with pytest.raises(DataError, match=message):
        EpisodeSource.from_features(*change(*features_and_labels()))


@pytest.mark.parametrize("kind", [int, np.int32, str, np.str_])
def test_labels_may_be_held_as_objects(kind):
    """As a column of a data frame holds them."""
    features, labels = features_and_labels()
    held = np.array([kind(label) for label in labels] + [None], object)[:-1]
    found = EpisodeSource.from_features(features, held).image_set
    expected = EpisodeSource.from_features(features, [kind(label) for label in labels]).image_set
    assert found.class_names == expected.class_names
    assert torch.equal(found.images, expected.images)


def test_of_vectors_of_another_type_the_shape_is_that_given():
    features, labels = features_and_labels()
    with pytest.raises(DataError, match=r"got torch.float64 of shape \(240, 7\)"):
        ImageSet.from_labels(features.astype(float), labels, dataset="mine", split="train")


def test_what_a_task_asks_for_is_refused_in_terms_of_vectors():
    source = EpisodeSource.from_features(*features_and_labels())
    with pytest.raises(DataError, match="has 20 vectors, but n_shot 10"):
        source.check_counts(10, 11)
    with pytest.raises(ArgumentError, match="shrink is for images, and features has features"):
        shrink_images(source.image_set, 2)


def test_the_commands_speak_of_vectors(tmp_path, cache_home, capsys):
    source = write_npz(tmp_path, *features_and_labels())
    prepare_dataset(dataset="features", source=source, name="mine")
    check_dataset(name="mine")
    said = capsys.readouterr().out
    assert "8 classes, 160 vectors" in said
    assert "all 240 vectors match their checksums" in said
    assert "No vector is in more than one split" in said
    assert "image" not in said


# --- episodes, augmentation and learning ----------------------------------------------------------


def test_from_features_normalizes_with_the_training_classes():
    features, labels = features_and_labels()
    sources = EpisodeSource.from_features(
        features, labels, class_splits={"train": range(8), "test": range(8, 12)}, seed=1
    )
    assert list(sources) == ["train", "test"]
    assert sources["test"].image_set.class_names == ("8", "9", "10", "11")
    train = torch.tensor(features[labels < 8])
    mean, deviation = sources["test"].normalization
    torch.testing.assert_close(torch.tensor(mean), train.mean(0))
    torch.testing.assert_close(torch.tensor(deviation), train.std(0, correction=0))
    alone = EpisodeSource.from_features(features, labels, normalization=None)
    episodes = alone.draw(torch.tensor([[3, 5]]), n_shot=1, n_query=1)
    assert (torch.tensor(features) == episodes.support_images[0, 0].flatten()).all(1).any()


@pytest.mark.parametrize("form", [torch.tensor, np.array, list, set])
def test_classes_and_fractions_of_splits_may_be_tensors_and_arrays(form):
    features, labels = features_and_labels()
    named = {"train": form([0, 1, 2]), "test": form([3, 4])}
    sources = EpisodeSource.from_features(features, labels, class_splits=named)
    assert sources["test"].image_set.class_names == ("3", "4")
    if form is not set:
        fractions = form([0.5, 0.25, 0.25])
        sources = EpisodeSource.from_features(features, labels, class_splits=fractions)
        assert {split: s.n_classes for split, s in sources.items()}["val"] == 3


def test_fractions_split_the_classes():
    sources = EpisodeSource.from_features(*features_and_labels(), class_splits=(0.5, 0.25, 0.25))
    assert {split: s.n_classes for split, s in sources.items()} == {"train": 6, "val": 3, "test": 3}


@pytest.mark.parametrize(
    ("class_splits", "message"),
    [
        ({"test": [1, 2]}, "must have the classes of 'train'"),
        ({"train": [1, 2], "holdout": [3]}, "may have those of 'val' and 'test'"),
        ({"train": [1, 2], "test": [2]}, "name a class once; twice: .'2'"),
        ({"train": [1, 99]}, "'99'. are not there"),
        ({"train": []}, "one or more different classes"),
        ({"train": 8, "test": 4}, "a list of classes for 'train'; got 8"),
        ({"train": 0.6, "test": 0.4}, "a list of classes for 'train'; got 0.6.*three numbers"),
        ({"train": "01"}, "a list of classes for 'train'; got '01'"),
        (0.8, "three fractions for train, val and test.*got 0.8"),
        (torch.tensor(0.8), "three fractions for train, val and test.*got 0.8"),
        ("train", "three fractions.*got 'train'"),
        (True, "three fractions.*got True"),
        ((0.5, 0.5), "three numbers"),
        ((0.5, 0.5, 0.5), "that sum to 1"),
    ],
)
def test_bad_class_splits_are_refused(class_splits, message):
    with pytest.raises(ArgumentError, match=message):
        EpisodeSource.from_features(*features_and_labels(), class_splits=class_splits)


def test_vectors_in_order_are_not_copied(tmp_path):
    features, labels = features_and_labels()
    order = np.argsort(labels)
    np.save(tmp_path / "x.npy", features[order])
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    source = EpisodeSource.from_features(mapped, labels[order])
    assert source.image_set.images.data_ptr() == mapped.ctypes.data


def test_noise_has_the_strength_that_it_says_and_is_for_training_alone():
    features, labels = features_and_labels()
    options = {"class_splits": (0.6, 0.2, 0.2), "seed": 3}
    plain = EpisodeSource.from_features(features, labels, **options)
    noisy = EpisodeSource.from_features(
        features, labels, augmentation=GaussianNoise(strength=0.3), **options
    )
    ids = torch.arange(7).repeat(300, 1)
    difference = [
        noisy[split].draw(ids[:, :n], n_shot=2, n_query=8).query_images
        - plain[split].draw(ids[:, :n], n_shot=2, n_query=8).query_images
        for split, n in (("train", 7), ("test", 2))
    ]
    n = difference[0].numel()
    assert abs(difference[0].std() - 0.3) < 5 * 0.3 / (2 * n) ** 0.5
    assert abs(difference[0].mean()) < 5 * 0.3 / n**0.5
    assert difference[1].abs().max() == 0
    with pytest.raises(ArgumentError, match="strength of noise must be"):
        GaussianNoise(strength=-1)


@pytest.mark.parametrize("size", [0.0, 1e-42])
def test_a_feature_too_small_to_divide_by_its_deviation_is_only_centered(
    size, tmp_path, cache_home
):
    features, labels = features_and_labels()
    features[:, 3] = size * np.sign(features[:, 3])
    prepare_features(write_npz(tmp_path, features, labels), name="mine")
    for source in (EpisodeSource.from_features(features, labels), open_episodes("mine", "train")):
        found = source.draw(torch.arange(5)[None], n_shot=5, n_query=5).query_images[:, :, 3]
        assert found.abs().max() <= 1e-41


@pytest.mark.parametrize("augmentation", [None, "noise"])
def test_a_share_is_a_part_of_the_whole(augmentation):
    features, labels = features_and_labels()
    whole, share = (
        EpisodeSource.from_features(features, labels, augmentation=augmentation, seed=3)
        for _ in range(2)
    )
    ids = torch.stack([torch.randperm(N_CLASSES)[:4] for _ in range(6)])
    expected = whole.draw(ids, n_shot=1, n_query=3).query_images[2:5]
    assert torch.equal(share.draw_share(ids, 2, 5, n_shot=1, n_query=3).query_images, expected)


def test_what_is_for_images_is_refused():
    source = EpisodeSource.from_features(*features_and_labels())
    image_set = source.image_set
    with pytest.raises(ArgumentError, match=r"features must be none, noise .* got RandomCrop"):
        EpisodeSource(image_set, augmentation="crop-flip")
    with pytest.raises(ArgumentError, match="features are not converted"):
        resize_images(image_set, (3, 32, 32))
    images = ImageSet.from_labels(
        torch.zeros(4, 3, 8, 8, dtype=torch.uint8), [0, 0, 1, 1], dataset="photos", split="test"
    )
    with pytest.raises(ArgumentError, match="photos is 3 x 8 x 8, and 7 x 1 x 1 is wanted"):
        resize_images(images, (7, 1, 1))
    assert resize_images(image_set, (SIZE, 1, 1)) is image_set


def test_options_for_images_are_refused_on_the_command_line(tmp_path, cache_home):
    source = write_npz(tmp_path, *features_and_labels())
    for option, value in (("image_size", 8), ("gray", True), ("workers", 2)):
        with pytest.raises(ArgumentError, match="is for images; features are copied"):
            prepare_dataset(dataset="features", source=source, **{option: value})
    with pytest.raises(ArgumentError, match="belongs to a dataset of the package"):
        prepare_features(source, name="folder")


@pytest.mark.parametrize("backbone", ["linear", "mlp"])
def test_training_on_features_helps_on_new_classes(backbone):
    """Half of the features are strong noise: what is learned is to leave them out."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(60), 20)
    signal = random.standard_normal((60, 8))[labels] + 0.5 * random.standard_normal((1200, 8))
    features = np.concatenate((signal, random.standard_normal((1200, 40))), 1).astype(np.float16)
    sources = EpisodeSource.from_features(features, labels, class_splits=(0.7, 0.0, 0.3))
    train, test = sources["train"], sources["test"]
    evaluator = Evaluator(test, n_way=5, n_shot=1, n_query=10, n_episodes=200)
    plain = build_learner(
        "protonet", backbone=build_backbone("identity", image_shape=train.image_set.image_shape)
    )
    torch.manual_seed(0)
    learner = build_learner(
        "protonet", backbone=build_backbone(backbone, image_shape=train.image_set.image_shape)
    )
    sampler = build_sampler("gcp", n_classes=train.n_classes, n_way=5, seed=0)
    Trainer(learner, sampler, train, n_query=10, n_tasks=4).fit(300)
    assert evaluator(learner).accuracy > evaluator(plain).accuracy + 0.1


def test_what_has_nothing_to_learn_is_said_to_have_nothing():
    source = EpisodeSource.from_features(*features_and_labels())
    learner = build_learner(
        "protonet", backbone=build_backbone("identity", image_shape=(SIZE, 1, 1))
    )
    sampler = build_sampler("uniform", n_classes=N_CLASSES, n_way=5, seed=0)
    with pytest.raises(ArgumentError, match=r"nothing to learn.*such as linear or mlp"):
        Trainer(learner, sampler, source)


def test_many_vectors_are_mapped_in_no_time(tmp_path, cache_home):
    """The time does not depend on the number of vectors: nothing is read."""
    n = 20_000
    image_set = ImageSet.from_labels(
        torch.randn(n, 768).half(), torch.arange(n) // 200, dataset="many", split="train"
    )
    write_cache(cache_root() / "many", {"train": image_set}, source="made for a test")
    start = time.perf_counter()
    source = open_episodes("many", "train")
    assert time.perf_counter() - start < 1
    assert source.image_set.images.dtype == torch.float16
    assert source.draw(torch.arange(5)[None], n_shot=1, n_query=3).query_images.shape[-3] == 768


def test_a_cache_of_features_that_is_cut_short_is_refused(tmp_path, cache_home):
    prepare_features(write_npz(tmp_path, *features_and_labels()), name="mine")
    file = cache_home / "mine" / "train.npy"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(DataError, match="is damaged"):
        load("mine", "train")
