"""What `adaptask sweep` does: a study of many trials, of which validation chooses the best.

The folders of the runs are all that it goes by. Trials are decided before the first one; which of
them are stopped early is decided by the finished runs in their folders.
"""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptask.arguments import check_choice, check_integer, check_seed
from adaptask.errors import ArgumentError
from adaptask.experiments.backends import RunPruned
from adaptask.experiments.backends.ray import ClusterOptions
from adaptask.experiments.config import RunConfig, check_config
from adaptask.experiments.config_file import option_value, with_option
from adaptask.experiments.options import short_name
from adaptask.experiments.study import run_and_report
from adaptask.registry import is_address
from adaptask.report.run import Run
from adaptask.report.study import Arm, Study
from adaptask.training.distributed import refuse_torchrun

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

N_STARTUP_TRIALS = 5
"""Trials that must have finished before one is stopped early."""
_WARM_UP = 0.2
"""Share of the steps before which none is stopped."""
_DOTS = ".."
_LOG_FACTOR = 10
"""A range that spans at least this factor is drawn on a log scale."""
_FIXED: dict[str, str] = {
    "seed": "every trial has the same seeds; say how many with --seeds",
    "data.dataset": "accuracies on different datasets cannot be compared; sweep each by itself",
    "evaluation": "all trials must be measured in the same way",
    "every": "all trials must be validated equally often",
}
"""What cannot be varied, by option or section, and why."""


def sweep(
    base: RunConfig,
    *,
    vary: Sequence[str],
    search: str = "grid",
    trials: int | None = None,
    seeds: int = 1,
    search_seed: int = 0,
    prune: bool = True,
    output: Path | None = None,
    workers: int | None = None,
    cluster: ClusterOptions = ClusterOptions(),  # noqa: B008, it is frozen
    command: Sequence[str] = (),
) -> int:
    """Train every trial of a search, then print the table, best first, and write the report.

    Arguments are the flags of `adaptask sweep`; the first seed is that of `base`, and `command` has
    the words that repeat it.

    Returns:
        The exit status: 1 if a run failed.

    Raises:
        AdaptaskError: If something cannot be used or done; the message says what to do.
        KeyboardInterrupt: After Ctrl-C.
    """
    refuse_torchrun("sweep")
    _require_optuna()
    check_integer("seeds", seeds, low=1)
    check_choice("search", search, ("grid", "random"))
    space = parse_space(base, vary)
    names = list(short_names(space).values())
    chosen = map(short_name, (base.data.dataset, base.learner.name, base.backbone.name))
    folder = output or Path("runs") / "-".join(("sweep", *chosen, *names))
    arms = []
    for planned in plan_trials(base, space, search=search, n_trials=trials, seed=search_seed):
        arm = planned.with_runs(folder, range(base.seed, base.seed + seeds))
        # Without a folder that all runs share they cannot be compared while they are made.
        if prune and cluster.storage is None:
            arm = replace(arm, runs=tuple(_with_pruner(run, base.seed) for run in arm.runs))
        arms.append(arm)
    study = Study(
        title=f"Sweep of {', '.join(names)}",
        arms=tuple(arms),
        command=shlex.join(command),
        by_validation=True,
    )
    return run_and_report(
        study,
        folder,
        workers=workers,
        cluster=cluster,
        config_of=partial(_config_of, base, space),
    )


def _require_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise ArgumentError(
            f"a sweep needs the package optuna, which cannot be imported ({error}). Install it "
            "with: pip install 'optuna>=4.0'"
        ) from error


# What is varied -----------------------------------------------------------------------------------


def parse_space(base: RunConfig, vary: Sequence[str]) -> dict[str, BaseDistribution]:
    """Return what is to be varied: the distribution of each option, by its key.

    Listed values are texts, from which the values can be read again; those of a range are numbers.

    Args:
        base: The configuration that the values go into.
        vary: Texts such as `optimizer.weight_decay=0,5e-4` or `optimizer.lr=1e-4..1e-2`.

    Raises:
        ArgumentError: If there is nothing to vary, no such option, it cannot be varied or is given
            twice, or a value is not of its type.
    """
    space: dict[str, BaseDistribution] = {}
    for text in sorted(vary, key=lambda text: ".name=" not in text):
        name, _, values = text.partition("=")
        if not values.strip():
            raise ArgumentError(
                "--vary takes options with their values, such as optimizer.weight_decay=0,5e-4; "
                f"got {text!r}."
            )
        key = name.strip().replace("-", "_")
        if key in space:
            raise ArgumentError(f"{key} is given twice; give all its values in one place.")
        # A comma in brackets is part of a value that is a list.
        texts = re.split(r",(?![^\[]*\])", values)
        space[key] = _distribution(base, key, texts)
        if key.endswith(".name"):
            base = with_option(base, key, texts[0])  # what follows may be options of it
    if not space:
        raise ArgumentError(
            "a sweep needs something to vary: --alpha 0.5 1 2, --tau, --lr, or any option with "
            "--vary optimizer.weight_decay=0,5e-4."
        )
    return space


