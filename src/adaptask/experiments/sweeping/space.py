"""What a search varies: options of the configuration with their values or ranges, read strictly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adaptask.errors import ArgumentError
from adaptask.experiments.config import RunConfig
from adaptask.experiments.config_file import with_values
from adaptask.parsing import parse_toml

if TYPE_CHECKING:
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


@dataclass(frozen=True)
class Range:
    """Everything between two numbers, for random search.

    Args:
        low: The least.
        high: The greatest.
    """

    low: float
    high: float

    @property
    def is_log(self) -> bool:
        """Whether it is drawn on a log scale."""
        return self.low > 0 and self.high >= _LOG_FACTOR * self.low


@dataclass(frozen=True)
class Option:
    """An option that is varied."""

    key: str
    """Its name in the configuration, such as `optimiser.weight_decay`."""
    values: tuple[Any, ...] | Range

    def distribution(self) -> BaseDistribution:
        """Return what it is drawn from, as Optuna has it."""
        from optuna.distributions import (
            CategoricalDistribution,
            FloatDistribution,
            IntDistribution,
        )

        if not isinstance(self.values, Range):
            return CategoricalDistribution([storable(value) for value in self.values])
        low, high, log = self.values.low, self.values.high, self.values.is_log
        if isinstance(low, int) and isinstance(high, int):
            return IntDistribution(low, high, log=log)
        return FloatDistribution(low, high, log=log)


def storable(value: Any) -> str | int | float | bool | None:
    """Return a value as Optuna can keep it: a list as its text."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return value_text(value)


def value_text(value: Any) -> str:
    """Return a value as it is shown.

    >>> value_text(1.0), value_text(5e-4), value_text(None), value_text((10, 20)), value_text(True)
    ('1', '0.0005', 'none', '10 20', 'true')
    """
    if isinstance(value, tuple):
        return " ".join(value_text(item) for item in value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0")


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted key as a tree of sections.

    >>> nested({"steps": 10, "sampler.alpha": 1.0, "sampler.tau": 0.5})
    {'steps': 10, 'sampler': {'alpha': 1.0, 'tau': 0.5}}
    """
    tree: dict[str, Any] = {}
    for key, value in values.items():
        section, dot, name = key.partition(".")
        if dot:
            tree.setdefault(section, {})[name] = value
        else:
            tree[key] = value
    return tree


def current_value(config: RunConfig, key: str) -> Any:
    """Return the value that an option has in a configuration."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def parse_options(
    base: RunConfig, flags: Mapping[str, Sequence[str]], vary: Sequence[str]
) -> tuple[Option, ...]:
    """Return what is to be varied.

    Args:
        base: The configuration that the values go into.
        flags: Texts of values by the key of their option; an option without values is left out.
        vary: Texts such as `optimiser.weight_decay=0,5e-4` or `optimiser.lr=1e-4..1e-2`.

    Raises:
        ArgumentError: If there is nothing to vary, no such option, it cannot be varied or is given
            twice, or a value is not of its type.
    """
    given = [(key, list(texts)) for key, texts in flags.items() if texts]
    for text in vary:
        key, equals, values = text.partition("=")
        if not equals or not values.strip():
            raise ArgumentError(
                "--vary takes options with their values, such as optimiser.weight_decay=0,5e-4; "
                f"got {text!r}."
            )
        given.append((key.strip().replace("-", "_"), _split(values)))
    if not given:
        raise ArgumentError(
            "a sweep needs something to vary: --alpha 0.5 1 2, --tau, --lr, or any option with "
            "--vary optimiser.weight_decay=0,5e-4."
        )
    options = tuple(_option(base, key, texts) for key, texts in given)
    keys = [option.key for option in options]
    for key in keys:
        if keys.count(key) > 1:
            raise ArgumentError(f"{key} is given twice; give all its values in one place.")
    return options


def _option(base: RunConfig, key: str, texts: Sequence[str]) -> Option:
    for fixed, reason in _FIXED.items():
        if key == fixed or key.startswith(f"{fixed}."):
            raise ArgumentError(f"{key} cannot be varied: {reason}.")
    if any(_DOTS in text for text in texts):
        if len(texts) > 1:
            raise ArgumentError(f"{key} takes either values or one range; got {' '.join(texts)}.")
        return Option(key, _range(base, key, texts[0]))
    values = tuple(_value(base, key, text) for text in texts)
    for value in values:
        if values.count(value) > 1:
            raise ArgumentError(f"{key} has the value {value_text(value)} twice.")
    return Option(key, values)


def _range(base: RunConfig, key: str, text: str) -> Range:
    low, high = (_value(base, key, end) for end in text.split(_DOTS, 1))
    for end in (low, high):
        if isinstance(end, bool) or not isinstance(end, int | float):
            raise ArgumentError(f"{key} has no range, as it is no number; give values.")
    if not low < high:
        raise ArgumentError(f"a range goes from LOW to HIGH, LOW..HIGH; {key} got {text}.")
    return Range(low, high)


def _value(base: RunConfig, key: str, text: str) -> Any:
    """Return a text as a value of the type that the option has."""
    first_error: ArgumentError | None = None
    for candidate in _readings(text.strip()):
        try:
            value = current_value(with_values(base, nested({key: candidate})), key)
        except ArgumentError as error:
            first_error = first_error or error
            continue
        if isinstance(value, float) and not math.isfinite(value):
            raise ArgumentError(f"{key} must be a finite number; got {text}.")
        return value
    assert first_error is not None
    raise first_error


def _readings(text: str) -> list[Any]:
    """Return what a text may mean, as TOML has it first."""
    readings: list[Any] = []
    try:
        readings.append(parse_toml(f"value = {text}")["value"])
    except ValueError:
        if text.lower() == "none":
            readings.append(None)
        with suppress(ValueError):
            readings.append(float(text))  # TOML has no .5
    return [*readings, text]


def _split(text: str) -> list[str]:
    """Split at the commas that are in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
