"""The page on what came out says what the records say."""

import csv
import re
import statistics
from collections import defaultdict
from pathlib import Path

import pytest
from scipy import stats

from adaptask.experiments.paper.published import METHODS, TABLE_2, TABLE_3, TABLE_4

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "reproduction.md").read_text()
NUMBER = r"([-+][\d.]+)"


def records(name):
    with (DOCS / "reproduction" / name).open() as file:
        return list(csv.DictReader(file))


def by_setting(precision):
    """Accuracies by learner, augmentation, schedule, shots and sampler, then by seed."""
    found = defaultdict(dict)
    for row in records("cifar-fs.csv"):
        if row["precision"] == precision:
            keys = ("learner", "augmentation", "schedule", "shots", "sampler")
            seeds = found[tuple(row[key] for key in keys)]
            assert row["seed"] not in seeds
            seeds[row["seed"]] = float(row["accuracy"])
    assert all(seeds.keys() == set("012") for seeds in found.values())
    return dict(found)


@pytest.fixture(scope="module")
def accuracies():
    return by_setting("bfloat16")


@pytest.fixture(scope="module")
def of_both(accuracies):
    """Those of uniform and gcp, which Table 3 is about."""
    return {s: seeds for s, seeds in accuracies.items() if s[-1] in ("uniform", "gcp")}


@pytest.fixture(scope="module")
def pairs(accuracies):
    """Differences between gcp and uniform, by setting without the sampler."""
    return {s[:-1]: differences(accuracies, s) for s in accuracies if s[-1] == "gcp"}


def differences(accuracies, setting):
    """From uniform, seed by seed."""
    baseline = accuracies[(*setting[:-1], "uniform")]
    return [accuracies[setting][seed] - baseline[seed] for seed in "012"]


def means_by_seed(differences):
    """Over settings, which each have a difference for every seed."""
    return [statistics.fmean(seeds) for seeds in zip(*differences, strict=True)]


def train_losses():
    """Those with augmentation and a constant rate, by learner, shots and sampler."""
    found = defaultdict(list)
    for row in records("cifar-fs.csv"):
        if (row["schedule"], row["augmentation"]) == ("constant", "crop-flip"):
            found[(row["learner"], row["shots"], row["sampler"])].append(float(row["train_loss"]))
    return {setting: statistics.fmean(losses) for setting, losses in found.items()}


def tables(heading):
    """The rows of each table below a heading, cells as texts."""
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:^\|.*\n)+", part, flags=re.M)
    return [
        [[c.strip() for c in line.split("|")[1:-1]] for line in b.splitlines()][2:] for b in blocks
    ]


def table_3():
    (rows,) = tables("Table 3: Conv-4, CIFAR-FS")
    return rows


def published(learner, _augmentation, _schedule, shots, sampler):
    """What the paper prints for CIFAR-FS."""
    method = METHODS[learner] + (" with gcp-sampling" if sampler == "gcp" else "")
    return f"{TABLE_3.published(method, 'cifar-fs', int(shots)).accuracy:.2f}"


def check_interval(differences, mean, low, high):
    half = stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
    expected = statistics.fmean(differences)
    assert float(mean) == pytest.approx(expected, abs=0.0051)
    assert float(low) == pytest.approx(expected - half, abs=0.0051)
    assert float(high) == pytest.approx(expected + half, abs=0.0051)


def test_every_accuracy_and_mean_is_as_recorded(of_both):
    for *setting, seed_0, seed_1, seed_2, mean, _, _, paper in table_3():
        recorded = of_both[tuple(setting)]
        shown = {str(i): float(text) for i, text in enumerate((seed_0, seed_1, seed_2))}
        assert shown == pytest.approx(recorded, abs=0.0051)
        assert float(mean) == pytest.approx(statistics.fmean(recorded.values()), abs=0.0051)
        assert paper.partition(" ")[0] == (published(*setting) if setting[2] == "constant" else "")
    assert {tuple(row[:5]) for row in table_3()} == of_both.keys()
    assert len(table_3()) == 22


