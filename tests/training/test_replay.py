"""What a step does can be recorded once and replayed, as a device graph does it.

A graph holds operations and memory, and no Python. So whatever a step keeps must stay in the same
memory, and nothing may be counted or decided in Python. These tests record the operations of a step
on the CPU, and replay them on the same tensors: training must go on exactly as by the step itself.
`test_cuda_graph.py` does the same with true graphs, where there is a GPU.
"""

import inspect
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adaptask.backbones import BACKBONES, build_backbone
from adaptask.data import open_episodes, subsets
from adaptask.errors import TrainingError
from adaptask.learners import LEARNERS, build_learner
from adaptask.samplers import SAMPLERS, UniformSampler, build_sampler
from adaptask.training.cuda_graph import GraphEngine, find_change, kept_in_python
from adaptask.training.step import TrainingStep

TASK_SAMPLERS = [name for name in SAMPLERS if name != "instance"]  # which draws examples
N_CLASSES, N_WAY, N_STEPS = 12, 3, 12
OPTIONS = {
    "cp": {"method": "gibbs"},
    "difficulty": {"warmup": 4},
    "dpp": {"kind": "dynamic", "refresh": 5},  # so that new kernels are made among the replays
    "hierarchy": {"groups": 3 * ["a", "b", "c", "d"]},
    # So that its strength rises from the first step.
    "neighbor": {"beta": 2.0, "target_accuracy": 0.1},
    "ohtm": {"warmup": 4},
}


class Recording(TorchDispatchMode):
    """Records every operation below autograd, with the tensors it reads and writes."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def replay(self):
        """Do the same again; what an operation returned is overwritten by what it returns now."""
        for func, args, kwargs, result in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@pytest.fixture
def without_numpy(as_on_a_device, monkeypatch):
    """Let torch compute what NumPy does on a CPU, since only operations of torch are recorded."""

    def by_keys(sizes, n_drawn, *, generator):
        largest = int(sizes.max())
        return subsets.subsets_by_keys(sizes, n_drawn, largest=largest, generator=generator)

    monkeypatch.setattr(subsets, "subsets_by_codes", by_keys)


def build_step(tiny, *, sampler="uniform", learner="protonet", backbone=None, **settings):
    source = open_episodes(tiny, "train", augmentation="crop-flip", seed=1)
    torch.manual_seed(0)
    name, options = backbone or ("conv4", {"filters": 4})
    if learner == "relationnet":
        options["n_pooled"] = 2
    network = build_backbone(name, image_shape=source.image_set.image_shape, **options)
    taken = inspect.signature(LEARNERS[learner]).parameters
    needed = {key: n for key, n in (("n_way", N_WAY), ("n_classes", N_CLASSES)) if key in taken}
    model = build_learner(learner, backbone=network, **needed).train()
    if isinstance(sampler, str):
        options = dict(OPTIONS.get(sampler, {}))
        if SAMPLERS[sampler].uses_class_features:
            options["n_features"] = model.n_features
        sampler = build_sampler(sampler, n_classes=N_CLASSES, n_way=N_WAY, seed=2, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sizes = {"n_shot": 2, "n_query": 3, "n_tasks": 4}
    step = TrainingStep(model, sampler, source, optimizer, **sizes, **settings)
    if hasattr(model, "begin_step"):
        model.begin_step(0, N_STEPS)
    # On a device a loss that is not finite is found at the next pause, not in the step.
    step._raise_at_once = lambda: None
    return step


def state_of(step):
    """Everything that a step leaves behind."""
    return {
        **step.learner.state_dict(),
        **{f"sampler.{name}": buffer for name, buffer in step.sampler.named_buffers()},
        "counts": step.class_counts,
        "metrics": step.metrics.sums,
        "number": step._step_number,
    }


def train_both(build):
    """Return the states after the same steps, one by one, and the last ones replayed."""
    plain = build()
    for number in range(N_STEPS):
        plain(number)
    replayed = build()  # which seeds the generator that Reptile draws from
    for number in range(3):
        replayed(number)
    replayed.set_number(3)
    with Recording() as recording:
        replayed.run()
    for number in range(4, N_STEPS):
        getattr(replayed.sampler, "prepare", lambda: None)()
        replayed.set_number(number)
        recording.replay()
    return state_of(plain), state_of(replayed)


def differing(left, right):
    assert left.keys() == right.keys()
    return [name for name in left if not torch.equal(left[name], right[name])]


@pytest.mark.parametrize("sampler", TASK_SAMPLERS)
def test_every_sampler_can_be_replayed(tiny, without_numpy, sampler):
    assert differing(*train_both(lambda: build_step(tiny, sampler=sampler))) == []


@pytest.mark.parametrize("learner", LEARNERS)
def test_every_learner_can_be_replayed(tiny, without_numpy, learner):
    assert differing(*train_both(lambda: build_step(tiny, learner=learner))) == []


@pytest.mark.parametrize(
    "backbone",
    [
        ("resnet12", {"widths": (2, 3, 4, 5), "drop_block_ramp": 9}),
        ("conv4", {"filters": 4, "norm": "task"}),
        ("mlp", {}),
        ("linear", {}),
    ],
    ids=str,
)
def test_every_backbone_can_be_replayed(tiny, without_numpy, backbone):
    assert {"resnet12", "conv4", "mlp", "linear", "identity"} == set(BACKBONES)
    build = lambda: build_step(tiny, backbone=backbone)  # noqa: E731
    assert differing(*train_both(build)) == []


@pytest.mark.parametrize("settings", [{"accumulate": 2}, {"clip_norm": 0.1}], ids=str)
def test_every_kind_of_step_can_be_replayed(tiny, without_numpy, settings):
    build = lambda: build_step(tiny, sampler="gcp", **settings)  # noqa: E731
    assert differing(*train_both(build)) == []


# Code of others -----------------------------------------------------------------------------------


class InPlace(UniformSampler):
    """Counts as it should."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.register_buffer("n_updates", torch.zeros(()))
        self.settings = {"limits": [1, 2.5, None], "scale": float("nan")}

    def learn(self, feedback):
        self.n_updates += 1


