r"""Do samplers matter after pre-training? ResNet-12 on CIFAR-FS, then ProtoNet or Meta-Baseline.

Run: python benchmarks/pretrained.py --only pretrain --folder runs/pretrained       (on a GPU)
     python benchmarks/pretrained.py --only none 1 5 --folder runs/pretrained --minutes 8
     python benchmarks/pretrained.py --write     (the table of docs/after-pretraining.md)

The first command pre-trains ResNet-12 as `adaptask pretrain` does and leaves its backbone in
`FOLDER/backbone-0.pt`. The second one tests it without meta-training (`none`), and meta-trains it
with 1 and 5 shots, every arm with every seed. A run that ends is appended to the records at once,
and no run is started after `--minutes`; the same command goes on where it ended. Of a finished run
only its records are kept, so that the folder is small.

The pre-training is made once, and seeds decide the rest: tasks, images and their order. A verdict
is then about this backbone. `--pretrainings 5` makes one per seed, at five times the cost, and the
runs of a seed share theirs: verdicts then hold for pre-trainings in general.

By default ResNet-12 has MetaOptNet's 64-160-320-640 filters, as most results on CIFAR-FS have, and
meta-training is that of Meta-Baseline (SGD at 0.001, 4 tasks of 15 queries per step), with fewer
steps. The records at full width are from one H200, torch 2.11, commit 48f4d34, by

    python benchmarks/pretrained.py --only pretrain --compile yes
    python benchmarks/pretrained.py --only none 1 --compile yes \
        --arms uniform neighbor gcp "uniform, 20-way"
    python benchmarks/pretrained.py --only 5 --compile yes
    python benchmarks/pretrained.py --only none 1 --compile yes --learner protonet

the last three side by side, and all of them beside full_length.py under CUDA MPS: the pre-training
took 4.5 minutes, a run 18 to 28 seconds, 45 with compilation.

The other records hold what two cores of a CPU can do: half as many filters, a pre-training a third
as long, and one task per step,

    python benchmarks/pretrained.py --only pretrain --widths 32-80-160-320 --precision bfloat16 \
        --passes 30 --episodes 1000 --validation 200
    python benchmarks/pretrained.py --only 1 --learner protonet --widths 32-80-160-320 \
        --precision bfloat16 --tasks 1 --episodes 1000 --validation 100

by PyTorch 2.13 on an AMD EPYC (Zen 5), which computes in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from scipy import stats

import _records as records
from _records import (
    DOCS,
    append,
    chosen_weights,
    discard_weights,
    fill_in,
    is_recorded,
    late_training,
    percentages,
    read_rows,
)
from adaptask.data import load
from adaptask.experiments.config import (
    DataConfig,
    EvaluationConfig,
    MachineConfig,
    RunConfig,
    StartConfig,
)
from adaptask.experiments.factory import (
    build_evaluator,
    build_parts,
    build_testers,
    open_split,
)
from adaptask.experiments.init_weights import read_weights
from adaptask.experiments.options import AlgorithmConfig, configure
from adaptask.experiments.recipes import meta_baseline, pretraining
from adaptask.experiments.run import resolve_auto, run_steps
from adaptask.intervals import Intervals
from adaptask.report.run import Run
from adaptask.report.statistics import holm
from adaptask.training.device_steps import finish
from adaptask.training.displays import Quiet
from adaptask.training.process import choose_device
from frozen_features import described as interval
from frozen_features import p_text

PARTS = ("pretrain", "none", "1", "5")
LEARNERS: dict[str, dict[str, Any]] = {
    "meta-baseline": {},
    # The temperature of the prototypical networks in FEAT (Ye et al. 2020).
    "protonet": {"temperature": 64.0, "learn_temperature": True},
}
UNIFORM = configure("sampler", "uniform")
ARMS: dict[str, tuple[AlgorithmConfig, int, int | None]] = {
    # By name: sampler, classes per task, and queries per class where they are not 15.
    "uniform": (UNIFORM, 5, None),
    # With 64 classes it would be uniform by default.
    "neighbor": (configure("sampler", "neighbor", beta=2.0), 5, None),
    "gcp": (configure("sampler", "gcp"), 5, None),
    # As many images as 5 classes of 1 shot and 15 queries.
    "uniform, 20-way": (UNIFORM, 20, 3),
}
PAGE = DOCS / "after-pretraining.md"
RECORDS = records.RECORDS / "pretrained.csv"
PRIMARY = "resnet12 metaoptnet meta-baseline"
COLUMNS = (
    *("backbone", "passes", "learner", "shots", "arm", "seed", "steps", "n_tasks"),
    *("accuracy", "interval", "hardest_tenth", "best_step", "validation"),
    *("train_loss", "train_accuracy", "seconds"),
)


def backbone(arguments: argparse.Namespace, drop_rate: float) -> AlgorithmConfig:
    """Return the backbone; what is dropped may differ between pre-training and meta-training."""
    if arguments.backbone != "resnet12":
        return configure("backbone", arguments.backbone)
    return configure(
        "backbone", "resnet12", widths=read_widths(arguments.widths), drop_rate=drop_rate
    )


def read_widths(text: str) -> str | tuple[int, ...]:
    """Return `32-80-160-320` as numbers; other names of widths as they are."""
    parts = text.split("-")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else text


def machine(arguments: argparse.Namespace) -> MachineConfig:
    """Return how runs are computed: with bfloat16 comes the memory format that suits it."""
    config = MachineConfig(
        precision=arguments.precision, compile=arguments.compile, threads=arguments.threads
    )
    return replace(config, channels_last="yes") if config.precision == "bfloat16" else config


def pretraining_config(arguments: argparse.Namespace, seed: int) -> RunConfig:
    """Return how the backbone is pre-trained."""
    images = load(arguments.dataset, "train")
    n_images = len(images.images)
    config = pretraining(arguments.dataset, n_classes=images.n_classes, n_images=n_images)
    steps = max(1, config.steps * arguments.passes // 100)
    every = max(1, steps // 20)
    return replace(
        config,
        steps=steps,
        seed=seed,
        data=DataConfig(dataset=arguments.dataset, augmentation=arguments.augmentation),
        backbone=backbone(arguments, arguments.drop_rate),
        machine=machine(arguments),
        evaluation=replace(
            config.evaluation, n_validation=arguments.validation, n_episodes=arguments.episodes
        ),
        every=Intervals(validate=every, checkpoint=every, snapshot=0),
    )


def meta_config(arguments: argparse.Namespace, shots: int, arm: str, seed: int) -> RunConfig:
    """Return how a backbone is meta-trained."""
    config = meta_baseline(arguments.dataset, shots)
    sampler, n_way, n_query = ARMS[arm]
    sizes = {"n_way": n_way, "n_query": n_query or config.task.n_query}
    every = max(1, arguments.steps // 10)
    return replace(
        config,
        steps=arguments.steps,
        seed=seed,
        sampler=sampler,
        learner=configure("learner", arguments.learner, **LEARNERS[arguments.learner]),
        backbone=backbone(arguments, 0.0),
        machine=machine(arguments),
        task=replace(config.task, n_tasks=arguments.tasks, **sizes),
        start=StartConfig(init=str(backbone_file(arguments, seed))),
        evaluation=EvaluationConfig(
            n_way=5,
            n_validation=arguments.validation,
            n_episodes=arguments.episodes,
            seed=seed,
        ),
        every=Intervals(validate=every, checkpoint=every, snapshot=every),
    )


def backbone_file(arguments: argparse.Namespace, seed: int) -> Path:
    """Return where the backbone is that a seed starts from."""
    folder: Path = arguments.folder
    return folder / f"backbone-{seed % arguments.pretrainings}.pt"


def described(arguments: argparse.Namespace, shots: int, arm: str, seed: int) -> dict[str, Any]:
    """Return what identifies a run in the records."""
    return {
        "backbone": f"{arguments.backbone} {arguments.widths}",
        "passes": arguments.passes,
        "learner": arguments.learner,
        "shots": shots,
        "arm": arm,
        "seed": seed,
    }


def measured(folder: Path) -> dict[str, Any]:
    """Return the results of a run that has ended."""
    run = Run(folder, 0)
    steps, seconds = run.curve("train", "seconds")
    return {
        **percentages(json.loads((folder / "test.json").read_text())),
        **chosen_weights(run),
        **late_training(run, after=0.8 * steps[-1]),
        "seconds": f"{seconds[-1]:.1f}",
    }


def pretrain(arguments: argparse.Namespace) -> None:
    """Pre-train the backbones that are missing, and print how they did."""
    for seed in range(arguments.pretrainings):
        config = pretraining_config(arguments, seed)
        folder, file = arguments.folder / f"pretrain-{seed}", backbone_file(arguments, seed)
        if not file.exists():
            finish(run_steps(config, folder, display=Quiet(sys.stderr)))
            torch.save(read_weights(str(folder)), file)
        if (folder / "test.json").exists():
            discard_weights(folder)
            print(f"{file}: {measured(folder)}", flush=True)


def test_untrained(arguments: argparse.Namespace) -> None:
    """Test the backbones as they are on the tasks of every seed, and on uniform training tasks."""
    device = choose_device("auto")
    for shots, seed in product(arguments.shots, arguments.seeds):
        config = resolve_auto(meta_config(arguments, shots, "uniform", seed), device)
        source = open_split(config, "train", device)
        learner = build_parts(config, source, device)[0].eval()
        found = percentages(build_testers(config, device)[0](learner).record())
        on_training = replace(config, evaluation=replace(config.evaluation, n_episodes=200))
        solved = build_evaluator(on_training, "test", device, source)(learner)
        found["train_accuracy"] = f"{100 * solved.accuracy:.2f}"
        keep(arguments, described(arguments, shots, "none", seed), found)


def meta_train(arguments: argparse.Namespace, shots: int) -> None:
    """Meta-train with every arm and every seed; all arms of a seed before the next."""
    for seed, arm in product(arguments.seeds, arguments.arms):
        key = described(arguments, shots, arm, seed)
        name = f"{arguments.learner}-{shots}shot-{arm.replace(', ', '-')}-seed{seed}"
        if is_recorded(arguments.records, key):
            continue
        if time.monotonic() > arguments.deadline:
            print(f"{name} is left for the next time.", file=sys.stderr, flush=True)
            return
        config, folder = meta_config(arguments, shots, arm, seed), arguments.folder / name
        finish(run_steps(config, folder, display=Quiet(sys.stderr)))
        keep(arguments, key, measured(folder))
        discard_weights(folder)


def keep(arguments: argparse.Namespace, key: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Append a line to the records, unless the run is there."""
    if not is_recorded(arguments.records, key):
        line = dict.fromkeys(COLUMNS, "") | {**key, "steps": arguments.steps} | {**found}
        append(arguments.records, line | {"n_tasks": arguments.tasks})
        print(f"{key}: {found['accuracy']}", flush=True)


