"""From the name of a dataset to the episodes of one of its splits, in one call."""

from __future__ import annotations

import torch

from adaptask.data.augmentation import Augmentation
from adaptask.data.episodes import EpisodeSource
from adaptask.data.registry import default_augmentation, load, load_statistics
from adaptask.data.source_checks import Storage


def open_episodes(
    name: str,
    split: str,
    *,
    device: torch.device | str | None = None,
    seed: int = 0,
    augmentation: str | Augmentation | None = None,
    storage: Storage = "auto",
) -> EpisodeSource:
    """Return the episode source of a split, normalised with the statistics of the training split.

    Args:
        name: A dataset of `DATASETS`, or the name given to images of your own.
        split: `train`, `val` or `test`.
        device: Where episodes are wanted.
        seed: Start of the source's generators.
        augmentation: A name from `AUGMENTATIONS` or a callable. Where it is not given, the
            training split gets what is usual for the dataset, and the others get none.
        storage: Where the images are held, see `EpisodeSource`.

    Raises:
        ArgumentError: If an argument cannot be used.
        DataError: If the dataset has not been prepared, or its cache is damaged.
    """
    if augmentation is None:
        augmentation = default_augmentation(name) if split == "train" else "none"
    return EpisodeSource(
        load(name, split),
        device=device,
        seed=seed,
        augmentation=augmentation,
        normalisation=load_statistics(name),
        storage=storage,
    )
