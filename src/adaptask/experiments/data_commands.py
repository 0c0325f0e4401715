"""The commands `adaptask data list | download | prepare | extract | check`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as ProgressBar
from rich.text import Text
from tyro.conf import Positional, arg
from tyro.extras import SubcommandApp

from adaptask.data.benchmarks import BENCHMARKS, Benchmark
from adaptask.data.cache import cache_root, check_cache, find_duplicates
from adaptask.data.convert import Progress
from adaptask.data.datasets import (
    DATASETS,
    Generated,
    Status,
    dataset_folder,
    is_plugin,
    load,
    splits_of,
    status,
)
from adaptask.data.download import download
from adaptask.data.prepare import Prepared, prepare, prepare_features, prepare_folder
from adaptask.errors import ArgumentError, DataError
from adaptask.experiments.command_line import Switch

app = SubcommandApp()

_MOST_LEFT_OUT = 10
_Name = Annotated[str, arg(metavar="NAME")]
_Workers = Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: all cores)")]


@app.command(name="list")
def list_datasets() -> None:
    """Show every dataset: what it is, whether it is prepared, how many classes and images."""
    rows = status()
    width = max(len(row.name) for row in rows)
    console = _console()
    heading = f"{'dataset':{width}}  {'state':17}  {'classes':>7}  {'images':>9}  {'size':>9}"
    console.print(heading, style="bold")
    for row in rows:
        state, style = _state(row)
        n_classes = f"{row.n_classes:,}" if row.n_classes else ""
        n_images = f"{row.n_images:,}" if row.n_images else ""
        size = f"{row.n_bytes / 1e6:,.0f} MB" if row.is_prepared else ""
        counts = f"  {n_classes:>7}  {n_images:>9}  {size:>9}".rstrip()
        name = (f"{row.name:{width}}  ", "bold")
        console.print(Text.assemble(name, (f"{state:17}", style), counts))
        console.print(f"  {row.problem or row.description}", markup=False)
    where = f"\nCaches are in {cache_root()} (ADAPTASK_CACHE changes that)."
    console.print(where, style="dim", markup=False)
    if any(row.needs_source and not row.is_prepared for row in rows):
        console.print("To prepare one: adaptask data prepare NAME --source PATH", style="dim")
        known = ", ".join(entry.name for entry in BENCHMARKS if entry.files)
        console.print(f"To download one ({known}): adaptask data download NAME", style="dim")


@app.command(name="prepare")
def prepare_dataset(
    dataset: Positional[_Name],
    *,
    source: Path,
    name: Annotated[
        str | None, arg(metavar="NAME", help_behavior_hint="(default: folder, or features)")
    ] = None,
    image_size: Annotated[
        int | None, arg(metavar="PIXELS", help_behavior_hint="(default: 84)")
    ] = None,
    gray: Switch = False,
    fractions: Annotated[
        tuple[float, float, float] | None,
        arg(metavar="TRAIN VAL TEST", help_behavior_hint="(default: 0.64 0.16 0.2)"),
    ] = None,
    seed: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: 0)")] = None,
    split_lists: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None,
    workers: _Workers = None,
) -> None:
    """Convert a dataset once into the cache, from any layout in which it is usually found.

    Args:
        dataset: A dataset of `adaptask data list`; folder: your own images; features: vectors.
        source: Folder or archive with the data; of features also .npy, .npz or .safetensors.
        name: For `folder` and `features`: the name of the dataset from then on.
        image_size: For `folder`: height and width of the images.
        gray: For `folder`: make the images gray.
        fractions: For both: shares of the classes for train, val and test.
        seed: For both: decides which classes go where.
        split_lists: For both: a folder with train.txt, val.txt and test.txt.
        workers: Number of processes.
    """
    given = {
        "name": name,
        "image_size": image_size,
        "gray": gray or None,
        "fractions": fractions,
        "seed": seed,
        "split_lists": split_lists,
    }
    options = {key: value for key, value in given.items() if value is not None}
    if dataset in DATASETS and dataset not in ("folder", "features") and options:
        raise ArgumentError(
            f"'{dataset}' is prepared in one way only; options are for 'folder', your own images, "
            "and for 'features'."
        )
    if dataset == "features":
        for flag, value in (("image-size", image_size), ("gray", gray), ("workers", workers)):
            if value:
                raise ArgumentError(f"--{flag} is for images; features are copied as they are.")
    with _progress_bar(f"preparing {name or dataset}") as progress:
        if dataset == "folder":
            done = prepare_folder(source, workers=workers, progress=progress, **options)  # type: ignore[arg-type]
        elif dataset == "features":
            done = prepare_features(source, progress=progress, **options)  # type: ignore[arg-type]
        else:
            done = prepare(dataset, source, workers=workers, progress=progress)
    _print_prepared(done, "vector" if dataset == "features" else "image")


@app.command(name="download")
def download_dataset(
    name: Positional[_Name],
    *,
    folder: Annotated[
        Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: in the cache)")
    ] = None,
    workers: _Workers = None,
) -> None:
    """Download a dataset from its official home and prepare it.

    cifar-fs, fc100, omniglot and cub can be downloaded. A download that was interrupted is
    continued.

    Args:
        name: A dataset of `adaptask data list`.
        folder: Where the downloaded files are kept.
        workers: Number of processes that prepare.
    """
    if is_plugin(name) or isinstance(DATASETS.get(name), Generated):
        raise ArgumentError(f"'{name}' needs no download.")
    entry = DATASETS.get(name)
    if not isinstance(entry, Benchmark):
        known = [other.name for other in BENCHMARKS if other.files]
        raise ArgumentError(f"'{name}' cannot be downloaded; {', '.join(known)} can.")
    if not entry.files:
        raise DataError(
            f"the home of '{name}' is closed: ask for the data at {entry.home}. "
            f"Then run: adaptask data prepare {name} --source PATH"
        )
    if folder is None:
        # Named after the first file, so that datasets of the same files share them.
        folder = cache_root() / "downloads" / entry.files[0].name.partition(".")[0]
    elif len(entry.files) > 1:
        # Several archives are one source only in a folder that has nothing else.
        folder = folder / name
    for file in entry.files:
        with _progress_bar(f"downloading {file.name}", is_bytes=True) as progress:
            download(file, folder, progress=progress)
    _console().print(f"Downloaded to {folder}", style="dim", markup=False)
    source = folder / entry.files[0].name if len(entry.files) == 1 else folder
    prepare_dataset(dataset=name, source=source, workers=workers)


@app.command(name="extract")
def extract_dataset(
    run: Positional[Annotated[Path, arg(metavar="RUN")]],
    *,
    name: _Name,
    dataset: Annotated[
        str | None, arg(metavar="NAME", help_behavior_hint="(default: that of the run)")
    ] = None,
    device: str = "auto",
    trust_plugins: Switch = False,
) -> None:
    """Write the features of a trained backbone as a dataset.

    adaptask data extract runs/pretrained --name glyph-features

    Args:
        run: Folder of a run, such as a pre-training; its best weights are used.
        name: The name of the new dataset.
        dataset: Whose images, resized to those of the run.
        device: cpu, cuda, cuda:1, ..., or auto: a GPU if there is one.
        trust_plugins: Import the classes outside the package that the run names.
    """
    from adaptask.experiments.extract_command import extract_features

    with _progress_bar(f"extracting {name}") as progress:
        done = extract_features(
            run,
            name,
            dataset=dataset,
            device=device,
            trust_plugins=trust_plugins,
            progress=progress,
        )
    _print_prepared(done, "vector")


@app.command(name="check")
def check_dataset(name: Positional[_Name]) -> None:
    """Verify a dataset and report images that are in two splits.

    Args:
        name: A prepared dataset, or the address of your own, package.module:function.
    """
    console = _console()
    with console.status(Text(f"checking {name}")):
        if is_plugin(name):
            report = find_duplicates([load(name, split) for split in splits_of(name)])
            found = "were loaded"
        else:
            report = check_cache(dataset_folder(name))
            found = "match their checksums"
    noun = "vector" if load(name, "train").holds_features else "image"
    console.print(f"{name}: all {report.n_images:,} {noun}s {found}.", markup=False)
    if not report.duplicates:
        console.print(f"No {noun} is in more than one split.")
        return
    n_pairs = report.duplicates.total()
    console.print(f"{_count(n_pairs, 'pair')} of equal {noun}s in different splits:")
    for (first, second), n in report.duplicates.most_common():
        line = f"  {n:4}  {first[1]} ({first[0]}) = {second[1]} ({second[0]})"
        console.print(_printable(line), markup=False)


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True, emoji=False)


def _state(row: Status) -> tuple[str, str]:
    """Return in which state a dataset is, and the style in which that is shown."""
    if row.problem:
        return "damaged", "red"
    if row.is_prepared:
        return "prepared", "green"
    if row.needs_source:
        return "not prepared", ""
    return "plug-in" if is_plugin(row.name) else "made on first use", ""


@contextmanager
def _progress_bar(title: str, *, is_bytes: bool = False) -> Iterator[Progress]:
    count = DownloadColumn() if is_bytes else MofNCompleteColumn()
    columns = (TextColumn(title, markup=False), BarColumn(), count, TimeRemainingColumn())
    console = _console()
    # Where no bar can be shown, rich would end it with an empty line.
    with ProgressBar(
        *columns, console=console, transient=True, disable=not console.is_interactive
    ) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_prepared(done: Prepared, noun: str) -> None:
    console = _console()
    line = f"{done.dataset} prepared in {done.seconds:.1f} s from: {done.source}"
    console.print(_printable(line), markup=False)
    for split, n_classes in done.n_classes.items():
        classes, images = _count(n_classes, "class"), _count(done.n_images[split], noun)
        console.print(f"  {split:5}  {classes}, {images}")
    for what in done.left_out[:_MOST_LEFT_OUT]:
        console.print(_printable(f"  left out: {what}"), markup=False)
    if len(done.left_out) > _MOST_LEFT_OUT:
        console.print(f"  left out: {len(done.left_out) - _MOST_LEFT_OUT:,} more")
    console.print(f"It is in {done.folder}", style="dim", markup=False)


def _printable(text: str) -> str:
    """Return a text in which names of files that are not UTF-8 have escapes."""
    return text.encode(errors="backslashreplace").decode()


def _count(n: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{n:,} {noun if n == 1 else plural}"
