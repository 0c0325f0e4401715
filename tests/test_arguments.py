import pytest

from adaptask.arguments import check_flag, check_integer, check_number, check_seed
from adaptask.errors import ArgumentError


@pytest.mark.parametrize(
    "value",
    [2**31, True, 1.0, "1", None, [1], "x" * 1000],
    ids=["large", "flag", "float", "text", "None", "list", "long"],
)
def test_what_is_no_integer_of_use_is_refused_in_a_short_message(value):
    with pytest.raises(ArgumentError, match="steps must be") as refusal:
        check_integer("steps", value, low=1)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("value", [10**400, True, "1", 1j], ids=["huge", "flag", "text", "complex"])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ArgumentError, match="alpha must be a number"):
        check_number("alpha", value, low=0, high=1e9)


def test_seeds_may_be_as_large_as_torch_takes_them():
    assert check_seed("seed", 2**63 - 1) == 2**63 - 1
    with pytest.raises(ArgumentError, match="seed must be"):
        check_seed("seed", 2**63)


@pytest.mark.parametrize("value", ["no", 0, 1, None])
def test_a_flag_is_true_or_false_and_nothing_else(value):
    assert check_flag("anneal", False) is False
    with pytest.raises(ArgumentError, match="anneal must be True or False"):
        check_flag("anneal", value)
