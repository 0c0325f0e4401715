"""The laws of samplers: each raises an `AssertionError` that says what was expected and what came.

They hold for task samplers and for samplers of single examples. A sampler may be any object with
`sample` and `update`, `n_classes` and `n_way`; laws about what it does not have are skipped.
"""

from __future__ import annotations

import copy
import functools
import io
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adaptask.conformance.laws import check_laws, equal, require
from adaptask.errors import AdaptaskError

SamplerFactory = Callable[[int], Any]
"""Builds a fresh sampler from a seed."""
Law = Callable[[SamplerFactory], None]

_N_DRAWS = 20_000
_N_QUERY = 4
_N_LABELS = 3
_N_ROUNDS = 4
_MOST_OUTCOMES = 2_000
_STATE = ("state_dict", "load_state_dict")

_LAWS: list[Law] = []


def check_sampler(build: SamplerFactory) -> None:
    """Check a sampler against every law of this module.

    Laws about probabilities are skipped if the sampler has no `log_prob`, or it raises an
    `AdaptaskError`. Laws about states and about refusing bad feedback are skipped if it has no
    `state_dict`, laws about features unless it `uses_class_features`, laws about weights and about
    choosing unless it has `weigh` or `choose`.

    Args:
        build: Returns a fresh sampler for a seed. Keep it small, such as 9 classes and 3 ways, so
            that its distribution can be enumerated.

    Raises:
        AssertionError: If a law is broken.
    """
    check_laws(SAMPLER_LAWS, build)


def _law(*needs: str) -> Callable[[Law], Law]:
    """Add a law to `SAMPLER_LAWS`; it is skipped for samplers that do not have what it needs."""

    def add(law: Law) -> Law:
        @functools.wraps(law)
        def checked(build: SamplerFactory) -> None:
            if all(map(describe(build(0)).has, needs)):
                law(build)

        _LAWS.append(checked)
        return checked

    return add


@_law()
def has_what_a_sampler_needs(build: SamplerFactory) -> None:
    """It can be built, has the methods of a sampler, and no parameters."""
    sampler = build(0)
    describe(sampler)
    parameters = getattr(sampler, "parameters", list)
    require(not list(parameters()), "a sampler has buffers and no parameters")


@_law()
def draws_have_their_form(build: SamplerFactory) -> None:
    """Draws are int64 of the right shape, in range, and distinct within a task."""
    subject = describe(build(0))
    for n_draws in (1, 7, 64):
        ids = subject.sampler.sample(n_draws)
        shape = (n_draws, *subject.row)
        require(tuple(ids.shape) == shape, f"sample has the shape {shape}", tuple(ids.shape))
        require(ids.dtype == torch.int64, "sample returns int64", ids.dtype)
        in_range = (ids >= 0) & (ids < subject.n_items)
        require(bool(in_range.all()), "what is drawn is in range", ids)
        if subject.row:
            distinct = all(len(set(row)) == subject.row[0] for row in ids.tolist())
            require(distinct, "the classes of a task are distinct", ids)


@_law()
def the_seed_decides(build: SamplerFactory) -> None:
    """Equal seeds give equal draws, also after updates; other seeds give others."""
    first, second, other = build(3), build(3), build(4)
    for sampler in (first, second, other):
        _teach(describe(sampler), n_rounds=3)
    same = torch.equal(first.sample(32), second.sample(32))
    require(same, "two samplers with the same seed draw the same")
    require(not torch.equal(second.sample(32), other.sample(32)), "another seed draws otherwise")


@_law(*_STATE)
def a_restored_state_draws_on(build: SamplerFactory) -> None:
    """A state that went through a file, loaded without pickle, draws and learns on exactly."""
    original, restored = build(5), build(6)
    _teach(describe(original), n_rounds=3)
    original.sample(5)
    file = io.BytesIO()
    torch.save(original.state_dict(), file)
    file.seek(0)
    restored.load_state_dict(torch.load(file, weights_only=True))
    twin = copy.deepcopy(original)
    for _ in range(3):
        draws = [sampler.sample(16) for sampler in (original, restored, twin)]
        require(torch.equal(draws[0], draws[1]), "a restored sampler draws on exactly")
        require(torch.equal(draws[0], draws[2]), "a deep copy draws on exactly")
        for sampler in (original, restored, twin):
            _teach(describe(sampler), n_rounds=1)
    same = equal(original.state_dict(), restored.state_dict())
    require(same, "a restored sampler learns on exactly")


