"""The mathematics behind the samplers: exact distributions over tasks.

Everything here is a plain function of tensors and numbers. A "category set" is the set of classes
of a task; its class ids may come in any order. Log-potentials are `classes x classes`, symmetric,
with minus infinity on the diagonal: a row that has a class twice is never drawn. Other shapes, and
on the CPU ids out of range, raise an `ArgumentError`.

Reference: Liu et al., Adaptive Task Sampling for Meta-Learning, ECCV 2020.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptask.arguments import check_integer, format_count
from adaptask.errors import ArgumentError

LARGEST_ENUMERATION = 1_000_000
"""Most category sets that are enumerated."""
LARGEST_GREEDY_WAY = 12
"""Largest K for which the probability of a set under gcp-sampling is summed over all orders."""

_CHUNK_ELEMENTS = 2**24


def category_sets(n_classes: int, n_way: int) -> Tensor:
    """Return every category set, `sets x way` int64, in lexicographic order.

    Raises:
        ArgumentError: If there are more than `LARGEST_ENUMERATION`.
    """
    n_classes = check_integer("n_classes", n_classes, low=1)
    n_way = check_integer("n_way", n_way, low=1, high=n_classes, meaning="the number of classes")
    n_sets = math.comb(n_classes, n_way)
    if n_sets > LARGEST_ENUMERATION:
        raise ArgumentError(
            f"{n_classes} classes have {format_count(n_sets)} category sets of {n_way}; at most "
            f"{LARGEST_ENUMERATION:,} are enumerated. Use fewer classes or a smaller way."
        )
    return torch.from_numpy(_combinations(n_classes, n_way).copy())


@functools.lru_cache(maxsize=4)
def _combinations(n_classes: int, n_way: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    flat = itertools.chain.from_iterable(itertools.combinations(range(n_classes), n_way))
    return np.fromiter(flat, dtype=np.int64).reshape(-1, n_way)


def cp_log_score(log_potentials: Tensor, class_ids: Tensor) -> Tensor:
    """Return the log of the product of potentials over the pairs of each set, Eq. 4, `tasks`."""
    _check_sets(log_potentials, class_ids)
    first, second = _pairs(class_ids)
    return log_potentials.double()[class_ids[:, first], class_ids[:, second]].sum(-1)


def _check_sets(log_potentials: Tensor, class_ids: Tensor) -> None:
    """Check that category sets go with log-potentials."""
    n_classes = _count_classes(log_potentials)
    if class_ids.dtype != torch.int64 or class_ids.ndim != 2 or class_ids.shape[1] < 2:
        raise ArgumentError(
            "class_ids must be int64, tasks x way, with at least 2 classes per row; got "
            f"{class_ids.dtype} of shape {tuple(class_ids.shape)}."
        )
    # On other devices values are not read, so that nothing waits.
    if class_ids.device.type == "cpu" and class_ids.numel() > 0:
        least, largest = (int(bound) for bound in class_ids.aminmax())
        if least < 0 or largest >= n_classes:
            raise ArgumentError(
                f"class_ids must be between 0 and {n_classes - 1}, the last row of log_potentials; "
                f"got {least} to {largest}."
            )


def _count_classes(log_potentials: Tensor) -> int:
    shape = tuple(log_potentials.shape)
    if len(shape) != 2 or shape[0] != shape[1] or not log_potentials.is_floating_point():
        raise ArgumentError(
            "log_potentials must be floating-point, classes x classes; got "
            f"{log_potentials.dtype} of shape {shape}."
        )
    return shape[0]


def _pairs(class_ids: Tensor) -> Tensor:
    """Return the positions of all pairs of a task, `2 x pairs`."""
    n_way = class_ids.shape[1]
    return torch.triu_indices(n_way, n_way, offset=1, device=class_ids.device)


def cp_distribution(log_potentials: Tensor, n_way: int) -> tuple[Tensor, Tensor]:
    """Enumerate the distribution of Eq. 4: all category sets and their log-probabilities."""
    sets = category_sets(_count_classes(log_potentials), n_way).to(log_potentials.device)
    return sets, cp_log_score(log_potentials, sets).log_softmax(0)


def gcp_distribution(log_potentials: Tensor, n_way: int) -> tuple[Tensor, Tensor]:
    """Enumerate the distribution of Eq. 7: all category sets and their log-probabilities."""
    sets = category_sets(_count_classes(log_potentials), n_way).to(log_potentials.device)
    return sets, gcp_log_prob(log_potentials, sets)


def gcp_log_prob(log_potentials: Tensor, class_ids: Tensor) -> Tensor:
    """Return the log-probability of each category set under gcp-sampling, Eq. 7.

    The sum over the K! orders in which the classes can be drawn is taken over the 2^K partial
    sets instead: with f(L) the probability that L is what has been drawn so far,

        f({i, j}) = 2 C(i, j) / sum of C,
        f(L) = sum over l in L of f(L - l) * product over j in L - l of C(l, j) / Z(L - l),
        Z(L) = sum over c outside L of the product over j in L of C(c, j).

    Args:
        log_potentials: `classes x classes`.
        class_ids: `tasks x way`, distinct within a row.

    Returns:
        `tasks` float64.

    Raises:
        ArgumentError: If `way` is above `LARGEST_GREEDY_WAY`.
    """
    _check_sets(log_potentials, class_ids)
    n_way = class_ids.shape[1]
    if n_way > LARGEST_GREEDY_WAY:
        raise ArgumentError(
            f"The probability of a set of {n_way} classes under gcp is a sum over {n_way}! orders; "
            f"it is computed up to n_way {LARGEST_GREEDY_WAY}. "
            "gcp_log_prob_ordered gives that of the order drawn, at any n_way."
        )
    log_potentials = log_potentials.double()
    widest = math.comb(n_way, n_way // 2) * max(len(log_potentials), n_way)
    chunks = torch.split(class_ids, max(1, _CHUNK_ELEMENTS // widest))
    return torch.cat([_gcp_log_prob(log_potentials, chunk) for chunk in chunks])


def _gcp_log_prob(log_potentials: Tensor, class_ids: Tensor) -> Tensor:
    rows = log_potentials[class_ids]  # tasks x way x classes
    first, second = _pairs(class_ids)
    log_products = rows[:, first] + rows[:, second]  # tasks x partial sets x classes
    pair = log_potentials[class_ids[:, first], class_ids[:, second]]
    log_reached = math.log(2) + pair - log_potentials.flatten().logsumexp(0)
    for parents, newest in _larger_partial_sets(class_ids.shape[1], 3):
        parents, newest = parents.to(rows.device), newest.to(rows.device)
        log_normalizer = log_products.logsumexp(-1, keepdim=True)
        at_members = class_ids.unsqueeze(1).expand(-1, log_products.shape[1], -1)
        log_next = log_products.gather(-1, at_members) - log_normalizer
        log_flow = log_reached.unsqueeze(-1) + log_next  # tasks x partial sets x way
        log_reached = log_flow[:, parents, newest].logsumexp(-1)
        log_products = log_products[:, parents[:, 0]] + rows[:, newest[:, 0]]
    return log_reached.squeeze(-1)


@functools.cache
def _larger_partial_sets(n_way: int, smallest: int) -> list[tuple[Tensor, Tensor]]:
    """For sizes from `smallest` to K: how partial sets of positions arise from smaller ones.

    Each entry is `(parents, newest)`, both `sets x size`: adding position `newest[s, a]` to the
    smaller set `parents[s, a]` gives set s.
    """
    tables = []
    for size in range(smallest, n_way + 1):
        smaller = {s: i for i, s in enumerate(itertools.combinations(range(n_way), size - 1))}
        larger = list(itertools.combinations(range(n_way), size))
        parents = [[smaller[s[:a] + s[a + 1 :]] for a in range(size)] for s in larger]
        tables.append((torch.tensor(parents, device="cpu"), torch.tensor(larger, device="cpu")))
    return tables


def gcp_log_prob_ordered(log_potentials: Tensor, class_ids: Tensor) -> Tensor:
    """Return the log-probability that gcp-sampling draws these classes in this order, `tasks`."""
    _check_sets(log_potentials, class_ids)
    log_potentials = log_potentials.double()
    pair = log_potentials[class_ids[:, 0], class_ids[:, 1]]
    log_prob = pair - log_potentials.flatten().logsumexp(0)
    log_products = log_potentials[class_ids[:, 0]]
    for position in range(2, class_ids.shape[1]):
        log_products = log_products + log_potentials[class_ids[:, position - 1]]
        newest = class_ids[:, position : position + 1]
        log_prob = log_prob + log_products.log_softmax(-1).gather(-1, newest).squeeze(-1)
    return log_prob


def neighbor_log_prob(
    log_weights: Tensor, class_ids: Tensor, *, conflicts: Tensor | None = None
) -> Tensor:
    """Return the log-probability of each category set if a neighborhood grows class by class.

    The first class is uniform, and each further one is drawn with

        p(c | L) proportional to exp(sum over j in L of log_weights[j, c])

    among the classes outside L that are in conflict with none of L; among all outside L if each
    of them is. The sum over orders is taken over partial sets, as in `gcp_log_prob`.

    Args:
        log_weights: `classes x classes`, finite; the diagonal does not matter.
        class_ids: `tasks x way`, distinct within a row.
        conflicts: `classes x classes` bool, symmetric: which classes must not meet, if any.

    Returns:
        `tasks` float64.

    Raises:
        ArgumentError: If `way` is above `LARGEST_GREEDY_WAY`.
    """
    _check_sets(log_weights, class_ids)
    n_way = class_ids.shape[1]
    if n_way > LARGEST_GREEDY_WAY:
        raise ArgumentError(
            f"The probability of a neighborhood of {n_way} classes is a sum over {n_way}! orders; "
            f"it is computed up to {LARGEST_GREEDY_WAY} classes."
        )
    log_weights = log_weights.double().clone().fill_diagonal_(-torch.inf)
    widest = math.comb(n_way, n_way // 2) * max(len(log_weights), n_way)
    chunks = torch.split(class_ids, max(1, _CHUNK_ELEMENTS // widest))
    return torch.cat([_neighbor_log_prob(log_weights, chunk, conflicts) for chunk in chunks])


def _neighbor_log_prob(log_weights: Tensor, class_ids: Tensor, conflicts: Tensor | None) -> Tensor:
    rows = log_sums = log_weights[class_ids]  # tasks x partial sets (so far of one) x classes
    blocks = blocked = None if conflicts is None else conflicts[class_ids]
    log_reached = rows.new_full(class_ids.shape, -math.log(len(log_weights)))
    for parents, newest in _larger_partial_sets(class_ids.shape[1], 2):
        parents, newest = parents.to(rows.device), newest.to(rows.device)
        log_open = log_sums
        if blocked is not None:
            allowed = ~blocked & (log_sums > -torch.inf)
            log_allowed = log_sums.masked_fill(~allowed, -torch.inf)
            log_open = torch.where(allowed.any(-1, keepdim=True), log_allowed, log_sums)
        at_members = class_ids.unsqueeze(1).expand(-1, log_sums.shape[1], -1)
        log_next = log_open.gather(-1, at_members) - log_open.logsumexp(-1, keepdim=True)
        log_flow = log_reached.unsqueeze(-1) + log_next  # tasks x partial sets x way
        log_reached = log_flow[:, parents, newest].logsumexp(-1)
        log_sums = log_sums[:, parents[:, 0]] + rows[:, newest[:, 0]]
        if blocks is not None and blocked is not None:
            blocked = blocked[:, parents[:, 0]] | blocks[:, newest[:, 0]]
    return log_reached.squeeze(-1)


def log_prob_without_replacement(log_weights: Tensor, class_ids: Tensor) -> Tensor:
    """Return the log-probability that K successive draws in proportion to weights give each set.

    This is the distribution of c-sampling, and of `(log_weights + gumbel_noise).topk(K)`. Give
    every class an exponential clock with its weight as rate; the draw is the K clocks that ring
    first. With the weights scaled so that those outside the set L sum to 1, and s = log t,

        p(L) = integral over t of exp(-t) * product over i in L of (1 - exp(-w_i t)) dt
             = integral over s of exp(s - e^s + sum over i in L of log(1 - exp(-w_i e^s))) ds,

    a smooth integrand that falls off on both sides, for which the trapezoidal rule converges
    exponentially: exact to about 1e-12, at a cost linear in K instead of the K! orders.

    Args:
        log_weights: `classes`.
        class_ids: `tasks x way`, distinct within a row.

    Returns:
        `tasks` float64.
    """
    # 1024 x K x some hundred nodes at a time.
    chunks = torch.split(class_ids, 1024)
    return torch.cat([_log_prob_without_replacement(log_weights.double(), c) for c in chunks])


def _log_prob_without_replacement(log_weights: Tensor, class_ids: Tensor) -> Tensor:
    n_classes, (n_tasks, n_way) = len(log_weights), class_ids.shape
    if n_way == n_classes:
        return log_weights.new_zeros(n_tasks)
    outside = log_weights.expand(n_tasks, -1).scatter(1, class_ids, -torch.inf)
    relative = log_weights[class_ids] - outside.logsumexp(-1, keepdim=True)
    # The peak is about 1 / sqrt(K + 1) wide; beyond these ends the integrand is below 1e-16 of it.
    step = 0.5 / math.sqrt(n_way + 4)
    log_time = torch.arange(-40.0, 9.0, step, dtype=torch.float64, device=log_weights.device)
    log_rates = relative.unsqueeze(-1) + log_time  # tasks x way x nodes
    log_rung = torch.where(log_rates < -37, log_rates, (-torch.expm1(-log_rates.exp())).log())
    integrand = log_time - log_time.exp() + log_rung.sum(1)
    return integrand.logsumexp(-1) + math.log(step)


def kl_from_uniform(log_probs: Tensor) -> float:
    """Return KL(Q || uniform) of an enumerated distribution, in nats."""
    log_probs = log_probs.double()
    present = log_probs != -torch.inf
    entropy = -(log_probs.exp() * log_probs)[present].sum()
    return max(math.log(len(log_probs)) - float(entropy), 0.0)  # NaN stays NaN


def total_variation(log_probs: Tensor, other_log_probs: Tensor) -> float:
    """Return the total variation distance of two distributions over the same outcomes."""
    if log_probs.shape != other_log_probs.shape:
        shapes = f"{tuple(log_probs.shape)} and {tuple(other_log_probs.shape)}"
        raise ArgumentError(f"Both distributions must be over the same outcomes; got {shapes}.")
    difference = log_probs.double().exp() - other_log_probs.double().exp()
    return float(difference.abs().sum() / 2)
