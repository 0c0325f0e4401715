"""The league of samplers: its dirty pool, its figures, and the page that says what came out."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from adaptask.data import ImageSet

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def league(benchmark_script):
    return benchmark_script("league")


# The dirty pool -----------------------------------------------------------------------------------


@pytest.fixture
def pools(league, monkeypatch):
    """Splits of the dirty and the clean pool, of images that have class and number as pixels."""

    def load(name, split):
        pixels = torch.tensor([[c, i] for c in range(64) for i in range(60)], dtype=torch.uint8)
        return ImageSet(
            name,
            split,
            pixels[:, :, None, None].expand(-1, -1, 2, 2),
            tuple(f"class{c:02d}" for c in range(64)),
            torch.arange(65) * 60,
            groups=tuple(f"group{c // 4}" for c in range(64)),
        )

    monkeypatch.setattr(league, "load", load)
    return league.dirty, league.clean


def contents(image_set):
    """The images of each class as pairs of their original class and number."""
    bounds = image_set.class_starts.tolist()
    return {
        name: [tuple(image[:, 0, 0].tolist()) for image in image_set.images[start:stop]]
        for name, (start, stop) in zip(image_set.class_names, pairwise(bounds), strict=True)
    }


def test_the_dirty_pool_has_filled_classes_halves_and_others(pools):
    dirty, clean = (pool("train") for pool in pools)
    everything = sorted(image for images in contents(dirty).values() for image in images)
    assert everything == [(c, i) for c in range(64) for i in range(60)], "none lost, none twice"
    kinds = {"filled": 0, "half": 0, "whole": 0}
    for name, images in contents(dirty).items():
        own = int(name[5:7])
        if {c for c, _ in images} != {own}:
            kinds["filled"] += 1
            assert len({c for c, _ in images}) > 10
            assert len(images) == 60
        else:
            kinds["half" if len(images) == 30 else "whole"] += 1
    assert kinds == {"filled": 26, "half": 32, "whole": 22}
    assert all(
        group == f"group{int(name[5:7]) // 4}"
        for name, group in zip(dirty.class_names, dirty.groups, strict=True)
    )
    assert clean.n_classes == 38
    for name, images in contents(clean).items():
        assert sorted(images) == [(int(name[5:7]), i) for i in range(60)]
        found = (contents(dirty)[n] for n in dirty.class_names if n.startswith(name))
        assert sorted(image for half in found for image in half) == sorted(images)


def test_the_pool_is_always_the_same_and_leaves_the_other_splits_as_they_are(pools):
    for pool in pools:
        assert contents(pool("train")) == contents(pool("train"))
        for split in ("val", "test"):
            assert contents(pool(split)) == {
                f"class{c:02d}": [(c, i) for i in range(60)] for c in range(64)
            }


# Figures ------------------------------------------------------------------------------------------

ACCURACIES = {
    ("omniglot", "uniform"): (92.0, 92.5, 92.2, 92.1, 92.9),
    ("omniglot", "neighbor"): (93.1, 93.4, 93.4, 93.0, 94.0),
    ("cifar-fs", "uniform"): (55.0, 55.5, 54.2, 55.1, 54.9),
    ("cifar-fs", "learnable"): (55.1, 55.3, 54.4, 55.0, 54.9),
    ("cifar-fs", "neighbor"): (54.0, 54.6, 53.5, 54.4, 53.9),
    ("cifar-fs", "gcp"): (54.0, 54.7, 53.1, 54.2, 54.0),
    ("dirty", "uniform"): (50.0, 50.5, 50.2, 50.1, 49.9),
    ("dirty", "learnable"): (51.1, 51.7, 51.3, 51.4, 50.9),
    ("dirty", "gcp"): (48.1, 48.7, 48.3, 48.4, 47.9),
    ("dirty", "uniform, clean classes alone"): (52.0, 52.6, 52.1, 52.2, 51.8),
}


@pytest.fixture
def records(league, tmp_path):
    """Records without noise of test tasks: a test over seeds and tasks is then one over seeds."""
    for (setting, sampler), accuracies in ACCURACIES.items():
        for seed, accuracy in enumerate(accuracies):
            is_omniglot = setting == "omniglot"
            row = {
                "setting": setting,
                "sampler": sampler,
                "seed": seed,
                "accuracy": accuracy,
                "within_group": accuracy - 20 if is_omniglot else "",
                "accuracy_by_block": f"{accuracy - 1} {accuracy + 1}",
                "within_group_by_block": f"{accuracy - 22} {accuracy - 18}" if is_omniglot else "",
            }
            league.append(tmp_path / "league.csv", row)
    for sampler, ms in (("uniform", 0.4), ("gcp", 0.41), ("learnable", 0.5)):
        row = {"setting": "cifar-fs", "sampler": sampler, "ms_per_step": ms}
        league.append(tmp_path / "league-times.csv", row)
    return league.read_league(tmp_path / "league.csv", tmp_path / "league-times.csv")


def differences(setting, sampler):
    return np.subtract(ACCURACIES[setting, sampler], ACCURACIES[setting, "uniform"])


def test_a_table_has_differences_tests_and_times(league, records):
    p = {
        pair: stats.ttest_1samp(differences(*pair), 0).pvalue
        for pair in ACCURACIES
        if pair[1] != "uniform"
    }
    ordered = sorted(p, key=p.get)
    holm = np.maximum.accumulate([p[pair] * (len(p) - i) for i, pair in enumerate(ordered)])
    corrected = dict(zip(ordered, np.minimum(holm, 1), strict=True))
    assert records.p == pytest.approx(corrected)
    lines = [line.strip("| ").split(" | ") for line in league.table(records, "dirty").splitlines()]
    names = ["`uniform`", "uniform, clean classes alone", "`learnable`", "`gcp`"]
    assert [line[0] for line in lines[2:]] == names, "uniform, then the best first"
    gcp = differences("dirty", "gcp")
    half = stats.t.ppf(0.975, 4) * stats.sem(gcp)
    said = f"**{gcp.mean():+.2f} [{gcp.mean() - half:+.2f}, {gcp.mean() + half:+.2f}]**"
    found = corrected["dirty", "gcp"]
    assert lines[-1] == [
        *("`gcp`", "48.28", said),
        *("< 0.001" if found < 0.001 else f"{found:.3f}", "1.02"),
    ]
    assert "within alphabets" in league.table(records, "omniglot")
    assert "within alphabets" not in league.table(records, "cifar-fs")


def test_the_primary_comparisons_are_corrected_for_their_own_number(league, records):
    assert records.primary_p.keys() == set(league.PRIMARY)
    pair = ("dirty", "uniform, clean classes alone")
    p = stats.ttest_1samp(differences(*pair), 0).pvalue
    assert p <= records.primary_p[pair] <= 6 * p * (1 + 1e-9)
    assert records.primary_p[pair] < records.p[pair]


def test_the_choice_of_test_tasks_widens_the_interval(league, records):
    noisy = [
        dict(row, accuracy_by_block="40 60")
        if (row["setting"], row["sampler"]) == ("dirty", "gcp")
        else row
        for row in records.rows
    ]
    plain, wide = (
        league.League(rows, {}).difference("dirty", "gcp") for rows in (records.rows, noisy)
    )
    assert wide.mean == plain.mean
    assert wide.half_width > 10 * plain.half_width


def test_the_page_is_filled_in_between_its_markers_alone(league, records):
    page = league.PAGE.read_text()
    filled = league.fill_in(page, records)
    assert league.fill_in(filled, records) == filled
    for setting in league.SETTINGS:
        assert league.table(records, setting) in filled
    assert filled.startswith(page.partition("<!-- picture -->")[0])
    assert filled.endswith(page.rpartition("<!-- end of dirty -->")[2])
    gain, kept = (records.difference("dirty", n) for n in (league.CLEAN, "learnable"))
    assert f"to gain in the dirty pool: {league.described(gain)} points" in filled
    assert f"`learnable` gets of it: {league.described(kept)}" in filled


def test_the_picture_can_be_drawn(league, records):
    figure = league.draw(records)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert set(names) == {sampler for _, sampler in ACCURACIES} - {"uniform"}


def test_a_run_that_is_recorded_twice_counts_once(league, records, tmp_path):
    row = dict(records.rows[0], accuracy="10.0")
    league.append(tmp_path / "league.csv", row)
    again = league.read_league(tmp_path / "league.csv", tmp_path / "none.csv")
    assert len(again.rows) == len(records.rows)
    assert again.values("omniglot", "uniform")[0] == 10


# The page -----------------------------------------------------------------------------------------


def test_the_primary_comparisons_are_stated_on_the_page(league):
    stated = league.PAGE.read_text().partition("| primary comparison with")[2]
    for line, (setting, sampler) in zip(stated.splitlines()[2:], league.PRIMARY, strict=False):
        where, _, what = line.split(" | ")[0].strip("| ").partition(": ")
        assert where.lower() == setting
        assert what.strip("`") == sampler.removeprefix("uniform, ")


def test_the_page_and_the_picture_say_what_the_records_say(league):
    page, found = league.PAGE.read_text(), league.read_league()
    again = "write it again: python benchmarks/league.py --write"
    assert page == league.fill_in(page, found), again
    with Image.open(league.PICTURE) as picture:
        assert picture.text["Records"] == league.digest(league.RECORDS), again
    for setting, samplers in found.samplers.items():
        seeds = found.values(setting, "uniform").keys()
        assert len(seeds) >= 5
        assert all(found.values(setting, sampler).keys() == seeds for sampler in samplers)
    (steps,) = {row["steps"] for row in found.rows}
    assert f"tasks per step, {int(steps):,} steps" in page


def test_the_figures_of_the_text_are_in_the_records(league):
    page = (ROOT / "docs" / "which-sampler.md").read_text()
    text = page.partition("## What to take from it")[2].partition("\n## ")[0]
    found = league.read_league()
    said = set(re.findall(r"[+-]\d+\.\d\d", text)) - {"-0.13"}  # of another page
    differences = {
        f"{difference.mean:+.2f}"
        for setting, samplers in found.samplers.items()
        for sampler in samplers
        if sampler != league.UNIFORM
        and (difference := found.difference(setting, sampler)) is not None
    }
    assert len(said) >= 10
    assert said <= differences
    for percent, setting, sampler in (
        ("98.4", "omniglot", "uniform"),
        ("87.5", "omniglot", "neighbor"),
        ("51.2", "cifar-fs", "uniform"),
    ):
        assert f"{percent} %" in text
        assert f"{found.mean(setting, sampler, 'train_accuracy'):.1f}" == percent


def test_the_readme_says_the_same(league):
    readme = (ROOT / "README.md").read_text()
    (line,) = (text for text in readme.splitlines() if "docs/which-sampler.md" in text)
    found = league.read_league()
    said = re.findall(r"`([a-z]+)` \(([+-]\d\.\d\d)", line)
    assert len(said) == 3
    for sampler, figure in said:
        assert f"{found.difference('omniglot', sampler).mean:+.2f}" == figure
    assert f"{len(found.rows)} runs" in line