@_law(*_STATE)
def updates_leave_the_random_stream_alone(build: SamplerFactory) -> None:
    """An update draws no random numbers: the next draw of a uniform sampler stays as it was."""
    taught, untaught = build(7), build(7)
    _teach(describe(taught), n_rounds=2)
    streams = [s.state_dict().get("_extra_state", {}) for s in (taught, untaught)]
    if all(isinstance(stream, dict) and "generator" in stream for stream in streams):
        states = [stream["generator"]["state"] for stream in streams]
        require(torch.equal(*states), "update leaves the random stream as it was")


@_law(*_STATE)
def shared_labels_mean_the_same_as_repeated_ones(build: SamplerFactory) -> None:
    """Labels given once for all tasks count for each of them."""
    repeated, shared = describe(build(15)), describe(build(15))
    if not shared.row:
        return
    ids, probabilities, labels, *features = repeated.feedback(seed=5, n_tasks=4)
    repeated.update(ids, probabilities, labels, *features)
    shared.update(ids, probabilities, labels[0], *features)
    same = equal(repeated.sampler.state_dict(), shared.sampler.state_dict())
    require(same, "labels of shape `queries` count for all tasks")


@_law()
def updates_keep_no_graph_and_change_no_argument(build: SamplerFactory) -> None:
    """Probabilities and features may require gradients; what is given stays as it was."""
    subject = describe(build(16))
    given = subject.feedback(seed=6, n_tasks=4)
    copies = [part.clone() for part in given]
    for part in given:
        part.requires_grad_(part.is_floating_point())
    subject.update(*given)
    buffers = dict(getattr(subject.sampler, "named_buffers", dict)())
    kept = [name for name, buffer in buffers.items() if buffer.requires_grad]
    require(not kept, "nothing that is kept requires gradients", kept)
    same = all(torch.equal(a, b) for a, b in zip(given, copies, strict=True))
    require(same, "update leaves its arguments as they were")


@_law("log_prob")
def the_order_of_tasks_does_not_matter(build: SamplerFactory) -> None:
    """An update with its entries in another order comes to the same distribution."""
    forward, backward = describe(build(8)), describe(build(8))
    feedback = forward.feedback(seed=1, n_tasks=12)
    forward.update(*feedback)
    backward.update(*(part.flip(0) for part in feedback))
    _require_close(_distribution(forward), _distribution(backward), "the order of tasks is free")


@_law("log_prob")
def relabeling_classes_relabels_the_result(build: SamplerFactory) -> None:
    """Nothing is special: renaming what is drawn renames the distribution."""
    plain, renamed = describe(build(9)), describe(build(9))
    names = _teach_under_other_names(plain, renamed)
    outcomes = plain.outcomes()
    before, after = plain.sampler.log_prob(outcomes), renamed.sampler.log_prob(names[outcomes])
    _require_close(before, after, "renaming classes renames the result")


@_law("class_features")
def permuting_classes_permutes_the_draws(build: SamplerFactory) -> None:
    """Features belong to classes, whatever their numbers: renaming classes renames the draws."""
    plain, renamed = describe(build(18)), describe(build(19))
    names = _teach_under_other_names(plain, renamed)
    _require_same_draws(plain, renamed, names, "permuting classes permutes the draws")


@_law("class_features")
def rotating_the_features_changes_nothing(build: SamplerFactory) -> None:
    """No direction of feature space is special: a rotation of all features changes no draw."""
    plain, rotated = describe(build(20)), describe(build(21))
    noise = torch.randn(2 * (plain.n_features,), generator=torch.Generator().manual_seed(8))
    rotation = torch.linalg.qr(noise).Q.to(plain.device)
    for seed in range(_N_ROUNDS):
        ids, probabilities, labels, features = plain.feedback(seed=seed, n_tasks=6)
        plain.update(ids, probabilities, labels, features)
        rotated.update(ids, probabilities, labels, features @ rotation)
    names = torch.arange(plain.n_items, device=plain.device)
    _require_same_draws(plain, rotated, names, "rotating the features changes nothing")


