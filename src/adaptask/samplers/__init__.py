"""Which classes next? One file per algorithm, all behind one protocol.

>>> from adaptask.samplers import build_sampler
>>> sampler = build_sampler("gcp", n_classes=64, n_way=5, seed=0)
>>> sampler.sample(n_tasks=8).shape
torch.Size([8, 5])
"""

from __future__ import annotations

from typing import Any

from adaptask.registry import SAMPLERS
from adaptask.samplers.base import Sampler, of_category_sets
from adaptask.samplers.c import CSampler
from adaptask.samplers.cp import CPSampler
from adaptask.samplers.cvar import CVaRSampler
from adaptask.samplers.diagnostics import (
    Estimate,
    class_marginals,
    importance_weight,
    kl_from_uniform,
    pair_marginals,
)
from adaptask.samplers.difficulty import DifficultySampler
from adaptask.samplers.dpp import DPPSampler
from adaptask.samplers.feedback import Feedback
from adaptask.samplers.gcp import GCPSampler, PairPotentialSampler
from adaptask.samplers.hard_class import HardClassSampler
from adaptask.samplers.hierarchy import HierarchySampler
from adaptask.samplers.instance import InstanceSampler
from adaptask.samplers.learnable import LearnableSampler
from adaptask.samplers.neighbor import NeighborSampler
from adaptask.samplers.ohtm import OHTMSampler
from adaptask.samplers.predictive import PredictiveSampler
from adaptask.samplers.repeat import RepeatSampler
from adaptask.samplers.uniform import UniformSampler
from adaptask.samplers.update_rule import STRATEGIES


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
    "CPSampler",
    "CSampler",
    "CVaRSampler",
    "DPPSampler",
    "DifficultySampler",
    "Estimate",
    "Feedback",
    "GCPSampler",
    "HardClassSampler",
    "HierarchySampler",
    "InstanceSampler",
    "LearnableSampler",
    "NeighborSampler",
    "OHTMSampler",
    "PairPotentialSampler",
    "PredictiveSampler",
    "RepeatSampler",
    "Sampler",
    "UniformSampler",
    "build_sampler",
    "class_marginals",
    "importance_weight",
    "kl_from_uniform",
    "of_category_sets",
    "pair_marginals",
]
