"""What several runs say together: means, differences seed by seed, and what they cannot tell.

A seed is the unit of every comparison. The episodes of a run share its weights, so that counting
them as independent would find differences where there is only chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05
"""A difference counts as significant if its p-value is below this."""
POWER = 0.8
"""With what probability a difference is seen that counts as one that would have been."""


@dataclass(frozen=True)
class MeanInterval:
    """A mean over test episodes and its 95 % interval."""

    mean: float
    half_width: float | None
    """1.96 standard errors over the episodes; None of a single episode, or where the runs have
    different numbers of episodes."""


@dataclass(frozen=True)
class PairedDifference:
    """How far an arm is from its baseline, over the seeds that both have."""

    seeds: tuple[int, ...]
    mean: float
    spread: float | None
    """Standard deviation of the differences, with n - 1; None of one seed."""
    half_width: float | None
    """Of the 95 % interval by Student's t; None where there can be none."""
    p: float | None
    """Of the two-sided paired t-test; None where there can be none."""

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return None if self.half_width is None else self.mean - self.half_width

    @property
    def high(self) -> float | None:
        """Upper end of the interval."""
        return None if self.half_width is None else self.mean + self.half_width

    def detectable(self, level: float = LEVEL) -> float | None:
        """Return how large a true difference is found with probability `POWER`.

        The spread is the one observed, itself a guess with few seeds. None without a test.

        Args:
            level: Of the test; a study with several comparisons divides it among them.
        """
        if self.p is None or self.spread is None:
            return None
        from scipy import special

        n = len(self.seeds)
        critical = special.stdtrit(n - 1, 1 - level / 2)
        # The noncentral t that exceeds the critical value with this probability. The chance of a
        # significant difference in the wrong direction is left out: it is far below a thousandth.
        noncentrality = float(special.nctdtrinc(n - 1, 1 - POWER, critical))
        return noncentrality * self.spread / math.sqrt(n)


def mean_interval(accuracies: Sequence[NDArray[np.float64]]) -> MeanInterval:
    """Return the mean accuracy of runs on the same test episodes, and its interval over these.

    Each episode is averaged over the runs first: it is one draw from the tasks, however many runs
    were tested on it.

    Args:
        accuracies: Of each run, `episodes`; at least one run, with at least one episode each.
    """
    sizes = {len(values) for values in accuracies}
    mean = float(np.mean([values.mean() for values in accuracies]))
    if len(sizes) > 1 or 1 in sizes:
        return MeanInterval(mean, None)
    by_episode = np.mean(accuracies, axis=0)
    return MeanInterval(mean, 1.96 * float(by_episode.std(ddof=1)) / math.sqrt(len(by_episode)))


def spread_over_seeds(values: Sequence[float]) -> float | None:
    """Return the standard deviation, with n - 1; None of fewer than two.

    >>> spread_over_seeds([1.0, 3.0, 2.0])
    1.0
    """
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def paired_difference(
    arm: Mapping[int, float], baseline: Mapping[int, float]
) -> PairedDifference | None:
    """Compare an arm with its baseline over the seeds that both have; None if there are none.

    With one seed there is a difference, but neither interval nor test. The same goes where all
    seeds differ by the same amount: a spread of zero says that the seeds are no repetitions.

    Args:
        arm: Accuracies by seed.
        baseline: Accuracies by seed.
    """
    from scipy import special

    seeds = tuple(sorted(arm.keys() & baseline.keys()))
    if not seeds:
        return None
    differences = np.array([arm[seed] - baseline[seed] for seed in seeds])
    mean, n = float(differences.mean()), len(seeds)
    spread = spread_over_seeds(differences.tolist())
    # Subtraction leaves the last bits of the accuracies in differences that are equal.
    rounding = 1e-12 * max(abs(value) for seed in seeds for value in (arm[seed], baseline[seed]))
    if spread is None or spread <= rounding:
        return PairedDifference(seeds, mean, spread, None, None)
    error = spread / math.sqrt(n)
    half_width = float(special.stdtrit(n - 1, 1 - LEVEL / 2)) * error
    p = 2 * float(special.stdtr(n - 1, -abs(mean) / error))
    return PairedDifference(seeds, mean, spread, half_width, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for their number, each at its place.

    Calling those below a level significant makes one false finding or more with a probability of
    at most that level (Holm, Scandinavian Journal of Statistics 6, 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected
