"""k-DPP draws against the determinants of all sets, and when a kernel is made."""

import copy
import itertools
import math

import pytest
import torch

from adaptask.conformance import check_sampler
from adaptask.errors import StateError
from adaptask.samplers import DPPSampler
from adaptask.samplers.dpp import draw_from_projections, log_symmetric_polynomials


def with_features(features, n_way):
    """A sampler whose kernel is made of these features, one per class."""
    sampler = DPPSampler(n_classes=len(features), n_way=n_way, n_features=features.shape[1])
    sampler.kernel_features.copy_(torch.nn.functional.normalize(features, dim=-1))
    sampler._decompose()
    return sampler


def determinant(matrix):
    """By Leibniz's formula in plain Python, independent of any factorization."""
    size, total = len(matrix), 0.0
    for order in itertools.permutations(range(size)):
        inversions = sum(a > b for a, b in itertools.combinations(order, 2))
        total += (-1) ** inversions * math.prod(matrix[i][j] for i, j in enumerate(order))
    return total


def enumerate_dpp(features, n_way, ridge=1e-3):
    """{set: probability} by the determinants of all sets."""
    rows = torch.nn.functional.normalize(features.double(), dim=-1)
    kernel = (rows @ rows.mT).tolist()
    for c, row in enumerate(rows.tolist()):
        kernel[c][c] += ridge + (not any(row))
    scores = {
        s: determinant([[kernel[i][j] for j in s] for i in s])
        for s in itertools.combinations(range(len(rows)), n_way)
    }
    return {s: score / sum(scores.values()) for s, score in scores.items()}


FEATURES = {
    "random": lambda g: torch.randn(7, 5, generator=g),
    "positive": lambda g: torch.rand(7, 5, generator=g),
    "fewer features than ways": lambda g: torch.randn(7, 2, generator=g),
    "a twin": lambda g: torch.randn(7, 5, generator=g)[[0, 0, 1, 2, 3, 4, 5]],
    "unseen classes": lambda g: torch.randn(7, 5, generator=g).index_fill(
        0, torch.tensor([2, 5]), 0
    ),
    "none seen": lambda g: torch.zeros(7, 5),
}


