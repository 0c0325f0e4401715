"""The page on where adaptive sampling helps says what the records say."""

import math
import re
import statistics
from collections import defaultdict

import pytest
from PIL import Image

from adaptask.report.statistics import PairedDifference

SIGNED = r"[+-]\d+\.\d\d"


@pytest.fixture(scope="module")
def results(benchmark_script):
    return benchmark_script("results")


@pytest.fixture(scope="module")
def found(results):
    return results.read_comparisons()


@pytest.fixture(scope="module")
def page(results):
    return results.PAGE.read_text()


def only(found, dataset, setting, sampler):
    (one,) = (
        c
        for c in found
        if (c.dataset, c.setting, c.sampler.strip("`")) == (dataset, setting, sampler)
    )
    return one


def test_tables_and_picture_are_those_of_the_records(results, found, page):
    again = "write them again: python benchmarks/results.py"
    assert page == results.write(page, found), again
    with Image.open(results.PICTURE) as picture:
        assert picture.text["Records"] == results.digest(*results.FILES), again


def test_every_pair_of_the_records_is_compared(results, found, page):
    keys = ("comparison", "setting", "learner", "backbone", "augmentation", "schedule", "shots")
    n_runs = n_arms = 0
    for file in results.FILES:
        rows = results.read_rows(file)
        if file.stem == "pretrained":  # without tests of untrained weights, and runs on a CPU
            samplers = ("uniform", "neighbor", "gcp")
            rows = [{**row, "sampler": row["arm"]} for row in rows if row["arm"] in samplers]
            rows = [row for row in rows if row["backbone"] == "resnet12 metaoptnet"]
        of = defaultdict(list)
        for row in rows:
            described = (row.get(key) for key in (*keys, "precision"))
            of[row["sampler"], *described].append(row)
        # One pair has no interval: the table and the number of runs are without it.
        repeated = {arm: runs for arm, runs in of.items() if len(runs) > 1}
        n_runs += sum(map(len, repeated.values()))
        n_arms += sum(arm[0] != "uniform" for arm in repeated)
    assert len(found) == n_arms
    readme = (results.DOCS.parent / "README.md").read_text()
    assert f"{n_runs} runs" in page
    assert f"in {n_runs} runs" in readme
    chosen = [c for c in found if results.chooses(c)]
    assert f"all {len(chosen)} comparisons" in page
    assert f"so {len(chosen)} comparisons" in page


def test_a_comparison_pairs_runs_of_the_same_seed(results):
    runs = {
        name: [
            {"seed": str(s), "accuracy": str(a), "train_loss": loss}
            for s, a in enumerate(accuracies)
        ]
        for name, accuracies, loss in (("uniform", (50, 60), "0.5"), ("arm", (51, 63, 9), "1.0"))
    }
    one = results.compared("d", "s", "`x:variant=1`", runs["uniform"], runs["arm"][::-1])
    assert one.difference.mean == 2
    assert one.difference.seeds == (0, 1)
    assert (one.factor, one.name, one.verdict, one.worst_tenth) == (2.0, "x", 0, None)


def test_a_verdict_needs_an_interval_on_one_side_of_zero(results):
    uniform = {"train_loss": 1.0}
    for mean, verdict in ((3.0, 1), (0.1, 0), (-3.0, -1)):
        difference = PairedDifference((0, 1, 2, 3), mean, 1.0, 0.5, 3.0, 0.1)
        one = results.Comparison("d", "s", "x", uniform, uniform, difference, None, None)
        assert one.verdict == verdict


def test_the_lines_of_the_rule_hold_every_comparison_once(results, found):
    lines = results.bands(found).splitlines()[2:]
    counts = [[int(cell) for cell in line.split("|")[3:6]] for line in lines]
    chosen = [c for c in found if results.chooses(c)]
    assert sum(total for total, _, _ in counts) == len(chosen)
    assert sum(gain for _, gain, _ in counts) == sum(c.verdict > 0 for c in chosen)
    assert sum(lose for _, _, lose in counts) == sum(c.verdict < 0 for c in chosen)


def test_differences_of_the_text_are_in_the_records(results, found, page):
    text = re.sub(r"<!-- (\w+) -->.*?<!-- end of \1 -->", "", page, flags=re.S)
    known = {f"{c.difference.mean:+.2f}" for c in found}
    known |= {f"{c.worst_tenth.mean:+.2f}" for c in found if c.worst_tenth is not None}
    said = re.findall(SIGNED, text)
    assert len(said) > 10
    at_length = [
        c
        for c in found
        if c.sampler == "`gcp`"
        and re.search(r"-shot(?!.*float32)", c.setting)
        and not re.search("ResNet|pre-trained", c.setting)
    ]
    assert len(at_length) == 10
    of_shots = {
        shots: statistics.fmean(
            c.difference.mean for c in at_length if f"{shots}-shot" in c.setting
        )
        for shots in (1, 5)
    }
    over_all = f"{statistics.fmean(of_shots.values()):+.2f}"
    assert f"30 pairs of runs differ by {over_all} points" in text
    assert f"[{of_shots[5]:+.2f} and {of_shots[1]:+.2f}]" in text
    assert set(said) - {over_all, *(f"{mean:+.2f}" for mean in of_shots.values())} <= known
    for sampler, factor, difference in re.findall(
        rf"`([\w-]+)` \(([\d.]+) times[^)]*\) ({SIGNED})", text
    ):
        one = only(found, "cifar-fs", "ProtoNet, 4,000 steps", sampler)
        assert f"{one.difference.mean:+.2f}" == difference
        assert f"{one.factor:.2f}" == factor
    assert len(re.findall(r"times[^)]*\) [+-]", text)) == 7
    for sampler, difference in re.findall(
        rf"`([\w-]+)` \(?({SIGNED})", text.partition("## Where it does not")[0]
    ):
        if "gain less there" in text.partition(f"`{sampler}` ")[0]:
            one = only(found, "omniglot", "ProtoNet, 4,000 steps", sampler)
            assert f"{one.difference.mean:+.2f}" == difference


