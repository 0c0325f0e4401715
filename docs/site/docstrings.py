"""What mkdocstrings is handed of the docstrings: doctests as code, and nothing of mere printing."""

from __future__ import annotations

import re
from typing import Any

from griffe import Class, Extension, Object

_DOCTEST = re.compile(r"(?:^>>> .*\n?(?:^(?!>>>)\S.*\n?|^>>> .*\n?|^\.\.\. ?.*\n?)*)+", flags=re.M)
_LEFT_OUT = ("extra_repr",)


class Docstrings(Extension):
    """Changes docstrings before they are rendered."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Put the doctests of an object into fences."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """Leave out methods that only serve printing."""
        for name in _LEFT_OUT:
            cls.members.pop(name, None)


def fenced(text: str) -> str:
    """Return a docstring with its doctests in fences."""
    return _DOCTEST.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
