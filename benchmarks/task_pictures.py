"""The pictures of the documentation's first page: uniform tasks, and what neighbor has found.

Run: adaptask train --dataset turned-glyphs --sampler neighbor --steps 2000 --output runs/pictures
     python benchmarks/task_pictures.py runs/pictures docs/images

Draws the first tasks of a uniform sampler, a row each, and the pairs of classes whose learned
vectors have the largest cosines, no character twice; nothing else is chosen. Classes are shown by
the first image that the run's portrait has of them. What lies between images is transparent, so
that it suits light and dark pages.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from adaptask.samplers import build_sampler

N_ROWS, N_WAY, PAIRS_PER_ROW = 4, 5, 3
_SIDE, _GAP, _WIDE_GAP = 56, 4, 18


def draw(images: NDArray[np.uint8], rows: NDArray[np.int64], together: int) -> Image.Image:
    """Return a picture of some classes.

    Args:
        images: Of each class, `classes x height x width`, gray.
        rows: Which classes, `rows x columns`.
        together: How many in a row stand close to each other.
    """
    left = [i * (_SIDE + _GAP) + i // together * (_WIDE_GAP - _GAP) for i in range(rows.shape[1])]
    top = [i * (_SIDE + _WIDE_GAP) for i in range(len(rows))]
    picture = Image.new("LA", (left[-1] + _SIDE, top[-1] + _SIDE), (0, 0))
    for y, row in zip(top, rows, strict=True):
        for x, class_id in zip(left, row, strict=True):
            tile = Image.fromarray(images[class_id]).resize((_SIDE, _SIDE))
            picture.paste(tile.convert("LA"), (x, y))
    return picture


def nearest_pairs(
    features: NDArray[np.float32], characters: Sequence[str], n_pairs: int
) -> NDArray[np.int64]:
    """Return the pairs of classes with the largest cosines, no character twice, `pairs x 2`."""
    first, second = np.triu_indices(len(features), 1)
    pairs: list[tuple[int, int]] = []
    used: set[str] = set()
    for i in np.argsort(-(features @ features.T)[first, second], kind="stable"):
        pair = first[i], second[i]
        both = {characters[j] for j in pair}
        if len(both) == 2 and not both & used:
            pairs.append(pair)
            used |= both
        if len(pairs) == n_pairs:
            break
    return np.array(pairs)


def main() -> None:
    """Draw both pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a finished run of turned-glyphs")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with np.load(arguments.run / "portrait.npz") as portrait:
        images = portrait["images"][:, 0, :, :, 0]
        characters = [name.partition("/")[0] for name in portrait["class_names"]]
    uniform = build_sampler("uniform", n_classes=len(images), n_way=N_WAY, seed=0)
    draw(images, uniform.sample(N_ROWS).numpy(), N_WAY).save(arguments.folder / "uniform.png")
    saved = torch.load(arguments.run / "last.pt", map_location="cpu")
    features = saved["state"]["trainer"]["sampler"]["class_features"].numpy()
    pairs = nearest_pairs(features, characters, N_ROWS * PAIRS_PER_ROW)
    draw(images, pairs.reshape(N_ROWS, -1), 2).save(arguments.folder / "pairs.png")


if __name__ == "__main__":
    main()