def test_summaries_of_the_text_follow_from_the_records(results, found, page):
    gcp = [c for c in found if c.sampler == "`gcp`"]
    below, above = sorted((c for c in gcp if c.verdict), key=lambda c: c.verdict)
    assert (below.verdict, above.verdict) == (-1, 1)
    said = (
        f"Of its {len(gcp)} intervals one is above zero, by {above.difference.low:.2f}, and one "
        f"below, by {-below.difference.high:.2f}."
    )
    assert said in page
    pretrained = [c for c in found if c.setting.startswith("pre-trained")]
    assert sorted(c.verdict for c in pretrained) == [-1, -1, -1, -1, 0, 0]  # "none does"
    assert all(c.loss < results.SOLVED and c.factor >= results.HARDER for c in pretrained)
    assert f"cost up to {-min(c.difference.mean for c in pretrained):.2f} points" in page
    right = [c.uniform["train_accuracy"] for c in pretrained]
    assert f"{min(right):.0f} to {max(right):.0f} % of uniform training queries" in page
    for name, text in (("neighbor", "{:.1f} to {:.1f} times"), ("gcp", "{:.2f} to {:.2f} times")):
        factors = [c.factor for c in pretrained if c.name == name]
        assert text.format(min(factors), max(factors)) in page
    neighbor = [
        c for c in found if c.dataset == "omniglot" and c.name == "neighbor" and results.is_shown(c)
    ]
    gains = [c.difference.mean for c in neighbor if c.verdict > 0]
    assert (len(gains), len(neighbor)) == (6, 7)
    said = f"`neighbor` gains {min(gains):.2f} to {max(gains):.2f} points in six of seven"
    assert said in page
    worst = min(c.difference.mean for c in found if results.chooses(c) and c.dataset != "omniglot")
    assert f"harder tasks cost up to {-worst:.2f} points" in page
    usual = [c.factor for c in gcp if re.search(r"^(?!.*ResNet|pre-trained).*shot", c.setting)]
    assert f"{min(usual):.2f} to {max(usual):.2f} times as hard" in page
    resnet12 = only(found, "cifar-fs", "ProtoNet on ResNet-12, 1-shot", "gcp")
    assert f"at the end ({resnet12.factor:.2f} times the loss)" in page
    ohtm, cvar = (
        only(found, "omniglot", "ProtoNet, 4,000 steps", name).factor for name in ("ohtm", "cvar")
    )
    assert ohtm > 2  # "doubles the training loss"
    assert cvar == pytest.approx(1.5, abs=0.05)  # "raises it by half"
    without = [c for c in found if c.worst_tenth is not None and c.verdict < 1]
    (better,) = (c for c in without if c.worst_tenth.low > 0)
    assert (better.dataset, better.sampler) == ("dirty", "`c`")
    assert f"Of {len(without)} comparisons without a gain on average" in page
    shown = {(c.dataset, c.setting) for c in found if results.is_shown(c)}
    assert f"in {len(shown)} settings" in page


def test_what_is_said_of_hard_training_tasks(results, found, page):
    harder = [
        c
        for c in found
        if (c.dataset, c.setting) == ("cifar-fs", "ProtoNet, 4,000 steps")
        and results.chooses(c)
        and c.factor >= results.HARDER
    ]
    assert len(harder) == 7
    assert all(c.difference.mean < 0 for c in harder)
    with_zero = {c.name for c in harder if c.verdict == 0}
    assert with_zero == {"hard-class", "gcp", "cp"}  # "the first three"
    part = page.partition("## Where it does not")[2].partition("\n## ")[0]
    assert {c.name for c in harder} == set(re.findall(r"`([\w-]+)` \([\d.]+ times[^)]*\) -", part))
    dirty = [c for c in found if c.dataset == "dirty" and results.chooses(c)]
    assert all(c.verdict < 1 for c in dirty)  # "no sampler gains"


def test_what_is_said_of_hard_test_tasks(results, found, page):
    gains = [c for c in found if c.dataset == "omniglot" and c.verdict > 0]
    assert f"In all {len(gains)} comparisons that gain on Omniglot" in page
    for one in gains:
        assert one.worst_tenth.mean > one.difference.mean
        assert one.within_group.mean > one.difference.mean
    for setting, sampler, said in (
        ("ProtoNet, 5-way", "neighbor", "{:.2f} on average, {:.2f} on the worst tenth and {:.2f}"),
        ("ANIL", "neighbor`, fixed strength", "ANIL {:.2f}, {:.2f} and {:.2f}"),
    ):
        one = only(found, "omniglot", setting, sampler)
        parts = (one.difference, one.worst_tenth, one.within_group)
        assert said.format(*(part.mean for part in parts)) in page


def test_how_often_classes_and_pairs_meet(page):
    for n, text in ((64, "29 %"), (4112, "0.5 %")):
        share = 1 - math.comb(n - 6, 4) / math.comb(n - 1, 4)  # none of the five nearest is there
        assert f"{100 * share:.{0 if n == 64 else 1}f} %" == text
        assert text in page
    visits = [60_000 * math.comb(5, 2) / math.comb(n, 2) for n in (64, 4112)]
    assert "{:.0f} times, and each pair of 4,112 classes {:.2f} times".format(*visits) in page
