"""What came out of a study, from folders of runs with chosen results."""

import json
import re
import shutil

import numpy as np
import pytest
from scipy import stats

from adaptask.report.grouping import find_study
from adaptask.report.run import Run
from adaptask.report.study import Arm, Study, read_study
from adaptask.report.summary import summarize
from adaptask.report.verdicts import headline, missing_runs, short_verdict, verdicts

UNIFORM = {0: 0.50, 1: 0.52, 2: 0.48, 3: 0.51, 4: 0.49}
THREE = {seed: UNIFORM[seed] for seed in range(3)}


def summary_of(folder):
    return summarize(read_study(folder))


@pytest.fixture
def complete(study_folder):
    """Two learners, two samplers against uniform, five seeds."""
    return summary_of(
        study_folder(
            {
                ("protonet", "uniform"): UNIFORM,
                ("protonet", "c"): {0: 0.51, 1: 0.51, 2: 0.49, 3: 0.50, 4: 0.51},
                ("protonet", "gcp"): {0: 0.53, 1: 0.551, 2: 0.509, 3: 0.54, 4: 0.52},
                ("maml", "uniform"): UNIFORM,
                ("maml", "gcp"): {0: 0.47, 1: 0.489, 2: 0.451, 3: 0.48, 4: 0.46},
            },
            seconds={("protonet", "gcp"): 0.012},
        )
    )


def test_an_arm_has_its_mean_interval_and_spread(complete):
    found = complete.arm("protonet uniform")
    assert (found.n_finished, found.n_planned) == (5, 5)
    assert found.accuracies == pytest.approx({0: 50, 1: 52, 2: 48, 3: 51, 4: 49})
    assert found.mean.mean == pytest.approx(50)
    assert found.spread == pytest.approx(np.sqrt(10 / 4))
    # The runs differ by a shift alone: the interval is that of each.
    alone = np.random.default_rng(0).normal(0, 0.08, 200)
    assert found.mean.half_width == pytest.approx(196 * alone.std(ddof=1) / np.sqrt(200))
    assert (found.difference, found.p) == (None, None)


def test_differences_are_paired_by_seed_and_corrected_over_the_study(complete):
    uniform = [100 * value for value in UNIFORM.values()]
    arms = {
        "protonet c": [51, 51, 49, 50, 51],
        "protonet gcp": [53, 55.1, 50.9, 54, 52],
        "maml gcp": [47, 48.9, 45.1, 48, 46],
    }
    plain = {name: stats.ttest_rel(values, uniform).pvalue for name, values in arms.items()}
    # Holm's correction by hand: the smallest three times, the next twice, the last as it is.
    first, second, third = sorted(plain, key=plain.get)
    corrected = {first: 3 * plain[first]}
    corrected[second] = max(corrected[first], 2 * plain[second])
    corrected[third] = max(corrected[second], plain[third])
    assert complete.n_tests == 3
    for name, values in arms.items():
        found = complete.arm(name)
        assert found.difference.mean == pytest.approx(np.mean(values) - 50)
        assert found.difference.p == pytest.approx(plain[name])
        assert found.p == pytest.approx(corrected[name])
    assert complete.arm("protonet gcp").is_significant
    assert not complete.arm("protonet c").is_significant


def test_what_could_have_been_seen_counts_with_the_correction(complete):
    found = complete.arm("protonet c")
    assert found.detectable == pytest.approx(found.difference.detectable(0.05 / 3))
    assert found.detectable > found.difference.detectable()


def test_the_time_of_a_step_is_the_median_over_the_seeds(complete):
    assert complete.arm("protonet gcp").seconds_per_step == pytest.approx(0.012)


def test_verdicts_say_plainly_what_is_better(complete):
    said = verdicts(complete)
    assert len(said) == 3
    assert said[1].startswith("gcp against uniform with protonet: +3.00 points [+2.91, +3.09], p ")
    assert said[1].endswith("(Holm, 3 comparisons), 5 seeds: gcp is better than uniform.")
    assert said[2].startswith("gcp against uniform with maml: -3.00 points [-3.09, -2.91], p ")
    assert said[2].endswith("5 seeds: gcp is worse than uniform.")
    assert [short_verdict(found) for found in complete.arms] == [
        *("", "not significant", "better", "", "worse"),
    ]


