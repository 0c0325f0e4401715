"""Every Python block of README and docs runs, and every link inside the project leads somewhere."""

import re
from pathlib import Path

import pytest
import torch

from adaptask.data.cache import write_cache
from adaptask.data.images import ImageSet
from adaptask.samplers import SAMPLERS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def python_blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.M | re.S)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if python_blocks(p)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch, prepared_cifar_fs):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADAPTASK_CACHE", str(prepared_cifar_fs))
    namespace = {"__name__": "documentation"}
    for block in python_blocks(page):
        exec(compile(block, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_sampler_has_a_page():
    pages = {path.stem for path in (ROOT / "docs" / "samplers").glob("*.md")}
    assert pages == set(SAMPLERS)


def test_the_pages_speak_of_the_project_alone():
    home = str(ROOT)
    for page in PAGES:
        assert home not in page.read_text()


@pytest.fixture(scope="module")
def prepared_cifar_fs(tmp_path_factory):
    """A cache in which `cifar-fs` is a few black images, so that the examples load something."""
    root = tmp_path_factory.mktemp("cache")
    names = tuple(f"class-{i}" for i in range(64))
    splits = {
        split: ImageSet(
            dataset="cifar-fs",
            split=split,
            images=torch.zeros(64 * 20, 3, 32, 32, dtype=torch.uint8),
            class_names=names,
            class_starts=torch.arange(65) * 20,
        )
        for split in ("train", "val", "test")
    }
    write_cache(root / "cifar-fs", splits, source="made for the examples")
    return root
