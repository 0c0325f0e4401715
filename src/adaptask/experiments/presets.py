"""Published training recipes as ready configurations: `adaptask train --preset NAME`."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    MetaOptNetRidgeOptions,
    MetaOptNetSVMOptions,
    ProtoNetOptions,
    ResNet12Options,
)

_EPOCH = 1000

_TRAINING_SHOTS = {
    "cifar-fs": 5,
    "fc100": 15,
    "mini-imagenet": 15,
    # As their paper has it; the commands that come with their code have 10.
    "tiered-imagenet": 15,
}
_SMOOTHING = {"mini-imagenet": 0.1, "tiered-imagenet": 0.1}


@dataclass(frozen=True)
class Preset:
    """A recipe: what it is, and the configuration."""

    description: str
    config: RunConfig


def metaoptnet(learner: str, dataset: str) -> RunConfig:
    """Return the recipe of MetaOptNet (Lee et al. 2019), which the paper's Tables 1 and 2 follow.

    60 epochs of 1000 steps of 8 tasks, SGD with Nesterov momentum 0.9 and weight decay 5e-4, the
    learning rate falling from 0.1 to 0.006, 0.0012 and 0.00024 at epochs 20, 40 and 50.
    """
    smoothing = _SMOOTHING.get(dataset, 0.0)
    config = RunConfig(
        steps=60 * _EPOCH,
        data=DataConfig(dataset=dataset, augmentation="crop-jitter-flip"),
        task=TaskConfig(n_way=5, n_shot=_TRAINING_SHOTS[dataset], n_query=6, n_tasks=8),
        model=ModelConfig(learner=learner, backbone="resnet12"),  # type: ignore[arg-type]
        optimiser=OptimiserConfig(
            name="sgd",
            lr=0.1,
            weight_decay=5e-4,
            momentum=0.9,
            schedule="step",
            milestones=(20 * _EPOCH, 40 * _EPOCH, 50 * _EPOCH),
            factors=(0.06, 0.012, 0.0024),
        ),
        evaluation=EvaluationConfig(n_shot=5, n_validation=2000),
        every=EveryConfig(validate=_EPOCH, checkpoint=_EPOCH, snapshot=_EPOCH),
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


PRESETS: dict[str, Preset] = {
    f"{learner}-resnet12-{dataset}": Preset(
        "the recipe of MetaOptNet (Lee et al. 2019)", metaoptnet(learner, dataset)
    )
    for learner in ("protonet", "metaoptnet-ridge", "metaoptnet-svm")
    for dataset in _TRAINING_SHOTS
}
"""Every preset by its name."""


def preset_config(name: str) -> RunConfig:
    """Return the configuration of a preset.

    Raises:
        ArgumentError: If there is none of that name.
    """
    return PRESETS[check_choice("preset", name, PRESETS)].config
