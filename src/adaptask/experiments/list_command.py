"""What `adaptask list` does: everything there is to choose from, each with one line."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from adaptask.data.datasets import status
from adaptask.errors import ArgumentError
from adaptask.experiments.options import REGISTRIES
from adaptask.experiments.paper.targets import TARGETS
from adaptask.experiments.recipes import preset_groups
from adaptask.registry import Registry, description_of

_WIDTH = 17


def list_parts() -> dict[str, dict[str, str]]:
    """Return every sampler, learner, backbone, preset and dataset with a description."""
    return {
        **{f"{kind}s": _described(registry) for kind, registry in REGISTRIES.items()},
        "presets": preset_groups(),
        "tables and figures of the paper": {name: t.title for name, t in TARGETS.items()},
        "datasets": {entry.name: entry.description for entry in status()},
    }


def _described(registry: Registry) -> dict[str, str]:
    found = {}
    for name in registry:
        try:
            found[name] = description_of(registry[name])
        except ArgumentError as error:  # an installed package that is broken
            found[name] = str(error)
    return found


def print_list() -> None:
    """Print every part."""
    console = Console()
    for kind, parts in list_parts().items():
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, min_width=_WIDTH)
        table.add_column()
        for name, description in parts.items():
            table.add_row(name, escape(description))
        console.print(kind, style="bold", highlight=False)
        console.print(table)
        console.print()
