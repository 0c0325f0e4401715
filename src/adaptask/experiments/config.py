"""Everything that decides a run: one tree of frozen dataclasses.

The command line is made from it (the docstring of a field is its help), and a TOML file sets any
of it. The sections `sampler`, `learner` and `backbone` have the options of the chosen classes, see
`options.py`. Importing this module needs no torch; building a `RunConfig` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Annotated, Any, Literal

from tyro.conf import DisallowNone, arg

from adaptask.arguments import check_integer, check_seed
from adaptask.data.images import EvaluationTasks
from adaptask.errors import ArgumentError
from adaptask.experiments.options import AlgorithmConfig, class_of, configure
from adaptask.intervals import Intervals
from adaptask.registry import is_address

DEFAULT_NAMES = {"sampler": "uniform", "learner": "protonet", "backbone": "conv4"}
"""The algorithms of a run that names none."""

# A flag without the name of its section.
_SHORT = arg(prefix_name=False)
_Optional = Annotated[int | None, arg(metavar="INT")]
# Whoever means None leaves the flag out; the help shows INT instead of {None}|INT.
_Intervals = DisallowNone[Intervals]


@dataclass(frozen=True)
class DataConfig:
    """Which images."""

    dataset: Annotated[str, arg(prefix_name=False, metavar="NAME")] = "turned-glyphs"
    """A dataset of `adaptask data list`, or your own package.module:function."""
    augmentation: str = "default"
    """Augmentation of the training images: none, crop-flip, crop-jitter-flip,
    resized-crop-jitter-flip, noise, or default: what is usual for the dataset."""
    noise: float = 0.1
    """Strength of the augmentation noise; of features in units of their standard deviation."""
    shrink: int = 1
    """Average squares of this many pixels a side: 2 halves height and width of all images."""
    storage: Literal["auto", "device", "host"] = "auto"
    """Where the images are held; auto: on the device if they fill at most half of it."""


@dataclass(frozen=True)
class TaskConfig:
    """What a training task is."""

    n_way: Annotated[int, _SHORT] = 5
    """Classes per task, K."""
    n_shot: Annotated[int, _SHORT] = 1
    """Support images per class."""
    n_query: Annotated[int, _SHORT] = 15
    """Query images per class."""
    n_tasks: Annotated[int, _SHORT] = 1
    """Tasks per step, of all processes together."""


@dataclass(frozen=True)
class StartConfig:
    """Which weights the backbone starts with, and which of them stay as they are."""

    init: Annotated[str | None, arg(prefix_name=False, metavar="RUN")] = None
    """Start with the backbone of this run, its best weights by validation, or with those in a
    file, .pt or .safetensors; None: the seed decides."""
    freeze: Annotated[
        Literal["backbone"] | int | None, arg(prefix_name=False, metavar="backbone|INT")
    ] = None
    """Do not train the backbone, or this many of its first stages."""


@dataclass(frozen=True)
class OptimizerConfig:
    """How the weights are updated."""

    name: Literal["adam", "sgd"] = "adam"
    """Adam (decay added to the gradient), or SGD with Nesterov momentum."""
    lr: Annotated[float, _SHORT] = 1e-3
    """Learning rate at the start."""
    weight_decay: float = 0.0
    """L2 penalty, added to the gradient."""
    momentum: float = 0.9
    """Nesterov momentum of sgd; 0 is plain SGD."""
    schedule: Literal["constant", "step", "cosine"] = "constant"
    """Of the learning rate: cosine falls to 0; step applies `factors` at `milestones`."""
    milestones: tuple[int, ...] = ()
    """For step: the steps at which the learning rate changes."""
    factors: tuple[float, ...] = ()
    """For step: the learning rate from each milestone on, as a multiple of `lr`."""
    clip_norm: Annotated[float | None, arg(metavar="FLOAT")] = None
    """Largest norm of the gradient; None does not clip."""
    accumulate: int = 1
    """Number of parts in which the tasks of a step are processed, to save memory."""


@dataclass(frozen=True)
class EvaluationConfig:
    """How accuracy is measured, in validation and at the end on the test classes."""

    n_way: _Optional = None
    """Classes per evaluation task; None: as in training."""
    n_shot: _Optional = None
    """Support images per class; None: as in training."""
    n_query: int = 15
    """Query images per class."""
    n_episodes: int = 1000
    """Test episodes."""
    n_validation: int = 200
    """Validation episodes."""
    tasks: tuple[EvaluationTasks, ...] = ("uniform",)
    """Test tasks: uniform (any classes), within-group (classes of one group, such as an
    alphabet), or both. Validation tasks are uniform."""
    seed: int = 0
    """Decides the episodes; runs with the same seed are measured on the same ones."""
    keep_best: int = 1
    """Number of best checkpoints by validation to keep; several are tested as an ensemble."""


@dataclass(frozen=True)
class MachineConfig:
    """Where and how exactly the run is computed."""

    device: Annotated[str, _SHORT] = "auto"
    """cpu, cuda, cuda:1, ..., or auto: a GPU if there is one."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of forward and backward pass; auto: bfloat16 on a GPU if the learner supports it."""
    engine: Annotated[Literal["auto", "graph", "eager"], _SHORT] = "auto"
    """A step kernel by kernel (eager), or as one CUDA graph; auto: a graph if possible."""
    channels_last: Literal["auto", "yes", "no"] = "auto"
    """Memory format of images and weights; auto: yes if auto precision is bfloat16."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """torch.compile; auto: in long runs on a GPU if the learner supports it."""
    deterministic: bool = False
    """Same numbers in every run on a GPU too, but slower; a CPU always gives them."""
    threads: _Optional = None
    """CPU threads; None: as PyTorch chooses."""


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run.

    >>> RunConfig(steps=100, sampler=configure("sampler", "gcp", tau=0.7)).sampler.alpha
    1.0
    """

    steps: int = 10_000
    """Training steps."""
    seed: int = 0
    """Decides initial weights, tasks and images."""
    data: DataConfig = DataConfig()
    task: TaskConfig = TaskConfig()
    sampler: AlgorithmConfig = field(default_factory=partial(configure, "sampler", "uniform"))
    learner: AlgorithmConfig = field(default_factory=partial(configure, "learner", "protonet"))
    backbone: AlgorithmConfig = field(default_factory=partial(configure, "backbone", "conv4"))
    start: StartConfig = StartConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    every: _Intervals = field(default_factory=Intervals)
    machine: MachineConfig = MachineConfig()

    @property
    def tested_way(self) -> int:
        """Classes per evaluation task."""
        return self.task.n_way if self.evaluation.n_way is None else self.evaluation.n_way

    @property
    def tested_shot(self) -> int:
        """Support images per class of an evaluation task."""
        return self.task.n_shot if self.evaluation.n_shot is None else self.evaluation.n_shot

    @property
    def plugins(self) -> set[str]:
        """Addresses of code that is not part of the package nor installed under a name."""
        names = (self.sampler.name, self.learner.name, self.backbone.name, self.data.dataset)
        return set(filter(is_address, names))


