"""The options of every backbone and learner, each a section of the configuration.

Fields and defaults are those of the classes they are handed to; a test holds them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

Norm = Literal["batch", "task", "none"]


@dataclass(frozen=True)
class Conv4Options:
    """Four blocks of 3x3 convolution, normalisation, ReLU and 2x2 max-pool."""

    filters: int = 64
    """Channels of every block."""
    n_pooled: Annotated[int | None, arg(metavar="INT")] = None
    """How many of the blocks pool; None: 2 for a Relation Network, which needs maps, else all 4."""
    norm: Norm = "batch"
    """Statistics of the whole step and running ones in evaluation, those of each task, or none."""
    mean_pool: bool = False
    """Whether features are the means of the last maps; otherwise the maps flattened."""


@dataclass(frozen=True)
class ResNet12Options:
    """Four residual blocks of three 3x3 convolutions, with DropBlock."""

    widths: Literal["doubling", "metaoptnet"] | tuple[int, int, int, int] = "doubling"
    """Channels of the blocks: doubling 64-128-256-512, metaoptnet 64-160-320-640, or any four."""
    norm: Norm = "batch"
    """Statistics of the whole step and running ones in evaluation, those of each task, or none."""
    mean_pool: bool = True
    """Whether features are the means of the last maps; otherwise the maps flattened."""
    drop_rate: float = 0.1
    """Share that is dropped after every block in training."""
    drop_block_size: Annotated[int | None, arg(metavar="INT")] = None
    """Side of the squares that are dropped; None: 5 for images of 80 pixels and more, else 2."""
    drop_block_ramp: int = 20_000
    """Training steps over which DropBlock grows to its full rate."""


@dataclass(frozen=True)
class ProtoNetOptions:
    """Prototypical Network (Snell et al. 2017): the nearest class mean."""

    temperature: float = 1.0
    """What distances are divided by; where it starts, if it is learnt."""
    learn_temperature: bool = False
    """Whether the temperature is learnt."""
    scale_by_dimension: bool = False
    """Whether distances are also divided by the number of features, as MetaOptNet does."""
    label_smoothing: float = 0.0
    """Share of the right answer that training gives to the other classes."""


@dataclass(frozen=True)
class MatchingNetOptions:
    """Matching Network (Vinyals et al. 2016): attention over the support set."""

    attention_scale: float = 100.0
    """What cosines are multiplied by before the softmax."""
    full_context: bool = False
    """Whether features are put into the context of the support set by LSTMs."""
    n_reads: int = 5
    """With full context: how often a query reads the support set."""


@dataclass(frozen=True)
class RelationNetOptions:
    """Relation Network (Sung et al. 2018): a learnt comparison of feature maps."""

    loss: Literal["mse", "cross-entropy"] = "mse"
    """Mean squared error of the scores, as published, or cross-entropy."""
    shots: Literal["sum", "mean"] = "sum"
    """How the maps of a class's support images become one."""
    hidden: int = 8
    """Size of the hidden layer."""
    norm: Norm = "batch"
    """Normalisation in the relation module."""


@dataclass(frozen=True)
class MetaOptNetRidgeOptions:
    """MetaOptNet-RR (Lee et al. 2019): ridge regression on the support features."""

    regularisation: float = 50.0
    """Weight of the squared norm."""
    scale: float = 1.0
    """Where the learnt factor of the logits starts."""
    label_smoothing: float = 0.0
    """Share of the right answer that training gives to the other classes."""


@dataclass(frozen=True)
class MetaOptNetSVMOptions:
    """MetaOptNet-SVM (Lee et al. 2019): a support vector machine on the support features."""

    penalty: float = 0.1
    """Weight of the hinge losses, C."""
    scale: float = 1.0
    """Where the learnt factor of the logits starts."""
    label_smoothing: float = 0.0
    """Share of the right answer that training gives to the other classes."""


@dataclass(frozen=True)
class R2D2Options:
    """R2-D2 (Bertinetto et al. 2019): ridge regression with learnt hyperparameters."""

    regularisation: float = 50.0
    """Weight of the squared norm a support image; where it starts, if it is learnt."""
    learn_regularisation: bool = True
    """Whether it is learnt."""
    scale: float = 1e-4
    """Where the learnt factor of the logits starts."""
    label_smoothing: float = 0.0
    """Share of the right answer that training gives to the other classes."""
