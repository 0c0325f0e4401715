"""Neighbor sampling against a slow enumeration in plain Python, and its laws."""

import copy
import itertools
import math

import pytest
import torch
from torch.nn.functional import normalize

from adaptask.errors import ArgumentError, StateError
from adaptask.samplers import NeighborSampler, build_sampler, neighbor

REASONABLE = 1e-4
N_DRAWS = 60_000


def build(n_classes, n_way, n_features=4, *, n_unseen=0, **options):
    """A sampler of fixed strength whose classes have random features, except the last ones."""
    sizes = {"n_classes": n_classes, "n_way": n_way, "n_features": n_features}
    options = {"beta": 1.0, "target_accuracy": None} | options
    sampler = build_sampler("neighbor", **sizes, **options)
    features = torch.randn(n_classes, n_features, generator=torch.Generator().manual_seed(1))
    sampler.class_features.copy_(normalize(features, dim=-1))
    sampler.seen.fill_(True)
    if n_unseen:
        sampler.class_features[-n_unseen:] = 0
        sampler.seen[-n_unseen:] = False
    return sampler


def z_scores(sampler, pool):
    """z(j, c) within a pool as {(j, c): number}, one at a time, in plain Python."""
    features, seen = sampler.class_features.double().tolist(), sampler.seen.tolist()

    def cosine(i, j):
        return sum(a * b for a, b in zip(features[i], features[j], strict=True))

    scores = {}
    for j in pool:
        others = [c for c in pool if c != j and seen[c]]
        values = [cosine(j, c) for c in others]
        mean = sum(values) / len(values) if values else 0
        deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / max(len(values), 1))
        for c in pool:
            counts = c in others and deviation > 0
            scores[j, c] = (cosine(j, c) - mean) / deviation if counts else 0.0
    return scores


def conflict(sampler, i, j):
    """Whether two classes must not meet."""
    features, variants = sampler.class_features, sampler._variants
    limit = sampler.duplicate_cosine
    return (variants is not None and variants[i] == variants[j]) or (
        limit is not None and float(features[i] @ features[j]) > limit
    )