@_law("log_prob")
def the_order_within_a_task_does_not_matter(build: SamplerFactory) -> None:
    """Reordering the classes of a task, labels and columns with them, changes nothing."""
    plain, reordered = describe(build(10)), describe(build(10))
    if not plain.row:
        return
    class_ids, probabilities, labels, *features = plain.feedback(seed=3, n_tasks=6)
    plain.update(class_ids, probabilities, labels, *features)
    flipped = (class_ids.flip(1), probabilities.flip(2), plain.row[0] - 1 - labels)
    reordered.update(*flipped, *(part.flip(1) for part in features))
    _require_close(_distribution(plain), _distribution(reordered), "the order in a task is free")
    outcomes = plain.outcomes()
    there, back = plain.sampler.log_prob(outcomes), plain.sampler.log_prob(outcomes.flip(1))
    _require_close(there, back, "log_prob is of sets")


@_law("log_prob")
def log_prob_is_a_distribution_and_draws_follow_it(build: SamplerFactory) -> None:
    """If all outcomes can be listed, log_prob sums to one and 20,000 draws agree with it."""
    subject = describe(build(11))
    if not subject.is_enumerable:
        return
    _teach(subject, n_rounds=5)
    probs = _distribution(subject).exp()
    _require_close(probs.sum(), torch.ones_like(probs.sum()), "probabilities sum to one")
    counts = subject.count_draws(subject.outcomes())
    expected = probs.cpu() * _N_DRAWS
    possible = expected > 0
    require(not counts[~possible].any(), "what has probability zero is never drawn")
    statistic = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    limit = _chi_square_limit(int(possible.sum()) - 1)
    require(statistic < limit, f"draws follow log_prob (chi-square below {limit:.0f})", statistic)


@_law(*_STATE)
def bad_feedback_is_refused_and_changes_nothing(build: SamplerFactory) -> None:
    """What is wrong raises an AdaptaskError, at once or from `check()`, and leaves no trace."""
    subject = describe(build(12))
    sampler = subject.sampler
    _teach(subject, n_rounds=2)
    for problem, arguments in subject.bad_feedback():
        before = copy.deepcopy(sampler.state_dict())
        try:
            subject.update(*arguments)
            getattr(sampler, "check", lambda: None)()
        except AdaptaskError as error:
            require(len(str(error)) > 20, f"the error on {problem} says what to do", error)
        else:
            require(False, f"update refuses {problem}")
        require(equal(before, sampler.state_dict()), f"{problem} changes nothing")


@_law(*_STATE)
def a_bad_task_among_good_ones_leaves_no_trace(build: SamplerFactory) -> None:
    """Either the whole update is refused, or the others count as if the bad one were not there."""
    n_parts = len(describe(build(17)).feedback(seed=7, n_tasks=1))
    for bad_part in (1, 3)[: n_parts - 2]:  # probabilities, and features if there are any
        subject, others = describe(build(17)), describe(build(17))
        feedback = subject.feedback(seed=7, n_tasks=5)
        untouched = copy.deepcopy(subject.sampler.state_dict())
        good = [0, 1, 3, 4]
        others.update(*(part[good] for part in feedback))
        feedback[bad_part][2, 0] = math.nan
        try:
            subject.update(*feedback)
            getattr(subject.sampler, "check", lambda: None)()
        except AdaptaskError:
            pass
        else:
            require(False, "a task with NaN among good ones is reported")
        after = subject.sampler.state_dict()
        fits = equal(after, untouched) or equal(after, others.sampler.state_dict())
        require(fits, "a bad task among good ones leaves no trace")


@_law(*_STATE)
def a_foreign_state_is_refused_and_changes_nothing(build: SamplerFactory) -> None:
    """A state that is incomplete or of another sampler raises, and nothing of it is loaded."""
    sampler = build(13)
    _teach(describe(sampler), n_rounds=2)
    good = copy.deepcopy(sampler.state_dict())
    incomplete = [{k: v for k, v in good.items() if k != missing} for missing in good]
    misshapen = [
        {**good, k: v.new_zeros(v.numel() + 1)} for k, v in good.items() if isinstance(v, Tensor)
    ]
    for state in [{}, *incomplete, *misshapen, {**good, "stranger": torch.zeros(1)}]:
        try:
            sampler.load_state_dict(state)
        except (AdaptaskError, RuntimeError):
            pass
        else:
            require(False, f"a state with the keys {sorted(state)} is refused")
        require(equal(good, sampler.state_dict()), "a refused state changes nothing")


