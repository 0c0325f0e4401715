"""What `adaptask compare` does: every learner with every sampler and several seeds."""

from __future__ import annotations

import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from adaptask.arguments import check_integer
from adaptask.errors import ArgumentError
from adaptask.experiments.backends.ray import ClusterOptions
from adaptask.experiments.config import RunConfig, with_algorithm, with_default_optimizer
from adaptask.experiments.config_file import with_option, with_value
from adaptask.experiments.options import check_taken, options_of, section_class, short_name
from adaptask.registry import SAMPLERS, is_address
from adaptask.report.study import Arm, Study

BASELINE = "uniform"
DEFAULT_SAMPLERS = (BASELINE, "neighbor")
"""What is compared if no samplers are named."""
ALL = "all"
"""Stands for every sampler that fits the learner and the data."""

Options = Mapping[str, Mapping[str, Any]]
"""Values of options by `sampler` or `learner` and their name."""
_NO_OPTIONS: Options = MappingProxyType({})


def compare(
    base: RunConfig,
    *,
    learners: Sequence[str],
    samplers: Sequence[str],
    options: Options = _NO_OPTIONS,
    seeds: int = 3,
    output: Path | None = None,
    workers: int | None = None,
    cluster: ClusterOptions = ClusterOptions(),  # noqa: B008, it is frozen
    command: Sequence[str] = (),
) -> int:
    """Train every combination, then print the table and write the report.

    The arguments are those of `plan_comparison` and of `run_and_report`.

    Returns:
        The exit status: 1 if a run failed.

    Raises:
        AdaptaskError: If something cannot be used or done; the message says what to do.
    """
    from adaptask.experiments.study import run_and_report
    from adaptask.training.distributed import refuse_torchrun

    refuse_torchrun("compare")
    study, folder, config_of = plan_comparison(
        base,
        learners=learners,
        samplers=samplers,
        options=options,
        seeds=seeds,
        output=output,
        command=command,
    )
    return run_and_report(study, folder, workers=workers, cluster=cluster, config_of=config_of)


def plan_comparison(
    base: RunConfig,
    *,
    learners: Sequence[str],
    samplers: Sequence[str],
    options: Options = _NO_OPTIONS,
    seeds: int,
    output: Path | None,
    command: Sequence[str] = (),
) -> tuple[Study, Path, Callable[[Arm], RunConfig | None]]:
    """Return the study of a comparison, its folder, and how an arm would be configured now.

    Args:
        base: What all runs share, see `comparison`.
        learners: Names of learners.
        samplers: Names of samplers, each with options of its own if needed, such as
            `gcp:strategy=easy,tau=0.7`; or `all`, for all that fit the learner and the data.
        options: Options for all learners or samplers that take them, see `comparison`.
        seeds: Number of seeds; they are 0, 1, ...
        output: The folder of the study; by default one named after it.
        command: The words that repeat it.

    Raises:
        ArgumentError: If a name or an option cannot be used.
        DataError: If all samplers are asked for, and the dataset has not been prepared.
    """
    check_integer("seeds", seeds, low=1)
    every, left_out = expand_all(samplers)
    arms = comparison(base, learners=learners, samplers=every, options=options)
    if ALL in samplers:
        asked_for = {label for text, label in _labels(every).items() if text in samplers}
        unfit = _why_unfit([arm for arm in arms if arm.labels["sampler"] not in asked_for])
        arms = [arm for arm in arms if arm.name not in unfit]
        left_out |= unfit
    left_out_notes = tuple(f"{name} is left out: {why}" for name, why in left_out.items())
    for note in left_out_notes:
        sys.stderr.write(f"{note}\n")
    names = list(map(short_name, learners))
    dataset, n_way, n_shot = base.data.dataset, base.task.n_way, base.task.n_shot
    name = f"compare-{short_name(dataset)}-{'-'.join(names)}-{n_way}way-{n_shot}shot"
    folder = output or Path("runs") / name
    tested = (base.tested_way, base.tested_shot)
    test = "" if tested == (n_way, n_shot) else ", tested {}-way {}-shot".format(*tested)
    study = Study(
        title=f"Task samplers for {', '.join(names)} on {dataset}, {n_way}-way {n_shot}-shot{test}",
        arms=tuple(arm.with_runs(folder, range(seeds)) for arm in arms),
        command=shlex.join(command),
        notes=(*_optimizer_notes(base, arms), *left_out_notes),
    )

    named = {*learners, *(split_sampler(text)[0] for text in every)}

    def config_of(arm: Arm) -> RunConfig | None:
        learner, sampler = arm.labels["learner"], arm.labels["sampler"]
        found = (learner, split_sampler(sampler)[0])
        if any(is_address(name) and name not in named for name in found):
            return None  # only the folder names this class: it is not imported
        try:
            return _configured(base, learner, sampler, options)
        except ArgumentError:
            return None  # a plug-in that was not named now

    return study, folder, config_of


