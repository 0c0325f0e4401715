import tracemalloc
from collections import Counter

import pytest
import torch

from adaptask.data.cache import check_cache, write_cache
from adaptask.data.images import ImageSet
from adaptask.errors import DataError


@pytest.fixture
def splits():
    generator = torch.Generator().manual_seed(0)
    starts = torch.tensor([0, 3, 6])
    return {
        split: ImageSet(
            "toy",
            split,
            torch.randint(256, (6, 1, 4, 4), generator=generator, dtype=torch.uint8),
            (f"{split}-a", f"{split}-b"),
            starts,
        )
        for split in ("train", "val", "test")
    }


def test_a_whole_cache_without_duplicates_is_said_to_be_so(tmp_path, splits):
    write_cache(tmp_path / "toy", splits, source="")
    report = check_cache(tmp_path / "toy")
    assert (report.n_images, report.duplicates) == (18, {})


def test_equal_images_are_reported_across_splits_only(tmp_path, splits):
    splits["test"].images[4] = splits["train"].images[2]
    splits["val"].images[0] = splits["val"].images[1]
    write_cache(tmp_path / "toy", splits, source="")
    report = check_cache(tmp_path / "toy")
    assert report.duplicates == {(("train", "train-a"), ("test", "test-b")): 1}


def test_an_image_in_all_three_splits_makes_three_pairs(tmp_path, splits):
    for split in splits.values():
        split.images[0] = 0
    write_cache(tmp_path / "toy", splits, source="")
    pairs = Counter((a[0], b[0]) for a, b in check_cache(tmp_path / "toy").duplicates.elements())
    assert pairs == {("train", "val"): 1, ("train", "test"): 1, ("val", "test"): 1}


def test_many_equal_images_are_counted_without_listing_every_pair(tmp_path):
    n_images = 3000
    blank = torch.zeros(n_images, 1, 2, 2, dtype=torch.uint8)
    starts = torch.tensor([0, 1000, n_images])
    splits = {s: ImageSet("toy", s, blank, (f"{s}-a", f"{s}-b"), starts) for s in ("train", "val")}
    write_cache(tmp_path / "toy", splits, source="")
    tracemalloc.start()
    report = check_cache(tmp_path / "toy")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10e6
    assert report.duplicates.total() == n_images**2
    assert report.duplicates[("train", "train-a"), ("val", "val-b")] == 1000 * 2000


def test_one_changed_byte_is_found(tmp_path, splits):
    write_cache(tmp_path / "toy", splits, source="")
    path = tmp_path / "toy" / "val.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"val\.npy does not match its checksum"):
        check_cache(tmp_path / "toy")


def test_a_file_that_is_gone_is_named(tmp_path, splits):
    write_cache(tmp_path / "toy", splits, source="")
    (tmp_path / "toy" / "test.npy").unlink()
    with pytest.raises(DataError, match=r"test\.npy cannot be read"):
        check_cache(tmp_path / "toy")
