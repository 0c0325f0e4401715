"""A step as one device graph: the same training as kernel by kernel."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from adaptask.backbones import build_backbone
from adaptask.data import open_episodes
from adaptask.errors import TrainingError
from adaptask.learners import LEARNERS, build_learner
from adaptask.samplers import build_sampler
from adaptask.training import Intervals, Trainer, build_optimizer, cosine
from adaptask.training.cuda_graph import (
    _MOST_AHEAD,
    GraphEngine,
    _capture_stream,
)
from adaptask.training.device_steps import finish
from adaptask.training.displays import Display
from adaptask.training.distributed import SINGLE_PROCESS
from adaptask.training.optimizer import make_capturable, optimizer_state, set_learning_rate

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
NEVER = Intervals(log=0, validate=0, checkpoint=0, snapshot=0)
HEADED = ("maml", "maml++", "anil", "reptile")


class Notes(Display):
    def __init__(self):
        self.messages = []

    def message(self, text):
        self.messages.append(text)

    warn = message


def build(tiny, *, device="cuda", learner="protonet", sampler="gcp", optimizer="adam", **settings):
    source = open_episodes(tiny, "train", device=device, augmentation="crop-flip", seed=1)
    if isinstance(learner, str):
        torch.manual_seed(0)
        pooled = {"n_pooled": 2} if learner == "relationnet" else {}
        network = build_backbone(
            "conv4", image_shape=source.image_set.image_shape, filters=8, **pooled
        )
        options = {"n_way": 3} if learner in HEADED else {}
        options |= {"n_classes": 12} if learner == "classifier" else {}
        learner = build_learner(learner, backbone=network, **options)
    learner.to(device)
    return Trainer(
        learner,
        build_sampler(sampler, n_classes=12, n_way=3, seed=2, device=device)
        if isinstance(sampler, str)
        else sampler(n_classes=12, n_way=3, n_features=learner.n_features, seed=2, device=device),
        source,
        n_shot=2,
        n_query=4,
        n_tasks=2,
        optimizer=build_optimizer(optimizer, learner.parameters(), lr=1e-3),
        **{"every": NEVER, **settings},
    )


def outcome(trainer):
    """What training came to; the weights only where the optimizer does not blow up rounding.

    Adam makes a gradient that is nothing but rounding, as of a bias before a norm, as large as any.
    """
    weights = trainer.learner.state_dict()
    return {
        **(weights if isinstance(trainer.optimizer, torch.optim.SGD) else {}),
        "potentials": getattr(trainer.sampler, "log_potentials", torch.zeros(1)),
        "counts": trainer._train_step.class_counts,
        "metrics": trainer._train_step.metrics.sums.clone(),
    }


def assert_close(left, right, *, exact=False):
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 5e-3, "atol": 5e-4}
    left, right = outcome(left), outcome(right)
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(
            value, right[name], **tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_on_a_cpu_steps_are_eager(tiny):
    trainer = build(tiny, device="cpu")
    trainer.fit(5)
    assert not trainer._engine.is_replaying
    with pytest.raises(TrainingError, match=r"no graphs on cpu. Use --engine eager"):
        build(tiny, device="cpu", engine="graph")


def test_the_state_of_an_optimizer_is_saved_as_without_a_graph():
    weight = nn.Parameter(torch.ones(2))
    optimizer = build_optimizer("adam", [weight], lr=0.5)
    plain = copy.deepcopy(optimizer.state_dict()["param_groups"][0])
    make_capturable(optimizer)
    set_learning_rate(optimizer, 0.1)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.05)
    saved = optimizer_state(optimizer)["param_groups"][0]
    assert saved == plain | {"lr": 0.05, "initial_lr": 0.5}
    assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor)


@cuda
def test_what_may_run_at_the_same_time_is_captured_on_streams_of_its_own():
    streams = [torch.cuda.Stream() for _ in range(12)]
    first = [_capture_stream(stream) for stream in streams]
    assert len({stream.cuda_stream for stream in first}) == 12
    # However many graphs are captured meanwhile.
    for _ in range(40):
        assert _capture_stream(streams[0]) == first[0]


def test_the_host_is_never_far_ahead(monkeypatch):
    waited_for, launches = [0], []

    class Event:
        def __init__(self, blocking):
            assert blocking  # it sleeps, and leaves its core to others

        def record(self, stream):
            self.after = len(launches)  # replays that are done once this has occurred

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    source = SimpleNamespace(device=torch.device("cuda:0"))
    engine = GraphEngine(SimpleNamespace(source=source, group=SINGLE_PROCESS), report=print)
    assert engine.throttle() is None  # steps that are not captured need no limit
    engine._graph = object()
    for n in range(200):
        wait = engine.throttle()
        if wait is not None:
            waited_for.append(wait.after)
        launches.append(n)
        assert len(launches) - max(waited_for) <= _MOST_AHEAD
    assert 1 < len(waited_for) <= 2 * 200 / _MOST_AHEAD


@cuda
def test_a_step_that_was_released_is_captured_again(tiny):
    trainer = build(tiny)
    trainer.fit(6)
    assert trainer._engine.is_replaying
    trainer.release()
    assert not trainer._engine.is_replaying
    trainer.fit(12)
    assert trainer._engine.is_replaying
    assert trainer.step == 12


@cuda
@pytest.mark.parametrize("sampler", ["uniform", "c", "cp", "gcp"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_samplers_draw_and_learn_alike(tiny, sampler, optimizer):
    settings = {"sampler": sampler, "optimizer": optimizer, "schedule": cosine, "clip_norm": 1.0}
    eager, graph = (build(tiny, engine=engine, **settings) for engine in ("eager", "graph"))
    for trainer in (eager, graph):
        trainer.fit(15)
    assert graph._engine.is_replaying
    assert not eager._engine.is_replaying
    assert_close(eager, graph)
    n_drawn = int(graph._train_step.class_counts.sum())
    assert n_drawn == 15 * 2 * 3


@cuda
@pytest.mark.parametrize("learner", LEARNERS)
def test_learners_learn_alike(tiny, learner):
    eager, graph = (
        build(tiny, engine=engine, learner=learner, optimizer="sgd")
        for engine in ("eager", "graph")
    )
    for trainer in (eager, graph):
        torch.manual_seed(3)
        trainer.fit(12)
    assert graph._engine.is_replaying
    assert_close(eager, graph)


@cuda
@pytest.mark.parametrize("sampler", ["difficulty", "cvar"])
@pytest.mark.parametrize("learner", ["protonet", "relationnet", "metaoptnet-svm", "maml", "maml++"])
def test_weights_and_pools_are_part_of_the_graph(tiny, learner, sampler):
    options = {"warmup": 2} if sampler == "difficulty" else {}

    def build_hooked(*, n_features, **settings):
        return build_sampler(sampler, **options, **settings)

    eager, graph = (
        build(tiny, engine=engine, learner=learner, sampler=build_hooked, optimizer="sgd")
        for engine in ("eager", "graph")
    )
    for trainer in (eager, graph):
        torch.manual_seed(3)
        trainer.fit(12)
    assert graph._engine.is_replaying
    assert_close(eager, graph)


@cuda
@pytest.mark.parametrize("learner", LEARNERS)
def test_class_features_are_part_of_the_graph(tiny, learner, crowded_sampler):
    eager, graph = (
        build(tiny, engine=engine, learner=learner, sampler=crowded_sampler, optimizer="sgd")
        for engine in ("eager", "graph")
    )
    for trainer in (eager, graph):
        torch.manual_seed(3)
        trainer.fit(12)
    assert graph._engine.is_replaying
    assert torch.equal(eager.sampler.counts, graph.sampler.counts)
    torch.testing.assert_close(eager.sampler.sums, graph.sampler.sums, rtol=5e-3, atol=5e-3)


@cuda
@pytest.mark.filterwarnings("ignore")  # compilers talk
@pytest.mark.parametrize("learner", ["protonet", "matchingnet", "metaoptnet-svm"])
def test_a_compiled_step_learns_alike(tiny, learner):
    notes = Notes()
    eager, graph = (
        build(
            tiny,
            engine=engine,
            learner=learner,
            optimizer="sgd",
            compiled=engine == "graph",
            display=notes,
        )
        for engine in ("eager", "graph")
    )
    for trainer in (eager, graph):
        trainer.fit(12)
    assert graph._engine.is_replaying
    assert notes.messages == []
    assert_close(eager, graph)


@cuda
def test_a_run_goes_on_exactly(tiny, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        whole, first, second = (build(tiny, engine="graph", optimizer="sgd") for _ in range(3))
        whole.fit(7)
        whole.state_dict()  # as a checkpoint does
        whole.fit(16)
        first.fit(7)
        torch.manual_seed(77)
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        second.fit(16)
        assert_close(whole, second, exact=True)
    finally:
        torch.use_deterministic_algorithms(False)


class Untold(nn.Module):
    """A nearest-neighbor learner that can be told to misbehave at a step."""

    def __init__(self, *, waits=False, nan_at=-1):
        super().__init__()
        self.weight, self.waits, self.nan_at = nn.Parameter(torch.tensor(0.01)), waits, nan_at
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, episodes):
        self.calls += 1
        support = episodes.support_images.flatten(2)[:, ::2]
        logits = -self.weight * torch.cdist(episodes.query_images.flatten(2), support)
        if self.waits:
            logits = logits * float(logits.isfinite().all())
        return torch.where(self.calls == self.nan_at, torch.nan, logits)


@cuda
def test_what_cannot_be_captured_is_run_eagerly_and_says_so(tiny):
    notes = Notes()
    trainer = build(tiny, learner=Untold(waits=True), sampler="uniform", display=notes)
    trainer.fit(8)
    assert int(trainer.learner.calls) in (8, 9)  # the attempt to capture counts at most once
    assert any("cannot be captured" in text for text in notes.messages)
    with pytest.raises(TrainingError, match="cannot be captured"):
        build(tiny, learner=Untold(waits=True), sampler="uniform", engine="graph").fit(8)


@cuda
@pytest.mark.parametrize("refresh", [1, 2])
def test_a_kernel_that_is_made_while_waits_are_looked_for_does_not_cost_the_graph(tiny, refresh):
    def sampler(**settings):
        return build_sampler("dpp", refresh=refresh, **settings)

    trainer = build(tiny, sampler=sampler, engine="graph")
    trainer.fit(8)
    assert trainer._engine.is_replaying


@cuda
def test_a_loss_that_is_no_number_is_found_with_its_step(tiny):
    every = Intervals(log=4, validate=0, checkpoint=0, snapshot=0)
    trainer = build(tiny, learner=Untold(nan_at=10), sampler="uniform", every=every, engine="graph")
    with pytest.raises(TrainingError, match=r"loss of step 10 is not finite"):
        trainer.fit(20)
    assert trainer.step == 12


@cuda
def test_nothing_waits_for_the_device(tiny, no_synchronization):
    trainer = build(tiny, engine="graph", schedule=cosine)
    for _ in range(6):
        finish(trainer._advance(100))
    with no_synchronization():
        for _ in range(3):
            finish(trainer._advance(100))


@pytest.mark.parametrize(
    ("device", "storage", "engine", "told"),
    [
        ("cuda", "host", "auto", ["host memory"]),
        ("cuda", "host", "eager", []),
        ("cuda", "device", "auto", []),
        ("cpu", "host", "auto", []),
    ],
)
def test_what_is_in_the_way_from_the_start_is_told(device, storage, engine, told):
    source = SimpleNamespace(device=torch.device(device), storage=storage)
    messages = []
    GraphEngine(
        SimpleNamespace(source=source, group=SINGLE_PROCESS), engine=engine, report=messages.append
    )
    assert len(messages) == len(told)
    assert all(words in text for words, text in zip(told, messages, strict=True))


@cuda
def test_frozen_parts_stay_to_the_last_bit_in_a_graph(tiny):
    trainers = []
    for engine in ("graph", "eager"):
        trainer = build(tiny, learner="meta-baseline", optimizer="sgd", engine=engine)
        stages = trainer.learner.backbone.blocks[:2]
        trainer.learner.freeze(*stages)
        before = copy.deepcopy(stages.state_dict())
        trainer.fit(12)
        after = stages.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
        trainers.append(trainer)
    assert_close(*trainers)