def tables(rows: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the tables of the page: primary tests, and all arms of each backbone and learner."""
    groups: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        groups.setdefault(f"{row['backbone']} {row['learner']}", []).append(row)
    made = {name: table(group) for name, group in groups.items()}
    if PRIMARY in groups:
        made["primary"] = primary(groups[PRIMARY])
    return made


def primary(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the table of the primary comparisons, with Holm's correction."""
    tests = list(product(("1", "5"), ("neighbor", "gcp")))
    found = [differences(rows, shots, arm) for shots, arm in tests]
    p_values = holm([float(stats.ttest_1samp(pairs, 0).pvalue) for pairs in found])
    lines = ["| against `uniform` | points | p (Holm) |", "|---|---|---|"]
    for (shots, arm), pairs, p in zip(tests, found, p_values, strict=True):
        cells = (f"`{arm}`, {shots} shot{'s' * (shots == '5')}", interval(pairs), p_text(p))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def differences(rows: Sequence[Mapping[str, str]], shots: str, arm: str) -> list[float]:
    """Return the differences of an arm to `uniform`, for the seeds that both have."""
    accuracies = {
        name: {
            row["seed"]: float(row["accuracy"])
            for row in rows
            if (row["shots"], row["arm"]) == (shots, name)
        }
        for name in (arm, "uniform")
    }
    ours, theirs = accuracies[arm], accuracies["uniform"]
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the table of some runs: every arm, with the difference to uniform of paired seeds."""
    heads = ["shots", "training tasks", "seeds", "accuracy", "difference to uniform", "p"]
    heads += ["accuracy in training", "hardest tenth"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for shots, arm in product(("1", "5"), ("none", *ARMS)):
        own = [row for row in rows if (row["shots"], row["arm"]) == (shots, arm)]
        if not own:
            continue
        cells = [shots, "no meta-training" if arm == "none" else f"`{arm}`", str(len(own))]
        cells.append(mean(own, "accuracy"))
        pairs = differences(rows, shots, arm)
        is_compared = arm != "uniform" and len(pairs) > 1
        cells.append(interval(pairs) if is_compared else "")
        cells.append(p_text(float(stats.ttest_1samp(pairs, 0).pvalue)) if is_compared else "")
        cells += [mean(own, "train_accuracy"), mean(own, "hardest_tenth")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def mean(rows: Sequence[Mapping[str, str]], column: str) -> str:
    """Return the mean of a column as the page has it."""
    return f"{statistics.fmean(float(row[column]) for row in rows):.2f}"


def main() -> None:
    """Make the runs of some parts, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--folder", type=Path, default=Path("runs/pretrained"))
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--minutes", type=float, default=1e6, help="start no run after them")
    parser.add_argument("--learner", choices=LEARNERS, default="meta-baseline")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["uniform", "neighbor", "gcp"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--pretrainings", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2000, help="of meta-training")
    parser.add_argument("--tasks", type=int, default=4, help="per step of meta-training")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--compile", choices=("auto", "yes", "no"), default="auto")
    parser.add_argument("--passes", type=int, default=100, help="over the images, to pre-train")
    parser.add_argument("--episodes", type=int, default=2000, help="test episodes")
    parser.add_argument("--validation", type=int, default=500, help="validation episodes")
    parser.add_argument("--dataset", default="cifar-fs")
    parser.add_argument("--backbone", default="resnet12")
    parser.add_argument("--widths", default="metaoptnet", help="a name, or as 32-80-160-320")
    parser.add_argument("--drop-rate", type=float, default=0.1, help="in pre-training")
    parser.add_argument("--augmentation", default="crop-jitter-flip", help="in pre-training")
    parser.add_argument("--threads", type=int, help="of the CPU")
    parser.add_argument("--write", action="store_true", help="write the table of the page")
    arguments = parser.parse_args()
    if arguments.write:
        PAGE.write_text(fill_in(PAGE.read_text(), tables(read_rows(RECORDS))))
        return
    arguments.shots = [shots for shots in (1, 5) if str(shots) in arguments.only] or [1, 5]
    arguments.deadline = time.monotonic() + 60 * arguments.minutes
    arguments.folder.mkdir(parents=True, exist_ok=True)
    makers = {
        "pretrain": lambda: pretrain(arguments),
        "none": lambda: test_untrained(arguments),
        "1": lambda: meta_train(arguments, 1),
        "5": lambda: meta_train(arguments, 5),
    }
    for part in arguments.only:
        makers[part]()


if __name__ == "__main__":
    main()
