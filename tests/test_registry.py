import importlib
import sys
from importlib.metadata import EntryPoint

import pytest

from adaptask.errors import ArgumentError
from adaptask.registry import BACKBONES, LEARNERS, SAMPLERS, Registry, describe_class

MODULE = """
class Pair:
    def __init__(self, *, left, right=2):
        self.sides = (left, right)

    def sample(self): ...

class Bare: ...

pair = 5
"""


@pytest.fixture
def things(tmp_path, monkeypatch):
    """A registry with a class of a module of its own."""
    (tmp_path / "some_things.py").write_text(MODULE)
    (tmp_path / "broken_things.py").write_text("import nothing_of_that_name")
    monkeypatch.syspath_prepend(tmp_path)
    yield Registry("thing", {"pair": "some_things:Pair"}, needs=("sample",))
    sys.modules.pop("some_things", None)


def test_a_class_is_built_by_its_name_or_its_address(things):
    assert things.build("pair", {"left": 1}).sides == (1, 2)
    assert things.build("some_things:Pair", {"left": 1, "right": 3}).sides == (1, 3)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("pear", {"left": 1}, "there is no thing 'pear'; did you mean 'pair'[?] There are pair[.]"),
        ("x", {"left": 1}, "there is no thing 'x'; there are pair[.]"),
        (
            "nets:small:max_width=3,depth=2",
            {},
            "name 'nets:small', and give .* --thing.max-width 3 --thing.depth 2[.]",
        ),
        ("pair", {"left": 1, "up": 2, "down": 3}, "takes no down, up; it takes left, right"),
        ("pair", {"right": 1}, "The thing 'pair' needs left"),
        ("some_things:Bare", {}, "needs the methods sample; Bare has no sample"),
        ("some_things:pair", {}, "must be a class; it is a int"),
        ("some_things:Triple", {}, "cannot be imported: AttributeError"),
        ("nowhere:Pair", {}, "cannot be imported: ModuleNotFoundError"),
        ("broken_things:Pair", {}, "cannot be imported: .*nothing_of_that_name"),
        ("some things:Pair", {}, "there is no thing 'some things:Pair'"),
        (None, {}, "there is no thing None"),
    ],
)
def test_what_cannot_be_built_is_refused(things, name, settings, message):
    with pytest.raises(ArgumentError, match=message):
        things.build(name, settings)


def test_installed_packages_add_names_but_replace_none(things, monkeypatch):
    points = [
        EntryPoint("twin", "some_things:Pair", "adaptask.things"),
        EntryPoint("pair", "some_things:Bare", "adaptask.things"),
    ]
    monkeypatch.setattr("adaptask.registry.entry_points", lambda group: points)
    assert list(things) == ["pair", "twin"]
    assert things.build("twin", {"left": 5}).sides == (5, 2)
    assert things["pair"].__name__ == "Pair"


def test_names_are_checked_without_importing_anything(things):
    assert things.check_name("pair") == "pair"
    assert things.check_name("some_things:Pair") == "some_things:Pair"
    assert "some_things" not in sys.modules


@pytest.mark.parametrize("registry", [SAMPLERS, LEARNERS, BACKBONES], ids=lambda r: r.kind)
def test_every_class_that_is_built_in_can_be_imported(registry):
    assert len({registry[name] for name in registry}) == len(registry)


def test_a_class_has_the_name_under_which_it_is_found(things):
    import some_things

    assert things.name_of(some_things.Pair) == "pair"
    assert things.name_of(some_things.Bare) == "some_things:Bare"


def test_a_class_that_cannot_be_found_again_has_no_name(things):
    class Local: ...

    with pytest.raises(ArgumentError, match="must be defined at the top level"):
        things.name_of(Local)
    Local.__qualname__, Local.__module__ = "Bare", "some_things"
    with pytest.raises(ArgumentError, match="must be defined at the top level"):
        things.name_of(Local)


# Versions -----------------------------------------------------------------------------------------

SCRIPT = """
import os
from math import exp, pi

SCALE = 2 * pi  # a circle

def helper(x):
    return SCALE * exp(x)

def other(x):
    return x

class Mine:
    def sample(self):
        "Return it."
        result = helper(1)
        return result

Mine.limit = 3

if __name__ == "__main__":
    result = other(seeds=5)
"""


def version_of(text, folder, name="Mine"):
    """The version of a class whose module has that text."""
    (folder / "a_script.py").write_text(text)
    sys.modules.pop("a_script", None)
    try:
        module = importlib.import_module("a_script")
        return describe_class(f"a_script:{name}", getattr(module, name))["code"]
    finally:
        sys.modules.pop("a_script", None)


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("helper(1)", "helper(2)", True),
        ("2 * pi", "3 * pi", True),
        ("return SCALE *", "return -SCALE *", True),
        ("from math import exp, pi", "from numpy import exp, pi", True),
        ("limit = 3", "limit = 4", True),
        ("  # a circle", "", False),
        ("Return it.", "Return the result.", False),
        ('        "Return it."\n', "", False),
        ("import exp, pi", "import cos, exp, pi", False),
        ("2 * pi", "(2  *  pi)", False),
        ("    return x\n", "    return -x\n", False),
        ("seeds=5", "seeds=6", False),
    ],
)
def test_the_version_of_a_class_is_that_of_the_code_it_uses(
    tmp_path, monkeypatch, old, new, counts
):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert SCRIPT.count(old) == 1
    before = version_of(SCRIPT, tmp_path)
    importlib.invalidate_caches()
    assert (version_of(SCRIPT.replace(old, new), tmp_path) != before) == counts


def test_a_class_that_is_named_where_it_is_imported_has_the_version_of_its_own_module(
    tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "its_home.py").write_text("class Mine:\n    size = 1\n")
    found = [version_of("from its_home import Mine", tmp_path)]
    (tmp_path / "its_home.py").write_text("class Mine:\n    size = 20\n")
    found.append(version_of("from its_home import Mine", tmp_path))
    sys.modules.pop("its_home")
    assert found[0] != found[1]
