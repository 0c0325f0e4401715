"""The options of samplers, learners and backbones, made from the constructors of their classes.

An option is a keyword argument with a default that a command line can set; its help text is its
line in `Args:` of the class docstring. Nothing else lists options: a class that is added, built in
or as a plug-in, has its flags, its section of `config.toml` and its checks from here.

>>> configure("sampler", "gcp", tau=0.7).tau
0.7
>>> configure("sampler", "uniform", power=2)
Traceback (most recent call last):
adaptask.errors.ArgumentError: the sampler 'uniform' takes no power; it takes no options.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import docstring_parser
from tyro.conf import Suppress, arg

from adaptask.errors import ArgumentError
from adaptask.registry import (
    BACKBONES,
    LEARNERS,
    SAMPLERS,
    constructors,
    describe_class,
    description_of,
)

REGISTRIES = {"sampler": SAMPLERS, "learner": LEARNERS, "backbone": BACKBONES}
"""The three kinds of algorithms that a run is made of."""
_SUPPLIED = {
    "sampler": {
        **dict.fromkeys(("n_classes", "n_way", "seed", "device"), True),
        **dict.fromkeys(("n_features", "groups", "variant_of"), False),
    },
    "learner": {"backbone": True, "n_way": False, "n_classes": False},
    "backbone": {"image_shape": False},
}
"""Arguments that the package passes to a constructor, and whether it must take them; they are not
options."""
SHORT_FLAGS = ("alpha", "tau", "strategy")
"""Options of samplers that have a flag without the name of the section, too."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """A sampler, a learner or a backbone by its name, with the options of its class.

    The subclasses with the options are generated; `configure` returns an instance.
    """

    name: str
    """A name of the registry, or `package.module:Class`."""
    _kind: ClassVar[str] = ""
    _name: ClassVar[str] = ""

    if TYPE_CHECKING:  # the options, which differ from class to class

        def __getattr__(self, name: str) -> Any: ...

    def __post_init__(self) -> None:
        if self._kind and self.name != self._name:
            raise ArgumentError(
                f"these are the options of the {self._kind} {self._name!r}; choose another one "
                f"with configure({self._kind!r}, {self.name!r})."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # A generated class cannot be found by its name in another process.
        return partial(configure, self._kind, self.name, **options_of(self)), ()


@dataclass(frozen=True)
class _Option:
    """An option of a class."""

    type: Any
    default: Any
    help: str


def configure(kind: str, name: str, /, **options: Any) -> AlgorithmConfig:
    """Return the section of a configuration that chooses an algorithm.

    Args:
        kind: `sampler`, `learner` or `backbone`.
        name: A name of the registry, or `package.module:Class`.
        **options: Options of its class; the others have the defaults of its constructor.

    Raises:
        ArgumentError: If there is no such class, it cannot be used, or it takes no such option.
    """
    section = section_class(kind, name)
    known = [item.name for item in fields(section) if item.name != "name"]
    check_taken(kind, [name], known, options)
    return section(name, **options)


def check_taken(
    kind: str, names: Iterable[str], known: Iterable[str], given: Iterable[str]
) -> None:
    """Check that options are among those that some algorithms take.

    Raises:
        ArgumentError: If one is not; the message has what they take, and the nearest.
    """
    known, names = list(known), list(names)
    if unknown := [option for option in given if option not in known]:
        who, options = " and ".join(map(repr, names)), ", ".join(known) or "no options"
        near = difflib.get_close_matches(unknown[0], known, n=1)
        guess = f" Did you mean {near[0]}?" if near else ""
        if kind == "sampler" and unknown[0] in SHORT_FLAGS:
            guess = f" Choose a sampler that has {unknown[0]}, such as gcp."
        if len(names) > 1:
            raise ArgumentError(
                f"the {kind}s {who} take no {', '.join(unknown)}; they take {options}.{guess}"
            )
        parameters, _ = _parameters(REGISTRIES[kind][names[0]])
        if unknown[0] in parameters and unknown[0] not in _SUPPLIED[kind]:
            raise ArgumentError(
                f"{unknown[0]} of the {kind} {who} cannot be an option, because of its type; it "
                f"takes {options}. Name a class or a function of your own that passes it."
            )
        raise ArgumentError(
            f"the {kind} {who} takes no {', '.join(unknown)}; it takes {options}.{guess}"
        )


def options_of(section: AlgorithmConfig) -> dict[str, Any]:
    """Return the options of a section by their names."""
    return {item.name: getattr(section, item.name) for item in fields(section)[1:]}


def class_of(section: AlgorithmConfig) -> type[Any]:
    """Return the class that a section chooses."""
    return REGISTRIES[section._kind][section.name]


def takes_argument(section: AlgorithmConfig, argument: str) -> bool:
    """Return whether the constructor of the chosen class has an argument."""
    parameters, _ = _parameters(class_of(section))
    return argument in parameters


def short_name(name: str) -> str:
    """Return what an algorithm is called in tables and names of folders.

    >>> short_name("gcp"), short_name("my_package.samplers:MySampler")
    ('gcp', 'MySampler')
    """
    return name.rpartition(":")[2]


def describe(section: AlgorithmConfig) -> dict[str, Any]:
    """Return what a report needs to know about the algorithm, for `algorithms.json`."""
    return describe_class(section.name, class_of(section))


# Generated sections -------------------------------------------------------------------------------


def section_class(kind: str, name: str) -> type[AlgorithmConfig]:
    """Return the class of the section with the options of an algorithm.

    Raises:
        ArgumentError: If there is no such algorithm, or it cannot be used in a run.
    """
    found: Any = REGISTRIES[kind][name]
    return _section_class(kind, name, found)


@cache
def _section_class(kind: str, name: str, found: Any) -> type[AlgorithmConfig]:
    options = _class_options(kind, name, found)
    return _make_section(kind, name, found.__name__, options, description_of(found))


def shared_section(kind: str, names: Sequence[str], *, hide_name: bool) -> AlgorithmConfig:
    """Return a section with the options of several algorithms.

    It serves a command line whose options apply to every algorithm that takes them.

    Args:
        kind: `sampler`, `learner` or `backbone`.
        names: Of the algorithms.
        hide_name: Whether the command line has another way to choose them.
    """
    options: dict[str, _Option] = {}
    for name in names:
        for option, found in _class_options(kind, name, REGISTRIES[kind][name]).items():
            known = options.setdefault(option, found)
            if known.type != found.type:
                options[option] = _Option(Union[known.type, found.type], known.default, known.help)  # noqa: UP007
    text = f"Options of the {kind}s, for those that take them"
    return _make_section(kind, names[0], "Shared", options, text, hide_name=hide_name)(names[0])


def _make_section(
    kind: str,
    name: str,
    class_name: str,
    options: Mapping[str, _Option],
    text: str,
    *,
    hide_name: bool = False,
) -> type[AlgorithmConfig]:
    """Return a dataclass from which `config.toml` and the command line can be made."""
    flag = arg(name=kind, prefix_name=False, metavar="NAME", help=f"The {kind}; see adaptask list.")
    name_type: Any = Suppress[str] if hide_name else Annotated[str, flag]
    members: list[Any] = [("name", name_type, field(default=name))]
    for option, found in options.items():
        is_short = kind == "sampler" and option in SHORT_FLAGS
        aliases = (f"--{option.replace('_', '-')}",) if is_short else None
        settings = arg(help=found.help, aliases=aliases, metavar=_metavar(found.type))
        members.append((option, Annotated[found.type, settings], field(default=found.default)))
    return make_dataclass(
        f"{class_name}Options",
        members,
        bases=(AlgorithmConfig,),
        namespace={"_kind": kind, "_name": name, "__doc__": f"{text}."},
        frozen=True,
    )


def _metavar(hint: Any) -> str | None:
    """Return what the help shows for an option that may be None; otherwise tyro's own."""
    others = [kind for kind in get_args(hint) if kind is not NoneType]
    if get_origin(hint) in (Union, UnionType) and len(others) == 1:
        return getattr(others[0], "__name__", "value").upper()
    return None


