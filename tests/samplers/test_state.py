"""Samplers as nn.Modules: state, copies, precision, and what is not theirs."""

import copy
import io
import multiprocessing
import pickle

import pytest
import torch
from torch import nn

from adaptask.errors import AdaptaskError, ArgumentError, StateError
from adaptask.samplers import SAMPLERS, CPSampler, UniformSampler, build_sampler


def build(name="gcp", *, n=10, k=3, seed=0, **settings):
    if SAMPLERS[name].uses_class_features:
        settings["n_features"] = 4
    return build_sampler(name, n_classes=n, n_way=k, seed=seed, **settings)


def test_a_state_of_another_sampler_is_refused_by_name():
    with pytest.raises(StateError, match=r"saved with sampler 'CPSampler'.*'GCP"):
        build("gcp").load_state_dict(build("cp").state_dict())


def test_a_state_of_another_number_of_classes_is_refused():
    with pytest.raises(StateError, match="n_classes 12, this has 10"):
        build(n=10).load_state_dict(build(n=12).state_dict())


@pytest.mark.parametrize(("trained_way", "n_way"), [(3, 5), (5, 4)])
def test_a_state_of_another_way_is_welcome(trained_way, n_way):
    trained = build(k=trained_way)
    trained.log_potentials[0, 1] = trained.log_potentials[1, 0] = 2.0
    other = build(k=n_way)
    other.load_state_dict(trained.state_dict())
    assert torch.equal(other.log_potentials, trained.log_potentials)
    class_ids = other.sample(2)
    assert class_ids.shape == (2, n_way)
    probabilities = torch.full((2, n_way, n_way), 1 / n_way)
    other.update(class_ids, probabilities, torch.arange(n_way))
    assert not torch.equal(other.log_potentials, trained.log_potentials)


@pytest.mark.parametrize("damage", ["nan", "inf", "asymmetric", "diagonal"])
def test_damaged_potentials_are_refused_and_change_nothing(damage):
    sampler, state = build(), copy.deepcopy(build().state_dict())
    potentials = state["log_potentials"]
    if damage == "asymmetric":
        potentials[0, 1] = 1.0
    elif damage == "diagonal":
        potentials[2, 2] = 0.0
    else:
        potentials[0, 1] = potentials[1, 0] = float(damage)
    before = copy.deepcopy(sampler.state_dict())
    with pytest.raises(StateError, match="damaged"):
        sampler.load_state_dict(state)
    assert torch.equal(before["log_potentials"], sampler.log_potentials)


def test_a_damaged_random_stream_is_refused():
    state = copy.deepcopy(build().state_dict())
    state["_extra_state"]["generator"]["state"] = torch.zeros(7, dtype=torch.uint8)
    with pytest.raises(StateError, match="random stream"):
        build().load_state_dict(state)
    state["_extra_state"]["generator"] = None
    with pytest.raises(StateError, match="random stream"):
        build().load_state_dict(state)


def test_a_stream_of_another_kind_of_device_goes_on_in_a_new_one():
    state = copy.deepcopy(build().state_dict())
    state["_extra_state"]["generator"]["kind"] = "cuda"
    first, second = build(seed=1), build(seed=2)
    for sampler in (first, second):
        with pytest.warns(UserWarning, match="saved on cuda and is loaded on cpu"):
            sampler.load_state_dict(state)
    assert torch.equal(first.sample(20), second.sample(20))


def test_a_sampler_inside_a_model_is_saved_and_restored_with_it():
    class Model(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.sampler = build(seed=seed)

    first, second = Model(0), Model(1)
    first.sampler.sample(5)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.sampler.sample(9), second.sampler.sample(9))
    broken = {k: v for k, v in first.state_dict().items() if k != "sampler._extra_state"}
    with pytest.raises(StateError, match="no state of a GCPSampler"):
        second.load_state_dict(broken)


@pytest.mark.parametrize("name", [n for n in SAMPLERS if SAMPLERS[n].draws == "tasks"])
def test_a_pickled_sampler_draws_on(name):
    sampler = build(name)
    sampler.sample(4)
    copies = [pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler)]
    expected = sampler.sample(8)
    assert all(torch.equal(other.sample(8), expected) for other in copies)


def test_fork_draws_from_a_stream_of_its_own():
    sampler, same = build(seed=3), build(seed=3)
    twin = sampler.fork(9)
    twin.sample(50)
    twin.log_potentials[0, 1] = 3.0
    assert torch.equal(sampler.sample(8), same.sample(8))
    assert torch.equal(sampler.fork(9).sample(8), sampler.fork(9).sample(8))