def test_a_verdict_without_significance_says_what_could_have_been_seen(complete):
    said = verdicts(complete)[0]
    about = complete.arm("protonet c").detectable
    # Differences 1, -1, 1, -1, 2: mean 0.4 with an error of 0.6, so that t = 2/3, p = 0.54 and the
    # interval is 2.7764 errors to both sides. As the largest p it is not corrected.
    assert said == (
        "c against uniform with protonet: +0.40 points [-1.27, +2.07], p = 0.54 (Holm, 3 "
        "comparisons), 5 seeds: no significant difference; one below about "
        f"{about:.1f} points would not have been detected reliably; it takes more than 100 "
        "seeds to detect a difference of this size."
    )


def test_complete_studies_fall_short_of_nothing(complete):
    assert missing_runs(complete) == []
    assert complete.remarks == ()


def test_one_comparison_needs_no_correction(study_folder):
    summary = summary_of(
        study_folder(
            {("protonet", "uniform"): UNIFORM, ("protonet", "gcp"): {0: 0.53, 1: 0.5, 2: 0.5}}
        )
    )
    [said] = verdicts(summary)
    assert said.startswith("gcp against uniform: +1.00 points [")  # all have the same learner
    assert "Holm" not in said
    found = summary.arm("protonet gcp")
    assert found.p == found.difference.p


def test_one_seed_says_nothing(study_folder):
    summary = summary_of(
        study_folder({("protonet", "uniform"): {0: 0.5}, ("protonet", "gcp"): {0: 0.6}})
    )
    [said] = verdicts(summary)
    assert said.startswith("gcp against uniform: +10.00 points; one seed says nothing about")
    assert "better" not in said
    assert short_verdict(summary.arms[1]) == "one seed"
    assert (summary.n_tests, summary.arms[1].p, summary.arms[1].spread) == (0, None, None)


@pytest.mark.parametrize(
    ("shift", "words"),
    [(0.0, "the same accuracy with each of 5 seeds"), (0.01, "+1.00 points with each of 5 seeds")],
)
def test_equal_differences_are_not_sold_as_certainty(study_folder, shift, words):
    gcp = {seed: value + shift for seed, value in UNIFORM.items()}
    summary = summary_of(study_folder({("maml", "uniform"): UNIFORM, ("maml", "gcp"): gcp}))
    [said] = verdicts(summary)
    assert words in said
    assert "better" not in said
    assert "test" in said
    assert short_verdict(summary.arms[1]) == "no spread"


def test_an_interval_without_0_beside_a_corrected_p_is_explained(study_folder):
    # By itself p = 0.037; of two, 0.074.
    gains = [0.02, 0.004, 0.015, 0.022, 0.002]
    arms = {("p", "uniform"): dict.fromkeys(range(5), 0.5)}
    arms["p", "gcp"] = {seed: 0.5 + gain for seed, gain in enumerate(gains)}
    arms["p", "c"] = {0: 0.52, 1: 0.47, 2: 0.5, 3: 0.51, 4: 0.49}
    folder = study_folder({k: dict(v) for k, v in arms.items()})
    summary = summarize(read_study(folder))
    found = summary.arm("p gcp")
    assert found.difference.p < 0.05 <= found.p
    said = dict(zip(("gcp", "c"), verdicts(summary), strict=True))
    assert "no significant difference (the interval, of this comparison alone" in said["gcp"]
    assert "alone" not in said["c"]
    assert headline(summary).startswith("No difference is shown with 5 seeds: ")