@pytest.mark.parametrize("n_way", [2, 3, 4])
@pytest.mark.parametrize("kind", FEATURES)
def test_draws_and_log_prob_follow_the_determinants_of_all_sets(tools, kind, n_way):
    features = FEATURES[kind](torch.Generator().manual_seed(1))
    probs = enumerate_dpp(features, n_way)
    sampler = with_features(features, n_way)
    found = sampler.log_prob(torch.tensor(list(probs))).exp()
    expected = torch.tensor(list(probs.values()), dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    drawn = sampler.sample(40_000)
    # Sets that hardly ever come are put together: chi-square needs some of each.
    rare = [s for s, p in probs.items() if p < 2e-4]
    counts = sum(tuple(sorted(row)) in rare for row in drawn.tolist()) if rare else 0
    assert counts <= 40_000 * sum(probs[s] for s in rare) + 6 * math.sqrt(len(rare) + 8)
    common = {s: p for s, p in probs.items() if p >= 2e-4}
    kept = drawn[[tuple(sorted(row)) in common for row in drawn.tolist()]]
    total = sum(common.values())
    assert tools.chi_square_p_value(kept, {s: p / total for s, p in common.items()}) > 1e-4


def test_a_task_of_all_classes_is_the_only_one():
    features = torch.randn(4, 6, generator=torch.Generator().manual_seed(2))
    sampler = with_features(features, 4)
    assert (sampler.sample(50).sort(-1).values == torch.arange(4)).all()
    assert abs(float(sampler.log_prob(torch.arange(4)[None]))) < 1e-6


def test_symmetric_polynomials_are_sums_of_products():
    values = torch.tensor([0.3, 2.0, 1.5, 0.01, 7.0], dtype=torch.float64)
    table = log_symmetric_polynomials(values, 3).exp()
    for k in range(4):
        for j in range(6):
            sets = itertools.combinations(values[:j].tolist(), k)
            assert math.isclose(float(table[k, j]), sum(map(math.prod, sets)), abs_tol=1e-12)


def test_polynomials_of_many_classes_do_not_overflow():
    table = log_symmetric_polynomials(torch.ones(3_000, dtype=torch.float64), 200)
    exact = math.lgamma(3_001) - math.lgamma(201) - math.lgamma(2_801)
    assert math.isclose(float(table[-1, -1]), exact, rel_tol=1e-9)


def test_projections_onto_axes_draw_those_axes():
    basis = torch.eye(6, dtype=torch.float64)[:, [1, 4, 5]].repeat(30, 1, 1)
    noise = torch.randn(3, 30, 6, generator=torch.Generator().manual_seed(0)).double()
    drawn = draw_from_projections(basis, noise).sort(-1).values
    assert (drawn == torch.tensor([1, 4, 5])).all()


class AlwaysCurrent(DPPSampler):
    """Makes a new kernel after each update, so that the laws see more than the first one."""

    def learn(self, feedback):
        super().learn(feedback)
        self.kernel_features.copy_(self.class_features)
        self._decompose()


def test_the_laws_hold_for_a_kernel_of_features():
    check_sampler(lambda seed: AlwaysCurrent(n_classes=9, n_way=3, n_features=6, seed=seed))


def feedback_of(tools, seed, n_classes=12):
    class_ids, *others = tools.feedback(3, 4, n_classes, seed=seed)
    centers = torch.randn(n_classes, 5, generator=torch.Generator().manual_seed(seed))
    return class_ids, *others, centers[class_ids]


def run(tools, sampler, n_steps, start=0):
    drawn = []
    for step in range(start, start + n_steps):
        drawn.append(sampler.sample(3))
        *given, features = feedback_of(tools, step)
        sampler.update(*given, class_features=features)
    return torch.stack(drawn)


@pytest.mark.parametrize("momentum", [0.0, 0.8, 1.0])
def test_features_are_moving_averages_of_directions(tools, momentum):
    sampler = DPPSampler(n_classes=7, n_way=4, n_features=5, momentum=momentum)
    expected = {}
    for seed in range(6):  # three tasks of seven classes: most are in several
        class_ids, *others = tools.feedback(3, 4, 7, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        features = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
        features *= 10 * torch.rand(3, 4, 1, generator=generator).double()  # of any length
        features[0, 0] = 0  # no direction
        sampler.update(class_ids, *others, class_features=features.float())
        directions = {}
        for class_id, vector in zip(
            class_ids.flatten().tolist(), features.flatten(0, 1), strict=True
        ):
            if vector.any():
                directions.setdefault(class_id, []).append(vector / vector.norm())
        for class_id, found in directions.items():
            new = torch.stack(found).mean(0)
            old = expected.get(class_id)
            moved = new if old is None else momentum * old + (1 - momentum) * new
            expected[class_id] = moved / moved.norm()
    assert len(expected) == 7
    truth = torch.stack([expected[class_id] for class_id in range(7)])
    torch.testing.assert_close(sampler.class_features, truth.float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_kernels_are_made_when_they_are_due(tools, kind):
    sampler = DPPSampler(n_classes=12, n_way=4, n_features=5, kind=kind, refresh=3)
    kernels = []
    for step in range(10):
        run(tools, sampler, 1, start=step)
        kernels.append(sampler.kernel())
    changes = [i for i in range(1, 10) if not torch.equal(kernels[i - 1], kernels[i])]
    assert changes == ([3] if kind == "static" else [3, 6, 9])
    torch.testing.assert_close(kernels[0], 1.001 * torch.eye(12).double())


@pytest.mark.parametrize("kind", ["static", "dynamic"])
@pytest.mark.parametrize("n_before", [2, 3, 5, 8])
def test_a_resumed_run_draws_the_same_bit_by_bit(tools, kind, n_before):
    def build(seed):
        settings = {"n_classes": 12, "n_way": 4, "n_features": 5, "kind": kind, "refresh": 4}
        return DPPSampler(**settings, seed=seed)

    whole, resumed = build(1), build(2)
    run(tools, whole, n_before)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    rest = [run(tools, sampler, 8, start=n_before) for sampler in (whole, resumed)]
    assert torch.equal(*rest)
    assert torch.equal(whole._eigenvectors, resumed._eigenvectors)


def test_features_are_the_same_on_a_device(tools, as_on_a_device):
    """Also if a task is refused, whose features may be NaN."""
    settings = {"n_classes": 12, "n_way": 4, "n_features": 5}
    sampler, other = DPPSampler(**settings), DPPSampler(**settings)
    *given, features = feedback_of(tools, 0)
    other.update(*(part[1:] for part in given), class_features=features[1:])
    features[0, 0] = torch.nan
    sampler.update(*given, class_features=features)
    assert torch.equal(sampler.class_features, other.class_features)
    assert sampler.class_features.isfinite().all()


def test_a_damaged_state_is_refused():
    sampler = DPPSampler(n_classes=12, n_way=4, n_features=5)
    state = sampler.state_dict()
    with pytest.raises(StateError, match="unit vectors"):
        sampler.load_state_dict({**state, "kernel_features": torch.full((12, 5), 3.0)})
    extra = {**state["_extra_state"], "n_draws": -1}
    with pytest.raises(StateError, match="n_draws"):
        sampler.load_state_dict({**state, "_extra_state": extra})


@pytest.mark.parametrize("refresh", [1, 2])
def test_who_looks_for_waits_on_a_device_does_not_see_those_of_a_new_kernel(monkeypatch, refresh):
    modes, seen = ["warn"], []
    sampler = DPPSampler(n_classes=12, n_way=3, n_features=4, refresh=refresh)
    sampler.sample(1), sampler.sample(1)
    monkeypatch.setattr(DPPSampler, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(sampler, "_decompose", lambda: seen.append(modes[-1]))
    sampler.prepare()  # of the third step, which a trainer watches before it captures a graph
    assert (seen, modes[-1]) == (["default"], "warn")
