"""What a sampler's task distribution looks like: weights, marginals, distance from uniform.

Exact if all category sets can be enumerated, otherwise an estimate with its standard error.
None of these disturbs the sampler: draws are made by a copy with its own random stream.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adaptask import theory
from adaptask.arguments import check_flag, check_integer
from adaptask.errors import ArgumentError
from adaptask.samplers.base import Sampler

LARGEST_EXACT = 50_000
"""Most category sets over which marginals and divergences are summed exactly."""
_CHUNK = 4096


@dataclass(frozen=True)
class Estimate:
    """A quantity, and how well it is known."""

    value: Tensor
    standard_error: Tensor
    """Of the same shape; zero if `exact`. It allows for the number of draws, not for a sampler
    whose draws are approximate themselves, as those of `cp` by Gibbs sweeps are."""
    exact: bool


def importance_weight(sampler: Sampler, class_ids: Tensor, *, ordered: bool = False) -> Tensor:
    """Return the weight that makes a task drawn by `sampler` count as one drawn uniformly.

    The uniform probability of the category set over the sampler's: a loss weighted so is an
    unbiased estimate of the loss under uniform sampling (section 3.2 of the paper).

    Args:
        sampler: The sampler, in the state in which it drew the tasks: ask before `update`.
        class_ids: `tasks x way`.
        ordered: Compare the probabilities of drawing the classes in the order of the row instead
            of in any order. Also unbiased, with a larger variance, and computable for any n_way;
            only for samplers with `log_prob_ordered`, such as `gcp`, and for rows as `sample`
            returned them.

    Returns:
        `tasks` float64.

    Raises:
        ArgumentError: If the probability cannot be computed.
    """
    _require_task_sampler(sampler)
    if not check_flag("ordered", ordered):
        log_uniform = -math.log(math.comb(sampler.n_classes, sampler.n_way))
        return (log_uniform - sampler.log_prob(class_ids)).exp()
    log_prob_ordered: Any = getattr(sampler, "log_prob_ordered", None)
    if log_prob_ordered is None:
        raise ArgumentError(
            "ordered=True is for a sampler with log_prob_ordered(), such as a 'gcp' sampler; "
            f"{type(sampler).__name__} does not have it."
        )
    log_uniform = -math.log(math.perm(sampler.n_classes, sampler.n_way))
    log_probs: Tensor = log_prob_ordered(class_ids)
    return (log_uniform - log_probs).exp()


def class_marginals(sampler: Sampler, *, n_draws: int = 20_000, seed: int = 0) -> Estimate:
    """Return the probability that a task contains each class, `classes`; they sum to n_way."""
    presence, weights, exact = _presence(sampler, n_draws, seed)
    return _weighted_mean(presence.mT @ weights, n_draws, exact)


def pair_marginals(sampler: Sampler, *, n_draws: int = 20_000, seed: int = 0) -> Estimate:
    """Return the probability that a task contains each pair, `classes x classes`, diagonal 0."""
    presence, weights, exact = _presence(sampler, n_draws, seed)
    both = presence.mT @ (presence * weights.unsqueeze(-1))
    return _weighted_mean(both.fill_diagonal_(0), n_draws, exact)


def kl_from_uniform(sampler: Sampler, *, n_draws: int = 20_000, seed: int = 0) -> Estimate:
    """Return KL(Q || uniform) of the distribution Q over category sets, in nats, a scalar.

    Raises:
        ArgumentError: If the probability of a set cannot be computed, such as that of more than 12
            classes under `gcp`.
    """
    _require_task_sampler(sampler)
    sets = _all_sets(sampler)
    if sets is not None:
        exact = theory.kl_from_uniform(_chunked_log_prob(sampler, sets))
        return _weighted_mean(torch.tensor(exact, dtype=torch.float64), n_draws, exact=True)
    n_draws = check_integer("n_draws", n_draws, low=2)
    # Drawing may change what is drawn from, such as the kernel of `dpp`: the copy is asked as well.
    twin = sampler.fork(seed)
    log_probs, common_error = twin._estimate_log_prob(twin.sample(n_draws))
    log_sets = math.log(math.comb(sampler.n_classes, sampler.n_way))
    own_error = float(log_probs.std()) / math.sqrt(n_draws)
    return Estimate(
        value=log_probs.mean() + log_sets,
        standard_error=torch.tensor(math.hypot(own_error, common_error), dtype=torch.float64),
        exact=False,
    )


def _require_task_sampler(sampler: object) -> None:
    if not isinstance(sampler, Sampler):
        raise ArgumentError(
            f"This is for task samplers derived from Sampler; got {type(sampler).__name__}."
        )


def _all_sets(sampler: Sampler) -> Tensor | None:
    if math.comb(sampler.n_classes, sampler.n_way) > LARGEST_EXACT:
        return None
    return theory.category_sets(sampler.n_classes, sampler.n_way).to(sampler.device)


def _chunked_log_prob(sampler: Sampler, sets: Tensor) -> Tensor:
    return torch.cat([sampler.log_prob(chunk) for chunk in torch.split(sets, _CHUNK)])


def _presence(sampler: Sampler, n_draws: int, seed: int) -> tuple[Tensor, Tensor, bool]:
    """Return which classes are in which task, `tasks x classes`, and the weight of each task."""
    _require_task_sampler(sampler)
    sets = _all_sets(sampler)
    if sets is not None:
        tasks, weights = sets, _chunked_log_prob(sampler, sets).exp()
    else:
        n_draws = check_integer("n_draws", n_draws, low=2)
        tasks = sampler.fork(seed).sample(n_draws)
        weights = torch.full((n_draws,), 1 / n_draws, dtype=torch.float64, device=sampler.device)
    presence = torch.zeros(
        len(tasks), sampler.n_classes, dtype=torch.float64, device=sampler.device
    )
    return presence.scatter_(1, tasks, 1.0), weights, sets is not None


def _weighted_mean(value: Tensor, n_draws: int, exact: bool) -> Estimate:
    """Attach the binomial standard error of a frequency, unless the value is exact."""
    spread = (
        torch.zeros_like(value) if exact else (value * (1 - value) / n_draws).clamp_min(0).sqrt()
    )
    return Estimate(value=value, standard_error=spread, exact=exact)
