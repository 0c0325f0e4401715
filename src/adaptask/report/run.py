"""A run: where it is, how it is to be made, and what it has recorded so far.

The functions `read_...` raise a `StateError` where a file is missing or damaged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptask.errors import StateError
from adaptask.parsing import parse_json, parse_toml

FAILURE = "failure.txt"
"""Why a run failed, in its folder."""
PRUNED = "pruned.txt"
"""Why a search has given up a run, in its folder."""

_T = TypeVar("_T")
_SETTINGS: dict[str, type] = {
    **dict.fromkeys(("seed", "steps"), int),
    **dict.fromkeys(("data", "task", "model", "sampler", "evaluation", "machine"), dict),
}
"""Types of the settings that are used here."""
_LARGEST_NUMBER = 1 << 53
_LARGEST_METRIC = 1e30  # beyond which a plot has no axis
_LARGEST = 1 << 30
"""Bytes that the arrays of a file may have in all; those of 10,000 classes have less than half."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a sampler had learned after a step, and how often each class had been drawn."""

    step: int
    distribution: NDArray[np.float32] | None
    """Log potentials, `classes x classes` with -inf on the diagonal, or log weights, `classes`;
    None of a sampler that learns nothing."""
    class_counts: NDArray[np.int64] | None
    """In how many tasks each class has been since the start, `classes`."""


@dataclass(frozen=True, eq=False)
class Portrait:
    """What was seen and drawn in a run, for a report that has neither the data nor the model."""

    class_names: tuple[str, ...]
    images: NDArray[np.uint8]
    """Some of each training class, `classes x images x height x width x channels`."""
    similarity: NDArray[np.float32]
    """Cosines between the mean features of the classes, `classes x classes`."""
    tasks: NDArray[np.int64]
    """Tasks that the sampler drew after the last step, `tasks x way`."""


@dataclass(frozen=True, eq=False)
class TestResult:
    """How well the best weights by validation did on the test classes."""

    accuracies: NDArray[np.float64]
    """Of each episode, 0 to 1; the same episodes in all runs with the same `evaluation`."""


@dataclass(frozen=True)
class Run:
    """One run, planned, under way or finished.

    Its files are read when they are first asked for, each once. A file that is damaged counts as
    absent, and `damage` says why, so that everything else can be shown.
    """

    path: Path
    """Its folder."""
    seed: int = 0
    """As its study has it."""
    name: str = ""
    """Unlike those of all other runs of its study."""
    config: Any = field(default=None, repr=False)
    """The `RunConfig` of a run that is to be made; None of one that is only read. What the folder
    says is in `settings`."""
    open_logger: Callable[[], Any] | None = field(default=None, repr=False)
    """Makes a logger in the process that makes the run, which may give up the run; picklable."""
    damage: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What is wrong with files that were read so far, by their names in the folder."""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The content of its config.toml, section by section; empty where there is none."""
        return self._read("config.toml", read_settings) or {}

    @property
    def is_readable(self) -> bool:
        """Whether it has settings; without them nothing is known of it."""
        return bool(self.settings)

    @property
    def is_finished(self) -> bool:
        """Whether it has been tested."""
        return (self.path / "test.json").exists()

    @property
    def n_steps(self) -> int:
        """How many steps it is to make."""
        return int(self.settings.get("steps", 0))

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """All records; none before the first."""
        return self._read("metrics.jsonl", read_metrics) or []

    @cached_property
    def test(self) -> TestResult | None:
        """The test result; None of a run that has not ended."""
        return self._read("test.json", read_test)

    @cached_property
    def portrait(self) -> Portrait | None:
        """What it looked like at the end; None of a run that has not ended."""
        return self._read("portrait.npz", read_portrait)

    @cached_property
    def failure(self) -> str | None:
        """Why the run failed, if it did."""
        return self._read(FAILURE, _read_text)

    @cached_property
    def pruned(self) -> str | None:
        """Why the run was given up as one of the worse in a search, if it was."""
        return self._read(PRUNED, _read_text)

    @cached_property
    def environment(self) -> list[dict[str, Any]]:
        """In what it was made, from which step on; empty where that is not known."""
        return self._read("environment.json", _read_environment) or []

    def snapshot(self, step: int, path: Path) -> Snapshot | None:
        """Return the snapshot in a file of the run; None where it is damaged."""
        return self._read(f"snapshots/{path.name}", partial(read_snapshot, step))

    @cached_property
    def last_snapshot(self) -> Snapshot | None:
        """The last that can be read; None where there is none."""
        files = reversed(snapshot_files(self.path / "snapshots"))
        return next((found for file in files if (found := self.snapshot(*file))), None)

    @property
    def steps_done(self) -> int:
        """How many steps are on record."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def seconds_per_step(self) -> float | None:
        """Median over the records of the time of a training step; None before the first one."""
        steps, seconds = self.curve("train", "seconds")
        points = [(0, 0.0), *zip(steps.tolist(), seconds.tolist(), strict=True)]
        paces = [
            (t1 - t0) / (s1 - s0) for (s0, t0), (s1, t1) in pairwise(points) if s1 > s0 and t1 > t0
        ]
        # The first has what is done once: kernels chosen, memory fetched.
        return float(np.median(paces[1:] or paces)) if paces else None

    def curve(self, split: str, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the steps and values of a metric; values that are not numbers are left out."""
        points = [
            (r["step"], r[name])
            for r in self.metrics
            if r["split"] == split
            and isinstance(r.get(name), int | float)
            and abs(r[name]) < _LARGEST_METRIC
        ]
        steps = np.array([step for step, _ in points], dtype=np.int64)
        return steps, np.array([value for _, value in points], dtype=np.float64)

    def _read(self, name: str, read: Callable[[Path], _T]) -> _T | None:
        path = self.path / name
        try:
            return read(path) if path.exists() else None
        except (StateError, OSError, ValueError) as error:  # also of a path that there cannot be
            self.damage[name] = str(error)
            return None


