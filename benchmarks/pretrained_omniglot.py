"""Do samplers matter after pre-training with thousands of classes? Conv-4 on Omniglot, on a CPU.

Run: python benchmarks/pretrained_omniglot.py --pretrain   (8 minutes on one core)
     python benchmarks/pretrained_omniglot.py --choose     (the learning rate, by validation)
     python benchmarks/pretrained_omniglot.py              (makes the runs)
     python benchmarks/pretrained_omniglot.py --write      (a table of docs/after-pretraining.md)

Conv-4 is pre-trained once, as `adaptask pretrain` does, and all of it is then trained further by
ProtoNet with every sampler, or by Meta-Baseline. On validation tasks, seed 100, uniform sampling
has

    learning rate                   3e-5   1e-4   3e-4   1e-3
    ProtoNet,  5-way               93.65  93.90  93.62  91.81
    ProtoNet, 15-way                      93.89  94.00  92.35
    Meta-Baseline, 5-way                  93.20  93.35  93.22
    ProtoNet,  5-way, temperature  93.73  94.17  94.32  94.01
    ProtoNet, 15-way, temperature         94.31  94.79  94.73

and each has its best. With a temperature, distances are divided by a learned number that starts at
64. Of the powers of two this is the one with which the pre-trained network has the smallest loss on
uniform training tasks: 0.037, and 1.73 without a temperature.

A run that ends is appended to the records at once, and what is there is not made again. Omniglot
must have been prepared. benchmarks/frozen_features.py has the same comparison with the pre-trained
weights frozen. A run takes two to three minutes on one core. When the pre-training was repeated on
another machine of the same kind, its weights gave the same figures to the last digit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from scipy import stats

import _records as records
from _records import DOCS, append, fill_in, is_recorded, late_training, percentages, read_rows
from adaptask.data import load
from adaptask.experiments.config import (
    DataConfig,
    EvaluationConfig,
    MachineConfig,
    OptimizerConfig,
    RunConfig,
    StartConfig,
    TaskConfig,
)
from adaptask.experiments.factory import build_evaluator, build_parts, build_testers, open_split
from adaptask.experiments.init_weights import read_weights
from adaptask.experiments.options import AlgorithmConfig, configure
from adaptask.experiments.recipes import pretraining
from adaptask.experiments.run import resolve_auto, run_steps
from adaptask.intervals import Intervals
from adaptask.report.run import Run
from adaptask.report.statistics import holm
from adaptask.training.device_steps import finish
from adaptask.training.displays import Quiet
from frozen_features import described as interval
from frozen_features import p_text, validate
from neighbor import PermutedNeighbor as PermutedNeighbor

PAGE = DOCS / "after-pretraining.md"
RECORDS = records.RECORDS / "pretrained-omniglot.csv"
BACKBONE = configure("backbone", "conv4")
STEPS = 4000
CPU = torch.device("cpu")

PROTONET = configure("learner", "protonet")
META_BASELINE = configure("learner", "meta-baseline")
# As in pretrained.py.
TEMPERATURE = configure("learner", "protonet", temperature=64.0, learn_temperature=True)


@dataclass(frozen=True)
class Arm:
    """What is trained further: on 30 images per step, with one shot."""

    sampler: AlgorithmConfig
    n_seeds: int
    learner: AlgorithmConfig = PROTONET
    n_way: int = 5
    n_query: int = 5
    learning_rate: float = 1e-4
    """Best for uniform sampling by this learner with so many classes per task (`--choose`)."""


UNIFORM = configure("sampler", "uniform")
NEIGHBOR = configure("sampler", "neighbor")
PERMUTED = configure("sampler", "neighbor:PermutedNeighbor")
ARMS = {
    "uniform": Arm(UNIFORM, 10),
    "neighbor": Arm(NEIGHBOR, 10),
    "uniform, 15-way": Arm(UNIFORM, 5, n_way=15, n_query=1, learning_rate=3e-4),
    "neighbor, 15-way": Arm(NEIGHBOR, 5, n_way=15, n_query=1, learning_rate=3e-4),
    "neighbor, class ids permuted": Arm(PERMUTED, 5),
    "uniform, Meta-Baseline": Arm(UNIFORM, 5, META_BASELINE, learning_rate=3e-4),
    "neighbor, Meta-Baseline": Arm(NEIGHBOR, 5, META_BASELINE, learning_rate=3e-4),
    "uniform, temperature": Arm(UNIFORM, 10, TEMPERATURE, learning_rate=3e-4),
    "neighbor, temperature": Arm(NEIGHBOR, 10, TEMPERATURE, learning_rate=3e-4),
    "uniform, 15-way, temperature": Arm(UNIFORM, 5, TEMPERATURE, 15, 1, learning_rate=3e-4),
    "neighbor, 15-way, temperature": Arm(NEIGHBOR, 5, TEMPERATURE, 15, 1, learning_rate=3e-4),
    "neighbor, class ids permuted, temperature": Arm(PERMUTED, 10, TEMPERATURE, learning_rate=3e-4),
    "neighbor, 15-way, class ids permuted, temperature": Arm(
        PERMUTED, 5, TEMPERATURE, 15, 1, learning_rate=3e-4
    ),
}
UNTRAINED = {
    "no meta-training": "uniform",
    "no meta-training, Meta-Baseline": "uniform, Meta-Baseline",
}
"""The pre-trained weights as they are, and which arm they are compared with."""
FIELDS = ("accuracy", "within_group")


def config_of(arm: str, seed: int, folder: Path) -> RunConfig:
    """Return a run: trained from the pre-trained weights, the last weights count."""
    spec = ARMS[arm]
    return RunConfig(
        steps=STEPS,
        seed=seed,
        data=DataConfig(dataset="omniglot", augmentation="none"),  # a flip makes another character
        task=TaskConfig(n_way=spec.n_way, n_shot=1, n_query=spec.n_query),
        sampler=spec.sampler,
        learner=spec.learner,
        backbone=BACKBONE,
        optimizer=OptimizerConfig(lr=spec.learning_rate, schedule="cosine"),
        start=StartConfig(init=str(folder / "backbone.pt")),
        evaluation=EvaluationConfig(
            n_way=20,
            n_query=5,
            n_episodes=1000,
            n_validation=2,
            tasks=("uniform", "within-group"),
            seed=seed,
        ),
        every=Intervals(log=100, validate=STEPS, checkpoint=STEPS, snapshot=STEPS),
        machine=MachineConfig(device="cpu", threads=1),
    )


def pretrain(folder: Path) -> None:
    """Pre-train the backbone, unless it is there."""
    file, path = folder / "backbone.pt", folder / "pretrain"
    if file.exists():
        return
    images = load("omniglot", "train")
    usual = pretraining("omniglot", n_classes=images.n_classes, n_images=len(images.images))
    config = replace(
        usual,
        steps=5000,
        backbone=BACKBONE,
        evaluation=replace(usual.evaluation, n_validation=100),
        every=Intervals(log=100, validate=1000),
        machine=MachineConfig(device="cpu", threads=1),
    )
    finish(run_steps(config, path, display=Quiet(sys.stderr)))
    torch.save(read_weights(str(path)), file)
    print((path / "test.json").read_text())


def choose(folder: Path, arms: Iterable[str], learning_rates: Iterable[float]) -> None:
    """Print the accuracy of uniform sampling on 1,000 validation tasks; no comparison has seed 100.

    All arms with as many classes per task have the learning rate that is best for it.
    """
    for arm in (name for name in arms if name in ARMS and name.startswith("uniform")):
        for lr in learning_rates:
            config = resolve_auto(config_of(arm, 100, folder), CPU)
            config = replace(config, optimizer=replace(config.optimizer, lr=lr))
            print(f"{arm}, learning rate {lr}: {100 * validate(config):.2f}", flush=True)


def make_runs(arguments: argparse.Namespace) -> None:
    """Make the runs that are not in the records, all of a seed before the next."""
    for seed in arguments.seeds:
        for arm in arguments.arms:
            make = untrained if arm in UNTRAINED else trained
            n_seeds = ARMS[UNTRAINED.get(arm, arm)].n_seeds
            key = {"arm": arm, "seed": seed}
            if seed < n_seeds and not is_recorded(arguments.records, key):
                row = key | make(arm, seed, arguments.folder)
                append(arguments.records, row)
                print(*row.values(), flush=True)


def trained(arm: str, seed: int, folder: Path) -> dict[str, str]:
    """Make a run and return what is kept of it."""
    path = folder / f"{arm.replace(', ', '-').replace(' ', '-')}-{seed}"
    finish(run_steps(config_of(arm, seed, folder), path, display=Quiet(sys.stderr)))
    run = Run(path, seed)
    assert run.test is not None
    assert run.test.within_group is not None
    found = {
        **percentages(json.loads((path / "test.json").read_text())),
        "within_group": f"{100 * run.test.within_group.mean():.4f}",
        **late_training(run, after=0.8 * STEPS),
    }
    shutil.rmtree(path)
    return found


def untrained(arm: str, seed: int, folder: Path) -> dict[str, str]:
    """Test the pre-trained weights on the tasks of a seed, and on uniform training tasks."""
    config = resolve_auto(config_of(UNTRAINED[arm], seed, folder), CPU)
    source = open_split(config, "train", CPU)
    learner = build_parts(config, source, CPU)[0].eval()
    on_any, within = (tester(learner) for tester in build_testers(config, CPU))
    on_training = replace(
        config, evaluation=replace(config.evaluation, n_way=5, tasks=("uniform",))
    )
    solved = build_evaluator(on_training, "test", CPU, source)(learner)
    return {
        **percentages(on_any.record()),
        "within_group": f"{100 * within.accuracy:.4f}",
        "train_loss": f"{solved.loss:.4f}",
        "train_accuracy": f"{100 * solved.accuracy:.2f}",
    }


# The page -----------------------------------------------------------------------------------------


def values(rows: Iterable[Mapping[str, str]], arm: str, field: str) -> dict[str, float]:
    """Return a field of the runs of an arm by seed."""
    return {row["seed"]: float(row[field]) for row in rows if row["arm"] == arm}


def baseline_of(arm: str) -> str:
    """Return uniform 5-way tasks with the same learner."""
    if arm in UNTRAINED:
        return UNTRAINED[arm]
    return next(name for name, spec in ARMS.items() if spec.learner == ARMS[arm].learner)


def differences(
    rows: Sequence[Mapping[str, str]], arm: str, field: str, baseline: str | None = None
) -> list[float]:
    """Return the differences to another arm for common seeds; by default to `baseline_of`."""
    ours, theirs = values(rows, arm, field), values(rows, baseline or baseline_of(arm), field)
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


def comparison(rows: Sequence[Mapping[str, str]], arm: str, baseline: str | None = None) -> str:
    """Return the table of a comparison that was stated beforehand."""
    names = [
        "neighbor with permuted class ids" if "permuted" in name else name.partition(",")[0]
        for name in (arm, baseline or baseline_of(arm))
    ]
    lines = [f"| {' minus '.join(names)} | points | p (Holm) |", "|---|---|---|"]
    found = [differences(rows, arm, field, baseline) for field in FIELDS]
    p_values = holm([float(stats.ttest_1samp(pairs, 0).pvalue) for pairs in found])
    kinds = ("tasks of any classes", "tasks within one alphabet")
    for name, pairs, p in zip(kinds, found, p_values, strict=True):
        lines.append(f"| {name} | {interval(pairs)} | {p_text(p)} |")
    return "\n".join(lines)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the table of all arms."""
    heads = ["training tasks", "seeds", "accuracy", "difference to uniform"]
    heads += ["within alphabets", "difference", "right in training"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for arm in (*UNTRAINED, *ARMS):
        if not values(rows, arm, "accuracy"):
            continue
        cells = [arm if arm in UNTRAINED else f"`{arm}`", str(len(values(rows, arm, "accuracy")))]
        for field in FIELDS:
            cells.append(f"{statistics.fmean(values(rows, arm, field).values()):.2f}")
            is_baseline = arm == baseline_of(arm)
            cells.append("" if is_baseline else interval(differences(rows, arm, field)))
        cells.append(f"{statistics.fmean(values(rows, arm, 'train_accuracy').values()):.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tables(rows: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return what the page has between its markers."""
    return {
        "omniglot, ProtoNet": comparison(rows, "neighbor"),
        "omniglot, Meta-Baseline": comparison(rows, "neighbor, Meta-Baseline"),
        "omniglot, temperature": comparison(rows, "neighbor, temperature"),
        "omniglot, temperature, control": comparison(
            rows, "neighbor, temperature", "neighbor, class ids permuted, temperature"
        ),
        "omniglot, temperature, 15-way": comparison(
            rows, "neighbor, 15-way, temperature", "uniform, 15-way, temperature"
        ),
        "omniglot, temperature, 15-way, permuted": comparison(
            rows,
            "neighbor, 15-way, class ids permuted, temperature",
            "uniform, 15-way, temperature",
        ),
        "omniglot": table(rows),
    }


def main() -> None:
    """Pre-train, choose, make runs, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pretrain", action="store_true", help="make the weights to start from")
    parser.add_argument("--choose", action="store_true", help="validate learning rates")
    parser.add_argument("--rates", nargs="+", type=float, default=[3e-5, 1e-4, 3e-4, 1e-3])
    arms = (*UNTRAINED, *ARMS)
    parser.add_argument("--arms", nargs="+", choices=arms, default=arms)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--folder", type=Path, default=Path("runs/pretrained-omniglot"))
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--write", action="store_true", help="write the tables of the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.write:
        PAGE.write_text(fill_in(PAGE.read_text(), tables(read_rows(RECORDS))))
    elif arguments.pretrain:
        pretrain(arguments.folder)
    elif arguments.choose:
        choose(arguments.folder, arguments.arms, arguments.rates)
    else:
        make_runs(arguments)


if __name__ == "__main__":
    main()
