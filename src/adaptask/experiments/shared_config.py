"""The configuration that many runs share: as a run's, without the flags of what differs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from tyro.conf import Suppress

from adaptask.experiments.config import ModelConfig, RunConfig, SamplerConfig


@dataclass(frozen=True)
class _SharedModel(ModelConfig):
    """What is trained; each choice has a section of options of its own."""

    learner: Suppress[Any] = "protonet"


@dataclass(frozen=True)
class _SharedSampler(SamplerConfig):
    """Options of the samplers, for those that take them."""

    name: Suppress[Any] = "gcp"


@dataclass(frozen=True)
class SharedConfig(RunConfig):
    """Everything that decides the runs, but for learner, sampler and seed."""

    seed: Suppress[int] = 0
    model: ModelConfig = field(default_factory=_SharedModel)
    sampler: SamplerConfig = field(default_factory=_SharedSampler)

    def config(self) -> RunConfig:
        """Return it as the configuration of a run."""
        values = {f.name: getattr(self, f.name) for f in fields(RunConfig)}
        model, sampler = vars(self.model), vars(self.sampler)
        return RunConfig(
            **{**values, "model": ModelConfig(**model), "sampler": SamplerConfig(**sampler)}
        )

    @classmethod
    def of(cls, config: RunConfig) -> SharedConfig:
        """Return what a configuration has to share."""
        values = {f.name: getattr(config, f.name) for f in fields(RunConfig)}
        model, sampler = vars(config.model), vars(config.sampler)
        return cls(
            **{**values, "model": _SharedModel(**model), "sampler": _SharedSampler(**sampler)}
        )
