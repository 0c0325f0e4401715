"""The benchmarks of the field: images, official class lists, and where to get them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from adaptask.data.convert import ImageFormat
from adaptask.data.download import RemoteFile
from adaptask.data.images import SPLITS
from adaptask.data.layouts import LAYOUTS, ClassLists, Layout

OMNIGLOT_ROTATIONS = (0, 90, 180, 270)


@cache
def class_lists(dataset: str) -> ClassLists:
    """Return the classes of each split of a benchmark, such as `cifar-fs`.

    >>> {split: len(names) for split, names in class_lists("cifar-fs").items()}
    {'train': 64, 'val': 16, 'test': 20}
    """
    file = resources.files("adaptask.data") / "splits" / f"{dataset}.json"
    splits = json.loads(file.read_text(encoding="utf-8"))["splits"]
    return {split: tuple(splits[split]) for split in SPLITS}


@cache
def _superclasses() -> dict[str, str]:
    file = resources.files("adaptask.data") / "splits" / "cifar-100-superclasses.json"
    superclasses = json.loads(file.read_text(encoding="utf-8"))["superclasses"]
    return {name: group for group, names in superclasses.items() for name in names}


def superclass_of(name: str) -> str | None:
    """Return the superclass of a class of CIFAR-100, one of 20; None for a name it does not have.

    >>> superclass_of("otter")
    'aquatic_mammals'
    """
    return _superclasses().get(name)


def with_rotations(lists: ClassLists) -> ClassLists:
    """Return class lists in which each class appears four times, turned by quarter circles."""
    return {
        split: tuple(f"{name}/rot{angle:03d}" for name in names for angle in OMNIGLOT_ROTATIONS)
        for split, names in lists.items()
    }


@dataclass(frozen=True)
class Benchmark:
    """A dataset of the field, prepared once from the files that the user has."""

    name: str
    description: str
    home: str
    """Where the data is published."""
    image_format: ImageFormat
    classes: ClassLists
    class_size: tuple[int, int]
    """Fewest and most images of a class."""
    n_images: int
    """Number of images of all splits together."""
    in_folders: bool = True
    """Whether a class can be a folder of its name."""
    files: tuple[RemoteFile, ...] = ()
    """What `adaptask data download` fetches; none if the home is closed."""
    group_of: Callable[[str], str | None] | None = None
    """The group of a class by its name, if names do not have the form group/class."""

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts in which it can be read."""
        own = [layout for layout in LAYOUTS if self.name in layout.benchmarks]
        common = [layout for layout in LAYOUTS if not layout.benchmarks and self.in_folders]
        return (*own, *common)

    @property
    def augmentation(self) -> str:
        """What is usual for its training images: nothing for gray characters."""
        return "crop-flip" if self.image_format.channels == 3 else "none"


_CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/cifar.html (cifar-100-python.tar.gz)"
_CIFAR_100 = RemoteFile(
    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    169_001_437,
    "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
)
_OMNIGLOT = "https://github.com/brendenlake/omniglot/raw/master/python/"
_IMAGENET_HOME = "https://image-net.org (ILSVRC 2012, after registration)"

BENCHMARKS = (
    Benchmark(
        name="cifar-fs",
        description="CIFAR-100, Bertinetto's split",
        home=_CIFAR_HOME,
        image_format=ImageFormat(channels=3, height=32, width=32),
        classes=class_lists("cifar-fs"),
        class_size=(600, 600),
        n_images=60_000,
        files=(_CIFAR_100,),
        group_of=superclass_of,
    ),
    Benchmark(
        name="fc100",
        description="CIFAR-100, split by superclass",
        home=_CIFAR_HOME,
        image_format=ImageFormat(channels=3, height=32, width=32),
        classes=class_lists("fc100"),
        class_size=(600, 600),
        n_images=60_000,
        files=(_CIFAR_100,),
        group_of=superclass_of,
    ),
    Benchmark(
        name="mini-imagenet",
        description="ImageNet, Ravi's split",
        home=_IMAGENET_HOME + ", with the lists of Ravi and Larochelle",
        image_format=ImageFormat(channels=3, height=84, width=84),
        classes=class_lists("mini-imagenet"),
        class_size=(600, 600),
        n_images=60_000,
    ),
    Benchmark(
        name="tiered-imagenet",
        description="ImageNet, split by parent class",
        home=_IMAGENET_HOME + ", or as published by Ren et al.",
        image_format=ImageFormat(channels=3, height=84, width=84),
        classes=class_lists("tiered-imagenet"),
        class_size=(732, 1300),
        n_images=779_165,
    ),
    Benchmark(
        name="omniglot",
        description="characters in 4 rotations, Vinyals' split",
        home="https://github.com/brendenlake/omniglot (images_background, images_evaluation)",
        image_format=ImageFormat(channels=1, height=28, width=28, invert=True),
        classes=with_rotations(class_lists("omniglot")),
        class_size=(20, 20),
        n_images=129_840,
        in_folders=False,
        files=(
            RemoteFile(
                _OMNIGLOT + "images_background.zip",
                9_464_212,
                "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
            ),
            RemoteFile(
                _OMNIGLOT + "images_evaluation.zip",
                6_462_886,
                "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
            ),
        ),
    ),
    Benchmark(
        name="cub",
        description="birds of CUB-200-2011",
        home="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        image_format=ImageFormat(channels=3, height=84, width=84),
        classes=class_lists("cub"),
        class_size=(41, 60),
        n_images=11_788,
        files=(
            RemoteFile(
                "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
                1_150_585_339,
                "0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
            ),
        ),
    ),
)
"""Every benchmark that `adaptask data prepare` knows."""
