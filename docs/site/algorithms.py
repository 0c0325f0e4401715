"""Pages of algorithms, from the registries: an algorithm needs its own page and no other line.

The navigation lists all of them. An overview or a page of the API gets a line for each one that it
does not have.
"""

from __future__ import annotations

import importlib
from typing import Any

from adaptask.registry import LEARNERS, SAMPLERS, Registry

_REGISTRIES = {"samplers": SAMPLERS, "learners": LEARNERS}


def on_config(config: Any) -> Any:
    """Replace `samplers/*` and `learners/*` in the navigation by a line per algorithm."""
    config["nav"] = [_expanded(item) for item in config["nav"]]
    return config


def _expanded(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    ((title, content),) = item.items()
    if not isinstance(content, list):
        return item
    lines: list[Any] = []
    for line in content:
        folder = line.removesuffix("/*") if isinstance(line, str) else ""
        names = _REGISTRIES[folder] if folder in _REGISTRIES else None
        found = [line] if names is None else [{name: f"{folder}/{name}.md"} for name in names]
        lines += map(_expanded, found)
    return {title: lines}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Add what an overview or a page of the API lacks."""
    for folder, registry in _REGISTRIES.items():
        if page.file.src_uri == f"{folder}/index.md":
            return complete_overview(markdown, registry)
        if page.file.src_uri == f"api/{folder}.md":
            return complete_reference(markdown, registry, f"adaptask.{folder}")
    return markdown


def complete_overview(markdown: str, registry: Registry) -> str:
    """Return an overview whose first table has a row for every algorithm."""
    missing = {n: c for n, c in registry.items() if f"]({n}.md)" not in markdown}
    rows = [f"| [`{name}`]({name}.md) | {c.description} |" for name, c in missing.items()]
    head, last_row, tail = markdown.partition(" |\n\n")
    return "".join((head, " |\n", *(f"{row}\n" for row in rows), "\n", tail)) if last_row else head


def complete_reference(markdown: str, registry: Registry, package: str) -> str:
    """Return a page of the API with the classes that the package itself does not export."""
    exported = importlib.import_module(package).__all__
    others = [found for found in registry.values() if found.__name__ not in exported]
    lines = [f"\n::: {found.__module__}.{found.__qualname__}\n" for found in others]
    return markdown + "".join(lines)
