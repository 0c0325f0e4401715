"""The command line: parsing only. Each command imports what it needs when it runs."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro import _strings
from tyro.conf import Positional, arg
from tyro.extras import SubcommandApp

from adaptask import __version__
from adaptask.cli_data import app as data_app
from adaptask.cli_data import replace_old_flags
from adaptask.errors import AdaptaskError, ArgumentError
from adaptask.experiments.backends.ray import ClusterOptions
from adaptask.experiments.config import RunConfig
from adaptask.experiments.shared_config import SharedConfig, SweptConfig

_DESCRIPTION = """Adaptive task sampling for few-shot meta-learning.

Start with `adaptask demo`."""

app = SubcommandApp()
app.command(data_app, name="data", help="List, prepare, check and look at datasets.")


def _flowing(helptext: str) -> str:
    """Return a docstring with one line per paragraph."""
    paragraphs = inspect.cleandoc(helptext).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


# Tyro's own leaves breaks within sentences if lines are indented or do not begin with a letter.
_strings.remove_single_line_breaks = _flowing

_given: list[str] = []
"""The words of the command line, for reports to repeat."""


@app.command
def demo(output: Annotated[Path, arg(metavar="FOLDER")] = Path("runs/demo")) -> int:
    """Compare uniform and adaptive sampling on characters; a few minutes, nothing to download.

    Args:
        output: Where the runs and the report are kept; what is there already is kept too.
    """
    from adaptask.experiments.demo import run_demo

    return run_demo(output)


@app.command
def train(
    run: Annotated[RunConfig, arg(name="")] = RunConfig(),  # noqa: B008, it is frozen
    *,
    output: Annotated[Path | None, arg(metavar="FOLDER")] = None,
    resume: Annotated[Path | None, arg(metavar="RUN")] = None,
    preset: Annotated[str | None, arg(metavar="NAME")] = None,
    config: Annotated[Path | None, arg(metavar="FILE")] = None,
    quiet: bool = False,
    log: tuple[Literal["tensorboard", "wandb"], ...] = (),
) -> None:
    """Train a learner on the tasks of a sampler, validate, and test the best weights.

    adaptask train --dataset glyphs --learner protonet --sampler gcp --steps 2000

    Args:
        run: Everything that decides the run.
        output: Where the run is kept; a folder under runs/ named after it by default.
        resume: Go on with the run in this folder; no other option is needed.
        preset: Start from a published recipe; `adaptask list` shows them.
        config: A TOML file that sets any of the options below, such as a run's config.toml; flags
            win over it.
        quiet: Print only errors and warnings.
        log: Also write to tensorboard or wandb, if they are installed.
    """
    from adaptask.experiments.training_commands import train as train_run

    if resume is not None and output is not None:
        raise ArgumentError("--resume goes on in the folder of the run; leave out --output.")
    train_run(run, output=resume or output, resume=resume is not None, quiet=quiet, log=log)


@app.command
def evaluate(
    run: Positional[Annotated[Path, arg(metavar="RUN")]],
    *,
    dataset: Annotated[str | None, arg(metavar="NAME")] = None,
    split: Literal["train", "val", "test"] = "test",
    n_way: Annotated[int | None, arg(metavar="INT")] = None,
    n_shot: Annotated[int | None, arg(metavar="INT")] = None,
    n_query: Annotated[int | None, arg(metavar="INT")] = None,
    n_episodes: Annotated[int | None, arg(metavar="INT")] = None,
    seed: Annotated[int | None, arg(metavar="INT")] = None,
    weights: Literal["best", "last"] = "best",
    device: str = "auto",
) -> None:
    """Measure the accuracy of a trained run, also on another dataset or with other tasks.

    Options that are not given are those with which the run was tested. Images of another dataset
    get the size and the channels that the run was trained with.

    Args:
        run: The folder of a run.
        dataset: Another dataset than the run's own.
        split: Whose classes.
        n_way: Classes of a task.
        n_shot: Support images per class.
        n_query: Query images per class.
        n_episodes: Number of episodes.
        seed: Decides the episodes.
        weights: The best by validation, or the last.
        device: cpu, cuda, or auto: a GPU if there is one.
    """
    from adaptask.experiments.evaluate_command import evaluate_run

    evaluate_run(
        run,
        dataset=dataset,
        split=split,
        n_way=n_way,
        n_shot=n_shot,
        n_query=n_query,
        n_episodes=n_episodes,
        seed=seed,
        weights=weights,
        device=device,
    )


@app.command
def compare(
    run: Annotated[SharedConfig, arg(name="")] = SharedConfig(),  # noqa: B008, it is frozen
    *,
    learners: tuple[str, ...] = (),
    samplers: tuple[str, ...] = ("uniform", "gcp"),
    seeds: int = 3,
    output: Annotated[Path | None, arg(metavar="FOLDER")] = None,
    workers: Annotated[int | None, arg(metavar="INT")] = None,
    cluster: Annotated[ClusterOptions, arg(name="")] = ClusterOptions(),  # noqa: B008, it is frozen
    preset: Annotated[str | None, arg(metavar="NAME")] = None,
    config: Annotated[Path | None, arg(metavar="FILE")] = None,
) -> int:
    """Train every learner with every sampler, and tell which differences are real.

    adaptask compare --dataset glyphs --learners protonet --samplers uniform c gcp --steps 2000

    Runs of the same seed start from the same weights and are tested on the same tasks. The same
    command goes on after a kill; more seeds or samplers are added to those that are there.

    Args:
        run: What all runs share.
        learners: Names of learners; by default that of the preset or file, or protonet.
        samplers: Names of samplers, with options of their own if needed:
            gcp:strategy=easy,tau=0.7.
        seeds: How many seeds each; 0, 1, ...
        output: Where the runs and the report are kept; a folder under runs/ by default.
        workers: How many runs at once; by default one per core on a CPU, on a GPU as many as pay.
        cluster: Where the runs are made.
        preset: Start from a published recipe; `adaptask list` shows them.
        config: A TOML file that sets any of the options below; flags win over it.
    """
    from adaptask.experiments.compare_command import compare as compare_samplers

    return compare_samplers(
        run.config(),
        learners=learners or (run.model.learner,),
        samplers=samplers,
        seeds=seeds,
        output=output,
        workers=workers,
        cluster=cluster,
        command=("adaptask", *_given),
    )


@app.command
def reproduce(
    target: Positional[Annotated[str, arg(metavar="TARGET")]],
    *,
    dataset: Annotated[str | None, arg(metavar="NAME")] = None,
    scale: float = 1.0,
    rows: Annotated[tuple[str, ...], arg(metavar="[ROW...]")] = (),
    shots: Annotated[tuple[int, ...], arg(metavar="[INT...]")] = (),
    learners: Annotated[tuple[str, ...], arg(metavar="[NAME...]")] = (),
    seeds: Annotated[int | None, arg(metavar="INT")] = None,
    schedule: Literal["paper", "cosine"] = "paper",
    dry_run: bool = False,
    output: Annotated[Path | None, arg(metavar="FOLDER")] = None,
    workers: Annotated[int | None, arg(metavar="INT")] = None,
    cluster: Annotated[ClusterOptions, arg(name="")] = ClusterOptions(),  # noqa: B008, it is frozen
    device: str = "auto",
) -> int:
    """Reproduce a table or a figure of the paper, with the published figures beside ours.

    adaptask reproduce table-compat --dataset glyphs --scale 0.01

    table-mini, table-cifar, table-compat, table-strategies, table-time, table-tiered,
    figure-hyper, figure-tsne, figure-heatmap, figure-samples, figure-evolution

    Args:
        target: One of those above.
        dataset: Replaces all its datasets; glyphs needs no download.
        scale: Of steps and episodes: 0.01 makes all of it small.
        rows: Which rows of the table; all by default.
        shots: Which shots; all by default.
        learners: Other learners than the paper's, where a target has a choice.
        seeds: Runs of each; three by default, one for figures without statistics.
        schedule: Of the learning rate: the paper's, or a cosine if that is constant.
        dry_run: Print what would run, and how long it would take here, measured now.
        output: Where the runs and the report are kept; a folder under runs/ by default.
        workers: How many runs at once; by default one per core on a CPU, on a GPU as many as pay.
        cluster: Where the runs are made.
        device: cpu, cuda, or auto: a GPU if there is one.
    """
    from adaptask.experiments.paper.reproduction import plan
    from adaptask.experiments.paper.reproduction import reproduce as run_plan

    planned = plan(
        target,
        dataset=dataset,
        scale=scale,
        rows=rows,
        seeds=seeds,
        shots=shots,
        learners=learners,
        schedule=schedule,
        device=device,
    )
    if dry_run:
        from adaptask.experiments.paper.estimate import dry_run as show

        show(planned, workers=workers)
        return 0
    return run_plan(planned, output, workers=workers, cluster=cluster)


@app.command
def sweep(
    run: Annotated[SweptConfig, arg(name="")] = SweptConfig(),  # noqa: B008, it is frozen
    *,
    alpha: Annotated[tuple[str, ...], arg(metavar="[VALUE...]")] = (),
    tau: Annotated[tuple[str, ...], arg(metavar="[VALUE...]")] = (),
    lr: Annotated[tuple[str, ...], arg(metavar="[VALUE...]")] = (),
    vary: Annotated[tuple[str, ...], arg(metavar="[OPTION=VALUE,...]")] = (),
    search: Literal["grid", "random"] = "grid",
    trials: Annotated[int | None, arg(metavar="INT")] = None,
    seeds: int = 1,
    search_seed: int = 0,
    prune: bool = True,
    output: Annotated[Path | None, arg(metavar="FOLDER")] = None,
    workers: Annotated[int | None, arg(metavar="INT")] = None,
    cluster: Annotated[ClusterOptions, arg(name="")] = ClusterOptions(),  # noqa: B008, it is frozen
    preset: Annotated[str | None, arg(metavar="NAME")] = None,
    config: Annotated[Path | None, arg(metavar="FILE")] = None,
) -> int:
    """Search for good options, by the accuracy in validation.

    adaptask sweep --alpha 0.5 1 2 --tau 0.3 0.5 0.7 --steps 2000

    Args:
        run: What all trials share.
        alpha: Values of alpha, or a range LOW..HIGH for random search.
        tau: Values of tau, or a range.
        lr: Learning rates, or a range.
        vary: Any other options with their values or range: optimiser.weight_decay=0,5e-4.
        search: Every combination, or random ones.
        trials: How many, in random search.
        seeds: Runs of each trial; their mean counts.
        search_seed: Decides what random search draws.
        prune: Give up early what is worse than most.
        output: Where the trials are kept; a folder under runs/ by default.
        workers: How many runs at once; by default one per core on a CPU, on a GPU as many as pay.
        cluster: Where the runs are made.
        preset: Start from a published recipe; `adaptask list` shows them.
        config: A TOML file that sets any of the options below; flags win over it.
    """
    from adaptask.experiments.sweep import sweep as search_options

    return search_options(
        run.config(),
        flags={"sampler.alpha": alpha, "sampler.tau": tau, "optimiser.lr": lr},
        vary=vary,
        search=search,
        trials=trials,
        seeds=seeds,
        search_seed=search_seed,
        prune=prune,
        output=output,
        workers=workers,
        cluster=cluster,
        command=("adaptask", *_given),
    )


@app.command
def watch(
    folder: Positional[Annotated[Path, arg(metavar="FOLDER")]], *, once: bool = False
) -> None:
    """Show a running run, comparison or sweep, until it ends or Ctrl-C.

    Args:
        folder: The folder of a run or a study.
        once: Show it once.
    """
    from adaptask.experiments.watch import watch as show

    show(folder, once=once)


@app.command
def report(folder: Positional[Annotated[Path, arg(metavar="FOLDER")]]) -> int:
    """Make or remake the report of a comparison, a sweep or a single run, from its folder alone.

    Args:
        folder: The folder of a study, or of runs.
    """
    from adaptask.report.report import make_report, print_report

    print_report(make_report(folder))
    return 0


@app.command(name="list")
def list_parts() -> None:
    """Show every sampler, learner, backbone and dataset, each with one line."""
    from adaptask.experiments.catalogue import print_catalogue

    print_catalogue()


@app.command
def version() -> None:
    """Print the version."""
    sys.stdout.write(f"adaptask {__version__}\n")


def _starting_point(arguments: list[str]) -> RunConfig:
    """Return what the flags of `train` start from: a preset, a file over it, or a run to resume."""
    from adaptask.experiments.config_file import load_config, no_run_in
    from adaptask.experiments.presets import preset_config

    found: dict[str, str] = {}
    for i, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag in ("--preset", "--config", "--resume"):
            if flag in found:
                raise ArgumentError(f"{flag} can be given once only.")
            found[flag] = value if equals else "".join(arguments[i + 1 : i + 2])
    for flag in ("--preset", "--config"):
        if flag in found and "--resume" in found:
            raise ArgumentError(f"--resume has the run's own configuration; leave out {flag}.")
    if resumed := found.get("--resume"):
        path = Path(resumed) / "config.toml"
        if not path.exists():
            raise no_run_in(Path(resumed))
        return load_config(path)
    base = preset_config(found["--preset"]) if "--preset" in found else RunConfig()
    return load_config(Path(found["--config"]), base) if found.get("--config") else base


def _check_seeds(arguments: list[str]) -> None:
    """Check that seeds are counted, not listed."""
    after = arguments[arguments.index("--seeds") + 1 :] if "--seeds" in arguments else []
    if len(after) > 1 and after[0].isdecimal() and after[1].isdecimal():
        raise ArgumentError("--seeds is how many there are: 3 stands for seeds 0, 1 and 2.")


def main(args: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    arguments = sys.argv[1:] if args is None else args
    arguments = ["version"] if arguments == ["--version"] else arguments
    try:
        # The parser shows and takes as defaults what the file says.
        if arguments[:1] == ["train"]:
            train.__defaults__ = (_starting_point(arguments),)
        if arguments[:1] == ["compare"]:
            compare.__defaults__ = (SharedConfig.of(_starting_point(arguments)),)
        if arguments[:1] == ["sweep"]:
            sweep.__defaults__ = (SweptConfig.of(_starting_point(arguments)),)
        _check_seeds(arguments)
        if arguments[:1] == ["data"]:
            arguments = replace_old_flags(arguments)
        _given[:] = arguments
        status = app.cli(prog="adaptask", description=_DESCRIPTION, args=arguments)
    except AdaptaskError as error:
        sys.stderr.write(f"adaptask: {error}\n")
        return 1
    except BrokenPipeError:
        # The reader of the output has closed it; nothing is left to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        sys.stderr.write("adaptask: interrupted\n")
        return 130
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
