"""Published training recipes as ready configurations: `adaptask train --preset NAME`."""

from __future__ import annotations

import difflib

from adaptask.errors import ArgumentError
from adaptask.experiments.config import RunConfig
from adaptask.experiments.recipes import (
    CONV4_LEARNERS,
    RESNET12_LEARNERS,
    TRAINING_SHOTS,
    metaoptnet,
    recipe,
)

_CONV4_DATASETS = ("cifar-fs", "mini-imagenet")
_SHOTS = (1, 5)

_ORIGIN = {
    "matchingnet": "CloserLookFewShot (Chen et al. 2019)",
    "protonet": "CloserLookFewShot (Chen et al. 2019)",
    "reptile": "Reptile (Nichol et al. 2018)",
    "maml": "How to train your MAML (Antoniou et al. 2018)",
    "maml++": "How to train your MAML (Antoniou et al. 2018)",
}


def _presets() -> dict[str, RunConfig]:
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
    return found


PRESETS = _presets()
"""The configuration of every preset by its name."""


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
    }


def preset_config(name: str) -> RunConfig:
    """Return the configuration of a preset.

    Raises:
        ArgumentError: If there is none of that name.
    """
    if name not in PRESETS:
        nearest = difflib.get_close_matches(name, PRESETS, cutoff=0.4) or list(PRESETS)[:3]
        raise ArgumentError(
            f"there is no preset {name!r}; nearest to it are {', '.join(nearest)}. "
            "`adaptask list` shows what they are made of."
        )
    return PRESETS[name]
