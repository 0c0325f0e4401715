"""The layouts in which people have the benchmarks on disk, and how each is read.

To add a layout, write a function that recognizes a folder and one that says where the images of
each class are, and add an entry to `LAYOUTS` at the end.
"""

from __future__ import annotations

import csv
import os
import shutil
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptask.data.images import SPLITS
from adaptask.data.safe_pickle import load_pickle
from adaptask.errors import DataError

IMAGE_SUFFIXES = {
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff"),
    *(".ppm", ".pgm"),
}

SPLIT_OF = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}

ClassLists = Mapping[str, tuple[str, ...]]
"""The classes of each split, in the order in which they are numbered."""

_Labels = np.ndarray[Any, np.dtype[np.int64]]
_Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Rows:
    """Some images of a larger array, read only when they are needed."""

    array: _Pixels
    """`images x height x width x channels`."""
    indices: Sequence[int] | _Labels

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, piece: slice) -> _Pixels:
        chosen: _Pixels = self.array[np.asarray(self.indices[piece])]
        return chosen


@dataclass(frozen=True)
class ClassImages:
    """The images of one class as they are in the source: files, encoded images or pixels."""

    name: str
    images: Sequence[Path] | Sequence[bytes] | Rows
    where: str
    """The file or folder they are in, for messages."""
    rotation: int = 0
    """By how many degrees to turn them, counterclockwise: 0, 90, 180 or 270."""

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class Found:
    """The classes of each split that were found in a source."""

    splits: Mapping[str, Sequence[ClassImages]]
    how: str = ""
    """How they were divided into splits, in words, if it is not as in the source."""
    left_out: Sequence[str] = ()
    """What was not read, each with the reason."""


@dataclass(frozen=True)
class Layout:
    """One way in which people have a dataset on disk."""

    benchmarks: tuple[str, ...]
    """The names of the benchmarks that are found like this; empty: all with folders as classes."""
    description: str
    """One line for people: in messages, in the documentation and in `meta.json`."""
    recognizes: Callable[[Path, ClassLists], bool]
    """Whether a folder is laid out like this."""
    read: Callable[[Path, ClassLists, Path], Found]
    """Find the images in a folder, given the class lists and an empty folder to work in."""


# --- one file per image ---------------------------------------------------------------------------


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what the user put into a folder: macOS adds hidden files, and a folder to zips."""
    with os.scandir(folder) as found:
        visible = [entry for entry in found if not entry.name.startswith(".")]
    return sorted((e for e in visible if e.name != "__MACOSX"), key=lambda entry: entry.name)


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder."""
    return [folder / entry.name for entry in entries(folder) if _is_folder(entry)]


def image_files(folder: Path) -> list[Path]:
    """Return the images directly in a folder, by name; a folder that does not exist has none."""
    try:
        found = entries(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / e.name for e in found if _is_image_name(e.name) and not _is_folder(e)]


def unwrap(source: Path, has_content: Callable[[Path], bool]) -> Path:
    """Return the folder with the content: archives often have a folder or two around it.

    Other files, such as a README, may be beside the inner one.
    """
    for _ in range(2):
        inside = subfolders(source)
        if len(inside) != 1 or has_content(source):
            break
        source = inside[0]
    return source


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _is_image_name(name: str) -> bool:
    return Path(name).suffix.lower() in IMAGE_SUFFIXES


def split_folders(root: Path) -> dict[str, Path]:
    """Return the folders `train`, `val` and `test` in a folder, under their usual names.

    There are none if `train` has no folders with images, nor folders of such: a class may be called
    `train` too.

    Raises:
        DataError: If there are two for one split.
    """
    found: dict[str, list[Path]] = defaultdict(list)
    for folder in subfolders(root):
        found[SPLIT_OF.get(folder.name.lower(), "")].append(folder)
    children = [child for folder in found["train"] for child in subfolders(folder)]
    if not any(image_files(f) for child in children for f in (child, *subfolders(child))):
        return {}
    for split in SPLITS:
        if len(found[split]) > 1:
            names = " and ".join(f"{folder.name}/" for folder in found[split])
            raise DataError(
                f"{root} has two folders for the split '{split}': {names}. Remove one of them, or "
                "move it elsewhere."
            )
    return {split: found[split][0] for split in SPLITS if found[split]}


