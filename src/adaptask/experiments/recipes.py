"""The settings with which the paper trains, and the presets of `adaptask train --preset` from them.

What the paper says itself comes first: Conv-4 has 64 filters, tests have 1000 episodes of 15
queries per class. What it leaves open is as in the code that it names. A recipe takes any dataset;
one that is not in the literature gets the settings of CIFAR-FS. What cannot be set here is listed
in `docs/reproduce.md`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from functools import cache
from typing import Any

from adaptask.arguments import check_choice
from adaptask.errors import ArgumentError
from adaptask.experiments.config import (
    DataConfig,
    EvaluationConfig,
    OptimizerConfig,
    RunConfig,
    TaskConfig,
)
from adaptask.experiments.options import configure
from adaptask.intervals import Intervals

TRAINING_SHOTS = {
    "cifar-fs": 5,
    "fc100": 15,
    "mini-imagenet": 15,
    # As their paper has it; the commands that come with their code have 10.
    "tiered-imagenet": 15,
}
"""Shots with which MetaOptNet trains, whatever it is tested with."""
_SMOOTHING = {"mini-imagenet": 0.1, "tiered-imagenet": 0.1}


def metaoptnet(
    learner: str, dataset: str, *, n_shot: int | None = None, tested: int = 5
) -> RunConfig:
    """Return the recipe of MetaOptNet (Lee et al. 2019), which the paper's Tables 1 and 2 follow.

    60 epochs of 1000 steps of 8 tasks, SGD with Nesterov momentum 0.9 and weight decay 5e-4, the
    learning rate falling from 0.1 to 0.006, 0.0012 and 0.00024 at epochs 20, 40 and 50.

    Args:
        learner: `protonet`, `metaoptnet-ridge` or `metaoptnet-svm`.
        dataset: Any.
        n_shot: Shots in training; None: those of MetaOptNet.
        tested: Shots in validation and test.
    """
    epoch = 1000
    options: dict[str, Any] = {"label_smoothing": _SMOOTHING.get(dataset, 0.0)}
    if learner == "protonet":
        options |= {"scale_by_dimension": True, "learn_temperature": True}
    return RunConfig(
        steps=60 * epoch,
        data=DataConfig(dataset=dataset, augmentation=_suited("crop-jitter-flip", dataset)),
        task=TaskConfig(
            n_way=5, n_shot=n_shot or TRAINING_SHOTS.get(dataset, 5), n_query=6, n_tasks=8
        ),
        learner=configure("learner", learner, **options),
        backbone=configure("backbone", "resnet12", widths="metaoptnet", mean_pool=False),
        optimizer=OptimizerConfig(
            name="sgd",
            lr=0.1,
            weight_decay=5e-4,
            momentum=0.9,
            schedule="step",
            milestones=(20 * epoch, 40 * epoch, 50 * epoch),
            factors=(0.06, 0.012, 0.0024),
        ),
        evaluation=EvaluationConfig(n_shot=tested, n_validation=2000),
        every=Intervals(validate=epoch, checkpoint=epoch, snapshot=epoch),
    )


def closer_look(learner: str, dataset: str, shots: int) -> RunConfig:
    """Return the recipe of CloserLookFewShot (Chen et al. 2019) for `protonet` or `matchingnet`.

    Adam at 1e-3, one 5-way task of 16 queries per class per step; 600 epochs of 100 steps for
    1 shot, 400 for 5. Their Matching Network has full context, read as often as there are support
    images.

    Two things are ours. They validate on 100 episodes after every epoch, so that the best of 600
    is the luckiest; here on 200 after every fifth. Their augmentation is made for images of 84
    pixels and leaves little of 32; such images are padded, cropped and flipped, as is usual for
    CIFAR (best by validation: `docs/reproduction.md`).
    """
    epoch = 100
    small = dataset in ("cifar-fs", "fc100")
    augmentation = "crop-flip" if small else _suited("resized-crop-jitter-flip", dataset)
    options: dict[str, Any] = {}
    if learner == "matchingnet":
        options = {"full_context": True, "n_reads": 5 * shots}
    return RunConfig(
        steps=(600 if shots == 1 else 400) * epoch,
        data=DataConfig(dataset=dataset, augmentation=augmentation),
        task=TaskConfig(n_way=5, n_shot=shots, n_query=16, n_tasks=1),
        learner=configure("learner", learner, **options),
        backbone=configure("backbone", "conv4"),
        optimizer=OptimizerConfig(name="adam", lr=1e-3),
        evaluation=EvaluationConfig(n_validation=200),
        every=Intervals(validate=5 * epoch, checkpoint=10 * epoch, snapshot=10 * epoch),
    )


def how_to_train_maml(learner: str, dataset: str, shots: int) -> RunConfig:
    """Return the recipe of HowToTrainYourMAMLPytorch (Antoniou et al. 2018).

    As in its `mini-imagenet_{maml,maml++}-mini-imagenet_{1,5}_2_0.01_48_5_0.json` at commit
    0cbec87: 100 epochs of 500 steps of 2 tasks, Adam at 1e-3, 5 inner steps of 0.01, 15 queries,
    no augmentation, 600 validation episodes per epoch, and the five best epochs as an ensemble. The
    learning rate falls to 0.001 from 0.001, and second order starts at epoch -1: these files
    switch both annealings of MAML++ off. Its network has `leaky_relu` where its paper, and
    ours, have ReLU.
    """
    epoch = 500
    options = {"anneal_order": False} if learner == "maml++" else {}
    return RunConfig(
        steps=100 * epoch,
        data=DataConfig(dataset=dataset, augmentation="none"),
        task=TaskConfig(n_way=5, n_shot=shots, n_query=15, n_tasks=2),
        learner=configure("learner", learner, **options),
        backbone=configure("backbone", "conv4"),
        optimizer=OptimizerConfig(name="adam", lr=1e-3),
        evaluation=EvaluationConfig(n_validation=600, keep_best=5),
        every=Intervals(validate=epoch, checkpoint=epoch, snapshot=epoch),
    )


def reptile(dataset: str, shots: int) -> RunConfig:
    """Return the recipe of Reptile (Nichol et al. 2018) for miniImageNet, from their own code.

    100,000 steps of 5 tasks of 15 shots, 8 inner steps of Adam at 1e-3 on mini-batches of 10; the
    step towards the adapted weights falls from 1 to 0; 50 inner steps in tests. Reptile-Pytorch,
    which the paper names, is not followed: its README says that miniImageNet does not work, and
    what it follows is the gradient of the query loss after adaptation, first-order MAML. From it
    comes that the queries of a test are normalized together.
    """
    return RunConfig(
        steps=100_000,
        data=DataConfig(dataset=dataset, augmentation="none"),
        task=TaskConfig(n_way=5, n_shot=15, n_query=5, n_tasks=5),
        learner=configure("learner", "reptile", evaluation_batch_size=5 if shots == 1 else 15),
        backbone=configure("backbone", "conv4"),
        optimizer=OptimizerConfig(name="sgd", lr=1.0, momentum=0.0),
        evaluation=EvaluationConfig(n_shot=shots),
        every=Intervals(validate=2000, checkpoint=2000, snapshot=2000),
    )


def pretraining(dataset: str, *, n_classes: int = 64, n_images: int = 38_400) -> RunConfig:
    """Return how `adaptask pretrain` trains a classifier, after Meta-Baseline (Chen et al. 2021).

    As in its `train_classifier_mini.yaml`: SGD from 0.1 with momentum 0.9 and weight decay 5e-4,
    batches of 128 images, and as many as 100 passes over the training images have. Ours are the
    cosine schedule (theirs divides by 10 after 90 passes), Nesterov's form of momentum, the
    augmentation of the dataset, and batches with two images of each of 64 classes, or of all if
    there are fewer, instead of any images.

    Args:
        dataset: Any.
        n_classes: Its number of training classes; by default as of CIFAR-FS and miniImageNet.
        n_images: Its number of training images.
    """
    n_way = min(64, n_classes)
    n_tasks = 64 // n_way
    return RunConfig(
        steps=math.ceil(100 * n_images / (2 * n_way * n_tasks)),
        data=DataConfig(dataset=dataset),
        task=TaskConfig(n_way=n_way, n_shot=1, n_query=1, n_tasks=n_tasks),
        sampler=configure("sampler", "uniform"),
        learner=configure("learner", "classifier"),
        optimizer=OptimizerConfig(
            name="sgd", lr=0.1, weight_decay=5e-4, momentum=0.9, schedule="cosine"
        ),
        evaluation=EvaluationConfig(n_way=5, n_shot=1, n_validation=500),
    )


def meta_baseline(dataset: str, shots: int) -> RunConfig:
    """Return the recipe of Meta-Baseline (Chen et al. 2021), for a pre-trained backbone.

    As in its `train_meta_mini.yaml`: 20 epochs of 200 steps of 4 tasks, SGD at 0.001 with momentum
    0.9 (here in Nesterov's form) and weight decay 5e-4, images as they are, 800 validation
    episodes per epoch. ResNet-12 has 64-128-256-512 filters and drops nothing.
    """
    epoch = 200
    return RunConfig(
        steps=20 * epoch,
        data=DataConfig(dataset=dataset, augmentation="none"),
        task=TaskConfig(n_way=5, n_shot=shots, n_query=15, n_tasks=4),
        learner=configure("learner", "meta-baseline"),
        backbone=configure("backbone", "resnet12", drop_rate=0.0),
        optimizer=OptimizerConfig(name="sgd", lr=1e-3, weight_decay=5e-4, momentum=0.9),
        evaluation=EvaluationConfig(n_validation=800),
        every=Intervals(validate=epoch, checkpoint=epoch, snapshot=epoch),
    )


CONV4_LEARNERS = ("matchingnet", "protonet", "reptile", "maml", "maml++")
RESNET12_LEARNERS = ("protonet", "metaoptnet-ridge", "metaoptnet-svm")


def recipe(learner: str, backbone: str, dataset: str, shots: int) -> RunConfig:
    """Return how the paper trains a learner that is to be tested with so many shots.

    On ResNet-12 prototypical networks train with the shots that they are tested with, as Snell et
    al. advise; the heads of MetaOptNet always with their own.

    Raises:
        ArgumentError: If the paper has no such learner on that backbone.
    """
    if backbone == "resnet12":
        check_choice("learner", learner, RESNET12_LEARNERS)
        n_shot = shots if learner == "protonet" else None
        return metaoptnet(learner, dataset, n_shot=n_shot, tested=shots)
    check_choice("learner", learner, CONV4_LEARNERS)
    if learner == "reptile":
        return reptile(dataset, shots)
    if learner in ("maml", "maml++"):
        return how_to_train_maml(learner, dataset, shots)
    return closer_look(learner, dataset, shots)


_METAOPTNET_NOTES = (
    "ResNet-12 and its training are those of MetaOptNet, whose figures the paper quotes for the "
    "rows without gcp: 64-160-320-640 filters, features not averaged. The paper's text describes "
    "filters that double from 64 and a mean-pooling layer.",
    "Open: shots of ProtoNet in training. We take those of the test, as Snell et al. advise. The "
    "heads of MetaOptNet train with its shots (5 on CIFAR-FS, else 15) and are tested with others.",
    "MetaOptNet validates with 5 shots; here validation has the shots of the test, since the two "
    "are separate runs.",
)
_CLOSER_LOOK_NOTES = (
    "ProtoNet and Matching Network train as in CloserLookFewShot: Adam at 1e-3, one 5-way task of "
    "16 queries per class per step, 60,000 steps for 1 shot and 40,000 for 5.",
    "Open: whether training images are augmented, which is an option of that code. We augment, as "
    "its paper does: a random box of 8 to 100 % of the image stretched to its size, color jitter, "
    "flip. At 32 pixels, where such a box has down to 9 x 9 of them, images are padded by 4, "
    "cropped and flipped instead. Characters are not augmented.",
    "Not as in that code: validation has 200 episodes every 500 steps instead of 100 every 100, "
    "negative cosines are kept, and test images are not cropped to their middle 87 %.",
)
_MAML_NOTES = (
    "MAML and MAML++ train as the configuration files of HowToTrainYourMAMLPytorch say: 50,000 "
    "steps of 2 tasks, 5 inner steps of 0.01, no augmentation, an ensemble of the five best of 100 "
    "epochs. These files switch off what the paper on MAML++ describes as annealing of the "
    "learning rate and of the derivative order; that paper has 4 tasks per step for 1 shot.",
    "Conv-4 has the 64 filters of the paper's text; those files have 48.",
    "Not as in that code: its Conv-4 has leaky ReLU of slope 0.01, where its paper and ours have "
    "ReLU; on ImageNet it clips every entry of the gradient at 10; and its MAML does not adapt the "
    "weights of normalization to a task.",
)
_REPTILE_NOTES = (
    "Reptile trains as in the code of Nichol et al. The paper names Reptile-Pytorch, which says of "
    "itself that miniImageNet does not work, and which follows the gradient of the query loss "
    "after adaptation instead of moving towards the adapted weights.",
    "Reptile has no queries; 5 images per class are held out for the sampler to learn from. Open: "
    "whether queries of a test are normalized together. They are, as in Reptile-Pytorch.",
)
_CONV4_NOTES = {
    "matchingnet": _CLOSER_LOOK_NOTES,
    "protonet": _CLOSER_LOOK_NOTES,
    "reptile": _REPTILE_NOTES,
    "maml": _MAML_NOTES,
    "maml++": _MAML_NOTES,
}


def recipe_notes(configs: Iterable[RunConfig]) -> tuple[str, ...]:
    """Return what the reader of a study must know of the recipes of its runs, each note once."""
    found: dict[str, None] = {}
    for config in configs:
        is_conv4 = config.backbone.name == "conv4"
        notes = _CONV4_NOTES[config.learner.name] if is_conv4 else _METAOPTNET_NOTES
        found |= dict.fromkeys(notes)
    return tuple(found)


def _suited(augmentation: str, dataset: str) -> str:
    """Return an augmentation, or none for characters, which a flip turns into others."""
    from adaptask.data.datasets import default_augmentation

    return "none" if default_augmentation(dataset) == "none" else augmentation


# Presets ------------------------------------------------------------------------------------------

_CONV4_DATASETS = ("cifar-fs", "mini-imagenet")
_SHOTS = (1, 5)
_ORIGIN = {
    "matchingnet": "CloserLookFewShot (Chen et al. 2019)",
    "protonet": "CloserLookFewShot (Chen et al. 2019)",
    "reptile": "Reptile (Nichol et al. 2018)",
    "maml": "How to train your MAML (Antoniou et al. 2018)",
    "maml++": "How to train your MAML (Antoniou et al. 2018)",
}


@cache
def presets() -> dict[str, RunConfig]:
    """Return the configuration of every preset by its name."""
    found = {
        f"{learner}-resnet12-{dataset}": metaoptnet(learner, dataset)
        for learner in RESNET12_LEARNERS
        for dataset in TRAINING_SHOTS
    }
    with_shots = [("protonet", "resnet12", dataset) for dataset in TRAINING_SHOTS]
    with_shots += [(name, "conv4", data) for name in CONV4_LEARNERS for data in _CONV4_DATASETS]
    for learner, backbone, dataset in with_shots:
        for shots in _SHOTS:
            name = f"{learner}-{backbone}-{dataset}-{shots}shot"
            found[name] = recipe(learner, backbone, dataset, shots)
    for dataset in TRAINING_SHOTS:
        for shots in _SHOTS:
            name = f"meta-baseline-resnet12-{dataset}-{shots}shot"
            found[name] = meta_baseline(dataset, shots)
    return found


def preset_groups() -> dict[str, str]:
    """Return the patterns that the names of presets follow, each with what it is and for what.

    >>> preset_groups()["maml-conv4-DATASET-SHOTS"]
    'as How to train your MAML (Antoniou et al. 2018): cifar-fs, mini-imagenet; 1shot, 5shot'
    """
    shots = ", ".join(f"{number}shot" for number in _SHOTS)
    resnet12, conv4 = ", ".join(TRAINING_SHOTS), ", ".join(_CONV4_DATASETS)
    return {
        **{
            f"{learner}-resnet12-DATASET": f"as MetaOptNet (Lee et al. 2019): {resnet12}"
            for learner in RESNET12_LEARNERS
        },
        "protonet-resnet12-DATASET-SHOTS": f"the same, shots as in tests: {resnet12}; {shots}",
        **{
            f"{learner}-conv4-DATASET-SHOTS": f"as {_ORIGIN[learner]}: {conv4}; {shots}"
            for learner in CONV4_LEARNERS
        },
        "meta-baseline-resnet12-DATASET-SHOTS": (
            f"as Meta-Baseline (Chen et al. 2021), by --init: {resnet12}; {shots}"
        ),
    }


def preset_config(name: str) -> RunConfig:
    """Return the configuration of a preset.

    Raises:
        ArgumentError: If there is none of that name.
    """
    known = presets()
    if name not in known:
        nearest = difflib.get_close_matches(name, known, cutoff=0.4) or list(known)[:3]
        raise ArgumentError(
            f"there is no preset {name!r}; nearest to it are {', '.join(nearest)}. "
            "`adaptask list` shows what they are made of."
        )
    return known[name]