def test_strategies_are_as_recorded(accuracies):
    methods = {
        "c": "c-sampling with hard class",
        "gcp-easy": "gcp-sampling with easy class",
        "gcp-uncertain": "gcp-sampling with uncertain class",
        "gcp": "gcp-sampling with hard class",
    }
    (rows,) = tables("Table 4: sampling strategies")
    assert [row[:3] for row in rows] == [
        [rate, shots, name] for rate in ("constant", "cosine") for shots in "15" for name in methods
    ]
    of_lines, of_strategies = defaultdict(dict), defaultdict(list)
    for rate, shots, name, *seeds, mean, difference, interval, paper in rows:
        setting = ("protonet", "crop-flip", rate, shots, name)
        found = accuracies[setting]
        assert [float(text) for text in seeds] == pytest.approx(
            [found[seed] for seed in "012"], abs=0.0051
        )
        assert float(mean) == pytest.approx(statistics.fmean(found.values()), abs=0.0051)
        from_uniform = differences(accuracies, setting)
        check_interval(from_uniform, difference, *interval.split(" to "))
        before, after = (
            TABLE_4.published(method, "cifar-fs", int(shots)).accuracy
            for method in ("random sampling", methods[name])
        )
        assert paper == f"{after - before:+.2f}"
        of_lines[rate, shots][name] = float(difference)
        of_strategies[name] += from_uniform
    (said,) = re.findall(r"12 pairs each, .*?\)\.", PAGE)
    figures = re.findall(rf"{NUMBER} \({NUMBER} to {NUMBER}\)", said)
    for found, shown in zip(of_strategies.values(), figures, strict=True):
        assert len(found) == 12
        check_interval(found, *shown)
    ordered = [
        line
        for line, found in of_lines.items()
        if found["gcp-easy"] < found["gcp-uncertain"] < found["gcp"]
    ]
    assert ordered == [("cosine", "1")]  # "in one of the four lines"
    found = of_lines["cosine", "1"]
    (said,) = re.findall(r"one shot and a cosine schedule, within ([\d.]+) points", PAGE)
    assert float(said) == pytest.approx(found["gcp"] - found["gcp-easy"], abs=0.011)
    assert min(of_lines["constant", "1"].values()) > 0 < min(of_lines["cosine", "1"].values())
    assert max(of_lines["cosine", "5"].values()) < 0


def test_losses_of_the_strategies_are_as_recorded():
    losses = train_losses()
    (whole,) = re.findall(r"The training loss, .*? constant rate:(.*?)\.\s", PAGE)
    said = re.findall(r"([\d.]+) and ([\d.]+)", whole)
    order = ("gcp-easy", "uniform", "c", "gcp-uncertain", "gcp")
    for name, figures in zip(order, said, strict=True):
        for shots, figure in zip("15", figures, strict=True):
            assert float(figure) == pytest.approx(losses["protonet", shots, name], abs=0.0051)


def test_differences_and_intervals_follow_from_the_pairs(pairs):
    rows = [row for row in table_3() if row[4] == "gcp"]
    assert {tuple(row[:4]) for row in rows} == pairs.keys()
    without_the_paper, without_zero = [], []
    for *setting, _sampler, _, _, _, _, difference, interval, paper in rows:
        low, high = map(float, interval.split(" to "))
        check_interval(pairs[tuple(setting)], difference, low, high)
        if not low <= 0 <= high:
            without_zero.append(setting)
        if setting[2] == "constant":
            before, after = (float(published(*setting, name)) for name in ("uniform", "gcp"))
            assert paper.partition(" ")[2] == f"({after - before:+.2f})"
            if not low <= after - before <= high:
                without_the_paper.append(setting)
    assert all(row[9] == row[10] == "" for row in table_3() if row[4] == "uniform")
    matching_network = ["matchingnet", "crop-flip", "constant", "1"]
    assert (
        "Of the six settings for which the paper has a figure, two intervals leave it out" in PAGE
    )
    assert without_the_paper == [matching_network, ["protonet", "none", "constant", "5"]]
    assert "One interval of the ten leaves out zero" in PAGE
    assert without_zero == [matching_network]
    assert len(rows) == 10


