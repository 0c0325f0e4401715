"""Whatever values come: a constructor works or raises an error of ours, and so does `update`.

What is public, and what Python itself may raise, is in SECURITY.md.
"""

import inspect
import os
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptask.backbones import BACKBONES, build_backbone
from adaptask.data import EpisodeSource, ImageSet, open_episodes
from adaptask.errors import AdaptaskError
from adaptask.integrations.torch import EpisodeBatchSampler
from adaptask.learners import LEARNERS, build_learner
from adaptask.samplers import SAMPLERS, build_sampler
from adaptask.training import Evaluator, Trainer
from adaptask.training.optimisation import StepSchedule, build_optimizer
from adaptask.training.trainer import Every

N_EXAMPLES = max(25, int(os.environ.get("ADAPTASK_FUZZ_CASES", "1000")) // 200)
often = settings(
    max_examples=N_EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

HUGE = (2**31, 2**40, 2**63, 2**70, 10**30, 10**5000)


class Rude:
    """A value that has something against everything."""

    def __index__(self):
        raise RuntimeError("rude")

    __float__ = __bool__ = __len__ = __iter__ = __index__


odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from([*HUGE, *(-n for n in HUGE)]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["auto", "none", "hard", "easy", "mean", "all", "gibbs", "cpu", "cuda:9"]),
    st.binary(max_size=4),
    st.lists(st.one_of(st.integers(-2, 70), st.floats(), st.none()), max_size=4),
    st.tuples(st.integers(-1, 40), st.integers(0, 40), st.integers(0, 40)),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.sampled_from(
        [
            *(object, Rude(), len, 1j, np.float64(2), np.int64(3), np.bool_(True), np.zeros(3)),
            *(torch.tensor(2), torch.zeros(2), torch.tensor(1.5), torch.nn.Linear(2, 2)),
            *(torch.float16, torch.float64, torch.device("cpu"), torch.device("meta")),
            *([[1, 2], [3]], np.array(["a"], dtype=object), torch.zeros(0), {1, 2}, range(3)),
        ]
    ),
)


@st.composite
def some_odd(draw, build, fixed=()):
    """Draw odd values for one, two or three of the arguments that something takes."""
    parameters = [name for name in inspect.signature(build).parameters if name not in fixed]
    chosen = draw(st.lists(st.sampled_from(parameters), min_size=1, max_size=3, unique=True))
    return {name: draw(odd_values) for name in chosen}


def built(build, arguments):
    """Build something; None where that was refused as it should be."""
    try:
        return build(**arguments)
    except AdaptaskError:
        return None


def needed(name):
    return {"n_instances": 7} if name == "instance" else {"n_classes": 6, "n_way": 3}


@pytest.mark.parametrize("name", SAMPLERS)
@often
@given(data=st.data())
def test_samplers(name, data):
    odd = data.draw(some_odd(SAMPLERS[name]))
    sampler = built(SAMPLERS[name], {**needed(name), **odd})
    if sampler is not None and sampler.device.type == "cpu":
        drawn = sampler.sample(2)
        assert drawn.dtype == torch.int64
        sampler.state_dict()


@pytest.mark.parametrize("name", BACKBONES)
@often
@given(data=st.data())
def test_backbones(name, data):
    odd = data.draw(some_odd(BACKBONES[name]))
    backbone = built(BACKBONES[name], {"image_shape": (1, 16, 16), **small(name), **odd})
    if backbone is not None and backbone.image_shape == (1, 16, 16):
        assert backbone(torch.zeros(1, 2, 1, 16, 16)).isfinite().all()


def small(name):
    return {"filters": 4} if name == "conv4" else {"widths": (4, 4, 4, 4)}


@pytest.mark.parametrize("name", LEARNERS)
@often
@given(data=st.data())
def test_learners(name, data, tiny):
    backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=2, n_pooled=2)
    takes_way = "n_way" in inspect.signature(LEARNERS[name]).parameters
    odd = data.draw(some_odd(LEARNERS[name]))
    arguments = {"backbone": backbone, **({"n_way": 3} if takes_way else {}), **odd}
    learner = built(LEARNERS[name], arguments)
    if learner is None or isinstance(odd.get("backbone"), torch.nn.Module):
        return
    steps = [getattr(learner, "inner_steps", 0), getattr(learner, "evaluation_steps", 0)]
    if max(steps) < 20 and getattr(learner, "n_way", 3) == 3:
        episodes = open_episodes(tiny, "train").draw(torch.tensor([[0, 1, 2]]), n_shot=1, n_query=1)
        with suppress(AdaptaskError):  # features that a learner cannot use
            assert learner.eval()(episodes).shape == (1, 3, 3)


