"""A run: its folder, its settings, and what it has recorded so far.

The functions `read_...` raise a `StateError` if a file is missing or damaged.
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
"""The file in the folder of a run that says why it failed."""
PRUNED = "pruned.txt"
"""The file in the folder of a run that says why a search stopped it early."""
DESCRIPTIONS = ("config.toml", "run.json")
"""Files that describe a run: from the command line, and made in Python by a `Trainer`."""

_T = TypeVar("_T")
_SETTINGS: dict[str, type] = {
    **dict.fromkeys(("seed", "steps"), int),
    **dict.fromkeys(("data", "task", "sampler", "learner", "backbone"), dict),
    **dict.fromkeys(("evaluation", "machine"), dict),
}
"""Types of the settings that are used here."""
_LARGEST_NUMBER = 1 << 53
_LARGEST_METRIC = 1e30  # matplotlib cannot draw an axis beyond it
_LARGEST = 1 << 30
"""Total bytes of the arrays in a file; 10,000 classes need less than half of it."""


@dataclass(frozen=True)
class Algorithm:
    """What a run says about the sampler, learner or backbone that it uses."""

    name: str
    """Its name, or the class name of a plug-in."""
    description: str = ""
    """What it does, in one sentence that follows its name; empty if unknown."""
    learns: bool = True
    """Whether a sampler changes with feedback."""
    code: tuple[str, ...] = ()
    """What identifies the version of its module, or of several if that changed during the run;
    empty for algorithms of the package."""
    note: str = ""
    """What a sampler says of this run, such as that it can do nothing with so few classes."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a sampler had learned after a step, and how often each class had been drawn."""

    step: int
    distribution: NDArray[np.float32] | None
    """Log potentials, `classes x classes` with -inf on the diagonal, or log weights, `classes`;
    None for a sampler that does not learn."""
    class_counts: NDArray[np.int64] | None
    """Number of tasks since the start that each class was in, `classes`."""


@dataclass(frozen=True, eq=False)
class Preview:
    """Classes, example images and drawn tasks of a run: the report has neither data nor model."""

    class_names: tuple[str, ...]
    images: NDArray[np.uint8]
    """Some of each training class, `classes x images x height x width x channels`."""
    similarity: NDArray[np.float32]
    """Cosines between the mean features of the classes, `classes x classes`; `0 x 0` if there are
    more than a page can show."""
    tasks: NDArray[np.int64]
    """Tasks that the sampler drew after the last step, `tasks x way`."""


@dataclass(frozen=True, eq=False)
class TestResult:
    """Accuracy on the test classes, with the weights that were best in validation."""

    accuracies: NDArray[np.float64]
    """Of each episode, 0 to 1. Runs with the same `evaluation` settings have the same episodes."""
    tasks: str = "uniform"
    """What the episodes are: `uniform`, any test classes, or `within-group`, those of one group."""
    within_group: NDArray[np.float64] | None = None
    """Of each episode within a group, if these were tested beside uniform ones."""


@dataclass(frozen=True)
class Run:
    """One run: planned, running or finished.

    Each file is read once, when it is needed first. A damaged file counts as missing, and `damage`
    says why, so that everything else can be shown.
    """

    path: Path
    """Its folder."""
    seed: int = 0
    """Its seed in the study."""
    name: str = ""
    """Unique in the study."""
    config: Any = field(default=None, repr=False)
    """The `RunConfig` of a run that will be made; None for one that is only read. `settings` has
    what the folder says."""
    open_logger: Callable[[], Any] | None = field(default=None, repr=False)
    """Makes a logger, which may stop the run early, in the process of the run; picklable."""
    damage: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What is wrong with files that were read so far, by their names in the folder."""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What describes it, section by section, in the layout of config.toml; empty if nothing.

        A run made in Python has as much of it as its trainer knew.
        """
        found = self._read("config.toml", read_settings)
        return found or self._read("run.json", read_settings) or {}

    @cached_property
    def algorithms(self) -> dict[str, Algorithm]:
        """Its `sampler`, `learner` and `backbone`, as far as they are known.

        No class is imported: a folder from elsewhere may name code of its own.
        """
        found = self._read("algorithms.json", _read_algorithms) or {}
        for kind in ("sampler", "learner", "backbone"):
            name = self.settings.get(kind, {}).get("name")
            if kind not in found and isinstance(name, str):
                found[kind] = describe_name(name)
        return found

    @property
    def is_readable(self) -> bool:
        """Whether anything describes it."""
        return bool(self.settings)

    @property
    def is_finished(self) -> bool:
        """Whether it has ended: it has been tested, if its dataset has test classes."""
        return (self.path / "test.json").exists()

    @property
    def n_steps(self) -> int:
        """The number of steps that it should make."""
        return int(self.settings.get("steps", 0))

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """All records of metrics."""
        return self._read("metrics.jsonl", read_metrics) or []

    @cached_property
    def test(self) -> TestResult | None:
        """The test result; None before the run has ended, and without test classes."""
        return self._read("test.json", read_test)

    @cached_property
    def preview(self) -> Preview | None:
        """Its classes, images and tasks; None before the run has ended."""
        return self._read("portrait.npz", read_preview)

    @cached_property
    def failure(self) -> str | None:
        """Why the run failed, if it did."""
        return self._read(FAILURE, _read_text)

    @cached_property
    def pruned(self) -> str | None:
        """Why a search stopped the run early, if it did."""
        return self._read(PRUNED, _read_text)

    @cached_property
    def environment(self) -> list[dict[str, Any]]:
        """Versions and machine, with the step from which on they hold; empty if unknown."""
        return self._read("environment.json", _read_environment) or []

    def snapshot(self, step: int, path: Path) -> Snapshot | None:
        """Return the snapshot in a file of the run; None if the file is damaged."""
        return self._read(f"snapshots/{path.name}", partial(read_snapshot, step))

    @cached_property
    def last_snapshot(self) -> Snapshot | None:
        """The last snapshot that can be read; None if there is none."""
        files = reversed(snapshot_files(self.path / "snapshots"))
        return next((found for file in files if (found := self.snapshot(*file))), None)

    @property
    def steps_done(self) -> int:
        """The last step with a record."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def seconds_per_step(self) -> float | None:
        """Median time of a training step over the records; None before the first one."""
        steps, seconds = self.curve("train", "seconds")
        points = [(0, 0.0), *zip(steps.tolist(), seconds.tolist(), strict=True)]
        paces = [
            (t1 - t0) / (s1 - s0) for (s0, t0), (s1, t1) in pairwise(points) if s1 > s0 and t1 > t0
        ]
        # The first record includes what is done once, such as choosing kernels.
        return float(np.median(paces[1:] or paces)) if paces else None

    def curve(self, split: str, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the steps and values of a metric, without values that are not numbers."""
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
        except (StateError, OSError, ValueError) as error:  # ValueError: of an impossible path
            self.damage[name] = str(error)
            return None


