"""What `adaptask reproduce` does: a part of a target, at some scale, as a plan; then its runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from adaptask.arguments import check_choice, check_integer, check_number
from adaptask.data import glyphs
from adaptask.data.cache import cache_root
from adaptask.data.datasets import check_name, is_plugin, is_prepared, load, splits_of
from adaptask.errors import ArgumentError
from adaptask.experiments.backends.ray import ClusterOptions
from adaptask.experiments.config import RunConfig
from adaptask.experiments.options import AlgorithmConfig, configure, options_of
from adaptask.experiments.paper.published import PrintedTime
from adaptask.experiments.paper.targets import TARGETS, UNIFORM, Setting, Target
from adaptask.experiments.recipes import recipe, recipe_notes
from adaptask.intervals import Intervals
from adaptask.report.study import Arm, Study

SCHEDULES = ("paper", "cosine")
TIMING_SECONDS = 60.0
"""For a setting of Table 5, at full scale."""
LEAST_STEPS = 30
LEAST_EPISODES = 50
QUICK_SCALE = 1e-4
QUICK_EPISODES = 20

T = TypeVar("T", str, int)


@dataclass(frozen=True)
class Plan:
    """What is to be run: a part of a target, at some scale."""

    target: Target
    datasets: tuple[str, ...]
    rows: tuple[str, ...]
    shots: tuple[int, ...]
    learners: tuple[str, ...]
    """In place of that of the settings; empty if the target has no choice."""
    seeds: int
    """Runs per trial, with the seeds 0, 1, ..."""
    scale: float
    schedule: str
    """`paper`, or `cosine`."""
    device: str
    """`auto`, or the name of one."""
    command: str
    """What repeats it."""
    quick: bool = False
    """Whether tasks and networks are small as well."""

    @property
    def title(self) -> str:
        """What it is, for a heading."""
        return f"{self.target.number}: {self.target.title}"

    @property
    def n_runs(self) -> int:
        """Number of runs."""
        return len(self.trials) * self.seeds

    @property
    def times(self) -> tuple[PrintedTime, ...]:
        """What is to be timed, if the target is about time."""
        found = self.target.times
        return tuple(t for t in found if t.name in self.rows and t.n_shot in self.shots)

    @property
    def timing_seconds(self) -> float:
        """Seconds for each setting that is timed."""
        return max(1.0, TIMING_SECONDS * self.scale)

    @cached_property
    def trials(self) -> tuple[Arm, ...]:
        """What is to be trained; rows that share a setting share its trial."""
        settings = [setting for row in self.rows for setting in self.target.settings[row]]
        if self.learners:
            settings = [s.with_learner(name) for name in self.learners for s in settings]
        settings = list(dict.fromkeys(settings))
        return tuple(
            self._trial(setting, settings, dataset, shots)
            for dataset in self.datasets
            for model in dict.fromkeys(setting.model for setting in settings)
            for shots in self.shots
            for setting in settings
            if setting.model == model
        )

    def _trial(
        self, setting: Setting, settings: Sequence[Setting], dataset: str, shots: int
    ) -> Arm:
        target, sampler = self.target, setting.sampler
        stem = f"{setting.model}-{dataset}-{shots}shot"
        name = f"{stem}-{setting.label.replace(' ', '-')}"
        is_uniform = sampler == UNIFORM
        alpha, tau = ("-", "-") if is_uniform else (f"{sampler.alpha:g}", f"{sampler.tau:g}")
        if "alpha" in target.labels and not is_uniform:
            name += f"-alpha{alpha}-tau{tau}"
        values = {
            "learner": setting.learner,
            "backbone": setting.backbone,
            "sampler": setting.label,
            "alpha": alpha,
            "tau": tau,
            "dataset": dataset,
            "shots": str(shots),
        }
        has_baseline = any(s.model == setting.model and s.sampler == UNIFORM for s in settings)
        published = None
        if target.table is not None and setting.method:
            published = target.table.published(setting.method, dataset, shots)
        return Arm(
            name=name,
            labels={key: values[key] for key in target.labels},
            config=self._config(setting, dataset, shots),
            baseline=f"{stem}-uniform" if has_baseline and not is_uniform else None,
            published=published,
        )

    def _config(self, setting: Setting, dataset: str, shots: int) -> RunConfig:
        """Return how the paper trains, at this scale and with tasks that the data can give."""
        config = recipe(setting.learner, setting.backbone, dataset, shots)
        config = replace(config, sampler=setting.sampler, **self.target.overrides)
        if self.schedule == "cosine" and config.optimizer.schedule == "constant":
            config = replace(config, optimizer=replace(config.optimizer, schedule="cosine"))
        config = scaled(config, self.scale)
        config = fitted(small(config) if self.quick else config, images_per_class(dataset))
        return replace(config, machine=replace(config.machine, device=self.device))

    def all_trials(self) -> tuple[Arm, ...]:
        """Return the trials of the whole target, of which these are a part, as this plan has them.

        A folder may have some of them from another time; they are compared with those of now.
        """
        target = self.target
        everything = replace(
            self,
            datasets=tuple(dict.fromkeys((*target.datasets, *self.datasets))),
            rows=target.rows,
            shots=target.shots,
            learners=target.learners,
        )
        return everything.trials

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: what is not as in the paper, and what the paper leaves open."""
        configs = [trial.config for trial in self.trials]
        smaller = {} if self.quick else dict.fromkeys(map(_smaller_task, configs))
        return (
            *self._deviations(),
            *(note for note in smaller if note is not None),
            *self.target.notes,
            *recipe_notes(configs),
        )

    def _deviations(self) -> list[str]:
        """Return what is not as in the paper because the user wants it so."""
        target, scale, found = self.target, self.scale, []
        if foreign := [name for name in self.datasets if name not in target.datasets]:
            figures = (
                "the paper has times for its own datasets only"
                if target.times
                else "the paper has no figures for it"
            )
            found.append(
                f"{foreign[0]} replaces {' and '.join(target.datasets)}; {figures}. "
                "Settings that depend on the dataset are those of CIFAR-FS if the literature has "
                "none for it."
            )
        if self.learners != target.learners[:1]:
            found.append(
                f"The paper has {target.learners[0]} in this table, and figures for it alone; here "
                f"are {', '.join(self.learners)}."
            )
        if self.schedule == "cosine":
            found.append("Learning rates that the paper leaves constant fall along half a cosine.")
        if self.quick:
            found.append(
                "Quick: few steps, small tasks and narrow networks, to see that everything works. "
                "Nothing here can be compared with the paper."
            )
        elif scale < 1 and target.times:
            found.append(
                f"At scale {scale:g}: settings are timed for that share of a minute each, and for "
                "a second at least."
            )
        elif scale < 1:
            found.append(
                f"At scale {scale:g}: steps, milestones, ramps and episodes are {scale:g} times "
                f"those of the paper, but at least {LEAST_STEPS} steps and {LEAST_EPISODES} "
                "episodes. Such accuracies are not to be compared with the paper's."
            )
        return found


