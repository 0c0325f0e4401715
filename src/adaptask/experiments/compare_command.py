"""What `adaptask compare` does: every learner with every sampler and several seeds."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from adaptask.arguments import check_choice, check_integer
from adaptask.errors import ArgumentError
from adaptask.experiments.backends.ray import ClusterOptions
from adaptask.experiments.config import (
    LEARNERS,
    SAMPLER_OPTIONS,
    OptimiserConfig,
    RunConfig,
    SamplerConfig,
    section_name,
)
from adaptask.experiments.config_file import option_types, option_value, with_option, with_value
from adaptask.report.study import Arm, Study

BASELINE = "uniform"


def compare(
    base: RunConfig,
    *,
    learners: Sequence[str],
    samplers: Sequence[str],
    seeds: int = 3,
    output: Path | None = None,
    workers: int | None = None,
    cluster: ClusterOptions = ClusterOptions(),  # noqa: B008, it is frozen
    command: Sequence[str] = (),
) -> int:
    """Train every combination, then print the table and write the report.

    Args:
        base: What all runs share.
        learners: Names of learners.
        samplers: Names of samplers, each with options of its own if need be, such as
            `gcp:strategy=easy,tau=0.7`.
        seeds: How many seeds; they are 0, 1, ...
        output: The study's folder; one named after it where it is not given.
        workers: How many runs at once; None chooses.
        cluster: Where the runs are made, if not by this machine alone.
        command: The words that repeat it.

    Returns:
        The exit status: 1 if a run failed.

    Raises:
        AdaptaskError: If something cannot be used or done; the message says what to do.
    """
    from adaptask.experiments.study import run_and_report
    from adaptask.training.distributed import refuse_torchrun

    refuse_torchrun("compare")
    check_integer("seeds", seeds, low=1)
    arms = comparison(base, learners=learners, samplers=samplers)
    dataset, n_way, n_shot = base.data.dataset, base.task.n_way, base.task.n_shot
    name = f"compare-{dataset}-{'-'.join(learners)}-{n_way}way-{n_shot}shot"
    folder = output or Path("runs") / name
    notes: tuple[str, ...] = ()
    if "reptile" in learners:
        notes = ("Reptile is trained with plain SGD at rate 1 unless an optimizer is named.",)
    study = Study(
        title=f"Task samplers for {', '.join(learners)} on {dataset}, {n_way}-way {n_shot}-shot",
        arms=tuple(arm.with_runs(folder, range(seeds)) for arm in arms),
        command=shlex.join(command),
        notes=notes,
    )

    def config_of(arm: Arm) -> RunConfig:
        return _configured(base, arm.labels["learner"], arm.labels["sampler"])

    return run_and_report(study, folder, workers=workers, cluster=cluster, config_of=config_of)


def comparison(base: RunConfig, *, learners: Sequence[str], samplers: Sequence[str]) -> list[Arm]:
    """Return an arm for every learner with every sampler, without its runs.

    Options that one of them takes and another does not are set where they are taken; an option
    that none takes is an error.

    Raises:
        ArgumentError: If a name or an option is not known, or plays no part in any arm.
    """
    arms = [
        Arm(
            name=f"{learner} {text}",
            labels={"learner": learner, "sampler": text},
            config=_configured(base, learner, text),
            baseline=f"{learner} {BASELINE}" if BASELINE in samplers and text != BASELINE else None,
        )
        for learner in learners
        for text in samplers
    ]
    _check_distinct(arms)
    _check_options(base, arms)
    return arms


def _configured(base: RunConfig, learner: str, sampler: str) -> RunConfig:
    """Return the configuration of an arm; its sampler is such as `gcp:strategy=easy,tau=0.7`."""
    check_choice("learner", learner, LEARNERS)
    name, colon, options = sampler.partition(":")
    taken = SAMPLER_OPTIONS[check_choice("sampler", name, SAMPLER_OPTIONS)]
    default = RunConfig()
    model = replace(base.model, learner=learner)  # type: ignore[arg-type]
    others = {section_name(n): default.options_of(n) for n in LEARNERS if n != learner}
    config = replace(base, model=model, sampler=SamplerConfig(name=name), **others)  # type: ignore[arg-type]
    for option in taken:
        config = with_value(config, f"sampler.{option}", getattr(base.sampler, option))
    for item in options.split(",") if colon else ():
        option, equals, value = item.partition("=")
        if not equals or option not in taken:
            raise ArgumentError(
                f"the sampler {name!r} takes {', '.join(taken) or 'no options'}, written as "
                f"{name}:OPTION=VALUE; got {item!r}."
            )
        config = with_option(config, f"sampler.{option}", value)
    if learner == "reptile" and base.optimiser == OptimiserConfig():
        # As published: it interpolates weights only so.
        return replace(config, optimiser=OptimiserConfig(name="sgd", lr=1.0, momentum=0.0))
    return config


def _check_distinct(arms: Sequence[Arm]) -> None:
    """Check that no sampler is compared with itself, which would only weaken the tests."""
    known: dict[RunConfig, str] = {}
    for arm in arms:
        other = known.setdefault(arm.config, arm.name)
        if other != arm.name:
            raise ArgumentError(f"{arm.name!r} is the same as {other!r}; name one of them.")


def _check_options(base: RunConfig, arms: Sequence[Arm]) -> None:
    """Check that every option that was set is that of at least one arm."""
    default = RunConfig()
    for key in option_types():
        value = option_value(base, key)
        if key in ("model.learner", "sampler.name") or value == option_value(default, key):
            continue
        if all(option_value(arm.config, key) != value for arm in arms):
            raise ArgumentError(
                f"{key} was set, but plays no part in any of the runs; leave it out."
            )
