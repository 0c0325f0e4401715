"""Episodes from one tensor, beside a `DataLoader` that decodes the same images from PNG files.

    python benchmarks/episodes.py

Both give the same thing: 8 tasks of 5-way 1-shot with 15 queries (640 images of 32x32, normalized
float32). The tensor is what `EpisodeSource` holds; the files are written by the benchmark to a
temporary folder and read by `torch.utils.data.DataLoader` with two workers kept alive, a batch
sampler that draws the tasks, and Pillow. The two take turns, round by round, in one run, so that
whatever else the machine does falls on both. The loader hands batches out in bursts, so its mean
is the figure to look at.

Measured on two cores of an AMD EPYC with little else to do (torch 2.13, CPU build; 2,569 bytes per
PNG), milliseconds per draw:

                                                mean    median      10 %      90 %
    EpisodeSource                               1.95      1.54      1.25      2.04
    EpisodeSource, crop-flip                    9.86      9.47      8.68     10.56
    EpisodeSource, resized-crop-jitter-flip    27.50     26.98     22.29     31.59
    DataLoader, 2 workers, PNG                 94.28    103.49      5.83    185.84

The loader does not augment.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from adaptask.data.episodes import EpisodeSource
from adaptask.data.images import ImageSet

N_CLASSES, N_IMAGES, SIZE = 64, 600, 32
N_TASKS, N_WAY, N_SHOT, N_QUERY = 8, 5, 1, 15
MEAN, DEVIATION = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)


class PngFiles(Dataset[Tensor]):
    """Images by number, decoded and normalized as they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mean = torch.tensor(MEAN)[:, None, None]
        self.deviation = torch.tensor(DEVIATION)[:, None, None]

    def __getitem__(self, number: int) -> Tensor:
        """Return one image, `3 x 32 x 32` float."""
        with Image.open(self.folder / f"{number}.png") as picture:
            pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
        return (pixels.float() / 255 - self.mean) / self.deviation


class EpisodeNumbers(Sampler[list[int]]):
    """Draws the image numbers of a batch of tasks, again and again."""

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the numbers of the images of each batch of tasks."""
        generator = torch.Generator().manual_seed(0)
        while True:
            numbers: list[int] = []
            for _ in range(N_TASKS):
                for label in torch.randperm(N_CLASSES, generator=generator)[:N_WAY].tolist():
                    chosen = torch.randperm(N_IMAGES, generator=generator)[: N_SHOT + N_QUERY]
                    numbers += (label * N_IMAGES + chosen).tolist()
            yield numbers


def synthetic_split() -> ImageSet:
    """Make smooth random images, which compress about as well as photographs of this size."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(N_CLASSES * N_IMAGES, 3, 8, 8, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=SIZE, mode="bicubic")
    noisy = smooth + 0.03 * torch.randn(smooth.shape, generator=generator)
    images = (noisy.clamp(0, 1) * 255).to(torch.uint8)
    names = tuple(str(label) for label in range(N_CLASSES))
    return ImageSet("synthetic", "train", images, names, torch.arange(N_CLASSES + 1) * N_IMAGES)


def milliseconds(draw: Callable[[], object], n_draws: int) -> list[float]:
    """Time single draws."""
    times = []
    for _ in range(n_draws):
        start = time.perf_counter()
        draw()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def measure(image_set: ImageSet, folder: Path, n_rounds: int) -> dict[str, list[float]]:
    """Time all contestants in alternation; return the milliseconds of their draws."""
    generator = torch.Generator().manual_seed(0)

    def class_ids() -> Tensor:
        keys = torch.rand(N_TASKS, N_CLASSES, generator=generator)
        return keys.topk(N_WAY, dim=1).indices

    def source(augmentation: str) -> Callable[[], object]:
        episodes = EpisodeSource(
            image_set, normalization=(MEAN, DEVIATION), augmentation=augmentation
        )
        return lambda: episodes.draw(class_ids(), n_shot=N_SHOT, n_query=N_QUERY)

    loader = DataLoader(
        PngFiles(folder), batch_sampler=EpisodeNumbers(), num_workers=2, persistent_workers=True
    )
    batches = iter(loader)
    contestants: dict[str, Callable[[], object]] = {
        "EpisodeSource": source("none"),
        "EpisodeSource, crop-flip": source("crop-flip"),
        "EpisodeSource, resized-crop-jitter-flip": source("resized-crop-jitter-flip"),
        "DataLoader, 2 workers, PNG": lambda: next(batches),
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for round_number in range(n_rounds + 1):
        for name, draw in contestants.items():
            # The first draws of a turn are not counted: for the loader they use up the batches
            # that its workers made ahead of time.
            new = milliseconds(draw, 25)[5:]
            if round_number > 0:  # the first round warms up
                times[name] += new
        time.sleep(2)  # the workers fill their queues; they must not do so in another's turn
    return times


def main() -> None:
    """Write the files, measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    n_rounds = parser.parse_args().rounds
    image_set = synthetic_split()
    with tempfile.TemporaryDirectory() as folder:
        for number, pixels in enumerate(image_set.images.permute(0, 2, 3, 1).numpy()):
            Image.fromarray(pixels).save(Path(folder) / f"{number}.png")
        n_bytes = sum(file.stat().st_size for file in islice(Path(folder).iterdir(), 1000)) / 1000
        times = measure(image_set, Path(folder), n_rounds)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {n_bytes:.0f} bytes per PNG"
    )
    print(f"{'milliseconds per draw':42}{'mean':>10}{'median':>10}{'10 %':>10}{'90 %':>10}")
    for name, values in times.items():
        tenths = statistics.quantiles(values, n=10)
        columns = (statistics.mean(values), statistics.median(values), tenths[0], tenths[-1])
        print(f"{name:42}" + "".join(f"{value:10.2f}" for value in columns))


if __name__ == "__main__":
    main()
