"""Updates equal the paper's equations, computed by hand."""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adaptask.errors import ArgumentError
from adaptask.samplers import GCPSampler, UniformSampler, build_sampler

UTILITIES = {"hard": lambda p: p, "easy": lambda p: 1 - p, "uncertain": lambda p: p * (1 - p)}


def pair_confusion_by_hand(probabilities, labels, a, b):
    """Eq. 6 in plain Python: the sum of both directions for positions a and b of one task."""
    rows = list(zip(probabilities.tolist(), labels.tolist(), strict=True))
    of_a = [row[b] for row, label in rows if label == a]
    of_b = [row[a] for row, label in rows if label == b]
    return sum(of_a) / len(of_a) + sum(of_b) / len(of_b)


@pytest.mark.parametrize("strategy", UTILITIES)
@pytest.mark.parametrize("confusion", ["sum", "mean"])
@pytest.mark.parametrize("forget", ["sampled", "all"])
@pytest.mark.parametrize("name", ["gcp", "cp"])
def test_an_update_equals_eq_5_and_6_by_hand(tools, name, strategy, confusion, forget):
    alpha, tau, n = 0.8, 0.6, 10
    sampler = build_sampler(
        name, n_classes=n, n_way=4, alpha=alpha, tau=tau, strategy=strategy,
        confusion=confusion, forget=forget,
    ).double()  # fmt: skip
    sampler.log_potentials.copy_(tools.random_log_potentials(n, seed=0))
    expected = sampler.log_potentials.tolist()
    for seed in range(3):
        class_ids, probabilities, labels = tools.feedback(
            5, 4, n, seed=seed, dtype=torch.float64, n_query=3
        )
        sampler.update(class_ids, probabilities, labels)
        seen = {}
        for t in range(5):
            for a in range(4):
                for b in range(a):
                    p = pair_confusion_by_hand(probabilities[t], labels[t], a, b)
                    p = p / 2 if confusion == "mean" else p
                    key = tuple(sorted((int(class_ids[t, a]), int(class_ids[t, b]))))
                    seen.setdefault(key, []).append(p)
        assert any(len(ps) > 1 for ps in seen.values())
        for i in range(n):
            for j in range(i):
                ps = seen.get((j, i))
                new = expected[i][j]
                if ps or forget == "all":
                    new *= tau
                if ps:
                    new += alpha * UTILITIES[strategy](sum(ps) / len(ps))
                expected[i][j] = expected[j][i] = new
    torch.testing.assert_close(
        sampler.log_potentials, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0
    )


def test_one_update_in_the_paper_s_own_form(tools):
    """C <- C^tau exp(alpha p), not in log space, for two classes and certain predictions."""
    sampler = build_sampler("gcp", n_classes=3, n_way=2, alpha=1.0, tau=0.5).double()
    sampler.log_potentials[0, 1] = sampler.log_potentials[1, 0] = math.log(4.0)
    probabilities = torch.tensor([[[0.7, 0.3], [0.2, 0.8]]], dtype=torch.float64)
    sampler.update(torch.tensor([[0, 1]]), probabilities, torch.tensor([0, 1]))
    assert float(sampler.log_potentials[0, 1].exp()) == pytest.approx(2.0 * math.exp(0.3 + 0.2))


