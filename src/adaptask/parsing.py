"""JSON and TOML from untrusted files: whatever is wrong with them raises a `ValueError`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: If it is not valid JSON.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML text.

    Raises:
        ValueError: If it is not valid TOML.
    """
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def by_key(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a TOML file by their keys, with those of sections.

    >>> by_key({"steps": 9, "sampler": {"tau": 0.5}})
    {'steps': 9, 'sampler.tau': 0.5}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": item for key, item in value.items()}
        else:
            found[name] = value
    return found
