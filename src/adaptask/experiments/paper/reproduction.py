"""What `adaptask reproduce` does: a part of a target, at some scale, as a plan; then its runs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from adaptask.arguments import check_choice, check_integer, check_number
from adaptask.atomic_file import not_written
from adaptask.errors import ArgumentError
from adaptask.experiments.backends.ray import ClusterOptions
from adaptask.experiments.config import RunConfig, check_config
from adaptask.experiments.paper.datasets_at_hand import check_dataset_name, images_a_class
from adaptask.experiments.paper.figures import PrintedTime
from adaptask.experiments.paper.scaling import LEAST_EPISODES, LEAST_STEPS, fitted, scaled
from adaptask.experiments.paper.target_notes import of_recipes
from adaptask.experiments.paper.target_trials import Choice, time_name
from adaptask.experiments.paper.targets import TARGETS, Target
from adaptask.experiments.trials import Trial
from adaptask.report.study import Citation

SCHEDULES = ("paper", "cosine")
TIMING_SECONDS = 60.0
"""For a setting of Table 5, at full scale."""


@dataclass(frozen=True)
class Plan:
    """What is to be run of a target."""

    target: Target
    trials: tuple[Trial, ...]
    times: tuple[PrintedTime, ...]
    """What is to be timed, where the target is about time."""
    seeds: int
    """Runs a trial, with the seeds 0, 1, ..."""
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
        seeds: Runs a trial; None: three for what is measured, one for what is looked at.
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
    if dataset is not None:
        check_dataset_name(dataset)
    choice = chosen.choose(dataset=dataset, rows=rows, shots=shots, learners=learners)
    check_choice("schedule", schedule, SCHEDULES)
    full = [_scheduled(trial, schedule) for trial in chosen.trials(choice)]
    if schedule == "cosine" and all(t.config.optimiser.schedule != "cosine" for t in full):
        raise ArgumentError(
            f"{target} has no learning rate that the paper leaves constant; leave out --schedule."
        )
    trials = tuple(_sized(trial, scale, device) for trial in full)
    for trial in trials:
        check_config(trial.config)
    times = tuple(
        time
        for time in chosen.times
        if time_name(time) in choice.rows and time.n_shot in choice.shots
    )
    if not trials and not times:
        raise ArgumentError(
            f"no row of {target} is left with the shots {', '.join(map(str, choice.shots))} among "
            f"{', '.join(choice.rows)}."
        )
    return Plan(
        target=chosen,
        trials=trials,
        times=times,
        seeds=n_seeds,
        scale=scale,
        datasets=choice.datasets,
        device=device,
        schedule=schedule,
        command=_command(target, dataset, scale, rows, seeds, shots, learners, schedule, device),
        notes=(
            *_deviations(chosen, choice, scale, schedule, full, trials),
            *chosen.notes,
            *of_recipes(trials),
        ),
        citations=chosen.citations(choice),
    )


def _scheduled(trial: Trial, schedule: str) -> Trial:
    optimiser = trial.config.optimiser
    if schedule == "paper" or optimiser.schedule != "constant":
        return trial
    optimiser = replace(optimiser, schedule="cosine")
    return replace(trial, config=replace(trial.config, optimiser=optimiser))


def _sized(trial: Trial, scale: float, device: str) -> Trial:
    config = fitted(scaled(trial.config, scale), images_a_class(trial.config.data.dataset))
    return replace(trial, config=replace(config, machine=replace(config.machine, device=device)))


def _deviations(
    target: Target,
    choice: Choice,
    scale: float,
    schedule: str,
    full: Sequence[Trial],
    trials: Sequence[Trial],
) -> tuple[str, ...]:
    """Return what is not as in the paper because the user wants it so."""
    found = []
    if foreign := [name for name in choice.datasets if name not in target.datasets]:
        figures = (
            "the paper's times are those of its own"
            if target.times
            else ("the paper has no figures for it")
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
    for before, after in zip(full, trials, strict=True):
        old, new = before.config.task, after.config.task
        if (old.n_shot, old.n_query) != (new.n_shot, new.n_query):
            found.append(
                f"{after.config.data.dataset} has too few images a class for training tasks of "
                f"{old.n_shot} shots and {old.n_query} queries; they have {new.n_shot} and "
                f"{new.n_query}."
            )
    return tuple(dict.fromkeys(found))


def _command(
    target: str,
    dataset: str | None,
    scale: float,
    rows: Sequence[str],
    seeds: int | None,
    shots: Sequence[int],
    learners: Sequence[str],
    schedule: str,
    device: str,
) -> str:
    words = ["adaptask", "reproduce", target]
    if dataset is not None:
        words += ["--dataset", dataset]
    if scale != 1:
        words += ["--scale", f"{scale:g}"]
    for flag, values in (("--rows", rows), ("--shots", shots), ("--learners", learners)):
        words += [flag, *map(str, values)] if values else []
    if seeds is not None:
        words += ["--seeds", str(seeds)]
    if schedule != "paper":
        words += ["--schedule", schedule]
    if device != "auto":
        words += ["--device", device]
    return shlex.join(words)


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
    from adaptask.training.joining import refuse_launch

    refuse_launch("reproduce")
    folder = folder or default_folder(planned)
    if planned.times:
        run_times(planned, folder)
        return 0
    from adaptask.experiments.conclusion import run_and_conclude
    from adaptask.experiments.studies import StudyPlan

    configs = _all_configs(planned)
    study = StudyPlan(
        title=planned.title,
        trials=planned.trials,
        seeds=range(planned.seeds),
        command=planned.command,
        columns=planned.target.columns,
        notes=planned.notes,
        citations=planned.citations,
        config_of=lambda arm: configs.get(arm.name),
    )
    return run_and_conclude(study, folder, workers=workers, cluster=cluster)


def _all_configs(planned: Plan) -> dict[str, RunConfig]:
    """Return the configuration of every trial of the target, as this plan has it; by name."""
    target = planned.target
    datasets = tuple(dict.fromkeys((*target.datasets, *planned.datasets)))
    everything = Choice(datasets, target.rows, target.shots, target.learners)
    trials = [_scheduled(trial, planned.schedule) for trial in target.trials(everything)]
    return {t.name: _sized(t, planned.scale, planned.device).config for t in trials}


def run_times(planned: Plan, folder: Path) -> None:
    """Time what was planned, print the table, and keep it as `times.json`.

    Raises:
        TrainingError: If the folder cannot be made.
    """
    from rich.console import Console

    from adaptask.experiments.paper.plan_display import show_table
    from adaptask.experiments.paper.timing import time_settings, timing_table, write_times
    from adaptask.training.machine import choose_device

    console = Console(highlight=False)
    where = choose_device(planned.device)
    dataset = planned.datasets[0]
    budget = planned.timing_seconds
    about = math.ceil(len(planned.times) * budget)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(folder, error) from error
    console.print(f"{planned.title}, measured on {where} for about {about} s.")
    with console.status("") as status:
        timings = time_settings(
            planned.times,
            dataset=dataset,
            device=where,
            budget=budget,
            progress=lambda time: status.update(f"timing {time_name(time)}"),
        )
    write_times(folder, timings, dataset=dataset, device=where)
    show_table(timing_table(timings, planned.notes), console)
    console.print(f"The times are in {folder}", style="dim")
