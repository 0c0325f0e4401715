"""The page on what neighbor sampling is worth says what the records say."""

import csv
import hashlib
import re
import statistics
from pathlib import Path

import pytest
from PIL import Image
from scipy import stats

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "neighbor-results.md").read_text()
RECORDS = DOCS / "reproduction" / "neighbor.csv"
RESULTS = PAGE.partition("## Results\n")[2].partition("\n## ")[0]


def accuracies(field):
    """By comparison and sampler, then by seed."""
    found = {}
    with RECORDS.open() as file:
        for row in csv.DictReader(file):
            if row[field]:
                seeds = found.setdefault((row["comparison"], row["sampler"]), {})
                assert row["seed"] not in seeds
                seeds[row["seed"]] = float(row[field])
    return found


def other(found, comparison):
    """The arm that is not uniform, and uniform with the same seeds."""
    (arm,) = (seeds for (c, s), seeds in found.items() if c == comparison and s != "uniform")
    baseline = found["1" if comparison.startswith("5") else comparison, "uniform"]
    return arm, {seed: baseline[seed] for seed in arm}


def described(differences):
    mean = statistics.fmean(differences)
    half = stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"


def rows():
    lines = [line for line in RESULTS.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_table_is_that_of_the_records(row):
    comparison, _, uniform, neighbor, difference, p, within, _ = row
    arm, baseline = other(accuracies("accuracy"), comparison)
    assert len(arm) == (5 if comparison.startswith("5") else 10)
    assert (uniform, neighbor) == tuple(
        f"{statistics.fmean(runs.values()):.2f}" for runs in (baseline, arm)
    )
    differences = [arm[seed] - baseline[seed] for seed in arm]
    assert difference == described(differences)
    found = stats.ttest_1samp(differences, 0).pvalue
    assert p == ("< 0.001" if found < 0.001 else f"{found:.2f}")
    if comparison in ("4", "7"):  # CIFAR-FS
        assert not within
        return
    arm, baseline = other(accuracies("within_group"), comparison)
    assert within == described([arm[seed] - baseline[seed] for seed in arm])


def test_every_comparison_is_in_the_table():
    assert {row[0] for row in rows()} == {comparison for comparison, _ in accuracies("accuracy")}


def test_figures_of_the_text():
    arms, training = accuracies("accuracy"), accuracies("train_accuracy")
    learned, pixels = arms["1", "neighbor"], arms["5b", "pixels"]
    added = described([learned[seed] - pixels[seed] for seed in pixels])
    assert f"add {added.removeprefix('+')} to it" in RESULTS
    easy, hard = (statistics.fmean(training["4", s].values()) for s in ("uniform", "neighbor"))
    assert f"classified with {easy:.1f} % in training; with `beta` 1, {hard:.1f} %" in RESULTS
    held = (statistics.fmean(training[c, "neighbor"].values()) for c in "67")
    assert "hold {:.1f} % on Omniglot and {:.1f} % on CIFAR-FS".format(*held) in RESULTS


def test_the_picture_is_that_of_the_records():
    with Image.open(DOCS / "images" / "neighbor-differences.png") as picture:
        drawn_from = picture.text["Records"]
    again = "python benchmarks/neighbor.py --picture"
    found = hashlib.sha256(RECORDS.read_bytes()).hexdigest()
    assert drawn_from == found, f"it is out of date: {again}"


def test_the_best_options_of_the_page_are_those_of_the_comparisons():
    stated = re.findall(r"\| (1|2a|2b|3a|3b) \|.*?`beta` (\d)", PAGE.partition("stated before")[2])
    with RECORDS.open() as file:
        used = {r["comparison"]: r["beta"] for r in csv.DictReader(file) if r["beta"]}
    assert {name: float(beta) for name, beta in stated} == {
        name: float(beta) for name, beta in used.items() if name[0] in "123"
    }


def test_the_readme_says_the_same():
    readme = (DOCS.parent / "README.md").read_text()
    table = readme.partition("## What we found")[2]
    lines = [line for line in table.splitlines() if re.match(r"\| .*\d\.\d\d \|", line)]
    expected = [(c, "accuracy") for c in ("6", "7", "2a", "2b", "3a", "3b")]
    expected.insert(1, ("6", "within_group"))
    for line, (comparison, field) in zip(lines, expected, strict=True):
        arm, baseline = other(accuracies(field), comparison)
        _, *said = [cell.strip() for cell in line.strip("|").split("|")]
        means = [f"{statistics.fmean(runs.values()):.2f}" for runs in (baseline, arm)]
        assert said == [*means, described([arm[seed] - baseline[seed] for seed in arm])]


def test_the_page_of_the_sampler_says_the_same():
    page = (DOCS / "samplers" / "neighbor.md").read_text().partition("## Is it worth it?")[2]
    found = accuracies("accuracy")
    for comparison in ("6", "2a"):
        arm, baseline = other(found, comparison)
        assert described([arm[seed] - baseline[seed] for seed in arm]) in page
