"""Everything that decides a run: one tree of frozen dataclasses, without torch.

The command line is made from it (a field's docstring is its help), and a TOML file sets any of it.
Each algorithm has a section of its own options; only those of the chosen ones may be set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, get_args, get_type_hints

from tyro.conf import arg

from adaptask.arguments import check_integer, check_seed
from adaptask.errors import ArgumentError
from adaptask.experiments.model_options import (
    ANILOptions,
    Conv4Options,
    MAMLOptions,
    MAMLPlusPlusOptions,
    MatchingNetOptions,
    MetaOptNetRidgeOptions,
    MetaOptNetSVMOptions,
    ProtoNetOptions,
    R2D2Options,
    RelationNetOptions,
    ReptileOptions,
    ResNet12Options,
)
from adaptask.intervals import Intervals

# A flag without the name of its section.
_SHORT = arg(prefix_name=False)
_Sampler = Literal["uniform", "c", "cp", "gcp"]
_Learner = Literal[
    "protonet",
    "matchingnet",
    "relationnet",
    "maml",
    "maml++",
    "anil",
    "reptile",
    "metaoptnet-ridge",
    "metaoptnet-svm",
    "r2d2",
]
_Optional = Annotated[int | None, arg(metavar="INT")]


@dataclass(frozen=True)
class DataConfig:
    """Which images."""

    dataset: Annotated[str, _SHORT] = "glyphs"
    """A dataset of `adaptask data list`."""
    augmentation: str = "default"
    """Augmentation of the training images: none, crop-flip, crop-jitter-flip,
    resized-crop-jitter-flip, or default: what is usual for the dataset."""
    storage: Literal["auto", "device", "host"] = "auto"
    """Where the images are held; auto takes the device where they fill at most half of it."""


@dataclass(frozen=True)
class ModelConfig:
    """What is trained; each choice has a section of options of its own."""

    learner: Annotated[_Learner, _SHORT] = "protonet"
    """The meta-learner."""
    backbone: Annotated[Literal["conv4", "resnet12"], _SHORT] = "conv4"
    """The network that maps images to features."""


@dataclass(frozen=True)
class TaskConfig:
    """What a training task is."""

    n_way: Annotated[int, _SHORT] = 5
    """Classes of a task, K."""
    n_shot: Annotated[int, _SHORT] = 1
    """Support images a class."""
    n_query: Annotated[int, _SHORT] = 15
    """Query images a class."""
    n_tasks: Annotated[int, _SHORT] = 1
    """Tasks a step; of all processes together, where there are several."""


@dataclass(frozen=True)
class SamplerConfig:
    """Which classes next; options that the chosen sampler does not take must be left alone."""

    name: Annotated[_Sampler, arg(name="sampler", prefix_name=False)] = "gcp"
    """The task sampler."""
    alpha: Annotated[float, _SHORT] = 1.0
    """How strongly a confusion raises a potential."""
    tau: Annotated[float, _SHORT] = 0.5
    """How much of a potential is kept at each update, 0 to 1."""
    strategy: Annotated[Literal["hard", "easy", "uncertain"], _SHORT] = "hard"
    """Which tasks are sought."""
    confusion: Literal["sum", "mean"] = "sum"
    """Confusion of a pair: the sum of both directions as in Eq. 6, or their mean (cp, gcp)."""
    forget: Literal["sampled", "all"] = "sampled"
    """Which potentials decay: those of the pairs that were drawn, or all (cp, gcp)."""
    exploration: float = 0.0
    """Share of draws that are uniform (gcp)."""
    method: str = "auto"
    """How draws are made exact: auto, enumerate, reject or gibbs (cp)."""
    n_sweeps: int = 20
    """Gibbs sweeps a draw (cp)."""


@dataclass(frozen=True)
class OptimiserConfig:
    """How the weights follow the gradient."""

    name: Literal["adam", "sgd"] = "adam"
    """Adam (decay added to the gradient), or SGD with Nesterov momentum."""
    lr: Annotated[float, _SHORT] = 1e-3
    """Learning rate at the start."""
    weight_decay: float = 0.0
    """L2 penalty, added to the gradient."""
    momentum: float = 0.9
    """Nesterov momentum of sgd; 0 is plain SGD."""
    schedule: Literal["constant", "step", "cosine"] = "constant"
    """How the learning rate goes on: cosine falls to 0; step takes `factors` at `milestones`."""
    milestones: tuple[int, ...] = ()
    """For step: at which steps the learning rate changes."""
    factors: tuple[float, ...] = ()
    """For step: the learning rate from each milestone on, as a share of `lr`."""
    clip_norm: Annotated[float | None, arg(metavar="FLOAT")] = None
    """Largest norm of the gradient; None does not clip."""
    accumulate: int = 1
    """In how many parts the tasks of a step go through the learner, to save memory."""


@dataclass(frozen=True)
class EvaluationConfig:
    """How accuracy is measured, in validation and at the end on the test classes."""

    n_way: _Optional = None
    """Classes of an evaluation task; None: as in training."""
    n_shot: _Optional = None
    """Support images a class; None: as in training."""
    n_query: int = 15
    """Query images a class."""
    n_episodes: int = 1000
    """Test episodes."""
    n_validation: int = 200
    """Validation episodes."""
    seed: int = 0
    """Decides the episodes: runs with the same seed are compared on the same ones."""
    keep_best: int = 1
    """How many of the best checkpoints by validation are kept; several are tested together."""


@dataclass(frozen=True)
class MachineConfig:
    """On what, and how exactly, it is computed."""

    device: Annotated[str, _SHORT] = "auto"
    """cpu, cuda, cuda:1, ..., or auto: a GPU where there is one."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of forward and backward pass; auto: bfloat16 on a GPU, but for MAML, MAML++ and Reptile."""
    engine: Annotated[Literal["auto", "graph", "eager"], _SHORT] = "auto"
    """A step kernel by kernel (eager), or whole, as one device graph; auto: a graph if it can."""
    channels_last: Literal["auto", "yes", "no"] = "auto"
    """Whether channels of a pixel lie side by side in memory; auto: where auto is bfloat16."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """Fewer kernels by torch.compile; auto: in long runs on a GPU, but for learners as above."""
    deterministic: bool = False
    """Same numbers at every run on a GPU too, at a price in speed; a CPU always gives them."""
    threads: _Optional = None
    """CPU threads; None: as PyTorch chooses."""


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run."""

    steps: int = 10_000
    """Training steps."""
    seed: int = 0
    """Decides initial weights, tasks and images."""
    data: DataConfig = DataConfig()
    task: TaskConfig = TaskConfig()
    model: ModelConfig = ModelConfig()
    sampler: SamplerConfig = SamplerConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    every: Intervals = field(default_factory=Intervals)
    machine: MachineConfig = MachineConfig()
    protonet: ProtoNetOptions = field(default_factory=ProtoNetOptions)
    matchingnet: MatchingNetOptions = field(default_factory=MatchingNetOptions)
    relationnet: RelationNetOptions = field(default_factory=RelationNetOptions)
    maml: MAMLOptions = field(default_factory=MAMLOptions)
    maml_plus_plus: MAMLPlusPlusOptions = field(default_factory=MAMLPlusPlusOptions)
    anil: ANILOptions = field(default_factory=ANILOptions)
    reptile: ReptileOptions = field(default_factory=ReptileOptions)
    metaoptnet_ridge: MetaOptNetRidgeOptions = field(default_factory=MetaOptNetRidgeOptions)
    metaoptnet_svm: MetaOptNetSVMOptions = field(default_factory=MetaOptNetSVMOptions)
    r2d2: R2D2Options = field(default_factory=R2D2Options)
    conv4: Conv4Options = field(default_factory=Conv4Options)
    resnet12: ResNet12Options = field(default_factory=ResNet12Options)

    def options_of(self, name: str) -> Any:
        """Return the options of a learner or a backbone by its name."""
        return getattr(self, section_name(name))

    @property
    def learner_options(self) -> Any:
        """The options of the chosen learner."""
        return self.options_of(self.model.learner)

    @property
    def backbone_options(self) -> Any:
        """The options of the chosen backbone."""
        return self.options_of(self.model.backbone)

    @property
    def tested_way(self) -> int:
        """Classes of an evaluation task."""
        return self.task.n_way if self.evaluation.n_way is None else self.evaluation.n_way

    @property
    def tested_shot(self) -> int:
        """Support images a class of an evaluation task."""
        return self.task.n_shot if self.evaluation.n_shot is None else self.evaluation.n_shot

    def sampler_options(self) -> dict[str, Any]:
        """Return those options that the chosen sampler takes."""
        return {name: getattr(self.sampler, name) for name in SAMPLER_OPTIONS[self.sampler.name]}


