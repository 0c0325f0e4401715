"""Every sampler, learner and backbone by its name: built in, installed, or a plug-in.

This is the one place that knows the names, and it imports no torch. A built-in name stands for the
address of a class, `module:Class`. Packages that are installed add names by entry points, and any
other class can be named by its address, for backbones any function, too:

>>> SAMPLERS["gcp"].__name__
'GCPSampler'
>>> SAMPLERS["collections:OrderedDict"]
Traceback (most recent call last):
adaptask.errors.ArgumentError: the sampler 'collections:OrderedDict' needs the methods sample, ...
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from adaptask.code_version import code_version
from adaptask.errors import ArgumentError


class Registry(Mapping[str, type[Any]]):
    """Classes of one kind by their names. A class is imported when it is asked for.

    Args:
        kind: What the classes are, such as "sampler".
        builtin: Their addresses by their names.
        needs: Methods that every class of this kind must have.
        takes_functions: Whether a function that returns an object may stand for a class.
    """

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, str],
        *,
        needs: tuple[str, ...],
        takes_functions: bool = False,
    ) -> None:
        self.kind = kind
        self._builtin = dict(builtin)
        self._needs = needs
        self._takes_functions = takes_functions

    @property
    def group(self) -> str:
        """The group of entry points that add names, such as `adaptask.samplers`."""
        return f"adaptask.{self.kind}s"

    @cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        """Entry points by their names; a package cannot replace what is built in."""
        found = entry_points(group=self.group)
        return {point.name: point for point in found if point.name not in self._builtin}

    def check_name(self, name: object) -> str:
        """Return a name if it stands for a class, without importing anything.

        Raises:
            ArgumentError: If there is none of that name, and it is no address of a class; the
                message has the nearest name and all of them.
        """
        if isinstance(name, str) and (name in self or is_address(name)):
            return name
        base, _, options = str(name).rpartition(":")
        if base and "=" in options:
            given = (option.partition("=") for option in options.split(","))
            flags = [f"--{self.kind}.{key.replace('_', '-')} {value}" for key, _, value in given]
            raise ArgumentError(
                f"there is no {self.kind} {name!r}; name {base!r}, and give its options by "
                f"themselves: {' '.join(flags)}."
            )
        near = difflib.get_close_matches(str(name), self, n=1)
        guess = f"did you mean {near[0]!r}? There" if near else "there"
        raise ArgumentError(
            f"there is no {self.kind} {name!r}; {guess} are {', '.join(self)}. "
            f"Your own {self._expected} is named as package.module:Name."
        )

    def __getitem__(self, name: str) -> type[Any]:
        """Return the class of that name or address; also a function, if this registry takes them.

        Raises:
            ArgumentError: If there is none, it cannot be imported, or it lacks a method.
        """
        self.check_name(name)
        address = self._builtin.get(name, name)
        if name in self._installed:
            address = self._installed[name].value
        found: type[Any] = self._import(address)
        missing = [method for method in self._needs if not hasattr(found, method)]
        if missing and inspect.isclass(found):  # what a function returns is not known yet
            raise ArgumentError(
                f"the {self.kind} {name!r} needs the methods {', '.join(self._needs)}; "
                f"{found.__name__} has no {', '.join(missing)}."
            )
        return found

    def name_of(self, found: type[Any]) -> str:
        """Return the name under which a class is found: a built-in one, or its address.

        >>> from adaptask.samplers import GCPSampler
        >>> SAMPLERS.name_of(GCPSampler)
        'gcp'

        Raises:
            ArgumentError: If the class cannot be found again, such as one defined in a function.
        """
        address = f"{found.__module__}:{found.__qualname__}"
        builtin = {place: name for name, place in self._builtin.items()}
        if address in builtin:
            return builtin[address]
        if not is_address(address) or self._import(address) is not found:
            raise ArgumentError(
                f"the {self.kind} {found.__qualname__} must be defined at the top level of a "
                "module, a script or a notebook; move it there."
            )
        return address

    def __iter__(self) -> Iterator[str]:
        yield from self._builtin
        yield from self._installed

    def __len__(self) -> int:
        return len(self._builtin) + len(self._installed)

    def __contains__(self, name: object) -> bool:
        """Return whether a name is built in or installed, without importing its class."""
        return name in self._builtin or name in self._installed

    def build(self, name: str, settings: Mapping[str, Any]) -> Any:
        """Build an object of the class of that name.

        Args:
            name: A name or an address.
            settings: The keyword arguments of the class.

        Raises:
            ArgumentError: If there is no such class, it does not take such an argument, one that
                it needs is missing, or it refuses a value.
        """
        found = self[name]
        parameters = inspect.signature(found).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if (unknown := settings.keys() - parameters.keys()) and not takes_any:
            raise ArgumentError(
                f"The {self.kind} {name!r} takes no {', '.join(sorted(unknown))}; "
                f"it takes {', '.join(parameters)}."
            )
        required = [
            key
            for key, p in parameters.items()
            if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
        if missing := [key for key in required if key not in settings]:
            raise ArgumentError(f"The {self.kind} {name!r} needs {', '.join(missing)}.")
        try:
            return found(**settings)
        except ArgumentError:
            raise
        except (TypeError, ValueError) as error:  # how classes of others refuse a value
            raise ArgumentError(f"the {self.kind} {name!r} cannot be built: {error}") from error
        except Exception as error:  # whatever else they raise, such as a failed download
            if name in self._builtin:
                raise
            reason = f"{type(error).__name__}: {error}"
            raise ArgumentError(f"the {self.kind} {name!r} cannot be built: {reason}") from error

    @property
    def _expected(self) -> str:
        return "class or function" if self._takes_functions else "class"

    def _import(self, address: str) -> Any:
        """Return the class at an address, or the function.

        Raises:
            ArgumentError: If it cannot be imported, or is something else.
        """
        found = import_object(address, self.kind)
        is_function = inspect.isfunction(found) or inspect.ismethod(found)
        if not inspect.isclass(found) and not (self._takes_functions and is_function):
            raise ArgumentError(
                f"the {self.kind} {address!r} must be a {self._expected}; it is a "
                f"{type(found).__name__}."
            )
        return found


def description_of(found: type[Any]) -> str:
    """Return what a class is, in one line: its `description`, or the start of its docstring."""
    first_line = (inspect.getdoc(found) or "").partition("\n")[0]
    return str(getattr(found, "description", "") or first_line).rstrip(".")


def describe_class(name: str, found: type[Any]) -> dict[str, Any]:
    """Return what a report needs to know about a class, for `algorithms.json`."""
    description: dict[str, Any] = {
        "name": name,
        "class": f"{found.__module__}:{found.__qualname__}",
        "description": description_of(found),
    }
    if hasattr(found, "learns"):  # a sampler
        description["learns"] = bool(found.learns)
    places = {(found.__module__, found.__qualname__)}
    if is_address(name):  # where it is found may be another place than where it is defined
        module, _, attribute = name.partition(":")
        places.add((module, attribute))
    if (version := code_version(places)) is not None:
        description["code"] = [version]
    return description


def is_address(name: str) -> bool:
    """Return whether a name is the address of a class, which is code to be imported.

    >>> is_address("my_package.samplers:MySampler"), is_address("gcp")
    (True, False)
    """
    module, colon, attribute = name.partition(":")
    parts = (*module.split("."), *attribute.split("."))
    return bool(colon) and all(part.isidentifier() for part in parts)


def import_object(address: str, kind: str) -> Any:
    """Return what is at an address; modules are also found in the current folder.

    Raises:
        ArgumentError: If it cannot be imported.
    """
    module_name, _, attribute = address.partition(":")
    # A console script, unlike `python -m`, does not search the current folder.
    if not module_name.startswith("adaptask.") and (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the code of the module raises
        raise ArgumentError(
            f"the {kind} {address!r} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    return found


def constructors(
    found: Any,
) -> Iterator[tuple[Callable[..., Any], str, list[inspect.Parameter]]]:
    """Yield the constructor of a class, its docstring and its arguments; a function as it is.

    A constructor with `**kwargs` passes them on to that of a base class, which comes next.
    """
    if not inspect.isclass(found):
        yield found, found.__doc__ or "", list(inspect.signature(found).parameters.values())
        return
    for base in found.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        constructor = vars(base)["__init__"]
        own = list(inspect.signature(constructor).parameters.values())[1:]
        yield constructor, vars(base).get("__doc__") or "", own
        if not any(p.kind is p.VAR_KEYWORD for p in own):
            return


SAMPLERS = Registry(
    "sampler",
    {
        "uniform": "adaptask.samplers.uniform:UniformSampler",
        "c": "adaptask.samplers.c:CSampler",
        "cp": "adaptask.samplers.cp:CPSampler",
        "gcp": "adaptask.samplers.gcp:GCPSampler",
        "neighbor": "adaptask.samplers.neighbor:NeighborSampler",
        "difficulty": "adaptask.samplers.difficulty:DifficultySampler",
        "cvar": "adaptask.samplers.cvar:CVaRSampler",
        "ohtm": "adaptask.samplers.ohtm:OHTMSampler",
        "hard-class": "adaptask.samplers.hard_class:HardClassSampler",
        "repeat": "adaptask.samplers.repeat:RepeatSampler",
        "dpp": "adaptask.samplers.dpp:DPPSampler",
        "hierarchy": "adaptask.samplers.hierarchy:HierarchySampler",
        "learnable": "adaptask.samplers.learnable:LearnableSampler",
        "predictive": "adaptask.samplers.predictive:PredictiveSampler",
        "instance": "adaptask.samplers.instance:InstanceSampler",
    },
    needs=("sample", "update"),
)
"""Every sampler by its name. All but `instance` draw tasks; that one draws single examples."""

LEARNERS = Registry(
    "learner",
    {
        "protonet": "adaptask.learners.protonet:ProtoNet",
        "matchingnet": "adaptask.learners.matchingnet:MatchingNet",
        "relationnet": "adaptask.learners.relationnet:RelationNet",
        "maml": "adaptask.learners.maml:MAML",
        "maml++": "adaptask.learners.maml_plus_plus:MAMLPlusPlus",
        "anil": "adaptask.learners.anil:ANIL",
        "reptile": "adaptask.learners.reptile:Reptile",
        "metaoptnet-ridge": "adaptask.learners.metaoptnet:MetaOptNetRidge",
        "metaoptnet-svm": "adaptask.learners.metaoptnet:MetaOptNetSVM",
        "r2d2": "adaptask.learners.r2d2:R2D2",
        "meta-baseline": "adaptask.learners.meta_baseline:MetaBaseline",
        "classifier": "adaptask.learners.classifier:Classifier",
    },
    needs=("forward", "parameters", "state_dict", "load_state_dict"),
)
"""Every learner by its name."""

BACKBONES = Registry(
    "backbone",
    {
        "conv4": "adaptask.backbones.conv4:Conv4",
        "identity": "adaptask.backbones.identity:IdentityBackbone",
        "linear": "adaptask.backbones.linear:LinearBackbone",
        "mlp": "adaptask.backbones.mlp:MLP",
        "resnet12": "adaptask.backbones.resnet12:ResNet12",
    },
    needs=("forward", "parameters", "state_dict", "load_state_dict"),
    takes_functions=True,
)
"""Every backbone by its name."""
