"""What `adaptask data extract` does: the features of a trained backbone, as a dataset."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptask.data import load, load_statistics
from adaptask.data.cache import cache_root, open_cache_writer
from adaptask.data.convert import Progress
from adaptask.data.datasets import check_new_name, splits_of
from adaptask.data.images import ImageSet, resize_images, shrink_images
from adaptask.data.normalization import scale_and_shift
from adaptask.data.prepare import Prepared
from adaptask.errors import ArgumentError
from adaptask.experiments.config_file import load_config, no_run_in
from adaptask.experiments.evaluate_command import trained_learner
from adaptask.learners.base import embeds_alone
from adaptask.learners.ensemble import Ensemble
from adaptask.training.process import choose_device
from adaptask.training.run_folder import RunFolder

_IMAGES_AT_ONCE = 256


@torch.no_grad()
def extract_features(
    run: Path,
    name: str,
    *,
    dataset: str | None = None,
    device: str = "auto",
    trust_plugins: bool = False,
    progress: Progress | None = None,
) -> Prepared:
    """Write what the backbone of a run computes of every image as a cache of features.

    The backbone is in evaluation mode, with the best weights of the run by validation. It gets
    images as in the run: of the same size, with the same normalization. Splits and groups stay.

    Args:
        run: Folder of a run, such as a pre-training.
        name: The name of the new dataset.
        dataset: Whose images; None for those of the run.
        device: Where the backbone computes.
        trust_plugins: Whether the run may import classes outside the package.
        progress: Called with the number of images done and the number of all.

    Raises:
        AdaptaskError: If something cannot be used or done. Nothing was changed.
    """
    start = time.perf_counter()
    check_new_name(name)
    saved, where = RunFolder(run), choose_device(device)
    if not saved.config.exists():
        raise no_run_in(run)
    config = load_config(saved.config, trust_plugins=trust_plugins)
    chosen = dataset or config.data.dataset
    if name in (chosen, config.data.dataset):
        raise ArgumentError(f"the features of {chosen} need a name of their own; got '{name}'.")
    shape = load(config.data.dataset, "train").image_shape
    if shape[1:] == (1, 1):
        raise ArgumentError(
            f"the run in {run} was trained on features, which need not be computed again; name a "
            "run that was trained on images."
        )
    learner: Any
    learner, _ = trained_learner(saved, config, where, "best")
    learner.eval()
    if isinstance(learner, Ensemble):
        learner = learner.members[0]  # the best one
    backbone = getattr(learner, "backbone", None)
    if not isinstance(backbone, nn.Module):
        raise ArgumentError(
            f"the learner {type(learner).__name__} of the run in {run} has no backbone that could "
            "compute features; name another run."
        )
    sets = [
        shrink_images(resize_images(load(chosen, split), shape), config.data.shrink)
        for split in splits_of(chosen)
    ]
    scale, shift = scale_and_shift(load_statistics(config.data.dataset), shape[0])
    n_images, n_done = {found.split: len(found.images) for found in sets}, 0

    def features_of(images: Tensor) -> Tensor:
        normalized = (images.float() / 255 * scale + shift).to(where)
        features: Tensor = backbone(normalized[None])[0].flatten(1).float()
        return features

    def pieces_of(images: Tensor) -> Iterator[np.ndarray[Any, Any]]:
        nonlocal n_done
        for part in torch.split(images, _IMAGES_AT_ONCE):
            yield features_of(part)[:, :, None, None].numpy(force=True)
            n_done += len(part)
            if progress is not None:
                progress(n_done, sum(n_images.values()))

    size, folder = _size_of(features_of, sets[0].images, run), cache_root() / name
    source = f"{chosen} as {run.resolve().name} sees it, features of size {size}"
    with open_cache_writer(
        folder, dataset=name, source=source, image_shape=(size, 1, 1), dtype="float32"
    ) as writer:
        for found in sets:
            pieces = pieces_of(found.images)
            writer.write_split(found.split, _full_names(found), found.class_counts(), pieces)
    n_classes = {found.split: found.n_classes for found in sets}
    return Prepared(name, folder, source, n_classes, n_images, time.perf_counter() - start)


def _size_of(features_of: Callable[[Tensor], Tensor], images: Tensor, run: Path) -> int:
    """Return the number of features of an image, after checking that they are its own.

    Raises:
        ArgumentError: If they depend on the images that go through the backbone with it.
    """
    some = images[torch.linspace(0, len(images) - 1, 4).long()]
    if not embeds_alone(features_of, some):
        raise ArgumentError(
            f"the backbone of the run in {run} normalizes over all images of a task, as norm task "
            "and the learners with an inner loop do, so an image has no features of its own. Name "
            "a run of another learner, such as a pre-training, or with another norm."
        )
    return features_of(some).shape[1]


def _full_names(images: ImageSet) -> list[str]:
    """Return the names of classes as `group/class`, by which groups are known again."""
    names = list(images.class_names)
    if images.groups is None:
        return names
    # A name is divided at its first slash.
    groups = [group.replace("/", "-") for group in images.groups]
    return [
        name if name.startswith(f"{group}/") else f"{group}/{name}"
        for group, name in zip(groups, names, strict=True)
    ]
