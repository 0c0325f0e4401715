"""What makes a task worth drawing again: the utility of a confusion `p`.

The paper (section 5.3, "Efficacy of different adaptive task sampling strategies") compares three.
With the paper's sum of both directions (Eq. 6) `p` lies between 0 and 2, so that `easy` and
`uncertain` can fall below zero for a pair confused more often than not; with `confusion="mean"`
they cannot.
"""

from __future__ import annotations

from collections.abc import Callable

from adaptask.arguments import check_choice
from adaptask.samplers.arrays import Array

Strategy = Callable[[Array], Array]


def hard(confusion: Array) -> Array:
    """Prefer what the learner confuses, `p`."""
    return confusion


def easy(confusion: Array) -> Array:
    """Prefer what the learner tells apart, `1 - p`."""
    return 1 - confusion


def uncertain(confusion: Array) -> Array:
    """Prefer what the learner is undecided about, `p (1 - p)`."""
    return confusion * (1 - confusion)


STRATEGIES: dict[str, Strategy] = {"hard": hard, "easy": easy, "uncertain": uncertain}
"""Every strategy by its name."""


def find_strategy(name: str) -> Strategy:
    """Return the strategy of that name.

    Raises:
        ArgumentError: If there is none; the message lists the choices.
    """
    return STRATEGIES[check_choice("strategy", name, STRATEGIES)]