SAMPLER_OPTIONS: dict[str, tuple[str, ...]] = {
    "uniform": (),
    "c": ("alpha", "tau", "strategy"),
    "cp": ("alpha", "tau", "strategy", "confusion", "forget", "method", "n_sweeps"),
    "gcp": ("alpha", "tau", "strategy", "confusion", "forget", "exploration"),
}
"""Which options of `SamplerConfig` each sampler takes."""

_CONDITIONAL: dict[str, tuple[Callable[[RunConfig], bool], str]] = {
    "optimiser.momentum": (lambda c: c.optimiser.name == "sgd", "the optimiser sgd"),
    "optimiser.milestones": (lambda c: c.optimiser.schedule == "step", "the step schedule"),
    "optimiser.factors": (lambda c: c.optimiser.schedule == "step", "the step schedule"),
    "sampler.n_sweeps": (lambda c: c.sampler.method in ("auto", "gibbs"), "the method gibbs"),
    "matchingnet.n_reads": (lambda c: c.matchingnet.full_context, "matchingnet.full_context"),
    "maml_plus_plus.multi_step_share": (
        lambda c: c.maml_plus_plus.multi_step_loss,
        "maml_plus_plus.multi_step_loss",
    ),
    "maml_plus_plus.first_order_share": (
        lambda c: c.maml_plus_plus.anneal_order and not c.maml_plus_plus.first_order,
        "maml_plus_plus.anneal_order and second order",
    ),
}
"""Options that play a part only with others, and what they need."""

