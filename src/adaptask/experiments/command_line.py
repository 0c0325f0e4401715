"""What happens before a command line is parsed: which classes it names decides its options.

Names are checked without importing anything, so that a mistyped one is answered at once. Then the
classes are imported, and the parser is made for the options of these classes alone.
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import docstring_parser
from tyro.conf import FlagCreatePairsOff, arg

from adaptask.arguments import check_choice
from adaptask.data.datasets import check_name
from adaptask.errors import ArgumentError
from adaptask.experiments.compare_command import DEFAULT_SAMPLERS, expand_all, split_sampler
from adaptask.experiments.config import DEFAULT_NAMES, RunConfig, with_default_optimizer
from adaptask.experiments.config_file import (
    apply_settings,
    no_run_in,
    read_settings,
)
from adaptask.experiments.options import (
    REGISTRIES,
    SHORT_FLAGS,
    check_taken,
    options_of,
    shared_section,
)
from adaptask.experiments.paper import TARGET_NAMES
from adaptask.registry import is_address

Switch = Annotated[FlagCreatePairsOff[bool], arg(help_behavior_hint="")]
"""A flag of a command that is there or not, without a second one for the opposite."""

_SHORT_FLAGS = {f"--{option}": option for option in SHORT_FLAGS}
_SWEPT_FLAGS = {"--alpha": "sampler.alpha", "--tau": "sampler.tau", "--lr": "optimizer.lr"}
_ONCE = ("preset", "config", "resume", "init")
_NAMES = (*REGISTRIES, "dataset", *_ONCE, "seed", "optimizer.name")
"""Flags with one value that say where the others start from."""


@dataclass
class CommandLine:
    """A command line of a command that takes a configuration, and what is known before parsing."""

    command: str
    arguments: list[str]
    """Without the command."""
    config: RunConfig
    """Where the flags start from: the defaults, a preset, a file, or a run to resume."""
    learners: tuple[str, ...] = ()
    samplers: tuple[str, ...] = ()
    shared: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For `compare`: options of the file for all learners or samplers that take them."""

    @property
    def defaults(self) -> RunConfig:
        """A configuration with the options that the command line can set."""
        if self.command != "compare":
            return self.config
        samplers = [split_sampler(text)[0] for text in self.samplers]
        return replace(
            self.config,
            sampler=shared_section("sampler", samplers, hide_name=True),
            learner=shared_section("learner", self.learners, hide_name=True),
        )

    def split_shared(self, parsed: RunConfig) -> tuple[RunConfig, dict[str, dict[str, Any]]]:
        """Return what all runs of a comparison share, and the options for those that take them."""
        options = {kind: dict(self.shared.get(kind, {})) for kind in ("sampler", "learner")}
        given = {argument.partition("=")[0].replace("_", "-") for argument in self.arguments}
        for kind, found in options.items():
            for option, value in options_of(getattr(parsed, kind)).items():
                name = option.replace("_", "-")
                flags = {f"--{kind}.{name}", f"--{kind}.no-{name}"}
                flags |= {flag for flag, short in _SHORT_FLAGS.items() if short == option}
                if flags & given:
                    found[option] = value
        return replace(parsed, sampler=self.config.sampler, learner=self.config.learner), options


def read_command_line(
    command: str, arguments: Sequence[str], *, only_help: bool = False
) -> CommandLine:
    """Return the command line of `train`, for example, with what its flags start from.

    Args:
        command: `train`, `pretrain`, `compare` or `sweep`.
        arguments: The words after it.
        only_help: Whether options are only shown, so that no dataset is needed.

    Raises:
        ArgumentError: If a name, a file or an option cannot be used.
    """
    words = _with_vary(arguments) if command == "sweep" else list(arguments)
    given, trust = _read_names(command, words)
    if command in ("compare", "sweep") and "seed" in given:
        raise ArgumentError(f"{command} trains the seeds 0, 1, ...; set their number with --seeds.")
    if command == "pretrain" and "learner" in given:
        raise ArgumentError("pretrain trains a classifier; for another learner use adaptask train.")
    _check_number(command, given, words)
    names = {kind: given[kind][-1:] for kind in (*REGISTRIES, "dataset") if kind in given}
    samplers: tuple[str, ...] = ()
    if command == "compare":
        samplers = tuple(expand_all(given.get("samplers", ()))[0]) or DEFAULT_SAMPLERS
        names["sampler"] = [split_sampler(text)[0] for text in samplers]
        names |= {"learner": given["learners"]} if given.get("learners") else {}
    for kind, registry in REGISTRIES.items():
        for name in names.get(kind, ()):
            registry.check_name(name)
    check_choices(*names.get("dataset", (None,)))
    config, shared = _start(command, given, names, trust, only_help)
    learners = tuple(names.get("learner", (config.learner.name,)))
    line = CommandLine(command, words, config, learners, samplers, shared)
    _check_options(line)
    return line


