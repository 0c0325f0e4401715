"""Neighbor sampling: tasks of classes that look alike to the learner."""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from adaptask import theory
from adaptask.arguments import check_integer, check_number
from adaptask.errors import ArgumentError, StateError
from adaptask.samplers.base import Feedback, Sampler, check_tensor, of_category_sets
from adaptask.samplers.shuffle import derived_keys, shuffled
from adaptask.samplers.update_rule import Array, mean_by_key, namespace, view

# What a key is derived for.
_PASS, _POOL, _EXPLORATION = 1, 2, 3
_LEAST_DEVIATION = 1e-6
"""Cosines that differ by less are equal up to rounding."""
_CHUNK_ELEMENTS = 1 << 24
"""Features that the plain version gathers at once."""


class NeighborSampler(Sampler):
    """Draw a class, then classes whose features are near to those chosen so far.

    Every class c has a unit vector f(c), a moving average of the unit class features u that
    `update` is given:

        f(c) <- normalize(momentum * f(c) + (1 - momentum) * u),   at first f(c) = u.

    A task is made of neighborhoods of at most `neighborhood` classes, as equal in size as
    possible, one after the other. With L the classes of a neighborhood so far,

        p(c | L) is proportional to exp(beta * sum over j in L of z(j, c)),
        z(j, c) = (f(j)·f(c) - mean) / standard deviation,

    where mean and deviation are those of f(j)·f(c) over the other classes of the pool, so that
    `beta` means the same on any data. A class that was never seen has z = 0, an average class.
    A share `exploration` of the tasks is drawn with `beta` 0.

    The first class of a task comes from shuffled passes over all classes: in n tasks every class
    is the first of one. The first class of each further neighborhood is drawn with equal
    probabilities. All but the first come from the task's pool: itself and `pool_size - 1` other
    random classes, or all classes if there are no more than that. Time and memory of a draw do
    not depend on the number of classes.

    Classes that must not meet in a task are variants of one original (`variant_of`) and classes
    with a cosine above `duplicate_cosine`. They meet only if the pool has nothing else left.

    What is exact: draws follow the formulas above. With all classes in the pool and one
    neighborhood of up to 12 classes, `log_prob` gives their probability. What is approximate: a
    pool has only some of the nearest classes, and f(c) is as old as the last task with c. Which
    tasks explore, the passes and the pools are pseudo-random, from a key and the number of the
    task.

    Decisions: a class in several tasks of one update is updated once, with the mean of its unit
    features, so that the order of tasks does not matter. A feature of length 0 has no direction
    and changes nothing.

    The state has one vector per class, whatever the number of ways.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        n_features: Size d of the class features.
        beta: How strongly near classes are preferred, 0 (not at all) to 100.
        exploration: Share of the tasks in which near classes are not preferred, 0 to 1.
        pool_size: Number of random classes that a task is chosen from, at least K.
        neighborhood: Largest number of classes that are chosen to be near to each other.
        momentum: How much of a class's old feature is kept at each update, 0 to 1.
        variant_of: `classes` int64: classes with the same number do not meet in a task.
        duplicate_cosine: Classes with a larger cosine do not meet in a task, -1 to 1; None: all
            may.
        seed: Seed of the random stream.
        device: Where the sampler works.

    Raises:
        ArgumentError: If a value is outside its range.
    """

    description = "prefers classes whose features are near to each other"
    uses_class_features: ClassVar[bool] = True
    n_features: int

    class_features: Tensor
    """`classes x features`, unit vectors; zeros for classes that were never seen."""
    seen: Tensor
    """`classes` bool: whether a class has been in a task, so that it has a feature."""
    shuffle_key: Tensor
    """Scalar int64: the key of all passes and pools."""
    tasks_drawn: Tensor
    """Scalar int64: the number of tasks drawn so far."""
    _variants: Tensor | None

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        n_features: int,
        beta: float = 1.0,
        exploration: float = 0.0,
        pool_size: int = 1024,
        neighborhood: int = 5,
        momentum: float = 0.5,
        variant_of: Tensor | None = None,
        duplicate_cosine: float | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, device=device)
        self.n_features = check_integer("n_features", n_features, low=1)
        self.beta = check_number("beta", beta, low=0, high=100)
        self.exploration = check_number("exploration", exploration, low=0, high=1)
        self.pool_size = check_integer("pool_size", pool_size, low=self.n_way)
        self.neighborhood = check_integer("neighborhood", neighborhood, low=2)
        self.momentum = check_number("momentum", momentum, low=0, high=1)
        self.duplicate_cosine = duplicate_cosine
        if duplicate_cosine is not None:
            self.duplicate_cosine = check_number(
                "duplicate_cosine", duplicate_cosine, low=-1, high=1
            )
        if variant_of is not None:
            shape = (self.n_classes,)
            check_tensor("variant_of", variant_of, "int64", variant_of.device, shape)
            variant_of = variant_of.to(device=self.device, copy=True)
        self.register_buffer("_variants", variant_of, persistent=False)
        features = torch.zeros(self.n_classes, self.n_features, device=device)
        self.register_buffer("class_features", features)
        self.register_buffer("seen", torch.zeros(self.n_classes, dtype=torch.bool, device=device))
        for name in ("shuffle_key", "tasks_drawn"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64, device=device))
        self._draw_key()

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the features; `sampler.double()` raises it."""
        features: Any = self._buffers["class_features"]  # quicker than the attribute
        dtype: torch.dtype = features.dtype
        return dtype

    @property
    def n_neighborhoods(self) -> int:
        """Number of neighborhoods of a task."""
        return math.ceil(self.n_way / self.neighborhood)

    def reseed(self, seed: int) -> None:
        """Start a new random stream, passes and pools; everything else stays."""
        super().reseed(seed)
        self._draw_key()

    def _draw_key(self) -> None:
        self.shuffle_key.random_(0, 2**32, generator=self._generator)

    def draw(self, n_tasks: int) -> Tensor:
        """Return the classes of new tasks, `tasks x way`, in the order in which they were drawn."""
        pool_size = min(self.pool_size, self.n_classes)
        chunk = max(1, _CHUNK_ELEMENTS // (pool_size * self.n_features))
        sizes = [min(chunk, n_tasks - done) for done in range(0, n_tasks, chunk)]
        drawn = [self._draw_plainly(size, pool_size) for size in sizes]
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn)

    def _draw_plainly(self, n_tasks: int, pool_size: int) -> Tensor:
        """Return the classes of some tasks by NumPy or plain torch."""
        xp = namespace(self.class_features)
        features, seen = view(self.class_features), view(self.seen)
        key, counter = view(self.shuffle_key), view(self.tasks_drawn)
        variants = None if self._variants is None else view(self._variants)
        noise = view(self.gumbel_noise(self.n_way - 1, n_tasks, pool_size, dtype=self.dtype))
        tasks = _count(n_tasks, features, xp)
        numbers = counter + tasks
        counter += n_tasks
        keys = derived_keys(key, numbers // self.n_classes, _PASS, xp)
        first = shuffled((numbers % self.n_classes)[:, None], keys, self.n_classes, xp)[:, 0]
        pool, at = None, first
        if pool_size < self.n_classes:
            keys = derived_keys(key, numbers, _POOL, xp)
            others = shuffled(_count(pool_size - 1, features, xp), keys, self.n_classes - 1, xp)
            others += others >= first[:, None]  # all classes but the first
            pool, at = xp.concatenate((first[:, None], others), 1), xp.zeros_like(first)
            features, seen = features[pool], seen[pool]
            variants = None if variants is None else variants[pool]
        beta: Any = self.beta
        if self.exploration > 0:
            explores = derived_keys(key, numbers, _EXPLORATION, xp) < self.exploration * 2.0**32
            beta = beta * xp.asarray(~explores, dtype=features.dtype)[:, None]
        chosen = fill_neighborhoods(
            features,
            seen,
            at,
            noise,
            beta=beta,
            n_neighborhoods=self.n_neighborhoods,
            variants=variants,
            duplicate_cosine=self.duplicate_cosine,
            xp=xp,
        )
        return torch.as_tensor(chosen if pool is None else pool[tasks[:, None], chosen])

    def learn(self, feedback: Feedback) -> None:
        """Move the features of the classes that were in a task towards what was given."""
        xp = namespace(self.class_features)
        features, seen = view(self.class_features), view(self.seen)
        ids = feedback.class_ids.reshape(-1)
        units, known = _unit(feedback.class_features.reshape(len(ids), -1), xp)
        if feedback.accepted is not None:
            known &= feedback.accepted.repeat_interleave(self.n_way)
        if len(feedback.class_ids) > 1:
            means, found = mean_by_key(ids[:, None], units[:, None], known, xp)
            units, known = means[:, 0], found[:, 0]
        old, was_seen = features[ids], seen[ids]
        moved, known_still = _unit(self.momentum * old + (1 - self.momentum) * units, xp)
        first, _ = _unit(units, xp)
        new = xp.where(was_seen[:, None], moved, first)
        known &= known_still
        features[ids] = xp.where(known[:, None], new, old)
        seen[ids] = was_seen | known

    @of_category_sets
    def log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of each category set, `tasks` float64.

        It is computed if all classes are in the pool and a task is one neighborhood of at most 12
        classes.
        """
        if self.n_classes > self.pool_size:
            raise ArgumentError(
                "The probability of a set depends on the random pool: log_prob needs a pool_size "
                f"of at least n_classes, {self.n_classes}; it is {self.pool_size}."
            )
        if self.n_neighborhoods > 1:
            raise ArgumentError(
                "log_prob is computed for tasks of one neighborhood: it needs a neighborhood of "
                f"at least n_way, {self.n_way}; it is {self.neighborhood}."
            )
        features = self.class_features.double()
        cosines = features @ features.mT
        counted = self.seen.expand_as(cosines).double().fill_diagonal_(0)
        scores = standardized(cosines, counted, torch)
        conflicts = None if self._variants is None else self._variants[:, None] == self._variants
        if self.duplicate_cosine is not None:
            alike = cosines > self.duplicate_cosine
            conflicts = alike if conflicts is None else conflicts | alike
        shares = ((self.beta, 1 - self.exploration), (0.0, self.exploration))
        parts = [
            math.log(share)
            + theory.neighbor_log_prob(beta * scores, class_ids, conflicts=conflicts)
            for beta, share in shares
            if share > 0
        ]
        return torch.stack(parts).logsumexp(0)

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "n_features": self.n_features}

    def _check_buffers(self, buffers: dict[str, Tensor]) -> None:
        lengths = buffers["class_features"].norm(dim=-1)
        expected = buffers["seen"].to(lengths.dtype)
        if not torch.allclose(lengths, expected, atol=1e-3):  # NaN is close to nothing
            raise StateError(
                "class_features of the state must be unit vectors where `seen` is true, and zeros "
                "elsewhere; the state is damaged."
            )
        if buffers["tasks_drawn"] < 0:
            raise StateError("tasks_drawn of the state must be at least 0; the state is damaged.")

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        settings = f"beta={self.beta:g}, exploration={self.exploration:g}"
        return f"{super().extra_repr()}, n_features={self.n_features}, {settings}"


