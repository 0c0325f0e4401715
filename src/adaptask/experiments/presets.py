"""Published training recipes as ready configurations: `adaptask train --preset NAME`."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from adaptask.arguments import shown
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


@dataclass(frozen=True)
class Preset:
    """A recipe: what it is, and the configuration."""

    description: str
    config: RunConfig


def _presets() -> dict[str, Preset]:
    found = {
        f"{learner}-resnet12-{dataset}": Preset(
            "as MetaOptNet (Lee et al. 2019)", metaoptnet(learner, dataset)
        )
        for learner in RESNET12_LEARNERS
        for dataset in TRAINING_SHOTS
    }
    for dataset in TRAINING_SHOTS:
        for shots in _SHOTS:
            found[f"protonet-resnet12-{dataset}-{shots}shot"] = Preset(
                "the same, shots as in tests",
                recipe("protonet", "resnet12", dataset, shots),
            )
    for learner in CONV4_LEARNERS:
        for dataset in _CONV4_DATASETS:
            for shots in _SHOTS:
                found[f"{learner}-conv4-{dataset}-{shots}shot"] = Preset(
                    f"as {_ORIGIN[learner]}", recipe(learner, "conv4", dataset, shots)
                )
    return found


PRESETS: dict[str, Preset] = _presets()
"""Every preset by its name."""


def preset_groups() -> dict[str, str]:
    """Return the patterns that the names of presets follow, each with what it is and for what.

    >>> preset_groups()["maml-conv4-DATASET-SHOTS"]
    'as How to train your MAML (Antoniou et al. 2018): cifar-fs, mini-imagenet; 1shot, 5shot'
    """
    groups: dict[str, tuple[str, dict[str, None], dict[str, None]]] = {}
    for name, preset in PRESETS.items():
        dataset = preset.config.data.dataset
        stem, _, shots = name.partition(f"-{dataset}")
        pattern = f"{stem}-DATASET" + ("-SHOTS" if shots else "")
        group = groups.setdefault(pattern, (preset.description, {}, {}))
        group[1][dataset] = None
        group[2][shots.removeprefix("-")] = None
    return {
        pattern: f"{description}: {', '.join(datasets)}"
        + (f"; {', '.join(shots)}" if "" not in shots else "")
        for pattern, (description, datasets, shots) in groups.items()
    }


def preset_config(name: str) -> RunConfig:
    """Return the configuration of a preset.

    Raises:
        ArgumentError: If there is none of that name.
    """
    if not isinstance(name, str) or name not in PRESETS:
        nearest = difflib.get_close_matches(str(name), PRESETS, cutoff=0.4) or list(PRESETS)[:3]
        raise ArgumentError(
            f"there is no preset {shown(name)}; nearest to it are {', '.join(nearest)}. "
            "`adaptask list` shows what they are made of."
        )
    return PRESETS[name].config