@contextmanager
def _reading(path: Path, remedy: str = "Remove it.") -> Iterator[None]:
    """Turn every error into a `StateError` that names the file and says what to do."""
    try:
        yield
    except FileNotFoundError as error:
        raise StateError(f"there is no file {path}.") from error
    except Exception as error:  # wrong bytes in a file can raise anything
        raise StateError(f"{path} is damaged: {error}. {remedy}") from error


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()


def _read_environment(path: Path) -> list[dict[str, Any]]:
    with _reading(path):
        found = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise ValueError("it is not a list of environments")
        return found


def _read_algorithms(path: Path) -> dict[str, Algorithm]:
    with _reading(path):
        found = {}
        for kind, values in parse_json(path.read_text(encoding="utf-8")).items():
            name, description = str(values["name"]), str(values.get("description", ""))
            learns = values.get("learns") is not False
            short, code = describe_name(name).name, tuple(map(str, values.get("code", ())))
            note = str(values.get("note", ""))
            found[str(kind)] = Algorithm(short, description.rstrip("."), learns, code, note)
        return found


def describe_name(name: str) -> Algorithm:
    """Return what is known about an algorithm that has only a name, such as `module:Class`."""
    return Algorithm(name.rpartition(":")[2].rpartition(".")[2], learns=name != "uniform")


def read_settings(path: Path) -> dict[str, Any]:
    """Return the description of a run, section by section."""
    with _reading(path, "Restore it, or remove the run."):
        parse = parse_json if path.suffix == ".json" else parse_toml
        settings = parse(path.read_text(encoding="utf-8"))
        for name, kind in _SETTINGS.items():
            if type(value := settings.get(name, kind())) is not kind:
                raise TypeError(f"{name} must be of type {kind.__name__}; got {value!r}")
        if not settings or min(settings.get("seed", 0), settings.get("steps", 0)) < 0:
            raise ValueError("it is empty, or its seed or steps are negative")
        return settings


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the records of a metrics file, without a last line that is not complete."""
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


def read_test(path: Path) -> TestResult | None:
    """Return the test result in a file; None if the dataset has no test classes."""
    with _reading(path, "Remove it and resume the run, which then is tested again."):
        found = parse_json(path.read_text(encoding="utf-8"))
        if found["accuracies"] is None:
            return None
        within = found.get("within-group")
        return TestResult(
            _accuracies(found),
            tasks=str(found.get("tasks", "uniform")),
            within_group=None if within is None else _accuracies(within),
        )


def _accuracies(found: Any) -> NDArray[np.float64]:
    accuracies = np.array(found["accuracies"], dtype=np.float64)
    if accuracies.ndim != 1 or not len(accuracies):
        raise ValueError("it has no list of accuracies")
    if not ((accuracies >= 0) & (accuracies <= 1)).all():
        raise ValueError("an accuracy is not between 0 and 1")
    return accuracies


def read_preview(path: Path) -> Preview:
    """Return the classes, images and tasks in a file."""
    with _reading(path):
        found = _read_arrays(path)
        names = tuple(str(name) for name in found["class_names"])
        images, similarity, tasks = (found[key] for key in ("images", "similarity", "tasks"))
        n = len(names)
        if len(images) != n or images.ndim != 5 or similarity.shape not in ((n, n), (0, 0)):
            raise ValueError(f"its parts do not fit {n} class names")
        if images.dtype != np.uint8 or 0 in images.shape[2:]:
            raise ValueError("its images are not of bytes")
        if similarity.dtype.kind != "f":
            raise ValueError("its similarities are not real numbers")
        if tasks.ndim != 2 or tasks.dtype.kind != "i" or not ((tasks >= 0) & (tasks < n)).all():
            raise ValueError(f"its tasks are not of {n} classes")
        return Preview(names, images, similarity, tasks)


def read_snapshots(folder: Path) -> list[Snapshot]:
    """Return the snapshots in a folder, in order; none if there is no folder."""
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
    # Opened here, since NumPy does not close a file that turns out not to be an archive.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
        size = sum(member.file_size for member in found.zip.infolist())
        if size > _LARGEST:
            raise ValueError(f"it would take {size / 1e9:,.0f} GB")
        return {name: found[name] for name in found.files}
