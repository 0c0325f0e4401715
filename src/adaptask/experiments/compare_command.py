"""What `adaptask compare` does: every learner with every sampler and several seeds."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
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
from adaptask.experiments.config_file import with_option
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
    from adaptask.experiments.study import run_and_conclude
    from adaptask.training.distributed import refuse_launch

    refuse_launch("compare")
    check_integer("seeds", seeds, low=1)
    arms = comparison(base, learners=learners, samplers=samplers)
    folder = output or default_folder(base, learners)
    study = Study(
        title=comparison_title(base, learners),
        arms=tuple(arm.with_runs(folder, range(seeds)) for arm in arms),
        command=shlex.join(command),
        notes=_notes(learners),
    )

    def config_of(arm: Arm) -> RunConfig:
        sampler = _sampler(arm.labels["sampler"], base.sampler)
        return _configured(base, arm.labels["learner"], sampler)

    return run_and_conclude(study, folder, workers=workers, cluster=cluster, config_of=config_of)


def default_folder(base: RunConfig, learners: Sequence[str]) -> Path:
    """Return a folder named after what is compared."""
    task = f"{base.task.n_way}way-{base.task.n_shot}shot"
    return Path("runs") / f"compare-{base.data.dataset}-{'-'.join(learners)}-{task}"


def comparison_title(base: RunConfig, learners: Sequence[str]) -> str:
    """Return what is compared, in words."""
    return (
        f"Task samplers for {', '.join(learners)} on {base.data.dataset}, "
        f"{base.task.n_way}-way {base.task.n_shot}-shot"
    )


def comparison(base: RunConfig, *, learners: Sequence[str], samplers: Sequence[str]) -> list[Arm]:
    """Return an arm for every learner with every sampler, without its runs.

    Options that one of them takes and another does not are set where they are taken; an option
    that none takes is an error.

    Raises:
        ArgumentError: If a name or an option is not known, or plays no part in any arm.
    """
    for learner in learners:
        check_choice("learner", learner, LEARNERS)
    configs = {text: _sampler(text, base.sampler) for text in samplers}
    _check_distinct(configs)
    _check_sampler_options(base.sampler, list(configs.values()))
    _check_learner_options(base, learners)
    return [
        Arm(
            name=f"{learner} {text}",
            labels={"learner": learner, "sampler": text},
            config=_configured(base, learner, configs[text]),
            baseline=f"{learner} {BASELINE}" if BASELINE in samplers and text != BASELINE else None,
        )
        for learner in learners
        for text in samplers
    ]


def _sampler(text: str, base: SamplerConfig) -> SamplerConfig:
    """Return the sampler that a text such as `gcp:strategy=easy,tau=0.7` names."""
    name, colon, options = text.partition(":")
    taken = SAMPLER_OPTIONS[check_choice("sampler", name, SAMPLER_OPTIONS)]
    options_of_base = {option: getattr(base, option) for option in taken}
    config = RunConfig(sampler=SamplerConfig(name=name, **options_of_base))  # type: ignore[arg-type]
    given = set()
    for item in options.split(",") if colon else ():
        option, equals, value = item.partition("=")
        if not equals or option not in taken:
            raise ArgumentError(
                f"the sampler {name!r} takes {', '.join(taken) or 'no options'}, written as "
                f"{name}:OPTION=VALUE; got {item!r}."
            )
        if option in given:
            raise ArgumentError(f"{option} is given twice in {text!r}; give it once.")
        given.add(option)
        config = with_option(config, f"sampler.{option}", value)
    return config.sampler


def _check_distinct(samplers: Mapping[str, SamplerConfig]) -> None:
    """Check that no sampler is compared with itself, which would only weaken the tests."""
    known: dict[SamplerConfig, str] = {}
    for text, sampler in samplers.items():
        if sampler in known:
            raise ArgumentError(
                f"the sampler {text!r} is the same as {known[sampler]!r}; name one of them."
            )
        known[sampler] = text


def _check_sampler_options(base: SamplerConfig, samplers: Collection[SamplerConfig]) -> None:
    for field in fields(base):
        if field.name == "name" or getattr(base, field.name) == field.default:
            continue
        if not any(field.name in SAMPLER_OPTIONS[sampler.name] for sampler in samplers):
            raise ArgumentError(f"none of the samplers takes {field.name}; leave it out.")


def _check_learner_options(base: RunConfig, learners: Sequence[str]) -> None:
    default = RunConfig()
    for name in LEARNERS:
        if name not in learners and base.options_of(name) != default.options_of(name):
            raise ArgumentError(
                f"options of {section_name(name)} were set, but {name} is not compared; leave them "
                "out, or name it in --learners."
            )


def _configured(base: RunConfig, learner: str, sampler: SamplerConfig) -> RunConfig:
    default = RunConfig()
    others = {section_name(name): default.options_of(name) for name in LEARNERS if name != learner}
    model = replace(base.model, learner=learner)  # type: ignore[arg-type]
    config = replace(base, model=model, sampler=sampler, **others)
    if learner == "reptile" and base.optimiser == OptimiserConfig():
        # As published: it interpolates weights only so.
        return replace(config, optimiser=OptimiserConfig(name="sgd", lr=1.0, momentum=0.0))
    return config


def _notes(learners: Sequence[str]) -> tuple[str, ...]:
    if "reptile" in learners:
        return ("Reptile is trained with plain SGD at rate 1 unless an optimiser is named.",)
    return ()
