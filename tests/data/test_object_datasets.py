"""Datasets that are objects: with the interface of torchvision's and of Hugging Face's."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from adaptask.data import EpisodeSource, load, open_episodes
from adaptask.errors import ArgumentError, DataError

PALETTE = np.random.default_rng(0).integers(256, size=(6, 5, 8, 9, 3), dtype=np.uint8)


class Pictures:
    """As torchvision's ImageFolder: images of Pillow and numbers, and the names of classes."""

    classes = ("ant", "bee", "cat", "dog", "emu", "fox")

    def __init__(self, transform=Image.fromarray, label=int):
        self.transform, self.label = transform, label

    def __len__(self):
        return 30

    def __getitem__(self, i):
        if i >= len(self):
            raise IndexError(i)
        return self.transform(PALETTE[i % 6, i // 6]), self.label(i % 6)


class ClassLabel:
    names = Pictures.classes


class Rows:
    """As a Hugging Face `Dataset`: rows, with the names of classes beside."""

    features = {"img": object(), "kind": ClassLabel()}  # noqa: RUF012 (as theirs)

    def __len__(self):
        return 30

    def __getitem__(self, i):
        return {"img": Image.fromarray(PALETTE[i % 6, i // 6]), "kind": i % 6, "id": i}


def pixels(source):
    return source.image_set.images.view(-1, 5, *source.image_set.image_shape)


EXPECTED = torch.tensor(PALETTE).permute(0, 1, 4, 2, 3)


def channels_first(image):
    return torch.tensor(image).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Pictures(), {}),
        (Pictures(label=np.int64), {}),
        (Pictures(label=torch.tensor), {}),
        (Pictures(transform=channels_first), {}),
        (Pictures(transform=lambda image: channels_first(image) / 255), {}),
        (Pictures(transform=lambda image: np.moveaxis(image, -1, 0)), {}),
        (Rows(), {"columns": ("img", "kind")}),
        ([Pictures()[i] for i in range(30)], {}),
    ],
)
def test_every_pixel_goes_to_its_class(dataset, options):
    source = EpisodeSource.from_dataset(dataset, **options)
    assert torch.equal(pixels(source), EXPECTED)
    has_names = not isinstance(dataset, list)
    assert source.image_set.class_names == (Pictures.classes if has_names else tuple("012345"))
    episodes = source.draw(torch.tensor([[3, 1]]), n_shot=2, n_query=3)
    together = torch.cat((episodes.support_images, episodes.query_images), 1)
    assert together.shape == (1, 10, 3, 8, 9)


def test_images_are_normalized_with_the_statistics_of_training_classes():
    sources = EpisodeSource.from_dataset(
        Pictures(), class_splits={"train": ["cat", "ant"], "test": ["dog", "fox"]}
    )
    assert sources["train"].image_set.class_names == ("cat", "ant")
    assert torch.equal(pixels(sources["test"]), EXPECTED[[3, 5]])
    trained = EXPECTED[[2, 0]].double() / 255
    for source in sources.values():
        mean, deviation = source.normalization
        torch.testing.assert_close(
            torch.tensor(mean, dtype=torch.float64), trained.mean((0, 1, 3, 4))
        )
        torch.testing.assert_close(
            torch.tensor(deviation, dtype=torch.float64), trained.std((0, 1, 3, 4), correction=0)
        )


def test_only_training_images_are_augmented():
    sources = EpisodeSource.from_dataset(
        Pictures(), class_splits=(0.5, 0.0, 0.5), augmentation="crop-flip", normalization=None
    )
    ids = torch.tensor([[0, 1]])
    seen = {split: s.draw(ids, n_shot=2, n_query=3) for split, s in sources.items()}
    for split, episodes in seen.items():
        known = pixels(sources[split]).flatten(0, 1) / 255
        found = torch.cdist(episodes.query_images[0].flatten(1), known.flatten(1)).min(1).values
        assert (found.max() < 1e-4) == (split == "test")


def test_workers_read_the_same():
    with_workers = EpisodeSource.from_dataset(Pictures(), workers=2)
    assert torch.equal(pixels(with_workers), EXPECTED)


def test_the_global_generator_and_the_progress_are_as_expected():
    state, seen = torch.get_rng_state(), []
    EpisodeSource.from_dataset(Pictures(), progress=lambda done, n: seen.append((done, n)))
    assert seen[-1] == (30, 30)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_terminal_shows_the_progress(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    EpisodeSource.from_dataset(Pictures())
    assert capsys.readouterr().err.endswith("reading 30 of 30 images\n")


def test_images_can_be_resized_and_gray():
    source = EpisodeSource.from_dataset(Pictures(), image_size=16, gray=True)
    assert source.image_set.image_shape == (1, 16, 16)
    tensors = EpisodeSource.from_dataset(
        Pictures(transform=channels_first), image_size=16, gray=True
    )
    assert torch.equal(pixels(tensors), pixels(source))


def test_a_name_keeps_them_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path))
    sources = EpisodeSource.from_dataset(Pictures(), name="pets", class_splits=(0.5, 0.0, 0.5))
    assert sources["train"].image_set.file is not None  # mapped from there
    again = open_episodes("pets", "test")
    assert torch.equal(again.image_set.images, sources["test"].image_set.images)
    ids = torch.tensor([[0, 2]])
    first, second = (s.draw(ids, n_shot=1, n_query=2) for s in (sources["test"], again))
    assert torch.equal(first.query_images, second.query_images)
    with pytest.raises(DataError, match="item 0 of the dataset cannot be used"):
        EpisodeSource.from_dataset(Pictures(transform=None), name="pets")
    assert load("pets", "train").n_classes == 3
    with pytest.raises(ArgumentError, match="belongs to a dataset of the package"):
        EpisodeSource.from_dataset(Pictures(), name="cub")


@pytest.mark.parametrize(
    "option",
    [{"augmentation": "blur"}, {"normalization": ((0.5,), (0.5,))}, {"seed": -1}, {"storag": "x"}],
)
def test_options_that_are_refused_leave_the_cache_as_it_was(option, tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path))
    EpisodeSource.from_dataset(Pictures(), name="pets", class_splits=(0.5, 0.0, 0.5))
    for name in ("pets", "new"):
        with pytest.raises((ArgumentError, TypeError)):
            EpisodeSource.from_dataset(Pictures(), name=name, **option)
    assert load("pets", "train").n_classes == 3
    assert [path.name for path in tmp_path.iterdir()] == ["pets"]


