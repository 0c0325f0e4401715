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
from adaptask.kernels import find_kernels
from adaptask.samplers.base import Sampler, check_tensor, of_category_sets
from adaptask.samplers.feedback import Feedback
from adaptask.samplers.shuffle import derived_keys, round_keys, shuffled
from adaptask.samplers.update_rule import Array, count, mean_by_key, namespace, view

# What a key is derived for.
_PASS, _POOL, _EXPLORATION = 1, 2, 3
_LEAST_VARIANCE = 1e-10
"""Added to the variance of cosines: differences far below its root are rounding errors."""
_PLANNED = 256
"""Tasks that the CPU version plans at once."""
_CHUNK_ELEMENTS = 1 << 24
"""Features that the plain version gathers at once."""
FEWEST_CHOICES = 256
"""Classes among which the default strength leaves the choice of a class, at least."""
RATE = 0.01
"""How far the strength moves per update and unit of accuracy.

Per unit of strength the accuracy falls by 0.15 to 0.2 (turned glyphs, CIFAR-FS), so the strength
settles with a time constant of some 500 updates. The accuracy of one task of 25 queries has a
standard deviation of about 0.1, which moves the strength by 0.001: hundreds of tasks are averaged.
"""


class NeighborSampler(Sampler):
    """Draw a class, then classes whose features are near to those chosen so far.

    Every class c has a unit vector f(c), a moving average of the unit class features u that
    `update` is given:

        f(c) <- normalize(momentum * f(c) + (1 - momentum) * u),   at first f(c) = u.

    A task is made of neighborhoods of at most `neighborhood` classes, as equal in size as
    possible, one after the other. With L the classes of a neighborhood so far,

        p(c | L) is proportional to exp(strength * sum over j in L of z(j, c)),
        z(j, c) = (f(j)·f(c) - mean) / standard deviation,

    where mean and deviation are those of f(j)·f(c) over the other classes of the pool, so that
    the strength means the same on any data. A class that was never seen has z = 0, an average
    class. A share `exploration` of the tasks is drawn with strength 0.

    The strength follows the learner. It starts at 0, and each update moves it by

        strength <- clip(strength + 0.01 * (accuracy - target_accuracy), 0, beta),

    where accuracy is the mean over the tasks of the update of the share of queries whose own class
    has strictly the highest probability. So tasks are uniform as long as these are hard enough,
    and become harder only as far as the learner can follow. Without a target the strength is
    always `beta`.

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
    and changes nothing. Accuracy counts right answers, whatever their probability, so that it does
    not depend on the learner's calibration; tasks that explore count too.

    The state has one vector per class, whatever the number of ways.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        n_features: Size d of the class features.
        beta: Largest strength with which near classes are preferred, 0 (not at all) to 100; None:
            sqrt(2 ln(n_classes / 256)), at least 0 and at most 2, so that tasks of 256 classes or
            fewer are uniform: with these harder ones mostly lost in our runs.
        target_accuracy: Accuracy of training tasks above which the strength rises and below which
            it falls, 0 to 1; None: the strength is always `beta`.
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
    strength: Tensor
    """Scalar: how strongly near classes are preferred now, 0 to `beta`."""
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
        beta: float | None = None,
        target_accuracy: float | None = 0.7,
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
        if beta is None:
            self.beta = default_beta(self.n_classes)
            if self.beta == 0:
                self.note = (
                    f"neighbor draws uniform tasks here: with {self.n_classes} training classes "
                    "its beta is 0 unless you set it, since harder tasks mostly lost with so few. "
                    "A beta of 1 prefers near classes all the same."
                )
        else:
            self.beta = check_number("beta", beta, low=0, high=100)
        self.target_accuracy = target_accuracy
        if target_accuracy is not None:
            self.target_accuracy = check_number("target_accuracy", target_accuracy, low=0, high=1)
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
            check_tensor("variant_of", variant_of, "int64", None, (self.n_classes,))
            variant_of = variant_of.to(device=self.device, copy=True)
        self.register_buffer("_variants", variant_of, persistent=False)
        features = torch.zeros(self.n_classes, self.n_features, device=device)
        self.register_buffer("class_features", features)
        self.register_buffer("seen", torch.zeros(self.n_classes, dtype=torch.bool, device=device))
        first_strength = self.beta if target_accuracy is None else 0.0
        self.register_buffer("strength", torch.tensor(first_strength, device=device))
        for name in ("shuffle_key", "tasks_drawn"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64, device=device))
        self._draw_key()

    @property
    def n_neighborhoods(self) -> int:
        """Number of neighborhoods of a task."""
        return math.ceil(self.n_way / self.neighborhood)

    @property
    def _least_coin(self) -> int:
        """The least number, of 0 to 2^32 - 1, with which a task does not explore."""
        return math.ceil(self.exploration * 2**32)

    def reseed(self, seed: int) -> None:
        """Start a new random stream, passes and pools; everything else stays."""
        super().reseed(seed)
        self._draw_key()

    def _draw_key(self) -> None:
        self.shuffle_key.random_(0, 2**32, generator=self._generator)

    def draw(self, n_tasks: int) -> Tensor:
        """Return the classes of new tasks, `tasks x way`, in the order in which they were drawn."""
        pool_size, kernels = min(self.pool_size, self.n_classes), self._neighbor_kernels()
        if kernels is not None:
            noise = self.exponential_noise(self.n_way - 1, n_tasks, pool_size)
            class_ids: Tensor = kernels.draw(
                self.class_features,
                self.seen,
                self._variants,
                noise,
                self.shuffle_key,
                self.tasks_drawn,
                self.strength,
                least_coin=self._least_coin,
                n_neighborhoods=self.n_neighborhoods,
                duplicate_cosine=self.duplicate_cosine,
            )
            return class_ids
        chunk = max(1, _CHUNK_ELEMENTS // (pool_size * self.n_features))
        sizes = [min(chunk, n_tasks - done) for done in range(0, n_tasks, chunk)]
        drawn = [self._draw_plainly(size, pool_size) for size in sizes]
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn)

    def _neighbor_kernels(self) -> Any:
        """Return the kernels of this sampler; None if they cannot be used."""
        if self._kernels() is None:
            return None
        kernels = find_kernels("adaptask.samplers.neighbor_kernels", self.device)
        pool_size = min(self.pool_size, self.n_classes)
        return kernels if kernels.fits(pool_size, self.n_features) else None

    def _draw_plainly(self, n_tasks: int, pool_size: int) -> Tensor:
        """Return the classes of some tasks by NumPy or plain torch."""
        xp = namespace(self.class_features)
        features, seen = view(self.class_features), view(self.seen)
        variants = None if self._variants is None else view(self._variants)
        noise = view(self.gumbel_noise(self.n_way - 1, n_tasks, pool_size, dtype=self.dtype))
        first, pool_keys, coins = self._plan(n_tasks, xp)
        pool, at, tasks = None, first, count(n_tasks, features, xp)
        if pool_size < self.n_classes:
            places = count(pool_size - 1, features, xp)
            others = shuffled(places, pool_keys, self.n_classes - 1, xp)
            others += others >= first[:, None]  # all classes but the first
            pool, at = xp.concatenate((first[:, None], others), 1), xp.zeros_like(first)
            features, seen = features[pool], seen[pool]
            variants = None if variants is None else variants[pool]
        strength = view(self.strength)
        if self.exploration > 0:
            follows = coins >= self._least_coin
            strength = strength * xp.asarray(follows, dtype=features.dtype)[:, None]
        chosen = fill_neighborhoods(
            features,
            seen,
            at,
            noise,
            strength=strength,
            n_neighborhoods=self.n_neighborhoods,
            variants=variants,
            duplicate_cosine=self.duplicate_cosine,
            xp=xp,
        )
        return torch.as_tensor(chosen if pool is None else pool[tasks[:, None], chosen])

    def _plan(self, n_tasks: int, xp: Any) -> tuple[Array, Array, Array]:
        """Return what the numbers of the next tasks decide, as `plan_tasks` does, and count on."""
        key, counter = self.shuffle_key, self.tasks_drawn
        if xp is torch:
            numbers = counter + torch.arange(n_tasks, device=self.device)
            counter += n_tasks
            return plan_tasks(key, numbers, self.n_classes, torch)
        # A hundred operations on one number take as long as on many.
        start, stop = int(counter), int(counter) + n_tasks
        counter += n_tasks
        pieces = []
        for chunk in range(start // _PLANNED, (stop - 1) // _PLANNED + 1):
            planned = _plan_chunk(int(key), chunk, self.n_classes)
            at = chunk * _PLANNED
            pieces.append([part[max(start - at, 0) : stop - at] for part in planned])
        first, pool_keys, coins = (
            parts[0] if len(parts) == 1 else np.concatenate(parts)
            for parts in zip(*pieces, strict=True)
        )
        return first, pool_keys, coins

    def learn(self, feedback: Feedback) -> None:
        """Move the features of the classes that were in a task towards what was given.

        The strength moves by the accuracy of the tasks.
        """
        xp = namespace(self.class_features)
        if self.target_accuracy is not None:
            self._follow(feedback.accuracy, feedback.accepted, xp)
        features, seen = view(self.class_features), view(self.seen)
        ids, given = feedback.class_ids.reshape(-1), feedback.class_features
        assert given is not None  # `update` has checked it
        units, known = _unit(given.reshape(len(ids), -1), xp)
        if feedback.accepted is not None:
            known &= feedback.accepted.repeat_interleave(self.n_way)
        if len(feedback.class_ids) > 1:
            means, found = mean_by_key(ids[:, None], units[:, None], known, xp)
            assert found is not None
            units, known = means[:, 0], found[:, 0]
        old, was_seen = features[ids], seen[ids]
        moved = self.momentum * old + (1 - self.momentum) * units
        new, has_direction = _unit(xp.where(was_seen[:, None], moved, units), xp)
        known &= has_direction
        features[ids] = xp.where(known[:, None], new, old)
        seen[ids] = was_seen | known

    def _follow(self, accuracy: Array, accepted: Array | None, xp: Any) -> None:
        """Move the strength by the mean accuracy of the tasks that were accepted, if any."""
        # Sums of float32 are exact in float64: the order of tasks does not matter.
        accuracy = xp.asarray(accuracy, dtype=xp.float64)
        if accepted is None:
            excess = accuracy.mean() - self.target_accuracy
        else:
            n_accepted = accepted.sum()
            excess = (accuracy * accepted).sum() / n_accepted.clip(1) - self.target_accuracy
            excess = excess * (n_accepted > 0)
        strength = view(self.strength)
        strength[...] = (strength + RATE * excess).clip(0, self.beta)

    def _learn_by_kernels(
        self,
        kernels: Any,
        class_ids: Tensor,
        probabilities: Tensor,
        labels: Tensor,
        tolerance: float,
        class_features: Tensor | None,
    ) -> bool:
        kernels = self._neighbor_kernels()
        if kernels is None:
            return False
        kernels.learn(
            self.class_features,
            self.seen,
            self.strength,
            self._refusals,
            class_ids,
            probabilities,
            labels,
            class_features,
            momentum=self.momentum,
            beta=self.beta,
            target_accuracy=self.target_accuracy,
            rate=RATE,
            tolerance=tolerance,
        )
        return True

    @of_category_sets
    def log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of each category set now, `tasks` float64.

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
        counted = self.seen.expand_as(cosines).double()
        each = torch.arange(self.n_classes, device=self.device)
        scores = standardized(cosines.clone(), counted, counted.sum(-1), each, each, torch)
        conflicts = None if self._variants is None else self._variants[:, None] == self._variants
        if self.duplicate_cosine is not None:
            alike = cosines > self.duplicate_cosine
            conflicts = alike if conflicts is None else conflicts | alike
        shares = ((self.strength.double(), 1 - self.exploration), (0.0, self.exploration))
        parts = [
            math.log(share)
            + theory.neighbor_log_prob(strength * scores, class_ids, conflicts=conflicts)
            for strength, share in shares
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
        fixed, strength = self.target_accuracy is None, float(buffers["strength"])
        tolerance = 1e-6 * self.beta  # of float32
        if not self.beta * fixed - tolerance <= strength <= self.beta + tolerance:
            raise StateError(
                f"strength of the state must be {'' if fixed else 'between 0 and '}{self.beta:g}, "
                f"by beta and target_accuracy of this sampler; got {strength:g}. Build the sampler "
                "with the options of the one that was saved, or load another state."
            )

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        settings = (
            f"beta={self.beta:g}, target_accuracy={self.target_accuracy}, "
            f"exploration={self.exploration:g}"
        )
        return f"{super().extra_repr()}, n_features={self.n_features}, {settings}"


def default_beta(n_classes: int) -> float:
    """Return the largest strength for a number of classes, 0 to 2.

    If z is normally distributed over n classes, a strength s leaves n * exp(-s^2 / 2) of them to
    choose from, as many as equally likely ones would have the same entropy. So

        beta = sqrt(2 ln(n_classes / 256)),   but at least 0 and at most 2,

    leaves 256 classes or more. With 256 classes or fewer all tasks are uniform.

    >>> [round(default_beta(n), 2) for n in (64, 256, 512, 1024, 4112)]
    [0.0, 0.0, 1.18, 1.67, 2.0]
    """
    return min(2.0, math.sqrt(2 * math.log(max(1.0, n_classes / FEWEST_CHOICES))))


def fill_neighborhoods(
    features: Array,
    seen: Array,
    at: Array,
    noise: Array,
    *,
    strength: Array,
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
        strength: One number or `tasks x 1`.
        n_neighborhoods: Number of neighborhoods of a task.
        variants: Numbers that are equal for classes which do not meet, `tasks x pool` or `pool`.
        duplicate_cosine: Classes with a larger cosine do not meet.
        xp: `numpy` or `torch`, the library of the arrays.

    Returns:
        Positions in the pool, `tasks x way` int64.
    """
    n_way, (n_tasks, pool_size) = 1 + len(noise), noise.shape[1:]
    tasks = count(n_tasks, features, xp)
    counted = xp.asarray(xp.broadcast_to(seen, (n_tasks, pool_size)), dtype=features.dtype)
    n_counted = counted.sum(-1)
    closed = xp.zeros_like(noise[0])
    is_allowed, score, chosen = None, 0.0, [at]
    for k, step_noise in enumerate(noise, 1):
        _set(closed, tasks, at, -xp.inf)
        begins = k * n_neighborhoods // n_way > (k - 1) * n_neighborhoods // n_way
        if not begins or duplicate_cosine is not None:
            if features.ndim == 2:
                cosines = features[at] @ features.T
            else:
                cosines = (features @ features[tasks, at][:, :, None])[..., 0]
        if duplicate_cosine is not None:
            is_allowed = _both(is_allowed, cosines <= duplicate_cosine)
        if variants is not None:
            of_chosen = variants[at] if variants.ndim == 1 else variants[tasks, at]
            is_allowed = _both(is_allowed, variants != of_chosen[:, None])
        z = 0.0 if begins else standardized(cosines, counted, n_counted, tasks, at, xp)
        score = z if begins else score + z
        log_weights = strength * score + step_noise + closed
        if is_allowed is not None:
            is_open = is_allowed & (closed == 0)
            is_open |= ~is_open.any(-1)[:, None]
            log_weights = xp.where(is_open, log_weights, -xp.inf)
        at = log_weights.argmax(-1)
        chosen.append(at)
    return xp.stack(chosen, -1)


