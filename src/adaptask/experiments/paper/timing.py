"""The time of a training step: what gcp adds to it (Table 5), and how long a plan would take.

For every setting of Table 5 two trainings, one with `uniform` and one with `gcp`, take turns in one
process, so that both meet the same disturbances.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table as RichTable

from adaptask.atomic_file import create_folder, replace_file
from adaptask.data.datasets import load
from adaptask.experiments.config import EvaluationConfig, RunConfig, TaskConfig
from adaptask.experiments.factory import build_trainer
from adaptask.experiments.options import configure
from adaptask.experiments.paper.published import PrintedTime
from adaptask.experiments.paper.reproduction import Plan, fitted, images_per_class, narrowed
from adaptask.experiments.recipes import recipe
from adaptask.experiments.run import resolve_auto
from adaptask.experiments.study import missing_datasets
from adaptask.intervals import Intervals
from adaptask.report.formats import print_table
from adaptask.report.study import Arm
from adaptask.report.tables import Cell, Table
from adaptask.training.displays import format_duration
from adaptask.training.process import StopSignals, choose_device

FILE = "times.json"
FORMAT = 1
LEAST_TURNS = 5
_BLOCK_SECONDS = 0.05
# The first are launched kernel by kernel, then one is captured: a run is made of those after.
_STEPS_TO_CAPTURE = 4


class TimedRun:
    """A run of which some steps are made to time them; nothing of it is kept.

    Args:
        config: Of the run.
        device: Where it is computed.

    Raises:
        ArgumentError: If the configuration does not fit the data.
        DataError: If the dataset has not been prepared, or a class has too few images.
    """

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        config = resolve_auto(config, device)
        # Not compiled: that takes longer than what is measured.
        machine = replace(config.machine, compile="no")
        every = Intervals(log=0, validate=0, checkpoint=0, snapshot=0)
        config = replace(config, machine=machine, every=every)
        self._device = device
        self._trainer = build_trainer(config, device, folder=None, display=None)
        # Signals that are not held back act at once.
        self._steps = self._trainer.steps(config.steps, StopSignals())
        if device.type == "cuda":
            self.step_seconds(_STEPS_TO_CAPTURE)

    def step_seconds(self, n_steps: int = 1) -> float:
        """Make steps; return how long they take together, until the device has made them."""
        start = time.perf_counter()
        for _ in range(n_steps):
            while (wait := next(self._steps)) is not None:
                wait.synchronize()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - start

    def validation_seconds(self) -> float:
        """Validate; return how long it takes, 0 if the dataset has no classes for it."""
        if self._trainer.validation is None:
            return 0.0
        start = time.perf_counter()
        self._trainer.validation(self._trainer.learner)  # it ends by reading the scores
        return time.perf_counter() - start


@dataclass(frozen=True)
class Timing:
    """What was measured in a setting, and what the paper prints."""

    printed: PrintedTime
    uniform: float
    """Seconds of a step, median over turns."""
    gcp: float
    """The same with gcp."""
    factor: float
    """Median over turns of the ratio of their times."""
    low: float
    """A quarter of the turns have a smaller factor."""
    high: float
    """A quarter of the turns have a larger one."""
    n_turns: int
    n_steps: int
    """Steps per turn, of each."""


def setting_config(
    printed: PrintedTime, dataset: str, sampler: str, is_quick: bool = False
) -> RunConfig:
    """Return the run whose steps are timed: one task of 16 queries per class per step."""
    config = recipe("protonet", printed.backbone, dataset, printed.n_shot)
    config = replace(
        config,
        steps=10**9,  # more than are ever made
        task=TaskConfig(n_way=printed.n_way, n_shot=printed.n_shot, n_query=16, n_tasks=1),
        sampler=configure("sampler", sampler),
        evaluation=EvaluationConfig(n_way=2),  # not made, and has fewer classes than training
    )
    config = replace(config, backbone=narrowed(config.backbone)) if is_quick else config
    return fitted(config, images_per_class(dataset))


def time_setting(
    printed: PrintedTime,
    dataset: str,
    device: torch.device,
    *,
    budget: float,
    is_quick: bool = False,
) -> Timing:
    """Let uniform and gcp take turns for about `budget` seconds, and for five turns at least.

    Args:
        printed: A line of Table 5.
        dataset: Whose images.
        device: Where it is computed.
        budget: Seconds.
        is_quick: Whether the backbone is narrow.

    Raises:
        ArgumentError: If the dataset has too few classes.
        DataError: If it has not been prepared, or its classes have too few images.
    """
    runs = {
        sampler: TimedRun(setting_config(printed, dataset, sampler, is_quick), device)
        for sampler in ("uniform", "gcp")
    }
    for run in runs.values():
        run.step_seconds()  # the first is slower
    once = max(run.step_seconds() for run in runs.values())
    n_steps = max(1, math.ceil(_BLOCK_SECONDS / once))
    times: dict[str, list[float]] = {"uniform": [], "gcp": []}
    deadline = time.perf_counter() + budget
    while time.perf_counter() < deadline or len(times["gcp"]) < LEAST_TURNS:
        # The order changes, so that neither always comes after the other.
        order = ("uniform", "gcp") if len(times["gcp"]) % 2 else ("gcp", "uniform")
        for sampler in order:
            times[sampler].append(runs[sampler].step_seconds(n_steps) / n_steps)
    ratios = [a / b for a, b in zip(times["gcp"], times["uniform"], strict=True)]
    low, factor, high = statistics.quantiles(ratios, n=4, method="inclusive")
    uniform, gcp = (statistics.median(times[sampler]) for sampler in ("uniform", "gcp"))
    return Timing(printed, uniform, gcp, factor, low, high, len(ratios), n_steps)


def time_plan(planned: Plan, folder: Path) -> None:
    """Time what was planned, print the table, and keep it as `times.json`.

    Raises:
        ArgumentError: If the dataset has too few classes.
        DataError: If it has not been prepared, or its classes have too few images.
        TrainingError: If the folder cannot be written.
    """
    console = Console(highlight=False)
    device, (dataset,) = choose_device(planned.device), planned.datasets
    load(dataset, "train")  # refuses one that there is not
    create_folder(folder)
    about = math.ceil(len(planned.times) * planned.timing_seconds)
    console.print(f"{planned.title}, measured on {device} for about {about} s.")
    timings = []
    with console.status("") as status:
        for printed in planned.times:
            status.update(f"timing {printed.name}")
            budget = planned.timing_seconds
            timings.append(
                time_setting(printed, dataset, device, budget=budget, is_quick=planned.quick)
            )
    content = {
        "format": FORMAT,
        "dataset": dataset,
        "device": str(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "settings": [asdict(timing) for timing in timings],
    }
    replace_file(folder / FILE, json.dumps(content, indent=1).encode())
    print_table(timing_table(timings, planned.notes), console)
    console.print(f"The times are in {folder}", style="dim")


def timing_table(timings: Sequence[Timing], notes: Sequence[str] = ()) -> Table:
    """Return the measured times next to those of the paper."""
    rows = []
    for timing in timings:
        printed = timing.printed
        texts = (
            f"{printed.n_way}-way {printed.n_shot}-shot",
            printed.backbone,
            f"{1e3 * timing.uniform:.2f}",
            f"{1e3 * timing.gcp:.2f}",
            f"{timing.factor:.3f}",
            f"{timing.low:.3f} to {timing.high:.3f}",
            f"{printed.uniform:.1f}",
            f"{printed.gcp:.1f}",
            f"{printed.factor:.3f}",
        )
        rows.append(tuple(map(Cell, texts)))
    mean = statistics.geometric_mean([timing.factor for timing in timings])
    theirs = statistics.geometric_mean([timing.printed.factor for timing in timings])
    return Table(
        name="times",
        title="Time of a training step",
        headings=(
            *("setting", "backbone", "uniform, ms", "gcp, ms", "factor", "middle half"),
            *("paper: uniform, s", "paper: gcp, s", "paper: factor"),
        ),
        rows=tuple(rows),
        n_labels=2,
        notes=(f"Geometric mean of the factors {mean:.3f}; the paper's {theirs:.3f}.", *notes),
    )


# What a plan would take ---------------------------------------------------------------------------

# A GPU evaluates many at once.
_EPISODES, _EPISODES_ON_GPU = 2, 50


def dry_run(planned: Plan) -> None:
    """Print a plan and, measured now on this machine, about how long it would take.

    Raises:
        ArgumentError: If a configuration does not fit the data.
    """
    console = Console(highlight=False)
    console.print(planned.title, style="bold")
    console.print(f"The paper: {planned.target.says}\n", markup=False)
    missing = missing_datasets(planned.datasets)
    if planned.times:
        for setting in planned.times:
            console.print(f"  {setting.name}: uniform and gcp in turns")
        n_times, seconds = len(planned.times), planned.timing_seconds
        console.print(
            f"\n{n_times} settings of {seconds:g} s on {planned.datasets[0]}, nothing is trained "
            f"to the end: about {n_times * seconds:.0f} s."
        )
    else:
        _print_trials(planned, missing, console)
    for problem in missing.values():
        console.print(f"\n{problem} Without a download: --dataset glyphs.", markup=False)
    console.print()
    for note in planned.notes:
        console.print(f"- {note}", style="dim", markup=False)


def _print_trials(planned: Plan, missing: Collection[str], console: Console) -> None:
    """Print a row for the trials that differ by their sampler alone, and the time of them all."""
    device = choose_device(planned.device)
    kinds: dict[RunConfig, list[Arm]] = {}
    for trial in planned.trials:
        kind = replace(trial.config, sampler=configure("sampler", "uniform"))
        kinds.setdefault(kind, []).append(trial)
    table = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for label in planned.target.labels:
        table.add_column(label)
    for heading in ("steps", "tasks", "runs", "per run"):
        table.add_column(heading, justify="right", no_wrap=True)
    total = 0.0
    for config, trials in kinds.items():
        n_runs, per_run = len(trials) * planned.seeds, "?"
        if config.data.dataset not in missing:
            with console.status(f"timing {trials[0].name} on {device}"):
                seconds = estimate_seconds(config, device)
            total += n_runs * seconds
            per_run = format_duration(seconds)
        values = (dict.fromkeys(t.labels[label] for t in trials) for label in planned.target.labels)
        figures = (f"{config.steps:,}", str(config.task.n_tasks), str(n_runs), per_run)
        table.add_row(*map(", ".join, values), *figures)
    console.print(table)
    text = f"\nTrials: {len(planned.trials)}, seeds: {planned.seeds}, runs: {planned.n_runs}."
    if total:
        text += f" About {format_duration(total)} here, one run after the other"
        text += f", without {' and '.join(missing)}." if missing else "."
    console.print(text, soft_wrap=True)


def estimate_seconds(config: RunConfig, device: torch.device) -> float:
    """Return about how long a run takes: its steps, its validations, and its test.

    A step and a validation are timed now. On a CPU, where time grows with the tasks, it is a step
    of one task.

    Raises:
        ArgumentError: If the configuration does not fit the data.
        DataError: If a class has too few images.
    """
    tests, task, optimizer = config.evaluation, config.task, config.optimizer
    n_episodes, n_parts = _EPISODES_ON_GPU, 1
    if device.type == "cpu":
        n_episodes, n_parts = _EPISODES, task.n_tasks
        task, optimizer = replace(task, n_tasks=1), replace(optimizer, accumulate=1)
    short = replace(tests, n_validation=n_episodes)
    run = TimedRun(replace(config, task=task, optimizer=optimizer, evaluation=short), device)
    for _ in range(2):  # the first time is slower
        step, validation = run.step_seconds() * n_parts, run.validation_seconds()
    every = config.every.resolve(config.steps)["validate"]
    n_validations = math.ceil(config.steps / every) if every else 1
    n_evaluated = n_validations * tests.n_validation
    n_evaluated += tests.n_episodes * min(tests.keep_best, n_validations)
    return config.steps * step + n_evaluated * validation / n_episodes
