"""Which trials a search makes: decided before the first one, by the values and a seed alone."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adaptask.arguments import check_integer, check_seed
from adaptask.errors import ArgumentError
from adaptask.experiments.config import RunConfig, check_config
from adaptask.experiments.config_file import with_values
from adaptask.experiments.sweeping.space import Option, Range, nested, storable, value_text

_DIGITS = 4
"""Significant digits of what is drawn from a range: names and tables can be read and repeated."""
_LONGEST_NAME = 120


@dataclass(frozen=True)
class SweepTrial:
    """One choice of values."""

    name: str
    """Made of its values; that of its folder and its arm."""
    labels: Mapping[str, str]
    """Its values as they are shown, by the short names of the options."""
    values: Mapping[str, Any]
    """By the keys of the options."""
    config: RunConfig

    def run_folder(self, seed: int) -> str:
        """Return where the run with a seed is, below the folder of the sweep."""
        return f"runs/{self.name}/seed-{seed}"


def plan_trials(
    base: RunConfig,
    options: Sequence[Option],
    *,
    search: str,
    n_trials: int | None = None,
    seed: int = 0,
) -> tuple[SweepTrial, ...]:
    """Return all trials in the order in which they are made.

    The first trials of a longer random search with the same seed are those of a shorter one.

    Args:
        base: The configuration that the values go into.
        options: What is varied.
        search: `grid`, every combination once; or `random`, no combination twice.
        n_trials: How many, in random search.
        seed: Decides what random search draws.

    Raises:
        ArgumentError: If the search does not fit the options, or a combination is no
            configuration, has an option that plays no part, or is measured unlike the others.
    """
    if search == "grid":
        combinations = _grid(options, n_trials)
    else:
        combinations = _random(options, n_trials, seed)
    short = short_names([option.key for option in options])
    trials = tuple(_trial(base, short, values) for values in combinations)
    _check_comparable(trials)
    return trials


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return a short name for each key, unlike those of the others.

    >>> short_names(["sampler.alpha", "maml.inner_lr", "anil.inner_lr", "sampler.name"])
    {'sampler.alpha': 'alpha', 'maml.inner_lr': 'maml.inner_lr', 'anil.inner_lr': 'anil.inner_lr', \
'sampler.name': 'sampler'}
    """
    last = {key: key.split(".")[0 if key.endswith(".name") else -1] for key in keys}
    names = list(last.values())
    return {key: key if names.count(name) > 1 else name for key, name in last.items()}


def _grid(options: Sequence[Option], n_trials: int | None) -> list[dict[str, Any]]:
    columns = []
    for option in options:
        if isinstance(option.values, Range):
            low, high = value_text(option.values.low), value_text(option.values.high)
            raise ArgumentError(
                f"grid search needs the values of {option.key}, not a range; list some between "
                f"{low} and {high}, or draw from it with --search random --trials N."
            )
        columns.append(option.values)
    if n_trials is not None:
        raise ArgumentError(
            f"grid search makes all {math.prod(map(len, columns))} combinations; leave out "
            "--trials, or draw some with --search random."
        )
    keys = [option.key for option in options]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*columns)]


def _random(options: Sequence[Option], n_trials: int | None, seed: int) -> list[dict[str, Any]]:
    if n_trials is None:
        raise ArgumentError("random search needs the number of trials: --trials N.")
    check_integer("trials", n_trials, low=1)
    check_seed("search_seed", seed)
    sizes = [_n_values(option.values) for option in options]
    if math.prod(sizes) < n_trials:
        raise ArgumentError(
            f"there are {math.prod(sizes):.0f} combinations only, and none is tried twice; trials "
            f"must be at most that, got {n_trials}."
        )
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    draws = _draws(options, seed)
    while len(found) < n_trials:
        values = next(draws)
        found.setdefault(tuple(values.values()), values)
    return list(found.values())


def _n_values(values: tuple[Any, ...] | Range) -> float:
    if not isinstance(values, Range):
        return len(values)
    whole = isinstance(values.low, int) and isinstance(values.high, int)
    return values.high - values.low + 1 if whole else math.inf


def _draws(options: Sequence[Option], seed: int) -> Iterator[dict[str, Any]]:
    """Yield random combinations, without end."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    finally:
        optuna.logging.set_verbosity(verbosity)
    distributions = {option.key: option.distribution() for option in options}
    while True:
        drawn = study.ask(distributions).params
        yield {option.key: _drawn(option, drawn[option.key]) for option in options}


def _drawn(option: Option, value: Any) -> Any:
    if not isinstance(option.values, Range):
        return next(known for known in option.values if storable(known) == value)
    if isinstance(value, int):
        return value
    rounded = float(f"{value:.{_DIGITS}g}")
    return min(max(rounded, float(option.values.low)), float(option.values.high))


def _trial(base: RunConfig, short: Mapping[str, str], values: Mapping[str, Any]) -> SweepTrial:
    labels = {short[key]: value_text(value) for key, value in values.items()}
    # As a TOML file would have them.
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    config = with_values(base, nested(plain))
    try:
        check_config(config)
    except ArgumentError as error:
        shown = ", ".join(f"{name} {text}" for name, text in labels.items())
        raise ArgumentError(f"the trial with {shown} cannot be made: {error}") from error
    return SweepTrial(_name(labels), labels, dict(values), config)


def _name(labels: Mapping[str, str]) -> str:
    """Return a name that can be that of a folder, unlike those of other values."""
    exact = ",".join(f"{name}={text}" for name, text in labels.items())
    name = re.sub(r"[^\w.=+,-]", "_", exact, flags=re.ASCII)
    if name == exact and len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}-{hashlib.sha256(exact.encode()).hexdigest()[:8]}"


def _check_comparable(trials: Sequence[SweepTrial]) -> None:
    """Check that all trials are validated on the same episodes."""
    for name, flag in (("tested_way", "n-way"), ("tested_shot", "n-shot")):
        found = sorted({getattr(trial.config, name) for trial in trials})
        if len(found) > 1:
            raise ArgumentError(
                f"the trials would be validated with {flag} {', '.join(map(str, found))}, which "
                f"cannot be compared. Set one for all: --evaluation.{flag} {found[0]}."
            )
