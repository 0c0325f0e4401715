"""Train on features that another network has computed, and test on new classes.

Run: python examples/frozen_features.py --features features.npy --labels labels.npy
Without files it makes features of its own: some tell classes apart, most are noise.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from adaptask import (
    EpisodeSource,
    Evaluator,
    GCPSampler,
    IdentityBackbone,
    LinearBackbone,
    ProtoNet,
    Trainer,
)


def make_features(n_classes: int = 80, n_images: int = 25) -> tuple[np.ndarray, np.ndarray]:
    """Return what a network might: vectors of 48 around the mean of their class, and labels."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(n_classes), n_images)
    useful = random.standard_normal((n_classes, 8))[labels]
    useful += 0.6 * random.standard_normal(useful.shape)
    noise = random.standard_normal((len(labels), 40))
    return np.concatenate((useful, noise), axis=1).astype(np.float16), labels


def train_and_test(features: np.ndarray, labels: np.ndarray, steps: int) -> None:
    """Print the accuracy on new classes of the features as they are, and after training."""
    sources = EpisodeSource.from_features(
        features, labels, class_splits=(0.7, 0.0, 0.3), augmentation="noise", seed=0
    )
    train, shape = sources["train"], sources["train"].image_set.image_shape
    evaluate = Evaluator(sources["test"], n_way=5, n_shot=1, n_query=10, n_episodes=300)
    frozen = ProtoNet(backbone=IdentityBackbone(image_shape=shape))
    print(f"the features as they are: {evaluate(frozen)}, chance 20 %")

    torch.manual_seed(0)
    learner = ProtoNet(backbone=LinearBackbone(image_shape=shape))
    sampler = GCPSampler(n_classes=train.n_classes, n_way=5, seed=0)
    Trainer(learner, sampler, train, n_query=10, n_tasks=4).fit(steps)
    print(f"after {steps} steps: {evaluate(learner)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path, help="vectors x size, float16 or float32, .npy")
    parser.add_argument("--labels", type=Path, help="one integer or name per vector, .npy")
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    if arguments.features is None:
        train_and_test(*make_features(), arguments.steps)
    else:
        found = (np.load(path) for path in (arguments.features, arguments.labels))
        train_and_test(*found, arguments.steps)
