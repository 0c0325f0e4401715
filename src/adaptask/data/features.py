"""Features that another network has computed: read from files, and split by class.

A file is `.npy`, `.npz` or `.safetensors`. It has the arrays `features` and `labels`, or one array
per class; labels of a `.npy` file are in another beside it. Nothing in a file is executed: arrays
of objects are refused, and a `.safetensors` file is a list of numbers with a header in JSON.
"""

from __future__ import annotations

import math
import shutil
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from adaptask.arguments import format_names
from adaptask.data.class_splits import SplitOptions, repeated_classes
from adaptask.data.images import SPLITS
from adaptask.data.layouts import SPLIT_OF, entries, unwrap
from adaptask.errors import DataError
from adaptask.parsing import parse_json

SUFFIXES = (".npy", ".npz", ".safetensors")
PICKLES = (".pt", ".pth", ".pkl", ".pickle")

Array = np.ndarray[Any, Any]

_CHUNK = 4096
_LARGEST_HEADER = 100 << 20  # as the safetensors library has it
_SAFETENSORS = {
    **{f"F{8 * n}": f"<f{n}" for n in (2, 4, 8)},
    **{f"{kind}{8 * n}": f"<{kind.lower()}{n}" for kind in "IU" for n in (1, 2, 4, 8)},
}


@dataclass(frozen=True)
class Vectors:
    """The vectors of one class: rows of one array or several, read as they are asked for."""

    name: str
    parts: tuple[tuple[Array, Array], ...]
    """Features, `vectors x size`, and the numbers of the rows that belong to the class."""

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self.parts)

    def chunks(self) -> Iterator[Array]:
        """Yield the vectors in order, `vectors x size x 1 x 1`, in pieces that fit memory."""
        for features, rows in self.parts:
            for start in range(0, len(rows), _CHUNK):
                chunk = features[rows[start : start + _CHUNK]]
                if not np.isfinite(chunk).all():
                    raise self._not_finite(features)
                yield chunk[:, :, None, None]

    def _not_finite(self, features: Array) -> DataError:
        """Return the error that counts the vectors that are not finite, and names the first."""
        bad = [row for row, vector in enumerate(features) if not np.isfinite(vector).all()]
        return DataError(
            f"features must be finite; vectors with NaN or infinite values: {len(bad)} of "
            f"{len(features)}, the first in row {bad[0]}, counted from 0, of the array that has "
            f"class '{self.name}'. Leave those vectors out, or compute them again."
        )


@dataclass(frozen=True)
class FoundFeatures:
    """The vectors of a source: the classes of each split."""

    splits: dict[str, list[Vectors]]
    how: str
    """What decided which class goes to which split, in words."""
    left_out: list[str]
    size: int
    """Of every vector."""
    dtype: str
    """`float16` or `float32`."""


def find_features(source: Path, scratch: Path, options: SplitOptions) -> FoundFeatures:
    """Return the classes of each split of the user's features.

    Args:
        source: A file, or a folder of files: `train`, `val` and `test`, or one file per class, or
            several whose classes are put together; instead of such a file there may be a folder.
            If files do not decide the splits, lists of classes in it or in its `splits/` do.
        scratch: An empty folder, for the arrays of `.npz` files while they are read.
        options: Decide otherwise.

    Raises:
        ArgumentError: If there are fractions or a seed, but files or lists decide.
        DataError: If the files cannot be read, do not fit each other, or cannot be split.
    """
    reader = _Reader(scratch)
    outer = source
    if source.is_dir():
        source = unwrap(source, _has_features)
    units, left_out = _units(source)
    by_split = _by_split(source, units) if options.lists is None else {}
    if by_split:
        options.check_not_random("the files train, val and test")
        parts = {split: reader.classes(files) for split, files in by_split.items()}
        used = [name for files in by_split.values() for name in files]
        _check_disjoint(source, used, parts)
        left_out += [f"{name} (beside train)" for name in units if name not in used]
        how = f"split by its files {', '.join(used)}"
    else:
        classes = reader.classes(units)
        if len(classes) == 1:
            raise DataError(
                f"{source} has features of one class, {next(iter(classes))!r}; a task needs at "
                "least 2. Give labels: the array 'labels' in the same file, or labels.npy beside "
                "features.npy; or give one array per class."
            )
        places = (source, source / "splits", outer, outer / "splits")
        parts, how, unlisted = options.divide(classes, places, lambda: _classes_found(classes))
        left_out += [f"{name} (in no list)" for name in unlisted]
    for split, found in parts.items():
        fewest = 2 if split == "train" else 1
        if len(found) < fewest:
            raise DataError(
                f"the split '{split}' must have {fewest} classes or more; got {list(found)}. Give "
                "features of more classes, or let fractions, lists or files divide them otherwise."
            )
    if n_joined := len(reader.joined):
        noun = "class was" if n_joined == 1 else "classes were"
        how += f"; {n_joined} {noun} put together from several files by their labels"
    size, dtype = reader.form()
    splits = {split: list(found.values()) for split, found in parts.items()}
    return FoundFeatures(splits, how, [*left_out, *reader.left_out], size, dtype)


