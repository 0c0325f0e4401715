"""Values of every kind, for arguments that expect something else."""

import importlib
import inspect
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from adaptask.errors import AdaptaskError

settings.register_profile(
    "bad values",
    max_examples=max(25, int(os.environ.get("ADAPTASK_FUZZ_CASES", "1000")) // 200),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

HUGE = (2**31, 2**40, 2**63, 2**70, 10**30, 10**5000)


class Rude:
    """A value that has something against everything."""

    def __index__(self):
        raise RuntimeError("rude")

    __float__ = __bool__ = __len__ = __iter__ = __index__


odd_tensors = st.sampled_from(
    [
        *(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64), torch.zeros(()).long()),
        *(torch.full((2, 3), -1), torch.full((2, 3), 2**62), torch.tensor([[0, 1, 2], [3, 4, 6]])),
        *(torch.tensor([[0, 1, 1], [3, 4, 5]]), torch.zeros(0, 3, dtype=torch.int64)),
        *(torch.zeros(2, 3, device="meta"), torch.tensor([[0, 1, 2], [3, 4, 5]]).to_sparse()),
        *(torch.zeros(2, 3, 3), torch.full((2, 3, 3), torch.nan), torch.full((2, 3, 3), 1 / 3)),
        *(torch.full((2, 3, 3), torch.inf), torch.full((2, 3, 3), -1.0), torch.eye(3).half()),
        *(torch.full((2, 3, 3), 1 / 3).to_sparse(), torch.full((2, 3, 3), 1 / 3 + 0j)),
        *(torch.zeros(2, 3, dtype=torch.bool), torch.full((2, 0, 3), 1 / 3), torch.arange(3)),
        *(torch.zeros(1, 3, dtype=torch.int8), torch.full((2, 3), 5), torch.arange(3).int()),
        *(torch.full((2, 3, 3), 1 / 3, requires_grad=True), torch.full((3, 3), 1 / 3)),
        *(torch.full((7, 2), 0.5), torch.zeros(7, dtype=torch.int64), torch.full((7,), 2**40)),
        *(torch.zeros(6, 6), torch.full((6, 6), torch.nan), torch.zeros(4, requires_grad=True)),
        *(torch.full((2, 1, 4, 4), 7, dtype=torch.uint8), torch.zeros(2, 3, 1, 16, 16)),
    ]
)
odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from([*HUGE, *(-n for n in HUGE)]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["auto", "none", "hard", "easy", "mean", "all", "gibbs", "cpu", "cuda:9"]),
    st.binary(max_size=4),
    st.lists(st.one_of(st.integers(-2, 70), st.floats(), st.none()), max_size=4),
    st.tuples(st.integers(-1, 40), st.integers(0, 40), st.integers(0, 40)),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    # In small groups, so that each comes up now and then.
    st.sampled_from([object, Rude(), len, torch.nn.Linear(2, 2)]),
    st.sampled_from([1j, np.float64(2), np.int64(3), np.bool_(True), np.zeros(3)]),
    st.sampled_from([torch.tensor(2), torch.zeros(2), torch.tensor(1.5), torch.zeros(0)]),
    st.sampled_from([torch.float16, torch.float64, torch.device("cpu"), torch.device("meta")]),
    st.sampled_from([[[1, 2], [3]], np.array(["a"], dtype=object), {1, 2}, range(3)]),
)


def oddly(draw, good):
    """Draw something odd; in place of a dictionary or list also it with one odd value in it."""
    if isinstance(good, dict | list) and good and draw(st.booleans()):
        inside = dict(good) if isinstance(good, dict) else list(good)
        key = draw(st.sampled_from(list(inside) if isinstance(good, dict) else range(len(inside))))
        inside[key] = oddly(draw, inside[key])
        return inside
    return draw(st.one_of(odd_values, odd_tensors))


@st.composite
def odd_inside(draw, good):
    """Draw what is odd in place of something good, or in place of a part of it."""
    return oddly(draw, good)


@st.composite
def some_odd(draw, call, whole):
    """Draw odd values for one, two or three of the arguments that something takes."""
    parameters = inspect.signature(call).parameters.values()
    named = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} | whole.keys()
    names = st.sampled_from(sorted(named - {"self"}))
    chosen = draw(st.lists(names, min_size=1, max_size=min(3, len(named)), unique=True))
    return {name: oddly(draw, whole.get(name)) for name in chosen}


@pytest.fixture(scope="session")
def odd():
    """Strategies: odd `values`, odd `tensors`, and what has something odd `inside`."""
    return SimpleNamespace(values=odd_values, tensors=odd_tensors, inside=odd_inside)


@pytest.fixture
def try_call(tiny):
    """Calls something with odd arguments in place of some: it works or is refused."""

    def try_call(call, arguments, data, then=None, refusals=AdaptaskError):
        whole = arguments()
        odd = data.draw(some_odd(call, whole))
        try:
            result = call(**{**whole, **odd})
        except refusals:
            return
        if then is not None:
            then(result, odd)

    return try_call


# --- what is public ------------------------------------------------------------------------------


def takes_arguments(call):
    return bool(inspect.signature(call).parameters.keys() - {"self"})


def methods_of(found):
    """Yield the public methods of a class that are written in the package."""
    for name in dir(found):
        member = inspect.getattr_static(found, name)
        ours = inspect.isfunction(member) and member.__module__.startswith("adaptask.")
        if ours and (name == "__call__" or not name.startswith("_")):
            yield member


def exported(module):
    """Return what a module says that it exports, else what is written in it."""
    if hasattr(module, "__all__"):
        return [getattr(module, name) for name in module.__all__]
    written = (v for name, v in vars(module).items() if not name.startswith("_"))
    return [v for v in written if getattr(v, "__module__", None) == module.__name__]


def public_calls(*packages):
    """Return all constructors, functions and methods that take arguments."""
    calls = set()
    for package in packages:
        module = importlib.import_module(f"adaptask.{package}")
        own = [
            n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__
        ]
        names = getattr(module, "__all__", [name for name in own if not name.startswith("_")])
        for found in (getattr(module, name) for name in names):
            if inspect.isclass(found) and not getattr(found, "_is_protocol", False):
                calls |= {*methods_of(found), *([] if inspect.isabstract(found) else [found])}
            elif inspect.isfunction(found):
                calls.add(found)
    return {call for call in calls if takes_arguments(call)}


def everything_is_listed(packages, calls, reasons):
    found = public_calls(*packages)
    listed = {call for call in {*calls, *reasons} if call.__module__.startswith("adaptask.")}
    new, gone = (sorted(c.__qualname__ for c in some) for some in (found - listed, listed - found))
    assert not new, f"call them, or give a reason why not: {new}"
    assert not gone, f"no longer public: {gone}"
    assert not calls.keys() & reasons.keys()


@pytest.fixture(scope="session")
def check_listed():
    """Checks that everything public in some packages is called, or that there is a reason."""
    return everything_is_listed