def _distribution(base: RunConfig, key: str, texts: Sequence[str]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    for fixed, reason in _FIXED.items():
        if key == fixed or key.startswith(f"{fixed}."):
            raise ArgumentError(f"{key} cannot be varied: {reason}.")

    def parse(text: str) -> Any:
        return option_value(with_option(base, key, text.strip()), key)

    if len(texts) > 1 or _DOTS not in texts[0]:
        values = (value_text(parse(text)) for text in texts)
        return CategoricalDistribution(list(dict.fromkeys(values)))
    low, high = map(parse, texts[0].split(_DOTS, 1))
    are_numbers = isinstance(low, int | float) and isinstance(high, int | float)
    if not are_numbers or not -math.inf < low < high < math.inf:
        raise ArgumentError(f"a range goes from LOW to HIGH, LOW..HIGH; {key} got {texts[0]}.")
    kind = IntDistribution if isinstance(low, int) else FloatDistribution
    return kind(low, high, log=low > 0 and high >= _LOG_FACTOR * low)


def value_text(value: Any) -> str:
    """Return a value as it is shown, from which it can be read again.

    >>> value_text(1.0), value_text(5e-4), value_text(None), value_text((10, 20)), value_text(True)
    ('1', '0.0005', 'none', '[10,20]', 'true')
    """
    if isinstance(value, tuple):
        return f"[{','.join(map(value_text, value))}]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0")


# Trials -------------------------------------------------------------------------------------------


def plan_trials(
    base: RunConfig,
    space: Mapping[str, BaseDistribution],
    *,
    search: str,
    n_trials: int | None = None,
    seed: int = 0,
) -> list[Arm]:
    """Return all trials in the order in which they are made.

    The first trials of a longer random search with the same seed are those of a shorter one. The
    trial with the values of `base`, if there is one, is the baseline of the others.

    Args:
        base: The configuration that the values go into.
        space: What is varied.
        search: `grid`, every combination once; or `random`, no combination twice.
        n_trials: How many, in random search.
        seed: Decides what random search draws.

    Raises:
        ArgumentError: If the search does not fit what is varied, or a combination is not a valid
            configuration, has an option that plays no part, or is measured unlike the others.
    """
    if (search == "grid") != (n_trials is None):
        raise ArgumentError(
            "--trials N is the number of trials of --search random, which needs it; grid search "
            "makes every combination."
        )
    combinations = _grid(space) if n_trials is None else _random(space, n_trials, seed)
    configs, labels = {}, {}
    for texts in combinations:
        found = dict(zip(short_names(space).values(), texts, strict=True))
        name = ",".join(f"{option}={text}" for option, text in found.items())
        try:
            configs[name], labels[name] = labeled_config(base, space, found), found
            check_config(configs[name])
        except ArgumentError as error:
            raise ArgumentError(f"the trial with {name} cannot be made: {error}") from error
    if len({(config.tested_way, config.tested_shot) for config in configs.values()}) > 1:
        raise ArgumentError(
            "the trials would be validated with different ways or shots, which cannot be compared. "
            f"Set them for all: --evaluation.n-way {base.tested_way} --evaluation.n-shot "
            f"{base.tested_shot}."
        )
    baseline = next((name for name, config in configs.items() if config == base), None)
    return [
        Arm(name, labels[name], config=config, baseline=None if name == baseline else baseline)
        for name, config in configs.items()
    ]


def _config_of(
    base: RunConfig, space: Mapping[str, BaseDistribution], arm: Arm
) -> RunConfig | None:
    """Return how an arm of the folder would be configured now; None if it cannot be told."""
    for key, name in short_names(space).items():
        text = arm.labels.get(name, "")
        choices = getattr(space[key], "choices", ())
        if key.endswith(".name") and is_address(text) and text not in choices:
            return None  # only the folder names this class: it is not imported
    try:
        return labeled_config(base, space, arm.labels)
    except (ArgumentError, KeyError):
        return None


