"""What `adaptask data list | prepare | check | sheet` do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table

from adaptask.data.cache import cache_root
from adaptask.data.check import check_cache
from adaptask.data.contact_sheet import contact_sheet
from adaptask.data.convert import Progress
from adaptask.data.prepare import Prepared, prepare, prepare_own
from adaptask.data.registry import DATASETS, Status, dataset_folder, load, status
from adaptask.errors import ArgumentError

_MOST_LEFT_OUT = 10


def list_datasets() -> None:
    """Show every dataset: what it is, whether it is prepared, how many classes and images."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("dataset", no_wrap=True, style="bold")
    table.add_column("state", no_wrap=True)
    for heading in ("classes", "images", "size"):
        table.add_column(heading, no_wrap=True, justify="right")
    table.add_column("what it is")
    rows = status()
    for row in rows:
        table.add_row(
            row.name,
            _state(row),
            f"{row.n_classes:,}" if row.n_classes else "",
            f"{row.n_images:,}" if row.n_images else "",
            f"{row.n_bytes / 1e6:,.0f} MB" if row.is_prepared else "",
            escape(row.problem or row.description),
        )
    console = _console()
    console.print(table)
    where = f"\nCaches are in {cache_root()} (ADAPTASK_CACHE changes that)."
    console.print(where, style="dim", markup=False)
    if any(row.needs_source and not row.is_prepared for row in rows):
        console.print("To prepare one: adaptask data prepare NAME --source PATH", style="dim")


def prepare_dataset(
    *,
    name: str,
    source: Path,
    called: str | None = None,
    image_size: int | None = None,
    grey: bool = False,
    fractions: Sequence[float] | None = None,
    seed: int | None = None,
    split_lists: Path | None = None,
    workers: int | None = None,
) -> None:
    """Recognize, check and convert a dataset, with a progress bar.

    The options are those of `adaptask data prepare`; all but the last are for `folder`, images of
    your own.
    """
    given = {
        "name": called,
        "image_size": image_size,
        "grey": grey or None,
        "fractions": fractions,
        "seed": seed,
        "split_lists": split_lists,
    }
    options = {key: value for key, value in given.items() if value is not None}
    if name in DATASETS and name != "folder" and options:
        raise ArgumentError(
            f"'{name}' is prepared in one way only; options are for 'folder', your own images."
        )
    with _progress_bar(f"preparing {called or name}") as progress:
        if name == "folder":
            done = prepare_own(source, workers=workers, progress=progress, **options)  # type: ignore[arg-type]
        else:
            done = prepare(name, source, workers=workers, progress=progress)
    _say_prepared(done)


def check_dataset(*, name: str) -> None:
    """Verify a cache against its checksums and report images that are in two splits."""
    console = _console()
    folder = dataset_folder(name)
    with console.status(f"checking {name}"):
        report = check_cache(folder)
    console.print(f"{name}: all {report.n_images:,} images match their checksums.")
    if not report.duplicates:
        console.print("No image is in more than one split.")
        return
    n_pairs = report.duplicates.total()
    console.print(f"{_count(n_pairs, 'pair')} of equal images in different splits:")
    for (first, second), n in report.duplicates.most_common():
        line = f"  {n:4}  {first[1]} ({first[0]}) = {second[1]} ({second[0]})"
        console.print(line, markup=False)


def draw_sheet(
    *,
    name: str,
    split: str = "train",
    out: Path | None = None,
    n_classes: int = 12,
    n_images: int = 12,
) -> None:
    """Draw a contact sheet of a split into a file, `NAME-SPLIT.png` where none is given."""
    path = out or Path(f"{name}-{split}.png")
    sheet = contact_sheet(load(name, split), n_classes=n_classes, n_images=n_images)
    try:
        sheet.save(path)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"the sheet cannot be written to {path}: {error}.") from error
    _console().print(f"{path} shows {split} of {name}.", markup=False)


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _state(row: Status) -> str:
    if row.problem:
        return "[red]damaged[/]"
    if row.is_prepared:
        return "[green]prepared[/]"
    return "not prepared" if row.needs_source else "made on first use"


@contextmanager
def _progress_bar(title: str) -> Iterator[Progress]:
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with ProgressBar(*columns, console=_console(), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, n_images: bar.update(task, completed=done, total=n_images)


def _say_prepared(done: Prepared) -> None:
    console = _console()
    line = f"{done.dataset} prepared in {done.seconds:.1f} s from: {done.source}"
    console.print(line, markup=False)
    for split, n_classes in done.n_classes.items():
        classes, images = _count(n_classes, "class"), _count(done.n_images[split], "image")
        console.print(f"  {split:5}  {classes}, {images}")
    for folder in done.left_out[:_MOST_LEFT_OUT]:
        console.print(f"  left out: {folder}", markup=False)
    if len(done.left_out) > _MOST_LEFT_OUT:
        console.print(f"  left out: {len(done.left_out) - _MOST_LEFT_OUT:,} more")
    console.print(f"It is in {done.folder}", style="dim", markup=False)


def _count(n: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{n:,} {noun if n == 1 else plural}"
