"""What adaptive samplers do, shown without training: a learner whose confusions are written down.

Sixteen classes in four groups. The pretend learner takes the members of the first three groups
for one another and never errs otherwise, so it is known which pairs are hard, and the shares
below are exact sums over all 1,820 tasks, not counts of draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from adaptask.arguments import check_integer
from adaptask.samplers import build_sampler, kl_from_uniform, pair_marginals

if TYPE_CHECKING:
    from rich.table import Table

GROUPS = (
    ("lion", "tiger", "leopard", "lynx"),
    ("bus", "tram", "truck", "van"),
    ("rose", "tulip", "poppy", "orchid"),
    ("laptop", "clock", "cup", "chair"),
)
CONFUSED_GROUPS = 3
NAMES = tuple(name for group in GROUPS for name in group)
N_WAY = 4
N_TASKS = 8
STEPS_SHOWN = (0, 10, 50, 200)

_LOGIT_OF_TRUTH = 3.0
_LOGIT_OF_LOOK_ALIKE = 2.0

VARIANTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("uniform", "uniform", {}),
    ("c", "c", {}),
    ("cp (exact Eq. 4)", "cp", {}),
    ("gcp", "gcp", {}),
    ("gcp, uncertain", "gcp", {"strategy": "uncertain"}),
    ("gcp, easy", "gcp", {"strategy": "easy"}),
)


@dataclass(frozen=True)
class DemoRow:
    """What became of one sampler."""

    label: str
    shares: tuple[float, ...]
    """Share of hard pairs among the pairs of a task, after each of `STEPS_SHOWN` updates."""
    kl: float
    """KL of the final task distribution from uniform, in nats."""
    tasks: tuple[tuple[str, ...], ...]
    """Some tasks drawn at the end."""


def hard_pairs() -> Tensor:
    """Return which pairs the pretend learner confuses, `classes x classes` bool."""
    group = torch.arange(len(NAMES)) // len(GROUPS[0])
    same = (group[:, None] == group[None, :]) & (group < CONFUSED_GROUPS)
    return same & ~torch.eye(len(NAMES), dtype=torch.bool)


def pretend_probabilities(class_ids: Tensor) -> Tensor:
    """Return what the pretend learner says of one query a class, `tasks x way x way`."""
    look_alike = hard_pairs()[class_ids[:, :, None], class_ids[:, None, :]]
    truth = torch.eye(class_ids.shape[1])
    return (_LOGIT_OF_TRUTH * truth + _LOGIT_OF_LOOK_ALIKE * look_alike).softmax(-1)


def follow(label: str, name: str, settings: dict[str, Any], *, seed: int) -> DemoRow:
    """Let one sampler draw and learn, and note the share of hard pairs on the way."""
    sampler = build_sampler(name, n_classes=len(NAMES), n_way=N_WAY, seed=seed, **settings)
    labels, hard, shares = torch.arange(N_WAY), hard_pairs(), []
    for step in range(max(STEPS_SHOWN) + 1):
        if step in STEPS_SHOWN:
            # Each pair stands in the matrix of marginals twice, and N_WAY (N_WAY - 1) is twice
            # the number of pairs of a task.
            share = pair_marginals(sampler).value[hard].sum() / (N_WAY * (N_WAY - 1))
            shares.append(float(share))
        class_ids = sampler.sample(N_TASKS)
        sampler.update(class_ids, pretend_probabilities(class_ids), labels)
    kl = float(kl_from_uniform(sampler).value)
    tasks = tuple(tuple(NAMES[c] for c in row) for row in sampler.sample(3).tolist())
    return DemoRow(label, tuple(shares), kl, tasks)


def run_demo(*, seed: int = 0) -> list[DemoRow]:
    """Follow every sampler and print what became of it.

    Args:
        seed: Seed of all samplers.
    """
    from rich.console import Console

    check_integer("seed", seed, low=0)
    torch.set_num_threads(1)  # of arrays so small, threads only wait for each other
    console = Console(highlight=False)
    console.print(
        f"[bold]Which {N_WAY} of {len(NAMES)} classes make the next task?[/bold]\n"
        "A pretend learner takes big cats for other big cats, vehicles for other vehicles\n"
        "and flowers for other flowers. It tells everything else apart.\n"
    )
    rows = []
    for label, name, settings in VARIANTS:
        with console.status(f"following {label}"):
            rows.append(follow(label, name, settings, seed=seed))
    console.print(_table(rows))
    for row in rows:
        if row.label in ("uniform", "gcp"):
            console.print(f"\nThree tasks that {row.label} draws in the end:")
            for task in row.tasks:
                console.print("  " + ", ".join(task))
    console.print(
        "\nShares are exact: sums over all tasks, not counts of draws. KL is how far the\n"
        "distribution over tasks is from uniform, in nats. All this shows what is drawn,\n"
        "not whether it helps a learner: that takes training, several seeds and a paired\n"
        "test.",
        style="dim",
    )
    return rows


def _table(rows: list[DemoRow]) -> Table:
    from rich.table import Table

    title = "Share of confused pairs in a task"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("sampler", no_wrap=True)
    for step in STEPS_SHOWN:
        heading = "at first" if step == 0 else f"{step} updates"
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("KL", justify="right")
    for row in rows:
        shares = (f"{100 * share:.1f} %" for share in row.shares)
        table.add_row(row.label, *shares, f"{row.kl:.2f}")
    return table