def enumerate_neighbor(sampler):
    """The distribution over sets by all orders and all pools: {set: probability}."""
    n, k = sampler.n_classes, sampler.n_way
    probs = dict.fromkeys(itertools.combinations(range(n), k), 0.0)
    blocks = sampler.n_neighborhoods
    shares = [(float(sampler.strength), 1 - sampler.exploration), (0.0, sampler.exploration)]
    for first in range(n):
        rest = [c for c in range(n) if c != first]
        pools = list(itertools.combinations(rest, min(sampler.pool_size, n) - 1))
        for pool in pools:
            z = z_scores(sampler, (first, *pool))
            for beta, share in shares:
                if share == 0:
                    continue
                for order in itertools.permutations(pool, k - 1):
                    chosen, p = [first], share / n / len(pools)
                    for step, c in enumerate(order, 1):
                        block = step * blocks // k
                        near = [chosen[i] for i in range(step) if i * blocks // k == block]
                        left = [x for x in pool if x not in chosen]
                        fine = [x for x in left if not any(conflict(sampler, x, y) for y in chosen)]
                        weights = {
                            x: math.exp(beta * sum(z[j, x] for j in near)) for x in fine or left
                        }
                        p *= weights.get(c, 0.0) / sum(weights.values())
                        chosen.append(c)
                    probs[tuple(sorted(chosen))] += p
    assert math.isclose(sum(probs.values()), 1)
    return probs


CASES = [
    (6, 4, {"beta": 0.7}),
    (6, 3, {"beta": 1.5, "exploration": 0.4}),
    (7, 3, {"n_unseen": 2, "beta": 1.0}),
    (6, 4, {"neighborhood": 2, "beta": 1.0}),
    (6, 5, {"neighborhood": 3, "beta": 1.0}),
    (7, 3, {"pool_size": 4, "beta": 1.0}),
    (7, 3, {"pool_size": 3}),
    (6, 3, {"variant_of": torch.tensor([0, 0, 1, 2, 2, 3]), "exploration": 0.5}),
    (6, 4, {"variant_of": torch.tensor([0, 0, 0, 0, 0, 1])}),
    (6, 3, {"duplicate_cosine": 0.1, "beta": 1.0}),
    (6, 3, {"target_accuracy": 0.75, "beta": 3.0, "exploration": 0.2}),
]


@pytest.mark.parametrize(("n_classes", "n_way", "options"), CASES, ids=str)
def test_draws_follow_the_enumerated_distribution(tools, n_classes, n_way, options):
    sampler = build(n_classes, n_way, **options)
    if sampler.target_accuracy is not None:
        sampler.strength.fill_(1.3)  # the strength of now counts, not the largest
    truth = {s: p for s, p in enumerate_neighbor(sampler).items() if p > 0}
    draws = sampler.sample(N_DRAWS)
    assert {tuple(row) for row in draws.sort(-1).values.tolist()} <= set(truth)
    assert tools.chi_square_p_value(draws, truth) > REASONABLE


@pytest.mark.parametrize(("n_classes", "n_way", "options"), CASES, ids=str)
def test_log_prob_is_the_enumerated_one_or_says_what_it_needs(n_classes, n_way, options):
    sampler = build(n_classes, n_way, **options).double()
    if sampler.target_accuracy is not None:
        sampler.strength.fill_(1.3)
    truth = enumerate_neighbor(sampler)
    sets = torch.tensor(list(truth))
    for option, has in (("pool_size", n_classes), ("neighborhood", n_way)):
        if options.get(option, has) < has:
            with pytest.raises(ArgumentError, match=f"{option} of at least"):
                sampler.log_prob(sets)
            return
    expected = torch.tensor(list(truth.values()), dtype=torch.float64)
    # The variance of cosines is raised by 1e-10.
    torch.testing.assert_close(sampler.log_prob(sets).exp(), expected, atol=1e-7, rtol=1e-6)


def test_the_probability_of_more_than_twelve_classes_is_refused():
    sampler = build(20, 13, neighborhood=13)
    with pytest.raises(ArgumentError, match="up to 12 classes"):
        sampler.log_prob(sampler.sample(1))


def test_draws_on_a_device_are_those_of_numpy_given_the_same_noise(monkeypatch):
    cases = [(9, 3, {}), (50, 7, {"pool_size": 20, "neighborhood": 3, "exploration": 0.5})]
    cases.append((40, 5, {"variant_of": torch.arange(40) // 4, "duplicate_cosine": 0.4}))
    # A pool of more classes than the kernels take.
    cases.append((4112, 5, {"pool_size": 4112, "n_features": 64, "n_unseen": 100}))
    cases.append((4112, 5, {"pool_size": 4112, "n_unseen": 100, "exploration": 0.5}))
    for n_classes, n_way, options in cases:
        here, there = build(n_classes, n_way, **options), build(n_classes, n_way, **options)
        with monkeypatch.context() as patch:
            patch.setattr(neighbor, "namespace", lambda _: torch)
            patch.setattr(neighbor, "view", lambda tensor: tensor)
            found = there.sample(100)
        assert torch.equal(here.sample(100), found)


@pytest.mark.parametrize(("n_classes", "options"), [(9, {}), (100, {"pool_size": 10})])
def test_in_n_tasks_every_class_is_the_first_of_one(n_classes, options):
    sampler = build(n_classes, 5, **options)
    whole = sampler.sample(3 * n_classes)[:, 0].reshape(3, -1)
    for one_pass in whole:
        assert one_pass.sort().values.tolist() == list(range(n_classes))
    assert not torch.equal(whole[0], whole[1])
    # In any number of calls.
    singly = build(n_classes, 5, **options)
    parts = [singly.sample(n) for n in (1, 4, n_classes, 2 * n_classes - 5)]
    assert torch.equal(torch.cat(parts)[:, 0], whole.flatten())


@pytest.mark.parametrize(
    ("n_classes", "n_way", "options"),
    [
        (2, 2, {}),
        (3, 2, {"pool_size": 2}),
        (8, 8, {}),
        (8, 8, {"neighborhood": 3, "variant_of": torch.zeros(8, dtype=torch.int64)}),
        (300, 20, {"pool_size": 20, "duplicate_cosine": -1.0}),
        (300, 20, {"pool_size": 64, "neighborhood": 2, "beta": 100.0}),
        (5000, 5, {"n_unseen": 4990}),
    ],
    ids=str,
)
def test_classes_are_distinct_and_in_range_for_awkward_sizes(n_classes, n_way, options):
    draws = build(n_classes, n_way, **options).sample(200)
    assert all(len(set(row)) == n_way for row in draws.tolist())
    assert draws.min() >= 0
    assert draws.max() < n_classes


def test_strength_zero_and_unknown_features_are_uniform(tools):
    uniform = dict.fromkeys(itertools.combinations(range(7), 3), 1 / 35)
    samplers = [build(7, 3, beta=0.0), build(7, 3, exploration=1.0, beta=9.0)]
    samplers += [build(7, 3, n_unseen=7), build(7, 3, beta=0.0, pool_size=4)]
    for sampler in samplers:
        assert tools.chi_square_p_value(sampler.sample(N_DRAWS), uniform) > REASONABLE


def test_equal_features_are_no_neighbors(tools):
    """Cosines that differ by rounding alone say nothing."""
    sampler = build(7, 3, 64, beta=5.0)
    sampler.class_features.copy_(sampler.class_features[0].expand(7, -1))
    uniform = dict.fromkeys(itertools.combinations(range(7), 3), 1 / 35)
    assert tools.chi_square_p_value(sampler.sample(N_DRAWS), uniform) > REASONABLE


def test_a_large_strength_draws_the_nearest_class():
    sampler = build(50, 2, beta=100.0)
    cosines = (sampler.class_features @ sampler.class_features.mT).fill_diagonal_(-2)
    first, second = sampler.sample(500).unbind(-1)
    assert (second == cosines.argmax(-1)[first]).double().mean() > 0.9


def test_variants_and_duplicates_never_meet():
    variant_of = torch.arange(400) // 4
    sampler = build(400, 8, variant_of=variant_of, neighborhood=3, pool_size=100, beta=3.0)
    originals = variant_of[sampler.sample(500)].sort(-1).values
    assert (originals[:, 1:] != originals[:, :-1]).all()
    sampler = build(400, 8, 6, duplicate_cosine=0.7, beta=3.0)
    features = sampler.class_features[sampler.sample(500)]
    cosines = features @ features.mT - 2 * torch.eye(8)
    assert cosines.max() <= 0.7


def test_neighborhoods_are_near_within_and_not_between():
    """Two tight groups of classes: a neighborhood keeps to one, and each task has several."""
    sampler = build(40, 6, 2, neighborhood=3, beta=20.0)
    group = torch.arange(40) % 2
    angle = group * 1.5 + 0.01 * torch.arange(40)
    sampler.class_features.copy_(torch.stack((angle.cos(), angle.sin()), -1))
    drawn = group[sampler.sample(400)].reshape(400, 2, 3)
    assert (drawn == drawn[:, :, :1]).double().mean() > 0.99
    apart = (drawn[:, 0, 0] != drawn[:, 1, 0]).double().mean()
    assert 0.4 < apart < 0.7


def test_the_first_feature_is_taken_as_it_is_and_later_ones_are_averaged():
    sampler = build_sampler("neighbor", n_classes=5, n_way=2, n_features=2, momentum=0.75)
    probabilities, labels = torch.full((1, 2, 2), 0.5), torch.arange(2)
    ids = torch.tensor([[3, 1]])
    sampler.update(ids, probabilities, labels, class_features=torch.tensor([[[4.0, 0], [0, 2]]]))
    expected = torch.zeros(5, 2)
    expected[3, 0] = expected[1, 1] = 1
    assert torch.equal(sampler.class_features, expected)
    assert sampler.seen.tolist() == [False, True, False, True, False]
    sampler.update(ids, probabilities, labels, class_features=torch.tensor([[[0, 9.0], [0, 0]]]))
    expected[3] = normalize(torch.tensor([0.75, 0.25]), dim=0)
    torch.testing.assert_close(sampler.class_features, expected)
    # The opposite of an average of equal weight has no direction.
    sampler.momentum = 0.5
    before = sampler.class_features.clone()
    given = torch.stack((-before[3], before[1]))[None]
    sampler.update(ids, probabilities, labels, class_features=given)
    torch.testing.assert_close(sampler.class_features, before)


def test_a_class_in_several_tasks_is_updated_once_by_the_mean():
    sampler = build_sampler("neighbor", n_classes=4, n_way=2, n_features=2, momentum=0.0)
    ids = torch.tensor([[0, 1], [2, 0], [0, 3]])
    features = torch.tensor([[[5.0, 0], [1, 1]], [[1, 1], [0, 3.0]], [[0, 7.0], [1, 1]]])
    given = (ids, torch.full((3, 2, 2), 0.5), torch.arange(2))
    sampler.update(*given, class_features=features)
    torch.testing.assert_close(
        sampler.class_features[0], normalize(torch.tensor([1.0, 2.0]), dim=0)
    )


def test_the_order_of_tasks_does_not_matter_to_the_last_bit(tools):
    forward, backward = (build(8, 4, target_accuracy=0.1) for _ in range(2))
    given = [*tools.feedback(6, 4, 8), torch.randn(6, 4, 4)]
    for sampler, order in ((forward, slice(None)), (backward, torch.randperm(6))):
        *feedback, features = (part[order] for part in given)
        sampler.update(*feedback, class_features=features)
    assert torch.equal(forward.class_features, backward.class_features)
    assert forward.strength == backward.strength > 0


def test_what_torch_learns_on_a_device_is_what_numpy_learns(tools, as_on_a_device, monkeypatch):
    options = {"n_unseen": 3, "target_accuracy": 0.1}
    here, there = build(9, 4, **options), build(9, 4, **options)
    features = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(3))
    features[0, 0] = 0
    there.update(*tools.feedback(5, 4, 9), class_features=features)
    monkeypatch.undo()
    here.update(*tools.feedback(5, 4, 9), class_features=features)
    assert torch.equal(here.seen, there.seen)
    torch.testing.assert_close(here.class_features, there.class_features)


def answers(n_tasks, n_way, n_query, n_right):
    """Probabilities and labels of tasks of which each has so many right answers."""
    labels = torch.arange(n_way).repeat_interleave(n_query)
    chosen = labels.repeat(n_tasks, 1)
    for task, right in enumerate(n_right):
        chosen[task, right:] = (chosen[task, right:] + 1) % n_way
    # The highest probability is only just the highest: calibration does not count.
    return (0.01 * torch.nn.functional.one_hot(chosen, n_way)).softmax(-1), labels


def learner(n_right, *, n_tasks=2, **options):
    """A sampler, and a function that updates it with so many right answers of 10 per task."""
    sampler = build(9, 5, **{"beta": 0.03, "target_accuracy": 0.75} | options)
    features = torch.randn(n_tasks, 5, 4, generator=torch.Generator().manual_seed(0))

    def update():
        ids = sampler.sample(n_tasks)
        sampler.update(ids, *answers(n_tasks, 5, 2, n_right), class_features=features)

    return sampler, update


def test_the_strength_follows_the_accuracy():
    """Against the formula in plain Python, up to the largest strength and back to 0."""
    sampler, expected = build(9, 5, beta=0.02, target_accuracy=0.6), 0.0
    features = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    path = [(10, 9, 8)] * 9 + [(7, 6, 4)] * 3 + [(0, 2, 1)] * 6 + [(6, 6, 6), (10, 10, 10)]
    reached = []
    for n_right in path:
        given = answers(3, 5, 2, n_right)
        sampler.update(sampler.sample(3), *given, class_features=features)
        expected += 0.01 * (sum(n_right) / 30 - 0.6)
        expected = min(max(expected, 0.0), 0.02)
        assert math.isclose(float(sampler.strength), expected, rel_tol=1e-5, abs_tol=1e-8)
        reached.append(expected)
    assert {0.0, 0.02} < set(reached)


@pytest.mark.parametrize(("n_right", "end"), [((7, 8), 0.0), ((3, 4), 0.0), ((10, 10), 0.03)])
def test_the_strength_ends_at_0_or_as_far_as_the_learner_can_follow(n_right, end):
    sampler, update = learner(n_right)
    for _ in range(30):
        update()
    assert math.isclose(float(sampler.strength), end, rel_tol=1e-6)


def test_the_default_strength_leaves_256_classes_to_choose_from():
    """By the entropy of a draw whose z is normally distributed, integrated over a grid."""
    z = torch.linspace(-12, 12, 24_001, dtype=torch.float64)
    uniform = torch.exp(-(z**2) / 2)
    uniform /= uniform.sum()
    for n_classes in (300, 512, 1024, 1800):
        drawn = uniform * torch.exp(neighbor.default_beta(n_classes) * z)
        drawn /= drawn.sum()
        lost = (drawn * (drawn / uniform).log()).sum()
        assert math.isclose(n_classes * math.exp(-lost), 256, rel_tol=1e-6)
    assert neighbor.default_beta(2) == neighbor.default_beta(256) == 0
    assert neighbor.default_beta(1800) < neighbor.default_beta(10**6) == 2


def test_with_few_classes_the_default_is_uniform_and_says_so():
    sizes = {"n_way": 5, "n_features": 4}
    few, many = (NeighborSampler(n_classes=n, **sizes) for n in (256, 257))
    assert few.beta == 0 < many.beta
    assert "256 training classes" in few.note
    assert many.note is None
    chosen = NeighborSampler(n_classes=9, beta=0.5, **sizes)
    assert chosen.beta == 0.5
    assert chosen.note is None


def test_the_strength_is_fixed_without_a_target():
    for n_right in ((0, 0), (10, 10)):
        sampler, update = learner(n_right, target_accuracy=None, beta=0.7)
        before = sampler.strength.clone()
        update()
        assert before == torch.tensor(0.7)
        assert torch.equal(sampler.strength, before)


def test_ties_are_wrong_answers():
    sampler = build(9, 5, beta=2.0, target_accuracy=0.5)
    sampler.strength.fill_(1.0)
    labels = torch.arange(5)
    feedback = (sampler.sample(1), torch.full((1, 5, 5), 0.2), labels)
    sampler.update(*feedback, class_features=torch.randn(1, 5, 4))
    assert math.isclose(float(sampler.strength), 1 - 0.01 * 0.5, rel_tol=1e-6)


def test_a_refused_task_does_not_move_the_strength(as_on_a_device):
    sampler = build(9, 5, beta=2.0, target_accuracy=0.5)
    features = torch.randn(3, 5, 4)
    features[1, 0, 0] = torch.nan
    probabilities, labels = answers(3, 5, 2, (10, 0, 8))
    sampler.update(sampler.sample(3), probabilities, labels, class_features=features)
    assert math.isclose(float(sampler.strength), 0.01 * (0.9 - 0.5), rel_tol=1e-6)
    before = sampler.strength.clone()
    sampler.update(sampler.sample(3), 2 * probabilities, labels, class_features=features)
    assert torch.equal(sampler.strength, before)
    with pytest.raises(ArgumentError, match="4 entries"):
        sampler.check()


def test_a_state_goes_through_bit_by_bit(tools):
    options = {"pool_size": 10, "target_accuracy": 0.1}
    original, restored = build(30, 5, **options), build(30, 5, seed=7, **options)
    features = torch.randn(3, 5, 4)
    original.update(*tools.feedback(3, 5, 30), class_features=features)
    assert 0 < original.strength < 1
    original.sample(17)
    restored.load_state_dict(copy.deepcopy(original.state_dict()))
    for seed in range(3):
        assert torch.equal(original.sample(20), restored.sample(20))
        for sampler in (original, restored):
            sampler.update(*tools.feedback(3, 5, 30, seed=seed), class_features=features)
    state = restored.state_dict()
    for name, value in original.state_dict().items():
        if name != "_extra_state":
            assert torch.equal(state[name], value)


def test_a_fork_has_passes_of_its_own():
    sampler = build(50, 3)
    fork = sampler.fork(1)
    assert not torch.equal(sampler.sample(20)[:, 0], fork.sample(20)[:, 0])


def test_a_state_of_another_way_loads_and_of_another_size_of_features_does_not():
    state = build(9, 5).state_dict()
    build(9, 4).load_state_dict(state)
    with pytest.raises(StateError, match="n_features 4"):
        build(9, 5, 6).load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("class_features", lambda x: x.mul_(2), "unit vectors"),
        ("class_features", lambda x: x[0].fill_(torch.nan), "unit vectors"),
        ("seen", lambda x: x.logical_not_(), "unit vectors"),
        ("tasks_drawn", lambda x: x.fill_(-1), "at least 0"),
        ("strength", lambda x: x.fill_(torch.nan), "between 0 and 1"),
        ("strength", lambda x: x.fill_(-0.1), "between 0 and 1"),
        ("strength", lambda x: x.fill_(1.1), "between 0 and 1"),
    ],
)
def test_a_damaged_state_is_refused(name, spoil, message):
    state = copy.deepcopy(build(9, 5, target_accuracy=0.75).state_dict())
    spoil(state[name])
    with pytest.raises(StateError, match=message):
        build(9, 5, target_accuracy=0.75).load_state_dict(state)


def test_a_fixed_strength_is_not_replaced_by_that_of_a_state():
    state = build(9, 5, target_accuracy=0.75).state_dict()
    with pytest.raises(StateError, match=r"must be 1, by beta .* got 0\."):
        build(9, 5).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": -1}, "beta"),
        ({"target_accuracy": 1.1}, "target_accuracy"),
        ({"exploration": 1.5}, "exploration"),
        ({"pool_size": 4}, "pool_size must be at least 5"),
        ({"neighborhood": 1}, "neighborhood"),
        ({"momentum": 2}, "momentum"),
        ({"duplicate_cosine": 2}, "duplicate_cosine"),
        ({"variant_of": torch.zeros(3, dtype=torch.int64)}, "variant_of must have the shape 9"),
        ({"variant_of": torch.zeros(9)}, "variant_of must be a dense int64"),
        ({"variant_of": [0] * 9}, "variant_of must be a tensor"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        NeighborSampler(n_classes=9, n_way=5, n_features=4, **options)


@pytest.mark.parametrize(
    ("name", "size"), [("gcp", 4000), ("cp", 4000), ("hierarchy", 4000), ("dpp", 8000)]
)
def test_samplers_of_pairs_point_here_when_the_pairs_are_too_many(name, size):
    message = rf"1,000,000 classes takes {size:,}.0 GB.*'neighbor'"
    options = {"n_features": 4} if name == "dpp" else {}
    with pytest.raises(ArgumentError, match=message):
        build_sampler(name, n_classes=1_000_000, n_way=5, **options)
