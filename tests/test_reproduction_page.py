"""The page on what came out says what the records say."""

import csv
import re
import statistics
from collections import defaultdict
from pathlib import Path

import pytest
from scipy import stats

from adaptask.experiments.paper.figures import TABLE_3, TABLE_4

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "reproduction.md").read_text()


def records(name):
    with (DOCS / "reproduction" / name).open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def accuracies():
    """By setting, then by seed; a setting is learner, augmentation, schedule, shots, sampler."""
    found = defaultdict(dict)
    for row in records("cifar-fs.csv"):
        keys = ("learner", "augmentation", "schedule", "shots", "sampler")
        seeds = found[tuple(row[key] for key in keys)]
        assert row["seed"] not in seeds
        seeds[row["seed"]] = float(row["accuracy"])
    return dict(found)


@pytest.fixture(scope="module")
def complete(accuracies):
    """Those of uniform and gcp in settings where both have all three seeds."""
    return {
        setting: seeds
        for setting, seeds in accuracies.items()
        if setting[-1] in ("uniform", "gcp")
        and all(len(accuracies[(*setting[:-1], name)]) == 3 for name in ("uniform", "gcp"))
    }


@pytest.fixture(scope="module")
def pairs(complete):
    """Differences between gcp and uniform, by setting without the sampler."""
    return {
        tuple(setting): [gcp[seed] - complete[(*setting, "uniform")][seed] for seed in "012"]
        for (*setting, sampler), gcp in complete.items()
        if sampler == "gcp"
    }


def tables(heading):
    """The rows of each table below a heading, cells as texts."""
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:^\|.*\n)+", part, flags=re.M)
    return [
        [[c.strip() for c in line.split("|")[1:-1]] for line in b.splitlines()][2:] for b in blocks
    ]


def published(learner, _augmentation, _schedule, shots, sampler):
    """What the paper prints for CIFAR-FS."""
    method = {"protonet": "PN", "matchingnet": "Matching Network"}[learner]
    method += " with gcp-sampling" if sampler == "gcp" else ""
    return f"{TABLE_3.published(method, 'cifar-fs', int(shots)).accuracy:.2f}"


def check_interval(differences, mean, low, high):
    half = stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
    expected = statistics.fmean(differences)
    assert float(mean) == pytest.approx(expected, abs=0.0051)
    assert float(low) == pytest.approx(expected - half, abs=0.0051)
    assert float(high) == pytest.approx(expected + half, abs=0.0051)


def test_every_accuracy_and_mean_is_as_recorded(complete):
    seeds, _ = tables("Table 3: Conv-4, CIFAR-FS")
    for *setting, seed_0, seed_1, seed_2, mean, paper in seeds:
        recorded = complete[tuple(setting)]
        shown = {str(i): float(text) for i, text in enumerate((seed_0, seed_1, seed_2))}
        assert shown == pytest.approx(recorded, abs=0.0051)
        assert float(mean) == pytest.approx(statistics.fmean(recorded.values()), abs=0.0051)
        assert paper == (published(*setting) if setting[2] == "constant" else "")
    assert len(seeds) == len(complete) == 16


def test_what_is_not_complete_is_told(accuracies, complete):
    (said,) = re.findall(r"\*\*Not complete yet\*\* .*", PAGE)
    several, one = said.split(", and ProtoNet")
    shown = [float(text) for text in re.findall(r"\d\d\.\d\d", several)]
    setting = ("matchingnet", "crop-flip", "cosine", "5")
    uniform, gcp = (accuracies[(*setting, name)] for name in ("uniform", "gcp"))
    assert shown == pytest.approx([*(uniform[s] for s in "012"), gcp["1"], gcp["2"]], abs=0.0051)
    setting = ("protonet", "none", "constant", "5")
    single = [accuracies[(*setting, name)]["0"] for name in ("uniform", "gcp")]
    shown = [float(text) for text in re.findall(r"\d\d\.\d\d", one)]
    assert shown == pytest.approx(single, abs=0.0051)
    named = {("matchingnet", "crop-flip", "cosine", "5"), setting}
    of_both = {s[:-1] for s in accuracies if s[-1] in ("uniform", "gcp")}
    assert of_both - {s[:-1] for s in complete} == named


