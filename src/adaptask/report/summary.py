"""What came out of a study: every arm, what it is compared with, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from adaptask.errors import StateError
from adaptask.report.records import RunRecord
from adaptask.report.statistics import (
    LEVEL,
    MeanInterval,
    Overhead,
    PairedDifference,
    holm,
    mean_interval,
    overhead,
    paired_difference,
    spread_over_seeds,
)
from adaptask.report.study import Arm, Study
from adaptask.report.verdicts import shortfalls, verdicts

__all__ = ["ArmSummary", "StudySummary", "shortfalls", "summarise", "verdicts"]


@dataclass(frozen=True)
class ArmSummary:
    """What came out of one arm; accuracies in percent, differences in points."""

    arm: Arm
    accuracies: Mapping[int, float]
    """Test accuracy by seed, of the runs that have finished."""
    mean: MeanInterval | None = None
    """Over these runs; None where there are none."""
    failures: Mapping[int, str] = field(default_factory=dict)
    """Why a run failed or cannot be read, by seed."""
    unfinished: Mapping[int, str] = field(default_factory=dict)
    """How far a run is that has neither failed nor finished, by seed."""
    seconds: Mapping[int, float] = field(default_factory=dict)
    """Time a training step, by seed."""
    difference: PairedDifference | None = None
    """To the baseline; None without one, or without a seed that has finished in both."""
    p: float | None = None
    """Of that difference, after Holm's correction for all comparisons of the study."""
    detectable: float | None = None
    """How large a difference would have been found with 80 % probability."""
    overhead: Overhead | None = None
    """Time a step over that of the baseline."""
    validation: float | None = None
    """Best validation accuracy of each run so far, the mean of these; None before the first."""

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds; None of fewer than two."""
        return spread_over_seeds(list(self.accuracies.values()))

    @property
    def n_planned(self) -> int:
        """How many runs there are to be."""
        return len(self.arm.runs)

    @property
    def n_finished(self) -> int:
        """How many have been tested."""
        return len(self.accuracies)

    @property
    def seconds_per_step(self) -> float | None:
        """Median over the seeds."""
        return median(self.seconds.values()) if self.seconds else None

    @property
    def is_significant(self) -> bool:
        """Whether the difference to the baseline is more than chance explains."""
        return self.p is not None and self.p < LEVEL


@dataclass(frozen=True)
class StudySummary:
    """What came out of a study, arm by arm in its order."""

    study: Study
    arms: tuple[ArmSummary, ...]
    n_tests: int
    """How many comparisons were tested, for all of which Holm's correction is made."""
    remarks: tuple[str, ...] = ()
    """What limits the comparisons: other episodes, other machines, records that cannot be read."""

    def arm(self, name: str) -> ArmSummary:
        """Return the summary of an arm by its name.

        Raises:
            ArgumentError: If there is none.
        """
        return self.arms[self.study.arms.index(self.study.arm(name))]