@_law("weigh")
def weights_are_finite_and_not_negative(build: SamplerFactory) -> None:
    """Each task gets a weight, whatever the losses; reordering tasks reorders the weights."""
    device = describe(build(0)).device
    for spread in (0.0, 0.3, 10.0):
        sampler, other = build(18), build(18)
        for seed, n_tasks in enumerate([1, 4, 4, 1, 8] * 30):
            generator = torch.Generator().manual_seed(seed)
            noise = torch.randn(n_tasks, generator=generator)
            losses = (1 + spread * noise).abs().to(device)
            before = losses.clone()
            weights = sampler.weigh(losses)
            require(torch.equal(losses, before), "weigh leaves the losses as they were")
            require(weights.shape == losses.shape, "weigh returns one weight per task", weights)
            require(not weights.requires_grad, "weights keep no graph")
            fits = weights.isfinite() & (weights >= 0)
            require(bool(fits.all()), "weights are finite and not negative", weights)
            order = torch.randperm(n_tasks, generator=generator).to(device)
            again, scale = other.weigh(losses[order]), weights.max().clamp_min(1)
            _require_close(again / scale, weights[order] / scale, "weights go with their task")


@_law("weigh", *_STATE)
def a_restored_state_weighs_on(build: SamplerFactory) -> None:
    """What `weigh` learns is part of the state."""
    original, restored = build(19), build(20)
    device = describe(original).device
    rows = torch.rand(200, 4, generator=torch.Generator().manual_seed(3)).to(device)
    for losses in rows[:150]:
        original.weigh(losses)
    restored.load_state_dict(copy.deepcopy(original.state_dict()))
    for losses in rows[150:]:
        same = torch.equal(original.weigh(losses), restored.weigh(losses))
        require(same, "a restored sampler weighs on exactly")


@_law("choose")
def chosen_tasks_are_distinct_candidates(build: SamplerFactory) -> None:
    """There are enough candidates, and as many of them are chosen as are asked for."""
    sampler = build(21)
    require(hasattr(sampler, "n_candidates"), "a sampler that chooses has n_candidates(n_tasks)")
    for n_tasks in (1, 2, 5, 8):
        n_candidates = sampler.n_candidates(n_tasks)
        law = f"n_candidates is an integer of at least n_tasks, {n_tasks}"
        require(type(n_candidates) is int and n_candidates >= n_tasks, law, n_candidates)
        class_ids = sampler.sample(n_candidates)
        losses = torch.rand(n_candidates, generator=torch.Generator().manual_seed(n_tasks))
        for given in (losses, torch.ones_like(losses)):
            positions = sampler.choose(class_ids, given.to(class_ids.device), n_tasks)
            require(positions.dtype == torch.int64, "choose returns int64", positions.dtype)
            require(positions.shape == (n_tasks,), "choose returns n_tasks positions", positions)
            distinct = set(positions.tolist())
            fits = len(distinct) == n_tasks and distinct <= set(range(n_candidates))
            require(fits, "positions are distinct and in range", positions)


@_law(*_STATE)
def nonsense_arguments_are_refused(build: SamplerFactory) -> None:
    """`sample` of no tasks, of a fraction of a task or of True tasks raises an AdaptaskError."""
    sampler = build(14)
    for nonsense in (0, -1, 1.5, "2", True, None):
        try:
            sampler.sample(nonsense)
        except AdaptaskError:
            continue
        require(False, f"sample({nonsense!r}) is refused")


SAMPLER_LAWS = tuple(_LAWS)
"""The laws that `check_sampler` checks, each a function of a factory."""


def _require_close(left: Tensor, right: Tensor, law: str) -> None:
    # Two infinities of one sign are as close as can be; their difference is not a number.
    gap = float((left - right).abs().masked_fill(left == right, 0).max())
    require(gap < 1e-4, f"{law} (to 1e-4)", gap)


def _require_same_draws(left: Subject, right: Subject, names: Tensor, law: str) -> None:
    """Require one distribution of two samplers, of which one has other names for the classes.

    Exactly if they have `log_prob`, otherwise by a chi-square test of draws, if all outcomes can be
    listed.
    """
    outcomes = left.outcomes()
    if left.has("log_prob"):
        there = right.sampler.log_prob(names[outcomes])
        _require_close(_distribution(left), there, law)
    elif left.is_enumerable:
        one, other = left.count_draws(outcomes), right.count_draws(names[outcomes])
        seen = one + other > 0
        statistic = float(((one - other)[seen] ** 2 / (one + other)[seen]).sum())
        limit = _chi_square_limit(int(seen.sum()) - 1)
        require(statistic < limit, f"{law} (chi-square below {limit:.0f})", statistic)


