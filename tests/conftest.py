import contextlib
import importlib
import os
import runpy
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from adaptask.data.cache import write_cache
from adaptask.data.datasets import GLYPHS
from adaptask.data.glyphs import generate
from adaptask.data.images import ImageSet

torch.set_num_threads(1)

# A shell starts a background job with Ctrl-C ignored, which every program here would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Kills, several processes, clusters, thousands of damaged files: `make test-slow` runs these.
SLOW = (
    "faults",
    "experiments/backends",
    "experiments/cluster",
    "experiments/test_distributed_runs.py",
    "training/test_compiling.py",
    "training/test_distributed.py",
    "training/test_learning.py",
    "test_site.py",
)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if any(item.path.is_relative_to(here / slow) for slow in SLOW):
            item.add_marker(pytest.mark.slow)


TINY_RUN = (
    "--dataset tiny --data.augmentation none --backbone.filters 4 --n-way 3 --n-query 4 --steps 12 "
    "--every.log 2 --every.validate 3 --every.checkpoint 4 --every.snapshot 5 "
    "--evaluation.n-episodes 6 --evaluation.n-validation 4 --evaluation.n-query 5 "
    "--machine.threads 1 --device cpu"
)


def noisy_patterns(split, n_classes, *, n_images=16, size=16, channels=1, seed=0):
    """A split whose classes are patterns of 4 x 4 patches under noise: easy to learn."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 256, (n_classes, 1, channels, 4, 4), generator=generator)
    patterns = coarse.repeat_interleave(size // 4, 3).repeat_interleave(size // 4, 4)
    noise = torch.randn(n_classes, n_images, channels, size, size, generator=generator)
    images = (patterns + 60 * noise).clamp(0, 255).to(torch.uint8)
    return ImageSet(
        dataset="tiny",
        split=split,
        images=images.flatten(0, 1),
        class_names=tuple(f"{split}-{i}" for i in range(n_classes)),
        class_starts=torch.arange(n_classes + 1) * n_images,
    )


@pytest.fixture(scope="session")
def tiny_cache(tmp_path_factory):
    """The folder of a cache with the dataset `tiny`: 12, 8 and 8 classes of 16 small images."""
    root = tmp_path_factory.mktemp("tiny-cache")
    splits = {
        split: noisy_patterns(split, n_classes, seed=seed)
        for seed, (split, n_classes) in enumerate({"train": 12, "val": 8, "test": 8}.items())
    }
    write_cache(root / "tiny", splits, source="made for the tests")
    return root


@pytest.fixture
def tiny(tiny_cache, monkeypatch):
    """Makes `tiny` a dataset that can be opened by its name."""
    monkeypatch.setenv("ADAPTASK_CACHE", str(tiny_cache))
    return "tiny"


@pytest.fixture(scope="session")
def tiny_options():
    """The options of a run that takes a second, without a sampler; later ones change earlier."""
    return tuple(TINY_RUN.split())


@pytest.fixture(scope="session")
def tiny_words(tiny_options):
    """The same with `gcp`."""
    return (*tiny_options, "--sampler", "gcp")


@pytest.fixture
def tiny_run(tiny, tiny_words):
    """The arguments of that run."""
    return ["train", *tiny_words]


@pytest.fixture
def tiny_config(tiny):
    """The configuration of that run."""
    import tyro

    from adaptask.experiments.config import RunConfig
    from adaptask.experiments.options import configure

    base = RunConfig(sampler=configure("sampler", "gcp"))
    return tyro.cli(RunConfig, args=TINY_RUN.split(), default=base)


@pytest.fixture
def tiny_comparison(tiny):
    """The arguments of a comparison of such runs, in this process."""
    return [
        "compare",
        *TINY_RUN.split(),
        "--seeds=2",
        "--workers=1",
        "--samplers",
        "uniform",
        "gcp",
    ]


@pytest.fixture(scope="session")
def generated_glyphs():
    """The splits of glyphs; making them takes ten seconds."""
    return generate()


@pytest.fixture(scope="session")
def glyphs_cache(generated_glyphs, tmp_path_factory):
    """The folder of a cache that has glyphs."""
    root = tmp_path_factory.mktemp("glyphs-cache")
    write_cache(root / GLYPHS.name, generated_glyphs, source=GLYPHS.source)
    return root


@pytest.fixture(scope="session")
def torchrun(tiny_cache):
    """Starts several processes that make one run; returns the launcher's process."""

    def start(*words, n_processes=2, options=()):
        launcher = [sys.executable, "-m", "torch.distributed.run"]
        return subprocess.Popen(
            [*launcher, "--nproc-per-node", str(n_processes), *options, *map(str, words)],
            env=os.environ | {"ADAPTASK_CACHE": str(tiny_cache), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture(scope="session")
def crowded_sampler():
    """The class of a small sampler that learns from class features."""
    return runpy.run_path(str(Path(__file__).with_name("feature_sampler.py")))["CrowdedSampler"]


def are_same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(are_same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(are_same, left, right))
    return left == right


@pytest.fixture(scope="session")
def same():
    """Compares two states to the last bit."""
    return are_same


@pytest.fixture(scope="session")
def write_noise():
    """Writes a cache in which a generated dataset is noise: of its shape, made in no time."""

    def write(root, entry, *, n_classes, n_images):
        splits = {
            split: ImageSet(
                dataset=entry.name,
                split=split,
                images=torch.randint(256, (n_classes * n_images, 1, 28, 28), dtype=torch.uint8),
                class_names=tuple(f"{split}-{i}" for i in range(n_classes)),
                class_starts=torch.arange(n_classes + 1) * n_images,
            )
            for split in ("train", "val", "test")
        }
        write_cache(root / entry.name, splits, source=entry.source)

    return write


@pytest.fixture(scope="session")
def noise_cache(tmp_path_factory, write_noise):
    """The folder of a cache in which `glyphs` is noise."""
    root = tmp_path_factory.mktemp("noise-cache")
    write_noise(root, GLYPHS, n_classes=40, n_images=40)
    return root


@pytest.fixture
def glyphs_of_noise(noise_cache, monkeypatch):
    """Makes `glyphs` a dataset of noise, and the only one that there is."""
    monkeypatch.setenv("ADAPTASK_CACHE", str(noise_cache))
    return GLYPHS.name


@contextlib.contextmanager
def synchronization_forbidden():
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it calls itself a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(scope="session")
def no_synchronization():
    """Within it, what waits for the GPU raises."""
    return synchronization_forbidden


@pytest.fixture(scope="session")
def write_images():
    """Writes random images of some classes below a folder."""

    def write(folder, *, n_classes, n_images):
        random = np.random.default_rng(0)
        for i in range(n_classes):
            (folder / f"class-{i}").mkdir(parents=True)
            images = random.integers(256, size=(n_images, 8, 8, 3), dtype=np.uint8)
            for j, image in enumerate(images):
                Image.fromarray(image).save(folder / f"class-{i}" / f"{j:02d}.png")
        return folder

    return write


@pytest.fixture(scope="session")
def benchmark_script():
    """Imports a script of benchmarks/ by its name; it finds what scripts share beside it."""
    folder = Path(__file__).parents[1] / "benchmarks"

    def load(name):
        if name not in sys.modules:
            sys.path.insert(0, str(folder))
            try:
                importlib.import_module(name)
            finally:
                sys.path.remove(str(folder))
        return sys.modules[name]

    return load


@pytest.fixture
def as_on_a_device(monkeypatch):
    """Make CPU samplers compute with torch and count what they refuse, as on a device."""
    for module in ("feedback", "gcp", "c", "neighbor"):
        for name, stand_in in (("namespace", lambda _: torch), ("view", lambda tensor: tensor)):
            monkeypatch.setattr(f"adaptask.samplers.{module}.{name}", stand_in)