def test_differences_over_several_settings_follow_from_the_pairs(pairs):
    everything = [d for found in pairs.values() for d in found]
    (said,) = re.findall(
        r"Over all (\d+) pairs.*?is ([-+][\d.]+) points, .*?interval ([-+][\d.]+) to ([-+][\d.]+);",
        PAGE,
    )
    assert int(said[0]) == len(everything)
    check_interval(everything, *said[1:])
    (said,) = re.findall(
        rf"a constant learning rate, have {NUMBER} \({NUMBER} to {NUMBER}\) in (\d+) pairs, those "
        rf"with a cosine schedule {NUMBER} \({NUMBER} to {NUMBER}\) in (\d+)",
        PAGE,
    )
    for rate, (*figures, count) in zip(("constant", "cosine"), (said[:4], said[4:]), strict=True):
        some = [d for setting, found in pairs.items() if setting[2] == rate for d in found]
        assert int(count) == len(some)
        check_interval(some, *figures)
    (said,) = re.findall(
        rf"as one observation, {NUMBER}, {NUMBER} and {NUMBER}, the interval is {NUMBER} to "
        rf"{NUMBER}:",
        PAGE,
    )
    by_seed = means_by_seed(pairs.values())
    assert [float(text) for text in said[:3]] == pytest.approx(by_seed, abs=0.0051)
    check_interval(by_seed, statistics.fmean(by_seed), *said[3:])
    said = re.findall(
        rf"[Tt]he (\d+) (?:pairs )?with \w+ have {NUMBER} \({NUMBER} to {NUMBER}\)", PAGE
    )
    of_shots = {shots: [d for s, d in pairs.items() if s[3] == shots] for shots in "15"}
    for (count, *figures), found in zip(said, of_shots.values(), strict=True):
        some = [difference for seeds in found for difference in seeds]
        assert int(count) == len(some)
        check_interval(some, *figures)
    assert [sum(sum(seeds) > 0 for seeds in found) for found in of_shots.values()] == [4, 0]
    (said,) = re.findall(
        rf"is {NUMBER} with the seeds as observations \({NUMBER}, {NUMBER} and {NUMBER}; interval "
        rf"{NUMBER} to {NUMBER}\)",
        PAGE,
    )
    by_seed = [a - b for a, b in zip(*map(means_by_seed, of_shots.values()), strict=True)]
    assert [float(text) for text in said[1:4]] == pytest.approx(by_seed, abs=0.0051)
    check_interval(by_seed, said[0], *said[4:])


def test_the_control_in_float32_is_as_recorded():
    found = by_setting("float32")
    setting = ("protonet", "crop-flip", "cosine", "1")
    assert found.keys() == {(*setting, "uniform"), (*setting, "gcp")}
    (said,) = re.findall(r"\*\*Precision is not why\.\*\*.*?\)\.", PAGE)
    accuracies = [found[(*setting, name)][seed] for name in ("uniform", "gcp") for seed in "012"]
    shown = [float(text) for text in re.findall(r"\d\d\.\d\d", said)]
    assert shown == pytest.approx(accuracies, abs=0.0051)
    figures = re.findall(r"[-+]\d\.\d\d", said)
    check_interval(differences(found, (*setting, "gcp")), *figures)


