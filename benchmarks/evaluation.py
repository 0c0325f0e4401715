"""Evaluation: every image embedded once, against every episode embedding its own.

Run: python benchmarks/evaluation.py             (four minutes on two cores)

Random images of 32 x 32 x 3 in 16 classes of 600, as the validation classes of CIFAR-FS. Both ways
take turns on the same episodes; the median of the rounds counts. ProtoNet on two cores (AMD EPYC),
torch 2.13, 200 episodes; with more episodes the factor is larger, since there are no more images:

    conv4     200 episodes,  5-way 1-shot  once 3.746 s  every episode its own  7.919 s  2.1x
    conv4     200 episodes,  5-way 5-shot  once 4.099 s  every episode its own  9.741 s  2.4x
    conv4     200 episodes, 16-way 1-shot  once 5.608 s  every episode its own 31.794 s  5.7x

On one H200, torch 2.11, with which 2,000 episodes are the default:

    conv4    2000 episodes,  5-way 1-shot  once 0.051 s  every episode its own  0.202 s  3.9x
    conv4    2000 episodes,  5-way 5-shot  once 0.060 s  every episode its own  0.250 s  4.1x
    conv4    2000 episodes, 16-way 1-shot  once 0.134 s  every episode its own  0.627 s  4.7x
    resnet12 2000 episodes,  5-way 1-shot  once 0.090 s  every episode its own  0.823 s  9.1x
    resnet12 2000 episodes,  5-way 5-shot  once 0.089 s  every episode its own  1.019 s 11.5x
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from adaptask.backbones import build_backbone
from adaptask.data.episodes import EpisodeSource
from adaptask.data.images import ImageSet
from adaptask.learners import build_learner
from adaptask.training import evaluation
from adaptask.training.evaluation import Evaluator

N_CLASSES, N_IMAGES = 16, 600


def image_set() -> ImageSet:
    """Return random images."""
    generator = torch.Generator().manual_seed(0)
    shape = (N_CLASSES * N_IMAGES, 3, 32, 32)
    return ImageSet(
        dataset="random",
        split="val",
        images=torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator),
        class_names=tuple(map(str, range(N_CLASSES))),
        class_starts=torch.arange(N_CLASSES + 1) * N_IMAGES,
    )


@contextmanager
def every_episode_embeds_its_own() -> Iterator[None]:
    """Leave no room for features."""
    room, evaluation._MOST_FEATURE_BYTES = evaluation._MOST_FEATURE_BYTES, 0
    try:
        yield
    finally:
        evaluation._MOST_FEATURE_BYTES = room


def seconds(evaluate: Evaluator, learner: torch.nn.Module) -> float:
    """Return how long an evaluation takes."""
    start = time.perf_counter()
    evaluate(learner)
    return time.perf_counter() - start


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    source = EpisodeSource(image_set(), device="cuda" if on_gpu else "cpu")
    torch.backends.cudnn.benchmark = True  # as a run has it
    settings = [("conv4", 5, 1), ("conv4", 5, 5), ("conv4", 16, 1)]
    if on_gpu:
        settings += [("resnet12", 5, 1), ("resnet12", 5, 5)]
    for backbone, n_way, n_shot in settings:
        learner = build_learner(
            "protonet", backbone=build_backbone(backbone, image_shape=(3, 32, 32))
        ).to(source.device)
        evaluate = Evaluator(
            source,
            n_way=n_way,
            n_shot=n_shot,
            n_episodes=2000 if on_gpu else 200,
            precision="bfloat16" if on_gpu else "float32",
        )
        once, each = [], []
        for _ in range(arguments.rounds + 1):  # the first one warms up
            once.append(seconds(evaluate, learner))
            with every_episode_embeds_its_own():
                each.append(seconds(evaluate, learner))
        ours, theirs = statistics.median(once[1:]), statistics.median(each[1:])
        print(
            f"{backbone:8} {len(evaluate.plan):5} episodes, {n_way:2}-way {n_shot}-shot  "
            f"once {ours:7.3f} s   every episode its own {theirs:7.3f} s   {theirs / ours:5.1f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()
