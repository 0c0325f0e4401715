"""Curves over seeds, against what a hand would draw."""

import numpy as np
import pytest

from adaptask.report.page.data import aggregate


def points(steps, values):
    return np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)


def test_mean_and_range_are_those_worked_by_hand():
    curve = aggregate([points([10, 20], [1.0, 2.0]), points([10, 20], [3.0, 8.0])])
    assert curve.steps.tolist() == [10, 20]
    assert curve.mean.tolist() == [2.0, 5.0]
    assert curve.low.tolist() == [1.0, 2.0]
    assert curve.high.tolist() == [3.0, 8.0]


def test_an_unfinished_run_counts_as_far_as_it_goes():
    curve = aggregate([points([10, 20, 30], [1.0, 2.0, 6.0]), points([10], [5.0])])
    assert curve.mean.tolist() == [3.0, 2.0, 6.0]


def test_many_records_become_the_means_of_stretches():
    # Steps 1 to 8 in four stretches: (1, 2), (3, 4), (5, 6), (7, 8).
    curve = aggregate([points(range(1, 9), [1, 3, 5, 7, 9, 11, 13, 15])], max_points=4)
    assert curve.steps.tolist() == [2, 4, 6, 8]
    assert curve.mean.tolist() == [2.0, 6.0, 10.0, 14.0]


def test_a_stretch_weighs_runs_alike_however_often_they_record():
    often = points([1, 2, 3, 4], [0.0, 0.0, 0.0, 0.0])
    seldom = points([4], [1.0])
    curve = aggregate([often, seldom], max_points=1)
    assert curve.steps.tolist() == [4]
    assert curve.mean.tolist() == [0.5]


@pytest.mark.parametrize("runs", [[], [points([], [])], [points([], []), points([], [])]])
def test_nothing_recorded_is_an_empty_curve(runs):
    assert aggregate(runs).is_empty


def test_a_run_without_records_changes_nothing():
    some = points([1, 2], [4.0, 5.0])
    curve = aggregate([some, points([], [])])
    assert curve.mean.tolist() == [4.0, 5.0]


def test_a_curve_lies_within_its_range_and_within_the_number_of_points():
    random = np.random.default_rng(0)
    runs = [points(np.arange(7, 3000, 7)[: random.integers(50, 400)], []) for _ in range(6)]
    runs = [(steps, random.normal(size=len(steps))) for steps, _ in runs]
    curve = aggregate(runs, max_points=37)
    assert len(curve.steps) <= 37
    assert np.all(np.diff(curve.steps) > 0)
    assert np.all((curve.low <= curve.mean) & (curve.mean <= curve.high))