def test_a_headline_says_what_is_better_and_by_how_much(study_folder):
    even = {0: 0.5, 1: 0.51, 2: 0.49, 3: 0.5, 4: 0.5}
    folder = study_folder(
        {
            ("p", "uniform"): even,
            ("p", "gcp"): {0: 0.6, 1: 0.611, 2: 0.59, 3: 0.6, 4: 0.6},
            ("p", "c"): {0: 0.52, 1: 0.47, 2: 0.5, 3: 0.5, 4: 0.5},
        }
    )
    said = headline(summarize(read_study(folder)))
    assert said == "gcp is better than uniform, by 10.02 points. No difference is shown for c."
    shutil.rmtree(folder / "runs")
    assert headline(summarize(read_study(folder))) == "No two arms could be compared seed by seed."


@pytest.mark.parametrize("gain", [0.1, 0.0])
def test_a_headline_tells_too_few_seeds_from_no_difference(study_folder, gain):
    noise = [0.0, 0.01, -0.01, 0.02, -0.02, 0.0]
    summary = summary_of(
        study_folder(
            {
                ("p", "uniform"): dict.fromkeys(range(6), 0.5),
                ("p", "gcp"): {seed: 0.5 + gain + noise[seed] for seed in range(6)},
                ("p", "cp"): {0: 0.6, 1: 0.61},
                ("p", "c"): {seed: 0.5 + noise[-1 - seed] for seed in range(6)},
                ("p", "instance"): {0: 0.6},
            }
        )
    )
    start = (
        "gcp is better than uniform, by 10.00 points. No difference is shown for c."
        if gain
        else "No difference is shown with 6 seeds: what was measured may be chance. "
        "It takes more than 100 seeds to detect differences of this size."
    )
    assert headline(summary) == f"{start} Too few seeds for cp, instance."


def test_a_headline_without_any_spread_says_that_nothing_could_be_tested(study_folder):
    arms = {("p", "uniform"): UNIFORM, ("p", "gcp"): UNIFORM, ("p", "c"): {0: 0.6, 1: 0.61}}
    said = headline(summary_of(study_folder(arms)))
    assert said == (
        "Nothing could be tested: every seed differs by the same amount. Too few seeds for c."
    )


def test_a_headline_answers_only_what_was_asked(study_folder):
    assert headline(summary_of(study_folder({("p", "gcp"): UNIFORM, ("p", "c"): UNIFORM}))) == ""


def test_a_headline_of_many_names_some(study_folder):
    arms = {}
    for n in range(7):
        arms[f"l{n}", "uniform"] = UNIFORM
        gains = [0.1, 0.101, 0.099, 0.1, 0.1] if n < 6 else [0.1, -0.1, 0.05, -0.05, 0.01]
        arms[f"l{n}", "gcp"] = {seed: UNIFORM[seed] + gain for seed, gain in enumerate(gains)}
    said = headline(summary_of(study_folder(arms)))
    assert said.startswith("gcp is better than uniform with l0, by 10.00 points. gcp is better")
    assert said.endswith(
        "with l4, by 10.00 points. In all, 6 differences are significant. No difference is shown "
        "for gcp with l6."
    )


def test_a_headline_says_how_many_seeds_would_tell(study_folder):
    def said(gains):
        arms = {("p", "uniform"): {seed: UNIFORM[seed % 5] for seed in range(len(gains))}}
        arms["p", "gcp"] = {s: UNIFORM[s % 5] + gain for s, gain in enumerate(gains)}
        return headline(summary_of(study_folder(arms)))

    # Mean 0.01, standard deviation 0.02: an effect of half a standard deviation takes 34 seeds.
    assert said([0.01 + 0.02 * z for z in (-1, 0, 1)]) == (
        "3 seeds are too few to tell: at least 5 are needed. It takes about 34 seeds to detect "
        "a difference of this size."
    )