def test_precision_can_be_raised_but_not_halved():
    sampler = build()
    sampler.double()
    assert sampler.log_potentials.dtype == torch.float64
    sampler.sample(2)
    sampler.update(torch.tensor([[0, 1, 2]]), torch.full((1, 3, 3), 1 / 3), torch.arange(3))
    for narrow in (torch.float16, torch.bfloat16):
        sampler.to(narrow)
        assert sampler.log_potentials.dtype == torch.float64
    assert sampler.float().log_potentials.dtype == torch.float32
    sampler.sample(2)
    for method in ("enumerate", "reject", "gibbs"):
        build("cp", method=method).double().sample(3)
        build("cp", method=method).double().float().sample(3)


def test_saving_does_not_change_what_comes_next():
    saved, unsaved = build(), build()
    for step in range(30):
        for sampler in (saved, unsaved):
            class_ids = sampler.sample(2)
            logits = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(step))
            sampler.update(class_ids, logits.softmax(-1), torch.arange(3).repeat(2))
        saved.state_dict()
        copy.deepcopy(saved)
    assert torch.equal(saved.log_potentials, unsaved.log_potentials)
    assert torch.equal(saved.sample(50), unsaved.sample(50))


def test_loading_with_assign_is_followed_too():
    source = build()
    source.log_potentials[0, 1] = source.log_potentials[1, 0] = 60.0
    sampler = build()
    sampler.sample(1)
    sampler.load_state_dict(copy.deepcopy(source.state_dict()), assign=True)
    assert all({0, 1} <= set(row) for row in sampler.sample(50).tolist())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_way": 11}, "n_way must be between 2 and 10, the number of training classes; got 11"),
        ({"n_way": 1}, "between 2 and 10"),
        ({"n_way": 2.5}, "must be an integer"),
        ({"n_classes": 1}, "n_classes must be at least 2"),
        ({"alpha": -0.1}, "alpha must be a number between 0 and 1e"),
        ({"alpha": float("nan")}, "alpha"),
        ({"alpha": "1"}, "alpha"),
        ({"tau": 1.01}, "tau must be a number between 0 and 1"),
        ({"tau": -0.01}, "tau"),
        ({"strategy": "harder"}, "one of hard, easy, uncertain; got 'harder'"),
        ({"confusion": "max"}, "one of sum, mean"),
        ({"forget": "none"}, "one of sampled, all"),
        ({"exploration": 1.5}, "exploration"),
        ({"seed": -1}, "seed"),
        ({"method": "gibbs"}, "'gcp' takes no method; it takes n_classes, n_way, alpha"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_with_what_was_expected(wrong, message):
    with pytest.raises(ArgumentError, match=message):
        build_sampler("gcp", **{"n_classes": 10, "n_way": 3, **wrong})


def test_the_registry_explains_itself():
    with pytest.raises(ArgumentError, match="no sampler 'gpc'; did you mean 'gcp'"):
        build_sampler("gpc", n_classes=5, n_way=2)
    with pytest.raises(ArgumentError, match="'c' needs n_way"):
        build_sampler("c", n_classes=5)
    with pytest.raises(ArgumentError, match="one of auto, enumerate, reject, gibbs"):
        CPSampler(n_classes=5, n_way=2, method="greedy")
    with pytest.raises(ArgumentError, match="category sets"):
        CPSampler(n_classes=64, n_way=20, method="enumerate")


def test_every_error_has_one_root_and_is_a_value_error_where_a_value_is_wrong():
    assert issubclass(ArgumentError, AdaptaskError)
    assert issubclass(ArgumentError, ValueError)


def test_printing_a_sampler_shows_its_settings():
    assert "n_classes=10, n_way=3, alpha=1, tau=0.5, strategy='hard'" in repr(build())


def test_log_prob_refuses_what_is_no_category_set():
    for wrong in ([[0, 1, 1]], [[0, 1, 10]], [[0, 1, -1]]):
        with pytest.raises(ArgumentError, match="distinct classes"):
            build().log_prob(torch.tensor(wrong))
    with pytest.raises(ArgumentError, match="tasks x 3"):
        build().log_prob(torch.tensor([[0, 1]]))


@pytest.mark.parametrize("name", ["uniform", "gcp"])
def test_a_sampler_can_be_sent_to_a_spawned_process(name):
    # A bound method of the sampler: the child needs nothing of this test module.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        sampler = build(name, seed=4)
        received = pool.apply_async(sampler.sample, (6,)).get(timeout=60).clone()
    assert torch.equal(received, sampler.sample(6))


def test_a_state_moved_with_map_location_still_loads():
    """As after `torch.load(..., map_location="cuda")`: the stream's bytes move with the rest."""
    source, target = build(seed=5), build(seed=6)
    source.sample(3)
    state = copy.deepcopy(source.state_dict())
    moved = MovedTensor(state["_extra_state"]["generator"]["state"])
    state["_extra_state"]["generator"]["state"] = moved
    target.load_state_dict(state)
    assert torch.equal(source.sample(8), target.sample(8))


class MovedTensor(torch.Tensor):
    """Pretends to be elsewhere: only its `.cpu()` can be used as generator state."""

    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_subclass(cls, data)

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def test_a_model_saved_without_a_sampler_loads_into_one_with_it():
    plain = nn.Sequential(nn.Linear(2, 2))
    with_sampler = nn.Sequential(nn.Linear(2, 2), build())
    outcome = with_sampler.load_state_dict(plain.state_dict(), strict=False)
    assert outcome.missing_keys == ["1.log_potentials", "1._extra_state"]
    assert torch.equal(with_sampler[0].weight, plain[0].weight)
    with pytest.raises(RuntimeError, match="Missing key"):
        with_sampler.load_state_dict(plain.state_dict())


def test_values_that_overflow_in_the_sampler_s_precision_are_refused():
    wide = build().double()
    wide.log_potentials.add_(1e39)
    narrow = build()
    with pytest.raises(StateError, match="finite"):
        narrow.load_state_dict(wide.state_dict())
    state = copy.deepcopy(build("c").state_dict())
    state["log_weights"] = state["log_weights"].long()
    with pytest.raises(StateError, match=r"float32 or float64; got torch\.int64"):
        build("c").load_state_dict(state, assign=True)


@pytest.mark.parametrize("name", ["uniform", "c", "cp", "gcp"])
def test_inference_mode_leaves_a_sampler_usable(name):
    sampler = build(name)
    feedback = (torch.tensor([[0, 1, 2]]), torch.full((1, 3, 3), 1 / 3), torch.arange(3))
    with torch.inference_mode():
        sampler.sample(2)
        sampler.update(*feedback)
        inside = build(name)
        inside.sample(2)
    sampler.sample(2)
    sampler.update(*feedback)


@pytest.mark.parametrize(
    "settings", [("gcp", {}), *(("cp", {"method": m}) for m in ("reject", "gibbs"))]
)
def test_a_foreign_default_device_changes_nothing(settings):
    name, options = settings
    expected = build(name, device="cpu", **options)
    sampler = build(name, device="cpu", **options)
    ids = torch.tensor([[0, 1, 2]])
    with torch.device("meta"):
        drawn = sampler.sample(4)
        if name == "gcp":
            sampler.log_prob(ids)
    assert drawn.device.type == "cpu"
    assert torch.equal(drawn, expected.sample(4))
    build("gcp").log_prob(ids)


def test_potentials_that_are_not_contiguous_learn_too():
    sampler = build()
    sampler.log_potentials = torch.zeros(10, 10).fill_diagonal_(-torch.inf).t()
    sampler.update(torch.tensor([[0, 1, 2]]), torch.full((1, 3, 3), 1 / 3), torch.arange(3))
    assert sampler.log_potentials[0, 1] > 0


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda p: p.fill_(0), "minus infinity on the diagonal"),
        (lambda p: p[0].fill_(torch.nan), "diagonal"),
        (lambda p: p[0, 1:2].fill_(torch.nan), "finite off the diagonal"),
        (lambda p: p[0, 1:2].fill_(1.0), "symmetric"),
    ],
)
def test_an_edit_that_makes_no_sense_is_refused_at_the_next_use(edit, message):
    sampler = build()
    edit(sampler.log_potentials)
    with pytest.raises(ArgumentError, match=message):
        sampler.sample(2)