def _set(array: Array, tasks: Array, at: Array, value: float) -> None:
    """Set one place of each task; an indexed assignment of a number would wait for a GPU."""
    if isinstance(array, Tensor):
        array.scatter_(1, at[:, None], value)
    else:
        array[tasks, at] = value


def standardized(
    cosines: Array, counted: Array, n_counted: Array, tasks: Array, at: Array, xp: Any
) -> Array:
    """Return cosines to a class minus their mean, in units of their standard deviation.

    Args:
        cosines: `tasks x pool`; overwritten.
        counted: `tasks x pool`: 1 for classes with a feature, 0 for those without; they get 0.
        n_counted: Their number, `tasks`.
        tasks: 0, 1, 2, ...
        at: Position of the class that the cosines are to, `tasks`; it does not count, and gets 0.
        xp: `numpy` or `torch`.
    """
    _set(cosines, tasks, at, 0.0)
    n_others = n_counted - counted[tasks, at] + 1e-9  # none: 0 / 1e-9 is 0
    cosines -= (_dot(cosines, counted) / n_others)[:, None]
    cosines *= counted
    _set(cosines, tasks, at, 0.0)
    cosines /= xp.sqrt(_dot(cosines, cosines) / n_others + _LEAST_VARIANCE)[:, None]
    return cosines