LEARNERS: tuple[str, ...] = get_args(get_type_hints(ModelConfig)["learner"])
BACKBONES: tuple[str, ...] = get_args(get_type_hints(ModelConfig)["backbone"])


def section_name(name: str) -> str:
    """Return the name of the section with the options of a learner or a backbone.

    >>> section_name("metaoptnet-svm"), section_name("maml++")
    ('metaoptnet_svm', 'maml_plus_plus')
    """
    return name.replace("-", "_").replace("+", "_plus")


def check_config(config: RunConfig) -> None:
    """Check what can be told without the data: nothing is computed from a bad configuration.

    Raises:
        ArgumentError: If a value is out of range, or an option was set that plays no part.
    """
    check_integer("steps", config.steps, low=1)
    check_seed("seed", config.seed)
    check_seed("evaluation.seed", config.evaluation.seed)
    check_integer("evaluation.n_episodes", config.evaluation.n_episodes, low=2)
    check_integer("evaluation.n_validation", config.evaluation.n_validation, low=2)
    _refuse_idle_options(config)


def _refuse_idle_options(config: RunConfig) -> None:
    taken = SAMPLER_OPTIONS[config.sampler.name]
    for name in _changed(config.sampler):
        if name not in (*taken, "name"):
            raise ArgumentError(
                f"the sampler {config.sampler.name!r} takes no {name}; "
                f"it takes {', '.join(taken) or 'no options'}."
            )
    chosen = (config.model.learner, config.model.backbone)
    for option, (plays_a_part, needed) in _CONDITIONAL.items():
        section, name = option.split(".")
        if name in _changed(getattr(config, section)) and not plays_a_part(config):
            raise ArgumentError(f"{option} was set, but plays no part without {needed}.")
    for name in (*LEARNERS, *BACKBONES):
        changed = _changed(config.options_of(name))
        if changed and name not in chosen:
            raise ArgumentError(
                f"{section_name(name)}.{changed[0]} was set, but this run has the learner "
                f"{config.model.learner!r} on the backbone {config.model.backbone!r}. Leave it "
                f"out, or choose {name}."
            )


def _changed(section: Any) -> list[str]:
    """Return the fields of a section that are not as they are by default."""
    return [f.name for f in fields(section) if getattr(section, f.name) != f.default]
