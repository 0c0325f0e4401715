"""Names that come from elsewhere, made fit to be shown: any text may stand in a class's name."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Control, direction marks, halves of characters, unassigned, line ends: break XML or its look."""


_JOINERS = "\u200c\u200d"
"""Unseen too, but Persian, the scripts of India and many emoji are not written without them."""


def clean(text: str) -> str:
    r"""Return a text on one line, with what cannot be seen replaced by U+FFFD.

    >>> clean("a\tb\u202ec")
    'a b�c'
    >>> clean("\u0645\u06cc\u200c\u0631\u0648\u0645") == "\u0645\u06cc\u200c\u0631\u0648\u0645"
    True
    """
    spaced = " ".join(text.split())
    return "".join(
        "\ufffd" if unicodedata.category(c) in _UNSEEN and c not in _JOINERS else c for c in spaced
    )


def shorten(text: str, length: int) -> str:
    """Return a text of at most so many characters, its middle left out where it is longer.

    >>> shorten("latin-small-letter-a", 11)
    'latin…ter-a'
    """
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[len(text) - tail :]}"


def class_labels(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of classes fit to be shown; one without a name gets its number."""
    return tuple(clean(name) or f"(class {number})" for number, name in enumerate(names))
