"""Datasets that are functions of the user, named by an address or by an entry point."""

import sys
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch

from adaptask.data import EpisodeSource, ImageSet, datasets, load, load_statistics, open_episodes
from adaptask.errors import ArgumentError, DataError
from adaptask.experiments import data_commands
from adaptask.experiments.paper.reproduction import images_per_class

PLUGIN = """
import numpy as np
import torch

from adaptask.data import ImageSet

CALLS = []
NOT_A_FUNCTION = 3


def shapes(split):
    CALLS.append(split)
    if split == "val":
        return None
    generator = torch.Generator().manual_seed(len(split))
    images = torch.randint(256, (12, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return images, ["star", "disk", "ring"] * 4


def arrays(split):
    return np.full((4, 1, 5, 5), 51, dtype=np.uint8), np.array([7, 3, 7, 3])


def image_set(split):
    images, labels = arrays(split)
    return ImageSet.from_labels(images, labels, dataset="mine", split=split)


def floats(split):
    return torch.rand(4, 3, 8, 8), [0, 0, 1, 1]


def too_few_labels(split):
    return torch.zeros(4, 3, 8, 8, dtype=torch.uint8), [0, 1]


def images_alone(split):
    return torch.zeros(4, 3, 8, 8, dtype=torch.uint8)


def other_shape(split):
    size = 8 if split == "train" else 9
    return torch.zeros(4, 3, size, size, dtype=torch.uint8), [0, 0, 1, 1]


def channels_last(split):
    return np.zeros((4, 8, 8, 3), dtype=np.uint8), [0, 0, 1, 1]


def six(split):
    return torch.zeros(5, 2, 8, 8, dtype=torch.uint8), [0, 0, 1, 1, 1]


def fails(split):
    raise KeyError("no such file")


class Holder:
    @staticmethod
    def inner(split):
        return arrays(split)
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch, cache_home):
    """A module of the user's, under a name that no other test uses."""
    name = f"plugin_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_function_of_images_and_labels_is_a_dataset(plugin):
    name = f"{plugin}:shapes"
    train = load(name, "train")
    assert (train.dataset, train.split) == (name, "train")
    assert train.class_names == ("disk", "ring", "star")
    assert train.class_starts.tolist() == [0, 4, 8, 12]
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(256, (12, 3, 8, 8), generator=generator, dtype=torch.uint8)
    assert torch.equal(train.images, images[[1, 4, 7, 10, 2, 5, 8, 11, 0, 3, 6, 9]])
    mean, deviation = load_statistics(name)
    np.testing.assert_allclose(mean, (images / 255.0).mean((0, 2, 3)), rtol=1e-5)
    assert all(0 < value < 1 for value in deviation)
    source = open_episodes(name, "test", seed=1)
    assert isinstance(source, EpisodeSource)
    assert source.draw(torch.tensor([[0, 2]]), n_shot=1, n_query=3).query_images.shape[1] == 6


def test_a_split_is_made_once_and_may_be_missing(plugin):
    name = f"{plugin}:shapes"
    assert load(name, "train") is load(name, "train")
    assert datasets.splits_of(name) == ("train", "test")
    with pytest.raises(DataError, match="has no split 'val'"):
        load(name, "val")
    module = __import__(plugin)
    assert sorted(module.CALLS) == ["test", "train", "val"]


@pytest.mark.parametrize("function", ["arrays", "image_set", "Holder.inner"])
def test_arrays_and_image_sets_will_do(plugin, function):
    found = load(f"{plugin}:{function}", "train")
    assert found.class_names == ("3", "7")
    assert found.images.shape == (4, 1, 5, 5)
    assert load_statistics(f"{plugin}:{function}") == (pytest.approx((0.2,)), (1.0,))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("floats", "must be uint8, .images x channels x height x width.*got torch.float32"),
        ("floats", r"\(255 \* images\).round\(\).to\(torch.uint8\)"),
        ("too_few_labels", r"one label per image.*4 images and labels of .* shape \(2,\)"),
        ("images_alone", "returned tensor.*must be a function of a split"),
        ("channels_last", r"shape \(4, 8, 8, 3\) for 'train', with the channels last.*transpose"),
        ("fails", "failed for 'train': KeyError: 'no such file'"),
    ],
)
def test_what_cannot_be_used_is_refused(plugin, function, message):
    with pytest.raises(DataError, match=message):
        load(f"{plugin}:{function}", "train")


