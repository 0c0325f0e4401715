"""The options of every backbone and learner, each a section of the configuration.

Fields and defaults are those of the classes they are handed to; a test holds them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

Norm = Literal["batch", "task", "none"]
_OptionalInt = Annotated[int | None, arg(metavar="INT")]


@dataclass(frozen=True)
class Conv4Options:
    """Four blocks of 3x3 convolution, normalisation, ReLU and 2x2 max-pool."""

    filters: int = 64
    """Channels of every block."""
    n_pooled: _OptionalInt = None
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
    drop_block_size: _OptionalInt = None
    """Side of the squares that are dropped; None: 5 for images of 80 pixels and more, else 2."""
    drop_block_ramp: int = 20_000
    """Passes in training over which DropBlock grows to its full rate."""


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
class MAMLOptions:
    """MAML (Finn et al. 2017): a start from which a few gradient steps suffice."""

    inner_steps: int = 5
    """Steps on the support set in training."""
    evaluation_steps: _OptionalInt = None
    """Steps in evaluation; None: as in training."""
    inner_lr: float = 0.01
    """Size of the steps; where it starts, if it is learnt."""
    first_order: bool = False
    """Whether inner gradients count as constants."""
    learn_inner_lr: bool = False
    """Meta-SGD: whether every single weight learns a step size of its own."""
    transductive: bool = True
    """Whether queries are normalised together in evaluation, or each with the support set alone."""
    task_chunk: _OptionalInt = None
    """How many tasks are treated at once, which bounds memory; None: all."""


@dataclass(frozen=True)
class MAMLPlusPlusOptions:
    """MAML++ (Antoniou et al. 2018): MAML with its training made stable."""

    inner_steps: int = 5
    """Steps on the support set in training."""
    evaluation_steps: _OptionalInt = None
    """Steps in evaluation; None: as in training."""
    inner_lr: float = 0.01
    """Size of the steps; where it starts, if it is learnt."""
    first_order: bool = False
    """Whether inner gradients count as constants, always."""
    multi_step_loss: bool = True
    """Whether the query losses after all steps count, at first alike, later the last alone."""
    multi_step_share: float = 0.15
    """The share of training until the last alone counts."""
    anneal_order: bool = True
    """Whether training starts with first order."""
    first_order_share: float = 0.5
    """The share of training that it does so for."""
    per_step_norm: bool = True
    """Whether normalisation has a weight and bias for every step."""
    per_step_statistics: bool = False
    """Whether evaluation normalises with running statistics of every step."""
    per_layer_rates: bool = True
    """Whether every step learns a step size for every parameter tensor."""
    transductive: bool = True
    """Whether queries are normalised together in evaluation, or each with the support set alone."""
    task_chunk: _OptionalInt = None
    """How many tasks are treated at once, which bounds memory; None: all."""


@dataclass(frozen=True)
class ANILOptions:
    """ANIL (Raghu et al. 2020): MAML whose head alone adapts."""

    inner_steps: int = 5
    """Steps on the support set in training."""
    evaluation_steps: _OptionalInt = None
    """Steps in evaluation; None: as in training."""
    inner_lr: float = 0.1
    """Size of the steps; where it starts, if it is learnt."""
    first_order: bool = False
    """Whether inner gradients count as constants."""
    learn_inner_lr: bool = False
    """Whether every weight of the head learns a step size of its own."""


@dataclass(frozen=True)
class ReptileOptions:
    """Reptile (Nichol et al. 2018): move towards the weights that training on a task ends with."""

    inner_steps: int = 8
    """Mini-batches of a task in training."""
    evaluation_steps: int = 50
    """Mini-batches of a task in evaluation."""
    inner_optimizer: Literal["adam", "sgd"] = "adam"
    """How a task is trained on."""
    inner_lr: float = 0.001
    """Its learning rate."""
    batch_size: int = 10
    """Images of a mini-batch, at most all."""
    evaluation_batch_size: _OptionalInt = None
    """The same in evaluation; None: as in training."""
    anneal: bool = True
    """Whether the step towards the adapted weights falls to 0 over training."""
    transductive: bool = True
    """Whether queries are normalised together in evaluation, or each with the support set alone."""
    task_chunk: _OptionalInt = None
    """How many tasks are treated at once, which bounds memory; None: all."""


@dataclass(frozen=True)
class MetaOptNetRidgeOptions:
    """MetaOptNet-RR (Lee et al. 2019): ridge regression on the support features."""

    regularization: float = 50.0
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

    regularization: float = 50.0
    """Weight of the squared norm a support image; where it starts, if it is learnt."""
    learn_regularization: bool = True
    """Whether it is learnt."""
    scale: float = 1e-4
    """Where the learnt factor of the logits starts."""
    label_smoothing: float = 0.0
    """Share of the right answer that training gives to the other classes."""
