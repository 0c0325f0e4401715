import pytest

from adaptask.arguments import build_from
from adaptask.errors import ArgumentError


class Pair:
    def __init__(self, *, left, right=2):
        self.sides = (left, right)


def test_an_entry_of_a_registry_is_built_by_name():
    assert build_from({"pair": Pair}, "thing", "pair", {"left": 1}).sides == (1, 2)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("pear", {"left": 1}, "thing must be one of pair; got 'pear'"),
        ("pair", {"left": 1, "up": 2, "down": 3}, "takes no down, up; it takes left, right"),
        ("pair", {"right": 1}, "The thing 'pair' needs left"),
    ],
)
def test_what_cannot_be_built_is_refused(name, settings, message):
    with pytest.raises(ArgumentError, match=message):
        build_from({"pair": Pair}, "thing", name, settings)
