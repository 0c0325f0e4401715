"""NumPy on the CPU and torch elsewhere compute the same, and obey the same laws."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptask.conformance import SAMPLER_LAWS
from adaptask.errors import AdaptaskError, ArgumentError
from adaptask.samplers import build_sampler
from adaptask.samplers.feedback import condense
from adaptask.samplers.gcp import greedy_draw
from adaptask.samplers.update_rule import log_sum_exp, mean_by_key


@pytest.mark.parametrize("law", SAMPLER_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize(
    ("name", "options"),
    [("c", {}), ("gcp", {}), ("gcp", {"forget": "all", "tau": 0.0}), ("cp", {"method": "reject"})],
    ids=str,
)
def test_the_device_s_way_obeys_every_law(as_on_a_device, name, options, law):
    law(lambda seed: build_sampler(name, n_classes=9, n_way=3, seed=seed, **options))


@pytest.mark.parametrize("name", ["c", "gcp", "cp"])
def test_both_ways_draw_and_learn_the_same(tools, name, request):
    def train():
        sampler = build_sampler(name, n_classes=12, n_way=4, seed=0)
        draws = []
        for seed in range(30):
            draws.append(sampler.sample(1 + seed % 3))
            sampler.update(*tools.feedback(1 + seed % 5, 4, 12, seed=seed))
        return torch.cat(draws), sampler.state_dict()

    numpy_draws, numpy_state = train()
    request.getfixturevalue("as_on_a_device")
    torch_draws, torch_state = train()
    assert torch.equal(numpy_draws, torch_draws)
    key = "log_weights" if name == "c" else "log_potentials"
    torch.testing.assert_close(numpy_state[key], torch_state[key], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "options"), [("gcp", {}), ("gcp", {"forget": "all"}), ("c", {})], ids=str
)
def test_a_refused_task_leaves_the_others_their_effect(tools, as_on_a_device, name, options):
    """What a device does with a bad task: exactly as if it had not been there."""
    class_ids, probabilities, labels = tools.feedback(6, 3, 9)
    good = [0, 1, 3, 5]
    expected = build_sampler(name, n_classes=9, n_way=3, **options)
    expected.update(class_ids[good], probabilities[good], labels[good])
    sampler = build_sampler(name, n_classes=9, n_way=3, **options)
    probabilities[2, 0, 0] = torch.nan
    class_ids[4, 1] = 99
    sampler.update(class_ids, probabilities, labels)
    key = "log_weights" if name == "c" else "log_potentials"
    assert torch.equal(getattr(sampler, key), getattr(expected, key))
    with pytest.raises(ArgumentError, match=r"^2 entries .*1 times: class_ids.*1 times: probabil"):
        sampler.check()
    sampler.check()  # reported once
    sampler.update(class_ids[4:5], probabilities[4:5], labels[4:5])
    assert torch.equal(getattr(sampler, key), getattr(expected, key))
    with pytest.raises(ArgumentError, match=r"^1 entries"):
        sampler.state_dict()
    sampler.state_dict()


@given(
    seed=st.integers(0, 10_000),
    n_tasks=st.integers(1, 9),
    n_keys=st.integers(1, 30),
    mask=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_mean_by_key_equals_a_dictionary_in_both_libraries(seed, n_tasks, n_keys, mask):
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, n_keys, (n_tasks, 4))
    values = rng.uniform(-2, 2, (n_tasks, 4))
    accepted = rng.random(n_tasks) < 0.6 if mask else None
    groups = {}
    for t in range(n_tasks):
        for key, value in zip(keys[t], values[t], strict=True):
            if accepted is None or accepted[t]:
                groups.setdefault(int(key), []).append(float(value))
    for xp in (np, torch):
        arrays = (keys, values, accepted)
        if xp is torch:
            arrays = tuple(None if a is None else torch.from_numpy(a) for a in arrays)
        means, seen = mean_by_key(*arrays, xp)
        for t in range(n_tasks):
            for e in range(4):
                group = groups.get(int(keys[t, e]))
                assert (group is not None) == (True if seen is None else bool(seen[t, e]))
                if group:
                    assert float(means[t, e]) == pytest.approx(sum(group) / len(group), abs=1e-12)


def test_the_small_functions_agree_between_the_libraries():
    rows = torch.randn(5, 8, dtype=torch.float64)
    rows[0, 0] = -torch.inf
    torch.testing.assert_close(log_sum_exp(rows, torch), rows.logsumexp(-1))
    np.testing.assert_allclose(log_sum_exp(rows.numpy(), np), rows.logsumexp(-1).numpy())


@pytest.mark.parametrize("n_tasks", [1, 5])
def test_the_greedy_draw_is_the_same_in_both_libraries(tools, n_tasks):
    potentials = tools.random_log_potentials(11, seed=4)
    noise = torch.randn(4, n_tasks, 11, generator=torch.Generator().manual_seed(0)).double()
    weights = potentials.logsumexp(-1)
    by_torch = greedy_draw(potentials, weights, noise, torch)
    by_numpy = greedy_draw(potentials.numpy(), weights.numpy(), noise.numpy(), np)
    assert by_torch.tolist() == by_numpy.tolist()


@given(
    seed=st.integers(0, 10_000),
    n_tasks=st.integers(1, 10),
    fault=st.sampled_from(
        ["none", "nan", "inf", "-inf", "negative", "sum", "label", "id", "twice", "empty", "dtype"]
    ),
)
@settings(max_examples=150, deadline=None)
def test_both_libraries_refuse_the_same_feedback(tools, seed, n_tasks, fault):
    class_ids, probabilities, labels = tools.feedback(n_tasks, 3, 8, seed=seed)
    t = seed % n_tasks
    if fault in ("nan", "inf", "-inf"):
        probabilities[t, 1, 1] = float(fault)
    elif fault == "negative":
        probabilities[t, 0] = torch.tensor([-0.2, 0.6, 0.6])
    elif fault == "sum":
        probabilities[t, 0] += 0.01
    elif fault == "label":
        labels[t, 0] = 3 if seed % 2 else -1
    elif fault == "id":
        class_ids[t, 0] = 8 if seed % 2 else -1
    elif fault == "twice":
        class_ids[t, 0] = class_ids[t, 1]
    elif fault == "empty":
        labels[t] = labels[t].clamp_min(1)
    elif fault == "dtype":
        labels = labels.to(torch.int16)
    given_values = (class_ids, probabilities, labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adaptask.samplers.feedback.namespace", lambda _: torch)
        patch.setattr("adaptask.samplers.feedback.view", lambda tensor: tensor)
        by_torch, passed = condense(*given_values, n_classes=8, dtype=torch.float32)
    is_good = fault in ("none", "dtype")
    assert passed.all(-1).tolist() == [is_good or task != t for task in range(n_tasks)]
    if not is_good:
        with pytest.raises(AdaptaskError, match=f"entry {t} does not comply"):
            condense(*given_values, n_classes=8, dtype=torch.float32)
        return
    by_numpy, _ = condense(*given_values, n_classes=8, dtype=torch.float32)
    np.testing.assert_array_equal(by_numpy.class_ids, by_torch.class_ids.numpy())
    np.testing.assert_allclose(by_numpy.confusion, by_torch.confusion.numpy(), atol=1e-6)
    np.testing.assert_array_equal(by_numpy.accuracy, by_torch.accuracy.numpy())


@pytest.mark.parametrize("shared", [True, False])
def test_accuracy_is_the_share_of_queries_whose_class_is_strictly_ahead(tools, shared):
    class_ids, probabilities, labels = tools.feedback(6, 4, 8)
    probabilities[0, :2] = 0.25  # ties are wrong
    probabilities[1, 0] = torch.tensor([0.4, 0.4, 0.1, 0.1])
    given = labels[0] if shared else labels.roll(1, -1)
    feedback, _ = condense(class_ids, probabilities, given, n_classes=8, dtype=torch.float32)
    answers = given.expand(6, -1).tolist()
    for task, rows in enumerate(probabilities.tolist()):
        asked = list(zip(rows, answers[task], strict=True))
        right = [all(row[y] > row[c] for c in range(4) if c != y) for row, y in asked]
        assert feedback.accuracy[task] == np.float32(sum(right) / len(right))
