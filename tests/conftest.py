import pytest
import torch

from adaptask.data.cache import write_cache
from adaptask.data.glyphs import generate
from adaptask.data.images import ImageSet
from adaptask.data.registry import GLYPHS

torch.set_num_threads(1)

TINY_RUN = (
    "--dataset tiny --data.augmentation none --conv4.filters 4 --n-way 3 --n-query 4 --steps 12 "
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


@pytest.fixture
def tiny_run(tiny):
    """The arguments of a run that takes a second."""
    return ["train", *TINY_RUN.split()]


@pytest.fixture
def tiny_config(tiny):
    """The configuration of that run."""
    import tyro

    from adaptask.experiments.config import RunConfig

    return tyro.cli(RunConfig, args=TINY_RUN.split())


@pytest.fixture
def tiny_comparison(tiny):
    """The arguments of a comparison of such runs, in this process."""
    return ["compare", *TINY_RUN.split(), "--seeds", "2", "--workers", "1"]


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
