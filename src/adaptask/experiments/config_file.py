"""The configuration as a TOML file: complete when written, checked key by key when read."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import is_dataclass, replace
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from adaptask import __version__
from adaptask.errors import ArgumentError
from adaptask.experiments.config import (
    BACKBONES,
    LEARNERS,
    SAMPLER_OPTIONS,
    RunConfig,
    section_name,
)
from adaptask.parsing import parse_toml

FORMAT = 1
"""Version of the layout; raised when older versions would misread it."""


def dump_config(config: RunConfig) -> str:
    """Return the TOML text from which the run can be repeated.

    Sections of algorithms that were not chosen, and options that play no part, are left out; what
    is None is absent.
    """
    import tomlkit

    names = {*LEARNERS, *BACKBONES} - {config.model.learner, config.model.backbone}
    idle = {section_name(name) for name in names}
    shown: dict[str, Any] = {"format": FORMAT}
    for name, value in vars(config).items():
        if not is_dataclass(value):
            shown[name] = value
        elif name not in idle:
            shown[name] = {key: item for key, item in vars(value).items() if item is not None}
    takes = ("name", *SAMPLER_OPTIONS[config.sampler.name])
    shown["sampler"] = {key: item for key, item in shown["sampler"].items() if key in takes}
    return f"# Written by adaptask {__version__}.\n{tomlkit.dumps(shown)}"


def load_config(path: Path, base: RunConfig | None = None) -> RunConfig:
    """Return the configuration in a TOML file; what it does not name is as in `base`.

    Raises:
        ArgumentError: If there is no such file, it is not TOML, comes from a newer version, or has
            an unknown key or a bad value; the message names the key and the nearest known one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"the configuration {path} cannot be read: {error}.") from error
    try:
        return parse_config(text, base)
    except ArgumentError as error:
        raise ArgumentError(f"{path}: {error}") from error


def no_run_in(path: Path) -> ArgumentError:
    """Return the error of a folder without a run's configuration."""
    if (path / "study.json").exists():
        return ArgumentError(
            f"{path} holds a study, not a run. Give the command that made it again to go on with "
            f"it, or name one of its runs: {path}/runs/*/seed-*."
        )
    return ArgumentError(f"{path} holds no run: there is no config.toml in it.")


def parse_config(text: str, base: RunConfig | None = None) -> RunConfig:
    """Return the configuration in a TOML text; see `load_config`."""
    try:
        values = parse_toml(text)
    except ValueError as error:
        raise ArgumentError(f"this is not TOML: {error}.") from error
    found = values.pop("format", FORMAT)
    if not isinstance(found, int) or found > FORMAT:
        raise ArgumentError(
            f"the configuration has format {found}; adaptask {__version__} reads formats up to "
            f"{FORMAT}. Install the version that wrote it."
        )
    config = base or RunConfig()
    for key, value in _by_key(values).items():
        config = with_value(config, key, value)
    return config


def decisive_settings(text: str) -> dict[str, Any]:
    """Return what decides the results of a run, by key: all but the machine.

    >>> decisive_settings("steps = 9; machine.threads = 2".replace("; ", chr(10)))
    {'steps': 9}
    """
    values = _by_key(parse_toml(text))
    return {k: v for k, v in values.items() if k != "format" and not k.startswith("machine.")}


def _by_key(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a TOML file by their keys, such as `sampler.tau`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": item for key, item in value.items()}
        else:
            found[name] = value
    return found


def with_value(config: RunConfig, key: str, value: object) -> RunConfig:
    """Return a configuration with one option replaced; its key is such as `sampler.tau`.

    Raises:
        ArgumentError: If there is no such option, or the value is of another type.
    """
    if key not in option_types():
        raise ArgumentError(_unknown(key, value))
    converted = _converted(key, value, option_types()[key])
    section, _, name = key.rpartition(".")
    if not section:
        return replace(config, **{name: converted})
    return replace(config, **{section: replace(getattr(config, section), **{name: converted})})


def with_option(config: RunConfig, key: str, text: str) -> RunConfig:
    """Return a configuration with one option set from a text, as on a command line.

    >>> with_option(RunConfig(), "sampler.tau", "0.7").sampler.tau
    0.7

    Raises:
        ArgumentError: If there is no such option, or the text is not a value of it.
    """
    readings: list[Any] = [text]
    with suppress(ValueError):
        readings.append(parse_toml(f"value = {text}")["value"])
    with suppress(ValueError):
        readings.append(float(text))  # TOML has no .5
    if text == "none":
        readings.append(None)
    for reading in readings:
        with suppress(ArgumentError):
            return with_value(config, key, reading)
    return with_value(config, key, text)  # for its error


def option_value(config: RunConfig, key: str) -> Any:
    """Return the value that an option has; its key is such as `sampler.tau`."""
    section, _, name = key.rpartition(".")
    return getattr(getattr(config, section) if section else config, name)


@cache
def option_types() -> dict[str, Any]:
    """Return the type of every option by its key, such as `sampler.tau`."""
    found: dict[str, Any] = {}
    for name, kind in get_type_hints(RunConfig).items():
        if is_dataclass(kind):
            found |= {f"{name}.{key}": hint for key, hint in get_type_hints(kind).items()}
        else:
            found[name] = kind
    return found


def _unknown(key: str, value: object) -> str:
    """Return what is wrong with a key, and a guess at what was meant."""
    known = list(option_types())
    section, _, name = key.rpartition(".")
    if any(option.startswith(f"{key}.") for option in known):
        return f"{key} must be a section; got {value!r}."
    here = [option for option in known if option.startswith(f"{section}.")]
    # It may stand in another section; of options with the same name the one in this section counts.
    names = {option.rpartition(".")[2]: option for option in (*reversed(known), *here)}
    if near := difflib.get_close_matches(name, names, n=1, cutoff=0.7):
        return f"there is no {key}; did you mean {names[near[0]]}?"
    return f"there is no {key}; there are {', '.join(here or vars(RunConfig()))}."


def _converted(name: str, value: object, hint: Any) -> Any:
    """Return a TOML value as the type that a field has.

    Raises:
        ArgumentError: If it is of another type.
    """
    for kind in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        choices = get_args(kind)
        if get_origin(kind) is Literal and value in choices:
            return value
        if get_origin(kind) is tuple and isinstance(value, list):
            each = [choices[0]] * len(value) if choices[-1] is Ellipsis else choices
            if len(each) == len(value):
                return tuple(_converted(name, v, k) for v, k in zip(value, each, strict=True))
        # TOML tells 1 from 1.0; a number that happens to be whole is a number.
        if kind is float and type(value) in (int, float):
            return float(value)  # type: ignore[arg-type]
        if isinstance(kind, type) and type(value) is kind:
            return value
    raise ArgumentError(f"{name} must be {_described(hint)}; got {value!r}.")


def _described(hint: Any) -> str:
    """Return what a field takes, in words."""
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_described(kind) for kind in get_args(hint) if kind is not NoneType)
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(get_args(hint))
    if get_origin(hint) is tuple:
        *first, last = get_args(hint)
        length = "" if last is Ellipsis else f" of {len(first) + 1}"
        return f"a list{length}, each {_described(get_args(hint)[0])}"
    return names[hint]
