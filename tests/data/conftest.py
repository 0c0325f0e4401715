import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def cache_home(tmp_path, monkeypatch):
    """Caches go into a folder of the test's own."""
    home = tmp_path / "cache"
    monkeypatch.setenv("ADAPTASK_CACHE", str(home))
    return home


class RealData:
    """The real benchmarks, packed as one lossless sheet a class or alphabet."""

    def __init__(self, folder):
        self.folder = folder

    def cifar_class(self, split, name):
        """Return the images of a class of CIFAR-FS, `600 x 32 x 32 x 3`."""
        pixels = np.asarray(Image.open(self._sheet(split, name)).convert("RGB"))
        return pixels.reshape(25, 32, 24, 32, 3).swapaxes(1, 2).reshape(600, 32, 32, 3)

    def _sheet(self, split, name):
        return self.folder / "cifar_fs" / split / f"{name}.webp"

    def omniglot_alphabet(self, part, alphabet):
        """Return the drawings of an alphabet, `characters x 20 x 105 x 105`, True on paper."""
        pixels = np.asarray(Image.open(self.folder / "omniglot" / part / f"{alphabet}.png"))
        return pixels.reshape(-1, 105, 20, 105).swapaxes(1, 2).astype(bool)


@pytest.fixture(scope="session")
def real_data():
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("ADAPTASK_REAL_DATA", beside))
    if not (folder / "cifar_fs").is_dir():
        pytest.skip(f"no real data at {folder}; ADAPTASK_REAL_DATA can say where it is")
    return RealData(folder)