def test_without_augmentation_the_baselines_are_as_recorded(accuracies):
    means = {setting: statistics.fmean(seeds.values()) for setting, seeds in accuracies.items()}
    for learner, said in zip(
        ("protonet", "matchingnet"),
        re.findall(
            r"uniform sampling gets ([\d.]+)(?: with one shot)? and ([\d.]+)[ ,].*?([\d.]{5}) and "
            r"([\d.]{5})",
            PAGE,
        ),
        strict=True,
    ):
        settings = [(learner, "none", "constant", shots, "uniform") for shots in "15"]
        own = [means[setting] for setting in settings]
        assert [float(text) for text in said[:2]] == pytest.approx(own, abs=0.0051)
        assert list(said[2:]) == [published(*setting) for setting in settings]
    (said,) = re.findall(
        r"which is ([\d.]+) and ([\d.]+) points less .* still ([\d.]+) and ([\d.]+) above", PAGE
    )
    with_it = [means[("matchingnet", "crop-flip", "constant", s, "uniform")] for s in "15"]
    papers = [float(published(*setting)) for setting in settings]
    less = [a - b for a, b in zip(with_it, own, strict=True)]
    above = [a - b for a, b in zip(own, papers, strict=True)]
    assert [float(text) for text in said] == pytest.approx([*less, *above], abs=0.051)


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
    losses = train_losses()
    distances = [float(row["kl"]) for row in records("cifar-fs.csv") if row["sampler"] == "gcp"]
    said = re.findall(
        r"([\d.]+) against ([\d.]+)(?: with one| with five| and|(?= \(constant))", PAGE
    )
    settings = [(name, shots) for name in ("protonet", "matchingnet") for shots in "15"]
    for (learner, shots), figures in zip(settings, said, strict=True):
        for sampler, figure in zip(("gcp", "uniform"), figures, strict=True):
            mean = losses[learner, shots, sampler]
            assert float(figure) == pytest.approx(mean, abs=0.0051)
    (said,) = re.findall(r"is ([\d.]+) to ([\d.]+) nats away", PAGE)
    assert [float(text) for text in said] == pytest.approx(
        [min(distances), max(distances)], abs=0.0051
    )


def test_baselines_and_schedules_differ_by_what_is_said(of_both):
    means = {setting: statistics.fmean(seeds.values()) for setting, seeds in of_both.items()}
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
    constant = [seeds.values() for setting, seeds in of_both.items() if setting[2] == "constant"]
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


def test_what_was_tried_with_matching_network_is_as_recorded():
    (shown,) = tables("What the paper may have done differently")
    recorded = defaultdict(list)
    for row in records("matching-network.csv"):
        recorded[row.pop("variant")].append([float(row[f"to_{n}000"]) for n in range(2, 12, 2)])
    assert [row[0] for row in shown] == list(recorded)
    for name, *figures in shown:
        means = [statistics.fmean(column) for column in zip(*recorded[name], strict=True)]
        assert [float(text) for text in figures] == pytest.approx(means, abs=0.006)
    plain, loss, augmentation = (float(row[-1]) for row in shown)
    assert abs(loss - plain) < 1
    assert plain - augmentation == pytest.approx(10, abs=0.5)  # "it costs ten points"


def test_runs_of_full_length_are_as_recorded(benchmark_script):
    script = benchmark_script("full_length")
    made = {"full length": script.table(script.read_rows(script.FULL_LENGTH))}
    assert script.fill_in(PAGE, made) == PAGE, "python benchmarks/full_length.py --write"


