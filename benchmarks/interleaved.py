"""Several runs that share one GPU: steps per second of all of them together, with validation.

Run: python benchmarks/interleaved.py --dataset cifar-fs          (three minutes on an H200)

Whole runs as `adaptask compare` makes them, by the backend `Interleaved`: ProtoNet, Conv-4, 5-way
1-shot, 16 queries, gcp, cosine schedule, bfloat16, compiled; records every 50 steps, 200 validation
episodes every 500, a checkpoint every 1,000. Counted from the moment when all runs have made 500
steps until the first is done. `cores` is the time of the process over the time that passed. On one
H200, torch 2.11, CIFAR-FS:

    runs   steps/s together   ms per step and run   cores
      12           4312                 0.232         0.81

A second measurement, with samplers that learn beside the backward pass: 4302. Earlier versions,
with 5,000 steps: 3981 and 3997 before ReLU and max-pooling of Conv-4 changed places; in turns with
them 3711, 3771 and 3823 of the version before, whose steps had 128 kernels instead of 113 and whose
runs began together (3819 to 4051 in five measurements of another day, when 1, 8 and 16 runs made
1745, 3900 and 3818).

Where the time went in those: the steps alone, without records, validation and checkpoints, make
2,270 steps per second on one stream, 5,030 on eight and 5,330 on twelve, 0.19 ms each. A validation
keeps the device busy for 13 ms, a third of that in max-pooling and a quarter in batch
normalization, which is 0.026 ms per step. The rest is 0.035 ms per step. In a round with a thread
that sampled the streams, all twelve were idle in 9 % of the samples (12 % before). The host was in
calls of 2 ms and more for a quarter of the time, up to 50 ms each. By their number and length we
take them for checkpoints, best weights and batches of validations; that was not traced. A compiled
validation takes 7 ms of the device instead of 13; with it there were 4046 steps per second, but
compiling takes 10 s.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from adaptask.experiments.backends import Event
from adaptask.experiments.backends.interleaved import Interleaved
from adaptask.experiments.config import (
    DataConfig,
    EvaluationConfig,
    MachineConfig,
    OptimizerConfig,
    RunConfig,
    TaskConfig,
)
from adaptask.experiments.options import configure
from adaptask.intervals import Intervals
from adaptask.report.study import Arm

CONFIG = RunConfig(
    task=TaskConfig(n_way=5, n_shot=1, n_query=16),
    sampler=configure("sampler", "gcp"),
    optimizer=OptimizerConfig(schedule="cosine"),
    evaluation=EvaluationConfig(n_episodes=200, n_validation=200),
    every=Intervals(log=50, validate=500, checkpoint=1000, snapshot=1000),
    machine=MachineConfig(compile="yes" if torch.cuda.is_available() else "no"),
)


class Meter:
    """Counts steps of all runs while all of them are in progress."""

    def __init__(self, n_runs: int, n_steps: int) -> None:
        self._n_runs, self._n_steps = n_runs, n_steps
        self._warm = min(500, n_steps // 3)
        self._steps: dict[str, int] = {}
        self._first: tuple[float, float, int] | None = None
        self.last: tuple[float, float, int] | None = None

    def __call__(self, event: Event) -> None:
        """Look at an event."""
        if event.kind == "warn":
            print(event.run, event.text)
        if event.kind != "advance":
            return
        self._steps[event.run] = event.step
        now = time.perf_counter(), time.process_time(), sum(self._steps.values())
        slowest = min(self._steps.values())
        if self._first is None and len(self._steps) == self._n_runs and slowest >= self._warm:
            self._first = now
        if self._first and self.last is None and max(self._steps.values()) >= self._n_steps:
            self.last = now

    def rates(self) -> tuple[float, float]:
        """Return steps per second of all runs, and how many cores were busy."""
        assert self._first is not None
        assert self.last is not None
        seconds, busy, steps = (b - a for a, b in zip(self._first, self.last, strict=True))
        return steps / seconds, busy / seconds


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="glyphs")
    parser.add_argument("--runs", type=int, nargs="*", default=[1, 4, 8, 12, 16])
    parser.add_argument("--steps", type=int, default=6000)
    arguments = parser.parse_args()
    config = replace(CONFIG, steps=arguments.steps, data=DataConfig(dataset=arguments.dataset))
    print("runs   steps/s together   ms per step and run   cores")
    for n_runs in arguments.runs:
        meter = Meter(n_runs, arguments.steps)
        with tempfile.TemporaryDirectory() as folder:
            arm = Arm("gcp", {}, config=config).with_runs(Path(folder), range(n_runs))
            failures = Interleaved(n_runs).run(arm.runs, meter)
        if failures:
            print(n_runs, failures)
            continue
        rate, cores = meter.rates()
        print(f"{n_runs:4} {rate:14.0f} {1e3 / rate:21.3f} {cores:12.2f}", flush=True)


if __name__ == "__main__":
    main()