def _check_number(command: str, given: Mapping[str, list[str]], words: Sequence[str]) -> None:
    """Check that `compare` gets lists of learners and samplers, and other commands one of each."""
    flags = {word.partition("=")[0] for word in words}
    for kind in ("learner", "sampler"):
        one, several = f"--{kind}", f"--{kind}s"
        if command == "compare" and one in flags:
            raise ArgumentError(f"compare takes {several} NAME NAME ..., one or more; got {one}.")
        if command in ("train", "sweep") and several in flags:
            raise ArgumentError(
                f"{command} takes {one} NAME; got {several}. `adaptask compare` takes several."
            )
        for name in given.get(f"{kind}s", ()):
            if "," in name and ":" not in name:
                names = " ".join(name.split(","))
                raise ArgumentError(f"{several} are separated by spaces: {several} {names}.")


def _start(
    command: str,
    given: Mapping[str, list[str]],
    names: dict[str, list[str]],
    trust: bool,
    only_help: bool,
) -> tuple[RunConfig, dict[str, dict[str, Any]]]:
    """Return the configuration from which flags start, and options for all that take them."""
    for flag in _ONCE:
        if len(given.get(flag, ())) > 1:
            raise ArgumentError(f"--{flag} can be given once only.")
    preset, file, resumed, init = (given.get(flag, [""])[0] for flag in _ONCE)
    for flag, value in (("--preset", preset), ("--config", file)):
        if resumed and value:
            raise ArgumentError(f"--resume has the run's own configuration; leave out {flag}.")
    path = Path(resumed) / "config.toml" if resumed else Path(file) if file else None
    if resumed and path is not None and not path.exists():
        raise no_run_in(Path(resumed))
    settings = read_settings(path) if path is not None else {}
    shared: dict[str, dict[str, Any]] = {}
    if command == "compare":
        for kind in ("sampler", "learner"):
            section = settings.get(kind)
            if isinstance(section, Mapping) and "name" not in section:
                shared[kind] = settings.pop(kind)
    base = RunConfig()
    if preset:
        from adaptask.experiments.recipes import preset_config

        base = preset_config(preset)
    elif command == "pretrain" and not resumed:
        from adaptask.experiments.recipes import pretraining

        base = pretraining(base.data.dataset)
    if init and not preset and "backbone" not in settings and (Path(init) / "config.toml").exists():
        file_of_run = Path(init) / "config.toml"
        own = {"backbone": read_settings(file_of_run).get("backbone", {})}
        chosen = {kind: given for kind, given in names.items() if kind == "backbone"}
        try:
            of_run = apply_settings(own, names=chosen, trust_plugins=trust, known=base)
        except ArgumentError as error:
            raise ArgumentError(f"{file_of_run}: {error}") from error
        base = replace(base, backbone=of_run.backbone)
    try:
        config = apply_settings(settings, base, names=names, trust_plugins=trust)
        if command == "pretrain" and not resumed and not only_help:
            base = _for_dataset(base, names.get("dataset", [config.data.dataset])[0])
            config = apply_settings(settings, base, names=names, trust_plugins=trust)
    except ArgumentError as error:
        raise ArgumentError(f"{path}: {error}" if path else str(error)) from error
    names_optimizer = "optimizer" in settings or "optimizer.name" in given
    if command != "compare" and not preset and not names_optimizer:
        config = with_default_optimizer(config)
    return config, shared


def _for_dataset(base: RunConfig, dataset: str) -> RunConfig:
    """Return a pre-training with batches and steps that fit a dataset."""
    from adaptask.data import load
    from adaptask.experiments.recipes import pretraining

    images = load(dataset, "train")
    fitting = pretraining(dataset, n_classes=images.n_classes, n_images=len(images.images))
    return replace(fitting, backbone=base.backbone)


