"""How a run that is being followed is shown: as a view in a terminal, or as plain lines."""

from __future__ import annotations

import time

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from adaptask.experiments.watching.braille import draw_curves
from adaptask.experiments.watching.following import FollowedRun

STYLES = {
    "waiting": "dim",
    "running": "cyan",
    "stopped": "yellow",
    "silent": "yellow",
    "finished": "green",
    "failed": "red",
    "pruned": "dim",
}
_N_PAIRS = 6
_N_VALIDATIONS = 4
_CURVE_HEIGHT = 8
_PAIRS_WIDTH = 28
_NARROW, _WIDEST = 80, 110
_BORDER = "bright_black"
_SPLITS = (("train", "training", "bright_black"), ("val", "validation", "cyan"))


def run_view(run: FollowedRun, console: Console) -> RenderableType:
    """Return the view of a run."""
    width = min(console.width, _WIDEST)
    parts: list[RenderableType] = [_heading(run), Text(description(run), style="dim")]
    if run.record.has_begun:
        parts.append(_progress(run, width))
    parts += [Text(line) for line in figures(run)]
    panels = Table.grid(padding=(0, 1, 0, 0))
    cells: list[RenderableType] = []
    pairs = hardest(run)
    room = width - (_PAIRS_WIDTH + 1 if pairs else 0)
    if run.record.metrics and "utf" in console.encoding.lower():
        cells.append(_curve(run, room))
    if pairs:
        cells.append(_pairs(run, pairs))
    if cells:
        panels.add_row(*cells)
        parts.append(panels)
    parts += [Text(line, style=STYLES[run.state]) for line in remarks(run)]
    return Group(*parts)


def run_lines(run: FollowedRun) -> list[str]:
    """Return what is known of a run as plain lines."""
    record = run.record
    lines = [f"{run.folder}: {run.state}"]
    if record.has_begun:
        lines += [description(run), progress_text(run), *figures(run)]
    if pairs := hardest(run):
        named = ", ".join(f"{name} {value:.2f}" for name, value in pairs)
        lines.append(f"{_pairs_title(run)}: {named}")
    return [*lines, *remarks(run)]


def description(run: FollowedRun) -> str:
    """Return what the run is, in a line."""
    if not run.record.has_begun:
        return "nothing was written yet"
    config = run.record.settings
    task = config.get("task", {})
    model = config.get("model", {})
    return "  ".join(
        (
            str(config.get("data", {}).get("dataset", "")),
            f"{model.get('learner', '')} {model.get('backbone', '')}",
            str(config.get("sampler", {}).get("name", "")),
            f"{task.get('n_way', '?')}-way {task.get('n_shot', '?')}-shot",
            f"seed {config.get('seed', 0)}",
        )
    )


def progress_text(run: FollowedRun) -> str:
    """Return how far the run is, and how long the rest will take if somebody is at it."""
    record = run.record
    texts = [f"{record.steps_done}/{record.n_steps}"]
    if run.state == "running":
        seconds = record.seconds_per_step
        pace = run.pace.steps_per_second or (1 / seconds if seconds else None)
        if pace is not None:
            texts.append(f"{pace:.3g} steps/s" if pace < 100 else f"{pace:.0f} steps/s")
        if record.steps_done >= record.n_steps:
            texts.append("testing")
        elif (left := run.seconds_left) is not None:
            texts.append(f"{duration(left)} left")
    return "  ".join(texts)


def figures(run: FollowedRun) -> list[str]:
    """Return the last figures: of training, of the sampler, of validations and the test."""
    lines = []
    texts = []
    for split, name, label, factor in (
        ("train", "loss", "loss {:.3f}", 1),
        ("train", "accuracy", "accuracy {:.1f} %", 100),
        ("sampler", "kl", "KL from uniform {:.3f}", 1),
    ):
        values = run.record.curve(split, name)[1]
        if values.size:
            texts.append(label.format(factor * values[-1]))
    if texts:
        lines.append("   ".join(texts))
    steps, accuracies = run.record.curve("val", "accuracy")
    if steps.size:
        lines.append(_validations(steps.tolist(), accuracies.tolist()))
    if run.record.test is not None:
        test = run.record.test.accuracies
        lines.append(f"test       {100 * test.mean():.2f} % over {test.size} episodes")
    return lines


def _validations(steps: list[int], accuracies: list[float]) -> str:
    """Return the last validations and the best, in order of their steps."""
    best = int(np.argmax(accuracies))
    for n in range(_N_VALIDATIONS, 0, -1):
        shown = sorted({best, *range(max(0, len(steps) - n), len(steps))})
        texts = [
            f"{100 * accuracies[i]:.1f} % at {steps[i]}" + (" (best)" if i == best else "")
            for i in shown
        ]
        line = "validation " + "   ".join(texts)
        if len(line) <= _NARROW:
            break
    return line


