"""Triton's names for modules of kernels; importable only if Triton is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

triton: Any = importlib.import_module("triton")
tl: Any = importlib.import_module("triton.language")
jit: Callable[[Callable[..., Any]], Any] = triton.jit
if TYPE_CHECKING:
    constexpr: TypeAlias = Any
    tensor: TypeAlias = Any
else:
    # Triton reads annotations too: a constexpr argument is fixed when it compiles.
    constexpr, tensor = tl.constexpr, tl.tensor
