"""What gcp costs in a DataLoader, against a plain uniform batch sampler in the same DataLoader.

Run: python benchmarks/dataloader.py --seconds 20

Both loaders serve the same dataset of 64 classes with 100 images each: one with
`EpisodeBatchSampler` and gcp, whose loop gives feedback on every batch, the other with the uniform
batch sampler that people write in NumPy, whose batches are images and labels as they come. They
take turns, fifty batches each (eight of files), so that both meet the same disturbances;
`gcp / uniform` is the median over turns of the ratio of their times: processor time without
workers, time on the clock with them. Nothing is trained: a training step would only make the
difference smaller. `tensor` items are 3 x 32 x 32 tensors in memory, which cost next to nothing to
load, so that everything else shows; `png` items are files of 84 x 84 pixels that are decoded. All
tasks have 1 shot and 15 queries; one task per batch, one torch thread.

On two cores of a server CPU with nothing else to do, torch 2.13, --seconds 7, one run:

    choosing alone     gcp us   uniform us
         5-way             481          105
        20-way             580          269
    setting                      uniform ms   gcp / uniform   turns
    tensor  5-way 0 workers            0.56           1.999      82
    tensor 20-way 0 workers            1.98           1.394      28
    tensor  5-way 2 workers            2.62           2.193      18
    tensor 20-way 2 workers            4.85           1.398      12
    png     5-way 0 workers           29.68           1.066      14
    png    20-way 0 workers          118.98           1.058       5
    png     5-way 2 workers           19.77           1.162      20
    png    20-way 2 workers           74.79           0.988       5

With two workers on two cores the process of the loop has none for itself. Ratios on few turns
moved by a tenth between runs.

The `us` of choosing are the sampler's draw and update, and images of each class without
replacement; what is left of the difference is likely one more copy of the images, which puts
support images and queries apart.

`--staleness` trains a small prototypical network on glyphs, 600 tasks, five seeds: what a lag does
to what is trained on, and to what is learned about it.

    sampler   lag   loss of the second half   KL from uniform at the end, seed by seed
    uniform     0                     1.456   0.000: 0.000 0.000 0.000 0.000 0.000
    gcp         0                     1.464   0.233: 0.226 0.239 0.237 0.237 0.229
    gcp        16                     1.463   0.233: 0.227 0.239 0.236 0.236 0.229
    gcp        64                     1.464   0.232: 0.230 0.238 0.233 0.233 0.228
"""

from __future__ import annotations

import argparse
import io
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset

from adaptask.data import load
from adaptask.integrations.torch import EpisodeBatchSampler
from adaptask.samplers import build_sampler, kl_from_uniform

N_CLASSES, N_IMAGES, N_SHOT, N_QUERY = 64, 100, 1, 15
TURN = {"tensor": 50, "png": 8}  # batches
NEVER = 1 << 30


class PngDataset(Dataset[tuple[Tensor, int]]):
    """Images that are decoded when they are asked for."""

    def __init__(self, labels: Tensor) -> None:
        generator = np.random.default_rng(0)
        self.labels, self.files = labels.tolist(), []
        for _ in range(N_IMAGES):  # shared by the classes: what is in them does not matter
            coarse = generator.integers(0, 256, (21, 21, 3), dtype=np.uint8)
            file = io.BytesIO()
            Image.fromarray(coarse).resize((84, 84)).save(file, "png")
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.open(io.BytesIO(self.files[index % N_IMAGES]))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels.float().div_(255), self.labels[index]


class UniformBatches:
    """The uniform batch sampler that people write."""

    def __init__(self, labels: Tensor, n_way: int) -> None:
        self.images = [np.flatnonzero(labels.numpy() == c) for c in range(N_CLASSES)]
        self.n_way, self.generator = n_way, np.random.default_rng(0)

    def __iter__(self) -> Iterator[list[int]]:
        choose = self.generator.choice
        while True:
            classes = choose(N_CLASSES, self.n_way, replace=False)
            chosen = [choose(self.images[c], N_SHOT + N_QUERY, replace=False) for c in classes]
            yield np.concatenate(chosen).tolist()


def build_dataset(items: str, labels: Tensor) -> Dataset[Any]:
    """Return a dataset of that kind of items."""
    if items == "png":
        return PngDataset(labels)
    return TensorDataset(torch.rand(len(labels), 3, 32, 32), labels)


