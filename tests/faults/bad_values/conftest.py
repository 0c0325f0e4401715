"""Values of every kind, for arguments that expect something else."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

settings.register_profile(
    "bad values",
    max_examples=max(25, int(os.environ.get("ADAPTASK_FUZZ_CASES", "1000")) // 200),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

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
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["auto", "none", "hard", "easy", "mean", "all", "gibbs", "cpu", "cuda:9"]),
    st.binary(max_size=4),
    st.lists(st.one_of(st.integers(-2, 70), st.floats(), st.none()), max_size=4),
    st.tuples(st.integers(-1, 40), st.integers(0, 40), st.integers(0, 40)),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    # In small groups, so that each comes up now and then.
    st.sampled_from([len, torch.nn.Linear(2, 2)]),
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


@pytest.fixture(scope="session")
def odd():
    """Strategies: odd `values`, odd `tensors`, and what has something odd `inside`."""
    return SimpleNamespace(values=odd_values, tensors=odd_tensors, inside=odd_inside)