class Counts(InPlace):
    """Counts its updates in memory that is new each time, which a graph never sees."""

    def learn(self, feedback):
        self.n_updates = self.n_updates + 1


class Alternates(UniformSampler):
    """Decides in Python how it draws."""

    n_draws = 0

    def draw(self, n_tasks):
        self.n_draws += 1
        return super().draw(n_tasks).sort(-1, descending=bool(self.n_draws % 2)).values


class Remembers(UniformSampler):
    """Keeps the tasks of every step in a list."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.past = {"tasks": []}

    def draw(self, n_tasks):
        self.past["tasks"].append(super().draw(n_tasks))
        return self.past["tasks"][-1]


class Helper:
    """Not a module: what a sampler or a learner may leave its counting to."""

    def __init__(self):
        self.n_calls = 0
        self.itself = self


class Delegates(UniformSampler):
    """Counts its draws in an object of its own."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.helper = Helper()

    def draw(self, n_tasks):
        self.helper.n_calls += 1
        return super().draw(n_tasks)


class Queues(UniformSampler):
    """Keeps its last draws in a queue."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.last = deque(maxlen=2)

    def draw(self, n_tasks):
        self.last.append(super().draw(n_tasks))
        return self.last[-1]


class Collects(UniformSampler):
    """Keeps something of every draw in a long list."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.found = [0] * 2000

    def draw(self, n_tasks):
        self.found.append(0)
        return super().draw(n_tasks)


class Swaps(InPlace):
    """Changes the memory of a tensor that stays the same object."""

    def learn(self, feedback):
        self.n_updates.data = self.n_updates + 1


class Incomparable:
    """Cannot be compared with anything."""

    def __eq__(self, other):
        raise NotImplementedError

    __hash__ = object.__hash__