@contextmanager
def _reading(path: Path, remedy: str = "Remove it.") -> Iterator[None]:
    """Turn every error into a `StateError` that names the file and says what to do."""
    try:
        yield
    except FileNotFoundError as error:
        raise StateError(f"there is no file {path}.") from error
    except Exception as error:  # whatever a file with wrong bytes in it brings about
        raise StateError(f"{path} is damaged: {error}. {remedy}") from error


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()


def _read_environment(path: Path) -> list[dict[str, Any]]:
    with _reading(path):
        found = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise ValueError("it is not a list of environments")
        return found


def read_settings(path: Path) -> dict[str, Any]:
    """Return the content of the config.toml of a run, section by section."""
    with _reading(path, "Restore it, or remove the run."):
        settings = parse_toml(path.read_text(encoding="utf-8"))
        for name, kind in _SETTINGS.items():
            if type(value := settings.get(name, kind())) is not kind:
                raise TypeError(f"{name} must be of type {kind.__name__}; got {value!r}")
        if not settings or min(settings.get("seed", 0), settings.get("steps", 0)) < 0:
            raise ValueError("it is empty, or its seed or steps are negative")
        return settings


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the records of a metrics file, leaving out a last line that is not complete."""
    records = []
    with _reading(path, "Remove the line."):
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
            try:
                record = parse_json(line)
            except ValueError:
                record = None
            if not _is_metrics(record):
                raise ValueError(
                    f"line {number} is not a record with a step and a split: {line[:80]!r}"
                )
            records.append(record)
    return records


def _is_metrics(record: object) -> bool:
    if not isinstance(record, dict) or "split" not in record or type(record.get("step")) is not int:
        return False
    return record["step"] >= 0 and all(
        abs(value) < _LARGEST_NUMBER for value in record.values() if type(value) is int
    )


def read_test(path: Path) -> TestResult:
    """Return the test result in a file."""
    with _reading(path, "Remove it and resume the run, which then is tested again."):
        found = parse_json(path.read_text(encoding="utf-8"))
        accuracies = np.array(found["accuracies"], dtype=np.float64)
        if accuracies.ndim != 1 or not len(accuracies):
            raise ValueError("it has no list of accuracies")
        if not ((accuracies >= 0) & (accuracies <= 1)).all():
            raise ValueError("an accuracy is not between 0 and 1")
        return TestResult(accuracies)


def read_portrait(path: Path) -> Portrait:
    """Return the portrait in a file."""
    with _reading(path):
        found = _read_arrays(path)
        names = tuple(str(name) for name in found["class_names"])
        portrait = Portrait(names, found["images"], found["similarity"], found["tasks"])
        n, images, tasks = len(names), portrait.images, portrait.tasks
        if len(images) != n or images.ndim != 5 or portrait.similarity.shape != (n, n):
            raise ValueError(f"its parts do not fit {n} class names")
        if images.dtype != np.uint8 or 0 in images.shape[2:]:
            raise ValueError("its images are not of bytes")
        if portrait.similarity.dtype.kind != "f":
            raise ValueError("its similarities are not real numbers")
        if tasks.ndim != 2 or tasks.dtype.kind != "i" or not ((tasks >= 0) & (tasks < n)).all():
            raise ValueError(f"its tasks are not of {n} classes")
        return portrait


def read_snapshots(folder: Path) -> list[Snapshot]:
    """Return the snapshots of a folder in order; none where there is no folder."""
    return [read_snapshot(step, path) for step, path in snapshot_files(folder)]


def read_snapshot(step: int, path: Path) -> Snapshot:
    """Return the snapshot in a file."""
    with _reading(path):
        parts = _read_arrays(path)
        distribution, counts = parts.get("distribution"), parts.get("class_counts")
        if distribution is not None and distribution.dtype.kind != "f":
            raise ValueError("its distribution is not of real numbers")
        if counts is not None and (counts.ndim != 1 or counts.dtype.kind != "i"):
            raise ValueError("its counts are not one integer per class")
        return Snapshot(step, distribution, counts)


def snapshot_files(folder: Path) -> list[tuple[int, Path]]:
    """Return the steps and files of the snapshots in a folder, in order."""
    matches = ((re.fullmatch(r"step-(\d+)\.npz", p.name), p) for p in folder.glob("step-*.npz"))
    return sorted((int(match[1]), path) for match, path in matches if match)


def _read_arrays(path: Path) -> dict[str, Any]:
    # The file is opened here: NumPy leaves one open that turns out to be no archive.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
        size = sum(member.file_size for member in found.zip.infolist())
        if size > _LARGEST:
            raise ValueError(f"it would take {size / 1e9:,.0f} GB")
        return {name: found[name] for name in found.files}
