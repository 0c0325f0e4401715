"""What the benchmarks share that keep a line per run in a file of records."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from adaptask.experiments.backends import Event
from adaptask.experiments.backends.interleaved import Interleaved
from adaptask.experiments.paper.published import METHODS, TABLE_2, TABLE_3
from adaptask.report.run import Run

DOCS = Path(__file__).parents[1] / "docs"
RECORDS = DOCS / "reproduction"


def read_rows(file: Path) -> list[dict[str, str]]:
    """Return the lines of a file of records, none if there is no file."""
    if not file.exists():
        return []
    with file.open() as stream:
        return list(csv.DictReader(stream))


def is_recorded(file: Path, key: Mapping[str, Any]) -> bool:
    """Return whether a file of records has a line with these values."""
    text = {name: str(value) for name, value in key.items()}
    return any(text.items() <= row.items() for row in read_rows(file))


def append(file: Path, row: Mapping[str, Any]) -> None:
    """Add a line to a file of records, in one write: several processes may share it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    header, line = io.StringIO(), io.StringIO()
    csv.DictWriter(header, row, lineterminator="\n").writeheader()
    csv.DictWriter(line, row, lineterminator="\n").writerow(row)
    with suppress(FileExistsError), file.open("x") as stream:
        stream.write(header.getvalue())
    with file.open("a") as stream:
        stream.write(line.getvalue())


def make_and_record(
    runs: Sequence[Run], file: Path, record: Callable[[str], Mapping[str, Any]], n_at_once: int = 1
) -> None:
    """Make runs; when one ends, append to the records what `record` says of it, by its name."""

    def on_event(event: Event) -> None:
        if event.kind == "end" and event.text is None:
            row = record(event.run)
            append(file, row)
            print(f"{event.run}: {row['accuracy']}", flush=True)
        elif event.kind in ("end", "warn"):
            print(f"{event.run}: {event.text}", flush=True)

    failures = Interleaved(max(1, min(n_at_once, len(runs)))).run(runs, on_event)
    for name, reason in failures.items():
        print(f"FAILED {name}: {reason}", file=sys.stderr)


def digest(*files: Path) -> str:
    """Return what identifies the records that a picture was drawn from."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def fill_in(page: str, made: Mapping[str, str]) -> str:
    """Return a page with the text between `<!-- name -->` and `<!-- end of name -->` replaced."""
    for name, text in made.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        assert found, begin
        assert closed, end
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


def percentages(result: Mapping[str, Any]) -> dict[str, str]:
    """Return accuracy, interval and hardest tenth of a test result in percent."""
    names = ("accuracy", "interval", "hardest_tenth")
    return {name: f"{100 * result[name]:.4f}" for name in names}


def chosen_weights(run: Run) -> dict[str, Any]:
    """Return after which step the weights are that were tested, and their validation accuracy."""
    step = json.loads((run.path / "test.json").read_text())["steps"][0]
    steps, accuracies = run.curve("val", "accuracy")
    return {
        "best_step": step,
        "validation": f"{100 * accuracies[steps == step][-1]:.2f}",
    }


def late_training(run: Run, after: float) -> dict[str, str]:
    """Return the mean loss of training after some steps, and its accuracy in percent."""
    found = {}
    for name, factor, digits in (("loss", 1, 4), ("accuracy", 100, 2)):
        steps, values = run.curve("train", name)
        found[f"train_{name}"] = f"{factor * values[steps > after].mean():.{digits}f}"
    return found


def discard_weights(folder: Path) -> None:
    """Remove the weights of a finished run."""
    for file in folder.glob("*.pt"):
        file.unlink()


def printed_accuracy(learner: str, backbone: str, shots: int, sampler: str) -> float | None:
    """Return what the paper prints for a learner on CIFAR-FS; None if it prints nothing."""
    suffix = {"uniform": "", "gcp": " with gcp-sampling"}.get(sampler)
    if suffix is None:
        return None
    paper = TABLE_2 if backbone == "resnet12" else TABLE_3
    cell = paper.published(METHODS[learner] + suffix, "cifar-fs", shots)
    return None if cell is None else cell.accuracy
