"""The configuration as a TOML file: complete when written, checked key by key when read."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from adaptask import __version__
from adaptask.errors import ArgumentError
from adaptask.experiments.config import RunConfig, with_algorithm
from adaptask.experiments.options import REGISTRIES, check_taken, options_of
from adaptask.parsing import by_key, parse_toml
from adaptask.registry import is_address

FORMAT = 2
"""Version of the layout."""
_NO_NAMES: Mapping[str, Sequence[str]] = MappingProxyType({})


def dump_config(config: RunConfig) -> str:
    """Return the TOML text from which the run can be repeated.

    TOML has no None: an option whose default is None is left out, and another one is "none".
    """
    import tomlkit

    content: dict[str, Any] = {"format": FORMAT}
    for name, value in vars(config).items():
        content[name] = _dump_section(value) if is_dataclass(value) else value
    return f"# Written by adaptask {__version__}.\n{tomlkit.dumps(content)}"


def _dump_section(section: Any) -> dict[str, Any]:
    values = {item.name: (getattr(section, item.name), item.default) for item in fields(section)}
    return {
        name: "none" if value is None else value
        for name, (value, default) in values.items()
        if value is not None or default is not None
    }


def load_config(
    path: Path, *, trust_plugins: bool = False, known: RunConfig | None = None
) -> RunConfig:
    """Return the configuration in a TOML file; what it does not name is as by default.

    Args:
        path: The file.
        trust_plugins: Whether to import plug-in classes, `package.module:Class`, that it names.
        known: A configuration whose plug-ins are trusted, since it is in use already.

    Raises:
        ArgumentError: If there is no such file, it is not TOML, comes from another version, names
            a plug-in that is not trusted, or has an unknown key or a bad value; the message names
            the key and the nearest known one.
    """
    settings = read_settings(path)
    try:
        return apply_settings(settings, trust_plugins=trust_plugins, known=known)
    except ArgumentError as error:
        raise ArgumentError(f"{path}: {error}") from error


def parse_config(text: str, *, known: RunConfig | None = None) -> RunConfig:
    """Return the configuration in a TOML text; see `load_config`."""
    return apply_settings(_parse_settings(text), known=known)


def no_run_in(path: Path) -> ArgumentError:
    """Return the error of a folder without a run's configuration."""
    if (path / "study.json").exists():
        return ArgumentError(
            f"{path} holds a study, not a run. Give the command that made it again to continue "
            f"it, or name one of its runs: {path}/runs/*/seed-*."
        )
    if (path / "run.json").exists():
        return ArgumentError(
            f"{path} holds a run that was made in Python, which has no config.toml. Build its "
            "learner as you did: Trainer.resume() loads its weights, an Evaluator tests them."
        )
    return ArgumentError(f"{path} holds no run: there is no config.toml in it.")


def read_settings(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        ArgumentError: If it cannot be read, is not TOML, or comes from another version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"the configuration {path} cannot be read: {error}.") from error
    try:
        return _parse_settings(text)
    except ArgumentError as error:
        raise ArgumentError(f"{path}: {error}") from error


def _parse_settings(text: str) -> dict[str, Any]:
    try:
        values = parse_toml(text)
    except ValueError as error:
        raise ArgumentError(f"this is not TOML: {error}.") from error
    found = values.pop("format", FORMAT)
    if found != FORMAT:
        raise ArgumentError(
            f"the configuration has format {found}; adaptask {__version__} reads format {FORMAT}. "
            "Install the version that wrote it."
        )
    return values


def apply_settings(
    settings: Mapping[str, Any],
    base: RunConfig | None = None,
    *,
    names: Mapping[str, Sequence[str]] = _NO_NAMES,
    trust_plugins: bool = False,
    known: RunConfig | None = None,
) -> RunConfig:
    """Return a configuration with the settings of a TOML file.

    Args:
        settings: What `read_settings` returns.
        base: Where they start from.
        names: Algorithms, or a dataset, that were named elsewhere and win over those of the file:
            lists by `sampler`, `learner`, `backbone` and `dataset`. A section of the file that is
            for none of them is not used.
        trust_plugins: As for `load_config`.
        known: As for `load_config`.

    Raises:
        ArgumentError: As for `load_config`.
    """
    config = base or RunConfig()
    named = {name for found in names.values() for name in found}
    trusted = None if trust_plugins else named | (known.plugins if known else set())
    values = by_key(settings)
    for kind in REGISTRIES:
        wanted = names.get(kind, ())
        name = values.pop(f"{kind}.name", None)
        if name is not None and wanted and name not in wanted:
            values = {k: v for k, v in values.items() if not k.startswith(f"{kind}.")}
            name = None
        if name is None:
            current = getattr(config, kind).name
            name = current if not wanted or current in wanted else wanted[0]
        else:
            REGISTRIES[kind].check_name(name)
            _check_trusted(kind, name, trusted)
        if name != getattr(config, kind).name:
            config = with_algorithm(config, kind, name)
    if "data.dataset" in values and "dataset" not in names:
        _check_trusted("dataset", values["data.dataset"], trusted)
    for key, value in values.items():
        config = with_value(config, key, value)
    return config


def _check_trusted(kind: str, name: object, trusted: set[str] | None) -> None:
    """Check that a name in a file stands for no code that the user has not agreed to."""
    if isinstance(name, str) and is_address(name) and trusted is not None and name not in trusted:
        raise ArgumentError(
            f"it names the {kind} {name!r}, which is code from outside the package. It is imported "
            "only if you name it on the command line yourself, or trust the file: "
            "--trust-plugins, in Python trust=True."
        )


