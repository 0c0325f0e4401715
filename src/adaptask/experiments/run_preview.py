"""A small sample of what a run saw and drew, for reports that have neither data nor model."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize

from adaptask.atomic_file import replace_file
from adaptask.backbones.base import evaluation_mode
from adaptask.data import EpisodeSource
from adaptask.interfaces import TaskSampler
from adaptask.randomness import RandomModule, derive_seed

FILE = "portrait.npz"
N_TASKS = 24
"""How many tasks of the sampler are kept."""

_LARGEST_SIDE = 40
_N_IMAGES, _N_IMAGES_OF_MANY, _MANY_CLASSES = 4, 2, 128
_EMBEDDED = 20
# For the map of Figure 4 alone, of 64 classes there. Embedding the 768 of turned-glyphs would take
# a run on a CPU 20 seconds.
_MOST_EMBEDDED_CLASSES = 200
_SEED = 0


def save_preview(
    folder: Path,
    learner: nn.Module,
    sampler: TaskSampler,
    source: EpisodeSource,
) -> None:
    """Write thumbnails, class similarities and some tasks of a run that has ended.

    Args:
        folder: The run's folder.
        learner: With the weights that are tested.
        sampler: As the last step left it; it is not disturbed.
        source: The training images; it is not disturbed.

    Raises:
        TrainingError: If it cannot be written.
    """
    content = io.BytesIO()
    # A stream of its own for every kind of sampler: with one for all, tasks would look alike.
    seed = derive_seed(_SEED, type(sampler).__name__)
    tasks = sampler.fork(seed) if isinstance(sampler, RandomModule) else sampler
    np.savez_compressed(
        content,
        allow_pickle=False,
        class_names=np.array(source.image_set.class_names, dtype=np.str_),
        images=_thumbnails(source).numpy(),
        similarity=prototype_similarity(learner, source).float().numpy(force=True),
        tasks=tasks.sample(N_TASKS).numpy(force=True),
    )
    replace_file(folder / FILE, content.getbuffer())


def _thumbnails(source: EpisodeSource) -> Tensor:
    """Return the first images of each class, `classes x images x height x width x channels`.

    Of features there are none.
    """
    image_set = source.image_set
    if image_set.holds_features:
        return torch.zeros(image_set.n_classes, 0, 1, 1, 1, dtype=torch.uint8)
    wanted = _N_IMAGES if image_set.n_classes <= _MANY_CLASSES else _N_IMAGES_OF_MANY
    counts = image_set.class_starts.diff()
    n_images = min(wanted, int(counts.min()))
    index = image_set.class_starts[:-1, None] + torch.arange(n_images)
    images = image_set.images[index.flatten()].cpu()
    height, width = images.shape[2:]
    shrink = min(1.0, _LARGEST_SIDE / max(height, width))
    if shrink < 1:
        size = (round(height * shrink), round(width * shrink))
        smaller = interpolate(images.float(), size, mode="bilinear", antialias=True)
        images = smaller.round().clamp(0, 255).to(torch.uint8)
    return images.permute(0, 2, 3, 1).reshape(*index.shape, *images.shape[2:], images.shape[1])


@torch.no_grad()
def prototype_similarity(learner: nn.Module, source: EpisodeSource) -> Tensor:
    """Return the cosines between the mean features of all classes, `classes x classes`.

    Of more than 200 classes none are returned, `0 x 0`. Features are those of the backbone,
    before any adaptation. Each batch has all classes, so that normalization by the batch does not
    take the difference between them away.
    """
    if source.n_classes > _MOST_EMBEDDED_CLASSES:
        return torch.zeros(0, 0, dtype=torch.float64)
    n_images = min(_EMBEDDED, int(source.image_set.class_starts.diff().min()))
    backbone = getattr(learner, "backbone", None)
    if not isinstance(backbone, nn.Module):
        return torch.eye(source.n_classes, dtype=torch.float64)  # nothing is known of the classes
    plan = source.plan(
        n_episodes=max(1, n_images // 2),
        n_way=source.n_classes,
        n_shot=1,
        n_query=1,
        seed=_SEED,
    )
    total: Tensor | float = 0.0
    with evaluation_mode(backbone):
        for i in range(len(plan)):
            episode = source.cut(plan, i, i + 1)
            images = torch.cat((episode.support_images, episode.query_images), dim=1)
            features = backbone(images).flatten(2).double().view(2, source.n_classes, -1).sum(0)
            total = total + features[episode.class_ids[0].argsort()]
    prototypes = normalize(torch.as_tensor(total), dim=-1)
    return prototypes @ prototypes.mT
