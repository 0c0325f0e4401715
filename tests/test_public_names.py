"""`import adaptask` is quick, and offers every public name to people, editors and type checkers."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import adaptask

SOURCE = Path(adaptask.__file__)


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_imports_nothing_else_of_it_and_no_torch():
    code = "import sys, adaptask; print(*(n for n in sys.modules if n.startswith('adaptask')))"
    assert run(code).split() == ["adaptask"]
    assert run("import sys, adaptask; dir(adaptask); print('torch' in sys.modules)") == "False\n"


def test_an_error_class_needs_no_torch():
    code = "import sys, adaptask; adaptask.AdaptaskError; print('torch' in sys.modules)"
    assert run(code) == "False\n"


@pytest.mark.parametrize("name", adaptask.__all__)
def test_every_public_name_is_found_and_listed(name):
    assert getattr(adaptask, name) is not None
    assert name in dir(adaptask)


@pytest.mark.parametrize("name", adaptask._SUBMODULES)
def test_modules_are_attributes_of_the_package(name):
    assert getattr(adaptask, name) is importlib.import_module(f"adaptask.{name}")
    assert name in dir(adaptask)


def test_a_star_import_brings_them_all():
    namespace = {}
    exec("from adaptask import *", namespace)
    assert set(adaptask.__all__) <= namespace.keys()


def test_a_name_that_there_is_not_is_refused():
    with pytest.raises(AttributeError, match="module 'adaptask' has no attribute 'GPCSampler'"):
        _ = adaptask.GPCSampler


def test_type_checkers_are_told_the_same_names_as_people():
    block = next(node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    told = {(n.module, a.name, a.asname) for n in block.body for a in n.names}
    names = {(f"adaptask.{module}", name, name) for name, module in adaptask._MODULE_OF.items()}
    assert told == names | {("adaptask", name, name) for name in adaptask._SUBMODULES}
