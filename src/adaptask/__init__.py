"""Adaptive task sampling for few-shot meta-learning.

Everything listed in `__all__` can be imported from here. A name is imported when it is first used,
so `import adaptask` itself stays quick and needs no torch.

>>> import adaptask
>>> sampler = adaptask.GCPSampler(n_classes=64, n_way=5, seed=0)
>>> sampler.sample(n_tasks=8).shape
torch.Size([8, 5])
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for True; importing `typing` would take 15 ms
if TYPE_CHECKING:  # what they and editors read; a test holds it equal to the table below
    from adaptask import backbones as backbones
    from adaptask import comparison as comparison
    from adaptask import conformance as conformance
    from adaptask import data as data
    from adaptask import errors as errors
    from adaptask import integrations as integrations
    from adaptask import interfaces as interfaces
    from adaptask import learners as learners
    from adaptask import registry as registry
    from adaptask import samplers as samplers
    from adaptask import saved_run as saved_run
    from adaptask import theory as theory
    from adaptask import training as training
    from adaptask.backbones import MLP as MLP
    from adaptask.backbones import Backbone as Backbone
    from adaptask.backbones import Conv4 as Conv4
    from adaptask.backbones import IdentityBackbone as IdentityBackbone
    from adaptask.backbones import LinearBackbone as LinearBackbone
    from adaptask.backbones import ResNet12 as ResNet12
    from adaptask.backbones import build_backbone as build_backbone
    from adaptask.comparison import Comparison as Comparison
    from adaptask.comparison import compare as compare
    from adaptask.data import EpisodeSource as EpisodeSource
    from adaptask.data import ImageSet as ImageSet
    from adaptask.data import open_episodes as open_episodes
    from adaptask.errors import AdaptaskError as AdaptaskError
    from adaptask.errors import ArgumentError as ArgumentError
    from adaptask.errors import DataError as DataError
    from adaptask.errors import StateError as StateError
    from adaptask.errors import TrainingError as TrainingError
    from adaptask.integrations.torch import EpisodeBatchSampler as EpisodeBatchSampler
    from adaptask.learners import ANIL as ANIL
    from adaptask.learners import MAML as MAML
    from adaptask.learners import R2D2 as R2D2
    from adaptask.learners import Learner as Learner
    from adaptask.learners import MAMLPlusPlus as MAMLPlusPlus
    from adaptask.learners import MatchingNet as MatchingNet
    from adaptask.learners import MetaOptNetRidge as MetaOptNetRidge
    from adaptask.learners import MetaOptNetSVM as MetaOptNetSVM
    from adaptask.learners import ProtoNet as ProtoNet
    from adaptask.learners import RelationNet as RelationNet
    from adaptask.learners import Reptile as Reptile
    from adaptask.learners import build_learner as build_learner
    from adaptask.samplers import CPSampler as CPSampler
    from adaptask.samplers import CSampler as CSampler
    from adaptask.samplers import GCPSampler as GCPSampler
    from adaptask.samplers import InstanceSampler as InstanceSampler
    from adaptask.samplers import NeighborSampler as NeighborSampler
    from adaptask.samplers import Sampler as Sampler
    from adaptask.samplers import UniformSampler as UniformSampler
    from adaptask.samplers import build_sampler as build_sampler
    from adaptask.saved_run import SavedRun as SavedRun
    from adaptask.saved_run import load_run as load_run
    from adaptask.training import Evaluator as Evaluator
    from adaptask.training import Trainer as Trainer

__version__ = "0.1.0"

_EXPORTS = {
    "backbones": (
        *("MLP", "Backbone", "Conv4", "IdentityBackbone", "LinearBackbone", "ResNet12"),
        "build_backbone",
    ),
    "comparison": ("Comparison", "compare"),
    "data": ("EpisodeSource", "ImageSet", "open_episodes"),
    "errors": ("AdaptaskError", "ArgumentError", "DataError", "StateError", "TrainingError"),
    "learners": (
        *("ANIL", "MAML", "R2D2", "Learner", "MAMLPlusPlus", "MatchingNet", "MetaOptNetRidge"),
        *("MetaOptNetSVM", "ProtoNet", "RelationNet", "Reptile", "build_learner"),
    ),
    "samplers": (
        *("CPSampler", "CSampler", "GCPSampler", "InstanceSampler", "NeighborSampler", "Sampler"),
        *("UniformSampler", "build_sampler"),
    ),
    "saved_run": ("SavedRun", "load_run"),
    "training": ("Evaluator", "Trainer"),
}
"""The public names by the module, below this one, that has them."""

_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}
_MODULE_OF["EpisodeBatchSampler"] = "integrations.torch"
_SUBMODULES = ("conformance", "integrations", "interfaces", "registry", "theory", *_EXPORTS)

__all__ = sorted([*_MODULE_OF, "__version__"])


if not TYPE_CHECKING:  # so that they find names that there are not

    def __getattr__(name: str) -> object:
        """Import a public name, or a module of the package, when it is first used."""
        from importlib import import_module  # not above: it would double the time of the import

        if name in _MODULE_OF:
            found = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        elif name in _SUBMODULES:
            found = import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found  # the next use costs nothing
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
