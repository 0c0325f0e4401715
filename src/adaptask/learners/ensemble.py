"""Several trained states of one learner that vote."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adaptask.arguments import shown
from adaptask.errors import ArgumentError, StateError
from adaptask.interfaces import Episodes
from adaptask.learners.base import Learner


class Ensemble(Learner):
    """The mean of the probabilities that several states of a learner give.

    For testing: the last part of MAML++ (Antoniou et al., 2018) is the mean over the checkpoints
    with the best validation accuracy.

    Args:
        learner: What the states belong to; it is copied and stays as it is.
        states: What `learner.state_dict()` gave at several times.

    Raises:
        ArgumentError: If the learner is no module, or there are no states.
        StateError: If a state is none of this learner.
    """

    def __init__(self, *, learner: nn.Module, states: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        if not isinstance(learner, nn.Module):
            raise ArgumentError(f"learner must be a torch.nn.Module; got {shown(learner)}.")
        if not isinstance(states, Sequence) or not states:
            raise ArgumentError(
                f"An ensemble needs the states of one learner or more; got {shown(states)}."
            )
        self.order_free = getattr(learner, "order_free", True)
        self.draws_in_evaluation = getattr(learner, "draws_in_evaluation", True)
        self.members = nn.ModuleList(copy.deepcopy(learner) for _ in states)
        for member, state in zip(self.members, states, strict=True):
            _load(member, state)
        self.train(learner.training)

    def forward(self, episodes: Episodes) -> Tensor:
        """Return the logarithm of the mean probabilities, `tasks x queries x way`."""
        log_probabilities = [member(episodes).log_softmax(-1) for member in self.members]
        return torch.logsumexp(torch.stack(log_probabilities), dim=0) - math.log(len(self.members))


def _load(member: nn.Module, state: Mapping[str, Any]) -> None:
    try:
        member.load_state_dict(state)
    except Exception as error:  # torch refuses in many ways what is no state
        raise StateError(f"a state of the ensemble is none of its learner: {error}") from error
