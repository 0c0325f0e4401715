"""What there is to choose from, each with one line; nothing here needs torch."""

from __future__ import annotations

from adaptask.experiments.config import BACKBONES, LEARNERS, RunConfig
from adaptask.experiments.presets import preset_groups

_WIDTH = 17

SAMPLERS: dict[str, str] = {
    "uniform": "K classes, all tasks alike",
    "c": "classes that are hard by themselves (Eq. 3)",
    "cp": "the paper's distribution over tasks (Eq. 4): exact up to 8 ways, by Gibbs sweeps beyond",
    "gcp": "the paper's greedy class-pair algorithm (Algorithm 1)",
}


def catalogue() -> dict[str, dict[str, str]]:
    """Return every part by its kind and its name, with what it is."""
    from adaptask.data.datasets import status

    config = RunConfig()
    return {
        "samplers": SAMPLERS,
        "learners": {name: _first_line(config.options_of(name)) for name in LEARNERS},
        "backbones": {name: _first_line(config.options_of(name)) for name in BACKBONES},
        "presets": preset_groups(),
        "datasets": {entry.name: entry.description for entry in status()},
    }


def print_catalogue() -> None:
    """Show every part."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for kind, parts in catalogue().items():
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, min_width=_WIDTH)
        table.add_column()
        for name, description in parts.items():
            table.add_row(name, escape(description))
        console.print(kind, style="bold", highlight=False)
        console.print(table)
        console.print()


def _first_line(options: object) -> str:
    return (options.__doc__ or "").partition("\n")[0].rstrip(".")
