"""The command line of `adaptask data`: parsing only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg
from tyro.extras import SubcommandApp

app = SubcommandApp()

Name = Annotated[str, arg(metavar="NAME")]


@app.command(name="list")
def data_list() -> None:
    """Show every dataset: what it is, whether it is prepared, how many classes and images."""
    from adaptask.experiments.data_commands import list_datasets

    list_datasets()


@app.command(name="prepare")
def data_prepare(
    name: Positional[Name],
    *,
    source: Path,
    called: Annotated[str | None, arg(metavar="NAME")] = None,
    image_size: Annotated[int | None, arg(metavar="PIXELS")] = None,
    grey: bool = False,
    fractions: Annotated[tuple[float, float, float] | None, arg(metavar="TRAIN VAL TEST")] = None,
    seed: Annotated[int | None, arg(metavar="INT")] = None,
    split_lists: Annotated[Path | None, arg(metavar="FOLDER")] = None,
    workers: Annotated[int | None, arg(metavar="INT")] = None,
) -> None:
    """Convert a dataset once into the cache, from any layout in which it is usually found.

    Args:
        name: A dataset of `adaptask data list`, or `folder` for images of your own.
        source: The folder or archive that has the data.
        called: For `folder`: the name under which the dataset is then known.
        image_size: For `folder`: height and width of the images.
        grey: For `folder`: make the images grey.
        fractions: For `folder`: shares of the classes for train, val and test.
        seed: For `folder`: decides which classes go where.
        split_lists: For `folder`: a folder with train.txt, val.txt and test.txt.
        workers: Number of processes; all cores by default.
    """
    from adaptask.experiments.data_commands import prepare_dataset

    prepare_dataset(
        name=name,
        source=source,
        called=called,
        image_size=image_size,
        grey=grey,
        fractions=fractions,
        seed=seed,
        split_lists=split_lists,
        workers=workers,
    )


@app.command(name="check")
def data_check(name: Positional[Name]) -> None:
    """Verify a prepared dataset and report images that are in two splits.

    Args:
        name: A prepared dataset.
    """
    from adaptask.experiments.data_commands import check_dataset

    check_dataset(name=name)


@app.command(name="sheet")
def data_sheet(
    name: Positional[Name],
    *,
    split: Literal["train", "val", "test"] = "train",
    out: Annotated[Path | None, arg(metavar="FILE")] = None,
    n_classes: int = 12,
    n_images: int = 12,
) -> None:
    """Draw a contact sheet: some images of some classes, as a PNG file.

    Args:
        name: A prepared dataset.
        split: Which split to show.
        out: Where to write; NAME-SPLIT.png by default.
        n_classes: How many classes, spread over the split.
        n_images: How many images of each.
    """
    from adaptask.experiments.data_commands import draw_sheet

    draw_sheet(name=name, split=split, out=out, n_classes=n_classes, n_images=n_images)