def test_splits_of_different_shapes_are_refused(plugin):
    with pytest.raises(DataError, match=r"one shape in all splits; 'val' has \(3, 9, 9\)"):
        load(f"{plugin}:other_shape", "val")


def test_a_module_in_the_current_folder_is_found(plugin, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    with pytest.raises(ArgumentError, match="cannot be imported"):
        load(f"{plugin}:arrays", "train")
    monkeypatch.chdir(tmp_path)
    assert load(f"{plugin}:arrays", "train").n_classes == 2


def test_an_address_that_leads_nowhere_is_refused(plugin):
    with pytest.raises(ArgumentError, match="cannot be imported: ModuleNotFoundError"):
        load("no_such_module:shapes", "train")
    with pytest.raises(ArgumentError, match="cannot be imported: AttributeError"):
        load(f"{plugin}:no_such_function", "train")
    with pytest.raises(ArgumentError, match="is 3; it must be a function of a split"):
        load(f"{plugin}:NOT_A_FUNCTION", "train")


@pytest.fixture
def installed(plugin, monkeypatch):
    """The function under the names `shapes` and, in vain, `glyphs`, as of a package."""
    points = [
        EntryPoint(name, f"{plugin}:shapes", "adaptask.datasets") for name in ("shapes", "glyphs")
    ]
    monkeypatch.setattr(datasets, "entry_points", lambda group: points)
    datasets._installed.cache_clear()
    yield "shapes"
    datasets._installed.cache_clear()


def test_an_installed_dataset_has_a_name(installed, plugin, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert load(installed, "train").n_classes == 3
    assert not datasets.is_plugin("glyphs")
    data_commands.list_datasets()
    lines = capsys.readouterr().out.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("shapes")]
    assert "plug-in" in lines[at]
    assert f"{plugin}:shapes" in lines[at + 1]
    with pytest.raises(ArgumentError, match="did you mean 'shapes'"):
        load("shape", "train")


def test_the_name_of_a_plugin_is_not_given_to_a_prepared_dataset(installed, tmp_path):
    """It would never be loaded: the name is the plug-in's."""
    images = [(torch.zeros(1, 4, 4), i % 3) for i in range(6)]
    with pytest.raises(ArgumentError, match="'shapes' belongs to an installed plug-in"):
        EpisodeSource.from_dataset(images, name=installed)
    with pytest.raises(ArgumentError, match="'shapes' belongs to an installed plug-in"):
        data_commands.prepare_dataset(dataset="folder", source=tmp_path, name=installed)


def test_commands_take_plugins(plugin, tmp_path, capsys):
    data_commands.check_dataset(name=f"{plugin}:shapes")
    said = capsys.readouterr().out
    assert "all 24 images were loaded" in said
    assert "No image is in more than one split." in said
    with pytest.raises(ArgumentError, match="needs no preparation"):
        data_commands.prepare_dataset(dataset=f"{plugin}:shapes", source=tmp_path)


def test_names_are_not_turned_into_emoji(plugin, capsys):
    data_commands.check_dataset(name=f"{plugin}:six")
    assert f"{plugin}:six: all 15 images" in capsys.readouterr().out


def test_the_smallest_class_of_a_plugin_is_known(plugin):
    assert images_per_class(f"{plugin}:shapes") == 4
    assert images_per_class(f"{plugin}:six") == 2


def test_images_are_grouped_by_their_labels():
    images = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1).expand(-1, 1, 2, 2)
    found = ImageSet.from_labels(images, list("bacbab"), dataset="few", split="val")
    assert found.class_names == ("a", "b", "c")
    assert found.class_starts.tolist() == [0, 2, 5, 6]
    assert found.images[:, 0, 0, 0].tolist() == [1, 4, 0, 3, 5, 2]