def test_strategies_are_as_recorded(accuracies):
    methods = {
        "uniform": "random sampling",
        "c": "c-sampling with hard class",
        "gcp-easy": "gcp-sampling with easy class",
        "gcp-uncertain": "gcp-sampling with uncertain class",
        "gcp": "gcp-sampling with hard class",
    }
    (rows,) = tables("Table 4: sampling strategies")
    assert [row[:2] for row in rows] == [[shots, name] for shots in "15" for name in methods]
    setting = ("protonet", "crop-flip", "cosine")
    for shots, name, *seeds, mean, difference, interval, paper in rows:
        found = accuracies[(*setting, shots, name)]
        assert [float(text) for text in seeds] == pytest.approx(
            [found[seed] for seed in "012"], abs=0.0051
        )
        assert float(mean) == pytest.approx(statistics.fmean(found.values()), abs=0.0051)
        if name == "uniform":
            assert difference == interval == paper == ""
            continue
        baseline = accuracies[(*setting, shots, "uniform")]
        differences = [found[seed] - baseline[seed] for seed in "012"]
        check_interval(differences, difference, *interval.split(" to "))
        before, after = (
            TABLE_4.published(methods[sampler], "cifar-fs", int(shots)).accuracy
            for sampler in ("uniform", name)
        )
        assert paper == f"{after - before:+.2f}"
    (said,) = re.findall(r"is there with one shot, within ([\d.]+) points", PAGE)
    easy, uncertain, hard = (float(row[5]) for row in rows[2:5])
    assert easy < uncertain < hard
    assert float(said) == pytest.approx(hard - easy, abs=0.011)


def test_differences_and_intervals_follow_from_the_pairs(pairs):
    _, differences = tables("Table 3: Conv-4, CIFAR-FS")
    assert {tuple(row[:4]) for row in differences} == pairs.keys()
    for *setting, difference, interval, paper in differences:
        check_interval(pairs[tuple(setting)], difference, *interval.split(" to "))
        if setting[2] == "constant":
            before, after = (float(published(*setting, name)) for name in ("uniform", "gcp"))
            assert paper == f"{after - before:+.2f}"


def test_differences_over_several_settings_follow_from_the_pairs(pairs):
    everything = [d for found in pairs.values() for d in found]
    (said,) = re.findall(
        r"Over all (\d+) pairs.*?is ([-+][\d.]+) points, .*?interval ([-+][\d.]+) to ([-+][\d.]+);",
        PAGE,
    )
    assert int(said[0]) == len(everything)
    check_interval(everything, *said[1:])
    number = r"([-+][\d.]+)"
    (said,) = re.findall(
        rf"a constant learning rate, have {number} \({number} to {number}\) in 15 pairs", PAGE
    )
    constant = [d for setting, found in pairs.items() if setting[2] == "constant" for d in found]
    assert len(constant) == 15
    check_interval(constant, *said)
    (said,) = re.findall(
        rf"as one observation, {number}, {number} and {number}, the interval is {number} to "
        rf"{number}:",
        PAGE,
    )
    by_seed = [statistics.fmean(found[seed] for found in pairs.values()) for seed in range(3)]
    assert [float(text) for text in said[:3]] == pytest.approx(by_seed, abs=0.0051)
    check_interval(by_seed, statistics.fmean(by_seed), *said[3:])
    said = re.findall(
        rf"the (\d+) (?:pairs )?with \w+ have {number} \({number} to {number}\)", PAGE
    )
    for shots, (count, *figures) in zip("15", said, strict=True):
        some = [d for setting, found in pairs.items() if setting[3] == shots for d in found]
        assert int(count) == len(some)
        check_interval(some, *figures)


