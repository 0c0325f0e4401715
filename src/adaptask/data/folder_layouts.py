"""Layouts in which every image is a file of its own."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

from adaptask.data.class_lists import SPLITS, ClassLists, class_lists
from adaptask.data.layouts import ClassImages, Layout, Splits, image_files
from adaptask.errors import DataError


def class_folders(description: str) -> Layout:
    """One folder a class, all in one place or under `train/`, `val/` and `test/`."""

    def recognises(root: Path, lists: ClassLists) -> bool:
        # Two, since a split folder can bear the name of a class: CIFAR-100 has one named 'train'.
        return _n_found(_best_places(root, lists)) >= 2

    def read(root: Path, lists: ClassLists, _: Path) -> Splits:
        # The images are CIFAR-100's: FC100 is made from the same folder, by other lists.
        if lists == class_lists("cifar-fs"):
            _check_given_lists(root / "splits" / "bertinetto", lists)
        return {
            split: [
                ClassImages(folder.name, image_files(folder), str(folder)) for folder in folders
            ]
            for split, folders in _best_places(root, lists).items()
        }

    return Layout(description, recognises, read)


def _best_places(root: Path, lists: ClassLists) -> dict[str, list[Path]]:
    """Return the folder of every class under that base in which most of them are."""
    bases = ("", "data", "images", "{split}", "data/{split}", "images/{split}")
    places = [
        {
            split: [root / base.format(split=split) / name for name in lists[split]]
            for split in SPLITS
        }
        for base in bases
    ]
    return max(places, key=_n_found)


def _n_found(places: dict[str, list[Path]]) -> int:
    return sum(folder.is_dir() for folders in places.values() for folder in folders)


def _check_given_lists(folder: Path, lists: ClassLists) -> None:
    """Refuse split lists beside the images that are not the official ones."""
    for split in SPLITS:
        file = folder / f"{split}.txt"
        if file.is_file() and set(file.read_text("utf-8-sig", "replace").split()) != set(
            lists[split]
        ):
            raise DataError(
                f"{file} does not list the official classes of '{split}'. Remove it to use the "
                "official split, or prepare the images as a dataset of your own: "
                "adaptask data prepare folder."
            )


def _csv_recognises(root: Path, _: ClassLists) -> bool:
    return all((root / f"{split}.csv").is_file() for split in SPLITS)


def _csv_read(root: Path, lists: ClassLists, _: Path) -> Splits:
    folder = root / "images" if (root / "images").is_dir() else root
    splits: dict[str, list[ClassImages]] = {}
    for split in SPLITS:
        file = root / f"{split}.csv"
        files: dict[str, list[Path]] = defaultdict(list)
        with file.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
            for row in csv.DictReader(lines):
                if not row.get("filename") or not row.get("label"):
                    raise DataError(f"{file} must have the columns 'filename' and 'label'.")
                files[row["label"]].append(folder / row["filename"])
        names = [*lists[split], *sorted(set(files) - set(lists[split]))]
        splits[split] = [ClassImages(name, files.get(name, []), str(file)) for name in names]
    return splits


RAVI_CSV = Layout(
    "train.csv, val.csv and test.csv (Ravi) beside images/", _csv_recognises, _csv_read
)


def _omniglot_recognises(root: Path, _: ClassLists) -> bool:
    return any((root / part).is_dir() for part in _OMNIGLOT_PARTS)


def _omniglot_read(root: Path, lists: ClassLists, _: Path) -> Splits:
    return {split: [_omniglot_class(root, name) for name in lists[split]] for split in SPLITS}


def _omniglot_class(root: Path, name: str) -> ClassImages:
    character, _, rotation = name.rpartition("/rot")
    places = [root / part / character for part in _OMNIGLOT_PARTS]
    folder = next((place for place in places if place.is_dir()), places[0])
    return ClassImages(name, image_files(folder), str(folder), rotation=int(rotation))


_OMNIGLOT_PARTS = ("images_background", "images_evaluation")

OMNIGLOT = Layout(
    "images_background/ and images_evaluation/, alphabet/character/*.png",
    _omniglot_recognises,
    _omniglot_read,
)
