"""What `torch.compile` makes of forward pass and loss, once for all runs of a process."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from adaptask.interfaces import EpisodeLearner, Episodes, Outcome

Outcomes = Callable[[EpisodeLearner, Episodes], Outcome]

# Of one function, for different learners and shapes; torch gives up after 8.
_MOST_VARIANTS = 64


class Compiled:
    """A function of learner and episodes, compiled when it is first called.

    Learners of the same kind share what was compiled: their weights are arguments. Where it cannot
    be compiled, for want of a compiler perhaps, it is called as it is.

    Args:
        outcomes: The function, of a module, so that all runs name the same one.
        report: Told why it is not compiled.
    """

    def __init__(self, outcomes: Outcomes, report: Callable[[str], None]) -> None:
        self._plain, self._report = outcomes, report
        self._fast: Outcomes | None = _compiled(outcomes)

    def __call__(self, learner: EpisodeLearner, episodes: Episodes) -> Outcome:
        """Return what the function returns."""
        if self._fast is not None:
            from torch._dynamo.exc import TorchDynamoException

            try:
                return self._fast(learner, episodes)
            except TorchDynamoException as error:
                self._fast = None
                reason = " ".join(str(error).strip().splitlines()[:2])
                self._report(f"Steps are not compiled: {reason}")
        return self._plain(learner, episodes)


@functools.cache
def _compiled(outcomes: Outcomes) -> Outcomes:
    from torch._dynamo import config

    settings: Any = config
    settings.cache_size_limit = max(settings.cache_size_limit, _MOST_VARIANTS)
    # Its checks follow what threads do to modules of others, and may follow what is gone (torch
    # 2.11; 2.12 leaves them out: pull request 181925).
    if hasattr(settings, "use_recursive_dict_tags_for_guards"):
        settings.use_recursive_dict_tags_for_guards = False
    # It remarks on what it could do better, which nobody who trains can act on.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._(dynamo|inductor)")
    # Shapes of a run are fixed: each gets kernels of its own.
    return torch.compile(outcomes, dynamic=False)
