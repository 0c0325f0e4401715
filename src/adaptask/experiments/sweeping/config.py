"""The configuration that the trials of a sweep share: without the flags that take many values."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from tyro.conf import Suppress

from adaptask.experiments.config import OptimiserConfig, RunConfig, SamplerConfig


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
class SweptConfig(RunConfig):
    """Everything that decides the runs, but for the seed and what has flags of its own."""

    seed: Suppress[int] = 0
    sampler: SamplerConfig = field(default_factory=_SweptSampler)
    optimiser: OptimiserConfig = field(default_factory=_SweptOptimiser)

    def config(self) -> RunConfig:
        """Return it as the configuration of a run."""
        values = {f.name: getattr(self, f.name) for f in fields(RunConfig)}
        values["sampler"] = SamplerConfig(**vars(self.sampler))
        values["optimiser"] = OptimiserConfig(**vars(self.optimiser))
        return RunConfig(**values)

    @classmethod
    def of(cls, config: RunConfig) -> SweptConfig:
        """Return what a configuration has for all trials."""
        values = {f.name: getattr(config, f.name) for f in fields(RunConfig)}
        values["sampler"] = _SweptSampler(**vars(config.sampler))
        values["optimiser"] = _SweptOptimiser(**vars(config.optimiser))
        return cls(**values)
