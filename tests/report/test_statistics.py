"""Means and tests, against scipy, definitions, numbers worked by hand, and simulation."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from adaptask.report.statistics import (
    holm,
    mean_interval,
    paired_difference,
    spread_over_seeds,
)


def by_seed(values):
    return dict(enumerate(values))


def test_the_interval_of_one_run_is_1_96_standard_errors():
    # Mean 0.5; deviations -0.3, -0.1, 0.1, 0.3: variance 0.2 / 3.
    found = mean_interval([np.array([0.2, 0.4, 0.6, 0.8])])
    assert found.mean == pytest.approx(0.5)
    assert found.half_width == pytest.approx(1.96 * math.sqrt(0.2 / 3) / 2)


def test_runs_are_averaged_episode_by_episode_first():
    # The runs disagree by the same amount in every episode: no spread is left over the episodes.
    found = mean_interval([np.array([0.2, 0.8, 0.4]), np.array([0.8, 0.2, 0.6])])
    assert found.mean == pytest.approx(0.5)
    assert found.half_width == pytest.approx(0)


def test_a_run_counted_twice_does_not_narrow_the_interval():
    values = np.random.default_rng(0).random(50)
    once, twice = mean_interval([values]), mean_interval([values, values])
    assert twice.half_width == pytest.approx(once.half_width)


def test_the_interval_covers_the_mean_over_all_tasks_95_times_in_100():
    rng = np.random.default_rng(1)
    # Three runs share the difficulty of each episode; the truth is the mean over tasks, 0.5.
    covered = 0
    for _ in range(2000):
        difficulty = rng.normal(0.5, 0.1, 100)
        found = mean_interval([difficulty + rng.normal(0, 0.05, 100) for _ in range(3)])
        covered += abs(found.mean - 0.5) <= found.half_width
    assert 0.935 <= covered / 2000 <= 0.96


def test_other_numbers_of_episodes_have_a_mean_and_no_interval():
    rng = np.random.default_rng(2)
    runs = [rng.random(100), rng.random(80)]
    found = mean_interval(runs)
    assert found.mean == pytest.approx((runs[0].mean() + runs[1].mean()) / 2)
    assert found.half_width is None


def test_one_episode_has_a_mean_and_no_interval():
    assert mean_interval([np.array([0.5])]).half_width is None
    assert mean_interval([np.array([0.5]), np.array([0.5, 0.7])]).half_width is None


def test_the_spread_is_that_of_a_sample():
    values = [0.3, 0.7, 0.2, 0.9]
    assert spread_over_seeds(values) == pytest.approx(statistics.stdev(values))
    assert spread_over_seeds([0.3]) is None
    assert spread_over_seeds([]) is None


def test_a_difference_worked_by_hand():
    # Differences 1, 2, 3: mean 2, deviation 1, error 1/sqrt(3), t = 2 sqrt(3) with 2 degrees of
    # freedom, for which P(|T| > t) = 1 - t / sqrt(2 + t^2) and the 97.5 % point is 4.3027.
    found = paired_difference(by_seed([51.0, 52.0, 53.0]), by_seed([50.0, 50.0, 50.0]))
    t = 2 * math.sqrt(3)
    assert found.mean == pytest.approx(2)
    assert found.spread == pytest.approx(1)
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert found.half_width == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert (found.low, found.high) == (found.mean - found.half_width, found.mean + found.half_width)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 100, width=32), st.floats(0, 100, width=32)), min_size=2, max_size=9
    ).filter(lambda pairs: np.std([a - b for a, b in pairs]) > 1e-3)
)
def test_the_test_is_that_of_scipy(pairs):
    arm, baseline = zip(*pairs, strict=True)
    found = paired_difference(by_seed(arm), by_seed(baseline))
    truth = stats.ttest_rel(arm, baseline)
    assert found.p == pytest.approx(truth.pvalue, rel=1e-6, abs=1e-12)
    low, high = truth.confidence_interval(0.95)
    assert found.low == pytest.approx(low, rel=1e-6, abs=1e-9)
    assert found.high == pytest.approx(high, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_false_findings_are_5_in_100_and_intervals_hold_the_truth_95_times(n):
    rng = np.random.default_rng(n)
    significant = covered = 0
    for _ in range(2000):
        # The seeds share much (initial weights, episodes), which pairing takes out.
        shared = rng.normal(50, 5, n)
        baseline = shared + rng.normal(0, 1, n)
        same = paired_difference(by_seed(shared + rng.normal(0, 1, n)), by_seed(baseline))
        significant += same.p < 0.05
        better = paired_difference(by_seed(shared + rng.normal(1.5, 1, n)), by_seed(baseline))
        covered += better.low <= 1.5 <= better.high
    assert 0.035 <= significant / 2000 <= 0.065  # three standard errors: 0.015
    assert 0.935 <= covered / 2000 <= 0.965


@pytest.mark.parametrize("n_seeds", [5, 8])
@pytest.mark.parametrize(("over_seeds", "over_tasks"), [(0.0, 5.0), (0.3, 5.0), (1.0, 5.0), (1, 0)])
def test_false_findings_are_5_in_100_over_new_seeds_and_new_tasks(n_seeds, over_seeds, over_tasks):
    rng = np.random.default_rng(n_seeds)
    significant = only_seeds = 0
    for _ in range(1000):
        seeds = rng.normal(0, over_seeds, (n_seeds, 1))
        noise = rng.normal(0, 4, (n_seeds, 100))
        by_task = seeds + rng.normal(0, over_tasks, 100) + noise
        arm, baseline = by_seed(by_task.mean(axis=1)), by_seed([0.0] * n_seeds)
        significant += paired_difference(arm, baseline, by_task).p < 0.05
        only_seeds += paired_difference(arm, baseline).p < 0.05
    assert 0.029 <= significant / 1000 <= 0.071  # three standard errors: 0.021
    if over_tasks > 5 * over_seeds:
        assert only_seeds / 1000 > 0.1  # what it is there for


def test_tasks_on_which_seeds_agree_exactly_do_not_change_the_test():
    differences = np.array([1.0, -1.0, 1.0, -1.0, 2.0])
    alone = paired_difference(by_seed(differences), by_seed([0.0] * 5))
    by_task = np.repeat(differences[:, None], 50, axis=1)
    found = paired_difference(by_seed(differences), by_seed([0.0] * 5), by_task)
    assert (found.error, found.freedom, found.p) == pytest.approx((0.6, 4.0, alone.p))


def test_tasks_worked_by_hand():
    # Seeds differ by -1 and 1 on average, tasks by -3 and 3, and nothing is left over: the
    # variances of the mean are 2 / 2 over seeds and 18 / 2 over tasks.
    by_task = np.array([[-4.0, 2.0], [-2.0, 4.0]])
    found = paired_difference(by_seed([-1.0, 1.0]), by_seed([0.0, 0.0]), by_task)
    assert found.error == pytest.approx(math.sqrt(1 + 9))
    assert found.freedom == pytest.approx(10**2 / (1**2 + 9**2))


def test_only_seeds_that_both_have_count():
    found = paired_difference({0: 1.0, 1: 5.0, 7: 100.0}, {1: 3.0, 0: 0.0, 9: -100.0})
    assert found.seeds == (0, 1)
    assert found.mean == pytest.approx(1.5)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None
    assert paired_difference({}, {}) is None


def test_one_seed_has_a_difference_and_no_test():
    found = paired_difference({3: 52.5}, {3: 50.0})
    assert found.mean == 2.5
    assert (found.spread, found.half_width, found.p, found.low, found.high) == (None,) * 5
    assert found.detectable() is None


@pytest.mark.parametrize("difference", [0.0, 0.1, -7.0])
def test_equal_differences_allow_no_test(difference):
    baseline = by_seed([1.1, 33.3, 50.0])
    arm = {seed: value + difference for seed, value in baseline.items()}
    # 0.1 is no binary fraction: the differences are equal up to rounding only.
    assert (len({arm[seed] - baseline[seed] for seed in arm}) > 1) == (difference == 0.1)
    found = paired_difference(arm, baseline)
    assert found.mean == pytest.approx(difference)
    assert (found.half_width, found.p, found.detectable()) == (None, None, None)


def test_a_detectable_difference_is_found_4_times_in_5():
    rng = np.random.default_rng(4)
    # Spread 1 exactly, three seeds.
    size = paired_difference(by_seed([1.0, 0.0, -1.0]), by_seed([0.0] * 3)).detectable()
    draws = rng.normal(size, 1, (4000, 3))
    found = stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05
    assert 0.78 <= found.mean() <= 0.82
    half = stats.ttest_1samp(draws - size / 2, 0, axis=1).pvalue < 0.05
    assert half.mean() < 0.5


@pytest.mark.parametrize("n", [2, 3, 5, 20])
@pytest.mark.parametrize("level", [0.05, 0.05 / 6])
def test_the_power_at_a_detectable_difference_is_that_of_the_noncentral_t(n, level):
    found = paired_difference(by_seed(range(n)), by_seed([0.0] * n))
    noncentrality = found.detectable(level) * math.sqrt(n) / found.spread
    critical = stats.t.isf(level / 2, n - 1)
    assert stats.nct.sf(critical, n - 1, noncentrality) == pytest.approx(0.8, abs=1e-5)


@pytest.mark.parametrize(("effect", "n"), [(0.3, 90), (0.5, 34), (0.8, 15), (1.0, 10), (3.0, 5)])
def test_the_seeds_that_are_needed_are_those_of_tables_of_power(effect, n):
    # Of a paired t-test at 5 % with a power of 80 %, as in Cohen's tables; never fewer than five.
    noise = np.random.default_rng(0).normal(size=9)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    even = by_seed(np.full(9, 50.0))
    assert paired_difference(by_seed(50 + effect + noise), even).seeds_needed() == n
    assert paired_difference(by_seed(50 - effect + noise), even).seeds_needed() == n


def test_as_many_seeds_as_are_needed_find_the_difference_4_times_in_5():
    rng = np.random.default_rng(0)

    def draw(n_seeds):
        """Differences of 1 point: 1.5 points between seeds, 2 between 100 tasks, 10 of noise."""
        tasks = rng.normal(0, 2, 100)
        return 1 + rng.normal(0, 1.5, (n_seeds, 1)) + tasks + rng.normal(0, 10, (n_seeds, 100))

    def compared(by_task):
        means, even = by_seed(50 + by_task.mean(axis=1)), by_seed(np.full(len(by_task), 50.0))
        return paired_difference(means, even, by_task)

    # The estimate from many seeds and as many tasks, with exactly this mean.
    known = draw(400)
    known += 1 - known.mean()
    n = compared(known).seeds_needed()
    assert 30 < n < 50
    found = np.mean([compared(draw(n)).p < 0.05 for _ in range(600)])
    assert found == pytest.approx(0.8, abs=0.07)


def test_no_number_of_seeds_makes_up_for_too_few_tasks():
    rng = np.random.default_rng(0)
    # 0.2 points, where the choice of 100 tasks alone moves the mean by 1.
    by_task = 0.2 + rng.normal(0, 10, 100) + rng.normal(0, 0.1, (8, 100))
    by_task += 0.2 - by_task.mean()
    even = by_seed(np.full(8, 50.0))
    seeds_alone = paired_difference(by_seed(50 + by_task.mean(axis=1)), even)
    assert (
        paired_difference(by_seed(50 + by_task.mean(axis=1)), even, by_task).seeds_needed() is None
    )
    assert seeds_alone.seeds_needed() == 5
    assert paired_difference({0: 50.0}, {0: 49.0}).seeds_needed() is None


def test_more_seeds_see_smaller_differences_and_stricter_levels_only_larger_ones():
    def detectable(n, level=0.05):
        values = [1.0, -1.0] * (n // 2)
        found = paired_difference(by_seed(values), by_seed([0.0] * n))
        return found.detectable(level) / found.spread

    sizes = [detectable(n) for n in (2, 4, 6, 10, 20, 200)]
    assert sizes == sorted(sizes, reverse=True)
    # With many seeds: the normal approximation, (1.960 + 0.842) / sqrt(n).
    assert sizes[-1] == pytest.approx((1.959964 + 0.841621) / math.sqrt(200), rel=0.01)
    assert detectable(4, 0.01) > detectable(4, 0.05)


def by_closure(p_values):
    """Holm's correction by its meaning: reject i if Bonferroni rejects every set that has it."""
    indices = range(len(p_values))
    return [
        max(
            min(1.0, size * min(p_values[j] for j in chosen))
            for size in range(1, len(p_values) + 1)
            for chosen in itertools.combinations(indices, size)
            if i in chosen
        )
        for i in indices
    ]


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), max_size=7))
def test_holm_is_the_closure_of_bonferroni(p_values):
    assert holm(p_values) == pytest.approx(by_closure(p_values))


def test_holm_keeps_false_findings_of_a_whole_study_at_5_in_100():
    rng = np.random.default_rng(5)
    studies = rng.random((4000, 6))
    assert np.mean([min(holm(list(p))) < 0.05 for p in studies]) <= 0.06
    assert np.mean([min(p) < 0.05 for p in studies]) > 0.2


def test_there_is_at_least_one_degree_of_freedom():
    # Two tasks whose means differ a little more than noise would make them: what is left after the
    # subtraction is far below its own uncertainty.
    noise = np.array([[0.0, 1.0], [1.0, 0.01]])
    by_task = noise - noise.mean() + np.array([[0.01], [-0.01]])
    arm = {seed: float(row.mean()) for seed, row in enumerate(by_task)}
    found = paired_difference(arm, dict.fromkeys(arm, 0.0), by_task)
    assert found.freedom >= 1
    assert np.isfinite(found.detectable(0.025))
    assert np.isfinite(found.half_width)