def _smaller_task(config: RunConfig) -> str | None:
    """Return a note if tasks had to become smaller because classes have too few images."""
    dataset, names = config.data.dataset, (config.learner.name, config.backbone.name)
    old, new = recipe(*names, dataset, config.tested_shot).task, config.task
    if (old.n_shot, old.n_query) == (new.n_shot, new.n_query):
        return None
    return (
        f"{dataset} has too few images per class for training tasks of {old.n_shot} shots and "
        f"{old.n_query} queries; they have {new.n_shot} and {new.n_query}."
    )


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
    quick: bool = False,
) -> Plan:
    """Return what is to be run of a table or a figure of the paper.

    Args:
        target: A key of `TARGETS`.
        dataset: Replaces all datasets of the target.
        scale: Of steps, milestones, intervals and episodes, above 0 and at most 1.
        rows: Which rows; by default all.
        seeds: Runs per trial; None: three for what is measured, one for what is looked at.
        shots: Which shots; by default all.
        learners: Other learners than the paper's, if the target has a choice.
        schedule: `paper`, or `cosine` in the place of learning rates that the paper leaves
            constant.
        device: Where it is computed; auto: a GPU if there is one.
        quick: Make all of it so small that it takes minutes on a CPU: few steps, small tasks,
            narrow networks; unless they are given, the dataset is glyphs, with the fewest shots
            and one seed.

    Raises:
        ArgumentError: If there is no such target, dataset, row, shot or learner, or a number is
            out of range.
    """
    chosen = TARGETS[check_choice("target", target, TARGETS)]
    check_number("scale", scale, low=0, high=1)
    if scale == 0:
        raise ArgumentError("scale must be above 0, or nothing is trained; got 0.")
    if seeds is not None:
        check_integer("seeds", seeds, low=1)
        if chosen.times:
            raise ArgumentError(f"{target} is timed, not trained; leave out --seeds.")
    if dataset is not None:
        check_name(dataset)
    if learners and not chosen.learners:
        raise ArgumentError(
            f"{target} has the learners of the paper; choose among its rows: "
            f"{', '.join(chosen.rows)}."
        )
    for learner in learners:
        check_choice(f"a learner of {target}", learner, chosen.learners)
    check_choice("schedule", schedule, SCHEDULES)
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
    if quick:
        words.append("--quick")
        dataset, scale = dataset or glyphs.NAME, QUICK_SCALE if scale == 1 else scale
        shots = shots or ([] if chosen.times else [min(chosen.shots)])
        seeds = seeds or 1
    planned = Plan(
        target=chosen,
        datasets=chosen.datasets if dataset is None else (dataset,),
        rows=_part(f"a row of {target}", chosen.rows, rows),
        shots=_part(f"shots of {target}", chosen.shots, shots),
        learners=tuple(learners) or chosen.learners[:1],
        seeds=chosen.seeds if seeds is None else seeds,
        scale=scale,
        schedule=schedule,
        device=device,
        command=shlex.join(["adaptask", "reproduce", target, *words]),
        quick=quick,
    )
    schedules = {trial.config.optimizer.schedule for trial in planned.trials}
    if schedule == "cosine" and "cosine" not in schedules:
        raise ArgumentError(
            f"{target} has no learning rate that the paper leaves constant; leave out --schedule."
        )
    if not planned.trials and not planned.times:
        raise ArgumentError(
            f"no row of {target} is left with the shots {', '.join(map(str, planned.shots))} among "
            f"{', '.join(planned.rows)}."
        )
    return planned