def test_an_item_that_fails_in_a_worker_is_named_like_any_other():
    messages = []
    for workers in (0, 2):
        with pytest.raises(DataError) as refusal:
            EpisodeSource.from_dataset(Pictures(transform=broken), workers=workers)
        messages.append(str(refusal.value))
    assert messages[0] == messages[1]


def test_a_dataset_of_vectors_is_one_of_features():
    vectors, labels = torch.randn(30, 7), torch.arange(30) % 3
    source = EpisodeSource.from_dataset(TensorDataset(vectors, labels))
    assert source.image_set.holds_features
    assert torch.equal(source.image_set.images[:10].flatten(1), vectors[labels == 0])


def test_vectors_of_plain_numbers_are_float32():
    rows = [{"image": [float(i), 0.5], "label": i % 3} for i in range(12)]  # as Hugging Face has it
    images = EpisodeSource.from_dataset(rows).image_set.images
    assert images.dtype == torch.float32
    assert images[:4, 0, 0, 0].tolist() == [0, 3, 6, 9]


def test_integers_that_are_bytes_are_bytes():
    dataset = Pictures(transform=lambda image: channels_first(image).long())
    assert torch.equal(pixels(EpisodeSource.from_dataset(dataset)), EXPECTED)


class Others(Pictures):
    classes = ("a", "b", "c", "d", "e", "f")


