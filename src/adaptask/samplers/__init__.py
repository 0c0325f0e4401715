"""Which classes next? One file per algorithm, all behind one protocol.

>>> from adaptask.samplers import build_sampler
>>> sampler = build_sampler("gcp", n_classes=64, n_way=5, seed=0)
>>> sampler.sample(n_tasks=8).shape
torch.Size([8, 5])
"""

from __future__ import annotations

from typing import Any

from adaptask.registry import SAMPLERS
from adaptask.samplers.base import Sampler
from adaptask.samplers.class_based import ClassSampler
from adaptask.samplers.class_pair import ClassPairSampler
from adaptask.samplers.diagnostics import (
    Estimate,
    class_marginals,
    importance_weight,
    kl_from_uniform,
    pair_marginals,
)
from adaptask.samplers.feedback import Feedback
from adaptask.samplers.greedy_class_pair import GreedyClassPairSampler
from adaptask.samplers.instance import InstanceSampler
from adaptask.samplers.potentials import PairPotentialSampler
from adaptask.samplers.strategies import STRATEGIES
from adaptask.samplers.uniform import UniformSampler


def build_sampler(name: str, **settings: Any) -> Any:
    """Build the sampler of that name.

    Args:
        name: A key of `SAMPLERS`, or `module:Class`.
        **settings: The keyword arguments of its class.

    Raises:
        ArgumentError: If there is no such sampler, or it does not take such an argument.
    """
    return SAMPLERS.build(name, settings)


__all__ = [
    "SAMPLERS",
    "STRATEGIES",
    "ClassPairSampler",
    "ClassSampler",
    "Estimate",
    "Feedback",
    "GreedyClassPairSampler",
    "InstanceSampler",
    "PairPotentialSampler",
    "Sampler",
    "UniformSampler",
    "build_sampler",
    "class_marginals",
    "importance_weight",
    "kl_from_uniform",
    "pair_marginals",
]
