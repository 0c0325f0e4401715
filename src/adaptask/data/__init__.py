"""Datasets, and the episodes cut from them.

Names are imported when they are first used: the processes that decode images import this package
too, and need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptask.data.augmentation import AUGMENTATIONS
    from adaptask.data.datasets import DATASETS, load, load_statistics
    from adaptask.data.episode_plan import EpisodePlan
    from adaptask.data.episodes import EpisodeSource, open_episodes
    from adaptask.data.images import ImageSet
    from adaptask.data.normalization import channel_statistics

_HOMES = {
    "AUGMENTATIONS": "augmentation",
    "DATASETS": "datasets",
    "EpisodePlan": "episode_plan",
    "EpisodeSource": "episodes",
    "ImageSet": "images",
    "channel_statistics": "normalization",
    "load": "datasets",
    "load_statistics": "datasets",
    "open_episodes": "episodes",
}

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "EpisodePlan",
    "EpisodeSource",
    "ImageSet",
    "channel_statistics",
    "load",
    "load_statistics",
    "open_episodes",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