def _check_disjoint(
    source: Path, files: Sequence[str], parts: Mapping[str, Mapping[str, Vectors]]
) -> None:
    """Refuse files of splits that have labels in common."""
    if shared := repeated_classes(parts):
        raise DataError(
            f"{' and '.join(files)} in {source} have {len(shared)} "
            f"label{'s' if len(shared) > 1 else ''} in common: {format_names(shared)}. Few-shot "
            "splits are by class. If every file numbers classes of its own from 0, save labels "
            "that differ, such as labels + 1000, or names. If they are the same classes, put all "
            "vectors into one file, and let --fractions or lists decide which classes train."
        )


def _classes_found(classes: Mapping[str, Vectors]) -> str:
    found = [f"{name} ({len(vectors):,} vectors)" for name, vectors in classes.items()]
    return f"Found {', '.join(found)}."


# --- files ----------------------------------------------------------------------------------------

_Files = dict[str, list[Path]]
"""By the name of a split or class what makes it up: features and labels, a file, or a folder."""


def _has_features(folder: Path) -> bool:
    names = [entry.name.lower() for entry in entries(folder)]
    return any(name in SPLIT_OF or name.endswith((*SUFFIXES, *PICKLES)) for name in names)


def _units(source: Path) -> tuple[_Files, list[str]]:
    """Return what can be read in a source, by name, and what is left out, in words."""
    if not source.exists():
        raise DataError(
            f"--source {source} does not exist. Give a file that ends with {', '.join(SUFFIXES)}, "
            "or a folder of such files."
        )
    is_folder = source.is_dir()
    if not is_folder and source.suffix.lower() in PICKLES:
        raise DataError(_convert(source.name))
    found = [source / e.name for e in entries(source)] if is_folder else [source]
    units: _Files = {}
    left_out = []
    labels = [partner for path in found if (partner := _labels_beside(path))]
    for path in sorted(found):
        if path in labels or path.name in [f"{split}.txt" for split in SPLITS]:
            continue
        if path.is_dir() and path.name.lower() in SPLIT_OF:
            units[path.name] = [path]
        elif path.suffix.lower() not in SUFFIXES or path.is_dir():
            if path.name != "splits":
                left_out.append(f"{path.name} (not {', '.join(SUFFIXES)})")
        elif partner := _labels_beside(path):
            units[path.name] = [path, partner]
        else:
            units[path.name] = [path]
    pickles = [path.name for path in found if path.suffix.lower() in PICKLES]
    if not units and pickles:
        raise DataError(f"{source} has no features that are read. {_convert(pickles[0])}")
    if not units:
        raise DataError(
            f"{source} has no features; expected files that end with {', '.join(SUFFIXES)}, found "
            f"{', '.join(left_out[:5]) or 'none'}."
        )
    return units, left_out


def _convert(name: str) -> str:
    """Say why a pickle is not read, and what to do."""
    return (
        f"{name} is a pickle, which can execute anything and is not read. If you trust it, convert "
        f"it: x = torch.load({name!r}, map_location='cpu'), then np.savez('features.npz', "
        "features=x['features'].float().numpy(), labels=x['labels'].numpy()), with the names "
        "that it has for them."
    )