def test_the_spread_over_seeds_is_as_recorded(accuracies):
    (found,) = re.findall(r"with augmentation together: ([\d.]+) against ([\d.]+)", PAGE)
    for schedule, shown in zip(("cosine", "constant"), found, strict=True):
        settings = [
            list(seeds.values())
            for setting, seeds in accuracies.items()
            if setting[1:3] == ("crop-flip", schedule) and len(seeds) > 1
        ]
        squares = sum((len(v) - 1) * statistics.variance(v) for v in settings)
        freedom = sum(len(v) - 1 for v in settings)
        assert float(shown) == pytest.approx((squares / freedom) ** 0.5, abs=0.006)


def test_losses_and_distances_from_uniform_are_as_recorded():
    losses, distances = defaultdict(list), []
    for row in records("cifar-fs.csv"):
        if (row["schedule"], row["augmentation"]) == ("constant", "crop-flip"):
            losses[(row["learner"], row["shots"], row["sampler"])].append(float(row["train_loss"]))
        if row["sampler"] == "gcp":
            distances.append(float(row["kl"]))
    said = re.findall(
        r"([\d.]+) against ([\d.]+)(?: with one| with five| and|(?= \(constant))", PAGE
    )
    settings = [(name, shots) for name in ("protonet", "matchingnet") for shots in "15"]
    for (learner, shots), figures in zip(settings, said, strict=True):
        for sampler, figure in zip(("gcp", "uniform"), figures, strict=True):
            mean = statistics.fmean(losses[(learner, shots, sampler)])
            assert float(figure) == pytest.approx(mean, abs=0.0051)
    (said,) = re.findall(r"is ([\d.]+) to ([\d.]+) nats away", PAGE)
    assert [float(text) for text in said] == pytest.approx(
        [min(distances), max(distances)], abs=0.0051
    )


def test_baselines_and_schedules_differ_by_what_is_said(complete):
    means = {setting: statistics.fmean(seeds.values()) for setting, seeds in complete.items()}
    above = [
        mean - float(published(*setting))
        for setting, mean in means.items()
        if setting[1:3] == ("crop-flip", "constant") and setting[-1] == "uniform"
    ]
    (said,) = re.findall(r"is ([\d.]+) to ([\d.]+) points above what the paper", PAGE)
    assert [float(text) for text in said] == pytest.approx([min(above), max(above)], abs=0.051)
    gained = [
        mean - means[(*setting[:2], "constant", *setting[3:])]
        for setting, mean in means.items()
        if setting[2] == "cosine"
    ]
    (said,) = re.findall(r"are higher, by ([\d.]+) to ([\d.]+) points", PAGE)
    assert [float(text) for text in said] == pytest.approx([min(gained), max(gained)], abs=0.051)
    (said,) = re.findall(r"three runs of a setting lie up to ([\d.]+) points apart", PAGE)
    constant = [seeds.values() for setting, seeds in complete.items() if setting[2] == "constant"]
    assert float(said) == pytest.approx(max(max(v) - min(v) for v in constant), abs=0.051)


def test_validations_of_augmentations_are_as_recorded():
    (shown,) = tables("Augmentation, by validation")
    recorded = defaultdict(list)
    late = defaultdict(list)
    for row in records("augmentations.csv"):
        recorded[row["augmentation"]].append(float(row["to_39500"]))
        late[row["augmentation"]].append(float(row["to_60000"] or "nan"))
    assert {row[0]: [float(text) for text in row[1:-1]] for row in shown} == recorded
    for name, *_, mean in shown:
        assert float(mean) == pytest.approx(statistics.fmean(recorded[name]), abs=0.006)
    (last,) = re.findall(r"has grown: ([\d.]+) against ([\d.]+)", PAGE)
    for name, said in zip(("crop-flip", "none"), last, strict=True):
        assert float(said) == pytest.approx(statistics.fmean(late[name]), abs=0.006)


def test_the_readme_counts_the_pairs(pairs):
    readme = (DOCS.parent / "README.md").read_text()
    n_pairs = sum(map(len, pairs.values()))
    assert f"in {n_pairs} pairs of runs of the paper's length" in readme
