"""The command line: parsing only. Each command imports what it needs when it runs."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import tyro
from tyro import _strings
from tyro.conf import Positional, arg
from tyro.extras import SubcommandApp

from adaptask import __version__
from adaptask.arguments import check_choice
from adaptask.errors import AdaptaskError, ArgumentError
from adaptask.experiments.backends.ray import ClusterOptions
from adaptask.experiments.command_line import (
    CommandLine,
    Switch,
    WrappedText,
    check_choices,
    describe_command,
    read_command_line,
    short_help,
)
from adaptask.experiments.compare_command import DEFAULT_SAMPLERS
from adaptask.experiments.config import DEFAULT_NAMES, RunConfig
from adaptask.experiments.config_file import describe_type
from adaptask.experiments.data_commands import app as data_app
from adaptask.experiments.options import AlgorithmConfig, short_name

_DESCRIPTION = """Adaptive task sampling for few-shot meta-learning.

Start with `adaptask demo`."""

app = SubcommandApp()
app.command(data_app, name="data", help="List, download, prepare, extract and check datasets.")


def _one_line_per_paragraph(helptext: str) -> str:
    if isinstance(helptext, WrappedText):
        return helptext
    paragraphs = inspect.cleandoc(helptext).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


# Tyro's own leaves breaks within sentences if lines are indented or do not begin with a letter.
_strings.remove_single_line_breaks = _one_line_per_paragraph

# Private as well; versions of tyro that lack it report bad values in their own words.
_errors = getattr(tyro, "_errors", None)
_on_parse_error: Any = getattr(_errors, "on_parse_error", nullcontext)

# Without options of algorithms, whose classes need torch; `main` replaces it.
_NO_CONFIG = RunConfig(**{kind: AlgorithmConfig(name) for kind, name in DEFAULT_NAMES.items()})  # type: ignore[arg-type]

_Run = Annotated[RunConfig, arg(name="")]
_Cluster = Annotated[ClusterOptions, arg(name="")]


def _optional(metavar: str) -> Any:
    """Return how an option is shown whose help says what happens without it."""
    return arg(metavar=metavar, help_behavior_hint="")


_Int = Annotated[int | None, _optional("INT")]
_Name = Annotated[str | None, _optional("NAME")]
_Folder = Annotated[Path | None, _optional("FOLDER")]
_File = Annotated[Path | None, _optional("FILE")]
_Loggers = Annotated[tuple[Literal["tensorboard", "wandb"], ...], _optional("NAME...")]
_Tasks = Annotated[tuple[Literal["uniform", "within-group"], ...], _optional("KIND...")]

_line = CommandLine("", [], _NO_CONFIG)
"""The command line of `train`, `pretrain`, `compare` or `sweep` that is being run."""


@app.command
def demo(output: Annotated[Path, arg(metavar="FOLDER")] = Path("runs/demo")) -> int:
    """Compare uniform and adaptive sampling on characters; a few minutes, nothing to download.

    Args:
        output: Folder of the runs and the report; finished runs in it are kept.
    """
    from adaptask.experiments.demo import run_demo

    return run_demo(output)


@app.command
def train(
    run: _Run = _NO_CONFIG,
    *,
    output: _Folder = None,
    resume: Annotated[Path | None, _optional("RUN")] = None,
    preset: _Name = None,
    config: _File = None,
    quiet: Switch = False,
    log: _Loggers = (),
    trust_plugins: Switch = False,
) -> None:
    """Train a learner on the tasks of a sampler, validate, and test the best weights.

    adaptask train --dataset turned-glyphs --learner protonet --sampler neighbor --steps 2000

    Args:
        run: Everything that decides the run.
        output: Folder of the run, which is continued if it is there; by default one under runs/.
        resume: Continue the run in this folder; no other option is needed.
        preset: Start from a published recipe; `adaptask list` shows them.
        config: A TOML file that sets any option, such as config.toml of a run; flags win over it.
        quiet: Print only errors and warnings.
        log: Also write to tensorboard or wandb, if they are installed.
        trust_plugins: Import plug-in classes, package.module:Class, that the file or run names.
    """
    from adaptask.experiments.run import train as train_run

    if resume is not None and output is not None:
        raise ArgumentError("--resume continues in the folder of the run; leave out --output.")
    train_run(run, output=resume or output, quiet=quiet, log=log)


@app.command
def pretrain(
    run: _Run = _NO_CONFIG,
    *,
    output: _Folder = None,
    resume: Annotated[Path | None, _optional("RUN")] = None,
    config: _File = None,
    quiet: Switch = False,
    log: _Loggers = (),
    trust_plugins: Switch = False,
) -> None:
    """Train a classifier of all training classes, for `adaptask train --init RUN` to start from.

    adaptask pretrain --dataset cifar-fs --backbone resnet12 --output runs/pretrained

    The weights with the best few-shot accuracy on the validation classes are kept.

    Args:
        run: Everything that decides the run.
        output: Folder of the run, which is continued if it is there; by default one under runs/.
        resume: Continue the run in this folder; no other option is needed.
        config: A TOML file that sets any option; flags win over it.
        quiet: Print only errors and warnings.
        log: Also write to tensorboard or wandb, if they are installed.
        trust_plugins: Import plug-in classes, package.module:Class, that the file or run names.
    """
    if resume is None and output is None:
        names = map(short_name, (run.data.dataset, run.backbone.name))
        output = Path("runs") / f"pretrain-{'-'.join(names)}-seed{run.seed}"
    train(run, output=output, resume=resume, quiet=quiet, log=log)


@app.command
def evaluate(
    run: Positional[Annotated[Path, arg(metavar="RUN")]],
    *,
    dataset: _Name = None,
    split: Literal["train", "val", "test"] = "test",
    n_way: _Int = None,
    n_shot: _Int = None,
    n_query: _Int = None,
    n_episodes: _Int = None,
    tasks: _Tasks = (),
    seed: _Int = None,
    weights: Literal["best", "last"] = "best",
    device: str = "auto",
    trust_plugins: Switch = False,
) -> None:
    """Measure the accuracy of a trained run, also on another dataset or with other tasks.

    Options that are not given are as the run was tested. Images of another dataset are converted
    to the size and channels that the run was trained with.

    Args:
        run: The folder of a run.
        dataset: Another dataset than the run's own.
        split: Which classes.
        n_way: Classes per task.
        n_shot: Support images per class.
        n_query: Query images per class.
        n_episodes: Number of episodes.
        tasks: uniform (any classes), within-group (classes of one group), or both.
        seed: Decides the episodes.
        weights: The best weights by validation, or the last.
        device: cpu, cuda, or auto: a GPU if there is one.
        trust_plugins: Import plug-in classes, package.module:Class, that the run names.
    """
    check_choices(dataset)
    from adaptask.experiments.evaluate_command import evaluate_run

    evaluate_run(
        run,
        dataset=dataset,
        split=split,
        n_way=n_way,
        n_shot=n_shot,
        n_query=n_query,
        n_episodes=n_episodes,
        tasks=tasks,
        seed=seed,
        weights=weights,
        device=device,
        trust_plugins=trust_plugins,
    )


@app.command
def compare(
    run: _Run = _NO_CONFIG,
    *,
    learners: tuple[str, ...] = (),
    samplers: tuple[str, ...] = DEFAULT_SAMPLERS,
    seeds: int = 5,
    output: _Folder = None,
    workers: _Int = None,
    cluster: _Cluster = ClusterOptions(),  # noqa: B008, it is frozen
    preset: _Name = None,
    config: _File = None,
    trust_plugins: Switch = False,
) -> int:
    """Train every learner with every sampler, and tell which differences are real.

    adaptask compare --dataset turned-glyphs --samplers uniform neighbor --steps 2000

    Runs of the same seed start from the same weights and are tested on the same tasks. The same
    command continues after a kill; more seeds or samplers are added to those that are there.

    Args:
        run: What all runs share.
        learners: Names of learners; by default that of the preset or file, or protonet.
        samplers: Names, also with options, gcp:tau=0.7; all: all that fit; by default uniform and
            neighbor.
        seeds: Number of seeds for each; by default 5, the least for a verdict.
        output: Folder of the runs and the report; by default one under runs/.
        workers: Number of runs at once; by default one per core, at most 8; on a GPU all that fit.
        cluster: Where the runs are made.
        preset: Start from a published recipe; `adaptask list` shows them.
        config: A TOML file that sets any option; flags win over it.
        trust_plugins: Import plug-in classes, package.module:Class, that the file names.
    """
    from adaptask.experiments.compare_command import compare as compare_samplers

    base, options = _line.split_shared(run)
    return compare_samplers(
        base,
        learners=_line.learners,
        samplers=samplers,
        options=options,
        seeds=seeds,
        output=output,
        workers=workers,
        cluster=cluster,
        command=("adaptask", "compare", *_line.arguments),
    )


@app.command
def reproduce(
    target: Positional[Annotated[str, arg(metavar="TARGET")]],
    *,
    dataset: _Name = None,
    scale: float = 1.0,
    rows: Annotated[tuple[str, ...], _optional("ROW...")] = (),
    shots: Annotated[tuple[int, ...], _optional("INT...")] = (),
    learners: Annotated[tuple[str, ...], _optional("NAME...")] = (),
    seeds: _Int = None,
    schedule: Literal["paper", "cosine"] = "paper",
    quick: Switch = False,
    dry_run: Switch = False,
    output: _Folder = None,
    workers: _Int = None,
    cluster: _Cluster = ClusterOptions(),  # noqa: B008, it is frozen
    device: str = "auto",
) -> int:
    """Reproduce a table or a figure of the paper, with the published figures beside ours.

    adaptask reproduce table-compat --quick

    Args:
        target: A table or figure, such as table-compat; `adaptask list` shows all.
        dataset: Use this dataset instead of the paper's; glyphs needs no download.
        scale: Factor on the numbers of steps and episodes.
        rows: Which rows of the table; all by default.
        shots: Which shots; all by default.
        learners: Other learners than the paper's, if the target has a choice.
        seeds: Number of runs of each; by default 3, or 1 for figures without statistics.
        schedule: Learning rate: as in the paper, or a cosine where the paper's is constant.
        quick: A trial that takes minutes on a CPU: glyphs, few steps, narrow networks.
        dry_run: Print what would run and how long it would take here.
        output: Folder of the runs and the report; by default one under runs/.
        workers: Number of runs at once; by default one per core, at most 8; on a GPU all that fit.
        cluster: Where the runs are made.
        device: cpu, cuda, or auto: a GPU if there is one.
    """
    check_choices(dataset, target)
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
        quick=quick,
    )
    if dry_run:
        from adaptask.experiments.paper.timing import dry_run as show

        show(planned)
        return 0
    return run_plan(planned, output, workers=workers, cluster=cluster)


@app.command
def sweep(
    run: _Run = _NO_CONFIG,
    *,
    vary: Annotated[tuple[str, ...], _optional("OPTION=VALUE,...")] = (),
    search: Literal["grid", "random"] = "grid",
    trials: _Int = None,
    seeds: int = 1,
    search_seed: int = 0,
    prune: Switch = True,
    output: _Folder = None,
    workers: _Int = None,
    cluster: _Cluster = ClusterOptions(),  # noqa: B008, it is frozen
    preset: _Name = None,
    config: _File = None,
    trust_plugins: Switch = False,
) -> int:
    """Search for good options, by the accuracy in validation.

    adaptask sweep --sampler gcp --alpha 0.5 1 2 --tau 0.3 0.5 0.7 --steps 2000

    --alpha, --tau and --lr take several values each, or a range LOW..HIGH for random search.

    Args:
        run: What all trials share.
        vary: Options with their values or range: optimizer.weight_decay=0,5e-4.
        search: Every combination, or random ones.
        trials: Number of trials in random search.
        seeds: Runs per trial; their mean counts.
        search_seed: Decides what random search draws.
        prune: By default, trials that are worse than most are stopped early.
        output: Folder of the trials; by default one under runs/.
        workers: Number of runs at once; by default one per core, at most 8; on a GPU all that fit.
        cluster: Where the runs are made.
        preset: Start from a published recipe; `adaptask list` shows them.
        config: A TOML file that sets any option; flags win over it.
        trust_plugins: Import plug-in classes, package.module:Class, that the file names.
    """
    from adaptask.experiments.sweep import sweep as search_options

    return search_options(
        run,
        vary=vary,
        search=search,
        trials=trials,
        seeds=seeds,
        search_seed=search_seed,
        prune=prune,
        output=output,
        workers=workers,
        cluster=cluster,
        command=("adaptask", "sweep", *_line.arguments),
    )


@app.command
def watch(
    folder: Positional[Annotated[Path, arg(metavar="FOLDER")]], *, once: Switch = False
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
    """Write the report of a comparison, a sweep or a single run, from its folder alone.

    Args:
        folder: The folder of a study, or of runs.
    """
    from adaptask.report.report import make_report, print_report

    print_report(make_report(folder))
    return 0


@app.command(name="list")
def list_parts() -> None:
    """Show every sampler, learner, backbone, preset, dataset and table of the paper."""
    from adaptask.experiments.list_command import print_list

    print_list()


@app.command
def version() -> None:
    """Print the version."""
    sys.stdout.write(f"adaptask {__version__}\n")


def _check_seeds(arguments: list[str]) -> None:
    """Check that seeds are counted, not listed."""
    after = arguments[arguments.index("--seeds") + 1 :] if "--seeds" in arguments else []
    if len(after) > 1 and after[0].isdecimal() and after[1].isdecimal():
        raise ArgumentError("--seeds is the number of seeds: 3 stands for seeds 0, 1 and 2.")


_CONFIGURED: dict[str, Any] = {
    "train": train,
    "pretrain": pretrain,
    "compare": compare,
    "sweep": sweep,
}
"""Commands whose options depend on the classes that they name."""


def _prepare(arguments: list[str]) -> list[str]:
    """Return what is to be parsed, after making the parser fit for it."""
    global _line
    command, words = arguments[0], arguments[1:]
    function = _CONFIGURED[command]
    if "--help" in words or "-h" in words:
        sys.stdout.write(short_help(command, function))
        raise SystemExit(0)
    shows_all = "--help-all" in words
    words = [word for word in words if word != "--help-all"]
    _line = read_command_line(command, words, only_help=shows_all)
    function.__defaults__ = (_line.defaults,)
    return [command, *_line.arguments, *(["--help"] if shows_all else [])]


def _refuse(message: str, prog: str) -> NoReturn:
    sys.stderr.write(f"adaptask: {message} See {prog} --help.\n")
    raise SystemExit(2)


def _refuse_value(event: Any, words: list[str]) -> None:
    """Say what a value must be, in place of tyro's report of what it tried."""
    if type(event).__name__ != "InstantiationFailure":
        return
    if (option := event.argument) is None:
        _refuse(event.message, event.prog)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(*option.lowered.name_or_flags, dest="values", nargs="*", default=[])
    most = option.lowered.nargs if isinstance(option.lowered.nargs, int) else None
    given = " ".join(parser.parse_known_args(words)[0].values[:most])
    expected = describe_type(option.field.type_stripped)
    _refuse(f"{option.display_name()} must be {expected}; got {given!r}.", event.prog)


