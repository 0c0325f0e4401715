"""Modules that pytest does not search for doctests if the library they need is not installed."""

import importlib.util

_NEED_TRITON = ["src/adaptask/*_kernels.py", "src/adaptask/triton_names.py"]
_NEED_LIGHTNING = ["src/adaptask/integrations/lightning.py"]

collect_ignore_glob = [
    *([] if importlib.util.find_spec("triton") else _NEED_TRITON),
    *([] if importlib.util.find_spec("lightning") else _NEED_LIGHTNING),
]
