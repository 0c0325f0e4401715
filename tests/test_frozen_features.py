"""The page on samplers for frozen features says what the records say."""

import csv
import importlib
import re
import statistics
from pathlib import Path

import pytest
import torch
from scipy import stats

from adaptask import load_run, open_episodes
from adaptask.cli import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = (DOCS / "frozen-features.md").read_text()
with (DOCS / "reproduction" / "frozen-features.csv").open() as stream:
    RECORDS = list(csv.DictReader(stream))
CONCLUSION = PAGE.partition("## What came out\n")[2].partition("\nEach line of")[0]
FULL = {"none", "uniform", "neighbor", "uniform, best way", "neighbor, permuted"}
"""Arms of `linear` with ten seeds."""


def accuracies(features, backbone, arm, field="accuracy"):
    """By seed; the features as they are with the seeds of uniform, if the arm is not trained."""
    wanted = (features, "identity" if arm == "none" else backbone, arm)
    found = {
        int(row["seed"]): float(row[field])
        for row in RECORDS
        if (row["features"], row["backbone"], row["arm"]) == wanted
    }
    if arm == "none":
        return {seed: found[seed] for seed in accuracies(features, backbone, "uniform")}
    return found


def differences(features, backbone, arm, field="accuracy", baseline="uniform"):
    ours = accuracies(features, backbone, arm, field)
    theirs = accuracies(features, backbone, baseline, field)
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def described(found):
    mean = statistics.fmean(found)
    half = stats.t.ppf(0.975, len(found) - 1) * stats.sem(found)
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"


def p_text(p):
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def p_of(found):
    return stats.ttest_1samp(found, 0).pvalue


def arm_of(cell):
    """The arm that a line of a table is about."""
    if cell == "no training":
        return "none"
    return cell.replace("`", "").replace("class ids ", "").replace("strength ", "")


def tables():
    for features, backbone in re.findall(r"<!-- (omniglot|cifar-fs) (\w+) -->", PAGE):
        begin, end = f"<!-- {features} {backbone} -->", f"<!-- end of {features} {backbone} -->"
        lines = PAGE.partition(begin)[2].partition(end)[0].strip().splitlines()
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
        yield features, backbone, rows


TABLES = list(tables())


def test_every_run_is_in_the_records_once():
    keys = [(r["features"], r["backbone"], r["arm"], r["seed"]) for r in RECORDS]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(("features", "backbone", "rows"), TABLES, ids=lambda value: str(value)[:9])
def test_the_table_is_that_of_the_records(features, backbone, rows):
    shown = {"identity", backbone}
    recorded = {r["arm"] for r in RECORDS if r["features"] == features and r["backbone"] in shown}
    assert {arm_of(row[0]) for row in rows} == recorded
    for row in rows:
        arm = arm_of(row[0])
        found = accuracies(features, backbone, arm)
        assert sorted(found) == list(range(len(found)))
        assert len(found) == 10 if backbone == "linear" and arm in FULL else len(found) >= 5
        expected = [str(len(found)), f"{statistics.fmean(found.values()):.2f}", "", ""]
        if arm != "uniform":
            pairs = differences(features, backbone, arm)
            expected[2:] = [described(pairs), p_text(p_of(pairs))]
        if features == "omniglot":
            within = accuracies(features, backbone, arm, "within_group")
            pairs = differences(features, backbone, arm, "within_group")
            expected.append(f"{statistics.fmean(within.values()):.2f}")
            expected.append("" if arm == "uniform" else described(pairs))
        train = accuracies(features, backbone, arm, "train_accuracy").values()
        assert row[1:] == [*expected, f"{statistics.fmean(train):.1f}"]


def test_there_is_a_table_for_all_features_and_backbones():
    assert {(features, backbone) for features, backbone, _ in TABLES} == {
        (row["features"], row["backbone"]) for row in RECORDS if row["backbone"] != "identity"
    }


