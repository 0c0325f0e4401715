"""The command line of `adaptask data`: parsing only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg
from tyro.extras import SubcommandApp

app = SubcommandApp()

Name = Annotated[str, arg(metavar="NAME")]


@app.command(name="list")
def data_list() -> None:
    """Show every dataset: what it is, whether it is prepared, how many classes and images."""
    from adaptask.experiments.data_commands import list_datasets

    list_datasets()


@app.command(name="download")
def data_download(
    name: Positional[Name],
    *,
    folder: Annotated[
        Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: in the cache)")
    ] = None,
    workers: Annotated[
        int | None, arg(metavar="INT", help_behavior_hint="(default: all cores)")
    ] = None,
) -> None:
    """Download a dataset from its official home and prepare it.

    cifar-fs, fc100, omniglot and cub can be downloaded. A download that was interrupted is
    continued.

    Args:
        name: A dataset of `adaptask data list`.
        folder: Where the downloaded files are kept.
        workers: Number of processes that prepare.
    """
    from adaptask.experiments.data_commands import download_dataset

    download_dataset(name=name, folder=folder, workers=workers)


@app.command(name="prepare")
def data_prepare(
    dataset: Positional[Name],
    *,
    source: Path,
    name: Annotated[
        str | None, arg(metavar="NAME", help_behavior_hint="(default: folder, or features)")
    ] = None,
    image_size: Annotated[
        int | None, arg(metavar="PIXELS", help_behavior_hint="(default: 84)")
    ] = None,
    gray: bool = False,
    fractions: Annotated[
        tuple[float, float, float] | None,
        arg(metavar="TRAIN VAL TEST", help_behavior_hint="(default: 0.64 0.16 0.2)"),
    ] = None,
    seed: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: 0)")] = None,
    split_lists: Annotated[Path | None, arg(metavar="FOLDER")] = None,
    workers: Annotated[
        int | None, arg(metavar="INT", help_behavior_hint="(default: all cores)")
    ] = None,
) -> None:
    """Convert a dataset once into the cache, from any layout in which it is usually found.

    Args:
        dataset: A dataset of `adaptask data list`, or `folder` for your own images, or `features`
            for vectors that another network has computed.
        source: The folder or archive that has the data; of features also a .npy, .npz or
            .safetensors file.
        name: For `folder` and `features`: the name of the dataset from then on.
        image_size: For `folder`: height and width of the images.
        gray: For `folder`: make the images gray.
        fractions: For both: shares of the classes for train, val and test.
        seed: For both: decides which classes go where.
        split_lists: For both: a folder with train.txt, val.txt and test.txt.
        workers: Number of processes.
    """
    from adaptask.experiments.data_commands import prepare_dataset

    prepare_dataset(
        dataset=dataset,
        source=source,
        name=name,
        image_size=image_size,
        gray=gray,
        fractions=fractions,
        seed=seed,
        split_lists=split_lists,
        workers=workers,
    )


@app.command(name="check")
def data_check(name: Positional[Name]) -> None:
    """Verify a dataset and report images that are in two splits.

    Args:
        name: A prepared dataset, or the address of your own, package.module:function.
    """
    from adaptask.experiments.data_commands import check_dataset

    check_dataset(name=name)