def _parse_and_run(commands: SubcommandApp, prog: str, text: str, words: list[str]) -> Any:
    """Parse the words of one command with a parser of its own, so that messages name it."""
    known = getattr(commands, "_subcommands", None)  # private: without it, tyro parses everything
    if known is None or not words or words[0].startswith("-"):
        return commands.cli(prog=prog, description=text, args=words)
    try:
        check_choice("command", words[0], known)
    except ArgumentError as error:
        _refuse(str(error), prog)
    prog = f"{prog} {words[0]}"
    found, words = known[words[0]], words[1:]
    command = found.target
    if isinstance(command, SubcommandApp):
        return _parse_and_run(command, prog, found.help or "", words)
    with _on_parse_error(partial(_refuse_value, words=words)):
        return tyro.cli(command, prog=prog, description=describe_command(command), args=words)


def main(args: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    arguments = sys.argv[1:] if args is None else list(args)
    arguments = ["version"] if arguments == ["--version"] else arguments
    try:
        _check_seeds(arguments)
        if arguments and arguments[0] in _CONFIGURED:
            arguments = _prepare(arguments)
        status = _parse_and_run(app, "adaptask", _DESCRIPTION, arguments)
    except AdaptaskError as error:
        sys.stderr.write(f"adaptask: {error}\n")
        return 1
    except BrokenPipeError:  # as of `adaptask list | head`; nothing is left to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        sys.stderr.write("adaptask: interrupted\n")
        return 130
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
