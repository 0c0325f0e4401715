"""The average prediction of several trained states of one learner."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adaptask.errors import ArgumentError, StateError
from adaptask.interfaces import Episodes
from adaptask.learners.base import Learner


class Ensemble(Learner):
    """The mean of the probabilities that several states of a learner predict.

    For evaluation: MAML++ (Antoniou et al., 2018) averages over the checkpoints with the best
    validation accuracy.

    Args:
        learner: The learner that the states belong to; it is copied and not changed.
        states: Results of `learner.state_dict()` at several times.

    Raises:
        ArgumentError: If there are no states.
        StateError: If a state does not fit the learner.
    """

    def __init__(self, *, learner: nn.Module, states: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        if not states:
            raise ArgumentError("An ensemble needs at least one state of its learner; got none.")
        self.order_free = getattr(learner, "order_free", True)
        self.draws_in_evaluation = getattr(learner, "draws_in_evaluation", True)
        self.members = nn.ModuleList(copy.deepcopy(learner) for _ in states)
        for member, state in zip(self.members, states, strict=True):
            try:
                member.load_state_dict(state)
            except Exception as error:  # torch raises many kinds of errors for a wrong state
                raise StateError(
                    f"a state of the ensemble does not fit its learner: {error}"
                ) from error
        self.train(learner.training)

    def forward(self, episodes: Episodes) -> Tensor:
        """Return the logarithm of the mean probabilities, `tasks x queries x way`."""
        log_probabilities = [member(episodes).log_softmax(-1) for member in self.members]
        return torch.logsumexp(torch.stack(log_probabilities), dim=0) - math.log(len(self.members))


def with_weights(learner: nn.Module, states: Sequence[Mapping[str, Any]]) -> nn.Module:
    """Return a learner with saved weights; an ensemble if there are several.

    Without any the learner is returned as it is.

    Raises:
        StateError: If the weights belong to another architecture.
    """
    try:
        if len(states) > 1:
            return Ensemble(learner=learner, states=states)
        for state in states:
            learner.load_state_dict(state)
    except (AttributeError, RuntimeError, TypeError) as error:
        raise StateError(
            f"the weights do not fit the learner, perhaps another architecture: {error}"
        ) from error
    return learner
