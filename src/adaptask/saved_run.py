"""`load_run`: a run folder as Python objects, for analysis and for using what was trained."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptask.arguments import check_choice
from adaptask.report.run import (
    TestResult,
    read_metrics,
    read_preview,
    read_settings,
    read_snapshots,
    read_test,
)

if TYPE_CHECKING:
    from torch import nn

    from adaptask.experiments.config import RunConfig


class Potentials(NamedTuple):
    """What the sampler of a run had learned, at each snapshot."""

    steps: NDArray[np.int64]
    """After how many steps, `snapshots`."""
    values: NDArray[np.float32]
    """Log potentials of pairs, `snapshots x classes x classes` with -inf on the diagonals; or log
    weights of classes, `snapshots x classes`."""


class SavedRun:
    """A run folder, open for reading; see `load_run`.

    Every file is read when it is first used. Properties raise a `StateError` if their file is
    damaged.
    """

    def __init__(self, path: Path, *, trust: bool) -> None:
        self.path = path
        self._trust = trust
        self._settings = read_settings(_description(path))

    def __repr__(self) -> str:
        tested = "not tested"
        if (accuracies := self.test_accuracies) is not None:
            tested = f"test accuracy {100 * accuracies.mean():.2f} %"
        return f"SavedRun({str(self.path)!r}, {self._settings.get('steps', 0)} steps, {tested})"

    @cached_property
    def config(self) -> RunConfig:
        """The configuration from which the run can be repeated.

        Raises:
            ArgumentError: If the run names classes outside the package, and is not trusted; or if
                it was made in Python by a `Trainer`, which has no configuration.
        """
        from adaptask.experiments.config_file import load_config, no_run_in

        if not (self.path / "config.toml").exists():
            raise no_run_in(self.path)
        return load_config(self.path / "config.toml", trust_plugins=self._trust)

    @cached_property
    def metrics(self) -> dict[str, dict[str, NDArray[np.float64]]]:
        """What was recorded, by split and name: `run.metrics["val"]["accuracy"]`.

        Each split has its own `"step"`. All arrays of a split are equally long; a value that a
        record does not have is NaN.
        """
        path = self.path / "metrics.jsonl"
        records = read_metrics(path) if path.exists() else []
        splits = dict.fromkeys(str(record["split"]) for record in records)
        return {split: _columns([r for r in records if r["split"] == split]) for split in splits}

    @cached_property
    def potentials(self) -> Potentials | None:
        """What the sampler had learned over time; None of a sampler that learns nothing."""
        found = read_snapshots(self.path / "snapshots")
        learned = [(s.step, s.distribution) for s in found if s.distribution is not None]
        if not learned:
            return None
        return Potentials(
            np.array([step for step, _ in learned], dtype=np.int64),
            np.stack([values for _, values in learned]),
        )

    @cached_property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the training classes, in the order of `potentials`; None before the run ends."""
        path = self.path / "portrait.npz"
        return read_preview(path).class_names if path.exists() else None

    @cached_property
    def test_accuracies(self) -> NDArray[np.float64] | None:
        """Accuracy in each test task, 0 to 1; None before the run is tested.

        A run on a dataset without test classes has none either.
        """
        return None if self.test is None else self.test.accuracies

    @cached_property
    def test(self) -> TestResult | None:
        """Accuracies of every kind of test task; None as `test_accuracies` is.

        `run.test.within_group` has those of tasks within groups, if these were tested too.
        """
        path = self.path / "test.json"
        return read_test(path) if path.exists() else None

    @cached_property
    def learner(self) -> nn.Module:
        """The learner with its best weights by validation, on the CPU, in evaluation mode."""
        return self.load_learner()

    def load_learner(
        self, *, weights: Literal["best", "last"] = "best", device: str = "cpu"
    ) -> nn.Module:
        """Build the learner of the run and load its weights; the dataset must be prepared.

        Args:
            weights: Those that were best in validation, or those after the last step.
            device: Where the learner is put, such as "cuda"; "auto" takes a GPU if there is one.

        Raises:
            ArgumentError: If there is no such choice of weights, or the run names classes outside
                the package, and is not trusted.
            DataError: If the dataset, from which the shape of the images is known, is missing.
            StateError: If there are no such weights, or they do not fit.
        """
        from adaptask.experiments.evaluate_command import trained_learner
        from adaptask.training.process import choose_device
        from adaptask.training.run_folder import RunFolder

        check_choice("weights", weights, ("best", "last"))
        where = choose_device(device)
        learner, _ = trained_learner(RunFolder(self.path), self.config, where, weights)
        return learner.eval()


def load_run(folder: str | os.PathLike[str], *, trust: bool = False) -> SavedRun:
    """Open a run folder: configuration, records, what the sampler learned, trained learner.

    ```
    run = adaptask.load_run("runs/first")
    plt.plot(run.metrics["val"]["step"], run.metrics["val"]["accuracy"])
    steps, log_potentials = run.potentials
    logits = run.learner(episodes)
    ```

    Args:
        folder: What `adaptask train`, or a `Trainer` with a folder, wrote; runs of a study are in
            its `runs/*/seed-*`.
        trust: Whether classes outside the package that the run names, such as
            `my_package.samplers:MySampler`, may be imported. That runs code.

    Raises:
        ArgumentError: If there is no run in the folder.
        StateError: If its configuration is damaged.
    """
    from adaptask.experiments.config_file import no_run_in

    path = Path(folder)
    if not _description(path).exists():
        raise no_run_in(path)
    return SavedRun(path, trust=trust)


def _description(path: Path) -> Path:
    """Return the file that describes a run; one made in Python has `run.json`."""
    made_in_python = path / "run.json"
    return made_in_python if made_in_python.exists() else path / "config.toml"


def _columns(records: list[dict[str, Any]]) -> dict[str, NDArray[np.float64]]:
    """Return the values of records by their names, each as an array."""
    names = dict.fromkeys(name for record in records for name in record if name != "split")
    return {name: np.array([_number(r.get(name)) for r in records]) for name in names}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
