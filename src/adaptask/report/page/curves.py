"""Curves of many runs brought onto one axis: mean and range over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptask.report.run import Run

Points = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Steps in ascending order, and the values there."""


@dataclass(frozen=True, eq=False)
class Curve:
    """A metric over time; all arrays have one entry a point."""

    steps: NDArray[np.int64]
    mean: NDArray[np.float64]
    """Over the runs that have come so far."""
    low: NDArray[np.float64]
    """Of the lowest run."""
    high: NDArray[np.float64]
    n_runs: NDArray[np.int64]
    """How many runs have come so far."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return len(self.steps) == 0

    @property
    def is_whole(self) -> NDArray[np.bool_]:
        """Where all runs that have begun have come."""
        return np.asarray(self.n_runs == self.n_runs.max(initial=0))


def curve_of(records: Sequence[Run], split: str, name: str, *, max_points: int = 60) -> Curve:
    """Return a metric of several runs over time, each as far as it goes."""
    return aggregate([record.curve(split, name) for record in records], max_points=max_points)


def aggregate(runs: Sequence[Points], *, max_points: int = 60) -> Curve:
    """Return mean and range over runs.

    Where the runs have more than `max_points` steps between them, these are put into as many
    stretches of equal length; a run's value is then the mean of its records in a stretch. A point
    stands at the last step of its stretch, as a record of the means since the last one does.
    """
    steps = np.unique(np.concatenate([np.empty(0, np.int64), *(steps for steps, _ in runs)]))
    ends = steps
    if len(steps) > max_points:
        # From the whole span, so that runs of one length are cut alike whatever they record.
        ends = np.unique(np.ceil(np.linspace(0, steps[-1], max_points + 1)[1:])).astype(np.int64)
    values = np.full((len(runs), len(ends)), np.nan)
    for row, (run_steps, run_values) in zip(values, runs, strict=True):
        place = np.searchsorted(ends, run_steps)
        counts = np.bincount(place, minlength=len(ends))
        sums = np.bincount(place, weights=run_values, minlength=len(ends))
        row[counts > 0] = sums[counts > 0] / counts[counts > 0]
    seen = ~np.isnan(values)
    kept = seen.any(axis=0)
    values, seen, ends = values[:, kept], seen[:, kept], ends[kept]
    n_runs = seen.sum(axis=0)
    return Curve(
        steps=ends,
        mean=np.where(seen, values, 0.0).sum(axis=0) / np.maximum(n_runs, 1),
        low=np.where(seen, values, np.inf).min(axis=0, initial=np.inf),
        high=np.where(seen, values, -np.inf).max(axis=0, initial=-np.inf),
        n_runs=n_runs,
    )
