"""The results of a study: every arm, the comparison with its baseline, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from adaptask.report.run import Run
from adaptask.report.statistics import (
    LEVEL,
    MIN_SEEDS,
    MeanInterval,
    PairedDifference,
    hardest_tenth,
    holm,
    mean_interval,
    paired_difference,
    spread_over_seeds,
)
from adaptask.report.study import Arm, Study

AccuraciesOf = Callable[[Run], NDArray[np.float64]]
"""The test accuracies of a run that are compared, in percent; empty if it has none."""


@dataclass(frozen=True)
class ArmSummary:
    """The results of one arm; accuracies in percent, differences in points."""

    arm: Arm
    accuracies: Mapping[int, float]
    """Test accuracy by seed, for the runs that have finished."""
    mean: MeanInterval | None = None
    """Over these runs; None if there are none."""
    hardest: Mapping[int, float] = field(default_factory=dict)
    """Accuracy in the tenth of the test tasks in which each run did worst, by seed."""
    hardest_difference: PairedDifference | None = None
    """Of these to the baseline; None without one."""
    failures: Mapping[int, str] = field(default_factory=dict)
    """Why a run failed or cannot be read, by seed."""
    untested: tuple[int, ...] = ()
    """Seeds of runs that have ended without a result: their dataset has no test classes."""
    unfinished: Mapping[int, str] = field(default_factory=dict)
    """Progress of each run that has neither failed nor finished, by seed."""
    seconds_per_step: float | None = None
    """Median time of a training step over the seeds; None if no run has recorded it."""
    difference: PairedDifference | None = None
    """To the baseline; None without a baseline, or without a seed that has finished in both."""
    p: float | None = None
    """Of that difference, after Holm's correction for all comparisons of the study."""
    detectable: float | None = None
    """The difference that would have been found with 80 % probability."""
    seeds_needed: int | None = None
    """How many seeds would find a difference as large as this one with 80 % probability; None
    without a test, or if `MAX_SEEDS` are too few."""
    validations: Mapping[int, float] = field(default_factory=dict)
    """The best validation accuracy of each run so far, by seed."""

    @property
    def validation(self) -> float | None:
        """Mean of the best validation accuracies; None before the first."""
        return fmean(self.validations.values()) if self.validations else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds; None for fewer than two."""
        return spread_over_seeds(list(self.accuracies.values()))

    @property
    def tested(self) -> list[Run]:
        """The runs that have finished."""
        return [run for run in self.arm.runs if run.seed in self.accuracies]

    @property
    def note(self) -> str:
        """What the sampler says of its runs, after its name; empty if nothing."""
        samplers = (run.algorithms.get("sampler") for run in self.arm.runs)
        noted = (found for found in samplers if found is not None and found.note)
        return next((f"Note on {found.name}: {found.note}" for found in noted), "")

    @property
    def n_planned(self) -> int:
        """Number of runs in the plan."""
        return len(self.arm.runs)

    @property
    def n_finished(self) -> int:
        """Number of runs that have ended: tested, if their dataset has test classes."""
        return len(self.accuracies) + len(self.untested)

    @property
    def is_finished(self) -> bool:
        """Whether all runs have ended."""
        return self.n_finished == self.n_planned

    @property
    def is_significant(self) -> bool:
        """Whether the difference to the baseline is more than chance explains.

        Never with fewer than `MIN_SEEDS` seeds.
        """
        return self.has_enough_seeds and self.p is not None and self.p < LEVEL

    @property
    def has_enough_seeds(self) -> bool:
        """Whether enough seeds were compared for a verdict."""
        return self.difference is not None and len(self.difference.seeds) >= MIN_SEEDS


@dataclass(frozen=True)
class StudySummary:
    """The results of a study."""

    study: Study
    arms: tuple[ArmSummary, ...]
    """In the order of the study, or, if it chooses by validation, the best first."""
    n_tests: int
    """Number of tested comparisons, for which Holm's correction is made."""
    remarks: tuple[str, ...] = ()
    """What limits the comparisons, such as different test tasks or precisions."""
    within_group: StudySummary | None = None
    """The same of test tasks within groups, if runs were tested on these beside uniform ones. Its
    tests are corrected for their own number: they are a second question, and the first one is
    answered as if it had not been asked."""

    @property
    def tasks(self) -> str:
        """`within-group` if all runs were tested on tasks within groups alone, else `uniform`."""
        kinds = {run.test.tasks for found in self.arms for run in found.tested if run.test}
        return kinds.pop() if len(kinds) == 1 else "uniform"

    def arm(self, name: str) -> ArmSummary:
        """Return the summary of an arm by its name."""
        return next(found for found in self.arms if found.arm.name == name)