def with_algorithm(config: RunConfig, kind: str, name: str) -> RunConfig:
    """Return a configuration with another sampler, learner or backbone, as by default.

    Raises:
        ArgumentError: If there is no such algorithm, or it cannot be used.
    """
    chosen: dict[str, Any] = {kind: configure(kind, name)}
    return replace(config, **chosen)


def with_default_optimizer(config: RunConfig) -> RunConfig:
    """Return a configuration with the optimizer that its learner prefers, if none was set."""
    preferred: Mapping[str, Any] = getattr(class_of(config.learner), "default_optimizer", {})
    if not preferred or config.optimizer != OptimizerConfig():
        return config
    return replace(config, optimizer=OptimizerConfig(**preferred))


def check_config(config: RunConfig) -> None:
    """Check what can be told without the data; constructors check the options of algorithms.

    Raises:
        ArgumentError: If a value is out of range, or an option was set that has no effect.
    """
    check_integer("steps", config.steps, low=1)
    check_seed("seed", config.seed)
    check_seed("evaluation.seed", config.evaluation.seed)
    check_integer("evaluation.n_episodes", config.evaluation.n_episodes, low=2)
    check_integer("evaluation.n_validation", config.evaluation.n_validation, low=2)
    tasks = config.evaluation.tasks
    if not tasks or len(set(tasks)) < len(tasks):
        raise ArgumentError(
            "evaluation.tasks must be uniform, within-group, or both; "
            f"got {' '.join(tasks) or 'none'}."
        )
    if config.data.noise != DataConfig.noise and config.data.augmentation != "noise":
        raise ArgumentError(
            "data.noise was set, but has no effect without the augmentation noise. Add "
            "--data.augmentation noise."
        )
    optimizer = config.optimizer
    changed = {f.name for f in fields(optimizer) if getattr(optimizer, f.name) != f.default}
    for option, is_used, needed in (
        ("momentum", optimizer.name == "sgd", "the optimizer sgd"),
        ("milestones", optimizer.schedule == "step", "the step schedule"),
        ("factors", optimizer.schedule == "step", "the step schedule"),
    ):
        if option in changed and not is_used:
            raise ArgumentError(f"optimizer.{option} was set, but has no effect without {needed}.")
