"""Pickles that are not trusted, read without running anything that is in them.

A pickle is a program: it may name any function and have it called. The unpickler here allows
NumPy arrays of plain numbers or text and the plain containers, as written by Python 2 and
Python 3, and nothing else. A pickle cannot name NumPy's own functions, only stand-ins: they
record the bytes and the type, and the array is built from them after the type has been checked.
If a pickle sets the state of an array that has been built, it reaches NumPy's code, which refuses:
it needs a NumPy type, and none can be named.
"""

from __future__ import annotations

import pickle
import pickletools
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from adaptask.errors import DataError

_BYTE_ORDERS = ("<", ">", "=", "|")
_PLAIN_TYPE = re.compile(r"(b1|[iu][1248]|f[248]|[SU]\d+)")
_NUMBERING = ("PUT", "BINPUT", "LONG_BINPUT")
_MOST_VALUES = 1 << 24
"""Twenty times those of the largest benchmark."""


def load_pickle(path: Path) -> Any:
    """Return the content of a pickle that holds arrays and plain containers only.

    Keys of dictionaries are `str`, also if Python 2 wrote them as bytes.

    Raises:
        DataError: If the file is truncated, is not a pickle, or holds anything else.
    """
    try:
        with path.open("rb") as file:
            _check_numbering(file)
            file.seek(0)
            # Text of Python 2 stays bytes: its images are text, and copying them is slow.
            return _Unwrapping().unwrap(_PlainUnpickler(file, encoding="bytes").load())
    except _RefusedError as error:
        raise DataError(
            f"{path} was not read: {error}. Only numpy arrays and plain containers are allowed, "
            "since anything else could run code. Download the file again from its official home."
        ) from error
    except Exception as error:
        # A damaged pickle can fail in any way that its opcodes can.
        raise DataError(
            f"{path} is truncated or not a pickle ({type(error).__name__}: {error}). "
            "Download it again."
        ) from error


class _RefusedError(Exception):
    """The pickle names something that is not allowed."""


