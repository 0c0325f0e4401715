"""The settings in which the paper trains, taken from the implementations that it names.

What the paper says itself comes first: Conv-4 has 64 filters, tests have 1000 episodes of 15
queries per class. What it leaves open is as in the code that it names. A recipe takes any dataset;
one that is not in the literature gets the settings of CIFAR-FS. What cannot be set here is listed
in `docs/reproduce.md`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from adaptask.arguments import check_choice
from adaptask.experiments.config import (
    DataConfig,
    EvaluationConfig,
    EveryConfig,
    ModelConfig,
    OptimiserConfig,
    RunConfig,
    TaskConfig,
)
from adaptask.experiments.model_options import (
    MAMLPlusPlusOptions,
    MatchingNetOptions,
    MetaOptNetRidgeOptions,
    MetaOptNetSVMOptions,
    ProtoNetOptions,
    ReptileOptions,
    ResNet12Options,
)

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
    smoothing = _SMOOTHING.get(dataset, 0.0)
    config = RunConfig(
        steps=60 * epoch,
        data=DataConfig(dataset=dataset, augmentation=_suited("crop-jitter-flip", dataset)),
        task=TaskConfig(
            n_way=5, n_shot=n_shot or TRAINING_SHOTS.get(dataset, 5), n_query=6, n_tasks=8
        ),
        model=ModelConfig(learner=learner, backbone="resnet12"),  # type: ignore[arg-type]
        optimiser=OptimiserConfig(
            name="sgd",
            lr=0.1,
            weight_decay=5e-4,
            momentum=0.9,
            schedule="step",
            milestones=(20 * epoch, 40 * epoch, 50 * epoch),
            factors=(0.06, 0.012, 0.0024),
        ),
        evaluation=EvaluationConfig(n_shot=tested, n_validation=2000),
        every=EveryConfig(validate=epoch, checkpoint=epoch, snapshot=epoch),
        resnet12=ResNet12Options(widths="metaoptnet", mean_pool=False),
    )
    if learner == "protonet":
        scaled = ProtoNetOptions(
            scale_by_dimension=True, learn_temperature=True, label_smoothing=smoothing
        )
        return replace(config, protonet=scaled)
    if learner == "metaoptnet-ridge":
        ridge = MetaOptNetRidgeOptions(label_smoothing=smoothing)
        return replace(config, metaoptnet_ridge=ridge)
    return replace(config, metaoptnet_svm=MetaOptNetSVMOptions(label_smoothing=smoothing))


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
    config = RunConfig(
        steps=(600 if shots == 1 else 400) * epoch,
        data=DataConfig(dataset=dataset, augmentation=augmentation),
        task=TaskConfig(n_way=5, n_shot=shots, n_query=16, n_tasks=1),
        model=ModelConfig(learner=learner, backbone="conv4"),  # type: ignore[arg-type]
        optimiser=OptimiserConfig(name="adam", lr=1e-3),
        evaluation=EvaluationConfig(n_validation=200),
        every=EveryConfig(validate=5 * epoch, checkpoint=10 * epoch, snapshot=10 * epoch),
    )
    if learner == "matchingnet":
        context = MatchingNetOptions(full_context=True, n_reads=5 * shots)
        return replace(config, matchingnet=context)
    return config


def how_to_train_maml(learner: str, dataset: str, shots: int) -> RunConfig:
    """Return the recipe of HowToTrainYourMAMLPytorch (Antoniou et al. 2018).

    As in its `mini-imagenet_{maml,maml++}-mini-imagenet_{1,5}_2_0.01_48_5_0.json` at commit
    0cbec87: 100 epochs of 500 steps of 2 tasks, Adam at 1e-3, 5 inner steps of 0.01, 15 queries,
    no augmentation, 600 validation episodes per epoch, and the five best epochs as an ensemble. The
    learning rate falls to 0.001 from 0.001, and second order starts at epoch -1: these files
    switch both annealings of MAML++ off.
    """
    epoch = 500
    config = RunConfig(
        steps=100 * epoch,
        data=DataConfig(dataset=dataset, augmentation="none"),
        task=TaskConfig(n_way=5, n_shot=shots, n_query=15, n_tasks=2),
        model=ModelConfig(learner=learner, backbone="conv4"),  # type: ignore[arg-type]
        optimiser=OptimiserConfig(name="adam", lr=1e-3),
        evaluation=EvaluationConfig(n_validation=600, keep_best=5),
        every=EveryConfig(validate=epoch, checkpoint=epoch, snapshot=epoch),
    )
    if learner == "maml++":
        return replace(config, maml_plus_plus=MAMLPlusPlusOptions(anneal_order=False))
    return config


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
        model=ModelConfig(learner="reptile", backbone="conv4"),
        optimiser=OptimiserConfig(name="sgd", lr=1.0, momentum=0.0),
        evaluation=EvaluationConfig(n_shot=shots),
        every=EveryConfig(validate=2000, checkpoint=2000, snapshot=2000),
        reptile=ReptileOptions(evaluation_batch_size=5 if shots == 1 else 15),
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
    "Not as in that code: on ImageNet it clips every entry of the gradient at 10, and its MAML "
    "does not adapt the weights of normalization to a task.",
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
    for model in (config.model for config in configs):
        is_conv4 = model.backbone == "conv4"
        notes = _CONV4_NOTES[model.learner] if is_conv4 else _METAOPTNET_NOTES
        found |= dict.fromkeys(notes)
    return tuple(found)


def _suited(augmentation: str, dataset: str) -> str:
    """Return an augmentation, or none for characters, which a flip turns into others."""
    from adaptask.data.datasets import default_augmentation

    return "none" if default_augmentation(dataset) == "none" else augmentation