def test_the_settings_of_the_runs_are_those_that_validation_chose():
    section = PAGE.partition("## How the settings were chosen")[2]
    rates = re.search(r"\| (0\.0001) \| (0\.001) \| (0\.01) \|", section).groups()
    chosen = {}
    for line in re.findall(r"^\| (?:Omniglot|CIFAR-FS) \|.*$", section, flags=re.M):
        name, backbone, _, n_way, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        key = name.lower(), backbone.strip("`"), "uniform" if n_way == "5" else "uniform, best way"
        for rate, cell in zip(rates, cells, strict=True):
            if cell:
                chosen.setdefault(key, []).append(
                    (float(cell.strip("*")), n_way, float(rate), cell)
                )
    for (name, backbone, arm), tried in chosen.items():
        _, n_way, rate, cell = max(tried)
        assert cell.startswith("**")
        used = {
            (row["n_way"], float(row["lr"]), row["steps"])
            for row in RECORDS
            if (row["features"], row["backbone"], row["arm"]) == (name, backbone, arm)
        }
        assert used <= {(n_way, rate, "1000")}


def test_the_primary_comparison_is_that_of_the_records():
    fields = ("accuracy", "within_group")
    pairs = [differences("omniglot", "linear", "neighbor", field) for field in fields]
    assert [len(found) for found in pairs] == [10, 10]
    small, large = sorted(map(p_of, pairs))
    corrected = (min(1, 2 * small), max(min(1, 2 * small), large))
    assert (
        "{} on tasks of any classes and {} within alphabets".format(*map(described, pairs))
        in CONCLUSION
    )
    assert f"p = {corrected[0]:.3f} for both" in CONCLUSION
    assert f"{corrected[0]:.3f}" == f"{corrected[1]:.3f}"


def test_the_differences_in_the_text_are_those_of_the_records():
    linear = ("omniglot", "linear")
    expected = [
        differences(*linear, "neighbor"),
        differences(*linear, "neighbor", "within_group"),
        differences(*linear, "neighbor, permuted"),
        differences(*linear, "uniform, best way"),
        differences(*linear, "neighbor, best way", baseline="uniform, best way"),
        differences(*linear, "neighbor, fixed"),
        differences("cifar-fs", "linear", "neighbor, fixed"),
        differences(*linear, "uniform", baseline="none"),
        differences("cifar-fs", "linear", "uniform", baseline="none"),
        differences("omniglot", "mlp", "uniform", baseline="none"),
        differences("cifar-fs", "mlp", "uniform", baseline="none"),
        differences("cifar-fs", "linear", "uniform, best way"),
        differences(*linear, "uniform, longer"),
        *(
            differences(*linear, f"{arm}, longer", field, baseline="uniform, longer")
            for arm in ("neighbor", "uniform, best way")
            for field in ("accuracy", "within_group")
        ),
    ]
    said = re.findall(r"[+-]\d\.\d\d \[[^]]*\]", CONCLUSION)
    assert said == [described(found) for found in expected]
    shares = [
        statistics.fmean(accuracies(features, "linear", "none", "train_accuracy").values())
        for features in ("omniglot", "cifar-fs")
    ]
    assert re.findall(r"(\d+\.\d) %", CONCLUSION) == [f"{share:.1f}" for share in shares]


def test_the_features_are_those_that_the_learner_compares(glyphs_of_noise, tmp_path, monkeypatch):
    words = "pretrain --dataset glyphs --steps 2 --backbone.filters 4 --device cpu --n-way 8"
    words += " --evaluation.n-episodes 2 --evaluation.n-validation 2 --output"
    assert main([*words.split(), str(tmp_path / "run")]) == 0
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script = importlib.import_module("frozen_features")
    features, labels = script.extract(tmp_path / "run", "glyphs", "val")
    source, learner = open_episodes("glyphs", "val"), load_run(tmp_path / "run").learner
    found_in = source.image_set
    names = [f"{g}/{c}" for g, c in zip(found_in.groups, found_in.class_names, strict=True)]
    assert list(dict.fromkeys(labels.tolist())) == names
    n_images = found_in.class_counts()[0]
    episodes = source.draw(torch.tensor([[0, 3]]), n_shot=1, n_query=n_images - 1)
    images = torch.cat((episodes.support_images, episodes.query_images), dim=1)
    with torch.no_grad():
        expected = learner.embed(images)[0]
    own = torch.cat((episodes.support_labels, episodes.query_labels), dim=1)[0]
    for label, number in enumerate((0, 3)):
        found = torch.tensor(features[labels == names[number]])
        distances = (found[:, None] - expected[own == label].flatten(1)).norm(dim=-1)
        assert len(found) == n_images
        assert distances.min(0).values.max() < 1e-5  # an episode has the images in any order
        assert distances.min(1).values.max() < 1e-5
        assert distances.max() > 1e-2
