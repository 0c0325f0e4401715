"""Does the task sampler matter on frozen features? The runs of docs/frozen-features.md.

Run: python benchmarks/frozen_features.py --prepare     (pre-trains Conv-4, prepares its features)
     python benchmarks/frozen_features.py --choose --seeds 100   (settings, by validation)
     python benchmarks/frozen_features.py               (makes the runs)
     python benchmarks/frozen_features.py --write       (fills in the tables of the page)

Omniglot and CIFAR-FS must have been prepared. A run that ends is appended to the records at once,
and what is in the records is not made again, so that the work can be stopped at any time. All arms
of a seed come before the next seed.

One pre-training per dataset: verdicts are about its features. Every seed has test tasks of its own,
which all arms share. So an interval over the seeds has the choice of test tasks in it, which counts
here: runs that start from the same map, the identity, differ little.

The pre-training on Omniglot of our records was stopped after 3,000 of its 5,000 steps, after
validation (97.6 %, 5-way), so its learning rate had not fallen to 0; other weights give other
figures. On a core of a CPU, torch 2.13, a run of 1,000 steps and its test take 2 to 5 seconds; a
pre-training takes 5 to 10 minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from _records import DOCS, append, make_and_record, read_rows
from adaptask import load_run
from adaptask.data import load, load_statistics
from adaptask.data.images import SPLITS, EvaluationTasks
from adaptask.data.prepare import prepare_features
from adaptask.experiments.config import (
    DataConfig,
    EvaluationConfig,
    MachineConfig,
    OptimizerConfig,
    RunConfig,
    TaskConfig,
)
from adaptask.experiments.factory import (
    build_evaluator,
    build_model,
    build_testers,
    build_trainer,
    open_split,
)
from adaptask.experiments.options import configure
from adaptask.experiments.recipes import pretraining
from adaptask.experiments.run import run_steps
from adaptask.intervals import Intervals
from adaptask.report.run import Run
from adaptask.report.statistics import hardest_tenth
from adaptask.training.device_steps import finish
from adaptask.training.displays import PlainLines
from neighbor import PermutedNeighbor as PermutedNeighbor

PAGE = DOCS / "frozen-features.md"
RECORDS = DOCS / "reproduction" / "frozen-features.csv"

Accuracies = np.ndarray[Any, np.dtype[np.float64]]

UNIFORM = "uniform"
LABELS = {
    "none": "no training",
    "uniform, best way": "`uniform`, best way",
    "neighbor, permuted": "`neighbor`, class ids permuted",
    "neighbor, fixed": "`neighbor`, strength fixed",
    "neighbor, best way": "`neighbor`, best way",
    "uniform, longer": "`uniform`, longer",
    "neighbor, longer": "`neighbor`, longer",
    "uniform, best way, longer": "`uniform`, best way, longer",
}
BACKBONES = ("linear", "mlp")
EVERY = ("identity", *BACKBONES)
"""Features as they are are tested, not trained."""


@dataclass(frozen=True)
class Features:
    """Frozen features of a dataset: how they are made, trained on and tested."""

    title: str
    pretraining_steps: int
    filters: int
    n_query: int
    """Of a 5-way training task."""
    best_way: tuple[int, int]
    """Way and queries of uniform tasks with as many images, by validation."""
    tested_way: int
    tested_query: int
    kinds: tuple[EvaluationTasks, ...]
    n_test: int
    settings: Mapping[str, tuple[int, float, bool]]
    """By backbone, by validation: steps, learning rate, and whether distances are divided by the
    number of features."""


FEATURES = {
    "omniglot": Features(
        title="Omniglot, 4,112 classes",
        pretraining_steps=5000,
        filters=64,
        n_query=5,
        best_way=(10, 2),
        tested_way=20,
        tested_query=5,
        kinds=("uniform", "within-group"),
        n_test=1000,
        settings={"linear": (1000, 1e-3, False), "mlp": (1000, 1e-3, False)},
    ),
    "cifar-fs": Features(
        title="CIFAR-FS, 64 classes",
        pretraining_steps=1500,
        filters=32,
        n_query=15,
        best_way=(20, 3),
        tested_way=5,
        tested_query=15,
        kinds=("uniform",),
        n_test=2000,
        settings={"linear": (1000, 1e-3, True), "mlp": (1000, 1e-3, False)},
    ),
}


# Features -----------------------------------------------------------------------------------------


def dataset_of(name: str) -> str:
    """Return the name of the dataset of frozen features."""
    return f"frozen-{name}"


def prepare(name: str, folder: Path) -> None:
    """Pre-train Conv-4 as `adaptask pretrain` does, and prepare its features as a dataset."""
    chosen, run = FEATURES[name], folder / f"pretrain-{name}"
    images = load(name, "train")
    usual = pretraining(name, n_classes=images.n_classes, n_images=len(images.images))
    config = replace(
        usual,
        steps=chosen.pretraining_steps,
        backbone=configure("backbone", "conv4", filters=chosen.filters),
        evaluation=replace(usual.evaluation, n_validation=100),
        every=Intervals(log=100, validate=1000),
    )
    if not (run / "test.json").exists():
        finish(run_steps(config, run, display=PlainLines(sys.stdout)))
    source = folder / f"features-{name}"
    source.mkdir(exist_ok=True)
    for split in SPLITS:
        features, labels = extract(run, name, split)
        np.savez(source / f"{split}.npz", features=features, labels=labels)
    print(prepare_features(source, name=dataset_of(name)).source)


@torch.no_grad()
def extract(
    run: Path, name: str, split: str
) -> tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, np.dtype[np.str_]]]:
    """Return the features of a split, and the names of their classes as `group/class`."""
    learner: Any = load_run(run).learner  # in evaluation mode
    found = load(name, split)
    mean, deviation = (torch.tensor(part)[:, None, None] for part in load_statistics(name))
    features = []
    for images in torch.split(found.images, 128):
        normalized = (images.float() / 255 - mean) / deviation
        features.append(learner.embed(normalized[None])[0].flatten(1))
    names = list(found.class_names)
    if found.groups is not None and "/" not in names[0]:
        names = [f"{group}/{own}" for group, own in zip(found.groups, names, strict=True)]
    return torch.cat(features).numpy(), np.repeat(names, found.class_counts())


# Runs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """A run of a comparison."""

    features: str
    backbone: str
    arm: str
    run: Run


def samplers_of(name: str) -> dict[str, str]:
    """Return the sampler of every arm; `best way` is a control with as many images per step."""
    arms = {
        UNIFORM: UNIFORM,
        "neighbor": "neighbor",
        "uniform, best way": UNIFORM,
        "neighbor, permuted": "neighbor:PermutedNeighbor",
        "neighbor, fixed": "neighbor",
        "neighbor, best way": "neighbor",
        "hard-class": "hard-class",
        "hierarchy": "hierarchy",
        "cvar": "cvar",
        "gcp": "gcp",
    }
    if name == "omniglot":  # they keep a number per pair, 17 million, and take long on a CPU
        del arms["gcp"], arms["hierarchy"]
        longer = ("uniform", "neighbor", "uniform, best way")
        arms |= {f"{arm}, longer": arms[arm] for arm in longer}
    return arms


def config_of(name: str, backbone: str, arm: str, seed: int) -> RunConfig:
    """Return how a run is made."""
    chosen = FEATURES[name]
    steps, lr, scaled = chosen.settings.get(backbone, (1, 1e-3, False))
    steps *= 4 if "longer" in arm else 1
    options: dict[str, Any] = {}
    if "neighbor" in arm:
        # The default of the time of these runs, whatever the number of classes.
        options["beta"] = 2.0
    if "fixed" in arm:
        # The strength is 2 from the first step on, instead of rising to it.
        options["target_accuracy"] = None
    n_way, n_query = chosen.best_way if "best way" in arm else (5, chosen.n_query)
    return RunConfig(
        steps=steps,
        seed=seed,
        data=DataConfig(dataset=dataset_of(name), augmentation="none"),
        task=TaskConfig(n_way=n_way, n_shot=1, n_query=n_query),
        sampler=configure("sampler", samplers_of(name)[arm], **options),
        learner=configure("learner", "protonet", scale_by_dimension=scaled),
        backbone=configure("backbone", backbone),
        optimizer=OptimizerConfig(lr=lr, schedule="cosine"),
        evaluation=EvaluationConfig(
            n_way=chosen.tested_way,
            n_query=chosen.tested_query,
            n_episodes=chosen.n_test,
            n_validation=2,
            tasks=chosen.kinds,
            seed=seed,
        ),
        # Validated once, at the end: the last weights are the best ones.
        every=Intervals(log=100, validate=steps, checkpoint=steps, snapshot=steps),
        machine=MachineConfig(
            device="cpu",
            precision="float32",
            engine="eager",
            channels_last="no",
            compile="no",
            threads=1,
        ),
    )


def plan(arguments: argparse.Namespace) -> Iterator[Planned]:
    """Yield the runs, all of a seed before those of the next."""
    for seed in arguments.seeds:
        for name in arguments.only:
            for backbone in [b for b in BACKBONES if b in arguments.backbones]:
                for arm in arguments.arms or samplers_of(name):
                    if arm in samplers_of(name):
                        label = f"{name} {backbone} {arm}"
                        path = arguments.folder / "runs" / label.replace(" ", "-") / f"seed-{seed}"
                        config = config_of(name, backbone, arm, seed)
                        run = Run(path, seed, f"{label}, seed {seed}", config)
                        yield Planned(name, backbone, arm, run)


def make_runs(planned: Iterable[Planned], records: Path) -> None:
    """Make the runs that are not in the records, and append each when it has ended."""
    done = {key_of(row) for row in read_rows(records)}
    left = [p for p in planned if (p.features, p.backbone, p.arm, str(p.run.seed)) not in done]
    by_name = {p.run.name: p for p in left}
    print(f"{len(left)} runs to make", flush=True)

    make_and_record([p.run for p in left], records, lambda name: record(by_name[name]))


def record(planned: Planned) -> dict[str, Any]:
    """Return what is kept of a run that has ended."""
    run = Run(planned.run.path, planned.run.seed)  # read now
    config: RunConfig = planned.run.config
    assert run.test is not None
    steps, losses = run.curve("train", "loss")
    _, accuracies = run.curve("train", "accuracy")
    is_late = steps > 0.8 * config.steps
    return {
        "features": planned.features,
        "backbone": planned.backbone,
        "arm": planned.arm,
        "seed": planned.run.seed,
        "n_way": config.task.n_way,
        "n_query": config.task.n_query,
        "steps": config.steps,
        "lr": config.optimizer.lr,
        **tested(run.test.accuracies, run.test.within_group),
        "train_loss": f"{losses[is_late].mean():.4f}",
        "train_accuracy": f"{100 * accuracies[is_late].mean():.2f}",
    }


def tested(accuracies: Accuracies, within: Accuracies | None) -> dict[str, str]:
    """Return the figures of a test in percent."""
    return {
        "accuracy": f"{100 * accuracies.mean():.4f}",
        "within_group": "" if within is None else f"{100 * within.mean():.4f}",
        "hardest_tenth": f"{100 * hardest_tenth(accuracies):.4f}",
    }


def test_untrained(name: str, seed: int) -> dict[str, Any]:
    """Return the record of the features as they are; training tasks are uniform 5-way ones."""
    device = torch.device("cpu")
    config = config_of(name, "identity", UNIFORM, seed)
    chosen = FEATURES[name]
    training = replace(
        config,
        evaluation=replace(config.evaluation, n_way=5, n_query=chosen.n_query, n_episodes=1000),
    )
    source = open_split(config, "train", device)
    learner = build_model(config, source.image_set.image_shape, device).eval()
    on_training = build_evaluator(training, "test", device, source)(learner)
    found = [tester(learner).accuracies.numpy() for tester in build_testers(config, device)]
    return {
        "features": name,
        "backbone": "identity",
        "arm": "none",
        "seed": seed,
        "n_way": 5,
        "n_query": chosen.n_query,
        "steps": 0,
        "lr": "",
        **tested(found[0], found[1] if len(found) > 1 else None),
        "train_loss": f"{on_training.loss:.4f}",
        "train_accuracy": f"{100 * on_training.accuracy:.2f}",
    }


def make_untrained(arguments: argparse.Namespace) -> None:
    """Test the features as they are with every seed, unless the records have it."""
    done = {key_of(row) for row in read_rows(arguments.records)}
    for name, seed in product(arguments.only, arguments.seeds):
        if (name, "identity", "none", str(seed)) not in done:
            append(arguments.records, test_untrained(name, seed))


def choose(arguments: argparse.Namespace) -> None:
    """Print the accuracy on 1,000 validation tasks of uniform sampling with several settings."""
    print("features,backbone,scaled,steps,lr,n_way,seed,accuracy")
    for name in arguments.only:
        ways = [(5, FEATURES[name].n_query)]
        for backbone, scaled, steps, lr, (n_way, n_query), seed in product(
            [b for b in BACKBONES if b in arguments.backbones],
            arguments.scaled,
            arguments.steps,
            arguments.lrs,
            arguments.ways or ways,
            arguments.seeds,
        ):
            config = config_of(name, backbone, UNIFORM, seed)
            config = replace(
                config,
                steps=steps,
                task=replace(config.task, n_way=n_way, n_query=n_query),
                learner=configure("learner", "protonet", scale_by_dimension=scaled),
                optimizer=replace(config.optimizer, lr=lr),
                every=Intervals(validate=steps, checkpoint=steps, snapshot=steps),
            )
            print(*(name, backbone, scaled, steps, lr, n_way, seed), sep=",", end=",")
            print(f"{100 * validate(config):.2f}", flush=True)


def validate(config: RunConfig) -> float:
    """Train without a folder, and return the accuracy of the last weights in validation."""
    device = torch.device("cpu")
    trainer = build_trainer(config, device, folder=None, display=None)
    trainer.fit(config.steps)
    evaluation = replace(config.evaluation, n_validation=1000)
    evaluator = build_evaluator(replace(config, evaluation=evaluation), "val", device)
    return evaluator(trainer.learner).accuracy


# Records ------------------------------------------------------------------------------------------


def key_of(row: Mapping[str, str]) -> tuple[str, str, str, str]:
    """Return what identifies a run in the records."""
    return row["features"], row["backbone"], row["arm"], row["seed"]


# Page ---------------------------------------------------------------------------------------------


def values(
    rows: Iterable[Mapping[str, str]], name: str, backbone: str, arm: str, field: str
) -> dict[int, float]:
    """Return a field of the runs of an arm by seed."""
    wanted = (name, backbone, arm)
    return {
        int(row["seed"]): float(row[field])
        for row in rows
        if (row["features"], row["backbone"], row["arm"]) == wanted and row[field]
    }


def differences(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Return the differences of the seeds that both have."""
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def described(found: Sequence[float]) -> str:
    """Return the mean of paired differences with its 95 % interval by Student's t over seeds."""
    mean, error = statistics.fmean(found), float(stats.sem(found))
    half = float(stats.t.ppf(0.975, len(found) - 1)) * error
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"