def labeled_config(base: RunConfig, space: Iterable[str], labels: Mapping[str, str]) -> RunConfig:
    """Return the configuration of the trial with these labels."""
    config = base
    for key, name in short_names(space).items():
        config = with_option(config, key, labels[name])
    return config


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return a short name for each key, unlike those of the others.

    >>> short_names(["sampler.alpha", "backbone.norm", "learner.norm", "sampler.name"])
    {'sampler.alpha': 'alpha', 'backbone.norm': 'backbone.norm', 'learner.norm': 'learner.norm', \
'sampler.name': 'sampler'}
    """
    last = {key: key.split(".")[0 if key.endswith(".name") else -1] for key in keys}
    names = list(last.values())
    return {key: key if names.count(name) > 1 else name for key, name in last.items()}


def _grid(space: Mapping[str, BaseDistribution]) -> list[tuple[str, ...]]:
    from optuna.distributions import CategoricalDistribution

    columns = []
    for key, values in space.items():
        if not isinstance(values, CategoricalDistribution):
            raise ArgumentError(
                f"grid search needs the values of {key}, not a range; list some, or draw from it "
                "with --search random --trials N."
            )
        columns.append(values.choices)
    return list(itertools.product(*columns))  # type: ignore[arg-type]


def _random(
    space: Mapping[str, BaseDistribution], n_trials: int, seed: int
) -> list[tuple[str, ...]]:
    from optuna.samplers import RandomSampler

    check_integer("trials", n_trials, low=1)
    check_seed("search_seed", seed)
    study = new_study(sampler=RandomSampler(seed=seed))
    found: dict[tuple[str, ...], None] = {}
    n_repeats = 0
    while len(found) < n_trials:
        params = study.ask(dict(space)).params
        drawn = tuple(value_text(_rounded(params[key], values)) for key, values in space.items())
        n_repeats = n_repeats + 1 if drawn in found else 0
        found[drawn] = None
        # If any were left, one would have turned up by now.
        if n_repeats > 100 * n_trials:
            raise ArgumentError(
                f"there are {len(found)} combinations only, and none is tried twice; trials must "
                f"be at most that, got {n_trials}."
            )
    return list(found)


def _rounded(value: Any, values: BaseDistribution) -> Any:
    """Return what was drawn from a range with few digits, so that it can be read and repeated.

    On a log scale they are four significant ones; else there are at least a thousand values in
    the range, also in a narrow one.
    """
    from optuna.distributions import FloatDistribution

    if not isinstance(values, FloatDistribution):
        return value
    scale = value if values.log else values.high - values.low
    rounded = round(value, 3 - math.floor(math.log10(scale)))
    return min(max(rounded, values.low), values.high)


# Stopping early -----------------------------------------------------------------------------------


def new_study(**options: Any) -> optuna.Study:
    """Return a study of Optuna that looks for high values and logs only warnings."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize", **options)


def _with_pruner(run: Run, first_seed: int) -> Run:
    return replace(run, open_logger=partial(Pruner, run.path.resolve(), first_seed=first_seed))


class Pruner:
    """Stops a run that is worse than most: Optuna's MedianPruner, fed from the run folders.

    The run of the first seed decides for its trial; those of other seeds end with it.

    Args:
        path: The folder of the run, `runs/TRIAL/seed-SEED`; the others are next to it.
        first_seed: The first seed of every trial.

    Raises:
        RunPruned: If the trial of the run was stopped before.
    """

    def __init__(self, path: Path, *, first_seed: int) -> None:
        first = path.parent / f"seed-{first_seed}"
        if (reason := Run(first).pruned) is not None:
            raise RunPruned(reason)
        self._path, self._is_first = path, path == first
        self._finished: dict[Path, dict[int, float]] = {}

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Compare a validation with those of the runs that have finished.

        Raises:
            RunPruned: If the best so far is below the median of those that have finished.
        """
        if split != "val" or not self._is_first:
            return
        from optuna.pruners import MedianPruner
        from optuna.trial import create_trial

        record = Run(self._path)
        study = new_study(pruner=MedianPruner(N_STARTUP_TRIALS, int(_WARM_UP * record.n_steps)))
        for curve in self._finished_curves():
            best = max(curve.values())
            study.add_trial(create_trial(value=best, intermediate_values=curve))
        trial = study.ask()
        # A resumed run had validations before.
        earlier = {at: accuracy for at, accuracy in _validations(record).items() if at < step}
        own = earlier | {step: metrics["accuracy"]}
        for at, accuracy in own.items():
            trial.report(accuracy, at)
        if trial.should_prune():
            raise RunPruned(
                f"stopped after step {step}: its best validation accuracy, "
                f"{100 * max(own.values()):.2f} %, is below the median of the trials before it at "
                "this step"
            )

    def close(self) -> None:
        """Do nothing."""

    def _finished_curves(self) -> list[dict[int, float]]:
        """Return the validations of the other trials that have finished, each read once."""
        for path in self._path.parents[1].glob(f"*/{self._path.name}"):
            if path not in (self._path, *self._finished) and Run(path).is_finished:
                self._finished[path] = _validations(Run(path))
        return [curve for curve in self._finished.values() if curve]


def _validations(run: Run) -> dict[int, float]:
    """Return validation accuracies by step; none of a damaged file, which the report names."""
    steps, accuracies = run.curve("val", "accuracy")
    return dict(zip(steps.tolist(), accuracies.tolist(), strict=True))