def left_out_of(folders: Iterable[Path], root: Path) -> list[str]:
    """Return a count and an example of what is in the folders of classes and is not read."""
    nested: list[str] = []
    others: list[str] = []
    for folder in folders:
        for entry in entries(folder):
            if _is_folder(entry) and not entry.is_symlink():
                nested += [
                    f"{place}/{name}"
                    for place, _, names in os.walk(entry.path)
                    for name in names
                    if _is_image_name(name)
                ]
            elif _is_folder(entry) or not _is_image_name(entry.name):
                others.append(entry.path)
    found = []
    for paths, what in (
        (nested, "in subfolders of classes; images must be directly in the folder of their class"),
        (others, "that is not an image" if len(others) == 1 else "that are not images"),
    ):
        if paths:
            noun = "file" if len(paths) == 1 else "files"
            found.append(f"{len(paths):,} {noun} {what}, such as {os.path.relpath(paths[0], root)}")
    return found


def candidate_folders(source: Path, *, most: int = 64) -> Iterator[Path]:
    """Yield a folder and those in it, two levels down: archives often wrap their content."""
    level = [source]
    for _ in range(3):
        yield from level
        level = [child for folder in level for child in subfolders(folder)[:most]][:most]


def _class_folders(
    root: Path, lists: ClassLists
) -> tuple[dict[str, Path], dict[str, dict[str, Path]]]:
    """Return where the folders of classes are, by split ('' for none), and those of each class."""
    names = [name for split in SPLITS for name in lists[split]]
    best: tuple[dict[str, Path], dict[str, dict[str, Path]]] = ({"": root}, {})
    for base in (root, root / "data", root / "images"):
        if not base.is_dir():
            continue
        for places in ({"": base}, split_folders(base)):
            found = {
                name: {s: place / name for s, place in places.items() if (place / name).is_dir()}
                for name in names
            }
            found = {name: folders for name, folders in found.items() if folders}
            if len(found) > len(best[1]):
                best = places, found
    return best


def _recognizes_class_folders(root: Path, lists: ClassLists) -> bool:
    # Two, since a split folder can have the name of a class: CIFAR-100 has one named 'train'.
    return len(_class_folders(root, lists)[1]) >= 2


def _read_class_folders(root: Path, lists: ClassLists, _: Path) -> Found:
    places, folders = _class_folders(root, lists)
    splits: dict[str, list[ClassImages]] = {}
    n_moved = 0
    for split in SPLITS:
        splits[split] = []
        for name in lists[split]:
            expected = places.get(split, root) if "" not in places else places[""]
            own = folders.get(name, {split: expected / name})
            files = [file for folder in own.values() for file in image_files(folder)]
            splits[split].append(ClassImages(name, files, ", ".join(map(str, own.values()))))
            n_moved += not own.keys() <= {"", split}
    # Repositories for classifiers divide the images of each class, not the classes.
    how = f"{n_moved} classes moved to their official split" if n_moved else ""
    used = [folder for own in folders.values() for folder in own.values()]
    return Found(splits, how, left_out_of(used, root))


_CSV_PLACES = (
    "images/{file}",
    "{file}",
    "images/{label}/{file}",
    "{label}/{file}",
    "../images/{file}",
    "../images/{label}/{file}",
)