def image_set(**odd):
    images = torch.zeros((12, 1, 8, 8), dtype=torch.uint8)
    starts = torch.tensor([0, 4, 8, 12])
    names = ("a", "b", "c")
    whole = {"dataset": "x", "split": "train", "images": images, "class_starts": starts}
    return ImageSet(**{**whole, "class_names": names, **odd})


@often
@given(data=st.data())
def test_episode_sources(data):
    odd = data.draw(some_odd(EpisodeSource))
    source = built(EpisodeSource, {"image_set": image_set(), **odd})
    if source is not None and source.device.type == "cpu" and not callable(odd.get("augmentation")):
        numbers = {"n_shot": data.draw(odd_values), "n_query": data.draw(odd_values)}
        built(lambda **n: source.draw(torch.tensor([[0, 1]]), **n), numbers)
        episodes = source.draw(torch.tensor([[0, 1]]), n_shot=1, n_query=1)
        assert episodes.query_images.isfinite().all()


@often
@given(data=st.data())
def test_image_sets_reach_no_further_than_the_source(data):
    odd = data.draw(some_odd(ImageSet))
    built(lambda **parts: EpisodeSource(image_set(**parts)), odd)


@often
@given(data=st.data())
def test_draws_of_odd_classes(data):
    source = EpisodeSource(image_set())
    ids = data.draw(st.one_of(odd_values, odd_tensors))
    built(lambda: source.draw(ids, n_shot=1, n_query=1), {})


@often
@given(data=st.data())
def test_plans_and_evaluators(data):
    odd = data.draw(some_odd(Evaluator))
    whole = {"source": EpisodeSource(image_set()), "n_way": 2, "n_shot": 1, "n_query": 1}
    built(Evaluator, {**whole, "n_episodes": 2, **odd})


@often
@given(data=st.data())
def test_trainers(data, parts):
    odd = data.draw(some_odd(Trainer))
    # Any callable is a schedule, any path a folder.
    trainer = built(Trainer, {**parts(), **odd})
    if trainer is not None and not {"schedule", "folder", "display", "loggers"} & odd.keys():
        built(lambda **_: trainer.fit(data.draw(st.one_of(odd_values, st.just(1)))), {})


@pytest.fixture
def parts(tiny):
    """Builds what a trainer needs."""

    def build():
        source = open_episodes(tiny, "train", augmentation="none")
        backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=2)
        return {
            "learner": build_learner("protonet", backbone=backbone),
            "sampler": build_sampler("gcp", n_classes=source.n_classes, n_way=3),
            "source": source,
            "n_query": 1,
        }

    return build


@often
@given(data=st.data())
def test_episode_batch_samplers(data):
    odd = data.draw(some_odd(EpisodeBatchSampler))
    sampler = build_sampler("gcp", n_classes=4, n_way=2)
    whole = {"labels": [0, 1, 2, 3] * 4, "sampler": sampler, "n_shot": 1, "n_query": 1}
    episodes = built(EpisodeBatchSampler, {**whole, "n_tasks": 2, **odd})
    if episodes is not None and episodes.tasks_per_batch < 20:
        batch = episodes.draw()
        before = episodes.report
        logits, ids = data.draw(st.one_of(odd_values, odd_tensors)), data.draw(odd_values)
        for given_ids, given_logits in ((batch.task_ids, logits), (ids, torch.zeros(1, 2, 2))):
            built(lambda i=given_ids, g=given_logits: episodes.feedback(i, g), {})
        assert episodes.report.n_drawn == before.n_drawn


@often
@given(data=st.data())
def test_schedules_optimisers_and_intervals(data):
    built(Every, data.draw(some_odd(Every)))
    whole = {"milestones": (1,), "factors": (0.5,)}
    built(StepSchedule, {**whole, **data.draw(some_odd(StepSchedule))})
    optimiser = {"name": "adam", "parameters": [torch.nn.Parameter(torch.zeros(1))]}
    built(build_optimizer, {**optimiser, **data.draw(some_odd(build_optimizer))})