def test_parts_of_a_dataset_have_its_names():
    def names(dataset):
        return EpisodeSource.from_dataset(dataset).image_set.class_names

    part = Subset(Pictures(), range(0, 20, 2))
    assert names(part) == ("ant", "cat", "emu")
    assert names(ConcatDataset([Pictures(), part])) == Pictures.classes
    assert names(ConcatDataset([Pictures(), Others()])) == tuple("012345")


class Unsized:
    def __getitem__(self, i):
        return None


def broken(_):
    raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Unsized(), "must be map-style"),
        (iter([]), "must be map-style"),
        ([], "with one item or more"),
        (Pictures(transform=broken), "item 0 of .* OSError: the disk is gone"),
        (Pictures(transform=lambda image: channels_first(image) / 255 - 0.5), "floats from 0 to 1"),
        (Pictures(transform=lambda image: torch.full((3, 8, 9), torch.nan)), "floats from 0 to 1"),
        (Pictures(transform=lambda image: image[:, :, 0]), "channels x height x width"),
        (Pictures(transform=lambda image: channels_first(image).long() * 2), "from 0 to 255"),
        (Pictures(transform=lambda image: {"bytes": b"x"}), "of Pillow, or channels .*got {'bytes"),
        (Pictures(label=lambda i: torch.tensor([0, 1])), "a label is an integer or a name"),
        (Pictures(label=float), "a label is an integer or a name"),
        (Pictures(transform=lambda image: torch.rand(5).bfloat16()), r"bfloat16 .*x.float\(\)"),
        (Pictures(transform=lambda image: np.arange(5)), "a vector of floats; got int64 of shape"),
        (Pictures(transform=lambda image: image[:, :, :0]), r"got uint8 of shape \(8, 9, 0\)"),
        (Pictures(label=lambda i: i if i else "ant"), "all integers or all names"),
        (Pictures(label=lambda i: 3), "one class, 'dog'; a task needs at least 2"),
        (Rows(), r"it has no column 'image' or 'label', only \['img', 'kind', 'id'\]; name those"),
        ([(1, 2, 3)] * 4, "expected an image and a label"),
        (
            [(Image.new("L", (4 + i, 4)), i) for i in range(3)],
            r"item 1 is uint8 of shape \(3, 4, 5\).*Give image_size",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(dataset, message):
    with pytest.raises((ArgumentError, DataError), match=message):
        EpisodeSource.from_dataset(dataset)


@pytest.mark.parametrize("shape", [(7,), (4, 8, 9), (2, 8, 9)])
@pytest.mark.parametrize("options", [{"image_size": 8}, {"gray": True}])
def test_only_pictures_are_resized_and_made_gray(shape, options):
    dataset = Pictures(transform=lambda image: torch.zeros(shape))
    assert EpisodeSource.from_dataset(dataset).image_set.image_shape[0] == shape[0]
    with pytest.raises(DataError, match="image_size and gray are for images of 1 or 3 channels"):
        EpisodeSource.from_dataset(dataset, **options)


def test_names_that_do_not_fit_are_not_used():
    for names in (("ant", "bee"), ("ant",) * 6, (("a", "b"),) * 6):
        dataset = Pictures()
        dataset.classes = names
        assert EpisodeSource.from_dataset(dataset).image_set.class_names == tuple("012345")


def test_a_dataset_of_torchvision(tmp_path):
    datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")
    for i, name in enumerate(Pictures.classes):
        (tmp_path / name).mkdir()
        for j, image in enumerate(PALETTE[i]):
            Image.fromarray(image).save(tmp_path / name / f"{j}.png")
    source = EpisodeSource.from_dataset(datasets.ImageFolder(tmp_path))
    assert torch.equal(pixels(source), EXPECTED)
    assert source.image_set.class_names == Pictures.classes


def test_a_source_shows_what_it_holds():
    shown = repr(EpisodeSource.from_dataset(TensorDataset(torch.rand(6, 3, 4, 4), torch.arange(6))))
    expected = "ImageSet('dataset', 'train': 6 classes, 6 x 3 x 4 x 4)"
    assert shown == f"EpisodeSource({expected}, device='cpu')"
