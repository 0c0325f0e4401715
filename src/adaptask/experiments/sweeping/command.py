"""What `adaptask sweep` does: trains every trial of a search, and chooses the best by validation.

A trial is kept in a folder that is named after its values, with one run for each seed. What has
been done is read from there: a sweep that was killed goes on when it is started again.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from adaptask.arguments import check_choice, check_integer
from adaptask.atomic_file import not_written
from adaptask.errors import ArgumentError
from adaptask.experiments.building import build_model, build_schedule
from adaptask.experiments.cluster.options import ClusterOptions
from adaptask.experiments.config import RunConfig
from adaptask.experiments.running import run as train_run
from adaptask.experiments.study_checks import check_buildable
from adaptask.experiments.sweeping.journal import FILE as JOURNAL
from adaptask.experiments.sweeping.journal import Journal, JournalLock, require_optuna
from adaptask.experiments.sweeping.on_cluster import search_on_cluster
from adaptask.experiments.sweeping.plan import SweepTrial, plan_trials
from adaptask.experiments.sweeping.plan_file import check_same_sweep, write_plan
from adaptask.experiments.sweeping.results import Result, print_results, study_of_sweep
from adaptask.experiments.sweeping.searching import RunFunction, Searching
from adaptask.experiments.sweeping.space import parse_options
from adaptask.report.making import make_report
from adaptask.samplers import build_sampler
from adaptask.training.displays import choose_display
from adaptask.training.distributed import refuse_launch
from adaptask.training.optimisation import build_optimizer

_IMAGE_SHAPE = (3, 84, 84)
_TO_GO_ON = "To go on, give the same command again; what is done is kept."


def sweep(
    base: RunConfig,
    *,
    flags: Mapping[str, Sequence[str]],
    vary: Sequence[str] = (),
    search: str = "grid",
    trials: int | None = None,
    seeds: int = 1,
    search_seed: int = 0,
    prune: bool = True,
    output: Path | None = None,
    quiet: bool = False,
    cluster: ClusterOptions = ClusterOptions(),  # noqa: B008, it is frozen
    command: Sequence[str] = (),
    run: RunFunction | None = None,
) -> int:
    """Train every trial of a search, and show how well each did; the best by validation first.

    Args:
        base: The configuration that the values go into; its seed is the first one.
        flags: Values of options that have a flag, as texts by the key of the option.
        vary: Other options with their values, such as `optimiser.weight_decay=0,5e-4`.
        search: `grid` or `random`.
        trials: How many, in random search.
        seeds: Runs of a trial.
        search_seed: Decides what random search draws.
        prune: Whether trials that are worse than most are given up early.
        output: The folder of the sweep; one named after it where none is given.
        quiet: Whether to say only what goes wrong, and the results.
        cluster: Where the runs are made, if not by this process alone.
        command: The words that repeat it.
        run: Trains a run; `running.run` where none is given.

    Returns:
        The exit status: 1 if a trial failed.

    Raises:
        AdaptaskError: If something cannot be used or done; the message says what to do.
        KeyboardInterrupt: After Ctrl-C.
    """
    refuse_launch("sweep")
    require_optuna()
    check_integer("seeds", seeds, low=1)
    check_choice("search", search, ("grid", "random"))
    options = parse_options(base, flags, vary)
    plan = plan_trials(base, options, search=search, n_trials=trials, seed=search_seed)
    _check_parts(plan)
    if run is None:
        # One for all: data and tasks are seldom varied.
        check_buildable({plan[0].name: plan[0].config})
    folder = output or default_output(base, list(plan[0].labels))
    machines = cluster.open()
    run_seeds = range(base.seed, base.seed + seeds)
    study = study_of_sweep(base, plan, run_seeds, command=shlex.join(command))
    with ExitStack() as stack:
        if machines is not None:
            stack.enter_context(machines.opened(folder, [trial.config for trial in plan]))
            machines.fetch()
        check_same_sweep(folder, plan)
        _make(folder)
        with JournalLock(folder / JOURNAL):
            write_plan(folder, plan)
            study.write(folder)
        journal = Journal(folder, options, n_steps=base.steps, prune=prune)
        try:
            if machines is None:
                _search(plan, folder, run_seeds, journal, run or train_run, quiet=quiet)
            else:
                machines.keep()
                search_on_cluster(
                    machines, plan, folder, seeds=run_seeds, journal=journal, quiet=quiet
                )
        except (KeyboardInterrupt, SystemExit):
            choose_display(quiet=quiet, stream=sys.stderr).message(_TO_GO_ON)
            raise
    status = _conclude(base, plan, run_seeds, folder, command=study.command)
    if machines is not None:
        machines.keep()
    return status


def _conclude(
    base: RunConfig, plan: Sequence[SweepTrial], seeds: Sequence[int], folder: Path, *, command: str
) -> int:
    """Write down what came out, and show it; return the exit status."""
    results = [Result.read(folder, trial, seeds) for trial in plan]
    with JournalLock(folder / JOURNAL):
        study_of_sweep(base, plan, seeds, command=command, results=results).write(folder)
    print_results(results, folder)
    _, page = make_report(folder)
    sys.stdout.write(f"The report is {page.resolve()}\n")
    return 1 if any(result.state == "failed" for result in results) else 0


def _search(
    plan: Sequence[SweepTrial],
    folder: Path,
    seeds: Sequence[int],
    journal: Journal,
    run: RunFunction,
    *,
    quiet: bool,
) -> None:
    """Bring the trials to their end in this process, one after the other."""
    display = choose_display(quiet=quiet, stream=sys.stderr)
    searching = Searching(folder, seeds=seeds, journal=journal, run=run, display=display)
    for number, trial in enumerate(plan, start=1):
        searching.settle(trial, f"Trial {number} of {len(plan)}")


def default_output(base: RunConfig, names: Sequence[str]) -> Path:
    """Return a folder named after what is varied."""
    model = f"{base.model.learner}-{base.model.backbone}"
    return Path("runs") / f"sweep-{base.data.dataset}-{model}-{'-'.join(names)}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(folder, error) from error


def _check_parts(plan: Sequence[SweepTrial]) -> None:
    """Build what each trial is made of, so that a bad value is refused before any training."""
    known = set()
    for trial in plan:
        model = (trial.config.model, trial.config.learner_options, trial.config.backbone_options)
        try:
            _build_small_parts(trial.config)
            if model not in known:
                build_model(trial.config, _IMAGE_SHAPE, torch.device("cpu"))
                known.add(model)
        except ArgumentError as error:
            raise ArgumentError(f"the trial {trial.name} cannot be made: {error}") from error


def _build_small_parts(config: RunConfig) -> None:
    build_sampler(
        config.sampler.name,
        n_classes=2 * config.task.n_way,
        n_way=config.task.n_way,
        **config.sampler_options(),
    )
    build_optimizer(
        config.optimiser.name,
        [torch.zeros(1, requires_grad=True)],
        lr=config.optimiser.lr,
        weight_decay=config.optimiser.weight_decay,
        momentum=config.optimiser.momentum,
    )
    build_schedule(config)