def fill_neighborhoods(
    features: Array,
    seen: Array,
    at: Array,
    noise: Array,
    *,
    beta: Array | float,
    n_neighborhoods: int,
    variants: Array | None,
    duplicate_cosine: float | None,
    xp: Any,
) -> Array:
    """Choose the classes of each task one after the other from its pool, all tasks at once.

    Args:
        features: Unit vectors or zeros, `tasks x pool x features`, or `pool x features` if all
            tasks have one pool.
        seen: Whether a class has a feature, `tasks x pool` or `pool` bool.
        at: Position of each task's first class in its pool, `tasks` int64.
        noise: Gumbel draws, `(way - 1) x tasks x pool`: the largest of log-weight plus noise is a
            draw in proportion to the weights.
        beta: Strength, one number or `tasks x 1`.
        n_neighborhoods: Number of neighborhoods of a task.
        variants: Numbers that are equal for classes which do not meet, `tasks x pool` or `pool`.
        duplicate_cosine: Classes with a larger cosine do not meet.
        xp: `numpy` or `torch`, the library of the arrays.

    Returns:
        Positions in the pool, `tasks x way` int64.
    """
    n_way, (n_tasks, pool_size) = 1 + len(noise), noise.shape[1:]
    tasks = _count(n_tasks, features, xp)
    counted = xp.asarray(xp.broadcast_to(seen, (n_tasks, pool_size)), dtype=features.dtype)
    is_free = xp.ones_like(noise[0], dtype=xp.bool)
    is_allowed, score, chosen = is_free, 0.0, [at]
    for k, step_noise in enumerate(noise, 1):
        is_free[tasks, at] = False
        begins = k * n_neighborhoods // n_way > (k - 1) * n_neighborhoods // n_way
        if not begins or duplicate_cosine is not None:
            if features.ndim == 2:
                cosines = features[at] @ features.T
            else:
                cosines = (features @ features[tasks, at][:, :, None])[..., 0]
        if begins:
            score = 0.0
        else:
            others = xp.array(counted, copy=True) if xp is np else counted.clone()
            others[tasks, at] = 0.0
            score = score + standardized(cosines, others, xp)
        if duplicate_cosine is not None:
            is_allowed = is_allowed & (cosines <= duplicate_cosine)
        if variants is not None:
            of_chosen = variants[at] if variants.ndim == 1 else variants[tasks, at]
            is_allowed = is_allowed & (variants != of_chosen[:, None])
        is_open = is_free
        if is_allowed is not is_free:
            is_open = is_free & is_allowed
            is_open = xp.where(is_open.any(-1)[:, None], is_open, is_free)
        at = xp.where(is_open, beta * score + step_noise, -xp.inf).argmax(-1)
        chosen.append(at)
    return xp.stack(chosen, -1)


