"""How much MetaOptNet-SVM's logits change if the identity is added to the Gram matrix.

The published code adds it for its solver. Run: python benchmarks/svm_identity.py   (CPU, minutes)

40 tasks of 5 ways and 75 queries, C = 0.1. `|x|^2` is the mean squared length of the support
features, `logits` the change relative to their norm, `scaled` the same after the best common
factor, `class` the share of queries that get another class. The number in the name of a row is the
squared length that its features are scaled to. torch 2.13, one seed:

    features                                shots  |x|^2  logits  scaled  class
    normal, no classes, 640                     1    643   0.16%   0.02%   0.0%
    normal, no classes, 640                     5    640   0.17%   0.03%   0.0%
    normal, no classes, 6.4                     1   6.43   1.23%   1.22%   0.6%
    normal, no classes, 6.4                     5    6.4   3.06%   3.01%   1.6%
    normal, no classes, 0.64                    1  0.643   4.51%   4.51%   1.9%
    normal, no classes, 0.64                    5   0.64  10.65%  10.60%   5.9%
    classes                                     1    805   0.13%   0.01%   0.0%
    classes                                     5    801   0.07%   0.01%   0.0%
    classes, 6.4                                1   6.43   1.14%   1.13%   0.0%
    classes, 6.4                                5    6.4   8.37%   1.02%   0.0%
    classes, 0.64                               1  0.643   4.36%   4.33%   0.0%
    classes, 0.64                               5   0.64   4.50%   4.13%   0.0%
    ReLU                                        1    402   0.38%   0.06%   0.0%
    ReLU                                        5    399   0.24%   0.04%   0.0%
    ReLU, 6.4                                   1   6.44   2.53%   2.53%   0.2%
    ReLU, 6.4                                   5   6.39   5.43%   4.43%   0.0%
    ReLU, 0.64                                  1  0.644  14.09%  13.98%   2.0%
    ReLU, 0.64                                  5  0.639   6.43%   6.07%   0.0%
    unit length                                 1      1   3.58%   3.56%   0.0%
    unit length                                 5      1   3.57%   3.28%   0.0%
    ReLU, unit length                           1      1   8.62%   8.61%   0.6%
    ReLU, unit length                           5      1   4.70%   4.41%   0.0%
    offset 5                                    1    640   3.21%   0.28%   0.0%
    offset 5                                    5    640   1.90%   0.24%   0.0%
    offset 50                                   1    640   4.46%   4.44%   0.0%
    offset 50                                   5    640   5.21%   4.78%   0.0%
    8 features                                  1   10.2   8.42%   7.35%   4.2%
    8 features                                  5   9.78   9.29%   8.34%   5.6%
    Conv-4 of metaoptnet-svm, 200 steps         1    237   6.51%   3.96%   1.1%
    Conv-4 of metaoptnet-svm, 200 steps         5    235   8.42%   5.66%   1.5%
    Conv-4 of protonet, 200 steps               1     78   8.99%   7.01%   2.9%
    Conv-4 of protonet, 200 steps               5   77.4   7.96%   5.13%   0.8%
    with --steps 3:
    Conv-4 of metaoptnet-svm, 3 steps           1   1.67  84.89%  45.27%  28.4%
    Conv-4 of metaoptnet-svm, 3 steps           5   1.64  75.61%  39.54%  21.1%
    Conv-4 of protonet, 3 steps                 1  0.713 122.27%  70.94%  46.2%
    Conv-4 of protonet, 3 steps                 5  0.712  94.49%  46.37%  24.7%
    of a run of full_length.py (row 2, seed 1, 16,000 steps; `compare` on 2,000 validation tasks):
    ResNet-12 of metaoptnet-svm                 1    118   2.87%   1.14%   0.4%
    ResNet-12 of metaoptnet-svm                 5    118   2.94%   1.45%   0.6%
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from adaptask.backbones import build_backbone
from adaptask.data import open_episodes
from adaptask.learners import EmbeddingLearner, MetaOptNetSVM, build_learner
from adaptask.samplers import build_sampler
from adaptask.training import Display, Trainer

N_TASKS, N_WAY, N_QUERY, N_FEATURES = 40, 5, 15, 640


def synthetic(
    n_shot: int, *, spread: float = 0.5, offset: float = 0.0, n_features: int = N_FEATURES
) -> Tensor:
    """Return normal features around a center per class, `tasks x way x images x features`.

    Args:
        n_shot: Support images per class.
        spread: Standard deviation of the centers, if that within a class is 1.
        offset: Added to every feature.
        n_features: Number of features.
    """
    random = torch.Generator().manual_seed(n_shot)
    centers = torch.randn(N_TASKS, N_WAY, 1, n_features, generator=random)
    noise = torch.randn(N_TASKS, N_WAY, n_shot + N_QUERY, n_features, generator=random)
    return spread * centers + noise + offset


@torch.no_grad()
def of_glyphs(n_shot: int, backbone: nn.Module) -> Tensor:
    """Return the features of glyphs of the test classes, `tasks x way x images x features`."""
    source = open_episodes("glyphs", "test", seed=1)
    sampler = build_sampler("uniform", n_classes=source.n_classes, n_way=N_WAY, seed=1)
    episodes = source.draw(sampler.sample(N_TASKS), n_shot=n_shot, n_query=N_QUERY)
    parts = []
    for images in (episodes.support_images, episodes.query_images):
        features: Tensor = backbone(images)
        parts.append(features.view(N_TASKS, N_WAY, -1, features.shape[-1]))
    return torch.cat(parts, dim=2)


def trained(learner_name: str, n_steps: int) -> nn.Module:
    """Return a Conv-4 after training with 5 shots on glyphs, in evaluation mode."""
    torch.manual_seed(0)
    source = open_episodes("glyphs", "train", seed=0)
    sampler = build_sampler("uniform", n_classes=source.n_classes, n_way=N_WAY, seed=0)
    backbone = build_backbone("conv4", image_shape=source.image_set.image_shape)
    learner = build_learner(learner_name, backbone=backbone)
    assert isinstance(learner, EmbeddingLearner)
    trainer = Trainer(learner, sampler, source, n_shot=5, n_query=6, n_tasks=4, display=Display())
    trainer.fit(n_steps)
    return learner.backbone.eval()


def with_length(features: Tensor, squared: float) -> Tensor:
    """Return features scaled to this mean squared length."""
    return features * (squared / features.square().sum(-1).mean()).sqrt()


def unit_length(features: Tensor) -> Tensor:
    """Return features normalized to length 1 each."""
    return normalize(features, dim=-1)


def compare(features: Tensor, n_shot: int) -> tuple[float, float, float, float]:
    """Return the mean squared length, and three effects of adding the identity.

    These are the relative change of the logits, the same after the best common factor, which the
    learned scale can supply, and the share of queries that get another class.
    """
    support, query = features[:, :, :n_shot].double(), features[:, :, n_shot:].flatten(1, 2)
    plain, added = (
        MetaOptNetSVM(backbone=nn.Identity(), regularization=r)  # type: ignore[arg-type]
        .double()
        .classify(support, query.double())
        .detach()
        for r in (0.0, 1.0)
    )
    factor = (plain * added).sum() / added.square().sum()
    size = plain.norm()
    other = (plain.argmax(-1) != added.argmax(-1)).double().mean()
    return (
        float(support.square().sum(-1).mean()),
        float((added - plain).norm() / size),
        float((factor * added - plain).norm() / size),
        float(other),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    n_steps = parser.parse_args().steps
    torch.set_num_threads(1)
    kinds: dict[str, Callable[[int], Tensor]] = {
        "normal, no classes, 640": lambda n: synthetic(n, spread=0.0),
        "normal, no classes, 6.4": lambda n: with_length(synthetic(n, spread=0.0), 6.4),
        "normal, no classes, 0.64": lambda n: with_length(synthetic(n, spread=0.0), 0.64),
        "classes": synthetic,
        "classes, 6.4": lambda n: with_length(synthetic(n), 6.4),
        "classes, 0.64": lambda n: with_length(synthetic(n), 0.64),
        "ReLU": lambda n: synthetic(n).relu(),
        "ReLU, 6.4": lambda n: with_length(synthetic(n).relu(), 6.4),
        "ReLU, 0.64": lambda n: with_length(synthetic(n).relu(), 0.64),
        "unit length": lambda n: unit_length(synthetic(n)),
        "ReLU, unit length": lambda n: unit_length(synthetic(n).relu()),
        "offset 5": lambda n: with_length(synthetic(n, offset=5.0), 640),
        "offset 50": lambda n: with_length(synthetic(n, offset=50.0), 640),
        "8 features": lambda n: synthetic(n, n_features=8),
    }
    for learner in ("metaoptnet-svm", "protonet"):
        backbone = trained(learner, n_steps)
        kinds[f"Conv-4 of {learner}, {n_steps} steps"] = partial(of_glyphs, backbone=backbone)
    print(f"    {'features':40}shots  |x|^2  logits  scaled  class")
    for name, make in kinds.items():
        for n_shot in (1, 5):
            length, change, scaled, other = compare(make(n_shot), n_shot)
            row = f"{length:7.3g}{change:8.2%}{scaled:8.2%}{other:7.1%}"
            print(f"    {name:40}{n_shot:5}{row}", flush=True)


if __name__ == "__main__":
    main()
