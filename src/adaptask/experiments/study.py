"""Run a study: train the runs that are missing, then report the results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from adaptask.arguments import check_integer
from adaptask.atomic_file import create_folder
from adaptask.data import EpisodeSource, load
from adaptask.data.datasets import splits_of
from adaptask.errors import AdaptaskError, ArgumentError, DataError
from adaptask.experiments.backends import Event, choose_backend
from adaptask.experiments.config import MachineConfig, RunConfig, check_config
from adaptask.experiments.config_file import changes, load_config
from adaptask.experiments.factory import (
    build_evaluator,
    build_parts,
    build_schedule,
    build_testers,
    depends_on_steps,
    open_split,
)
from adaptask.experiments.init_weights import check_same_weights
from adaptask.experiments.run import changed_code, resolve_auto
from adaptask.experiments.study_display import StudyDisplay
from adaptask.report.report import make_report, print_report
from adaptask.report.run import Run
from adaptask.report.study import FILE, Arm, Study, read_study
from adaptask.samplers import Sampler
from adaptask.training.process import device_type
from adaptask.training.run_folder import FolderLock
from adaptask.training.step import draw_tasks

if TYPE_CHECKING:
    from adaptask.experiments.backends import Backend
    from adaptask.experiments.backends.ray import ClusterOptions, RayBackend

ConfigOf = Callable[[Arm], RunConfig | None]
"""Returns how an arm would be configured now; None if that is not known."""


def _unknown(arm: Arm) -> RunConfig | None:
    return None


def run_and_report(
    study: Study,
    folder: Path,
    *,
    workers: int | None,
    cluster: ClusterOptions,
    config_of: ConfigOf = _unknown,
) -> int:
    """Make all runs of a study, here or on a cluster, and report it; return the exit status.

    Arguments are those of `run_study`; `cluster` has the options of a cluster.

    Raises:
        AdaptaskError: If something cannot be used or done; the message says what to do.
        KeyboardInterrupt: After Ctrl-C.
    """
    backend = cluster.backend(folder, workers)
    merged, failures = run_study(
        study, folder, workers=workers, cluster=backend, config_of=config_of
    )
    print_report(make_report(folder, merged), failures)
    if backend is not None:
        backend.upload()
    return 1 if failures else 0


def run_study(
    study: Study,
    folder: Path,
    *,
    workers: int | None = None,
    cluster: RayBackend | None = None,
    config_of: ConfigOf = _unknown,
) -> tuple[Study, dict[str, str]]:
    """Make all runs of a study in a folder; runs that are finished are kept.

    The same call continues after a kill. New seeds or arms are added to those in the folder.

    Args:
        study: The study; its arms and their runs have configurations (`Arm.with_runs`).
        folder: The folder of the study; the runs are below it.
        workers: Number of runs at a time; None chooses: on a CPU one per core, at most 8;
            on a GPU several if their steps are small. On a cluster, the resources decide.
        cluster: Makes the runs; without it this machine does.
        config_of: Returns how an arm that only the folder has would be configured now, to check
            that it can be compared with the others.

    Returns:
        The study with everything in the folder, and why runs failed, by their names.

    Raises:
        ArgumentError: If something cannot be used, or the folder holds something else.
        TrainingError: If another process uses the folder.
        KeyboardInterrupt: After Ctrl-C.
    """
    runs = _runs_in_order(study)
    for arm in study.arms:
        check_config(arm.config)
    if workers is not None:
        check_integer("workers", workers, low=1)
    missing = missing_datasets(arm.config.data.dataset for arm in study.arms)
    possible = [run for run in runs if run.config.data.dataset not in missing]
    if not possible:
        raise next(iter(missing.values()))
    check_buildable(
        {a.name: a.config for a in study.arms if a.config.data.dataset not in missing},
        needed_split="val" if study.by_validation else "test",
    )
    with ExitStack() as stack:
        stack.push(_print_how_to_continue)
        if cluster is not None:
            stack.enter_context(cluster)
        _create_folder(folder)
        stack.enter_context(FolderLock(folder / "lock").held())
        if cluster is not None:
            cluster.fetch()
        merged = _merge_with_folder(study, folder, config_of)
        merged.write(folder)
        display = StudyDisplay(possible)
        stack.callback(display.close)
        for error in missing.values():
            display(Event("warn", "", text=f"Left out: {error}"))
        backend: Backend | None = cluster
        if backend is None:
            device = device_type(possible[0].config.machine.device)
            backend = choose_backend(workers, [run.config for run in possible], device)
        failures = backend.run(possible, display)
    for run in runs:
        if error_of_data := missing.get(run.config.data.dataset):
            failures[run.name] = str(error_of_data)
    return merged, {run.name: failures[run.name] for run in runs if run.name in failures}


def _runs_in_order(study: Study) -> list[Run]:
    """Return the runs: all arms of a seed before the next seed, so that pairs are there early.

    Raises:
        ArgumentError: If there are none.
    """
    runs = sorted((run for arm in study.arms for run in arm.runs), key=lambda run: run.seed)
    if not runs:
        raise ArgumentError("there is nothing to train: no learner, or no sampler, was named.")
    return runs


def missing_datasets(datasets: Iterable[str]) -> dict[str, DataError]:
    """Return why datasets cannot be used; a dataset that is generated is generated now, once."""
    missing = {}
    for name in dict.fromkeys(datasets):
        try:
            load(name, "train")
        except DataError as error:
            missing[name] = error
    return missing


def _print_how_to_continue(kind: type[BaseException] | None, *_: object) -> None:
    if kind in (KeyboardInterrupt, SystemExit):
        sys.stderr.write("To continue, run the same command again; finished work is kept.\n")


def _create_folder(folder: Path) -> None:
    if folder.is_dir() and not (folder / FILE).exists():
        found = folder.iterdir()
        # Files that a kill leaves before study.json is written do not count.
        if others := [p.name for p in found if p.name != "lock" and p.suffix != ".tmp"]:
            raise ArgumentError(
                f"{folder} exists and holds no study, but {sorted(others)[0]}; choose another "
                "folder, --output FOLDER."
            )
    create_folder(folder)


def check_buildable(configs: Mapping[str, RunConfig], *, needed_split: str) -> None:
    """Build the parts of each arm, so that mistakes are found before any training.

    Args:
        configs: The configurations of the arms, by name.
        needed_split: The split whose accuracies the study compares, `val` or `test`.

    Raises:
        AdaptaskError: If a value is out of range, or does not fit the data.
    """
    cpu = torch.device("cpu")
    for name, planned in configs.items():
        config = replace(
            planned,
            # Machine and storage belong to the device that trains.
            machine=MachineConfig(),
            data=replace(planned.data, storage="auto"),
            # Of episodes it takes two to see whether they can be drawn.
            evaluation=replace(planned.evaluation, n_episodes=2, n_validation=2),
        )
        try:
            resolve_auto(planned, cpu)  # finds what no machine can do
            config = resolve_auto(config, cpu)
            source = open_split(config, "train", cpu)
            _, sampler, _ = build_parts(config, source, cpu)
            _check_draws(sampler, config, source)
            build_schedule(config)
            splits = splits_of(config.data.dataset)
            if needed_split not in splits:
                raise ArgumentError(_nothing_to_compare(config.data.dataset, needed_split))
            if "val" in splits:
                build_evaluator(config, "val", cpu)
            if "test" in splits:
                build_testers(config, cpu)
        except AdaptaskError as error:
            raise type(error)(f"{name} cannot be trained: {error}") from error


def _check_draws(sampler: Sampler, config: RunConfig, source: EpisodeSource) -> None:
    """Draw tasks from a sampler of others once, and check that they are tasks.

    Raises:
        ArgumentError: If they are not.
    """
    if type(sampler).__module__.partition(".")[0] == "adaptask":
        return
    with torch.random.fork_rng(devices=[]):  # it may draw from torch's own generator
        try:
            class_ids = draw_tasks(sampler, config.task.n_tasks)
        except AdaptaskError:
            raise
        except Exception:  # the run reports it with a traceback; on its device there may be none
            return
        if class_ids.device == source.device:
            source.draw(class_ids, n_shot=config.task.n_shot, n_query=config.task.n_query)


def _nothing_to_compare(dataset: str, split: str) -> str:
    """Return why a study cannot be made, and what to do."""
    compared = "validation" if split == "val" else "test"
    kind = "features" if load(dataset, "train").holds_features else "folder"
    return (
        f"{dataset} has no {split} classes, but this command compares {compared} accuracies. "
        f"Prepare it again with {split} classes, such as with adaptask data prepare {kind} "
        "--fractions 0.64 0.16 0.2; or train single runs with adaptask train."
    )


def _merge_with_folder(study: Study, folder: Path, config_of: ConfigOf) -> Study:
    """Return the study with the arms and runs that only the folder has.

    Raises:
        ArgumentError: If the folder holds another study, or its runs have other settings or
            started with other weights.
    """
    if not (folder / FILE).exists():
        return study
    before = read_study(folder)
    if before.arms and study.arms[0].labels.keys() != before.arms[0].labels.keys():
        raise ArgumentError(
            f"{folder} holds another study, {before.title!r}; choose another folder, --output "
            "FOLDER."
        )
    named = {arm.name for arm in study.arms}
    # An arm that failed goes if it is not named again: it may never have been possible.
    arms = {arm.name: arm for arm in before.arms if arm.name in named or not _has_failed(arm)}
    for arm in study.arms:
        known = arms[arm.name].runs if arm.name in arms else ()
        runs = {run.seed: run for run in (*known, *arm.runs)}
        arms[arm.name] = replace(arm, runs=tuple(runs[seed] for seed in sorted(runs)))
    for arm in arms.values():
        config = arm.config or config_of(arm)
        for run in arm.runs:
            if run.config is not None:
                _check_continues(run, folder)
            elif config is not None:
                _check_comparable(run, replace(config, seed=run.seed), folder)
    _check_code(arms.values(), config_of, folder)
    found: dict[str, list[Path]] = {}
    for arm in arms.values():
        config = arm.config or config_of(arm)
        if config is not None and config.start.init is not None:
            found.setdefault(config.start.init, []).extend(run.path for run in arm.runs)
    for init, folders in found.items():
        check_same_weights(init, folders)
    return replace(study, arms=tuple(arms.values()))


def _has_failed(arm: Arm) -> bool:
    """Return whether all runs of an arm failed."""
    return all(run.failure is not None and not run.is_finished for run in arm.runs)


def _check_continues(run: Run, folder: Path) -> None:
    """Check that a run that has begun keeps its settings; only steps and test tasks may grow."""
    for key, old, new in _changes(run, run.config):
        is_longer = key == "steps" and new > old and not depends_on_steps(run.config)
        if not is_longer and not (key == "evaluation.tasks" and set(new) >= set(old)):
            raise ArgumentError(
                f"{folder} has {run.name} with {key} {old}, now it is {new}. Choose another "
                "folder, --output FOLDER, or keep the old value."
            )


def _check_comparable(run: Run, config: RunConfig, folder: Path) -> None:
    """Check that a run that only the folder has was trained as the others are."""
    for key, old, new in _changes(run, config):
        raise ArgumentError(
            f"{folder} also has {run.name}, with {key} {old}, now it is {new}: they cannot be "
            "compared, but one table would show both. Name it as well to train it again or "
            "further, or choose another folder, --output FOLDER."
        )


def _check_code(arms: Iterable[Arm], config_of: ConfigOf, folder: Path) -> None:
    """Check that finished runs were made with the present code of classes that are named now."""
    stale: dict[str, dict[Path, None]] = {}
    for arm in arms:
        if (config := arm.config or config_of(arm)) is None:
            continue
        for run in arm.runs:
            for name in changed_code(run.path, config) if run.is_finished else ():
                stale.setdefault(name, {})[run.path.parent] = None
    for name, folders in stale.items():
        raise ArgumentError(
            f"{folder} has finished runs that were made with other code of {name}, and its table "
            "would show them as results of the present code. To train again, choose another "
            f"folder, or remove {', '.join(map(str, folders))}; to keep the runs, undo the change. "
            "Comments and docstrings do not count."
        )


def _changes(run: Run, config: RunConfig) -> list[tuple[str, Any, Any]]:
    """Return the settings of a run that have changed: name, old value, new value."""
    try:
        begun = load_config(run.path / "config.toml", known=config)
    except ArgumentError:
        return []  # it has not begun, or the run itself will report the error
    return changes(begun, config)