def _part(what: str, available: Sequence[T], wanted: Sequence[T]) -> tuple[T, ...]:
    """Return the wanted part of what there is, in its order; all if nothing is named."""
    for value in wanted:
        check_choice(what, str(value), [str(known) for known in available])
    return tuple(value for value in available if value in wanted or not wanted)


def default_folder(planned: Plan) -> Path:
    """Return a folder named after what is reproduced, and how far it is from the paper."""
    words = ["reproduce", planned.target.name]
    if set(planned.datasets) - set(planned.target.datasets):
        words += planned.datasets
    if planned.schedule != "paper":
        words.append(planned.schedule)
    if planned.quick:
        words.append("quick")
    elif planned.scale < 1:
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
        folder: Where; by default one named after the plan. Finished runs in it are kept.
        workers: How many runs at once; None chooses. Times are measured one after the other.
        cluster: Where the runs are made, if not by this machine alone. Times are measured here.

    Returns:
        The exit status: 1 if a run failed.

    Raises:
        AdaptaskError: If something cannot be used or done; the message says what to do.
    """
    from adaptask.training.distributed import refuse_torchrun

    refuse_torchrun("reproduce")
    folder = folder or default_folder(planned)
    if planned.times:
        from adaptask.experiments.paper.timing import time_plan

        time_plan(planned, folder)
        return 0
    from adaptask.experiments.study import run_and_report

    study = Study(
        title=planned.title,
        arms=tuple(arm.with_runs(folder, range(planned.seeds)) for arm in planned.trials),
        command=planned.command,
        columns=planned.target.columns,
        notes=planned.notes,
        first_section=planned.target.first_section,
    )
    configs = {arm.name: arm.config for arm in planned.all_trials()}
    return run_and_report(
        study,
        folder,
        workers=workers,
        cluster=cluster,
        config_of=lambda arm: configs.get(arm.name),
    )


# Smaller versions of a configuration -------------------------------------------------------------


def scaled(config: RunConfig, scale: float) -> RunConfig:
    """Return a run of `scale` times the steps and episodes, and not fewer than the least.

    Milestones, the ramp of DropBlock and the interval of snapshots shrink as the steps do. Other
    intervals are those of any run of that length.

    Args:
        config: At full scale.
        scale: Above 0, at most 1, which changes nothing.
    """
    if scale == 1:
        return config
    steps = min(config.steps, max(LEAST_STEPS, round(config.steps * scale)))
    ratio = steps / config.steps
    tests, snapshot = config.evaluation, config.every.snapshot
    milestones: list[int] = []
    for milestone in config.optimizer.milestones:
        earliest = milestones[-1] + 1 if milestones else 1
        milestones.append(max(earliest, round(milestone * ratio)))
    found = replace(
        config,
        steps=steps,
        evaluation=replace(
            tests,
            n_episodes=_episodes(tests.n_episodes, scale),
            n_validation=_episodes(tests.n_validation, scale),
        ),
        optimizer=replace(config.optimizer, milestones=tuple(milestones)),
        every=Intervals(snapshot=max(1, round(snapshot * ratio)) if snapshot else snapshot),
    )
    options = options_of(config.backbone)
    if "drop_block_ramp" in options:
        options["drop_block_ramp"] = max(1, round(options["drop_block_ramp"] * ratio))
        found = replace(found, backbone=configure("backbone", config.backbone.name, **options))
    return found


def small(config: RunConfig) -> RunConfig:
    """Return a run of small tasks, few episodes and a narrow backbone."""
    task, tests = config.task, config.evaluation
    n_shot = min(task.n_shot, config.tested_shot)
    return replace(
        config,
        task=replace(task, n_shot=n_shot, n_query=min(task.n_query, 5), n_tasks=1),
        optimizer=replace(config.optimizer, accumulate=1),
        evaluation=replace(
            tests,
            n_shot=config.tested_shot,
            n_query=min(tests.n_query, 5),
            n_episodes=QUICK_EPISODES,
            n_validation=QUICK_EPISODES,
            keep_best=1,
        ),
        backbone=narrowed(config.backbone),
        every=replace(config.every, validate=0),
    )


def narrowed(backbone: AlgorithmConfig) -> AlgorithmConfig:
    """Return a backbone with few channels, if it has an option for that."""
    options = options_of(backbone)
    narrow = {"filters": 16, "widths": (8, 16, 32, 64)}
    options |= {name: value for name, value in narrow.items() if name in options}
    return configure("backbone", backbone.name, **options)


def _episodes(n_episodes: int, scale: float) -> int:
    return min(n_episodes, max(LEAST_EPISODES, round(n_episodes * scale)))


def fitted(config: RunConfig, n_images: int | None) -> RunConfig:
    """Return a run whose tasks take no more images of a class than there are, if that can be.

    Training drops shots beyond those of the test first, then queries; tests drop queries.

    Args:
        config: Any.
        n_images: How many images the smallest class has; None if that is not known.
    """
    if n_images is None:
        return config
    task, tested = config.task, config.tested_shot
    n_shot = min(task.n_shot, max(tested, n_images - task.n_query))
    n_query = min(task.n_query, n_images - n_shot)
    n_tested = min(config.evaluation.n_query, n_images - tested)
    if min(n_query, n_tested) < 1:
        return config  # what it is built from says what is missing
    return replace(
        config,
        task=replace(task, n_shot=n_shot, n_query=n_query),
        evaluation=replace(config.evaluation, n_query=n_tested),
    )


def images_per_class(dataset: str) -> int | None:
    """Return how many images the smallest class of a dataset has, if that is known."""
    if not is_plugin(dataset) and not is_prepared(cache_root() / dataset):
        return glyphs.N_EXAMPLES if dataset == glyphs.NAME else None
    return min(min(load(dataset, split).class_counts()) for split in splits_of(dataset))