def _chi_square_limit(freedom: int) -> float:
    """Return what a chi-square variable exceeds by chance only at six standard deviations."""
    return freedom + 6 * math.sqrt(2 * freedom) + 12


def _teach(subject: Subject, *, n_rounds: int) -> None:
    for seed in range(n_rounds):
        subject.update(*subject.feedback(seed=100 + seed, n_tasks=5))


def _teach_under_other_names(plain: Subject, renamed: Subject) -> Tensor:
    """Teach two samplers the same, one with other class ids; return what it calls each class."""
    # One random cycle through all of them: nothing keeps its name.
    cycle = torch.randperm(plain.n_items, generator=torch.Generator().manual_seed(2))
    names = torch.empty_like(cycle)
    names[cycle] = cycle.roll(1)
    names = names.to(plain.device)
    for seed in range(_N_ROUNDS):
        ids, *others = plain.feedback(seed=seed, n_tasks=6)
        plain.update(ids, *others)
        renamed.update(names[ids], *others)
    return names


def _distribution(subject: Subject) -> Tensor:
    log_probs: Tensor = subject.sampler.log_prob(subject.outcomes())
    return log_probs


@dataclass(frozen=True)
class Subject:
    """A sampler under test, and what the laws need to know of it."""

    sampler: Any
    n_items: int
    """Number of things there are to draw."""
    row: tuple[int, ...]
    """The shape of one draw: `(n_way,)` for tasks, `()` for single instances."""
    n_features: int = 0
    """Size of the class features that it uses; 0 if it uses none."""

    @property
    def device(self) -> torch.device:
        """Where the sampler works."""
        buffers: list[Tensor] = list(getattr(self.sampler, "buffers", list)())
        return buffers[0].device if buffers else torch.device("cpu")

    @property
    def is_enumerable(self) -> bool:
        """Whether `outcomes()` are all there are."""
        return math.comb(self.n_items, math.prod(self.row)) <= _MOST_OUTCOMES

    def outcomes(self) -> Tensor:
        """Return what can be drawn, each set once, or the first of it."""
        if not self.row:
            return torch.arange(min(self.n_items, _MOST_OUTCOMES), device=self.device)
        sets = itertools.combinations(range(self.n_items), self.row[0])
        return torch.tensor(list(itertools.islice(sets, _MOST_OUTCOMES)), device=self.device)

    def keys(self, ids: Tensor) -> list[Any]:
        """Return something hashable for each draw, equal for equal sets."""
        return [tuple(sorted(row)) if self.row else row for row in ids.tolist()]

    def count_draws(self, outcomes: Tensor) -> Tensor:
        """Return how often each outcome comes in 20,000 draws, `outcomes` float64."""
        index = {key: i for i, key in enumerate(self.keys(outcomes))}
        counts = torch.zeros(len(index), dtype=torch.float64)
        for key in self.keys(self.sampler.sample(_N_DRAWS)):
            counts[index[key]] += 1
        return counts

    def has(self, name: str) -> bool:
        """Return whether it has a method; `log_prob` only if it computes probabilities.

        `class_features` stands for learning from them.
        """
        if name == "class_features":
            return self.n_features > 0
        if name == "log_prob" and hasattr(self.sampler, name):
            try:
                self.sampler.log_prob(self.outcomes()[:1])
            except AdaptaskError:
                return False
        return hasattr(self.sampler, name)

    def update(self, ids: Any, probabilities: Any, labels: Any, *features: Any) -> None:
        """Update the sampler with feedback, and with class features if they are given."""
        named = {"class_features": features[0]} if features else {}
        self.sampler.update(ids, probabilities, labels, **named)

    def feedback(self, *, seed: int, n_tasks: int) -> tuple[Tensor, ...]:
        """Make up what a learner might say; class features are last, if the sampler uses them.

        Every class has a direction of its own, about which its features are spread.
        """
        generator = torch.Generator().manual_seed(seed)
        if self.row:
            n_way = self.row[0]
            ranks = torch.rand(n_tasks, self.n_items, generator=generator)
            ids = ranks.argsort(-1)[:, :n_way]
            logits = torch.randn(n_tasks, n_way * _N_QUERY, n_way, generator=generator)
            labels = torch.arange(n_way).repeat_interleave(_N_QUERY).repeat(n_tasks, 1)
        else:
            ids = torch.randint(self.n_items, (n_tasks,), generator=generator)
            logits = torch.randn(n_tasks, _N_LABELS, generator=generator)
            labels = torch.randint(_N_LABELS, (n_tasks,), generator=generator)
        feedback = [ids, (2 * logits).softmax(-1), labels]
        if self.n_features:
            size, always = (self.n_items, self.n_features), torch.Generator().manual_seed(9)
            centers = torch.randn(size, generator=always) / math.sqrt(self.n_features)
            noise = torch.randn(*ids.shape, self.n_features, generator=generator)
            feedback.append(centers[ids] + 0.1 * noise / math.sqrt(self.n_features))
        return tuple(part.to(self.device) for part in feedback)

    def bad_feedback(self) -> list[tuple[str, tuple[Any, ...]]]:
        """Make up what must be refused, each with a name."""
        ids, probabilities, labels, *features = self.feedback(seed=4, n_tasks=1)
        first = (0,) * ids.ndim
        n_labels = probabilities.shape[-1]
        cell = (0,) * probabilities.ndim
        answer = (0,) * labels.ndim
        bad: list[tuple[str, tuple[Any, ...]]] = [
            ("NaN", (ids, _edited(probabilities, cell, math.nan), labels)),
            ("infinity", (ids, _edited(probabilities, cell, math.inf), labels)),
            ("logits", (ids, probabilities.log(), labels)),
            ("rows that miss one", (ids, probabilities * 0.9, labels)),
            ("a negative probability", (ids, probabilities * 3 - 2 / n_labels, labels)),
            ("a label too large", (ids, probabilities, _edited(labels, answer, n_labels))),
            ("a negative label", (ids, probabilities, _edited(labels, answer, -1))),
            ("an id too large", (_edited(ids, first, self.n_items), probabilities, labels)),
            ("a negative id", (_edited(ids, first, -1), probabilities, labels)),
            ("another number of tasks", (torch.cat((ids, ids)), probabilities, labels)),
            ("another number of labels", (ids, probabilities, labels[..., 1:])),
            ("nothing at all", (ids[:0], probabilities[:0], labels[:0])),
            ("ids as float", (ids.float(), probabilities, labels)),
            ("probabilities as integers", (ids, probabilities.long(), labels)),
            ("labels as float", (ids, probabilities, labels.float())),
            ("lists", (ids.tolist(), probabilities, labels)),
        ]
        if self.row:
            twice = _edited(ids, (0, 0), int(ids[0, 1]))
            bad += [
                ("a class twice in a task", (twice, probabilities, labels)),
                ("a class without queries", (ids, probabilities, labels.clamp_min(1))),
                ("ids of another way", (ids[:, 1:], probabilities, labels)),
                ("probabilities of another way", (ids, probabilities[..., 1:], labels)),
            ]
        if features:
            good, [means] = (ids, probabilities, labels), features
            bad = [(problem, (*given, means)) for problem, given in bad]
            bad += [
                ("no class features", good),
                ("a feature that is NaN", (*good, _edited(means, (0, 0, 0), math.nan))),
                ("an infinite feature", (*good, _edited(means, (0, 0, 0), math.inf))),
                ("features as integers", (*good, means.long())),
                ("features of another way", (*good, means[:, 1:])),
                ("features of another size", (*good, means[..., 1:])),
                ("features of other tasks", (*good, torch.cat((means, means)))),
            ]
        return bad


def describe(sampler: Any) -> Subject:
    """Tell what kind of sampler it is.

    Raises:
        AssertionError: If it has not what a sampler needs.
    """
    draws_examples = getattr(sampler, "draws", "tasks") == "examples"
    sizes = ("n_instances",) if draws_examples else ("n_classes", "n_way")
    needed = (*sizes, "sample", "update")
    missing = [name for name in needed if not hasattr(sampler, name)]
    kind = type(sampler).__name__
    require(not missing, f"a sampler has {', '.join(needed)}; {kind} has no {', '.join(missing)}")
    row = () if draws_examples else (sampler.n_way,)
    n_features = 0
    if getattr(sampler, "uses_class_features", False):
        n_features = getattr(sampler, "n_features", None) or 0
        require(n_features > 0, f"a sampler that uses class features has n_features; {kind} not")
    return Subject(sampler, getattr(sampler, sizes[0]), row, n_features)


def _edited(tensor: Tensor, at: tuple[int, ...], value: float) -> Tensor:
    tensor = tensor.clone()
    tensor[at] = value
    return tensor
