"""What the engine and gcp add to a training step on a CPU, in the settings of the paper's Table 5.

Run: python benchmarks/step_overhead.py --seconds 60

For every setting two trainers, one with `uniform` and one with `gcp`, take turns, a step each, so
that both meet the same disturbances. `gcp / uniform` is the median over turns of the ratio of
their steps. `engine` is the share of a step with gcp that is spent outside forward, backward and
optimizer: drawing tasks and images, metrics, telling the sampler, logging and progress. ProtoNet on
glyphs, 15 queries per class, one task per step, one torch thread per core.

On two cores of a server CPU with nothing else running on them, torch 2.11, --seconds 25 (130
for ResNet-12, in a run of its own):

    setting                 uniform ms   gcp / uniform   paper   engine   turns
     5-way  1-shot conv4           85.2           1.002   1.070     2.4 %    144
     5-way  1-shot resnet12       818.8           0.998   1.044     0.4 %     78
     5-way  5-shot conv4          111.3           1.001   1.073     2.1 %    110
     5-way 10-shot conv4          118.7           1.001   1.042     2.0 %     98
     5-way 15-shot conv4          139.3           0.997   1.028     1.8 %     89
    10-way  1-shot conv4          166.3           0.997   1.098     1.3 %     74
    15-way  1-shot conv4          331.8           0.998   1.158     0.7 %     38
    20-way  1-shot conv4          518.5           1.002   1.215     0.5 %     22
    geometric mean of gcp / uniform: 0.9995

Measured last, after the step and the feedback of samplers were written again, on two idle cores,
torch 2.13, --seconds 12 --only conv4: gcp / uniform 1.004, 1.002, 1.003, 1.000, 1.014, 0.996 and
1.001, geometric mean 1.0028; neighbor / uniform (`--sampler neighbor`) 1.010, 1.012, 1.008, 1.006,
1.007, 1.003 and 0.981, geometric mean 1.0038. Again after a
later clean-up, same options: geometric means 1.0083 and 1.0049, single settings 0.998 to 1.030 and
0.975 to 1.033.

`--memory` instead makes 5,000 steps with every part of the run at work (records, validation,
checkpoints, snapshots), and prints the process's memory on the way: 767.0 MB after 100 steps,
767.1 MB after 5,000, and nothing else in between.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from adaptask.backbones import build_backbone
from adaptask.data import open_episodes
from adaptask.experiments.paper.published import TABLE_5
from adaptask.learners import build_learner
from adaptask.samplers import SAMPLERS, build_sampler
from adaptask.training import Evaluator, Intervals, Trainer
from adaptask.training.device_steps import finish

N_QUERY = 15
NEVER = 1 << 30


class Stopwatch:
    """Adds up the time spent inside some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time added up."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def build_trainer(
    sampler: str, n_way: int, n_shot: int, backbone: str, folder: Path | None = None
) -> Trainer:
    """Build a trainer as a run has it."""
    source = open_episodes("glyphs", "train", seed=0)
    torch.manual_seed(0)
    network = build_backbone(backbone, image_shape=source.image_set.image_shape)
    learner = build_learner("protonet", backbone=network)
    features = {}
    if SAMPLERS[sampler].uses_class_features:
        features["n_features"] = learner.n_features
    return Trainer(
        learner,
        build_sampler(sampler, n_classes=source.n_classes, n_way=n_way, seed=0, **features),
        source,
        n_shot=n_shot,
        n_query=N_QUERY,
        every=Intervals(log=50, validate=0, checkpoint=0, snapshot=0),
        folder=folder,
    )


def time_step(trainer: Trainer) -> float:
    """Return the seconds of one step with all that goes with it."""
    start = time.perf_counter()
    finish(trainer._advance(NEVER))
    return time.perf_counter() - start


def measure(
    sampler: str, n_way: int, n_shot: int, backbone: str, seconds: float
) -> tuple[float, float, float, int]:
    """Return a uniform step's time, the sampler's factor, the engine's share, and the turns."""
    uniform, adaptive = (
        build_trainer(name, n_way, n_shot, backbone) for name in ("uniform", sampler)
    )
    inside = Stopwatch()
    for name in ("_train_step.learner.training_step", "optimizer.step"):
        owner: Any = adaptive
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, inside.around(getattr(owner, last)))
    backward = torch.Tensor.backward
    plain: list[float] = []
    slower: list[float] = []
    outside: list[float] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(plain) < 10:
        first = (uniform, adaptive) if len(plain) % 2 else (adaptive, uniform)
        times = {}
        for trainer in first:
            inside.seconds = 0.0
            torch.Tensor.backward = (  # type: ignore[method-assign]
                inside.around(backward) if trainer is adaptive else backward
            )
            times[trainer] = time_step(trainer)
            if trainer is adaptive:
                outside.append(1 - inside.seconds / times[trainer])
        plain.append(times[uniform])
        slower.append(times[adaptive])
    torch.Tensor.backward = backward  # type: ignore[method-assign]
    ratios = [a / b for a, b in zip(slower[3:], plain[3:], strict=True)]
    return (
        statistics.median(plain[3:]),
        statistics.median(ratios),
        statistics.median(outside[3:]),
        len(ratios),
    )


def resident_megabytes() -> float:
    """Return the memory that the process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def watch_memory(n_steps: int) -> None:
    """Train with validation, checkpoints and snapshots, and print the memory now and then."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer("gcp", 5, 1, "conv4", Path(folder) / "run")
        validation = open_episodes("glyphs", "val")
        trainer.validation = Evaluator(validation, n_way=5, n_shot=1, n_episodes=20)
        trainer.every = Intervals(log=50, validate=250, checkpoint=250, snapshot=250)
        for stop in (100, *range(500, n_steps + 1, 500)):
            trainer.fit(stop)
            print(f"step {stop:5}  {resident_megabytes():7.1f} MB", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each setting")
    parser.add_argument("--only", choices=("conv4", "resnet12"), help="settings of one backbone")
    parser.add_argument("--sampler", choices=("gcp", "neighbor"), default="gcp")
    parser.add_argument("--memory", action="store_true")
    arguments = parser.parse_args()
    if arguments.memory:
        watch_memory(5000)
        return
    print(f"{torch.get_num_threads()} threads")
    name = arguments.sampler
    print(f"setting                 uniform ms {name:>5} / uniform   paper   engine   turns")
    factors = []
    for printed in TABLE_5:
        n_way, n_shot, backbone = printed.n_way, printed.n_shot, printed.backbone
        if arguments.only and arguments.only != backbone:
            continue
        step, factor, engine, turns = measure(name, n_way, n_shot, backbone, arguments.seconds)
        factors.append(factor)
        print(
            f"{n_way:2}-way {n_shot:2}-shot {backbone:9}{1e3 * step:11.1f}{factor:16.3f}"
            f"{printed.factor:8.3f}{100 * engine:8.1f} %{turns:7}",
            flush=True,
        )
    mean = math.exp(sum(map(math.log, factors)) / len(factors))
    print(f"geometric mean of {name} / uniform: {mean:.4f}")


if __name__ == "__main__":
    main()
