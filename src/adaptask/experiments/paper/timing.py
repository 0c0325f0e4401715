"""What gcp adds to the time of a training step, in the settings of the paper's Table 5.

For every setting two trainings, one with `uniform` and one with `gcp`, take turns in one process,
so that both meet the same disturbances.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from adaptask.arguments import check_number
from adaptask.atomic_file import replace_file
from adaptask.experiments.config import RunConfig, SamplerConfig, TaskConfig
from adaptask.experiments.paper.datasets_at_hand import images_a_class, is_at_hand
from adaptask.experiments.paper.figures import PrintedTime
from adaptask.experiments.paper.scaling import fitted
from adaptask.experiments.paper.step_times import build_step, seconds
from adaptask.experiments.recipes import recipe
from adaptask.report.tables import Cell, Table

FILE = "times.json"
FORMAT = 1
N_QUERY = 16
LEAST_TURNS = 5
_WARM_UP = 4  # so many a graph takes until it is captured
_BLOCK_SECONDS = 0.05


@dataclass(frozen=True)
class Timing:
    """What was measured in a setting, beside what the paper prints."""

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
    """Steps a turn, of each."""


def setting_config(printed: PrintedTime, dataset: str, sampler: str) -> RunConfig:
    """Return the run whose steps are timed: one task of 16 queries a class a step."""
    config = recipe("protonet", printed.backbone, dataset, printed.n_shot)
    task = TaskConfig(n_way=printed.n_way, n_shot=printed.n_shot, n_query=N_QUERY, n_tasks=1)
    config = replace(config, task=task, sampler=SamplerConfig(name=sampler))  # type: ignore[arg-type]
    return fitted(config, images_a_class(dataset))


def time_setting(
    printed: PrintedTime, dataset: str, device: torch.device, *, budget: float
) -> Timing:
    """Let uniform and gcp take turns for about `budget` seconds, and for five turns at least."""
    steps = {
        sampler: build_step(setting_config(printed, dataset, sampler), device)
        for sampler in ("uniform", "gcp")
    }
    for step in steps.values():
        seconds(step, device, _WARM_UP)
    once = max(seconds(step, device) for step in steps.values())
    n_steps = max(1, math.ceil(_BLOCK_SECONDS / once))
    times: dict[str, list[float]] = {"uniform": [], "gcp": []}
    deadline = time.perf_counter() + budget
    while time.perf_counter() < deadline or len(times["gcp"]) < LEAST_TURNS:
        # The order changes, so that neither always comes after the other.
        order = ("uniform", "gcp") if len(times["gcp"]) % 2 else ("gcp", "uniform")
        for sampler in order:
            times[sampler].append(seconds(steps[sampler], device, n_steps) / n_steps)
    ratios = [a / b for a, b in zip(times["gcp"], times["uniform"], strict=True)]
    low, factor, high = statistics.quantiles(ratios, n=4, method="inclusive")
    uniform, gcp = (statistics.median(times[sampler]) for sampler in ("uniform", "gcp"))
    return Timing(printed, uniform, gcp, factor, low, high, len(ratios), n_steps)


def time_settings(
    settings: Sequence[PrintedTime],
    *,
    dataset: str,
    device: torch.device,
    budget: float = 60.0,
    progress: Callable[[PrintedTime], None] = lambda printed: None,
) -> list[Timing]:
    """Time some settings one after the other.

    Args:
        settings: Lines of Table 5.
        dataset: Whose images; noise of their shape where it has not been prepared.
        device: Where it is computed.
        budget: Seconds a setting.
        progress: Told each setting before it is timed.

    Raises:
        ArgumentError: If the dataset has too few classes.
        DataError: If its classes have too few images.
    """
    check_number("budget", budget, low=0, high=math.inf)
    found = []
    for printed in settings:
        progress(printed)
        found.append(time_setting(printed, dataset, device, budget=budget))
    return found


def timing_table(timings: Sequence[Timing], notes: Sequence[str] = ()) -> Table:
    """Return the measured times beside those of the paper."""
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


def write_times(
    folder: Path, timings: Sequence[Timing], *, dataset: str, device: torch.device
) -> None:
    """Write what was measured, and on what, as `times.json`.

    Raises:
        TrainingError: If it cannot be written.
    """
    content = {
        "format": FORMAT,
        "dataset": dataset,
        "images": "its own" if is_at_hand(dataset) else "noise of their shape",
        "device": str(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "settings": [asdict(timing) for timing in timings],
    }
    replace_file(folder / FILE, json.dumps(content, indent=1).encode())