def summarize(study: Study) -> StudySummary:
    """Read the runs of a study and compare its arms with their baselines.

    Runs that are missing, unfinished, failed or damaged are counted; the others are compared.
    """
    summary = _summarize(study, _task_accuracies)
    runs = (run for found in summary.arms for run in found.tested)
    if any(run.test and run.test.within_group is not None for run in runs):
        return replace(summary, within_group=_summarize(study, _within_group))
    return summary


def _summarize(study: Study, accuracies_of: AccuraciesOf) -> StudySummary:
    alone = {arm.name: _summarize_arm(arm, accuracies_of) for arm in study.arms}
    differences = {
        found.arm.name: _compare(found, alone[found.arm.baseline], accuracies_of)
        for found in alone.values()
        if found.arm.baseline is not None
    }
    tested = {name: d.p for name, d in differences.items() if d is not None and d.p is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    # The level that Holm's correction sets for the smallest p-value: what passes it is found,
    # whatever the other comparisons say.
    level = LEVEL / max(1, len(tested))
    arms = []
    for name, found in alone.items():
        difference = differences.get(name)
        if difference is not None:
            baseline = alone[found.arm.baseline or ""]
            found = replace(
                found,
                difference=difference,
                hardest_difference=paired_difference(found.hardest, baseline.hardest),
                p=corrected.get(name),
                detectable=difference.detectable(level),
                seeds_needed=difference.seeds_needed(level),
            )
        arms.append(found)
    if study.by_validation:
        arms.sort(key=lambda found: (not found.is_finished, -(found.validation or 0.0)))
    remarks = [*_precision_remarks(arms), *_code_remarks(arms), *_episode_remarks(alone)]
    notes = dict.fromkeys(found.note for found in arms if found.note)  # of a sampler, once
    return StudySummary(study, tuple(arms), len(tested), (*notes, *remarks))


def _compare(
    found: ArmSummary, baseline: ArmSummary, accuracies_of: AccuraciesOf
) -> PairedDifference | None:
    """Return the difference to the baseline, task by task if both were tested on the same ones."""
    ours, theirs = ({run.seed: run for run in of.tested} for of in (found, baseline))
    rows = []
    for seed in sorted(ours.keys() & theirs.keys()):
        one, other = accuracies_of(ours[seed]), accuracies_of(theirs[seed])
        if len(one) != len(other) or _episodes(ours[seed]) != _episodes(theirs[seed]):
            return paired_difference(found.accuracies, baseline.accuracies)
        rows.append(one - other)
    by_task = np.stack(rows) if rows and len({len(row) for row in rows}) == 1 else None
    return paired_difference(found.accuracies, baseline.accuracies, by_task)


def _task_accuracies(run: Run) -> NDArray[np.float64]:
    """Return the test accuracies of a run in percent; empty if there are none."""
    return 100 * run.test.accuracies if run.test else np.empty(0)


def _within_group(run: Run) -> NDArray[np.float64]:
    """Return those of tasks within groups beside uniform ones; empty if there are none."""
    found = run.test.within_group if run.test else None
    return np.empty(0) if found is None else 100 * found


def _summarize_arm(arm: Arm, accuracies_of: AccuraciesOf) -> ArmSummary:
    """Return the results of an arm by itself."""
    tests, seconds, best = {}, [], {}
    failures: dict[int, str] = {}
    unfinished: dict[int, str] = {}
    untested: list[int] = []
    for run in arm.runs:
        if run.test is not None and run.is_readable:
            if len(accuracies := accuracies_of(run)):
                tests[run.seed] = accuracies
        elif run.is_finished and run.is_readable and "test.json" not in run.damage:
            untested.append(run.seed)
        else:
            failed, why = _status(run)
            (failures if failed else unfinished)[run.seed] = why
        pace, (_, validation) = run.seconds_per_step, run.curve("val", "accuracy")
        if pace is not None:
            seconds.append(pace)
        if len(validation):
            best[run.seed] = 100 * float(validation.max())
    return ArmSummary(
        arm=arm,
        accuracies={seed: float(values.mean()) for seed, values in tests.items()},
        mean=mean_interval(list(tests.values())) if tests else None,
        hardest={seed: hardest_tenth(values) for seed, values in tests.items()},
        failures=failures,
        untested=tuple(untested),
        unfinished=unfinished,
        seconds_per_step=median(seconds) if seconds else None,
        validations=best,
    )


def _status(run: Run) -> tuple[bool, str]:
    """Return whether a run without a result failed, and why, or else its progress."""
    done, planned = run.steps_done, run.n_steps
    if damage := run.damage.get("config.toml") or run.damage.get("test.json"):
        return True, damage
    if run.pruned is not None:
        where = f"after {done} of {planned} steps" if run.is_readable else "before it began"
        return False, f"stopped early {where}"
    if run.failure is not None:
        return True, _first_sentence(run.failure)
    if not run.is_readable:
        return False, "not begun"
    if damage := run.damage.get("metrics.jsonl"):
        return True, damage
    return False, f"{done} of {planned} steps" + (", not tested" if done >= planned else "")


def _first_sentence(failure: str) -> str:
    """Return the last line of a traceback, or else the first line of a message."""
    lines = [line.strip() for line in failure.splitlines() if line.strip()] or ["no reason given"]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


def _precision_remarks(arms: Iterable[ArmSummary]) -> list[str]:
    runs = (run for found in arms for run in found.tested)
    precisions = {str(run.settings.get("machine", {}).get("precision", "auto")) for run in runs}
    if len(precisions) < 2:
        return []
    return [
        f"Runs were computed in different precisions, {' and '.join(sorted(precisions))}: part "
        "of their differences may be due to that."
    ]


def _code_remarks(arms: Iterable[ArmSummary]) -> list[str]:
    versions: dict[str, set[str]] = {}
    for run in (run for found in arms for run in found.tested):
        for algorithm in run.algorithms.values():
            versions.setdefault(algorithm.name, set()).update(algorithm.code)
    return [
        f"The code of {name} has changed between runs, so they are not all of one version. To "
        "train all with the present one, run the command again with another folder as --output."
        for name, found in versions.items()
        if len(found) > 1
    ]


def _episode_remarks(arms: Mapping[str, ArmSummary]) -> list[str]:
    remarks = []
    for found in arms.values():
        if found.arm.baseline is None:
            continue
        baseline = arms[found.arm.baseline]
        ours, theirs = ({run.seed: _episodes(run) for run in of.tested} for of in (found, baseline))
        if any(ours[seed] != theirs[seed] for seed in ours.keys() & theirs.keys()):
            remarks.append(
                f"Some runs of {found.arm.name} and {baseline.arm.name} were tested on different "
                "episodes, which adds noise to their difference."
            )
    return remarks


def _episodes(run: Run) -> object:
    """Return what decides the test episodes: runs with equal values have the same ones."""
    tested, trained = run.settings.get("evaluation", {}), run.settings.get("task", {})
    return (
        run.settings.get("data", {}).get("dataset"),
        run.test.tasks if run.test else None,
        *(tested.get(name) for name in ("seed", "n_query", "n_episodes")),
        *(tested.get(name, trained.get(name)) for name in ("n_way", "n_shot")),
    )