@pytest.mark.parametrize("n_seeds", [2, 4])
def test_there_is_no_verdict_below_five_seeds_but_the_figures_are_there(study_folder, n_seeds):
    gains = [0.1, 0.101, 0.099, 0.1]
    uniform = {seed: UNIFORM[seed] for seed in range(n_seeds)}
    gcp = {seed: value + gains[seed] for seed, value in uniform.items()}
    arms = {
        (learner, sampler): found
        for learner in ("maml", "anil")
        for sampler, found in (("uniform", uniform), ("gcp", gcp))
    }
    summary = summary_of(study_folder(arms))
    for said in verdicts(summary):
        assert re.search(r"\+10\.\d\d points \[\+\d.*\], p ", said)
        assert said.endswith(f"{n_seeds} seeds: too few seeds for a verdict, 5 are needed.")
    assert summary.arm("maml gcp").p < 0.05
    assert not summary.arm("maml gcp").is_significant
    assert short_verdict(summary.arm("maml gcp")) == "too few seeds"
    few = f"{n_seeds} seeds are too few to tell: at least 5 are needed."
    assert headline(summary) == few  # so large a difference takes no more


def test_the_choice_of_test_tasks_is_part_of_the_interval(tmp_path, write_run):
    """Five seeds that agree on 100 tasks say little about other tasks."""
    rng = np.random.default_rng(0)
    tasks = rng.normal(0.02, 0.1, 100)  # by how much gcp is better on each task: 2 points, sd 10
    shared = rng.uniform(0.3, 0.6, 100)
    for seed in range(5):
        for sampler, gain in (("uniform", 0.0), ("gcp", tasks)):
            accuracies = (shared + gain + rng.normal(0, 0.002)).clip(0, 1)
            folder = tmp_path / f"{sampler}-{seed}"
            write_run(folder, sampler=sampler, seed=seed, accuracies=accuracies)
    found = summarize(find_study(tmp_path)).arm("gcp")
    over_tasks = 100 * tasks.std(ddof=1) / 10
    assert found.difference.error > 0.95 * over_tasks
    assert found.difference.half_width == pytest.approx(2 * over_tasks, rel=0.1)
    by_seeds_alone = found.difference.spread / np.sqrt(5)
    assert by_seeds_alone < 0.3 * found.difference.error


def test_unfinished_and_failed_runs_are_counted_and_named(study_folder):
    trace = 'Traceback (most recent call last):\n  File "x"\nValueError: no room'
    summary = summary_of(
        study_folder(
            {
                ("protonet", "uniform"): {**THREE, 3: ""},
                ("protonet", "c"): {0: None, 1: "", 2: "too hot\nsecond line", 3: trace},
                ("protonet", "gcp"): {0: 0.53, 1: 0.56, 2: None, 3: trace},
            }
        )
    )
    c, gcp = summary.arm("protonet c"), summary.arm("protonet gcp")
    assert c.mean is None
    assert dict(c.failures) == {2: "too hot", 3: "ValueError: no room"}
    assert dict(c.unfinished) == {0: "1000 of 1000 steps, not tested", 1: "not begun"}
    assert gcp.difference.seeds == (0, 1)
    said = verdicts(summary)
    assert said[0] == "c against uniform: no seed has finished in both."
    assert "2 seeds" in said[1]
    assert missing_runs(summary) == [
        "protonet uniform, seed 3 not finished: not begun.",
        "protonet c, seed 2 failed: too hot",
        "protonet c, seed 3 failed: ValueError: no room",
        "protonet c, seed 0 not finished: 1000 of 1000 steps, not tested.",
        "protonet c, seed 1 not finished: not begun.",
        "protonet gcp, seed 3 failed: ValueError: no room",
        "protonet gcp, seed 2 not finished: 1000 of 1000 steps, not tested.",
    ]


def test_runs_that_fell_short_in_the_same_way_share_a_sentence(study_folder):
    summary = summary_of(study_folder({("maml", "uniform"): {0: "", 1: "", 2: "hot", 3: "hot"}}))
    assert missing_runs(summary) == [
        "maml uniform, seeds 2, 3 failed: hot",
        "maml uniform, seeds 0, 1 not finished: not begun.",
    ]


def test_a_run_that_finished_after_a_failure_has_finished(study_folder):
    folder = study_folder({("maml", "uniform"): {0: 0.5}})
    (folder / "runs/0/0/failure.txt").write_text("once")
    assert summary_of(folder).arms[0].failures == {}