def standardized(cosines: Array, counted: Array, xp: Any) -> Array:
    """Return cosines minus their mean, in units of their deviation, 0 for those not counted.

    Args:
        cosines: `tasks x pool`.
        counted: `tasks x pool`, 1 for cosines that make up mean and deviation, 0 for others.
        xp: `numpy` or `torch`.
    """
    n_counted = xp.clip(counted.sum(-1), 1, None)
    centered = (cosines - (_dot(cosines, counted) / n_counted)[:, None]) * counted
    deviation = xp.sqrt(_dot(centered, centered) / n_counted)
    scale = (deviation > _LEAST_DEVIATION) / xp.clip(deviation, _LEAST_DEVIATION, None)
    return centered * xp.asarray(scale, dtype=centered.dtype)[:, None]


def _dot(left: Array, right: Array) -> Array:
    """Return the inner products of rows; NumPy has none that is quicker."""
    return (left[:, None] @ right[:, :, None])[:, 0, 0]


def _unit(vectors: Array, xp: Any) -> tuple[Array, Array]:
    """Return vectors of length 1 and which have a direction; zeros for those that have not."""
    # Divided by their largest entry first, so that squares neither overflow nor vanish.
    largest = abs(vectors).max(-1) if xp is np else vectors.abs().amax(-1)
    known = (largest > 1e-30) & (largest < xp.inf)  # NaN is not known either
    safe = xp.where(known[:, None], vectors, xp.zeros_like(vectors))
    scaled = safe / xp.where(known, largest, xp.ones_like(largest))[:, None]
    length = xp.sqrt(_dot(scaled, scaled))
    return scaled / xp.clip(length, 0.5, None)[:, None], known


def _count(size: int, like: Array, xp: Any) -> Array:
    """Return 0 to `size - 1`, int64."""
    return _positions(size) if xp is np else torch.arange(size, device=like.device)


@functools.cache
def _positions(size: int) -> Array:
    return np.arange(size)
