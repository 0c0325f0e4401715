"""Which learners gain from `neighbor`? Those that are trained 5-way and tested 20-way, in the demo.

Run: python benchmarks/demo_learners.py            (makes the runs: half an hour on one core)
     python benchmarks/demo_learners.py --write    (the table of docs/glyphs.md)

Everything but the learner is as in `adaptask demo`, whose settings were chosen for ProtoNet:
learning rate, steps and network. The learners have their default options. A run that ends is
appended to the records at once, and what is there is not made again, so that two processes with
other `--seeds` can share the work.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from scipy import stats

import _records as records
from _records import DOCS, append, fill_in, is_recorded, late_training, percentages, read_rows
from adaptask.experiments.config import MachineConfig, RunConfig
from adaptask.experiments.demo import demo_config
from adaptask.experiments.options import configure
from adaptask.experiments.run import run_steps
from adaptask.report.run import Run
from adaptask.report.statistics import holm
from adaptask.training.device_steps import finish
from adaptask.training.displays import Quiet
from frozen_features import described as interval
from frozen_features import p_text

PAGE = DOCS / "glyphs.md"
RECORDS = records.RECORDS / "glyphs-learners.csv"
LEARNERS = (
    "protonet",
    "matchingnet",
    "relationnet",
    "meta-baseline",
    "r2d2",
    "metaoptnet-ridge",
    "metaoptnet-svm",
)
SAMPLERS = ("uniform", "neighbor")


def config_of(learner: str, sampler: str, seed: int) -> RunConfig:
    """Return the run of the demo with another learner."""
    return replace(
        demo_config(),
        seed=seed,
        learner=configure("learner", learner),
        sampler=configure("sampler", sampler),
        machine=MachineConfig(device="cpu", threads=1),
    )


def make(learner: str, sampler: str, seed: int, folder: Path) -> dict[str, str]:
    """Make a run and return what is kept of it."""
    path, config = folder / f"{learner}-{sampler}-{seed}", config_of(learner, sampler, seed)
    finish(run_steps(config, path, display=Quiet(sys.stderr)))
    found = {
        **percentages(json.loads((path / "test.json").read_text())),
        **late_training(Run(path, seed), after=0.8 * config.steps),
    }
    shutil.rmtree(path)
    return found


def values(
    rows: Sequence[Mapping[str, str]], learner: str, sampler: str, field: str = "accuracy"
) -> dict[str, float]:
    """Return a field of the runs by seed."""
    return {
        row["seed"]: float(row[field])
        for row in rows
        if (row["learner"], row["sampler"]) == (learner, sampler)
    }


def differences(rows: Sequence[Mapping[str, str]], learner: str) -> list[float]:
    """Return `neighbor` minus uniform, seed by seed."""
    uniform, neighbor = (values(rows, learner, sampler) for sampler in SAMPLERS)
    return [neighbor[seed] - uniform[seed] for seed in uniform if seed in neighbor]


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the table of the page; ProtoNet, known before, is not among the tests."""
    made = [name for name in LEARNERS if len(differences(rows, name)) > 1]
    tested = [name for name in made if name != "protonet"]
    p_values = holm([float(stats.ttest_1samp(differences(rows, n), 0).pvalue) for n in tested])
    p_of = dict(zip(tested, p_values, strict=True))
    heads = ["learner", "right in training, uniform", *(f"`{name}`" for name in SAMPLERS)]
    lines = [f"| {' | '.join([*heads, 'difference', 'p (Holm)'])} |", "|---|---|---|---|---|---|"]
    for name in made:
        right = statistics.fmean(values(rows, name, "uniform", "train_accuracy").values())
        means = [statistics.fmean(values(rows, name, sampler).values()) for sampler in SAMPLERS]
        cells = [f"`{name}`", f"{right:.1f}", *(f"{mean:.2f}" for mean in means)]
        cells += [interval(differences(rows, name)), p_text(p_of[name]) if name in p_of else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Make runs, or write the table of the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=LEARNERS)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(6)))
    parser.add_argument("--folder", type=Path, default=Path("runs/demo-learners"))
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--write", action="store_true", help="write the table of the page")
    arguments = parser.parse_args()
    if arguments.write:
        PAGE.write_text(
            fill_in(PAGE.read_text(), {"learners in the demo": table(read_rows(RECORDS))})
        )
        return
    torch.set_num_threads(1)
    for seed in arguments.seeds:
        for learner in arguments.learners:
            for sampler in SAMPLERS:
                key = {"learner": learner, "sampler": sampler, "seed": seed}
                if not is_recorded(arguments.records, key):
                    row = key | make(learner, sampler, seed, arguments.folder)
                    append(arguments.records, row)
                    print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