@dataclass
class _Reading:
    """What was read of the runs of an arm, by seed."""

    tests: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    episodes: dict[int, object] = field(default_factory=dict)
    validation: list[float] = field(default_factory=list)
    seconds: dict[int, float] = field(default_factory=dict)
    machines: dict[int, object] = field(default_factory=dict)
    precisions: dict[int, str] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    unfinished: dict[int, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def summarise(study: Study, folder: Path) -> StudySummary:
    """Read the runs of a study and compare its arms with their baselines.

    A run that is missing, unfinished, failed or damaged is counted as such; the others are
    compared nevertheless.

    Args:
        study: What was planned.
        folder: Where its runs are.
    """
    readings = {arm.name: _read(arm, folder) for arm in study.arms}
    remarks = [remark for reading in readings.values() for remark in reading.remarks]
    precisions = {found for reading in readings.values() for found in reading.precisions.values()}
    if len(precisions) > 1:
        remarks.append(
            f"Runs were computed in different precisions, {' and '.join(sorted(precisions))}: part "
            "of their differences may be due to that."
        )
    arms = []
    for arm in study.arms:
        summary = _alone(arm, readings[arm.name])
        if summary.mean is not None and not summary.mean.same_episodes:
            remarks.append(
                f"The runs of {arm.name} have different numbers of test episodes; their interval "
                "is wider than it need be."
            )
        if arm.baseline is not None:
            summary, further = _compared(summary, readings[arm.name], readings[arm.baseline])
            remarks += further
        arms.append(summary)
    return _corrected(StudySummary(study, tuple(arms), 0, tuple(remarks)))


def _read(arm: Arm, folder: Path) -> _Reading:
    reading = _Reading()
    for run in arm.runs:
        record = RunRecord(folder / run.folder)
        try:
            _read_result(record, run.seed, reading)
        except StateError as error:
            reading.failures[run.seed] = str(error)
        try:
            seconds = record.seconds_per_step
            _, validation = record.curve("val", "accuracy")
        except StateError as error:
            reading.remarks.append(
                f"There is no time a step of {arm.name}, seed {run.seed}: {error}"
            )
            continue
        if len(validation):
            reading.validation.append(100 * float(validation.max()))
        if seconds is not None:
            reading.seconds[run.seed] = seconds
            reading.machines[run.seed] = _machine(record)
    return reading


def _read_result(record: RunRecord, seed: int, reading: _Reading) -> None:
    if record.test is not None:
        reading.episodes[seed] = _episodes(record)
        reading.precisions[seed] = _precision(record)
        reading.tests[seed] = 100 * record.test.accuracies
    elif record.pruned is not None:
        reading.unfinished[seed] = f"given up after {record.steps_done} of {record.n_steps} steps"
    elif record.failure is not None:
        reading.failures[seed] = _first_sentence(record.failure)
    elif not record.has_begun:
        reading.unfinished[seed] = "not begun"
    else:
        done, planned = record.steps_done, record.n_steps
        untested = ", not tested" if done >= planned else ""
        reading.unfinished[seed] = f"{done} of {planned} steps{untested}"


def _first_sentence(failure: str) -> str:
    """Return what matters of a failure: of a traceback its last line, else the first line."""
    lines = [line.strip() for line in failure.splitlines() if line.strip()] or ["no reason given"]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


def _episodes(record: RunRecord) -> object:
    """Return what decides the test episodes; equal for runs that were tested on the same ones."""
    names = ("data", "evaluation", "task")
    sections = (record.config.get(name) for name in names)
    data, tested, trained = (found if isinstance(found, dict) else {} for found in sections)
    return (
        data.get("dataset"),
        *(tested.get(name) for name in ("seed", "n_query", "n_episodes")),
        *(tested.get(name, trained.get(name)) for name in ("n_way", "n_shot")),
    )


def _precision(record: RunRecord) -> str:
    machine = record.config.get("machine")
    return str(machine.get("precision", "auto")) if isinstance(machine, dict) else "auto"


def _machine(record: RunRecord) -> object:
    """Return on what a run was made last, as far as it matters for its speed."""
    names = ("device", "devices", "threads", "cpu_count", "platform")
    return [record.environment[-1].get(name) for name in names] if record.environment else None


def _alone(arm: Arm, reading: _Reading) -> ArmSummary:
    tests = reading.tests
    return ArmSummary(
        arm=arm,
        accuracies={seed: float(values.mean()) for seed, values in tests.items()},
        mean=mean_interval(list(tests.values())) if tests else None,
        failures=reading.failures,
        unfinished=reading.unfinished,
        seconds=reading.seconds,
        validation=fmean(reading.validation) if reading.validation else None,
    )


def _compared(
    summary: ArmSummary, arm: _Reading, baseline: _Reading
) -> tuple[ArmSummary, list[str]]:
    """Return the summary with its comparison, and what limits that."""
    names = f"{summary.arm.name} and {summary.arm.baseline}"
    remarks = []
    if _disagree(arm.episodes, baseline.episodes):
        remarks.append(
            f"Some runs of {names} were tested on different episodes, which adds to the noise of "
            "their difference."
        )
    same = {s: t for s, t in arm.seconds.items() if arm.machines[s] == baseline.machines.get(s)}
    if len(same) < len(arm.seconds.keys() & baseline.seconds.keys()):
        remarks.append(
            f"Some runs of {names} were made on different machines; the factor between their "
            "times leaves them out."
        )
    return (
        replace(
            summary,
            difference=paired_difference(
                summary.accuracies, {s: float(v.mean()) for s, v in baseline.tests.items()}
            ),
            overhead=overhead(same, baseline.seconds),
        ),
        remarks,
    )


def _disagree(one: Mapping[int, object], other: Mapping[int, object]) -> bool:
    return any(one[seed] != other[seed] for seed in one.keys() & other.keys())


def _corrected(summary: StudySummary) -> StudySummary:
    """Return the summary with p-values corrected for their number, and what could be found so."""
    tested = [a for a in summary.arms if a.difference is not None and a.difference.p is not None]
    corrected = dict(
        zip(
            (a.arm.name for a in tested),
            holm([a.difference.p for a in tested if a.difference and a.difference.p is not None]),
            strict=True,
        )
    )
    arms = tuple(
        replace(
            a,
            p=corrected.get(a.arm.name),
            # The level that Holm's correction leaves the smallest p-value: what passes that is
            # found, whatever the other comparisons say.
            detectable=a.difference.detectable(LEVEL / len(tested))
            if a.difference and a.arm.name in corrected
            else None,
        )
        for a in summary.arms
    )
    return replace(summary, arms=arms, n_tests=len(tested))