def _check_options(line: CommandLine) -> None:
    """Check that options of algorithms are taken by those that were named."""
    for kind in REGISTRIES:
        section = getattr(line.defaults, kind)
        names = {"sampler": line.samplers, "learner": line.learners}.get(kind, ())
        chosen = names if line.command == "compare" and names else (section.name,)
        taken = options_of(section)
        for argument in line.arguments:
            flag = argument.partition("=")[0]
            option = flag.removeprefix(f"--{kind}.").replace("-", "_")
            if option in taken or option.removeprefix("no_") in taken:
                continue
            is_short = kind == "sampler" and flag in _SHORT_FLAGS
            if flag.startswith(f"--{kind}.") or is_short:
                check_taken(kind, chosen, taken, [_SHORT_FLAGS.get(flag, option)])


def _with_vary(words: Sequence[str]) -> list[str]:
    """Return the words of a sweep with `--alpha 1 2` as `--vary sampler.alpha=1,2`.

    A list goes on to the next word with two dashes: argparse would take -1e-3 for a flag.
    """
    lists: dict[str, list[str]] = {}
    rest: list[str] = []
    target = rest
    for word in words:
        flag, _, value = word.partition("=")
        if flag in (*_SWEPT_FLAGS, "--vary"):
            target = lists.setdefault(flag, [])
            target += [value] if value else []
        else:
            target = rest if word.startswith("--") else target
            target.append(word)
    for flag, values in lists.items():
        if not values:
            example = "optimizer.weight_decay=0,5e-4" if flag == "--vary" else "0.1 0.2"
            raise ArgumentError(
                f"{flag} needs at least one value, such as {flag} {example}; got none."
            )
    swept = ((key, lists.get(flag)) for flag, key in _SWEPT_FLAGS.items())
    varied = [f"{key}={','.join(values)}" for key, values in swept if values]
    varied += lists.get("--vary", [])
    return [*rest, "--vary", *varied] if varied else rest


def _read_names(command: str, words: Sequence[str]) -> tuple[dict[str, list[str]], bool]:
    """Return what the flags are given that decide the others, and whether plug-ins are trusted."""
    parser = _parser(command)
    for flag in _NAMES:
        parser.add_argument(f"--{flag}", action="append")
    for flag in ("samplers", "learners"):
        parser.add_argument(f"--{flag}", nargs="*")
    parser.add_argument("--trust-plugins", "--trust_plugins", action="store_true")
    found = vars(parser.parse_known_args(words)[0])
    trust = found.pop("trust_plugins")
    return {flag: values for flag, values in found.items() if values is not None}, trust


def _parser(command: str) -> argparse.ArgumentParser:
    """Return a parser of some flags of a command; its error is that of a flag without value."""
    return argparse.ArgumentParser(
        f"adaptask {command}", usage=argparse.SUPPRESS, add_help=False, allow_abbrev=False
    )


def check_choices(dataset: str | None, target: str | None = None) -> None:
    """Check the names of a dataset and of a table or figure, those that are given.

    Raises:
        ArgumentError: If there is none of that name; the message has the nearest one.
    """
    if target is not None:
        check_choice("target", target, TARGET_NAMES)
    if dataset and not is_address(dataset):
        check_name(dataset)


# Short help ---------------------------------------------------------------------------------------

