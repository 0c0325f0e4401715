"""Curves in characters, against dots computed one by one."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptask.experiments.watching.braille import draw_curves

# Unicode's numbering of the dots: 1 2 3 7 down the left column, 4 5 6 8 down the right.
DOTS = {(0, 0): 1, (1, 0): 2, (2, 0): 3, (3, 0): 7, (0, 1): 4, (1, 1): 5, (2, 1): 6, (3, 1): 8}


def filled(rows, curve=0):
    """The dots of a drawing as (column, level from below)."""
    found = set()
    for y, row in enumerate(rows):
        for x, (character, on_top) in enumerate(row):
            code = ord(character) - 0x2800 if on_top == curve else 0
            for (down, right), number in DOTS.items():
                if code >> (number - 1) & 1:
                    found.add((2 * x + right, 4 * len(rows) - 1 - (4 * y + down)))
    return found


def test_a_diagonal():
    xs = np.arange(8)
    rows = draw_curves([(xs, xs)], width=4, height=2, x_range=(0, 7), y_range=(0, 7))
    assert filled(rows) == {(i, i) for i in range(8)}
    assert "".join(character for character, _ in rows[0]) == "  ⡠⠊"


def test_a_level_and_a_single_point():
    rows = draw_curves([([0, 7], [1.0, 1.0])], width=4, height=1, x_range=(0, 7), y_range=(0, 3))
    assert filled(rows) == {(i, 1) for i in range(8)}
    rows = draw_curves([([7], [0.0])], width=4, height=1, x_range=(0, 7), y_range=(0, 3))
    assert filled(rows) == {(7, 0)}
    rows = draw_curves([([7], [0.5])], width=4, height=1, x_range=(0, 7), y_range=(0.5, 0.5))
    assert filled(rows) == {(7, 2)}


def test_the_later_curve_is_seen_and_nothing_is_drawn_of_none():
    level = ([0, 7], [0.0, 0.0])
    rows = draw_curves([level, level], width=4, height=1, x_range=(0, 7), y_range=(0, 3))
    assert {curve for _, curve in rows[0]} == {1}
    rows = draw_curves([([], [])], width=4, height=2, x_range=(0, 7), y_range=(0, 3))
    assert rows == [[(" ", None)] * 4] * 2


def test_points_of_one_column_count_with_their_mean():
    rows = draw_curves([([0, 0], [0.0, 2.0])], width=1, height=1, x_range=(0, 1), y_range=(0, 3))
    assert filled(rows) == {(0, 1)}


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30))
@settings(max_examples=60, deadline=None)
def test_a_curve_has_no_gaps_and_stays_within(values):
    xs = np.linspace(0, 1, len(values))
    rows = draw_curves([(xs, values)], width=10, height=3, x_range=(0, 1), y_range=(0, 1))
    dots = filled(rows)
    columns = [{level for column, level in dots if column == i} for i in range(20)]
    for here, there in itertools.pairwise(columns):
        assert min(abs(a - b) for a in here for b in there) <= 1
    assert [len(row) for row in rows] == [10, 10, 10]


@pytest.mark.parametrize("count", [3, 2000])
def test_any_number_of_points_fills_the_width_that_they_reach(count):
    xs = np.linspace(0, 50, count)
    rows = draw_curves([(xs, xs)], width=10, height=3, x_range=(0, 100), y_range=(0, 50))
    assert {column for column, _ in filled(rows)} == set(range(11))
