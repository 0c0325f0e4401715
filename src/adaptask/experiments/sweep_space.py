"""What a sweep varies, and the trials that this gives: decided before the first one is trained."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adaptask.arguments import check_integer, check_seed
from adaptask.errors import ArgumentError
from adaptask.experiments.config import RunConfig, check_config
from adaptask.experiments.config_file import option_value, with_option
from adaptask.report.study import Arm

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

_DOTS = ".."
_LOG_FACTOR = 10
"""A range that spans at least this factor is drawn on a log scale."""
_FIXED: dict[str, str] = {
    "seed": "every trial has the same seeds; say how many with --seeds",
    "data.dataset": "accuracies on different datasets cannot be compared; sweep each by itself",
    "evaluation": "all trials must be measured alike",
    "every": "all trials must be validated equally often",
}
"""What cannot be varied, by option or section, and why."""


def new_study(**options: Any) -> optuna.Study:
    """Return a study of Optuna that looks for high values and logs only warnings."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize", **options)


# What is varied -----------------------------------------------------------------------------------


def parse_space(
    base: RunConfig, flags: Mapping[str, Sequence[str]], vary: Sequence[str]
) -> dict[str, BaseDistribution]:
    """Return what is to be varied: the distribution of each option, by its key.

    Listed values are texts, from which the values can be read again; those of a range are numbers.

    Args:
        base: The configuration that the values go into.
        flags: Texts of values by the key of their option; an option without values is left out.
        vary: Texts such as `optimiser.weight_decay=0,5e-4` or `optimiser.lr=1e-4..1e-2`.

    Raises:
        ArgumentError: If there is nothing to vary, no such option, it cannot be varied or is given
            twice, or a value is not of its type.
    """
    space = {key: _distribution(base, key, texts) for key, texts in flags.items() if texts}
    for text in vary:
        name, _, values = text.partition("=")
        if not values.strip():
            raise ArgumentError(
                "--vary takes options with their values, such as optimiser.weight_decay=0,5e-4; "
                f"got {text!r}."
            )
        key = name.strip().replace("-", "_")
        if key in space:
            raise ArgumentError(f"{key} is given twice; give all its values in one place.")
        # A comma in brackets is part of a value that is a list.
        space[key] = _distribution(base, key, re.split(r",(?![^\[]*\])", values))
    if not space:
        raise ArgumentError(
            "a sweep needs something to vary: --alpha 0.5 1 2, --tau, --lr, or any option with "
            "--vary optimiser.weight_decay=0,5e-4."
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
        configs[name], labels[name] = labeled_config(base, space, found), found
        try:
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


def labeled_config(base: RunConfig, space: Iterable[str], labels: Mapping[str, str]) -> RunConfig:
    """Return the configuration of the trial with these labels."""
    config = base
    for key, name in short_names(space).items():
        config = with_option(config, key, labels[name])
    return config


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return a short name for each key, unlike those of the others.

    >>> short_names(["sampler.alpha", "maml.inner_lr", "anil.inner_lr", "sampler.name"])
    {'sampler.alpha': 'alpha', 'maml.inner_lr': 'maml.inner_lr', 'anil.inner_lr': 'anil.inner_lr', \
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
    the range, however narrow it is.
    """
    from optuna.distributions import FloatDistribution

    if not isinstance(values, FloatDistribution):
        return value
    scale = value if values.log else values.high - values.low
    rounded = round(value, 3 - math.floor(math.log10(scale)))
    return min(max(rounded, values.low), values.high)
