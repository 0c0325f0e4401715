"""The configuration as a TOML file: complete when written, checked key by key when read."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
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

    document = tomlkit.document()
    document.add(tomlkit.comment(f"Written by adaptask {__version__}."))
    document.add("format", tomlkit.item(FORMAT))
    for name, value in _shown(config).items():
        if not isinstance(value, dict):
            document.add(name, tomlkit.item(value))
    for name, value in _shown(config).items():
        if isinstance(value, dict):
            table = tomlkit.table()
            for key, item in value.items():
                table.add(key, list(item) if isinstance(item, tuple) else item)
            document.add(name, table)
    return tomlkit.dumps(document)


def load_config(path: Path, base: RunConfig | None = None) -> RunConfig:
    """Return the configuration in a TOML file; what it does not name is as in `base`.

    Raises:
        ArgumentError: If there is no such file, it is no TOML, comes from a newer version, or has
            a key or a value that cannot be; the message names the key and the nearest known one.
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
        raise ArgumentError(f"this is no TOML: {error}.") from error
    found = values.pop("format", FORMAT)
    if not isinstance(found, int) or found > FORMAT:
        raise ArgumentError(
            f"the configuration has format {found}; adaptask {__version__} reads formats up to "
            f"{FORMAT}. Install the version that wrote it."
        )
    return with_values(base or RunConfig(), values)


def decisive_settings(text: str) -> dict[str, Any]:
    """Return what decides the results of a run, by dotted key: all but the machine.

    >>> decisive_settings("steps = 9; machine.threads = 2".replace("; ", chr(10)))
    {'steps': 9}
    """
    values: dict[str, Any] = {}
    for key, value in parse_toml(text).items():
        if isinstance(value, dict):
            values |= {f"{key}.{name}": item for name, item in value.items()}
        else:
            values[key] = value
    return {k: v for k, v in values.items() if k != "format" and not k.startswith("machine.")}


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Return a configuration with some values set anew, section by section as in a TOML file.

    Raises:
        ArgumentError: If there is no such key, or a value is of another type.
    """
    merged: RunConfig = _merged(config, values, "")
    return merged


def with_option(config: RunConfig, name: str, text: str) -> RunConfig:
    """Return the configuration with one option set from a text, as on a command line.

    >>> with_option(RunConfig(), "sampler.tau", "0.7").sampler.tau
    0.7

    Raises:
        ArgumentError: If there is no such option, or the text is no value of it.
    """
    try:
        value = parse_toml(f"value = {text}")["value"]
    except ValueError:
        value = text  # a word that needs no quotes here
    section, _, option = name.rpartition(".")
    changed: RunConfig = _merged(
        config, {section: {option: value}} if section else {option: value}, ""
    )
    return changed


def _shown(config: RunConfig) -> dict[str, Any]:
    """Return what decides the run, as plain values."""
    names = {*LEARNERS, *BACKBONES} - {config.model.learner, config.model.backbone}
    idle = {section_name(name) for name in names}
    shown: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if not is_dataclass(value):
            shown[field.name] = value
        elif field.name not in idle:
            shown[field.name] = {
                f.name: getattr(value, f.name)
                for f in fields(value)
                if getattr(value, f.name) is not None
            }
    takes = ("name", *SAMPLER_OPTIONS[config.sampler.name])
    shown["sampler"] = {name: v for name, v in shown["sampler"].items() if name in takes}
    return shown


def _merged(section: Any, values: Mapping[str, Any], prefix: str) -> Any:
    """Return a section with some of its fields set anew."""
    hints = get_type_hints(type(section))
    changes: dict[str, Any] = {}
    for key, value in values.items():
        if key not in hints:
            raise ArgumentError(f"there is no {prefix}{key}; {_nearest(prefix + key)}")
        current = getattr(section, key)
        if is_dataclass(current):
            if not isinstance(value, dict):
                raise ArgumentError(f"{prefix}{key} must be a section; got {value!r}.")
            changes[key] = _merged(current, value, f"{key}.")
        else:
            changes[key] = _converted(f"{prefix}{key}", value, hints[key])
    return replace(section, **changes)


def _nearest(name: str) -> str:
    """Return a guess at what was meant, which may stand in another section."""
    config = RunConfig()
    known: dict[str, str] = {}
    for field in fields(config):
        section = getattr(config, field.name)
        known[field.name] = field.name
        for inner in fields(section) if is_dataclass(section) else ():
            dotted = f"{field.name}.{inner.name}"
            known[dotted] = dotted
            known.setdefault(inner.name, dotted)
    section, _, last = name.rpartition(".")
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    if last in known and last != section:
        near = [last]
    if near:
        return f"did you mean {known[near[0]]}?"
    here = getattr(config, section) if section else config
    return f"there are {', '.join(vars(here))}."


def _converted(name: str, value: object, hint: Any) -> Any:
    """Return a TOML value as the type that a field has.

    Raises:
        ArgumentError: If it is of another type.
    """
    for kind in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        choices = get_args(kind)
        if get_origin(kind) is Literal and value in choices and type(value) is str:
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
