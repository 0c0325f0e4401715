"""Runs of the paper's length on CIFAR-FS that are still to be made, one row after the other.

Run: python benchmarks/full_length.py --list
     python benchmarks/full_length.py --row 1 --seeds 3 4 --minutes 9            (on a GPU)
     python benchmarks/full_length.py --row 1 --samplers uniform neighbor --output new.csv
     python benchmarks/full_length.py --write        (the table of docs/reproduction.md)

CIFAR-FS must have been prepared. Settings are those of `adaptask reproduce`:

    row 1  Table 2   ProtoNet, ResNet-12, 1-shot, seeds 0 to 4
    row 2  Table 2   MetaOptNet-SVM, ResNet-12, tested with 5 shots and with 1, seeds 0 to 2
    row 3  Table 3   MAML++, Conv-4, 1-shot, seeds 0 to 2
    row 4  Table 3   MAML++, Conv-4, 5-shot, seeds 0 to 2
    row 5  Table 2   ProtoNet, ResNet-12, 5-shot, seeds 0 to 2
    row 6  Table 2   MetaOptNet-RR, ResNet-12, tested with 5 shots and with 1, seeds 0 to 2

Rows 2 and 6 train once and test the same weights twice, validated with 5 shots, as MetaOptNet does
itself. `adaptask reproduce` makes two trainings of it, each validated with the shots of its test;
they differ in nothing else, so this takes half the time.

A finished run is a line of the output at once (two in rows 2 and 6); what is recorded there or in
docs/reproduction/full-length.csv is not run again. Lines from another file are joined by
`--add new.csv`. All samplers of a seed come before the next seed. The first run begins in
any case, and another one only if it can end within `--minutes`, taking the longest so far for its
time. A run that was killed goes on where its folder is still there.

Two processes that share a GPU (`--part 1/2` and `--part 2/2`, at best under CUDA MPS) make both
runs of a pair at once: 9 instead of 12 minutes for a pair of row 1 on one H200.

Measured on one H200, with validation and compiling:

    row 1   6 minutes alone, 9 per pair
    row 2   7.5 minutes alone (not to the end), 12 per pair
    row 3   16 ms per step alone, 35 ms per step of each with six at once: 29 minutes for all six
            at most. Measured in the steps 1,000 to 4,600; after 7,500 of the 50,000 the losses
            between inner steps no longer count, and steps are shorter.

Rows 5 and 6 should take as long as rows 1 and 2 by their times in benchmarks/gpu.py, row 4 a little
longer than row 3. Processes under MPS must not be killed while others compute.

`--dataset glyphs --quick` shows in a minute on a CPU that everything works.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from _records import (
    DOCS,
    RECORDS,
    append,
    chosen_weights,
    discard_weights,
    fill_in,
    late_training,
    percentages,
    printed_accuracy,
    read_rows,
)
from adaptask.experiments.config import RunConfig
from adaptask.experiments.evaluate_command import evaluate_run
from adaptask.experiments.options import configure
from adaptask.experiments.paper.reproduction import plan
from adaptask.experiments.run import run_steps
from adaptask.report.run import Run
from adaptask.report.statistics import paired_difference
from adaptask.training.device_steps import finish
from adaptask.training.displays import Quiet
from league import described

PAGE = DOCS / "reproduction.md"
FULL_LENGTH = RECORDS / "full-length.csv"
LATE_STEPS = 5_000
"""The last steps, over which training loss and accuracy are taken."""
SECONDS_BETWEEN_LINES = 30.0


@dataclass(frozen=True)
class Row:
    """What is trained for a row, and how it is tested."""

    target: str
    """Of `adaptask reproduce`."""
    learner: str
    tested: tuple[int, ...]
    """Shots of the tests; validation has the first."""
    seeds: int


ROWS = {
    1: Row("table-cifar", "protonet", (1,), 5),
    2: Row("table-cifar", "metaoptnet-svm", (5, 1), 3),
    3: Row("table-compat", "maml++", (1,), 3),
    4: Row("table-compat", "maml++", (5,), 3),
    5: Row("table-cifar", "protonet", (5,), 3),
    6: Row("table-cifar", "metaoptnet-ridge", (5, 1), 3),
}

OPTIONS = {"neighbor": {"beta": 2.0}}
"""Of samplers; with 64 classes `neighbor` would be uniform by default."""

Key = tuple[str, str, int, str, int]
"""Learner, backbone, shots of the test, sampler and seed: one line of the records."""


@dataclass(frozen=True)
class Planned:
    """A run, and the lines of the records that come from it."""

    row: Row
    config: RunConfig

    @property
    def name(self) -> str:
        """Of its folder."""
        parts = (self.config.learner.name, self.config.backbone.name, f"{self.row.tested[0]}shot")
        return "-".join((*parts, self.config.sampler.name, f"seed{self.config.seed}"))

    @property
    def keys(self) -> list[Key]:
        """One for each test."""
        config = self.config
        names = config.learner.name, config.backbone.name
        return [(*names, shots, config.sampler.name, config.seed) for shots in self.row.tested]


def plan_row(
    row: Row,
    samplers: Sequence[str],
    seeds: Iterable[int],
    *,
    dataset: str = "cifar-fs",
    quick: bool = False,
) -> list[Planned]:
    """Return the runs of a row, as `adaptask reproduce` configures them."""
    planned = plan(
        row.target, dataset=dataset, rows=[row.learner], shots=[row.tested[0]], quick=quick
    )
    base = planned.trials[0].config
    configured = [configure("sampler", name, **OPTIONS.get(name, {})) for name in samplers]
    return [
        Planned(row, replace(base, sampler=sampler, seed=seed))
        for seed in seeds
        for sampler in configured
    ]


def key_of(row: Mapping[str, str]) -> Key:
    """Return what a line of the records is about."""
    names = row["learner"], row["backbone"], int(row["shots"])
    return (*names, row["sampler"], int(row["seed"]))


class Progress(Quiet):
    """Prints warnings, and now and then a line with the validation accuracy."""

    def __init__(self, name: str) -> None:
        super().__init__(sys.stderr)
        self._name, self._n_steps = name, 0
        self._start = self._last = time.monotonic()

    def begin(self, step: int, n_steps: int) -> None:
        """Say where the run begins."""
        self._n_steps = n_steps
        self.warn(f"{self._name}: from step {step} to {n_steps}")

    def advance(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Print a line after a validation, if the last line is old enough."""
        now = time.monotonic()
        if metrics and "val_accuracy" in metrics and now - self._last > SECONDS_BETWEEN_LINES:
            self._last = now
            accuracy = 100 * metrics["val_accuracy"]
            self.warn(
                f"{self._name}: step {step} of {self._n_steps}, {now - self._start:.0f} s, "
                f"validation {accuracy:.2f} %"
            )