# Constructors -------------------------------------------------------------------------------------


def _class_options(kind: str, name: str, found: type[Any]) -> dict[str, _Option]:
    """Return the options of a class, after checking that a run can build it.

    Raises:
        ArgumentError: If it cannot.
    """
    if getattr(found, "draws", "tasks") != "tasks":
        raise ArgumentError(
            f"the sampler {name!r} draws {found.draws}, not tasks; a run needs one that draws "
            "tasks. Use it with a DataLoader."
        )
    parameters, takes_any = _parameters(found)
    supplied = _SUPPLIED[kind]
    needed = [argument for argument, is_required in supplied.items() if is_required]
    lacking = [p for p in needed if p not in parameters]
    if lacking and not takes_any:
        raise ArgumentError(
            f"the constructor of the {kind} {name!r} must take {', '.join(needed)} as keyword "
            f"arguments; it has no {', '.join(lacking)}."
        )
    options = {}
    for option, (hint, default, text) in parameters.items():
        if option in supplied:
            continue
        if default is inspect.Parameter.empty:
            advice = "give this argument a default"
            if not inspect.isclass(found):
                advice += ", or name a function of your own that passes it"
            raise ArgumentError(
                f"the constructor of the {kind} {name!r} needs {option}, which nobody passes to "
                f"it; {advice}."
            )
        if option == "name":
            raise ArgumentError(
                f"an option of the {kind} {name!r} must not be called name, which is that of the "
                f"{kind} itself."
            )
        if isinstance(default, list):
            default = tuple(default)  # a default must not be changed by anybody
        if hint is not NoneType and can_be_set(hint):
            # Much code has arguments such as `width: int = None`.
            options[option] = _Option(hint if default is not None else hint | None, default, text)
    return options


def _parameters(found: type[Any]) -> tuple[dict[str, tuple[Any, Any, str]], bool]:
    """Return type, default and help of the arguments of a class, and whether it takes any other."""
    parameters: dict[str, tuple[Any, Any, str]] = {}
    takes_any = False
    for constructor, docstring, own in constructors(found):
        try:
            hints = get_type_hints(constructor)
        except Exception:  # such as a name that exists for type checkers only
            hints = {}
        documented = docstring_parser.parse(docstring).params
        helps = {param.arg_name: param.description or "" for param in documented}
        for p in own:
            if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
                hint = hints.get(p.name, type(p.default))
                text = " ".join(helps.get(p.name, "").split())
                parameters.setdefault(p.name, (hint, p.default, text))
        takes_any = any(p.kind is p.VAR_KEYWORD for p in own)
    return parameters, takes_any


def can_be_set(hint: Any) -> bool:
    """Return whether a command line and a TOML file can set values of a type.

    >>> can_be_set(int | None), can_be_set(tuple[int, ...]), can_be_set(dict)
    (True, True, False)
    """
    if get_origin(hint) is Literal:
        return all(isinstance(choice, str) for choice in get_args(hint))
    if get_origin(hint) in (Union, UnionType, tuple):
        return all(kind is Ellipsis or can_be_set(kind) for kind in get_args(hint))
    return hint in (int, float, bool, str, NoneType)
