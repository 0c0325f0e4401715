"""Your own learner: any module that maps episodes to logits.

Run: python examples/own_learner.py
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from adaptask import Evaluator, GCPSampler, Trainer, open_episodes
from adaptask.conformance import check_learner
from adaptask.interfaces import Episodes


class CosineClassifier(nn.Module):
    """Classify queries by their cosine similarity to the mean of each class."""

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels = image_shape[0]
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
        )
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, episodes: Episodes) -> Tensor:
        """Return the query logits, `tasks x queries x way`."""
        n_way = episodes.class_ids.shape[1]
        support, query = (self._embed(episodes.support_images), self._embed(episodes.query_images))
        # Support images are sorted by class, so labels are not needed.
        prototypes = torch.unflatten(support, 1, (n_way, -1)).mean(2)
        cosines = normalize(query, dim=-1) @ normalize(prototypes, dim=-1).transpose(1, 2)
        return self.log_scale.exp() * cosines

    def _embed(self, images: Tensor) -> Tensor:
        return torch.unflatten(self.features(images.flatten(0, 1)), 0, images.shape[:2])


def main() -> None:
    """Check the learner, train it with gcp, and print its accuracy on new classes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="glyphs", help="a dataset of `adaptask data list`")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    check_learner(lambda seed: CosineClassifier((1, 16, 16)))
    print("the learner passes the checks")

    train, test = (open_episodes(arguments.dataset, split) for split in ("train", "test"))
    learner = CosineClassifier(train.image_set.image_shape)
    sampler = GCPSampler(n_classes=train.n_classes, n_way=5, seed=0)
    Trainer(learner, sampler, train, n_query=5).fit(arguments.steps)
    result = Evaluator(test, n_way=5, n_shot=1, n_query=5, n_episodes=100)(learner)
    print(f"accuracy on new classes: {result}, chance 20 %")


if __name__ == "__main__":
    main()
