"""The page on what came out says what the records say."""

import csv
import re
import statistics
from collections import defaultdict
from pathlib import Path

import pytest
from scipy import stats

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def accuracies():
    """By setting and seed."""
    found = defaultdict(dict)
    with (DOCS / "reproduction" / "cifar-fs.csv").open() as file:
        for row in csv.DictReader(file):
            key = (row["schedule"], row["learner"], row["shots"], row["sampler"])
            assert row["seed"] not in found[key]
            found[key][row["seed"]] = float(row["accuracy"])
    return found


def tables(heading):
    """The rows of each table below a heading, cells as texts."""
    page = (DOCS / "reproduction.md").read_text()
    part = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:^\|.*\n)+", part, flags=re.M)
    return [[[c.strip() for c in line.split("|")[1:-1]] for line in b.splitlines()] for b in blocks]


def test_every_accuracy_and_mean_is_as_recorded(accuracies):
    seeds, _ = tables("Table 3: ProtoNet, Conv-4, CIFAR-FS")
    for schedule, shots, sampler, *by_seed, mean, _paper in seeds[2:]:
        recorded = accuracies[(schedule, "protonet", shots, sampler)]
        shown = {str(i): float(text) for i, text in enumerate(by_seed) if text != "-"}
        assert shown == recorded
        assert float(mean) == pytest.approx(statistics.fmean(recorded.values()), abs=0.0051)
    assert len(seeds) == 2 + 8


def test_differences_and_intervals_follow_from_the_pairs(accuracies):
    _, differences = tables("Table 3: ProtoNet, Conv-4, CIFAR-FS")
    for schedule, shots, n_pairs, difference, interval, _paper in differences[2:]:
        uniform, gcp = (
            accuracies[(schedule, "protonet", shots, sampler)] for sampler in ("uniform", "gcp")
        )
        pairs = [gcp[seed] - uniform[seed] for seed in uniform.keys() & gcp.keys()]
        assert int(n_pairs) == len(pairs)
        assert float(difference) == pytest.approx(statistics.fmean(pairs), abs=0.006)
        half = stats.t.ppf(0.975, len(pairs) - 1) * stats.sem(pairs)
        low, high = map(float, interval.split(" to "))
        # Accuracies are recorded to two decimals.
        assert low == pytest.approx(statistics.fmean(pairs) - half, abs=0.07)
        assert high == pytest.approx(statistics.fmean(pairs) + half, abs=0.07)
    assert len(differences) == 2 + 4


def test_the_spread_over_seeds_is_as_recorded(accuracies):
    page = " ".join((DOCS / "reproduction.md").read_text().split())
    (found,) = re.findall(r"all settings together: ([\d.]+) against ([\d.]+)", page)
    for schedule, shown in zip(("cosine", "constant"), found, strict=True):
        settings = [list(v.values()) for key, v in accuracies.items() if key[0] == schedule]
        squares = sum((len(v) - 1) * statistics.variance(v) for v in settings if len(v) > 1)
        freedom = sum(len(v) - 1 for v in settings)
        assert float(shown) == pytest.approx((squares / freedom) ** 0.5, abs=0.006)


def test_the_readme_counts_the_runs(accuracies):
    readme = (DOCS.parent / "README.md").read_text()
    n_runs = sum(len(seeds) for key, seeds in accuracies.items() if key[3] in ("uniform", "gcp"))
    assert f"in {n_runs} runs of the paper's length" in readme