def test_numbers_may_be_of_any_kind_that_is_a_number():
    import fractions

    sampler = build(alpha=torch.tensor(2.0), tau=fractions.Fraction(1, 2))
    assert (sampler.rule.alpha, sampler.rule.tau) == (2.0, 0.5)
    sampler.update(torch.tensor([[0, 1, 2]]), torch.full((1, 3, 3), 1 / 3), torch.arange(3))
    assert "alpha=2, tau=0.5" in repr(sampler)


def test_a_whole_sampler_goes_through_a_file():
    sampler, file = build(seed=2), io.BytesIO()
    sampler.sample(1)
    torch.save(sampler, file)
    file.seek(0)
    restored = torch.load(file, weights_only=False, map_location="cpu")
    assert torch.equal(sampler.sample(5), restored.sample(5))


class Remembering(UniformSampler):
    """Has half-precision numbers of its own, and averages probabilities."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.register_buffer("memory", torch.zeros(self.n_classes, 4, dtype=torch.float16))
        self.register_buffer("total", torch.zeros(self.n_classes))

    def learn(self, feedback):
        own = torch.as_tensor(feedback.confusion).diagonal(dim1=1, dim2=2)
        self.total.index_add_(0, torch.as_tensor(feedback.class_ids).flatten(), own.flatten())


def test_a_sampler_that_holds_half_precision_learns_in_single():
    sampler = Remembering(n_classes=8, n_way=2)
    labels = torch.tensor([0, 1])
    sampler.update(torch.tensor([[3, 5]]), torch.tensor([[[0.75, 0.25], [0.5, 0.5]]]), labels)
    assert sampler.total.tolist() == [0, 0, 0, 0.75, 0, 0.5, 0, 0]
