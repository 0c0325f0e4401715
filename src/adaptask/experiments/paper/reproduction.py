"""What `adaptask reproduce` does: a part of a target, at some scale, as a plan; then its runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from adaptask.arguments import check_choice, check_integer, check_number
from adaptask.data.registry import names as dataset_names
from adaptask.errors import ArgumentError
from adaptask.experiments.backends.ray import ClusterOptions
from adaptask.experiments.config import check_config
from adaptask.experiments.paper.published import PrintedTime
from adaptask.experiments.paper.scaling import (
    LEAST_EPISODES,
    LEAST_STEPS,
    fitted,
    images_per_class,
    scaled,
)
from adaptask.experiments.paper.target import Choice, Target
from adaptask.experiments.paper.targets import TARGETS
from adaptask.experiments.recipes import recipe_notes
from adaptask.report.study import Arm, Citation, Study

SCHEDULES = ("paper", "cosine")
TIMING_SECONDS = 60.0
"""For a setting of Table 5, at full scale."""


@dataclass(frozen=True)
class Plan:
    """What is to be run of a target."""

    target: Target
    trials: tuple[Arm, ...]
    times: tuple[PrintedTime, ...]
    """What is to be timed, where the target is about time."""
    seeds: int
    """Runs per trial, with the seeds 0, 1, ..."""
    scale: float
    schedule: str
    """`paper`, or `cosine`."""
    datasets: tuple[str, ...]
    device: str
    """`auto`, or the name of one."""
    command: str
    """What repeats it."""
    notes: tuple[str, ...]
    citations: tuple[Citation, ...]

    @property
    def title(self) -> str:
        """What it is, for a heading."""
        return f"{self.target.number}: {self.target.title}"

    @property
    def n_runs(self) -> int:
        """How many runs there are."""
        return len(self.trials) * self.seeds

    @property
    def timing_seconds(self) -> float:
        """Seconds for each setting that is timed."""
        return max(1.0, TIMING_SECONDS * self.scale)

    def all_trials(self) -> list[Arm]:
        """Return the trials of the whole target, of which these are a part, as this plan has them.

        A folder may have some of them from another time; they are compared with those of now.
        """
        target = self.target
        datasets = tuple(dict.fromkeys((*target.datasets, *self.datasets)))
        everything = Choice(datasets, target.rows, target.shots, target.learners)
        full = _scheduled(target.trials(everything), self.schedule)
        return _sized(full, self.scale, self.device)


def plan(
    target: str,
    *,
    dataset: str | None = None,
    scale: float = 1.0,
    rows: Sequence[str] = (),
    seeds: int | None = None,
    shots: Sequence[int] = (),
    learners: Sequence[str] = (),
    schedule: str = "paper",
    device: str = "auto",
) -> Plan:
    """Return what is to be run of a table or a figure of the paper.

    Args:
        target: A key of `TARGETS`.
        dataset: Takes the place of all datasets of the target.
        scale: Of steps, milestones, intervals and episodes, above 0 and at most 1.
        rows: Which rows; all where none are named.
        seeds: Runs per trial; None: three for what is measured, one for what is looked at.
        shots: Which shots; all where none are named.
        learners: Other learners than the paper's, where the target has a choice.
        schedule: `paper`, or `cosine` in the place of learning rates that the paper leaves
            constant.
        device: Where it is computed; auto: on a GPU where there is one.

    Raises:
        ArgumentError: If there is no such target, dataset, row, shot or learner, or a number is
            out of range.
    """
    chosen = TARGETS[check_choice("target", target, TARGETS)]
    check_number("scale", scale, low=0, high=1)
    if scale == 0:
        raise ArgumentError("scale must be above 0, or nothing is trained; got 0.")
    n_seeds = chosen.seeds if seeds is None else check_integer("seeds", seeds, low=1)
    if chosen.times and seeds is not None:
        raise ArgumentError(f"{target} is timed, not trained; leave out --seeds.")
    if dataset is not None and dataset not in dataset_names():
        raise ArgumentError(
            f"there is no dataset '{dataset}'; there are {', '.join(dataset_names())}."
        )
    choice = chosen.choose(dataset=dataset, rows=rows, shots=shots, learners=learners)
    check_choice("schedule", schedule, SCHEDULES)
    full = _scheduled(chosen.trials(choice), schedule)
    if schedule == "cosine" and all(t.config.optimiser.schedule != "cosine" for t in full):
        raise ArgumentError(
            f"{target} has no learning rate that the paper leaves constant; leave out --schedule."
        )
    trials = _sized(full, scale, device)
    for trial in trials:
        check_config(trial.config)
    times = tuple(
        time for time in chosen.times if time.name in choice.rows and time.n_shot in choice.shots
    )
    if not trials and not times:
        raise ArgumentError(
            f"no row of {target} is left with the shots {', '.join(map(str, choice.shots))} among "
            f"{', '.join(choice.rows)}."
        )
    flags = {
        "--dataset": [dataset] if dataset is not None else [],
        "--scale": [f"{scale:g}"] if scale != 1 else [],
        "--rows": rows,
        "--shots": [str(shot) for shot in shots],
        "--learners": learners,
        "--seeds": [str(seeds)] if seeds is not None else [],
        "--schedule": [schedule] if schedule != "paper" else [],
        "--device": [device] if device != "auto" else [],
    }
    words = [word for flag, values in flags.items() if values for word in (flag, *values)]
    return Plan(
        target=chosen,
        trials=tuple(trials),
        times=times,
        seeds=n_seeds,
        scale=scale,
        schedule=schedule,
        datasets=choice.datasets,
        device=device,
        command=shlex.join(["adaptask", "reproduce", target, *words]),
        notes=(
            *_deviations(chosen, choice, scale, schedule),
            *_smaller_tasks(full, trials),
            *chosen.notes,
            *recipe_notes(trial.config for trial in trials),
        ),
        citations=chosen.citations(choice),
    )


def _scheduled(trials: Sequence[Arm], schedule: str) -> list[Arm]:
    """Return the trials with a cosine in the place of constant learning rates, if so wanted."""
    found = []
    for trial in trials:
        config = trial.config
        if schedule == "cosine" and config.optimiser.schedule == "constant":
            optimizer = replace(config.optimiser, schedule="cosine")
            config = replace(config, optimiser=optimizer)
        found.append(replace(trial, config=config))
    return found


def _sized(trials: Sequence[Arm], scale: float, device: str) -> list[Arm]:
    """Return the trials at a scale, with tasks that the data can give, on a device."""
    found = []
    for trial in trials:
        n_images = images_per_class(trial.config.data.dataset)
        config = fitted(scaled(trial.config, scale), n_images)
        config = replace(config, machine=replace(config.machine, device=device))
        found.append(replace(trial, config=config))
    return found


def _deviations(target: Target, choice: Choice, scale: float, schedule: str) -> list[str]:
    """Return what is not as in the paper because the user wants it so."""
    found = []
    if foreign := [name for name in choice.datasets if name not in target.datasets]:
        figures = (
            "the paper's times are those of its own"
            if target.times
            else "the paper has no figures for it"
        )
        found.append(
            f"{foreign[0]} takes the place of {' and '.join(target.datasets)}; {figures}. "
            "Settings that depend on the dataset are those of CIFAR-FS where the literature has "
            "none for it."
        )
    if choice.learners != target.learners[:1]:
        found.append(
            f"The paper has {target.learners[0]} in this table, and figures for it alone; here "
            f"are {', '.join(choice.learners)}."
        )
    if schedule == "cosine":
        found.append("Learning rates that the paper leaves constant fall along half a cosine.")
    if scale < 1 and target.times:
        found.append(
            f"At scale {scale:g}: settings are timed for that share of a minute each, and for a "
            "second at least."
        )
    elif scale < 1:
        found.append(
            f"At scale {scale:g}: steps and all that is counted in steps, and episodes, are "
            f"{scale:g} times those of the paper, but at least {LEAST_STEPS} steps and "
            f"{LEAST_EPISODES} episodes. Such accuracies are not to be compared with the paper's."
        )
    return found


def _smaller_tasks(full: Sequence[Arm], trials: Sequence[Arm]) -> list[str]:
    """Return which tasks had to become smaller because classes have too few images."""
    found = []
    for before, after in zip(full, trials, strict=True):
        old, new = before.config.task, after.config.task
        if (old.n_shot, old.n_query) != (new.n_shot, new.n_query):
            found.append(
                f"{after.config.data.dataset} has too few images per class for training tasks of "
                f"{old.n_shot} shots and {old.n_query} queries; they have {new.n_shot} and "
                f"{new.n_query}."
            )
    return list(dict.fromkeys(found))


def default_folder(planned: Plan) -> Path:
    """Return a folder named after what is reproduced, and how far it is from the paper."""
    words = ["reproduce", planned.target.name]
    if set(planned.datasets) - set(planned.target.datasets):
        words += planned.datasets
    if planned.schedule != "paper":
        words.append(planned.schedule)
    if planned.scale < 1:
        words.append(f"scale{planned.scale:g}")
    return Path("runs") / "-".join(words)


def reproduce(
    planned: Plan,
    folder: Path | None = None,
    *,
    workers: int | None = None,
    cluster: ClusterOptions = ClusterOptions(),  # noqa: B008, it is frozen
) -> int:
    """Run what was planned, then print the table and write the report.

    Args:
        planned: What is to be run, or timed.
        folder: Where; one named after it where it is not given. What it has already is kept.
        workers: How many runs at once; None chooses. Times are measured one after the other.
        cluster: Where the runs are made, if not by this machine alone. Times are measured here.

    Returns:
        The exit status: 1 if a run failed.

    Raises:
        AdaptaskError: If something cannot be used or done; the message says what to do.
    """
    from adaptask.training.distributed import refuse_launch

    refuse_launch("reproduce")
    folder = folder or default_folder(planned)
    if planned.times:
        from adaptask.experiments.paper.timing import time_plan

        time_plan(planned, folder)
        return 0
    from adaptask.experiments.study import run_and_conclude

    study = Study(
        title=planned.title,
        arms=tuple(arm.with_runs(folder, range(planned.seeds)) for arm in planned.trials),
        command=planned.command,
        columns=planned.target.columns,
        notes=planned.notes,
        citations=planned.citations,
    )
    configs = {arm.name: arm.config for arm in planned.all_trials()}
    return run_and_conclude(
        study,
        folder,
        workers=workers,
        cluster=cluster,
        config_of=lambda arm: configs.get(arm.name),
    )
