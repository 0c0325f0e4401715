"""A plan as `--dry-run` prints it: what would run, how many runs, how long, what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adaptask.experiments.paper.datasets_at_hand import needs_preparing
from adaptask.experiments.paper.reproduction import Plan
from adaptask.experiments.paper.target_trials import time_name
from adaptask.report.study import Arm as Trial

if TYPE_CHECKING:
    from rich.console import Console

    from adaptask.experiments.config import RunConfig
    from adaptask.experiments.paper.estimates import Cost
    from adaptask.experiments.sharing import Sharing
    from adaptask.report.tables import Table


@dataclass(frozen=True)
class Costs:
    """What runs take here."""

    by_kind: Mapping[RunConfig, Cost]
    sharing: Sharing
    """How many would be made at the same time."""
    are_compiled: bool
    """Whether steps of some will be; those that were timed are not."""


def dry_run(planned: Plan, *, workers: int | None = None, estimate: bool = True) -> None:
    """Print a plan and, measured now on this machine, about how long it would take.

    Args:
        planned: What would run.
        workers: In how many processes; None chooses as `reproduce` does.
        estimate: Whether to measure; without it nothing needs torch.
    """
    from rich.console import Console

    console = Console(highlight=False)
    console.print(planned.title, style="bold")
    console.print(f"The paper: {planned.target.says}\n", markup=False)
    if planned.times:
        _show_times(planned, console)
    else:
        measured = _measured(planned, workers, console) if estimate else None
        _show_trials(planned, measured, console)
    for dataset in planned.datasets:
        if needs_preparing(dataset):
            console.print(
                f"\n{dataset} has not been prepared: adaptask data prepare {dataset} --source "
                "PATH. Without a download: --dataset glyphs.",
                markup=False,
            )
    console.print()
    for note in planned.notes:
        console.print(f"- {note}", style="dim", markup=False)


def _measured(planned: Plan, workers: int | None, console: Console) -> Costs:
    from adaptask.experiments.arithmetic import settled
    from adaptask.experiments.paper.estimates import measure_costs
    from adaptask.experiments.sharing import share
    from adaptask.training.machine import choose_device, set_up_process

    where = choose_device(planned.device)
    configs = [trial.config for trial in planned.trials for _ in range(planned.seeds)]
    sharing = share(workers, configs, where.type)
    set_up_process(threads=sharing.threads)  # as the runs will have it
    with console.status("") as status:
        costs = measure_costs(
            [trial.config for trial in planned.trials],
            where,
            progress=lambda kind: status.update(
                f"timing {kind.model.learner} on {kind.model.backbone}, {kind.data.dataset}, "
                f"{kind.tested_shot}-shot, on {where}"
            ),
        )
    are_compiled = any(settled(config, where).machine.compile == "yes" for config in configs)
    return Costs(costs, sharing, are_compiled)


def _show_times(planned: Plan, console: Console) -> None:
    for time in planned.times:
        console.print(f"  {time_name(time)}: uniform and gcp in turns")
    total = duration(len(planned.times) * planned.timing_seconds)
    console.print(
        f"\n{len(planned.times)} settings of {planned.timing_seconds:g} s on "
        f"{planned.datasets[0]}, nothing is trained to the end: about {total}."
    )


def _show_trials(planned: Plan, measured: Costs | None, console: Console) -> None:
    from rich.table import Table as RichTable

    groups = _groups(planned.trials)
    costs = measured.by_kind if measured else {}
    values = {
        key: list(dict.fromkeys(trial.labels[key] for trial in planned.trials))
        for key in planned.trials[0].labels
    }
    # What is the same for all is said once.
    if same := [f"{key} {found[0]}" for key, found in values.items() if len(found) == 1]:
        console.print(", ".join(same) + "\n", markup=False)
    keys = [key for key, found in values.items() if len(found) > 1]
    table = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for key in keys:
        table.add_column(key)
    for heading in ("steps", "tasks", "runs", *(["a run"] if costs else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    total, is_whole = 0.0, True
    for members in groups:
        config = members[0].config
        cells = [", ".join(dict.fromkeys(trial.labels[key] for trial in members)) for key in keys]
        n_runs = len(members) * planned.seeds
        cells += [f"{config.steps:,}", str(config.task.n_tasks), str(n_runs)]
        if costs:
            took, whole = _run_time(config, costs)
            total += took * n_runs
            is_whole &= whole
            cells.append(duration(took))
        table.add_row(*cells)
    console.print(table)
    trials, seeds = _counted(len(planned.trials), "trial"), _counted(planned.seeds, "seed")
    runs = _counted(planned.n_runs, "run")
    console.print(f"\n{trials}, {seeds} each: {runs}.", end="")
    if measured:
        how = "a few steps of each kind" if is_whole else "parts of a step where one takes long"
        at_once = measured.sharing.n_at_once
        pace = f"{at_once} at once" if at_once > 1 else "one after the other"
        in_all = duration(total / measured.sharing.speedup)
        console.print(f" About {in_all} here, {pace}, by {how}.", end="")
        if measured.are_compiled:
            console.print(" Compiled, as long runs are, they take up to a third less.", end="")
    console.print()


def _run_time(config: RunConfig, costs: Mapping[RunConfig, Cost]) -> tuple[float, bool]:
    from adaptask.experiments.paper.estimates import kind_of, run_seconds

    cost = costs[kind_of(config)]
    return run_seconds(config, cost), cost.is_measured_whole


def _groups(trials: tuple[Trial, ...]) -> list[list[Trial]]:
    """Return trials that differ in their sampler alone, together."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        rest = {k: v for k, v in trial.labels.items() if k not in ("sampler", "alpha", "tau")}
        groups.setdefault(str(rest), []).append(trial)
    return list(groups.values())


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def duration(seconds: float) -> str:
    """Return a time in the units that suit it.

    >>> duration(42), duration(600), duration(5400), duration(400_000)
    ('42 s', '10 min', '1 h 30 min', '4 d 15 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"


def show_table(table: Table, console: Console) -> None:
    """Print a table of a report in the terminal."""
    from rich.table import Table as RichTable

    shown = RichTable(title=table.title, box=None, pad_edge=False, title_justify="left")
    for i, heading in enumerate(table.headings):
        shown.add_column(heading, justify="left" if i < table.n_labels else "right")
    for row in table.rows:
        shown.add_row(*(cell.text for cell in row))
    console.print(shown)
    for note in table.notes:
        console.print(f"- {note}", style="dim", markup=False)