def _labels_beside(path: Path) -> Path | None:
    """Return the file with the labels of a `.npy` file: `train_labels.npy` of `train_features`."""
    if path.suffix.lower() != ".npy" or "features" not in path.stem:
        return None
    partner = path.with_name(path.name.replace("features", "labels"))
    return partner if partner.is_file() else None


def _by_split(source: Path, units: _Files) -> dict[str, _Files]:
    """Return the files of each split; none if no file is called train."""
    found: dict[str, _Files] = defaultdict(dict)
    for name, files in units.items():
        stem = (files[0].name if files[0].is_dir() else files[0].stem).lower()
        if split := SPLIT_OF.get(stem.replace("features", "").strip("_-. ")):
            found[split][name] = files
    if "train" not in found or not source.is_dir():
        return {}
    for split, of_split in found.items():
        if len(of_split) > 1:
            raise DataError(
                f"{source} has two files for the split '{split}': {' and '.join(of_split)}. Remove "
                "one of them, or move it elsewhere."
            )
    return {split: found[split] for split in SPLITS if split in found}


class _Reader:
    """Reads files, and checks that all features have one form."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._n_unpacked = 0
        self._form: tuple[int, str] | None = None
        self._form_of = ""
        self.left_out: list[str] = []
        self.joined: set[str] = set()
        """The classes of which several files have vectors."""

    def form(self) -> tuple[int, str]:
        """Return the size and type of all vectors."""
        assert self._form is not None
        return self._form

    def classes(self, units: _Files) -> dict[str, Vectors]:
        """Return the classes of some files, put together by their names."""
        parts: dict[str, list[tuple[Array, Array]]] = defaultdict(list)
        for files in units.values():
            path = files[0]
            if path.is_dir():
                inside, left_out = _units(path)
                self.left_out += [f"{path.name}/{name}" for name in left_out]
                found = {name: [*v.parts] for name, v in self.classes(inside).items()}
            else:
                found = self._classes_of(files)
            self.joined |= parts.keys() & found.keys()
            for name, of_class in found.items():
                parts[name] += of_class
        return {name: Vectors(name, tuple(of_class)) for name, of_class in parts.items()}

    def _classes_of(self, files: list[Path]) -> dict[str, list[tuple[Array, Array]]]:
        path = files[0]
        arrays = self._arrays(path)
        if len(files) == 2:
            (features,), (labels,) = arrays.values(), self._arrays(files[1]).values()
            arrays = {"features": features, "labels": labels}
        if {"features", "labels"} <= set(arrays):
            others = [name for name in arrays if name not in ("features", "labels")]
            self.left_out += [f"{name} in {path.name} (beside the features)" for name in others]
            features = self._check(arrays["features"], str(path))
            return {
                name: [(features, rows)]
                for name, rows in _rows_by_label(arrays["labels"], len(features), str(path)).items()
            }
        if len(arrays) == 1 or path.suffix.lower() == ".npy":
            ((name, features),) = arrays.items()
            arrays = {path.stem: features}
            if path.stem == "features" or name == "features":
                raise DataError(
                    f"{path} has features without labels; expected an array 'labels' beside "
                    "'features', the file labels.npy beside features.npy, or one array per class."
                )
            if features.ndim == 1:
                raise DataError(
                    f"{path} has {features.size:,} numbers, no vectors. If they are labels, call "
                    "the files features.npy and labels.npy."
                )
        if len(arrays) > 1 and any(array.ndim != 2 for array in arrays.values()):
            raise DataError(
                f"{path} has the arrays {', '.join(arrays)}; expected 'features', vectors x size, "
                "and 'labels', one per vector, or one array of vectors per class."
            )
        return {
            name: [(self._check(features, f"{path}, {name!r}"), np.arange(len(features)))]
            for name, features in arrays.items()
        }

    def _check(self, features: Array, where: str) -> Array:
        """Return features after checking their shape and type."""
        check_form(features.shape, str(features.dtype), where)
        form = (features.shape[1], str(features.dtype))
        if self._form is None:
            self._form, self._form_of = form, where
        if form != self._form:
            size, dtype = self._form
            raise DataError(
                f"all features must have one size and type; {self._form_of} has vectors of {size} "
                f"{dtype}, {where} of {form[0]} {form[1]}."
            )
        return features

    def _arrays(self, path: Path) -> dict[str, Array]:
        """Return the arrays of a file by name, mapped from disk."""
        try:
            if path.suffix.lower() == ".safetensors":
                return read_safetensors(path)
            if path.suffix.lower() == ".npy":
                return {path.stem: open_memmap(path, mode="r")}  # it refuses objects
            return self._read_npz(path)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
        except (
            *(ValueError, TypeError, KeyError, EOFError, AttributeError, MemoryError),
            *(zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError),
        ) as error:
            if "Python objects" in str(error):
                raise DataError(
                    f"{path} has an array of Python objects, which are never read. Save names as "
                    "labels.astype(str)."
                ) from error
            raise DataError(
                f"{path} cannot be read: it is cut short, damaged, or not what its name says "
                f"({error}). Nothing was changed; save it again."
            ) from error

    def _read_npz(self, path: Path) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                # Unpacked, so that it is mapped like others; NumPy would trust the size that the
                # header claims.
                unpacked = self._scratch / f"{self._n_unpacked}.npy"
                self._n_unpacked += 1
                with archive.open(member) as packed, unpacked.open("wb") as out:
                    shutil.copyfileobj(packed, out, 1 << 20)
                name = member.filename.removesuffix(".npy")
                arrays[name] = open_memmap(unpacked, mode="r")
        if not arrays:
            raise ValueError("it has no arrays")
        return arrays


def read_safetensors(path: Path) -> dict[str, Array]:
    """Return the tensors of a file by name: 8 bytes, a header in JSON of that length, numbers.

    Raises:
        DataError: If NumPy has no such type.
        ValueError: If it is damaged; so may other errors.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        n_bytes = path.stat().st_size - 8 - length
        if not 2 <= length <= _LARGEST_HEADER or n_bytes < 0:
            raise ValueError("it has no header")
        header = parse_json(file.read(length).decode("utf-8"))
    arrays: dict[str, Array] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        start, stop = entry["data_offsets"]
        if dtype not in _SAFETENSORS:
            raise DataError(
                f"{path} cannot be read: its tensor {name!r} is {dtype}; save it as float16 or "
                "float32, such as x.float()."
            )
        if not all(type(n) is int and n >= 0 for n in (*shape, start, stop)):
            raise ValueError("its header is not one of tensors")
        expected = math.prod(shape) * np.dtype(_SAFETENSORS[dtype]).itemsize
        if stop - start != expected or stop > n_bytes:
            raise ValueError(f"its tensor {name!r} is not all there")
        mapped = np.memmap(path, np.uint8, mode="r")[8 + length + start : 8 + length + stop]
        arrays[name] = mapped.view(_SAFETENSORS[dtype]).reshape(shape)
    if not arrays:
        raise ValueError("it has no tensors")
    return arrays