def comparison(
    base: RunConfig,
    *,
    learners: Sequence[str],
    samplers: Sequence[str],
    options: Options = _NO_OPTIONS,
) -> list[Arm]:
    """Return an arm for every learner with every sampler, without its runs.

    Args:
        base: What all runs share. The options of its sampler and its learner are for those of the
            same name; others have the defaults of their classes.
        learners: Names of learners.
        samplers: Names of samplers, with options of their own if needed.
        options: Options for all learners or samplers that take them: `{"sampler": {"tau": 0.7}}`.

    Raises:
        ArgumentError: If a name is not known, or an option is taken by none.
    """
    sampler_labels, learner_labels = _labels(samplers), _labels(learners)
    arms = [
        Arm(
            name=f"{learner_label} {label}",
            labels={"learner": learner_label, "sampler": label},
            config=_configured(base, learner, sampler, options),
            baseline=None
            if BASELINE not in samplers or sampler == BASELINE
            else f"{learner_label} {BASELINE}",
        )
        for learner, learner_label in learner_labels.items()
        for sampler, label in sampler_labels.items()
    ]
    for kind, given in options.items():
        sections = [getattr(arm.config, kind) for arm in arms]
        taken = {option: None for section in sections for option in options_of(section)}
        check_taken(kind, dict.fromkeys(section.name for section in sections), taken, given)
    _check_distinct(arms)
    return arms


def expand_all(samplers: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return samplers with `all` replaced by every one and its variants, and why some are not.

    >>> expand_all(["gcp", "dpp"])
    (['gcp', 'dpp'], {})
    """
    if ALL not in samplers:
        return list(samplers), {}
    every: list[str] = []
    left_out = {}
    for name in SAMPLERS:
        try:
            section_class("sampler", name)
        except ArgumentError as error:
            left_out[name] = str(error)
            continue
        variants = getattr(SAMPLERS[name], "variants", ())
        every += [name, *(f"{name}:{options}" for options in variants)]
    return list(dict.fromkeys([*every, *(text for text in samplers if text != ALL)])), left_out


def _why_unfit(arms: Sequence[Arm]) -> dict[str, str]:
    """Return why samplers do not fit the learner or the data, by the names of their arms.

    Nothing is said about those whose baseline cannot be built either: it is not the sampler.
    """
    import torch

    from adaptask.experiments.factory import build_parts, open_split

    cpu, reasons = torch.device("cpu"), {}
    for arm in arms:
        data = replace(arm.config.data, storage="auto")  # belongs to the device that trains
        config = replace(arm.config, data=data)
        source = open_split(config, "train", cpu)
        try:
            build_parts(config, source, cpu)
        except ArgumentError as error:
            reasons[arm.name] = str(error)
    fits = {arm.name for arm in arms} - reasons.keys()
    baselines = {arm.name: arm.baseline for arm in arms}
    return {name: why for name, why in reasons.items() if baselines[name] in fits}


def split_sampler(text: str) -> tuple[str, str | None]:
    """Return the name of a sampler and its options, if it has any.

    >>> split_sampler("gcp:tau=0.7"), split_sampler("my_package:MySampler:tau=0.7")
    (('gcp', 'tau=0.7'), ('my_package:MySampler', 'tau=0.7'))
    """
    first, colon, rest = text.partition(":")
    second, another, options = rest.partition(":")
    if first not in SAMPLERS and is_address(f"{first}:{second}"):
        return f"{first}:{second}", options if another else None
    return first, rest if colon else None


def _configured(base: RunConfig, learner: str, sampler: str, options: Options) -> RunConfig:
    """Return the configuration of an arm; its sampler is such as `gcp:strategy=easy,tau=0.7`."""
    sampler, own_options = split_sampler(sampler)
    config = base
    for kind, name in (("learner", learner), ("sampler", sampler)):
        if name != getattr(base, kind).name:
            config = with_algorithm(config, kind, name)
        taken = options_of(getattr(config, kind))
        for option, value in options.get(kind, {}).items():
            if option in taken:
                config = with_value(config, f"{kind}.{option}", value)
    # A comma in brackets is part of a value that is a list.
    for item in [] if own_options is None else re.split(r",(?![^\[]*\])", own_options):
        option, equals, value = item.partition("=")
        taken = options_of(config.sampler)
        if not equals or option not in taken:
            raise ArgumentError(
                f"the sampler {sampler!r} takes {', '.join(taken) or 'no options'}, written as "
                f"{sampler}:OPTION=VALUE; got {item!r}."
            )
        config = with_option(config, f"sampler.{option}", value)
    return with_default_optimizer(config)


def _labels(texts: Sequence[str]) -> dict[str, str]:
    """Return what samplers or learners are called in tables: plug-ins by their class alone."""
    short = {}
    for text in texts:
        name, options = split_sampler(text)
        short[text] = short_name(name) + ("" if options is None else f":{options}")
    count = Counter(short.values())
    return {text: label if count[label] == 1 else text for text, label in short.items()}


def _check_distinct(arms: Sequence[Arm]) -> None:
    """Check that no sampler is compared with itself, which would only weaken the tests."""
    known: dict[RunConfig, str] = {}
    for arm in arms:
        other = known.setdefault(arm.config, arm.name)
        if other != arm.name:
            raise ArgumentError(f"{arm.name!r} is the same as {other!r}; name one of them.")


def _optimizer_notes(base: RunConfig, arms: Sequence[Arm]) -> tuple[str, ...]:
    """Return which learners have an optimizer of their own, since none was set."""
    own = {a.labels["learner"]: a.config.optimizer for a in arms}
    return tuple(
        f"{learner} is trained with {used.name}, learning rate {used.lr:g} and momentum "
        f"{used.momentum:g}, as published, unless an optimizer is set."
        for learner, used in own.items()
        if used != base.optimizer
    )