def test_a_study_whose_runs_are_gone_has_none(tmp_path):
    study = Study("s", (Arm("a", {"sampler": "gcp"}, (Run(tmp_path / "runs/a"),)),))
    [found] = summarize(study).arms
    assert dict(found.unfinished) == {0: "not begun"}
    assert (found.mean, found.seconds_per_step) == (None, None)


def test_a_damaged_run_fails_alone(study_folder):
    folder = study_folder({("maml", "uniform"): THREE, ("maml", "gcp"): THREE})
    (folder / "runs/0/0/test.json").write_text("{")
    (folder / "runs/1/1/metrics.jsonl").write_text("{\n")
    (folder / "runs/1/2/config.toml").write_text("= =")
    summary = summary_of(folder)
    uniform, gcp = summary.arms
    assert "test.json is damaged" in uniform.failures[0]
    assert uniform.n_finished == 2
    assert "config.toml is damaged" in gcp.failures[2]
    assert gcp.difference.seeds == (1,)
    assert gcp.seconds_per_step == pytest.approx(0.01)  # of the runs whose records are whole


def test_other_episodes_are_remarked_on(study_folder):
    folder = study_folder({("maml", "uniform"): UNIFORM, ("maml", "gcp"): UNIFORM})
    config = folder / "runs/1/0/config.toml"
    config.write_text(config.read_text().replace("n_episodes = 200", "n_episodes = 50"))
    [remark] = summary_of(folder).remarks
    assert "maml gcp and maml uniform were tested on different episodes" in remark


def test_different_precisions_are_remarked_on(study_folder):
    folder = study_folder({("maml", "uniform"): UNIFORM, ("maml", "gcp"): UNIFORM})
    assert summary_of(folder).remarks == ()
    config = folder / "runs/1/0/config.toml"
    assert 'precision = "float32"' in config.read_text()
    config.write_text(config.read_text().replace('"float32"', '"bfloat16"'))
    [remark] = summary_of(folder).remarks
    assert "different precisions, bfloat16 and float32" in remark


def test_numbers_among_the_labels_are_named(study_folder):
    results = {
        (learner, shots, alpha, sampler): {0: 0.5, 1: 0.51}
        for learner in ("maml", "anil")
        for shots in ("1", "5")
        for alpha, sampler in (("-", "uniform"), ("2", "gcp"))
    }
    folder = study_folder(results, keys=("learner", "shots", "alpha", "sampler"))
    study = read_study(folder)
    arms = [
        Arm(
            a.name,
            a.labels,
            a.runs,
            a.name.replace("2 gcp", "- uniform") if "gcp" in a.name else None,
        )
        for a in study.arms
    ]
    said = verdicts(summarize(Study("s", tuple(arms))))
    assert said[0].startswith("alpha 2, gcp against uniform with maml, 1-shot: ")


def test_what_a_sampler_says_of_its_runs_is_a_remark_and_more_seeds_are_not_advised(study_folder):
    noisy = {0: 0.50, 1: 0.52, 2: 0.49, 3: 0.53, 4: 0.51}
    other = {0: 0.51, 1: 0.50, 2: 0.51, 3: 0.52, 4: 0.52}
    arms = {"uniform": noisy, "near": other}
    folder = study_folder({(p, s): arms[s] for p in ("protonet", "maml") for s in arms})
    before = summarize(read_study(folder))
    assert before.remarks == ()
    assert all("seeds to detect" in text for text in (*verdicts(before), headline(before)))
    for arm in read_study(folder).arms:
        note = {} if arm.labels["sampler"] == "uniform" else {"note": "It is uniform here."}
        for run in arm.runs:
            sampler = {"name": arm.labels["sampler"], "description": "draws", **note}
            (run.path / "algorithms.json").write_text(json.dumps({"sampler": sampler}))
    noted = summarize(read_study(folder))
    assert noted.remarks == ("Note on near: It is uniform here.",)
    assert len(verdicts(noted)) == 2
    assert not any("seeds to detect" in text for text in (*verdicts(noted), headline(noted)))
