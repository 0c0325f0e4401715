"""Modules that pytest does not look into for doctests where what they need is not installed."""

import importlib.util

_NEED_TRITON = [
    "src/adaptask/data/triton_kernels.py",
    "src/adaptask/learners/crammer_singer_triton.py",
    "src/adaptask/samplers/fused.py",
    "src/adaptask/samplers/fused_learning.py",
    "src/adaptask/training/fused.py",
    "src/adaptask/triton_names.py",
]

_NEED_LIGHTNING = ["src/adaptask/integrations/lightning.py"]

collect_ignore = [
    *([] if importlib.util.find_spec("triton") else _NEED_TRITON),
    *([] if importlib.util.find_spec("lightning") else _NEED_LIGHTNING),
]