def plan_tasks(key: Array, numbers: Array, n_classes: int, xp: Any) -> tuple[Array, Array, Array]:
    """Return what the numbers of tasks decide.

    Args:
        key: Scalar.
        numbers: `tasks` int64.
        n_classes: Number of classes.
        xp: `numpy` or `torch`.

    Returns:
        The first class of each task, `tasks`; the round keys of its pool, `tasks x turns`; and a
        number that decides whether it explores, `tasks`, 0 to 2^32 - 1.
    """
    pass_keys = round_keys(derived_keys(key, numbers // n_classes, _PASS, xp), n_classes, xp)
    first = shuffled((numbers % n_classes)[:, None], pass_keys, n_classes, xp)[:, 0]
    pool_keys = round_keys(derived_keys(key, numbers, _POOL, xp), n_classes - 1, xp)
    return first, pool_keys, derived_keys(key, numbers, _EXPLORATION, xp)


@functools.lru_cache(maxsize=16)
def _plan_chunk(key: int, chunk: int, n_classes: int) -> tuple[Array, Array, Array]:
    numbers = np.arange(chunk * _PLANNED, (chunk + 1) * _PLANNED)
    return plan_tasks(np.array(key), numbers, n_classes, np)


def _both(first: Array | None, second: Array) -> Array:
    return second if first is None else first & second


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