@often
@given(data=st.data())
def test_registries(data):
    # Python itself asks for what has no default.
    backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=2)
    given_too = {
        build_backbone: {"image_shape": (1, 16, 16)},
        build_learner: {"backbone": backbone},
    }
    for build in (build_sampler, build_backbone, build_learner):
        names = st.one_of(odd_values, st.sampled_from([*SAMPLERS, *BACKBONES, *LEARNERS]))
        keys = st.sampled_from(["n_way", "n_classes", "seed", "x", "image_shape"])
        found = data.draw(st.dictionaries(keys, odd_values, max_size=3))
        name = data.draw(names)
        built(lambda b=build, n=name, **kw: b(n, **kw), {**given_too.get(build, {}), **found})


# --- update --------------------------------------------------------------------------------------

odd_tensors = st.sampled_from(
    [
        *(
            torch.zeros(2, 3),
            torch.zeros(2, 3, dtype=torch.int64),
            torch.zeros((), dtype=torch.int64),
        ),
        *(torch.full((2, 3), -1), torch.full((2, 3), 2**62), torch.tensor([[0, 1, 2], [3, 4, 6]])),
        *(torch.tensor([[0, 1, 1], [3, 4, 5]]), torch.zeros(0, 3, dtype=torch.int64)),
        *(torch.zeros(2, 3, device="meta"), torch.tensor([[0, 1, 2], [3, 4, 5]]).to_sparse()),
        *(torch.zeros(2, 3, 3), torch.full((2, 3, 3), torch.nan), torch.full((2, 3, 3), 1 / 3)),
        *(torch.full((2, 3, 3), torch.inf), torch.full((2, 3, 3), -1.0), torch.eye(3).half()),
        *(torch.full((2, 3, 3), 1 / 3).to_sparse(), torch.full((2, 3, 3), 1 / 3 + 0j)),
        *(torch.zeros(2, 3, dtype=torch.bool), torch.full((2, 0, 3), 1 / 3), torch.arange(3)),
        *(torch.zeros(1, 3, dtype=torch.int8), torch.full((2, 3), 5), torch.arange(3).int()),
        *(torch.full((2, 3, 3), 1 / 3, requires_grad=True), torch.full((3, 3), 1 / 3)),
        *(torch.full((7, 2), 0.5), torch.zeros(7, dtype=torch.int64), torch.full((7,), 2**40)),
    ]
)


def good_feedback(name):
    if name == "instance":
        return [torch.arange(7), torch.full((7, 2), 0.5), torch.zeros(7, dtype=torch.int64)]
    ids = torch.tensor([[0, 1, 2], [3, 4, 5]])
    return [ids, torch.full((2, 3, 3), 1 / 3), torch.arange(3).expand(2, 3)]


def flat(state):
    """Everything in a state, as bytes."""
    if isinstance(state, torch.Tensor):
        return bytes(state.numpy().tobytes())
    return {k: flat(v) for k, v in state.items()} if isinstance(state, dict) else state


@pytest.mark.parametrize("name", SAMPLERS)
@often
@given(data=st.data())
def test_a_refused_update_leaves_no_trace(name, data):
    sampler = build_sampler(name, **needed(name))
    sampler.update(*good_feedback(name))
    before = flat(sampler.state_dict())
    arguments = good_feedback(name)
    for i in data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True)):
        arguments[i] = data.draw(st.one_of(odd_values, odd_tensors))
    try:
        sampler.update(*arguments)
    except AdaptaskError:
        assert flat(sampler.state_dict()) == before
    assert sampler.sample(2).min() >= 0


@pytest.mark.parametrize("name", SAMPLERS)
@often
@given(data=st.data())
def test_a_refused_state_leaves_no_trace(name, data):
    sampler = build_sampler(name, **needed(name))
    sampler.update(*good_feedback(name))
    before = sampler.state_dict()
    key = data.draw(st.sampled_from(list(before)))
    odd = data.draw(st.one_of(odd_values, odd_tensors))
    changed = {**before, key: odd}
    if isinstance(before[key], dict) and data.draw(st.booleans()):
        inner = data.draw(st.sampled_from(list(before[key])))
        changed[key] = {**before[key], inner: odd}
    try:
        sampler.load_state_dict(changed)
    except AdaptaskError:
        assert flat(sampler.state_dict()) == flat(before)
    sampler.sample(1)