_COMMON = {
    "--dataset NAME": "data.dataset",
    "--learner NAME": "learner",
    "--sampler NAME": "sampler",
    "--backbone NAME": "backbone",
    "--n-way INT": "task.n_way",
    "--n-shot INT": "task.n_shot",
    "--n-query INT": "task.n_query",
    "--n-tasks INT": "task.n_tasks",
    "--init RUN": "start.init",
    "--steps INT": "steps",
    "--lr FLOAT": "optimizer.lr",
    "--optimizer.name {adam,sgd}": "optimizer.name",
    "--evaluation.n-episodes INT": "evaluation.n_episodes",
    "--every.validate INT": "every.validate",
    "--device NAME": "machine.device",
    "--seed INT": "seed",
}
"""The options of a run that people use most, by the key that has their help text."""
_OWN = {
    "train": (
        *("--output FOLDER", "--resume RUN", "--preset NAME", "--config FILE", "--quiet"),
        *("--log NAME", "--trust-plugins"),
    ),
    "pretrain": (
        *("--output FOLDER", "--resume RUN", "--config FILE", "--quiet", "--log NAME"),
        "--steps INT",
    ),
    "compare": (
        *("--learners NAME...", "--samplers NAME...", "--seeds INT", "--workers INT"),
        *("--output FOLDER", "--preset NAME", "--config FILE", "--cluster ray"),
    ),
    "sweep": (
        *("--alpha VALUE...", "--tau VALUE...", "--lr VALUE...", "--vary OPTION=VALUE,..."),
        *("--search {grid,random}", "--trials INT", "--seeds INT", "--workers INT"),
        *("--output FOLDER", "--config FILE"),
    ),
}
"""The other options of each command that people use most."""
_OTHER_HELP = {
    "--steps": "Training steps; by default 100 passes over the training images.",
    "--cluster": "Make the runs with Ray, on this machine or a cluster.",
    "--alpha": "Values of alpha (--sampler gcp), or a range LOW..HIGH for random search.",
    "--tau": "Values of tau (--sampler gcp), or a range.",
    "--lr": "Learning rates, or a range.",
}
_REPLACED = {
    "train": (),
    "pretrain": (
        *("learner", "sampler", "n_way", "n_shot", "n_query", "n_tasks", "steps", "name", "lr"),
        "init",
    ),
    "compare": ("learner", "sampler", "seed"),
    "sweep": ("seed", "lr"),
}
"""Options of a run that a command has other flags for."""


class WrappedText(str):
    """A text that has the line breaks in which it is shown."""


def describe_command(function: Callable[..., Any]) -> WrappedText:
    """Return what a command does, from its docstring, in lines that fit the terminal."""
    documented = docstring_parser.parse(function.__doc__ or "")
    text = f"{documented.short_description or ''}\n\n{documented.long_description or ''}".strip()
    return WrappedText("\n\n".join(map(_wrap, text.split("\n\n"))))


def _help_width() -> int:
    return min(100, shutil.get_terminal_size((100, 24)).columns)


def _wrap(paragraph: str) -> str:
    """Return a paragraph in lines that fit; a command still works when it is copied."""
    is_command = paragraph.startswith("adaptask ")
    if is_command:  # lines begin with flags
        paragraph = paragraph.replace(" ", "\0").replace("\0--", " --")
    lines = textwrap.wrap(
        paragraph,
        _help_width() - 2 * is_command,
        subsequent_indent="  " if is_command else "",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return (" \\\n" if is_command else "\n").join(lines).replace("\0", " ")


def short_help(command: str, function: Callable[..., Any]) -> str:
    """Return the help of a command, such as `train`, with the options that people use most."""
    documented = docstring_parser.parse(function.__doc__ or "")
    own = {param.arg_name: param.description or "" for param in documented.params}
    example = (
        "--backbone.filters 32 for conv4" if command == "pretrain" else "--sampler.tau 0.5 for gcp"
    )
    parser = argparse.ArgumentParser(
        f"adaptask {command}",
        usage="%(prog)s [OPTIONS]",
        description=describe_command(function),
        epilog=_wrap(
            f"Options of the chosen classes have their own flags, such as {example}. To see these "
            f"and all others: adaptask {command} --help-all"
        ),
        formatter_class=partial(
            argparse.RawDescriptionHelpFormatter, max_help_position=29, width=_help_width()
        ),
        add_help=False,
    )
    options = {}
    for flag in _OWN[command]:
        name = flag.split()[0]
        key = name.removeprefix("--").replace("-", "_")
        options[flag] = _OTHER_HELP.get(name) or own[key]
    for flag, key in _COMMON.items():
        if key.rpartition(".")[2] not in _REPLACED[command]:
            options[flag] = _help_of(key)
    group = parser.add_argument_group("the most used options")
    for flag, text in options.items():
        name, _, value = flag.partition(" ")
        group.add_argument(name, metavar=value, help=text.replace("%", "%%"))
    return parser.format_help()


def _help_of(key: str) -> str:
    """Return the help text of an option of a run, with its default."""
    if key in REGISTRIES:
        names = ", ".join(REGISTRIES[key])
        chosen = DEFAULT_NAMES[key]
        return f"{names}, or your own package.module:Class. (default: {chosen})"
    section, _, name = key.rpartition(".")
    kind = get_type_hints(RunConfig)[section] if section else RunConfig
    documented = docstring_parser.parse_from_object(kind).params
    text = next(param.description for param in documented if param.arg_name == name)
    default = next(item.default for item in fields(kind) if item.name == name)
    return str(text) if default is None else f"{text} (default: {default})"
