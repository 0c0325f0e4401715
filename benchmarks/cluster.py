"""What Ray costs: a study of eight small runs in its workers, and in our own processes.

    python benchmarks/cluster.py

Both make the same runs, two at once: ProtoNet on a Conv-4 with 4 filters, 5-way 1-shot, on
`glyphs`. Three ways take turns, round by round: our own pool of processes; Ray, started for the
study and ended after it; and Ray as it is on a cluster, where it runs already and its workers have
been used before. All times are those of a whole study, processes that start and import torch
included. Results are compared too: they must be the same to the bit.

On two idle cores, three rounds of 100 steps per run, seconds per study:

                      median    range          to the own pool, median of rounds
    own pool            10.0     9.7 to 10.8   1.00
    Ray, started        14.3    14.3 to 14.7   1.42
    Ray, running         7.4     7.3 to 7.7    0.74

Starting Ray costs four seconds per study. A cluster that runs spares the start of processes and the
import of torch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from adaptask.data import load
from adaptask.experiments.backends import Event
from adaptask.experiments.backends.processes import ProcessPool
from adaptask.experiments.backends.ray import ClusterOptions, RayBackend
from adaptask.experiments.config import (
    DataConfig,
    EvaluationConfig,
    MachineConfig,
    RunConfig,
)
from adaptask.experiments.options import configure
from adaptask.intervals import Intervals
from adaptask.report.run import Run
from adaptask.report.study import Arm

N_RUNS, N_WORKERS = 8, 2


def ignore(event: Event) -> None:
    """Show nothing."""


def runs_in(folder: Path, steps: int) -> tuple[Run, ...]:
    """Return the runs of a study."""
    config = RunConfig(
        steps=steps,
        data=DataConfig(dataset="glyphs"),
        sampler=configure("sampler", "gcp"),
        backbone=configure("backbone", "conv4", filters=4),
        evaluation=EvaluationConfig(n_episodes=20, n_validation=20),
        every=Intervals(validate=50, checkpoint=50),
        machine=MachineConfig(device="cpu", threads=1),
    )
    return Arm("gcp", {}, config=config).with_runs(folder, range(N_RUNS)).runs


def in_the_pool(folder: Path, steps: int) -> None:
    """Make the runs in processes of our own."""
    assert ProcessPool(N_WORKERS).run(runs_in(folder, steps), ignore) == {}


def through_ray(folder: Path, steps: int) -> None:
    """Make the runs through Ray, which is started where it is not running."""
    with RayBackend(ClusterOptions(cluster="ray"), folder, N_WORKERS) as backend:
        assert backend.run(runs_in(folder, steps), ignore) == {}


def timed(make: Callable[[Path, int], None], steps: int) -> tuple[float, list[bytes]]:
    """Return how long a study takes, in seconds, and its results."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        make(Path(folder), steps)
        seconds = time.perf_counter() - start
        return seconds, [(r.path / "test.json").read_bytes() for r in runs_in(Path(folder), steps)]


def compare(steps: int, rounds: int) -> None:
    """Print the times of all three ways, taken in turns."""
    times: dict[str, list[float]] = {"own pool": [], "Ray, started": [], "Ray, running": []}
    for _ in range(rounds):
        seconds, expected = timed(in_the_pool, steps)
        times["own pool"].append(seconds)
        for name in ("Ray, started", "Ray, running"):
            with ExitStack() as stack:
                if name == "Ray, running":
                    stack.enter_context(RayBackend(ClusterOptions(cluster="ray"), Path()))
                    timed(through_ray, 1)
                seconds, results = timed(through_ray, steps)
            assert results == expected
            times[name].append(seconds)
    print(f"\n{steps} steps per run".ljust(24), "   median    range         to the own pool")
    show(times)


def show(times: Mapping[str, Sequence[float]]) -> None:
    """Print seconds, and ratios within rounds."""
    for name, seconds in times.items():
        ratios = [a / b for a, b in zip(seconds, times["own pool"], strict=True)]
        print(
            f"{name:22} {statistics.median(seconds):8.1f} s  {min(seconds):.1f} to "
            f"{max(seconds):.1f} s   {statistics.median(ratios):.2f}"
        )


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[100])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    load("glyphs", "train")
    for steps in options.steps:
        compare(steps, options.rounds)


if __name__ == "__main__":
    main()
