"""Kills of what writes no checkpoints: preparing a dataset, making a report."""

import random
import shutil
import time

import numpy as np
import pytest
from PIL import Image

from adaptask.data import load
from adaptask.data.cache import check_cache
from adaptask.data.prepare import prepare_folder
from adaptask.errors import AdaptaskError
from adaptask.report.report import make_report

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest.fixture
def photos(tmp_path):
    """A folder with three classes of eight images."""
    rng = np.random.default_rng(0)
    for name in "abc":
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(8):
            pixels = rng.integers(256, size=(12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def prepare(source, size):
    prepare_folder(source, name="mine", image_size=size, workers=1)


@pytest.mark.parametrize("before", ["nothing", "another cache"])
def test_a_killed_preparation_leaves_what_was_there_or_all_that_was_wanted(
    photos, tmp_path, monkeypatch, kills, before
):
    wanted, other = tmp_path / "wanted", tmp_path / "other"
    for root, size in ((wanted, 8), (other, 6)):
        monkeypatch.setenv("ADAPTASK_CACHE", str(root))
        prepare(photos, size)
    cache = tmp_path / "cache"
    monkeypatch.setenv("ADAPTASK_CACHE", str(cache))
    n_operations = kills.in_a_child(lambda: prepare(photos, 8), folder=cache)
    rng, n_whole = random.Random(before), 0
    moments = rng.sample(range(1, n_operations + 3), min(4 * kills.n, n_operations))
    for moment in moments:
        shutil.rmtree(cache)
        if before == "another cache":
            shutil.copytree(other, cache)
        done = kills.in_a_child(lambda: prepare(photos, 8), folder=cache, kill_at=moment)
        assert done is None or moment > n_operations
        try:
            load("mine", "train")
            check_cache(cache / "mine")
            assert files(cache / "mine") in (files(wanted / "mine"), files(other / "mine"))
            n_whole += 1
        except AdaptaskError:
            assert before == "nothing"
        prepare(photos, 8)
        assert files(cache) == files(wanted)  # and nothing beside it
    assert n_whole == len(moments) or before == "nothing"


def without_times(content):
    """Tables of times say how quick the machine was: the same here, as finished runs are kept."""
    return {name: text for name, text in content.items() if not name.endswith(".html")}


def test_a_killed_report_is_made_anew_as_if_nothing_had_been(left_behind, tmp_path, kills):
    alone, folder = tmp_path / "alone" / "study", tmp_path / "killed" / "study"
    for path in (alone, folder):
        shutil.copytree(left_behind.study, path)
        shutil.rmtree(path / "tables", ignore_errors=True)
    start = time.monotonic()
    n_operations = kills.in_a_child(lambda: make_report(alone) and None, folder=alone)
    runs = files(folder / "runs")
    n_killed = kills.until_done(
        lambda: make_report(folder) and None,
        *(random.Random(0), -(-kills.n // 3), n_operations, time.monotonic() - start, folder),
    )
    assert n_killed >= 1
    assert files(folder / "runs") == runs
    assert without_times(files(folder)).keys() == without_times(files(alone)).keys()
    for name, content in without_times(files(alone)).items():
        assert content == files(folder)[name], name
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.rstrip().endswith("</html>")