def measure(items: str, n_way: int, n_workers: int, seconds: float) -> tuple[float, float, int]:
    """Return milliseconds a uniform batch, the factor of gcp, and the number of turns."""
    turn, clock = TURN[items], time.perf_counter if n_workers else time.process_time
    labels = torch.arange(N_CLASSES).repeat_interleave(N_IMAGES)
    dataset = build_dataset(items, labels)
    sampler = build_sampler("gcp", n_classes=N_CLASSES, n_way=n_way, seed=0)
    episodes = EpisodeBatchSampler(labels, sampler, N_SHOT, N_QUERY, NEVER)
    options: dict[str, Any] = {"num_workers": n_workers}
    adaptive = iter(DataLoader(episodes.wrap(dataset), batch_sampler=episodes, **options))
    batches = UniformBatches(labels, n_way)
    plain = iter(DataLoader(dataset, batch_sampler=batches, **options))
    logits = torch.randn(n_way * N_QUERY, n_way)

    def take_adaptive() -> None:
        for batch in itertools.islice(adaptive, turn):
            episodes.feedback(batch.task_ids, logits)

    def take_plain() -> None:
        for _ in itertools.islice(plain, turn):
            pass

    times: dict[Any, list[float]] = {take_plain: [], take_adaptive: []}
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(times[take_plain]) < 6:
        both = list(times)
        for take in both if len(times[take_plain]) % 2 else both[::-1]:
            start = clock()
            take()
            times[take].append((clock() - start) / turn)
    uniform, gcp = times[take_plain][1:], times[take_adaptive][1:]
    ratios = [a / b for a, b in zip(gcp, uniform, strict=True)]
    return 1e3 * statistics.median(uniform), statistics.median(ratios), len(ratios)


def time_sampler(n_way: int) -> tuple[float, float]:
    """Return microseconds per batch without any loading: gcp with its feedback, and uniform."""
    labels = torch.arange(N_CLASSES).repeat_interleave(N_IMAGES)
    sampler = build_sampler("gcp", n_classes=N_CLASSES, n_way=n_way, seed=0)
    episodes = EpisodeBatchSampler(labels, sampler, N_SHOT, N_QUERY, NEVER)
    adaptive, plain = iter(episodes), iter(UniformBatches(labels, n_way))
    logits = torch.randn(n_way * N_QUERY, n_way)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(2000):
        start = time.perf_counter()
        next(adaptive)
        episodes.feedback(number, logits)
        middle = time.perf_counter()
        next(plain)
        times[0].append(middle - start)
        times[1].append(time.perf_counter() - middle)
    return 1e6 * statistics.median(times[0]), 1e6 * statistics.median(times[1])


def train(name: str, lag: int, seed: int, n_tasks: int = 600) -> tuple[float, float]:
    """Train a small ProtoNet on glyphs; return its late training loss and the sampler's KL."""
    split = load("glyphs", "train")
    labels = torch.arange(split.n_classes).repeat_interleave(split.class_starts.diff())
    dataset = TensorDataset(split.images.float() / 255, labels)
    sampler = build_sampler(name, n_classes=split.n_classes, n_way=5, seed=seed)
    episodes = EpisodeBatchSampler(labels, sampler, 1, 10, n_tasks, lag=lag, seed=seed)
    torch.manual_seed(seed)
    convolution = nn.Conv2d(1, 32, 5, stride=2)
    model = nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for batch in DataLoader(episodes.wrap(dataset), batch_sampler=episodes):
        prototypes = model(batch.support_images[0])
        logits = -torch.cdist(model(batch.query_images[0]), prototypes).square()
        loss = cross_entropy(logits, batch.query_labels[0])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        episodes.feedback(batch.task_ids, logits)
        losses.append(loss.item())
    episodes.flush()
    return statistics.mean(losses[n_tasks // 2 :]), float(kl_from_uniform(sampler).value)


def study_staleness() -> None:
    """Print what a lag does to what is trained on and to what is learned about it."""
    print("sampler   lag   loss of the second half   KL from uniform at the end, seed by seed")
    for name, lag in (("uniform", 0), ("gcp", 0), ("gcp", 16), ("gcp", 64)):
        losses, divergences = zip(*(train(name, lag, seed) for seed in range(5)), strict=True)
        by_seed = " ".join(f"{divergence:.3f}" for divergence in divergences)
        mean = statistics.mean(losses), statistics.mean(divergences)
        print(f"{name:8}{lag:5}{mean[0]:26.3f}   {mean[1]:.3f}: {by_seed}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each setting")
    parser.add_argument("--items", nargs="+", choices=TURN, default=list(TURN))
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--staleness", action="store_true", help="what a lag does to training")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.staleness:
        study_staleness()
        return
    print("choosing alone     gcp us   uniform us")
    for n_way in (5, 20):
        gcp, uniform = time_sampler(n_way)
        print(f"{n_way:6}-way {gcp:15.0f}{uniform:13.0f}", flush=True)
    print("setting                      uniform ms   gcp / uniform   turns")
    for items, n_workers, n_way in itertools.product(arguments.items, arguments.workers, (5, 20)):
        batch, factor, turns = measure(items, n_way, n_workers, arguments.seconds)
        setting = f"{items:6} {n_way:2}-way {n_workers} workers"
        print(f"{setting:26}{batch:13.2f}{factor:16.3f}{turns:8}", flush=True)


if __name__ == "__main__":
    main()
