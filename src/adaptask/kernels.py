"""Modules with our own Triton kernels, used on a GPU if Triton is installed."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch


def find_kernels(module: str, device: torch.device) -> Any:
    """Return a module of kernels, or None if it cannot be used and plain torch is needed."""
    return _imported(module) if device.type == "cuda" else None


@functools.cache
def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
