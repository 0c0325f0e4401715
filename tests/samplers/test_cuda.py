"""On a GPU: the same laws, the same numbers, and no waiting for the device."""

import copy
import io

import pytest
import torch

from adaptask.conformance import SAMPLER_LAWS
from adaptask.errors import ArgumentError, StateError
from adaptask.samplers import SAMPLERS, build_sampler

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CASES = [
    *((name, {}) for name in SAMPLERS),
    *(("cp", {"method": method}) for method in ("enumerate", "reject", "gibbs")),
    ("gcp", {"forget": "all"}),
    ("gcp", {"exploration": 0.3, "confusion": "mean", "strategy": "uncertain"}),
    ("gcp", {"dtype": torch.float64, "tau": 0.0}),
    ("neighbor", {"beta": 2.0, "exploration": 0.3, "duplicate_cosine": 0.9, "momentum": 0.0}),
    ("neighbor", {"beta": 2.0, "pool_size": 6, "neighborhood": 2}),
    ("neighbor", {"beta": 2.0, "target_accuracy": None}),
    ("neighbor", {"beta": 2.0, "dtype": torch.float64}),
    ("ohtm", {"warmup": 0}),
    *(("repeat", {"repeats": repeats}) for repeats in ("task", "batches")),
]


def uses_features(name):
    return SAMPLERS[name].draws != "examples" and SAMPLERS[name].uses_class_features


def build(name, seed=0, *, n=9, k=3, dtype=torch.float32, **settings):
    draws_examples = SAMPLERS[name].draws == "examples"
    sizes = {"n_instances": 12} if draws_examples else {"n_classes": n, "n_way": k}
    if uses_features(name):
        sizes["n_features"] = 6
    return build_sampler(name, seed=seed, **sizes, **settings).to(dtype)