def make(planned: Planned, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Make a run, or what is left of it, and return a line for each of its tests."""
    path, config = arguments.folder / planned.name, planned.config
    finish(run_steps(config, path, display=Progress(planned.name)))
    results = [read_test(path)]
    for shots in planned.row.tested[1:]:
        again = evaluate_run(path, n_shot=shots, device=config.machine.device)
        results.append(again.record())
    return [
        record(path, config, shots, result, arguments.code)
        for shots, result in zip(planned.row.tested, results, strict=True)
    ]


def read_test(path: Path) -> dict[str, Any]:
    """Return the result of the test at the end of a run."""
    found: dict[str, Any] = json.loads((path / "test.json").read_text())
    return found


def record(
    path: Path, config: RunConfig, shots: int, result: Mapping[str, Any], code: str | None
) -> dict[str, Any]:
    """Return what is kept of a test of a run that has ended."""
    run = Run(path, config.seed)
    pace = run.seconds_per_step
    return {
        "learner": config.learner.name,
        "backbone": config.backbone.name,
        "shots": shots,
        "validated_shots": config.tested_shot,
        "sampler": config.sampler.name,
        "precision": run.settings["machine"]["precision"],
        "seed": config.seed,
        "steps": config.steps,
        **percentages(result),
        **chosen_weights(run),
        **late_training(run, after=max(0, config.steps - LATE_STEPS)),
        "kl": f"{run.curve('sampler', 'kl')[1][-1]:.4f}" if has_kl(run) else "",
        "ms_per_step": "" if pace is None else f"{1000 * pace:.3f}",
        "code": code or code_of(run),
        "torch": run.environment[-1]["torch"],
    }


def has_kl(run: Run) -> bool:
    """Return whether the sampler recorded its divergence from uniform."""
    return bool(len(run.curve("sampler", "kl")[1]))


def code_of(run: Run) -> str:
    """Return the revision of the code, `+` if it was changed; its version without git."""
    here = run.environment[-1]
    git = here.get("adaptask_git")
    return f"{git['revision'][:7]}{'+' * git['dirty']}" if git else str(here["adaptask"])


def make_runs(
    runs: Sequence[Planned], arguments: argparse.Namespace, known: Sequence[Path]
) -> None:
    """Make the runs that are in no file of `known`, while there is time."""
    deadline = time.monotonic() + 60 * arguments.minutes
    longest = 0.0
    for planned in runs:
        done = read_keys(known)
        if done.issuperset(planned.keys):
            print(f"{planned.name} is recorded.", flush=True)
            continue
        start = time.monotonic()
        if longest and start + longest > deadline:
            print(f"{planned.name} is left for the next time.", flush=True)
            continue
        for key, line in zip(planned.keys, make(planned, arguments), strict=True):
            if key not in done:
                append(arguments.output, line)
            print(*(f"{name}={value}" for name, value in line.items()), flush=True)
        discard_weights(arguments.folder / planned.name)
        longest = max(longest, time.monotonic() - start)
        print(f"{planned.name} took {(time.monotonic() - start) / 60:.1f} minutes.", flush=True)


def read_keys(files: Iterable[Path]) -> set[Key]:
    """Return what is in some files of records."""
    return {key_of(row) for file in files for row in read_rows(file)}


def add(new: Path, output: Path, known: Sequence[Path]) -> None:
    """Append the lines of a file that are in no file of `known`."""
    for row in read_rows(new):
        if key_of(row) not in read_keys(known):
            append(output, row)
            print(*row.values(), flush=True)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the table of the page: every sampler seed by seed, and its differences to uniform."""
    groups: dict[tuple[str, ...], dict[int, Mapping[str, str]]] = {}
    learners = list(dict.fromkeys(row["learner"] for row in rows))
    for row in sorted(rows, key=lambda row: (learners.index(row["learner"]), int(row["shots"]))):
        key = row["learner"], row["backbone"], row["shots"], row["sampler"]
        groups.setdefault(key, {})[int(row["seed"])] = row
    n_seeds = max(max(runs) for runs in groups.values()) + 1
    heads = ["learner", "backbone", "shots", "sampler", *(f"seed {i}" for i in range(n_seeds))]
    heads += ["mean", "difference", "worst tenth of tasks", "paper"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for (learner, backbone, shots, sampler), runs in groups.items():
        uniform = groups.get((learner, backbone, shots, "uniform"), {})
        cells = [learner, backbone, shots, f"`{sampler}`"]
        cells += [two_digits(runs.get(seed), "accuracy") for seed in range(n_seeds)]
        cells.append(f"{statistics.fmean(float(row['accuracy']) for row in runs.values()):.2f}")
        for field in ("accuracy", "hardest_tenth"):
            ours, theirs = (
                {seed: float(row[field]) for seed, row in some.items()} for some in (runs, uniform)
            )
            cells.append("" if runs is uniform else described(paired_difference(ours, theirs)))
        printed = printed_accuracy(learner, backbone, int(shots), sampler)
        cells.append("" if printed is None else str(printed))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def two_digits(row: Mapping[str, str] | None, field: str) -> str:
    """Return a value as the page has it; empty if there is no such run."""
    return "" if row is None else f"{float(row[field]):.2f}"


def main() -> None:
    """Make runs, list them, join records, or write the table of the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--row", type=int, nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", help="by default those of the row")
    parser.add_argument("--samplers", nargs="+", default=["uniform", "gcp"])
    parser.add_argument("--minutes", type=float, default=1e6, help="to end within, if possible")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="which share of the runs")
    parser.add_argument("--folder", type=Path, default=Path("runs/full-length"))
    parser.add_argument("--output", type=Path, default=FULL_LENGTH, help="where lines are appended")
    parser.add_argument("--code", help="what to record as the version of the code")
    parser.add_argument("--dataset", default="cifar-fs")
    parser.add_argument("--quick", action="store_true", help="tiny runs, to see that it works")
    parser.add_argument("--list", action="store_true", help="print the runs, and make none")
    parser.add_argument("--add", type=Path, metavar="FILE", help="append the lines of this file")
    parser.add_argument("--write", action="store_true", help="write the table of the page")
    arguments = parser.parse_args()
    if arguments.write:
        made = {"full length": table(read_rows(FULL_LENGTH))}
        PAGE.write_text(fill_in(PAGE.read_text(), made))
        return
    is_trial = arguments.quick or arguments.dataset != "cifar-fs"
    if is_trial and arguments.output == FULL_LENGTH:
        parser.error("with --quick or another dataset, name another --output than the records")
    known = [arguments.output] if is_trial else [FULL_LENGTH, arguments.output]
    if arguments.add is not None:
        add(arguments.add, arguments.output, known)
        return
    runs = [
        planned
        for number in arguments.row
        for planned in plan_row(
            ROWS[number],
            arguments.samplers,
            arguments.seeds or range(ROWS[number].seeds),
            dataset=arguments.dataset,
            quick=arguments.quick,
        )
    ]
    part, n_parts = map(int, arguments.part.split("/"))
    runs = runs[part - 1 :: n_parts]
    if arguments.list:
        done = read_keys(known)
        for planned in runs:
            state = "recorded" if done.issuperset(planned.keys) else f"{planned.config.steps} steps"
            print(f"{planned.name:45} {state}")
    else:
        make_runs(runs, arguments, known)


if __name__ == "__main__":
    main()
