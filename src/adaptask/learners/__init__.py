"""Support set and queries in, query logits out: one file per algorithm.

>>> from adaptask.backbones import build_backbone
>>> from adaptask.learners import build_learner
>>> backbone = build_backbone("conv4", image_shape=(3, 32, 32))
>>> learner = build_learner("protonet", backbone=backbone, temperature=2.0)
"""

from __future__ import annotations

from typing import Any

from adaptask.backbones import Backbone
from adaptask.learners.anil import ANIL
from adaptask.learners.base import EmbeddingLearner, Learner, check_shapes
from adaptask.learners.classifier import Classifier
from adaptask.learners.ensemble import Ensemble
from adaptask.learners.inner_loop import InnerLoopLearner
from adaptask.learners.maml import MAML
from adaptask.learners.maml_plus_plus import MAMLPlusPlus
from adaptask.learners.matchingnet import MatchingNet
from adaptask.learners.meta_baseline import MetaBaseline
from adaptask.learners.metaoptnet import MetaOptNetRidge, MetaOptNetSVM
from adaptask.learners.protonet import ProtoNet
from adaptask.learners.r2d2 import R2D2
from adaptask.learners.relationnet import RelationNet
from adaptask.learners.reptile import Reptile
from adaptask.registry import LEARNERS


def build_learner(name: str, *, backbone: Backbone, **settings: Any) -> Learner:
    """Build the learner with this name.

    Args:
        name: A key of `LEARNERS`, or `module:Class`.
        backbone: Maps images to features; see `adaptask.backbones.build_backbone`.
        **settings: Further keyword arguments of its class.

    Raises:
        ArgumentError: If there is no such learner, or it does not take such an argument.
    """
    learner: Learner = LEARNERS.build(name, {"backbone": backbone, **settings})
    return learner


__all__ = [
    "ANIL",
    "LEARNERS",
    "MAML",
    "R2D2",
    "Classifier",
    "EmbeddingLearner",
    "Ensemble",
    "InnerLoopLearner",
    "Learner",
    "MAMLPlusPlus",
    "MatchingNet",
    "MetaBaseline",
    "MetaOptNetRidge",
    "MetaOptNetSVM",
    "ProtoNet",
    "RelationNet",
    "Reptile",
    "build_learner",
    "check_shapes",
]