def test_what_is_said_of_resnet12_is_as_recorded():
    part = PAGE.partition("## Table 2: ResNet-12\n")[2].partition("\n## ")[0]
    paper = {
        sampler: TABLE_2.published(method, "cifar-fs", 1).accuracy
        for sampler, method in (("uniform", "PN"), ("gcp", "PN with gcp-sampling"))
    }
    runs = [row for row in records("full-length.csv") if row["learner"] == "protonet"]
    uniform, gcp = ([run for run in runs if run["sampler"] == name] for name in paper)
    assert [run["seed"] for run in uniform] == [run["seed"] for run in gcp] == list("01234")
    found = [float(b["accuracy"]) - float(a["accuracy"]) for a, b in zip(uniform, gcp, strict=True)]
    assert sorted(difference > 0 for difference in found) == [False, False, False, True, True]
    answer = PAGE.partition("| the paper | here |")[2].partition("\n## ")[0]
    (said,) = re.findall(rf"not found: {NUMBER} \({NUMBER} to {NUMBER}\) in five pairs", answer)
    check_interval(found, *said)
    first, *others = found
    assert f"when the first pair was known ({first:+.2f})" in part
    (those,) = re.findall(rf"which have {NUMBER} \({NUMBER} to {NUMBER}\) by themselves", part)
    check_interval(others, *those)
    gain = paper["gcp"] - paper["uniform"]
    assert float(said[2]) < gain
    assert f"excludes the paper's {gain:+.1f}." in part
    accuracies = sorted(float(run["accuracy"]) for run in uniform)
    mean = statistics.fmean(accuracies)
    below = (
        f"{paper['uniform'] - mean:.2f} below the {paper['uniform']} ± 0.7 that the paper quotes"
    )
    assert f"has {mean:.2f} on average, {below}" in part
    assert f"between {accuracies[0]:.2f} and {accuracies[-1]:.2f}" in part
    intervals = sorted(float(run["interval"]) for run in runs)
    assert f"±{intervals[0]:.2f} to ±{intervals[-1]:.2f} over test tasks" in part
    trained = sorted(float(run["train_accuracy"]) for run in runs)
    assert f"{trained[0]:.1f} to {trained[-1]:.1f} % of the training queries" in part
    ends = sorted(float(run["kl"]) for run in gcp)
    assert f"ends {ends[0]:.3f} to {ends[-1]:.3f} nats from uniform" in part
    steps = sorted(int(run["best_step"]) for run in runs)
    assert f"between steps {steps[0]:,} and {steps[-1]:,}" in part
    early = records("resnet12-early.csv")
    (said,) = re.findall(r"training accuracy of ([\d.]+) % against ([\d.]+) % on average", part)
    for name, text in zip(("gcp", "uniform"), said, strict=True):
        some = [float(run["train_accuracy"]) for run in early if run["sampler"] == name]
        assert len(some) == 3
        assert float(text) == pytest.approx(statistics.fmean(some), abs=0.051)
    kl = {run["seed"]: run["kl"] for run in early if run["sampler"] == "gcp"}
    assert kl["0"] == ""
    assert f"is {float(kl['2']):.2f} and {float(kl['1']):.2f} nats from uniform (seeds 2" in part


def test_the_readme_says_the_same(pairs):
    readme = (DOCS.parent / "README.md").read_text()
    (said,) = re.findall(
        rf"in (\d+) pairs of runs of the paper's length: {NUMBER} points .*? is {NUMBER} to "
        rf"{NUMBER} over pairs, and {NUMBER} to {NUMBER} over the three seeds",
        readme,
    )
    everything = [d for found in pairs.values() for d in found]
    assert int(said[0]) == len(everything)
    check_interval(everything, *said[1:4])
    by_seed = means_by_seed(pairs.values())
    check_interval(by_seed, said[1], *said[4:])


def test_the_answer_at_the_top_is_that_of_the_tables(pairs):
    answer = PAGE.partition("| the paper | here |")[2].partition("\n## ")[0]
    papers = [
        float(published(*setting, "gcp")) - float(published(*setting, "uniform"))
        for setting in pairs
        if setting[2] == "constant"
    ]
    assert f"gains {min(papers):.2f} to {max(papers):.2f} points with ProtoNet" in answer
    (said,) = re.findall(
        rf"{NUMBER} over (\d+) pairs of runs.* interval {NUMBER} to {NUMBER}", answer
    )
    everything = [d for found in pairs.values() for d in found]
    assert int(said[1]) == len(everything)
    check_interval(everything, said[0], *said[2:])
    losses = train_losses()
    (said,) = re.findall(r"training loss ([\d.]+) against ([\d.]+) \(ProtoNet, one shot\)", answer)
    for figure, sampler in zip(said, ("gcp", "uniform"), strict=True):
        assert float(figure) == pytest.approx(losses["protonet", "1", sampler], abs=0.0051)