def hardest(run: FollowedRun) -> list[tuple[str, float]]:
    """Return what the sampler prefers: pairs of classes, or classes, with their log potential."""
    snapshot = run.snapshot
    if snapshot is None or snapshot.distribution is None:
        return []
    values = snapshot.distribution
    portrait = run.record.portrait if run.record.is_finished else None
    names = [str(i) for i in range(len(values))] if portrait is None else portrait.class_names
    if values.ndim == 1:
        order = np.argsort(-values, kind="stable")[:_N_PAIRS]
        return [(names[i], float(values[i])) for i in order]
    first, second = np.triu_indices(len(values), k=1)
    order = np.argsort(-values[first, second], kind="stable")[:_N_PAIRS]
    return [
        (f"{names[i]} - {names[j]}", float(values[i, j]))
        for i, j in zip(first[order], second[order], strict=True)
    ]


def remarks(run: FollowedRun) -> list[str]:
    """Return what must be said of a run that does not go on."""
    if run.last_write is None:
        return [run.record.failure] if run.record.failure else []
    since = time.strftime("%H:%M:%S", time.localtime(run.last_write))
    ago = duration(time.time() - run.last_write)
    go_on = f"To go on: adaptask train --resume {run.folder}"
    return {
        "stopped": [f"Nothing written since {since} ({ago} ago); no process is at it.", go_on],
        "silent": [f"Nothing written since {since} ({ago} ago)."],
        "failed": [str(run.record.failure).strip()],
        "pruned": [str(run.record.pruned)],
    }.get(run.state, [])


def duration(seconds: float) -> str:
    """Return a time span as h:mm:ss.

    >>> duration(3725.4)
    '1:02:05'
    """
    minutes, seconds = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def _heading(run: FollowedRun) -> RenderableType:
    heading = Text(str(run.folder), style="bold", overflow="fold")
    return heading + Text(f"  {run.state}", style=STYLES[run.state])


def _progress(run: FollowedRun, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    text = progress_text(run)
    bar = ProgressBar(
        total=max(1, run.record.n_steps),
        completed=run.record.steps_done,
        width=max(10, width - len(text) - 4),
        complete_style="cyan",
    )
    grid.add_row(bar, Text(text, no_wrap=True))
    return grid


def _curve(run: FollowedRun, width: int) -> Panel:
    curves = [run.record.curve(split, "accuracy") for split, *_ in _SPLITS]
    values = np.concatenate([curve[1] for curve in curves])
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    rows = draw_curves(
        curves,
        width=width - 10,
        height=_CURVE_HEIGHT,
        x_range=(0, max(1, run.record.n_steps)),
        y_range=(low, high),
    )
    drawing = Text(no_wrap=True)
    labels = {0: f"{100 * high:5.1f}", _CURVE_HEIGHT - 1: f"{100 * low:5.1f}"}
    for number, row in enumerate(rows):
        drawing.append(labels.get(number, "     ") + " ", style="dim")
        for character, curve in row:
            drawing.append(character, style="" if curve is None else _SPLITS[curve][2])
        drawing.append("\n" if number < len(rows) - 1 else "")
    legend = ((f" {name}", style) for _, name, style in _SPLITS)
    title = Text.assemble(("accuracy %:", "default"), *legend)
    return Panel(
        drawing,
        title=title,
        title_align="left",
        subtitle=f"0 to {run.record.n_steps} steps",
        subtitle_align="right",
        width=width,
        border_style=_BORDER,
    )


def _pairs(run: FollowedRun, pairs: list[tuple[str, float]]) -> Panel:
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column(justify="right", no_wrap=True)
    for name, value in pairs:
        table.add_row(Text(name), f"{value:.2f}")
    return Panel(
        table,
        title=Text(_pairs_title(run), style="default"),
        title_align="left",
        width=_PAIRS_WIDTH,
        height=_CURVE_HEIGHT + 2,
        border_style=_BORDER,
    )


def _pairs_title(run: FollowedRun) -> str:
    snapshot = run.snapshot
    alone = snapshot is not None and getattr(snapshot.distribution, "ndim", 2) == 1
    strategy = run.record.settings.get("sampler", {}).get("strategy", "hard")
    what = "classes" if alone else "pairs"
    return f"most confused {what}" if strategy == "hard" else f"most sought {what}"
