"""How a run is computed where its configuration leaves that to the machine."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import torch

from adaptask.errors import ArgumentError
from adaptask.experiments.config import MachineConfig, RunConfig
from adaptask.learners import LEARNERS, AdaptingLearner

# Compiling takes 10 to 30 seconds, a minute at most, and saves a third of a millisecond a step.
_STEPS_THAT_PAY = 20_000


def settled(config: RunConfig, device: torch.device, *, n_processes: int = 1) -> RunConfig:
    """Return the configuration with every `auto` of its arithmetic decided.

    What is decided depends on the configuration and the kind of device alone, never on a clock,
    so that a run repeated is computed in the same way.

    Args:
        config: Of the run.
        device: Where it is computed.
        n_processes: How many make it together.

    Raises:
        ArgumentError: If compiling was asked for and cannot be done.
    """
    machine = config.machine
    learner = LEARNERS[config.model.learner]
    if machine.compile == "yes" and not learner.compilable:
        raise ArgumentError(
            f"the learner {config.model.learner!r} cannot be compiled: it differentiates inside "
            "its forward pass, where torch.compile gives other gradients. Give "
            "--machine.compile no."
        )
    if machine.compile == "yes" and n_processes > 1:
        raise ArgumentError(
            f"{n_processes} processes that make a run together cannot compile it: they send each "
            "other messages within a step. Give --machine.compile no."
        )
    half = half_precision_pays(device) and not issubclass(learner, AdaptingLearner)
    compiles = learner.compilable and n_processes == 1
    chosen = {
        "precision": "bfloat16" if half else "float32",
        "channels_last": "yes" if half else "no",
        "compile": "yes" if compiles and _compiling_pays(config, device) else "no",
    }
    left = {name: value for name, value in chosen.items() if getattr(machine, name) == "auto"}
    return replace(config, machine=replace(machine, **left))  # type: ignore[arg-type]


def as_begun(config: RunConfig, begun: RunConfig) -> RunConfig:
    """Return the configuration of a run that goes on, in the precision in which it was begun.

    What was asked for stays. Whether to compile is decided anew, by the device of now.
    """
    if config.machine.precision != "auto":
        return config
    machine = replace(config.machine, precision=begun.machine.precision)
    if machine.channels_last == "auto":
        machine = replace(machine, channels_last=begun.machine.channels_last)
    return replace(config, machine=machine)


def half_precision_pays(device: torch.device) -> bool:
    """Return whether a device computes faster in bfloat16."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def _compiling_pays(config: RunConfig, device: torch.device) -> bool:
    machine: MachineConfig = config.machine
    # Which kernels a compiler finds best is not the same each time.
    plain = machine.engine == "eager" or machine.deterministic
    found = device.type == "cuda" and find_spec("triton") is not None
    return found and not plain and config.steps >= _STEPS_THAT_PAY