def changes(before: RunConfig, after: RunConfig) -> list[tuple[str, Any, Any]]:
    """Return what decides results and differs, all but the machine: key, old and new value.

    >>> changes(RunConfig(), with_option(RunConfig(), "optimizer.lr", "1e-4"))
    [('optimizer.lr', 0.001, 0.0001)]
    """
    old, new = (by_key(parse_toml(dump_config(config))) for config in (before, after))
    keys = [key for key in {*old, *new} if not key.startswith("machine.")]
    # What was replaced comes before its options.
    keys.sort(key=lambda key: (not key.endswith(".name"), key))
    return [(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


# Single options -----------------------------------------------------------------------------------


def with_value(config: RunConfig, key: str, value: object) -> RunConfig:
    """Return a configuration with one option replaced; its key is such as `sampler.tau`.

    Another `sampler.name`, `learner.name` or `backbone.name` brings the defaults of its class.

    Raises:
        ArgumentError: If there is no such option, or the value is of another type.
    """
    section, _, name = key.rpartition(".")
    if section in REGISTRIES and name == "name":
        chosen = REGISTRIES[section].check_name(value)
        is_same = chosen == getattr(config, section).name
        return config if is_same else with_algorithm(config, section, chosen)
    types = option_types(config)
    if key not in types:
        raise ArgumentError(_unknown(config, key, value))
    converted = _converted(key, value, types[key])
    if not section:
        return replace(config, **{name: converted})
    return replace(config, **{section: replace(getattr(config, section), **{name: converted})})


def with_option(config: RunConfig, key: str, text: str) -> RunConfig:
    """Return a configuration with one option set from a text, as on a command line.

    >>> with_option(RunConfig(), "optimizer.lr", "1e-4").optimizer.lr
    0.0001

    Raises:
        ArgumentError: If there is no such option, or the text is not a value of it.
    """
    readings: list[Any] = [text]
    with suppress(ValueError):
        readings.append(parse_toml(f"value = {text}")["value"])
    with suppress(ValueError):
        readings.append(float(text))  # TOML has no .5
    for reading in readings:
        with suppress(ArgumentError):
            return with_value(config, key, reading)
    return with_value(config, key, text)  # for its error


def option_value(config: RunConfig, key: str) -> Any:
    """Return the value of an option; its key is such as `sampler.tau`."""
    section, _, name = key.rpartition(".")
    return getattr(getattr(config, section) if section else config, name)


def option_types(config: RunConfig) -> dict[str, Any]:
    """Return the type of every option by its key, such as `sampler.tau`."""
    found: dict[str, Any] = {}
    for name, kind in get_type_hints(RunConfig).items():
        section = getattr(config, name)
        if is_dataclass(section):
            hints = get_type_hints(type(section))
            found |= {f"{name}.{item.name}": hints[item.name] for item in fields(section)}
        else:
            found[name] = kind
    return found


def _unknown(config: RunConfig, key: str, value: object) -> str:
    """Return what is wrong with a key, and a guess at what was meant."""
    known = list(option_types(config))
    section, _, name = key.rpartition(".")
    if any(option.startswith(f"{key}.") for option in known):
        return f"{key} must be a section; got {value!r}."
    here = [option for option in known if option.startswith(f"{section}.")]
    # It may stand in another section; of options with the same name the one in this section counts.
    names = {option.rpartition(".")[2]: option for option in (*reversed(known), *here)}
    if near := difflib.get_close_matches(name, names, n=1, cutoff=0.7):
        return f"there is no {key}; did you mean {names[near[0]]}?"
    if section in REGISTRIES:
        chosen = getattr(config, section)
        try:
            check_taken(section, [chosen.name], options_of(chosen), [name])
        except ArgumentError as error:
            return str(error)
    return f"there is no {key}; there are {', '.join(here or vars(config))}."


def _converted(name: str, value: object, hint: Any) -> Any:
    """Return a TOML value as the type that a field has.

    Raises:
        ArgumentError: If it is of another type.
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if NoneType in kinds and value in (None, "none"):
        return None
    for kind in kinds:
        choices = get_args(kind)
        if get_origin(kind) is Literal and value in choices:
            return value
        if get_origin(kind) is tuple and isinstance(value, list | tuple):
            each = [choices[0]] * len(value) if choices[-1] is Ellipsis else choices
            if len(each) == len(value):
                return tuple(_converted(name, v, k) for v, k in zip(value, each, strict=True))
        # TOML distinguishes 1 from 1.0; both are numbers.
        if kind is float and type(value) in (int, float):
            return float(value)  # type: ignore[arg-type]
        if isinstance(kind, type) and type(value) is kind:
            return value
    raise ArgumentError(f"{name} must be {describe_type(hint)}; got {value!r}.")


def describe_type(hint: Any) -> str:
    """Return what an option takes, in words.

    >>> describe_type(int | None), describe_type(tuple[float, ...])
    ('an integer', 'a list, each a number')
    """
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(describe_type(kind) for kind in get_args(hint) if kind is not NoneType)
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return f"{'one of ' if len(choices) > 1 else ''}{', '.join(choices)}"
    if get_origin(hint) is tuple:
        *first, last = get_args(hint)
        length = "" if last is Ellipsis else f" of {len(first) + 1}"
        return f"a list{length}, each {describe_type(get_args(hint)[0])}"
    return names[hint]
