"""Lists samplers and learners when the site is built, so that a new one needs only its own page.

The navigation gets the page of every built-in sampler and learner. On a page, the comment
`<!-- learners -->` becomes a table of all of them with their descriptions; `<!-- samplers -->` and
`<!-- backbones -->` likewise.
"""

from __future__ import annotations

from typing import Any

from adaptask.registry import BACKBONES, LEARNERS, SAMPLERS, Registry

_TABLES = {"samplers": SAMPLERS, "learners": LEARNERS, "backbones": BACKBONES}


def on_config(config: Any) -> Any:
    """Add the pages of the algorithms to the navigation, after the overview of their kind."""
    for section in config.nav:
        for title, entries in section.items():
            folder = title.lower()
            if folder in _TABLES:
                listed = [entry for entry in entries if isinstance(entry, dict)]
                known = {name for entry in listed for name in entry}
                pages = [{n: f"{folder}/{n}.md"} for n in _TABLES[folder] if n not in known]
                entries[1:1] = pages
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the text of a page with its tables of algorithms."""
    for kind, registry in _TABLES.items():
        marker = f"<!-- {kind} -->"
        if marker in markdown:
            markdown = markdown.replace(marker, _table(kind, registry))
    return markdown


def _table(kind: str, registry: Registry) -> str:
    rows = ["| name | |", "|---|---|"]
    for name in registry:
        link = f"#{name}" if kind == "backbones" else f"{name}.md"
        rows.append(f"| [`{name}`]({link}) | {registry[name].description} |")
    return "\n".join(rows)
