"""Means, paired differences, intervals and tests over seeds and test tasks.

A comparison counts seeds, not tasks: the tasks of a run share its weights. But all runs are tested
on the same finite set of tasks, whose choice is chance too, and adds to the error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05
"""A difference is significant if its p-value is below this."""
POWER = 0.8
"""A difference is detectable if it is found with this probability."""
MIN_SEEDS = 5
"""With fewer seeds there is no verdict: tests over seeds and tasks are then too optimistic (up to
12 % false findings at a level of 5 % with two seeds, 3 to 6 % with five)."""
MAX_SEEDS = 100
"""More seeds than this are not proposed."""


@dataclass(frozen=True)
class MeanInterval:
    """A mean over test tasks and its 95 % interval."""

    mean: float
    half_width: float | None
    """1.96 standard errors over the tasks; None for a single task, or if the runs have different
    numbers of tasks."""


@dataclass(frozen=True)
class PairedDifference:
    """The difference between an arm and its baseline, over the seeds that both have."""

    seeds: tuple[int, ...]
    mean: float
    spread: float | None
    """Standard deviation of the differences over seeds, with n - 1; None for one seed."""
    error: float | None = None
    """Standard error of the mean, over seeds and test tasks; None without a test."""
    freedom: float = 0.0
    """Degrees of freedom of the error."""
    p: float | None = None
    """Of the two-sided t-test; None if there can be no test."""

    @property
    def half_width(self) -> float | None:
        """Half the width of the 95 % interval by Student's t; None without a test."""
        if self.error is None:
            return None
        from scipy import special

        return float(special.stdtrit(self.freedom, 1 - LEVEL / 2)) * self.error

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return None if self.half_width is None else self.mean - self.half_width

    @property
    def high(self) -> float | None:
        """Upper end of the interval."""
        return None if self.half_width is None else self.mean + self.half_width

    def detectable(self, level: float = LEVEL) -> float | None:
        """Return the true difference that is found with probability `POWER`; None without a test.

        It assumes the error that was observed, which with few seeds is itself uncertain.

        Args:
            level: Of the test; a study with several comparisons divides it among them.
        """
        if self.error is None:
            return None
        from scipy import special

        critical = special.stdtrit(self.freedom, 1 - level / 2)
        # The noncentral t that exceeds the critical value with this probability. The chance of a
        # significant difference in the wrong direction is left out: it is far below a thousandth.
        return float(special.nctdtrinc(self.freedom, 1 - POWER, critical)) * self.error

    def seeds_needed(self, level: float = LEVEL) -> int | None:
        """Return how many seeds would find a true difference of this size.

        They find it with probability `POWER`, on the same test tasks. It assumes the variation
        between seeds and between tasks that was observed, so with few seeds it is a rough estimate.

        Args:
            level: Of the test; a study with several comparisons divides it among them.

        Returns:
            At least `MIN_SEEDS`; None without a test, or if `MAX_SEEDS` are too few.
        """
        if self.error is None or self.spread is None:
            return None
        n = len(self.seeds)
        over_seeds = self.spread**2 / n
        # What the choice of test tasks adds stays, however many seeds there are.
        over_tasks = max(0.0, self.error**2 - over_seeds)
        extra = max(0.0, self.error**4 / self.freedom - over_seeds**2 / (n - 1))
        for n in range(MIN_SEEDS, MAX_SEEDS + 1):
            over_seeds = self.spread**2 / n
            variance, uncertainty = over_seeds + over_tasks, over_seeds**2 / (n - 1) + extra
            freedom = max(1.0, variance**2 / uncertainty)
            planned = replace(self, error=math.sqrt(variance), freedom=freedom)
            if (planned.detectable(level) or math.inf) <= abs(self.mean):
                return n
        return None


def mean_interval(accuracies: Sequence[NDArray[np.float64]]) -> MeanInterval:
    """Return the mean accuracy of runs on the same test tasks, and its interval over these.

    Each task is averaged over the runs first: it is one draw, however many runs were tested on it.

    Args:
        accuracies: One array per run, `tasks`; at least one run with at least one task.
    """
    sizes = {len(values) for values in accuracies}
    mean = float(np.mean([values.mean() for values in accuracies]))
    if len(sizes) > 1 or 1 in sizes:
        return MeanInterval(mean, None)
    by_task = np.mean(accuracies, axis=0)
    return MeanInterval(mean, 1.96 * float(by_task.std(ddof=1)) / math.sqrt(len(by_task)))


def hardest_tenth(accuracies: NDArray[np.float64]) -> float:
    """Return the mean over the tenth of the tasks, rounded up, with the lowest accuracies.

    >>> hardest_tenth(np.array([0.9, 0.5, 0.7, 0.5, 0.8, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]))
    0.5
    """
    return float(np.sort(accuracies)[: math.ceil(len(accuracies) / 10)].mean())


def spread_over_seeds(values: Sequence[float]) -> float | None:
    """Return the standard deviation, with n - 1; None for fewer than two values.

    >>> spread_over_seeds([1.0, 3.0, 2.0])
    1.0
    """
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def paired_difference(
    arm: Mapping[int, float],
    baseline: Mapping[int, float],
    by_task: NDArray[np.float64] | None = None,
) -> PairedDifference | None:
    """Compare an arm with its baseline over the seeds that both have; None if there are none.

    With one seed there is a difference, but neither interval nor test. The same holds if all seeds
    differ by the same amount: seeds without any spread are not repetitions.

    Without `by_task` this is the paired t-test over seeds. With it, the test tasks are a second
    random factor, crossed with the seeds, and degrees of freedom follow Satterthwaite, as in the
    quasi-F test (Clark, Journal of Verbal Learning and Verbal Behavior 12, 1973).

    Args:
        arm: Accuracies by seed.
        baseline: Accuracies by seed.
        by_task: The differences of each task, `seeds x tasks`, in the order of the common seeds.
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
        return PairedDifference(seeds, mean, spread)
    over_seeds = spread**2 / n
    variance, uncertainty = over_seeds, over_seeds**2 / (n - 1)
    if by_task is not None and by_task.shape[1] > 1:
        over_tasks, extra = _task_variance(by_task)
        variance, uncertainty = variance + over_tasks, uncertainty + extra
    # Where little is left after the subtraction, the estimate can fall below one degree of freedom,
    # for which there is no test that anybody would believe.
    error, freedom = math.sqrt(variance), max(1.0, variance**2 / uncertainty)
    p = 2 * float(special.stdtr(freedom, -abs(mean) / error))
    return PairedDifference(seeds, mean, spread, error, freedom, p)


def _task_variance(by_task: NDArray[np.float64]) -> tuple[float, float]:
    """Return what the choice of tasks adds to the variance of the mean, and its uncertainty.

    The variance between means of tasks contains part of the noise that the variance between seeds
    contains already; that part is subtracted.
    """
    n_seeds, n_tasks = by_task.shape
    seed_means, task_means = by_task.mean(axis=1, keepdims=True), by_task.mean(axis=0)
    rest = by_task - seed_means - task_means + by_task.mean()
    freedom = (n_seeds - 1) * (n_tasks - 1)
    noise = float((rest**2).sum()) / freedom / by_task.size
    between = float(task_means.var(ddof=1)) / n_tasks
    if between <= noise:
        return 0.0, 0.0
    return between - noise, between**2 / (n_tasks - 1) + noise**2 / freedom


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for their number, in the same order.

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
