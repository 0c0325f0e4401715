"""Do samplers matter after pre-training? ResNet-12 on CIFAR-FS, then Meta-Baseline.

Run: python benchmarks/pretrained.py --only pretrain --folder runs/pretrained       (on a GPU)
     python benchmarks/pretrained.py --only none 1 5 --folder runs/pretrained --minutes 8

The first command pre-trains ResNet-12 as `adaptask pretrain` does and leaves its backbone in
`FOLDER/backbone-0.pt`. The second one tests it without meta-training (`none`), and meta-trains it
with 1 and 5 shots, every sampler with every seed. It prints one line per run, and starts no run
after `--minutes`; the same command goes on where it ended, from the folder alone. Of a finished
run only its records are kept, so that the folder is small.

The pre-training is made once, and seeds decide the rest: tasks, images and their order. A verdict
is then about this backbone. `--pretrainings 5` makes one per seed, at five times the cost, and the
runs of a seed share theirs: verdicts then hold for pre-trainings in general.

ResNet-12 has MetaOptNet's 64-160-320-640 filters, as most results on CIFAR-FS have. Meta-training
is that of Meta-Baseline (SGD at 0.001, 4 tasks of 15 queries per step), with fewer steps.

Not measured yet. Expected on one H200, from 77,000 images per second in training with 440 images
per step (benchmarks/gpu.py): 2 to 3 ms per step of 128 images and 1.5 to 2.5 minutes for a
pre-training of 30,000 steps with its 20 validations and compilation; 15 to 20 seconds per run of
2,000 steps.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from _records import chosen_weights, discard_weights, late_training, percentages
from adaptask.data import load
from adaptask.experiments.config import (
    DataConfig,
    EvaluationConfig,
    MachineConfig,
    RunConfig,
    StartConfig,
)
from adaptask.experiments.factory import build_parts, build_testers, open_split
from adaptask.experiments.init_weights import read_weights
from adaptask.experiments.options import AlgorithmConfig, configure
from adaptask.experiments.recipes import meta_baseline, pretraining
from adaptask.experiments.run import resolve_auto, run_steps
from adaptask.intervals import Intervals
from adaptask.report.run import Run
from adaptask.training.device_steps import finish
from adaptask.training.displays import Quiet
from adaptask.training.process import choose_device

PARTS = ("pretrain", "none", "1", "5")
LEARNERS: dict[str, dict[str, Any]] = {
    "meta-baseline": {},
    # The temperature of the prototypical networks in FEAT (Ye et al. 2020).
    "protonet": {"temperature": 64.0, "learn_temperature": True},
}
COLUMNS = (
    *("learner", "shots", "sampler", "seed", "pretraining", "accuracy", "interval"),
    *("hardest_tenth", "best_step", "validation", "train_loss", "train_accuracy", "seconds"),
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
    """Return the precision; the memory format that suits it comes with it."""
    if arguments.precision == "bfloat16":
        return MachineConfig(precision="bfloat16", channels_last="yes")
    return MachineConfig(precision=arguments.precision)


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


def meta_config(arguments: argparse.Namespace, shots: int, sampler: str, seed: int) -> RunConfig:
    """Return how a backbone is meta-trained."""
    config = meta_baseline(arguments.dataset, shots)
    every = max(1, arguments.steps // 10)
    return replace(
        config,
        steps=arguments.steps,
        seed=seed,
        sampler=configure("sampler", sampler),
        learner=configure("learner", arguments.learner, **LEARNERS[arguments.learner]),
        backbone=backbone(arguments, 0.0),
        machine=machine(arguments),
        task=replace(config.task, n_tasks=arguments.tasks),
        start=StartConfig(init=str(backbone_file(arguments, seed))),
        evaluation=EvaluationConfig(
            n_validation=arguments.validation, n_episodes=arguments.episodes
        ),
        every=Intervals(validate=every, checkpoint=every, snapshot=every),
    )


def backbone_file(arguments: argparse.Namespace, seed: int) -> Path:
    """Return where the backbone is that a seed starts from."""
    folder: Path = arguments.folder
    return folder / f"backbone-{seed % arguments.pretrainings}.pt"


def record(config: RunConfig, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what is kept of a run that has ended."""
    run = Run(folder, config.seed)
    result = json.loads((folder / "test.json").read_text())
    return {
        "learner": config.learner.name,
        "shots": config.tested_shot,
        "sampler": config.sampler.name,
        "seed": config.seed,
        "pretraining": config.seed % arguments.pretrainings,
        **percentages(result),
        **chosen_weights(run),
        **late_training(run, after=0.8 * config.steps),
        "seconds": f"{run.curve('train', 'seconds')[1][-1]:.1f}",
    }


