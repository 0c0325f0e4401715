"""The user's own images: one folder per class, split by folders, by lists or by fractions.

Folders of classes may be in folders of groups; a class is then called `group/class`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from adaptask.arguments import format_names
from adaptask.data.class_splits import SplitOptions, has_lists, repeated_classes
from adaptask.data.images import SPLITS
from adaptask.data.layouts import (
    ClassImages,
    Found,
    entries,
    image_files,
    left_out_of,
    split_folders,
    subfolders,
    unwrap,
)
from adaptask.errors import DataError


def find_classes(source: Path, options: SplitOptions) -> Found:
    """Return the classes of each split of the user's images.

    Args:
        source: A folder with one folder per class, or with one per group that has those of its
            classes, or with `train/`, `val/` and `test/` of such. If the latter do not decide,
            lists of classes in it or in its `splits/` do.
        options: Decide otherwise.

    Raises:
        ArgumentError: If there are fractions or a seed, but folders or lists decide.
        DataError: If the folder cannot be split as it is.
    """
    outer, source = source, unwrap(source, _has_classes)
    if options.lists is None and (given := split_folders(source)):
        options.check_not_random("the folders train/, val/ and test/")
        return _split_by_folders(source, given)
    folders = _class_folders(source)
    if len({folder.parent for folder in folders.values()}) == 1:  # images/ beside notes/: no group
        folders = {folder.name: folder for folder in folders.values()}
    left_out = [*_left_out(source, folders), *left_out_of(folders.values(), source)]
    if not folders:
        raise _no_classes(source, left_out)
    places = (source, source / "splits", outer, outer / "splits")
    parts, how, unlisted = options.divide(folders, places, lambda: _classes_found(folders))
    left_out += [f"{name}/ (in no list)" for name in unlisted]
    return Found(_images(parts), how, left_out)


def _classes_found(folders: Mapping[str, Path]) -> str:
    found = [f"{name}/ ({len(image_files(folder)):,} images)" for name, folder in folders.items()]
    return f"Each folder with images in it is a class; found {', '.join(found)}."


def _class_folders(place: Path) -> dict[str, Path]:
    """Return the folders of classes by name; by group and name if no folder has images itself."""
    inside = subfolders(place)
    if direct := {folder.name: folder for folder in inside if image_files(folder)}:
        return direct
    return {
        f"{group.name}/{folder.name}": folder
        for group in inside
        for folder in subfolders(group)
        if image_files(folder)
    }


def _has_classes(folder: Path) -> bool:
    # A folder with images in it is a class, and a single train/ is a split: neither wraps others.
    has_images = any(image_files(place) for place in (folder, *subfolders(folder)))
    return has_images or bool(split_folders(folder))


def _files_beside(folder: Path) -> list[str]:
    """Return a count and an example of the files beside the folders of classes."""
    images = [path.name for path in image_files(folder)]
    lists = [f"{split}.txt" for split in SPLITS]
    read = {*images, *lists, *(path.name for path in subfolders(folder))}
    others = [entry.name for entry in entries(folder) if entry.name not in read]
    return [
        f"{len(names):,} {kind}{'' if len(names) == 1 else 's'} in no folder of a class, such as "
        f"{names[0]}"
        for kind, names in (("image", images), ("other file", others))
        if names
    ]


def _left_out(place: Path, folders: Mapping[str, Path], within: str = "") -> list[str]:
    """Return what is beside the folders of classes, and of groups, and is not read."""
    groups = sorted({folder.parent for folder in folders.values()} - {place})
    found = [*_files_beside(place), *_without_images(place, within, but=groups)]
    for group in groups:
        found += [*_files_beside(group), *_without_images(group, f"{within}{group.name}/")]
    return found


def _without_images(folder: Path, within: str = "", but: Sequence[Path] = ()) -> list[str]:
    """Return the folders in `folder` that have no images directly in them, and what they have."""
    left_out = []
    for child in subfolders(folder):
        if image_files(child) or has_lists(child) or child in but:
            continue
        files = [entry.name for entry in entries(child)]
        if subfolders(child):
            why = "its images must be directly in it, not in folders"
        elif files:
            kinds = sorted({Path(name).suffix.lower() or name for name in files})
            why = f"no images that can be read, only {format_names(kinds)}"
        else:
            why = "empty"
        left_out.append(f"{within}{child.name}/ ({why})")
    return left_out


def _no_classes(source: Path, left_out: Sequence[str]) -> DataError:
    return DataError(
        f"{source} has no folders with images in them; expected one folder per class, found "
        f"{format_names(left_out) or 'no folders'}."
    )


def _images(parts: Mapping[str, Mapping[str, Path]]) -> dict[str, list[ClassImages]]:
    for split, found in parts.items():
        if not found:
            raise DataError(f"the split '{split}' has no classes; expected folders with images.")
    return {
        split: [
            ClassImages(name, image_files(folder), str(folder)) for name, folder in found.items()
        ]
        for split, found in parts.items()
    }


def _split_by_folders(source: Path, places: Mapping[str, Path]) -> Found:
    parts = {split: _class_folders(place) for split, place in places.items()}
    if shared := repeated_classes(parts):
        raise DataError(
            f"{' and '.join(f'{split}/' for split in parts)} in {source} share "
            f"{len(shared)} class{'es' if len(shared) > 1 else ''}: {format_names(shared)}. "
            "Few-shot splits are by class: put each class, with all its images, into one folder "
            "beside the others, and let --fractions or lists decide which classes train."
        )
    left_out = _files_beside(source)
    left_out += [
        f"{folder.name}/ (beside {places['train'].name}/)"
        for folder in subfolders(source)
        if folder not in places.values() and not has_lists(folder)
    ]
    for split, place in places.items():
        left_out += _left_out(place, parts[split], f"{place.name}/")
    left_out += left_out_of([f for part in parts.values() for f in part.values()], source)
    names = ", ".join(f"{place.name}/" for place in places.values())
    return Found(_images(parts), f"split by its folders {names}", left_out)