@pytest.mark.parametrize("strategy", UTILITIES)
def test_c_equals_eq_3_by_hand(tools, strategy):
    alpha, tau, n = 0.8, 0.6, 9
    sampler = build_sampler(
        "c", n_classes=n, n_way=3, alpha=alpha, tau=tau, strategy=strategy
    ).double()
    expected = [0.1 * c for c in range(n)]
    sampler.log_weights.copy_(torch.tensor(expected, dtype=torch.float64))
    class_ids, probabilities, labels = tools.feedback(6, 3, n, dtype=torch.float64)
    sampler.update(class_ids, probabilities, labels)
    seen = {}
    for t in range(6):
        for k in range(3):
            total = 0.0
            for row, label in zip(probabilities[t].tolist(), labels[t].tolist(), strict=True):
                total += row[k] if label != k else 1 - row[k]
            seen.setdefault(int(class_ids[t, k]), []).append(total / len(labels[t]))
    for c, us in seen.items():
        expected[c] = tau * expected[c] + alpha * UTILITIES[strategy](sum(us) / len(us))
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(sampler.log_weights, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_tasks", [1, 6])
def test_pairs_that_were_in_no_task_stay_bit_identical(tools, n_tasks, dtype):
    sampler = build_sampler("gcp", n_classes=20, n_way=4).to(dtype)
    sampler.log_potentials.copy_(tools.random_log_potentials(20, seed=1))
    before = sampler.log_potentials.clone()
    class_ids, probabilities, labels = tools.feedback(n_tasks, 4, 20)
    sampler.update(class_ids, probabilities, labels)
    touched = torch.zeros(20, 20, dtype=torch.bool)
    for row in class_ids:
        touched[row[:, None], row[None, :]] = True
    assert torch.equal(sampler.log_potentials[~touched], before[~touched])
    changed = touched & ~torch.eye(20, dtype=torch.bool)
    assert (sampler.log_potentials[changed] != before[changed]).all()
    assert torch.equal(sampler.log_potentials, sampler.log_potentials.mT)
    assert (sampler.log_potentials.diagonal() == -torch.inf).all()


@given(seed=st.integers(0, 10_000), n_tasks=st.integers(1, 12), n_way=st.integers(2, 6))
@settings(max_examples=40, deadline=None)
def test_the_order_of_tasks_does_not_matter_to_the_last_bit(tools, seed, n_tasks, n_way):
    class_ids, probabilities, labels = tools.feedback(n_tasks, n_way, 7, seed=seed)
    order = torch.randperm(n_tasks, generator=torch.Generator().manual_seed(seed))
    results = []
    for at in (torch.arange(n_tasks), order):
        sampler = build_sampler("gcp", n_classes=7, n_way=n_way)
        sampler.update(class_ids[at], probabilities[at], labels[at])
        results.append(sampler.log_potentials)
    assert torch.equal(*results)


def test_tasks_given_together_differ_from_tasks_given_one_by_one_only_by_the_mean(tools):
    """A pair of two tasks is updated once: tau acts once, with the mean of p."""
    class_ids = torch.tensor([[0, 1], [1, 0]])
    probabilities = torch.tensor([[[0.9, 0.1], [0.3, 0.7]], [[0.5, 0.5], [0.5, 0.5]]])
    sampler = build_sampler("gcp", n_classes=3, n_way=2, tau=0.5).double()
    sampler.log_potentials[0, 1] = sampler.log_potentials[1, 0] = 2.0
    sampler.update(class_ids, probabilities.double(), torch.tensor([0, 1]))
    assert float(sampler.log_potentials[0, 1]) == pytest.approx(0.5 * 2.0 + (0.4 + 1.0) / 2)


@pytest.mark.parametrize("tau", [0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_million_updates_overflow_nothing(tau, dtype):
    """The worst case: a pair confused with certainty every time; in closed form."""
    sampler = build_sampler("gcp", n_classes=4, n_way=2, alpha=3.0, tau=tau).to(dtype)
    class_ids = torch.tensor([[0, 1]])
    probabilities = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    labels = torch.tensor([0, 1])
    for _ in range(1000):
        sampler.update(class_ids, probabilities, labels)
    limit = 6 / (1 - tau) if tau < 1 else 6_000
    assert float(sampler.log_potentials[0, 1]) == pytest.approx(limit, rel=1e-4)
    # The other 999,000 updates at once, by the recursion itself; then a thousand more.
    reached = limit if tau < 1 else 6e6
    sampler.log_potentials[0, 1] = sampler.log_potentials[1, 0] = reached
    for _ in range(1000):
        sampler.update(class_ids, probabilities, labels)
    assert torch.isfinite(sampler.log_potentials[0, 1])
    draws = sampler.sample(100)
    assert torch.isfinite(sampler.log_row_weights).all()
    assert (draws.sort(-1).values == torch.tensor([0, 1])).all()


def test_a_million_small_updates_for_real():
    sampler = build_sampler("gcp", n_classes=3, n_way=2, alpha=1.0, tau=0.9)
    class_ids = torch.tensor([[0, 1], [1, 2], [0, 2]]).repeat(334, 1)
    probabilities = torch.full((1002, 2, 2), 0.5)
    for _ in range(1000):
        sampler.update(class_ids, probabilities, torch.tensor([0, 1]))
    off_diagonal = ~torch.eye(3, dtype=torch.bool)
    torch.testing.assert_close(sampler.log_potentials[off_diagonal], torch.full((6,), 10.0))


def test_row_weights_follow_updates_exactly_as_if_derived_anew(tools):
    for n_classes in (12, 64, 351):
        sampler = build_sampler("gcp", n_classes=n_classes, n_way=5)
        for seed in range(20):
            sampler.update(*tools.feedback(1 + seed % 2, 5, n_classes, seed=seed))
        kept = sampler.log_row_weights.clone()
        sampler._mark_stale()
        sampler._follow_edits()
        assert torch.equal(kept, sampler.log_row_weights)
        torch.testing.assert_close(kept, sampler.log_potentials.logsumexp(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_probabilities_may_come_in_any_precision(tools, dtype):
    class_ids, probabilities, labels = tools.feedback(8, 5, 30, n_query=15, dtype=torch.float64)
    exact = build_sampler("gcp", n_classes=30, n_way=5).double()
    exact.update(class_ids, probabilities, labels)
    sampler = build_sampler("gcp", n_classes=30, n_way=5)
    sampler.update(class_ids, probabilities.to(dtype).requires_grad_(), labels)
    gap = (sampler.log_potentials - exact.log_potentials).nan_to_num(0.0).abs().max()
    assert gap < {torch.bfloat16: 5e-3, torch.float16: 1e-3}.get(dtype, 1e-6)


def test_labels_may_be_shared_uneven_or_of_any_integer_type(tools):
    class_ids, probabilities, _ = tools.feedback(4, 3, 10, n_query=2)
    shared = torch.tensor([0, 0, 0, 1, 2, 2])
    results = []
    for labels in (shared, shared.repeat(4, 1), shared.to(torch.int32), shared.to(torch.uint8)):
        sampler = build_sampler("gcp", n_classes=10, n_way=3)
        sampler.update(class_ids, probabilities, labels)
        results.append(sampler.log_potentials)
    assert all(torch.equal(results[0], other) for other in results[1:])
    p = pair_confusion_by_hand(probabilities[0], shared, 0, 1)
    alone = build_sampler("gcp", n_classes=10, n_way=3)
    alone.update(class_ids[:1], probabilities[:1], shared)
    i, j = class_ids[0, :2].tolist()
    assert float(alone.log_potentials[i, j]) == pytest.approx(p, abs=1e-6)


def test_an_adaptive_sampler_comes_to_draw_what_is_confused():
    """A learner that confuses 0, 1, 2 with each other and nothing else: gcp seeks them out."""
    sampler = build_sampler("gcp", n_classes=12, n_way=3, tau=0.9, seed=0)
    labels = torch.arange(3)
    for _ in range(200):
        class_ids = sampler.sample(4)
        similar = (class_ids < 3).float()
        logits = 4 * torch.eye(3).maximum(similar[:, :, None] * similar[:, None, :])
        sampler.update(class_ids, logits.softmax(-1), labels)
    hard = torch.tensor([[0, 1, 2]])
    assert sampler.log_prob(hard).exp() > 20 / math.comb(12, 3)


@pytest.mark.parametrize("name", ["c", "cp", "gcp"])
def test_one_bad_task_among_good_ones_stops_the_whole_update_on_the_cpu(tools, name):
    sampler = build_sampler(name, n_classes=9, n_way=3)
    class_ids, probabilities, labels = tools.feedback(5, 3, 9)
    sampler.update(class_ids, probabilities, labels)
    before = {k: v.clone() for k, v in sampler.state_dict().items() if k != "_extra_state"}
    probabilities[3, 0, 0] = torch.nan
    with pytest.raises(ArgumentError, match=r"sum to one.*entry 3 .*1 of 5 refused.*Nothing"):
        sampler.update(class_ids, probabilities, labels)
    assert all(torch.equal(before[k], sampler.state_dict()[k]) for k in before)


def test_kernels_learn_for_a_sampler_unless_it_learns_in_its_own_way():
    class Own(GCPSampler):
        def learn(self, feedback): ...

    class OwnKernels(Own):
        def _learn_by_kernels(self, *args): ...

    answers = {
        kind: kind(n_classes=5, n_way=3)._kernels_learn()
        for kind in (UniformSampler, GCPSampler, Own, OwnKernels)
    }
    assert answers == {UniformSampler: True, GCPSampler: True, Own: False, OwnKernels: True}


def test_feedback_of_one_task_without_the_axis_of_tasks_is_refused_and_the_error_shows_how(tools):
    sampler = GCPSampler(n_classes=10, n_way=4, seed=0)
    class_ids, probabilities, labels = tools.feedback(1, 4, 10, seed=0)
    before = sampler.log_potentials.clone()
    with pytest.raises(ArgumentError, match=r"tasks x 4; got \(4,\).*give class_ids\[None\]"):
        sampler.update(class_ids[0], probabilities[0], labels[0])
    with pytest.raises(ArgumentError, match=r"1 x queries x 4; .*give probabilities\[None\]"):
        sampler.update(class_ids, probabilities[0], labels)
    with pytest.raises(ArgumentError, match=r"1 x queries x 4; got \(1, \d+, 3\)\.$"):
        sampler.update(class_ids, probabilities[..., :3], labels)
    assert torch.equal(sampler.log_potentials, before)


@pytest.mark.parametrize("row", [[1, 1, 2, 3], [10, 1, 2, 3], [-1, 1, 2, 3]], ids=str)
def test_classes_that_do_not_fit_are_named(tools, row):
    sampler = GCPSampler(n_classes=10, n_way=4, seed=0)
    class_ids, probabilities, labels = tools.feedback(3, 4, 10, seed=0)
    class_ids[1] = torch.tensor(row)
    wanted = f"n_classes - 1 = 9, got {row}; entry 1 does not comply (1 of 3"
    with pytest.raises(ArgumentError, match=re.escape(wanted)):
        sampler.update(class_ids, probabilities, labels)
    with pytest.raises(ArgumentError, match=re.escape(f"n_classes - 1 = 9; got {row}.")):
        sampler.log_prob(class_ids)


@pytest.mark.parametrize("convert", [Tensor.numpy, Tensor.tolist], ids=["array", "list"])
def test_class_ids_that_are_no_tensor_are_refused_and_the_error_shows_how(tools, convert):
    sampler = GCPSampler(n_classes=10, n_way=4, seed=0)
    class_ids, *rest = tools.feedback(1, 4, 10, seed=0)
    with pytest.raises(ArgumentError, match=r"got a (ndarray|list)\. torch.as_tensor\(\) makes"):
        sampler.update(convert(class_ids), *rest)