def p_text(p: float) -> str:
    """Return a p-value as the page has it."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def table(rows: Sequence[Mapping[str, str]], name: str, backbone: str) -> str:
    """Return the table of all arms on some features, uniform first."""
    has_groups = len(FEATURES[name].kinds) > 1
    fields = ["accuracy", *(["within_group"] if has_groups else [])]

    def found(arm: str, field: str) -> dict[int, float]:
        own = values(rows, name, "identity" if arm == "none" else backbone, arm, field)
        return {seed: value for seed, value in own.items() if seed in seeds}

    seeds = values(rows, name, backbone, UNIFORM, "accuracy")
    heads = ["arm", "seeds", "accuracy", "difference to uniform", "p"]
    heads += ["within alphabets", "difference"] if has_groups else []
    heads += ["training tasks"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for arm in ("none", *samplers_of(name)):
        if not found(arm, "accuracy"):
            continue
        cells = [LABELS.get(arm, f"`{arm}`"), str(len(found(arm, "accuracy")))]
        for field in fields:
            cells.append(f"{statistics.fmean(found(arm, field).values()):.2f}")
            pairs = differences(found(arm, field), found(UNIFORM, field))
            cells.append("" if arm == UNIFORM else described(pairs))
            if field == "accuracy":
                p = "" if arm == UNIFORM else p_text(float(stats.ttest_1samp(pairs, 0).pvalue))
                cells.append(p)
        cells.append(f"{statistics.fmean(found(arm, 'train_accuracy').values()):.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def fill_in(page: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Return the page with the tables between its markers replaced."""
    for name, backbone in product(FEATURES, BACKBONES):
        begin, end = f"<!-- {name} {backbone} -->", f"<!-- end of {name} {backbone} -->"
        if begin in page:
            before, _, rest = page.partition(begin)
            _, _, after = rest.partition(end)
            page = f"{before}{begin}\n{table(rows, name, backbone)}\n{end}{after}"
    return page