class _Sealed(type):
    """Classes whose attributes a pickle cannot set."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise _RefusedError(f"it sets '{name}' of a class")


class _Dtype(metaclass=_Sealed):
    """Stands in for `numpy.dtype`."""

    __slots__ = ("_code", "_order")

    def __init__(self, code: str | bytes, *_: object) -> None:
        text = code.decode("latin1") if isinstance(code, bytes) else str(code)
        if not _PLAIN_TYPE.fullmatch(text):
            raise _RefusedError(f"it holds an array of type '{text}'")
        self._code, self._order = text, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, subtype, names, fields = state[:5]
        if subtype is not None or names is not None or fields is not None:
            raise _RefusedError("it holds an array of records")
        text = order.decode("latin1") if isinstance(order, bytes) else order
        if not isinstance(text, str) or text not in _BYTE_ORDERS:
            raise _RefusedError(f"it holds an array of byte order '{text}'")
        self._order = text

    def plain(self) -> np.dtype[Any]:
        return np.dtype(("" if self._order == "|" else self._order) + self._code)


def _build(raw: Any, dtype: _Dtype, shape: tuple[int, ...], order: Any) -> Any:
    if not isinstance(dtype, _Dtype):
        raise _RefusedError("it holds an array without a type")
    if not isinstance(raw, bytes | bytearray):
        raise _RefusedError("it holds an array of objects")
    return np.frombuffer(raw, dtype.plain()).reshape(shape, order=order)


class _Array(metaclass=_Sealed):
    """Stands in for `numpy.ndarray` until its state comes."""

    __slots__ = ("value",)
    value: Any

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, dtype, is_fortran, raw = state[-4:]
        self.value = _build(raw, dtype, shape, "F" if is_fortran else "C")


class _Reconstruct(metaclass=_Sealed):
    """Stands in for the function by which a pickle starts an array."""

    def __new__(cls, subtype: object, *_: object) -> Any:
        if subtype is not _Array:
            raise _RefusedError("it holds an array of another class")
        return _Array()


class _FromBuffer(metaclass=_Sealed):
    """Stands in for the function by which protocol 5 makes an array."""

    def __new__(cls, raw: Any, dtype: _Dtype, shape: tuple[int, ...], order: str) -> Any:
        return _build(raw, dtype, shape, order)


class _Scalar(metaclass=_Sealed):
    """Stands in for the function by which a pickle makes one number."""

    def __new__(cls, dtype: _Dtype, raw: Any) -> Any:
        return _build(raw, dtype, (), "C")[()]


class _EncodeLatin1(metaclass=_Sealed):
    """Stands in for `_codecs.encode`, by which protocol 2 writes bytes."""

    def __new__(cls, text: Any, encoding: Any = "latin1") -> Any:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise _RefusedError("it encodes something other than bytes")
        return text.encode("latin1")


class _Bytes(metaclass=_Sealed):
    """Stands in for `bytes`, which would read a number as a size and fill the memory."""

    def __new__(cls, content: Any = b"", encoding: Any = "latin1") -> Any:
        if isinstance(content, str):
            return _EncodeLatin1(content, encoding)
        if not isinstance(content, bytes | bytearray):
            raise _RefusedError("it makes bytes of something other than bytes or text")
        return bytes(content)


class _ByteArray(metaclass=_Sealed):
    """Stands in for `bytearray` for the same reason."""

    def __new__(cls, *arguments: Any) -> Any:
        return bytearray(_Bytes(*arguments))


_ALLOWED: dict[tuple[str, str], type] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _EncodeLatin1,
    ("collections", "OrderedDict"): OrderedDict,
}
for _module in ("builtins", "__builtin__"):
    _ALLOWED[_module, "set"] = set
    _ALLOWED[_module, "frozenset"] = frozenset
    _ALLOWED[_module, "bytes"] = _Bytes
    _ALLOWED[_module, "bytearray"] = _ByteArray
for _package in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_package}.multiarray", "_reconstruct"] = _Reconstruct
    _ALLOWED[f"{_package}.multiarray", "scalar"] = _Scalar
    _ALLOWED[f"{_package}.numeric", "_frombuffer"] = _FromBuffer


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _RefusedError(f"it names '{module}.{name}'") from None

    def persistent_load(self, pid: object) -> Any:
        raise _RefusedError("it refers to something outside itself")


def _check_numbering(file: BinaryIO) -> None:
    """Refuse a pickle that gives an object a number far beyond those it has.

    Python's unpickler would make a list of that length: five bytes of a file could take 32 GB.
    """
    for position, (opcode, number, _) in enumerate(pickletools.genops(file)):
        if opcode.name in _NUMBERING and isinstance(number, int) and number > position:
            raise _RefusedError(f"it numbers an object {number} and has fewer")


class _Unwrapping:
    """Replaces the stand-ins by their arrays.

    What a pickle refers to several times is unwrapped once and counted every time: a few lists
    that contain each other twice would otherwise stand for more than fits into memory.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}
        self._inside: set[int] = set()

    def unwrap(self, value: Any) -> Any:
        return self._sized(value)[0]

    def _sized(self, value: Any) -> tuple[Any, int]:
        """Return a value unwrapped, and the number of values in it."""
        if isinstance(value, _Array):
            return value.value, 1
        if isinstance(value, type | _Dtype):
            raise _RefusedError("it holds a type where data was expected")
        if not isinstance(value, dict | list | tuple):
            return value, 1
        key = id(value)
        if key not in self._known:
            if key in self._inside:
                raise _RefusedError("it holds a container that contains itself")
            self._inside.add(key)
            self._known[key] = self._container(value)
        return self._known[key]

    def _container(self, value: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> tuple[Any, int]:
        parts = [
            self._sized(item) for item in (value.values() if isinstance(value, dict) else value)
        ]
        size = 1 + sum(n for _, n in parts)
        if size > _MOST_VALUES:
            raise _RefusedError(f"it stands for more than {_MOST_VALUES} values")
        items = [item for item, _ in parts]
        if isinstance(value, dict):
            return dict(zip(map(_text, value), items, strict=True)), size
        return type(value)(items), size


def _text(key: Any) -> Any:
    return key.decode("latin1") if isinstance(key, bytes) else key