# --- what features and labels must be -------------------------------------------------------------


def check_form(shape: Sequence[int], dtype: str, where: str) -> None:
    """Check that features are vectors of float16 or float32.

    Raises:
        DataError: If they are not. Other numbers are not converted, since what a conversion loses
            is the user's decision.
    """
    if len(shape) != 2 or 0 in shape:
        raise DataError(
            f"features must be `vectors x size`, one vector or more; {where} has shape "
            f"{tuple(shape)}."
        )
    if dtype not in ("float16", "float32"):
        raise DataError(
            f"features must be float16 or float32; {where} is {dtype}. Convert it yourself, so "
            "that you decide what is lost: features.astype('float32'), of a tensor .float()."
        )


def _rows_by_label(labels: Array, n_vectors: int, where: str) -> dict[str, Array]:
    """Return the rows of each class, in the order of labels.

    Raises:
        DataError: If there is not one integer or name per vector.
    """
    if labels.shape != (n_vectors,) or labels.dtype.kind not in "iuU":
        raise DataError(
            f"labels must be one integer or name per vector, {n_vectors:,}; those of {where} are "
            f"{labels.dtype} of shape {labels.shape}."
            + (" Save names as labels.astype(str)." if labels.dtype.kind == "S" else "")
        )
    names, counts = np.unique(labels, return_counts=True)
    pieces = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    return {str(name): rows for name, rows in zip(names, pieces, strict=True)}