class Odd(InPlace):
    """Has attributes of many kinds that do not change."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.arrays = {
            "mean": np.arange(3),
            ("a", 1): np.float32(2),
            3: [np.nan],
            Incomparable(): Incomparable(),
        }
        self.modules_of_python = [torch, np]
        self.sparse = torch.eye(3).to_sparse()
        with torch.inference_mode():
            self.inferred = torch.ones(2)
        self.helper = Helper()
        self.function, self.kind, self.names = len, int, {"a", "b"}
        self.loop = []
        self.loop.extend(6 * [self.loop])


class Warms(nn.Module):
    """A learner that is told the step, and keeps it as a number."""

    def __init__(self, learner):
        super().__init__()
        self.learner, self.progress = learner, 0.0

    def begin_step(self, step, n_steps):
        self.progress = step / n_steps

    def forward(self, episodes):
        return self.learner(episodes) * (1 + self.progress)


@pytest.mark.parametrize("sampler", [Counts, Alternates])
def test_what_cannot_be_replayed_is_found(tiny, without_numpy, sampler):
    build = lambda: build_step(tiny, sampler=sampler(n_classes=12, n_way=3, seed=2))  # noqa: E731
    assert differing(*train_both(build))


class Engine(GraphEngine):
    """Goes through the motions of an engine on a GPU, and captures nothing."""

    def __init__(self, step, **settings):
        super().__init__(step, **settings)
        self._may_capture, self.is_captured = True, False

    def _on_side_stream(self, act):
        act()

    def _check_for_syncs(self, number):
        self.step(number)

    def _capture(self):
        self.is_captured, self._may_capture = True, False
        return False


def run_engine(step, required=False):
    said = []
    engine = Engine(step, report=said.append)
    engine._required = required
    for number in range(6):  # the fourth is captured, but for a phase that changes at the third
        if hasattr(step.learner, "begin_step"):
            step.learner.begin_step(number, N_STEPS)
        engine(number)
    return engine.is_captured, said


@pytest.mark.parametrize("sampler", [InPlace, Odd, *TASK_SAMPLERS])
def test_what_stays_in_place_is_captured(tiny, sampler):
    if not isinstance(sampler, str):
        sampler = sampler(n_classes=12, n_way=3, seed=2)
    assert run_engine(build_step(tiny, sampler=sampler)) == (True, [])


def as_own_class(monkeypatch, registry, name):
    """Let a builder of this module build a subclass that somebody else wrote."""
    own = type("Own", (registry[name],), {"__module__": "elsewhere"})
    builder = "build_learner" if registry is LEARNERS else "build_sampler"
    monkeypatch.setattr(f"{__name__}.{builder}", lambda _, **options: own(**options))


@pytest.mark.parametrize("sampler", TASK_SAMPLERS)
def test_subclasses_of_our_samplers_are_captured(tiny, without_numpy, monkeypatch, sampler):
    as_own_class(monkeypatch, SAMPLERS, sampler)
    assert run_engine(build_step(tiny, sampler=sampler)) == (True, [])


@pytest.mark.parametrize("learner", LEARNERS)
def test_subclasses_of_our_learners_are_captured(tiny, without_numpy, monkeypatch, learner):
    as_own_class(monkeypatch, LEARNERS, learner)
    assert run_engine(build_step(tiny, learner=learner)) == (True, [])


@pytest.mark.parametrize(
    ("sampler", "named"),
    [
        (Counts, "Counts.n_updates"),
        (Alternates, "Alternates.n_draws"),
        (Remembers, "Remembers.past.tasks.2"),
        (Delegates, "Delegates.helper.n_calls"),
        (Queues, "Queues.last.0"),
        (Collects, "Collects.found"),
        (Swaps, "Swaps.n_updates"),
    ],
)
def test_samplers_that_a_graph_would_freeze_are_run_eagerly_and_named(tiny, sampler, named):
    build = lambda: build_step(tiny, sampler=sampler(n_classes=12, n_way=3, seed=2))  # noqa: E731
    is_captured, (said,) = run_engine(build())
    assert not is_captured
    assert f"{named} is replaced from step to step" in said
    with pytest.raises(TrainingError, match=r"cannot be captured: .* Use --engine eager"):
        run_engine(build(), required=True)


def test_layers_of_torch_are_looked_at_in_what_others_wrote(tiny):
    plain = build_step(tiny)
    step = build_step(tiny)
    step.learner = Warms(plain.learner)
    step.learner.drop = nn.Dropout(0.5)
    step.learner.begin_step = lambda step, n_steps: setattr(
        parts["drop"], "p", 0.5 * step / n_steps
    )
    parts = dict(step.learner.named_modules())
    _, (said,) = run_engine(step)
    assert "Warms.drop.p is replaced" in said


def test_what_holds_itself_is_looked_at_once(tiny):
    step = build_step(tiny, sampler=Odd(n_classes=12, n_way=3, seed=2))
    assert len(kept_in_python(step)) < 100


def test_a_tensor_on_another_device_may_not_change_at_all(tiny):
    sampler = InPlace(n_classes=12, n_way=3, seed=2)
    step = SimpleNamespace(
        sampler=sampler, learner=None, source=SimpleNamespace(device=torch.device("cuda"))
    )
    before = kept_in_python(step)
    assert find_change(before, kept_in_python(step)) is None
    sampler.n_updates += 1
    assert find_change(before, kept_in_python(step)) == "InPlace.n_updates"


def test_so_are_learners(tiny):
    plain = build_step(tiny)
    step = build_step(tiny)
    step.learner = Warms(plain.learner)
    is_captured, (said,) = run_engine(step)
    assert not is_captured
    assert "Warms.progress is replaced" in said


def test_so_is_one_part_of_many(tiny):
    plain = build_step(tiny)
    step = build_step(tiny)
    parts = [Warms(nn.Identity()) for _ in range(3)]
    parts[1].forward = lambda episodes: setattr(parts[1], "progress", parts[1].progress + 1)
    step.learner = Warms(plain.learner)
    step.learner.begin_step = lambda step, n_steps: parts[1](None)
    step.learner.parts = nn.ModuleList(parts)
    _, (said,) = run_engine(step)
    assert "Warms.parts.1.progress is replaced" in said