def pretrain(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Pre-train the backbones that are missing."""
    for seed in range(arguments.pretrainings):
        config = pretraining_config(arguments, seed)
        folder, file = arguments.folder / f"pretrain-{seed}", backbone_file(arguments, seed)
        if not file.exists():
            finish(run_steps(config, folder, display=Quiet(sys.stderr)))
            torch.save(read_weights(str(folder)), file)
        if not (folder / "test.json").exists():
            print(f"{file} is used; its pre-training is not in {folder}.", file=sys.stderr)
            continue
        discard_weights(folder)
        yield record(config, folder, arguments)


def test_untrained(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Test the backbones as they are, with 1 and 5 shots."""
    for seed in range(arguments.pretrainings):
        for shots in (1, 5):
            config = meta_config(arguments, shots, "uniform", seed)
            device = choose_device("auto")
            config = resolve_auto(config, device)
            learner, _, _ = build_parts(config, open_split(config, "train", device), device)
            result = build_testers(config, device)[0](learner).record()
            yield {
                "learner": config.learner.name,
                "shots": shots,
                "sampler": "none",
                "seed": seed,
                "pretraining": seed,
                **percentages(result),
            }


def meta_train(arguments: argparse.Namespace, shots: int) -> Iterator[dict[str, Any]]:
    """Meta-train with every sampler and every seed; all samplers of a seed before the next."""
    for seed in range(arguments.seeds):
        for sampler in arguments.samplers:
            config = meta_config(arguments, shots, sampler, seed)
            name = f"{arguments.learner}-{shots}shot-{sampler}-seed{seed}"
            folder = arguments.folder / name
            if not (folder / "test.json").exists():
                if time.monotonic() > arguments.deadline:
                    print(f"{name} is left for the next time.", file=sys.stderr, flush=True)
                    return
                finish(run_steps(config, folder, display=Quiet(sys.stderr)))
            discard_weights(folder)
            yield record(config, folder, arguments)


def main() -> None:
    """Make the runs of some parts, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--folder", type=Path, default=Path("runs/pretrained"))
    parser.add_argument("--minutes", type=float, default=1e6, help="start no run after them")
    parser.add_argument("--learner", choices=LEARNERS, default="meta-baseline")
    parser.add_argument("--samplers", nargs="+", default=["uniform", "gcp", "neighbor"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--pretrainings", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2000, help="of meta-training")
    parser.add_argument("--tasks", type=int, default=4, help="per step of meta-training")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--passes", type=int, default=100, help="over the images, to pre-train")
    parser.add_argument("--episodes", type=int, default=2000, help="test episodes")
    parser.add_argument("--validation", type=int, default=500, help="validation episodes")
    parser.add_argument("--dataset", default="cifar-fs")
    parser.add_argument("--backbone", default="resnet12")
    parser.add_argument("--widths", default="metaoptnet", help="a name, or as 32-80-160-320")
    parser.add_argument("--drop-rate", type=float, default=0.1, help="in pre-training")
    parser.add_argument("--augmentation", default="crop-jitter-flip", help="in pre-training")
    arguments = parser.parse_args()
    arguments.deadline = time.monotonic() + 60 * arguments.minutes
    arguments.folder.mkdir(parents=True, exist_ok=True)
    makers = {
        "pretrain": lambda: pretrain(arguments),
        "none": lambda: test_untrained(arguments),
        "1": lambda: meta_train(arguments, 1),
        "5": lambda: meta_train(arguments, 5),
    }
    print(",".join(COLUMNS), flush=True)
    for part in arguments.only:
        for row in makers[part]():
            print(",".join(str(row.get(column, "")) for column in COLUMNS), flush=True)


if __name__ == "__main__":
    main()
