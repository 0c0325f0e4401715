"""A map of the classes on which like prototypes lie together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MIN_CLASSES = 5
"""Of fewer there is nothing to map."""


def perplexity(n_classes: int) -> float:
    """Return how many neighbours a class is to have: the root of their number, 2 to 30.

    The usual 30 is meant for thousands of points; of 64 classes it would make all neighbours.
    """
    return float(np.clip(np.sqrt(n_classes), 2, 30))


def class_map(similarity: NDArray[np.floating], *, seed: int = 0) -> NDArray[np.float64] | None:
    """Return places of the classes by t-SNE, `classes x 2`, each axis from 0 to 1.

    Args:
        similarity: Cosines between the prototypes, `classes x classes`; the distance of two
            classes is 1 less their cosine.
        seed: Decides the map.

    Returns:
        None where there are too few classes, or some cosines are no numbers.
    """
    n_classes = len(similarity)
    if n_classes < MIN_CLASSES or not np.isfinite(similarity).all():
        return None
    from sklearn.manifold import TSNE

    distances = np.clip(1.0 - (similarity + similarity.T) / 2, 0.0, None).astype(np.float64)
    np.fill_diagonal(distances, 0.0)
    model = TSNE(
        metric="precomputed",
        init="random",
        perplexity=perplexity(n_classes),
        random_state=seed,
        n_jobs=1,
    )
    places = np.asarray(model.fit_transform(distances), dtype=np.float64)
    low, high = places.min(axis=0), places.max(axis=0)
    return np.asarray((places - low) / np.where(high > low, high - low, 1.0))