def main() -> None:
    """Prepare features, choose settings, make runs, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=FEATURES, default=list(FEATURES))
    parser.add_argument("--backbones", nargs="+", choices=EVERY, default=list(EVERY))
    parser.add_argument("--arms", nargs="+", help="these alone")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--folder", type=Path, default=Path("runs/frozen"))
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--prepare", action="store_true", help="make the features")
    parser.add_argument("--choose", action="store_true", help="validate settings of uniform")
    parser.add_argument("--steps", nargs="+", type=int, default=[500, 2000], help="to choose from")
    parser.add_argument("--lrs", nargs="+", type=float, default=[1e-4, 1e-3, 1e-2])
    parser.add_argument("--scaled", nargs="+", type=int, choices=(0, 1), default=[0, 1])
    parser.add_argument("--ways", nargs="+", type=way_and_queries, help="WAYxQUERIES")
    parser.add_argument("--write", action="store_true", help="write the tables of the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.write:
        PAGE.write_text(fill_in(PAGE.read_text(), read_rows(RECORDS)))
    elif arguments.prepare:
        for name in arguments.only:
            prepare(name, arguments.folder)
    elif arguments.choose:
        choose(arguments)
    else:
        if "identity" in arguments.backbones:
            make_untrained(arguments)
        make_runs(list(plan(arguments)), arguments.records)


def way_and_queries(text: str) -> tuple[int, int]:
    """Return a way and a number of queries, from such as 10x2."""
    n_way, _, n_query = text.partition("x")
    return int(n_way), int(n_query)


if __name__ == "__main__":
    main()
