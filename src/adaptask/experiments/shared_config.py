"""The configuration that many runs share: as a run's, without the flags of what differs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Self, TypeVar

from tyro.conf import Suppress

from adaptask.experiments.config import ModelConfig, OptimiserConfig, RunConfig, SamplerConfig

_Config = TypeVar("_Config", bound=RunConfig)


@dataclass(frozen=True)
class _SharedModel(ModelConfig):
    """What is trained; each choice has a section of options of its own."""

    learner: Suppress[Any] = "protonet"


@dataclass(frozen=True)
class _SharedSampler(SamplerConfig):
    """Options of the samplers, for those that take them."""

    name: Suppress[Any] = "gcp"


@dataclass(frozen=True)
class _SweptSampler(SamplerConfig):
    """Which classes next; options that the chosen sampler does not take must be left alone."""

    alpha: Suppress[float] = 1.0
    tau: Suppress[float] = 0.5


@dataclass(frozen=True)
class _SweptOptimiser(OptimiserConfig):
    """How the weights follow the gradient."""

    lr: Suppress[float] = 1e-3


@dataclass(frozen=True)
class _PartialConfig(RunConfig):
    """A configuration of which some flags are not shown."""

    seed: Suppress[int] = 0

    def config(self) -> RunConfig:
        """Return it as the configuration of a run."""
        return _cast(self, RunConfig())

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Return a configuration as one of this kind."""
        return _cast(config, cls())


@dataclass(frozen=True)
class SharedConfig(_PartialConfig):
    """Everything that decides the runs of a comparison, but for learner, sampler and seed."""

    model: ModelConfig = field(default_factory=_SharedModel)
    sampler: SamplerConfig = field(default_factory=_SharedSampler)


@dataclass(frozen=True)
class SweptConfig(_PartialConfig):
    """Everything that decides the runs of a sweep, but for the seed and what has other flags."""

    sampler: SamplerConfig = field(default_factory=_SweptSampler)
    optimiser: OptimiserConfig = field(default_factory=_SweptOptimiser)


def _cast(source: RunConfig, like: _Config) -> _Config:
    """Return the values of one configuration in the classes of another."""
    values = {}
    for item in fields(RunConfig):
        value, kind = getattr(source, item.name), type(getattr(like, item.name))
        values[item.name] = kind(**vars(value)) if is_dataclass(value) else value
    return type(like)(**values)
