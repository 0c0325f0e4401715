"""The time of a training step, and what gcp adds to it: the paper's Table 5.

For every setting two trainings, one with `uniform` and one with `gcp`, take turns in one process,
so that both meet the same disturbances. Where a dataset has not been prepared, noise of the shape
of its images takes its place: times do not depend on what images show.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from adaptask.atomic_file import not_written, replace_file
from adaptask.data import EpisodeSource, glyphs
from adaptask.data.cache import cache_root, read_meta
from adaptask.data.images import ImageSet
from adaptask.data.registry import DATASETS, Benchmark, dataset_folder, is_prepared
from adaptask.experiments.building import build_parts, open_split
from adaptask.experiments.config import RunConfig, SamplerConfig, TaskConfig
from adaptask.experiments.paper.published import PrintedTime
from adaptask.experiments.paper.reproduction import Plan
from adaptask.experiments.paper.scaling import fitted, images_per_class
from adaptask.experiments.recipes import recipe
from adaptask.experiments.run import resolve_auto
from adaptask.report.formats import print_table
from adaptask.report.table import Cell, Table
from adaptask.training.graph import GraphEngine
from adaptask.training.machine import choose_device
from adaptask.training.step import TrainingStep

FILE = "times.json"
FORMAT = 1
LEAST_TURNS = 5
_BLOCK_SECONDS = 0.05
# The first are launched kernel by kernel, then one is captured: a run is made of those after.
_STEPS_TO_CAPTURE = 4

Work = Callable[[], object]


def build_step(config: RunConfig, device: torch.device) -> Work:
    """Return what makes one training step of a run, whenever it is called.

    Raises:
        ArgumentError: If the configuration does not fit the data.
        DataError: If a class has too few images.
    """
    config = resolve_auto(config, device)
    task, machine = config.task, config.machine
    source = open_or_noise(config, "train", device, task.n_way, task.n_shot + task.n_query)
    learner, sampler, optimizer = build_parts(config, source, device)
    step = TrainingStep(
        learner,
        sampler,
        source,
        optimizer,
        n_shot=task.n_shot,
        n_query=task.n_query,
        n_tasks=task.n_tasks,
        accumulate=config.optimiser.accumulate,
        clip_norm=config.optimiser.clip_norm,
        precision=machine.precision,
    )
    learner.train()
    # Not compiled: that takes longer than what is measured.
    engine = GraphEngine(step, engine=machine.engine, report=lambda text: None)
    numbers = itertools.count()
    if device.type == "cuda":
        for _ in range(_STEPS_TO_CAPTURE):
            engine(next(numbers))
    return lambda: engine(next(numbers))


def open_or_noise(
    config: RunConfig, split: str, device: torch.device, n_classes: int, n_images: int
) -> EpisodeSource:
    """Return a split of the dataset of a run, or noise where it has not been prepared.

    Args:
        config: Of the run.
        split: `train`, `val` or `test`.
        device: Where it is used.
        n_classes: Of the noise.
        n_images: Of each class of the noise.
    """
    dataset = config.data.dataset
    if is_prepared(cache_root() / dataset):
        return open_split(config, split, device)
    shape = (n_classes * n_images, *_image_shape(dataset))
    pixels = torch.randint(256, shape, generator=torch.Generator().manual_seed(0))
    noise = ImageSet(
        dataset="noise",
        split="train",
        images=pixels.to(torch.uint8),
        class_names=tuple(f"noise-{i}" for i in range(n_classes)),
        class_starts=torch.arange(n_classes + 1) * n_images,
    )
    augmentation = config.data.augmentation if split == "train" else "none"
    return EpisodeSource(
        noise, device=device, augmentation=None if augmentation == "default" else augmentation
    )


def _image_shape(dataset: str) -> tuple[int, int, int]:
    """Return channels, height and width of a dataset's images."""
    entry = DATASETS.get(dataset)
    if isinstance(entry, Benchmark):
        return entry.form.channels, entry.form.height, entry.form.width
    if dataset == glyphs.NAME:
        return 1, glyphs.IMAGE_SIZE, glyphs.IMAGE_SIZE
    channels, height, width = read_meta(dataset_folder(dataset))["image_shape"]
    return channels, height, width


def seconds(work: Work, device: torch.device, n_times: int = 1) -> float:
    """Return how long some work takes, done `n_times` in a row, until the device has done it."""
    start = time.perf_counter()
    for _ in range(n_times):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


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
    """Steps per turn, of each."""


def setting_config(printed: PrintedTime, dataset: str, sampler: str) -> RunConfig:
    """Return the run whose steps are timed: one task of 16 queries per class per step."""
    config = recipe("protonet", printed.backbone, dataset, printed.n_shot)
    task = TaskConfig(n_way=printed.n_way, n_shot=printed.n_shot, n_query=16, n_tasks=1)
    config = replace(config, task=task, sampler=SamplerConfig(name=sampler))  # type: ignore[arg-type]
    return fitted(config, images_per_class(dataset))


def time_setting(
    printed: PrintedTime, dataset: str, device: torch.device, *, budget: float
) -> Timing:
    """Let uniform and gcp take turns for about `budget` seconds, and for five turns at least.

    Args:
        printed: A line of Table 5.
        dataset: Whose images; noise of their shape where it has not been prepared.
        device: Where it is computed.
        budget: Seconds.

    Raises:
        ArgumentError: If the dataset has too few classes.
        DataError: If its classes have too few images.
    """
    steps = {
        sampler: build_step(setting_config(printed, dataset, sampler), device)
        for sampler in ("uniform", "gcp")
    }
    for step in steps.values():
        seconds(step, device, _STEPS_TO_CAPTURE)
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


def time_plan(planned: Plan, folder: Path) -> None:
    """Time what was planned, print the table, and keep it as `times.json`.

    Raises:
        ArgumentError: If the dataset has too few classes.
        DataError: If its classes have too few images.
        TrainingError: If the folder cannot be written.
    """
    console = Console(highlight=False)
    device, (dataset,) = choose_device(planned.device), planned.datasets
    budget = planned.timing_seconds
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(folder, error) from error
    about = math.ceil(len(planned.times) * budget)
    console.print(f"{planned.title}, measured on {device} for about {about} s.")
    timings = []
    with console.status("") as status:
        for printed in planned.times:
            status.update(f"timing {printed.name}")
            timings.append(time_setting(printed, dataset, device, budget=budget))
    content = {
        "format": FORMAT,
        "dataset": dataset,
        "images": "its own" if is_prepared(cache_root() / dataset) else "noise of their shape",
        "device": str(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "settings": [asdict(timing) for timing in timings],
    }
    replace_file(folder / FILE, json.dumps(content, indent=1).encode())
    print_table(timing_table(timings, planned.notes), console)
    console.print(f"The times are in {folder}", style="dim")


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