def _csv_files(root: Path, split: str) -> dict[str, list[str]]:
    """Return the names of files of each class in a csv file of Ravi and Larochelle."""
    path = root / f"{split}.csv"
    files: dict[str, list[str]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        for row in csv.DictReader(lines):
            if not row.get("filename") or not row.get("label"):
                raise DataError(f"{path} must have the columns 'filename' and 'label'.")
            files[row["label"]].append(row["filename"])
    return files


def _csv_place(root: Path, label: str, files: Sequence[str]) -> str | None:
    """Return where the images of a class are, as one of `_CSV_PLACES`, if they are anywhere."""
    for place in _CSV_PLACES:
        if files and (root / place.format(label=label, file=files[0])).is_file():
            return place
    return None


def _recognizes_csv(root: Path, lists: ClassLists) -> bool:
    if not all((root / f"{split}.csv").is_file() for split in SPLITS):
        return False
    # The lists may be beside the class folders of ImageNet, whose files have other names.
    return not _recognizes_class_folders(root, lists) or any(
        _csv_place(root, label, files) for label, files in _csv_files(root, "train").items()
    )


def _read_csv(root: Path, lists: ClassLists, _: Path) -> Found:
    splits: dict[str, list[ClassImages]] = {}
    for split in SPLITS:
        found = _csv_files(root, split)
        names = [*lists[split], *sorted(set(found) - set(lists[split]))]
        splits[split] = []
        for name in names:
            place = _csv_place(root, name, found.get(name, [])) or _CSV_PLACES[0]
            files = [root / place.format(label=name, file=file) for file in found.get(name, [])]
            splits[split].append(ClassImages(name, files, str(root / f"{split}.csv")))
    return Found(splits)


_OMNIGLOT_PARTS = ("images_background", "images_evaluation")


def _recognizes_omniglot(root: Path, _: ClassLists) -> bool:
    return any((root / part).is_dir() for part in _OMNIGLOT_PARTS)


def _read_omniglot(root: Path, lists: ClassLists, _: Path) -> Found:
    return Found(
        {split: [_omniglot_class(root, name) for name in lists[split]] for split in SPLITS}
    )


def _omniglot_class(root: Path, name: str) -> ClassImages:
    character, _, rotation = name.rpartition("/rot")
    places = [root / part / character for part in _OMNIGLOT_PARTS]
    folder = next((place for place in places if place.is_dir()), places[0])
    return ClassImages(name, image_files(folder), str(folder), rotation=int(rotation))


# --- one pickle, or one archive of arrays, per split ----------------------------------------------


def _has(*names: str) -> Callable[[Path, ClassLists], bool]:
    return lambda root, _: all((root / name).is_file() for name in names)


def _get(content: Any, key: str, path: Path) -> Any:
    if not isinstance(content, dict) or key not in content:
        found = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise DataError(f"{path} must be a dictionary with '{key}'; found {found}.")
    return content[key]


def _pixels(value: Any, path: Path) -> _Pixels:
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 4:
        raise DataError(f"{path} must hold its images as one uint8 array of 4 dimensions.")
    return value


def _labels(value: Any, n_images: int, path: Path) -> _Labels:
    labels = np.asarray(value)
    if labels.dtype.kind not in "iu" or labels.shape != (n_images,):
        raise DataError(f"{path} must hold one whole number for each of its {n_images} images.")
    return labels.astype(np.int64)


def _decoded(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


# --- cifar-100-python, as torchvision keeps it --------------------------------------------------


def _read_cifar_100(root: Path, lists: ClassLists, _: Path) -> Found:
    names = [
        _decoded(n) for n in _get(load_pickle(root / "meta"), "fine_label_names", root / "meta")
    ]
    pixels, labels = [], []
    for path in (root / "train", root / "test"):
        content = load_pickle(path)
        flat = _get(content, "data", path)
        if flat.dtype != np.uint8 or flat.ndim != 2 or flat.shape[1] != 3072:
            raise DataError(f"{path} must hold images of 3072 bytes; got {flat.shape}.")
        pixels.append(flat)
        labels.append(_labels(_get(content, "fine_labels", path), len(flat), path))
    images = np.concatenate(pixels).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    all_labels = np.concatenate(labels)
    rows = {name: Rows(images, np.flatnonzero(all_labels == i)) for i, name in enumerate(names)}
    absent = Rows(images, [])
    return Found(
        {
            split: [ClassImages(name, rows.get(name, absent), str(root)) for name in lists[split]]
            for split in SPLITS
        }
    )


# --- MetaOptNet: {'data', 'labels'[, 'catname2label']} ------------------------------------------


def _labeled_pickles(benchmark: str, description: str, files: Mapping[str, str]) -> Layout:
    """Return the layout of one pickle per split with `data` and `labels`, in the files given."""

    def read(root: Path, lists: ClassLists, _: Path) -> Found:
        splits = {}
        for split in SPLITS:
            path = root / files[split]
            content = load_pickle(path)
            pixels = _pixels(_get(content, "data", path), path)
            labels = _labels(_get(content, "labels", path), len(pixels), path)
            categories = {
                int(label): _decoded(name)
                for name, label in content.get("catname2label", {}).items()
            }
            names = _names_of_labels(labels, lists, split, categories)
            splits[split] = _by_label(labels, names, pixels, path)
        return Found(splits)

    return Layout((benchmark,), description, _has(*files.values()), read)


def _names_of_labels(
    labels: _Labels, lists: ClassLists, split: str, categories: Mapping[int, str]
) -> dict[int, str]:
    """Name the labels of a split: by the file, by the numbers of CIFAR-100, or by number."""
    numbers = [int(label) for label in np.unique(labels)]
    if set(numbers) <= set(categories):
        return {number: categories[number] for number in numbers}
    everything = sorted(name for names in lists.values() for name in names)
    official = {everything.index(name): name for name in lists[split]}
    if set(numbers) <= set(official):
        return official
    return {number: f"label-{number:03d}" for number in numbers}


def _by_label(
    labels: _Labels, names: Mapping[int, str], images: _Pixels | list[bytes], path: Path
) -> list[ClassImages]:
    order = np.argsort(labels, kind="stable")
    edges = np.searchsorted(labels[order], [[n, n + 1] for n in names])
    classes = []
    for name, (start, stop) in zip(names.values(), edges, strict=True):
        chosen = order[start:stop]
        of_class = [images[i] for i in chosen] if isinstance(images, list) else Rows(images, chosen)
        classes.append(ClassImages(name, of_class, str(path)))
    return classes


# --- mini-imagenet-cache-*.pkl: {'image_data', 'class_dict'} ------------------------------------


def _read_image_data(root: Path, lists: ClassLists, _: Path) -> Found:
    found: dict[str, ClassImages] = {}
    for split in SPLITS:
        path = root / _IMAGE_DATA[split]
        content = load_pickle(path)
        pixels = _pixels(_get(content, "image_data", path), path)
        for name, indices in _get(content, "class_dict", path).items():
            chosen = np.asarray(indices, dtype=np.int64)
            if len(chosen) and not 0 <= chosen.min() <= chosen.max() < len(pixels):
                raise DataError(f"{path} lists images of '{name}' that it does not hold.")
            found[_decoded(name)] = ClassImages(_decoded(name), Rows(pixels, chosen), str(path))
    # Classes go by their name, not by their file: some published versions have val and test
    # exchanged.
    return Found(
        {
            split: [found.get(n, ClassImages(n, [], str(root))) for n in lists[split]]
            for split in SPLITS
        }
    )


_IMAGE_DATA = {split: f"mini-imagenet-cache-{split}.pkl" for split in SPLITS}

# --- tieredImageNet: encoded images in a pickle, or pixels in an npz, beside *_labels.pkl ---------


def _tiered_labels(root: Path, split: str, n_images: int) -> tuple[_Labels, dict[int, str]]:
    path = root / f"{split}_labels.pkl"
    content = load_pickle(path)
    key = "label_specific" if "label_specific" in content else "labels"
    labels = _labels(_get(content, key, path), n_images, path)
    given = [_decoded(name) for name in content.get("label_specific_str", [])]
    numbers = [int(label) for label in np.unique(labels)]
    names: dict[int, str] = {}
    for number in numbers:
        name = given[number] if 0 <= number < len(given) else f"label-{number:03d}"
        # Two classes of ImageNet can have the same words.
        names[number] = name if name not in names.values() else f"{name} ({number})"
    return labels, names


def _read_tiered_png(root: Path, _: ClassLists, __: Path) -> Found:
    splits = {}
    for split in SPLITS:
        path = root / f"{split}_images_png.pkl"
        encoded = [np.asarray(image).tobytes() for image in load_pickle(path)]
        labels, names = _tiered_labels(root, split, len(encoded))
        splits[split] = _by_label(labels, names, encoded, path)
    return Found(splits)


def _read_tiered_npz(root: Path, _: ClassLists, scratch: Path) -> Found:
    splits = {}
    for split in SPLITS:
        path = root / f"{split}_images.npz"
        # Mapped from disk: the training images alone are 9.5 GB.
        unpacked = scratch / f"{split}_images.npy"
        try:
            with (
                zipfile.ZipFile(path) as archive,
                archive.open("images.npy") as member,
                unpacked.open("wb") as out,
            ):
                shutil.copyfileobj(member, out, 1 << 20)
            pixels = np.load(unpacked, mmap_mode="r", allow_pickle=False)
        except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
            raise DataError(f"{path} is truncated or has no 'images' ({error}).") from error
        labels, names = _tiered_labels(root, split, len(pixels))
        splits[split] = _by_label(labels, names, _pixels(pixels, path), path)
    return Found(splits)


# --- all of them ----------------------------------------------------------------------------------

_TIERED_LABELS = [f"{split}_labels.pkl" for split in SPLITS]

LAYOUTS = (
    Layout(
        ("cifar-fs", "fc100"),
        "cifar-100-python (train, test, meta), as torchvision keeps it",
        _has("train", "test", "meta"),
        _read_cifar_100,
    ),
    _labeled_pickles(
        "cifar-fs",
        "CIFAR_FS_{train,val,test}.pickle (MetaOptNet)",
        {split: f"CIFAR_FS_{split}.pickle" for split in SPLITS},
    ),
    _labeled_pickles(
        "fc100",
        "FC100_{train,val,test}.pickle (MetaOptNet)",
        {split: f"FC100_{split}.pickle" for split in SPLITS},
    ),
    Layout(
        ("mini-imagenet",),
        "mini-imagenet-cache-{train,val,test}.pkl",
        _has(*_IMAGE_DATA.values()),
        _read_image_data,
    ),
    _labeled_pickles(
        "mini-imagenet",
        "miniImageNet_category_split_*.pickle (MetaOptNet)",
        {
            "train": "miniImageNet_category_split_train_phase_train.pickle",
            "val": "miniImageNet_category_split_val.pickle",
            "test": "miniImageNet_category_split_test.pickle",
        },
    ),
    Layout(
        ("mini-imagenet",),
        "train.csv, val.csv and test.csv (Ravi) with images/ or one folder per class",
        _recognizes_csv,
        _read_csv,
    ),
    Layout(
        ("tiered-imagenet",),
        "{train,val,test}_images_png.pkl with *_labels.pkl",
        _has(*_TIERED_LABELS, *(f"{split}_images_png.pkl" for split in SPLITS)),
        _read_tiered_png,
    ),
    Layout(
        ("tiered-imagenet",),
        "{train,val,test}_images.npz with *_labels.pkl (MetaOptNet)",
        _has(*_TIERED_LABELS, *(f"{split}_images.npz" for split in SPLITS)),
        _read_tiered_npz,
    ),
    Layout(
        ("omniglot",),
        "images_background/ and images_evaluation/, alphabet/character/*.png",
        _recognizes_omniglot,
        _read_omniglot,
    ),
    Layout(
        (),
        "one folder per class: directly, in data/ or images/, or under train/, val/ and test/",
        _recognizes_class_folders,
        _read_class_folders,
    ),
)
"""Every layout; the first that recognizes a folder reads it."""