@pytest.mark.parametrize("law", SAMPLER_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_every_sampler_obeys_every_law_on_a_gpu(name, settings, law):
    law(lambda seed: build(name, seed, device="cuda", **settings))


def test_the_debug_mode_would_catch_a_synchronization(no_synchronization):
    value = torch.ones(3, device="cuda")
    with no_synchronization(), pytest.raises(RuntimeError, match="synchroniz"):
        value.sum().item()


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
@pytest.mark.parametrize("n_tasks", [1, 8])
def test_drawing_and_learning_never_wait_for_the_device(
    tools, name, settings, n_tasks, no_synchronization
):
    sampler = build(name, n=30, k=4, device="cuda", **settings)
    if SAMPLERS[name].draws == "examples":
        probabilities = torch.full((n_tasks, 3), 1 / 3, device="cuda")
        labels = torch.zeros(n_tasks, dtype=torch.int64, device="cuda")
    else:
        _, probabilities, labels = (x.cuda() for x in tools.feedback(n_tasks, 4, 30))
    features = torch.randn(n_tasks, 4, 6, device="cuda")
    named = {"class_features": features} if uses_features(name) else {}
    for _ in range(2):  # the first call may set things up
        sampler.update(sampler.sample(n_tasks), probabilities, labels, **named)
    bad = probabilities.clone()
    bad[0, ..., 0] = torch.nan
    with no_synchronization():
        for given in (probabilities, bad, bad):
            sampler.update(sampler.sample(n_tasks), given, labels, **named)
    with pytest.raises(ArgumentError, match="2 entries"):
        sampler.check()


@pytest.mark.parametrize("name", ["c", "gcp", "cp"])
def test_updates_equal_those_on_the_cpu(tools, name):
    host, device = build(name, n=20, k=5), build(name, n=20, k=5, device="cuda")
    for seed in range(10):
        feedback = tools.feedback(6, 5, 20, seed=seed)
        host.update(*feedback)
        device.update(*(x.cuda() for x in feedback))
    key = "log_weights" if name == "c" else "log_potentials"
    torch.testing.assert_close(getattr(host, key), getattr(device, key).cpu())


def test_features_equal_those_learned_on_the_cpu(tools):
    sizes = {"n": 20, "k": 5, "beta": 2.0, "target_accuracy": 0.1}
    host, device = build("neighbor", **sizes), build("neighbor", device="cuda", **sizes)
    for seed in range(10):
        feedback = tools.feedback(6, 5, 20, seed=seed)
        features = torch.randn(6, 5, 6, generator=torch.Generator().manual_seed(seed))
        host.update(*feedback, class_features=features)
        device.update(*(x.cuda() for x in feedback), class_features=features.cuda())
    torch.testing.assert_close(host.class_features, device.class_features.cpu())
    assert torch.equal(host.seen, device.seen.cpu())
    assert host.strength > 0
    torch.testing.assert_close(host.strength, device.strength.cpu())


@pytest.mark.parametrize("n_tasks", [1, 3])
def test_a_pool_that_the_kernels_do_not_take_works_without_them(tools, n_tasks):
    sizes = {"n": 4112, "k": 5, "pool_size": 4112, "target_accuracy": 0.1}
    host, device = build("neighbor", **sizes), build("neighbor", device="cuda", **sizes)
    features = torch.randn(n_tasks, 5, 6)
    for seed in range(3):
        feedback = tools.feedback(n_tasks, 5, 4112, seed=seed)
        host.update(*feedback, class_features=features)
        device.update(*(x.cuda() for x in feedback), class_features=features.cuda())
        drawn = device.sample(n_tasks).sort(-1).values
        assert (drawn[:, 1:] > drawn[:, :-1]).all()
    torch.testing.assert_close(host.class_features, device.class_features.cpu())
    torch.testing.assert_close(host.strength, device.strength.cpu())


@pytest.mark.parametrize("options", [{}, {"pool_size": 10}])
def test_neighbor_can_be_captured_in_a_graph(tools, options):
    """Every replay draws the next tasks of the passes, and learns."""
    sampler = build("neighbor", n=20, k=5, beta=2.0, device="cuda", **options)
    _, probabilities, labels = (x.cuda() for x in tools.feedback(2, 5, 20))
    features = torch.randn(2, 5, 6, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(10):  # the first pass
            sampler.update(sampler.sample(2), probabilities, labels, class_features=features)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(sampler.generator)
    with torch.cuda.graph(graph):
        class_ids = sampler.sample(2)
        sampler.update(class_ids, probabilities, labels, class_features=features)
    sampler.tasks_drawn.fill_(20)
    first = []
    for _ in range(10):
        graph.replay()
        first += class_ids[:, 0].tolist()
    assert sorted(first) == list(range(20))
    assert sampler.seen.all()


@pytest.mark.parametrize(("name", "draw"), [("gcp", "enumerate_gcp"), ("cp", "enumerate_cp")])
def test_draws_follow_the_enumerated_distribution(tools, name, draw):
    log_potentials = tools.random_log_potentials(7, seed=0)
    for settings in [{}] if name == "gcp" else [{"method": m} for m in ("reject", "gibbs")]:
        sampler = build(name, n=7, k=4, device="cuda", **settings)
        sampler.log_potentials.copy_(log_potentials)
        draws = sampler.sample(100_000).cpu()
        expected = getattr(tools, draw)(log_potentials, 4)
        assert tools.chi_square_p_value(draws, expected) > 1e-4


def test_a_sampler_moves_and_keeps_what_it_learnt(tools):
    sampler = build("gcp", n=20, k=5)
    sampler.update(*tools.feedback(6, 5, 20))
    learned = sampler.log_potentials.clone()
    first, second = copy.deepcopy(sampler).cuda(), copy.deepcopy(sampler).to("cuda:0")
    assert torch.equal(first.log_potentials.cpu(), learned)
    assert torch.equal(first.sample(20), second.sample(20))
    with pytest.warns(UserWarning, match="saved on cuda and is loaded on cpu"):
        sampler.load_state_dict(first.state_dict())


def test_a_tensor_on_another_device_is_refused(tools):
    sampler = build("gcp", n=20, k=5, device="cuda")
    with pytest.raises(ArgumentError, match=r"on the sampler's device, cuda:0; got cpu"):
        sampler.update(*tools.feedback(6, 5, 20))


def test_a_step_can_be_captured_in_a_graph(tools):
    """Draw and update as one CUDA graph, with the random stream registered."""
    sampler = build("gcp", n=20, k=5, device="cuda")
    _, probabilities, labels = (x.cuda() for x in tools.feedback(2, 5, 20))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            sampler.update(sampler.sample(2), probabilities, labels)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(sampler.generator)
    with torch.cuda.graph(graph):
        class_ids = sampler.sample(2)
        sampler.update(class_ids, probabilities, labels)
    seen = set()
    for _ in range(20):
        graph.replay()
        seen.add(tuple(class_ids.flatten().tolist()))
    assert len(seen) > 15
    assert sampler.log_potentials[class_ids[0, 0], class_ids[0, 1]] > 0
    assert torch.equal(sampler.log_potentials, sampler.log_potentials.mT)


def test_states_and_whole_samplers_move_with_map_location():
    sampler = build("gcp", n=20, k=5, device="cuda")
    sampler.sample(3)
    files = [io.BytesIO(), io.BytesIO()]
    torch.save(sampler.state_dict(), files[0])
    torch.save(sampler, files[1])
    for file in files:
        file.seek(0)
    restored = build("gcp", 1, n=20, k=5, device="cuda")
    restored.load_state_dict(torch.load(files[0], weights_only=True, map_location="cuda"))
    assert torch.equal(sampler.sample(8), restored.sample(8))
    with pytest.warns(UserWarning, match="saved on cuda and is loaded on cpu"):
        on_host = torch.load(files[1], weights_only=False, map_location="cpu")
    assert on_host.sample(4).device.type == "cpu"
    damaged = copy.deepcopy(sampler.state_dict())
    damaged["_extra_state"]["generator"]["state"] = torch.zeros(3, dtype=torch.uint8)
    with pytest.raises(StateError, match="random stream"):
        restored.load_state_dict(damaged)
