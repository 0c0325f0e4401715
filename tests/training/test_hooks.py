"""Samplers that weigh the tasks of a step, or choose them from candidates."""

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from adaptask.backbones import build_backbone
from adaptask.data import open_episodes
from adaptask.errors import ArgumentError, TrainingError
from adaptask.interfaces import Outcome, gives_task_losses
from adaptask.learners import LEARNERS, build_learner
from adaptask.samplers import UniformSampler, build_sampler
from adaptask.training import Trainer
from adaptask.training import step as step_module
from adaptask.training.distributed import ProcessGroup
from adaptask.training.step import TrainingStep

N_WAY, N_SHOT, N_QUERY, N_TASKS = 3, 2, 3, 4
WEIGHABLE = [name for name in LEARNERS if name not in ("reptile", "classifier")]


class Weighs(UniformSampler):
    """Draws uniformly, and gives fixed weights to the tasks of a step."""

    weights = (1.0, 1.0, 1.0, 1.0)

    def __init__(self, **settings):
        super().__init__(**settings)
        self.heard = []

    def weigh(self, losses):
        self.heard.append(losses)
        return torch.tensor(self.weights)


class WeighsUnevenly(Weighs):
    weights = (0.25, 3.0, 0.0, 0.75)


class Chooses(UniformSampler):
    """Draws 7 candidates, takes some of them, and keeps what it is shown."""

    positions = (5, 0, 6, 2)

    def __init__(self, **settings):
        super().__init__(**settings)
        self.shown, self.taught = [], []

    def n_candidates(self, n_tasks):
        return n_tasks + 3

    def choose(self, class_ids, losses, n_tasks):
        self.shown.append((class_ids, losses))
        return torch.tensor(self.positions)

    def update(self, class_ids, probabilities, labels):
        super().update(class_ids, probabilities, labels)
        self.taught.append(class_ids)


class Keeps:
    """A source of float64 images that keeps the episodes it has drawn."""

    def __init__(self, source):
        self.source, self.device, self.drawn = source, source.device, []

    def draw(self, class_ids, **sizes):
        drawn = self.source.draw(class_ids, **sizes)
        images = {n: getattr(drawn, n).double() for n in ("support_images", "query_images")}
        self.drawn.append(type(drawn)(**{**vars(drawn), **images}))
        return self.drawn[-1]


def build(name, **options):
    torch.manual_seed(0)
    pooled = 2 if name == "relationnet" else 4
    backbone = build_backbone(
        "conv4", image_shape=(1, 16, 16), filters=4, n_pooled=pooled, **options
    )
    taken = inspect.signature(LEARNERS[name]).parameters
    needed = {key: n for key, n in (("n_way", N_WAY), ("n_classes", 12)) if key in taken}
    return build_learner(name, backbone=backbone, **needed).double()


def train(learner, tiny, sampler, n_steps=1, lr=0.1, **settings):
    """Return sampler and source after some steps."""
    sampler = sampler(n_classes=12, n_way=N_WAY, seed=2)
    source = Keeps(open_episodes(tiny, "train", seed=1))
    optimizer = torch.optim.SGD(learner.parameters(), lr=lr)
    settings = {"n_shot": N_SHOT, "n_query": N_QUERY, "n_tasks": N_TASKS, **settings}
    step = TrainingStep(learner, sampler, source, optimizer, **settings)
    learner.train()
    for number in range(n_steps):
        if hasattr(learner, "begin_step"):
            learner.begin_step(number, 10)
        step(number)
    return sampler, source


def gradients(learner):
    return {name: p.grad for name, p in learner.named_parameters() if p.grad is not None}


# Weights ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WEIGHABLE)
def test_weights_of_one_are_no_weights(tiny, name):
    weighed, plain = build(name), build(name)
    sampler, _ = train(weighed, tiny, Weighs, n_steps=3)
    train(plain, tiny, UniformSampler, n_steps=3)
    for ours, theirs in zip(weighed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    for ours, theirs in zip(weighed.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert len(sampler.heard) == 3
    assert sampler.heard[0].shape == (N_TASKS,)
    assert sampler.heard[0].dtype == torch.float32
    assert not sampler.heard[0].requires_grad


@pytest.mark.parametrize("name", ["maml", "maml++"])
def test_the_gradient_is_the_weighted_mean_of_those_of_each_task(tiny, name):
    # Learners that process each task by itself, one task after the other by their own gradient.
    learner = build(name)
    alone = copy.deepcopy(learner)
    _, source = train(learner, tiny, WeighsUnevenly, lr=0.0)
    expected = {n: torch.zeros_like(p) for n, p in alone.named_parameters()}
    alone.train()
    alone.begin_step(0, 10)
    for at, weight in enumerate(WeighsUnevenly.weights):
        alone.zero_grad(set_to_none=True)
        task = type(source.drawn[0])(
            *(part[at : at + 1] for part in vars(source.drawn[0]).values())
        )
        alone.training_step(task).loss.backward()
        for key, gradient in gradients(alone).items():
            expected[key] += weight / N_TASKS * gradient
    found = gradients(learner)
    assert max(gradient.abs().max() for gradient in found.values()) > 1e-4
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, expected[key], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", [n for n in WEIGHABLE if not n.startswith("maml")])
def test_the_gradient_is_that_of_the_weighted_losses_of_each_task(tiny, name):
    learner = build(name)
    by_hand = copy.deepcopy(learner).train()
    sampler, source = train(learner, tiny, WeighsUnevenly, lr=0.0)
    (episodes,) = source.drawn
    logits, labels = by_hand(episodes), episodes.query_labels
    losses = [by_hand.loss(logits[t : t + 1], labels[t : t + 1]) for t in range(N_TASKS)]
    torch.testing.assert_close(sampler.heard[0], torch.stack(losses).detach().float())
    weighted = [w * loss for w, loss in zip(WeighsUnevenly.weights, losses, strict=True)]
    (sum(weighted) / N_TASKS).backward()
    found, expected = gradients(learner), gradients(by_hand)
    assert found.keys() == expected.keys()
    assert max(gradient.abs().max() for gradient in found.values()) > 1e-4
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, expected[key], rtol=1e-9, atol=1e-11)


def test_the_gradient_agrees_with_finite_differences(tiny):
    learner = Plain()
    _, source = train(learner, tiny, WeighsUnevenly)

    def weighted_loss(scale):
        model = Plain()
        with torch.no_grad():
            logits, labels = (
                scale / model.scale * model(source.drawn[0]),
                source.drawn[0].query_labels,
            )
        losses = [cross_entropy(*pair) for pair in zip(logits, labels, strict=True)]
        return sum(w * x for w, x in zip(WeighsUnevenly.weights, losses, strict=True)) / N_TASKS

    difference = (weighted_loss(0.001 + 1e-6) - weighted_loss(0.001 - 1e-6)) / 2e-6
    assert learner.scale.grad.item() == pytest.approx(difference.item(), rel=1e-4)


def test_the_recorded_loss_is_the_plain_mean(tiny):
    means = []
    for sampler in (UniformSampler, WeighsUnevenly):
        learner = build("protonet")
        source = Keeps(open_episodes(tiny, "train", seed=1))
        optimizer = torch.optim.SGD(learner.parameters(), lr=0.1)
        settings = {"n_shot": N_SHOT, "n_query": N_QUERY, "n_tasks": N_TASKS}
        sampler = sampler(n_classes=12, n_way=N_WAY, seed=2)
        step = TrainingStep(learner, sampler, source, optimizer, **settings)
        step(0)
        means.append(step.metrics.pop_means()["loss"])
    assert means[0] == pytest.approx(means[1], rel=1e-12)


class Plain(nn.Module):
    """Has `forward` and nothing else."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.001, dtype=torch.float64))

    def forward(self, episodes):
        queries = episodes.query_images.flatten(2)
        support = episodes.support_images.flatten(2).unflatten(1, (N_WAY, -1)).mean(2)
        return -self.scale * torch.cdist(queries, support)


def test_any_module_with_a_forward_can_be_weighed(tiny):
    learner = Plain()
    sampler, source = train(learner, tiny, WeighsUnevenly)
    by_hand = Plain()
    logits, labels = by_hand(source.drawn[0]).float(), source.drawn[0].query_labels
    losses = torch.stack([cross_entropy(*pair) for pair in zip(logits, labels, strict=True)])
    torch.testing.assert_close(sampler.heard[0], losses.detach())
    (torch.tensor(WeighsUnevenly.weights) * losses).mean().backward()
    torch.testing.assert_close(learner.scale.grad, by_hand.scale.grad)


class StepsOtherwise(LEARNERS["protonet"]):
    """Trains in another way than the learner that it derives from."""

    def training_step(self, episodes):
        outcome = super().training_step(episodes)
        return Outcome(loss=2 * outcome.loss, query_logits=outcome.query_logits)


def test_only_learners_with_a_loss_per_task_are_weighed(tiny):
    without = {name for name in LEARNERS if not gives_task_losses(LEARNERS[name])}
    assert without == {"reptile", "classifier"}
    others = StepsOtherwise(backbone=build("protonet").backbone)
    source = open_episodes(tiny, "train", seed=1)
    reptile = build("reptile")
    for learner, name in (
        (reptile, "Reptile"),
        (torch.compile(reptile, backend="eager"), "Reptile"),  # a module around it
        (others, "StepsOtherwise"),
    ):
        sampler = Weighs(n_classes=12, n_way=N_WAY)
        message = f"Weighs weighs the losses of tasks.*the learner {name} does"
        with pytest.raises(ArgumentError, match=message):
            Trainer(learner, sampler, source, n_tasks=4)


class ForgetsItsLosses(StepsOtherwise):
    def training_step_per_task(self, episodes):
        return self.training_step(episodes)


def test_losses_and_weights_of_another_form_are_refused(tiny):
    learner = ForgetsItsLosses(backbone=build("protonet").backbone)
    with pytest.raises(ArgumentError, match=r"`losses` of the shape \(4,\); got None"):
        train(learner, tiny, Weighs)
    with pytest.raises(ArgumentError, match=r"what weigh\(\) returns must have the shape 2"):
        train(build("protonet"), tiny, Weighs, n_tasks=2)


class WithOneThatFails(ProcessGroup):
    """The first of two processes; the losses of the other one are not finite."""

    def __init__(self):
        super().__init__(0, 2, is_connected=True)

    def gather_tasks(self, values):
        return torch.cat((values.float(), torch.full_like(values, torch.nan).float()))

    def gather_feedback(self, sampler, *feedback, extra, n_parts):
        step, class_ids = extra
        steps, ids = torch.stack((step, torch.zeros(()).long())), torch.stack(2 * [class_ids])
        return [torch.cat((part, part)) for part in feedback], [steps, ids]


def test_a_step_that_fails_in_another_process_leaves_no_trace_in_a_sampler_that_weighs(tiny, same):
    sampler = build_sampler("difficulty", n_classes=12, n_way=N_WAY, seed=2)
    before = copy.deepcopy(dict(sampler.named_buffers()))
    with pytest.raises(TrainingError, match="step 1 is not finite"):
        train(build("protonet"), tiny, lambda **_: sampler, group=WithOneThatFails())
    assert same(dict(sampler.named_buffers()), before)


@pytest.mark.parametrize("sampler", [Weighs, Chooses])
def test_a_step_in_parts_is_refused(tiny, sampler):
    with pytest.raises(
        ArgumentError, match=f"accumulate must be 1 with the sampler {sampler.__name__}"
    ):
        train(build("protonet"), tiny, sampler, accumulate=2)


# Pools --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEARNERS)
def test_the_chosen_candidates_are_trained_on_with_the_same_images(tiny, name):
    learner = build(name)
    by_hand = copy.deepcopy(learner)
    torch.manual_seed(7)  # Reptile's mini-batches
    sampler, source = train(learner, tiny, Chooses)
    (class_ids, losses), (episodes,) = sampler.shown[0], source.drawn
    assert torch.equal(class_ids, UniformSampler(n_classes=12, n_way=N_WAY, seed=2).sample(7))
    assert losses.shape == (7,)
    assert losses.dtype == torch.float32
    assert not losses.requires_grad
    assert torch.equal(sampler.taught[0], class_ids[list(Chooses.positions)])

    by_hand.train()
    if hasattr(by_hand, "begin_step"):
        by_hand.begin_step(0, 10)
    torch.manual_seed(7)
    with torch.no_grad():
        logits = copy.deepcopy(by_hand)(episodes)
    expected = torch.stack(
        [cross_entropy(*pair) for pair in zip(logits, episodes.query_labels, strict=True)]
    )
    torch.testing.assert_close(losses, expected.float())
    chosen = type(episodes)(*(part[list(Chooses.positions)] for part in vars(episodes).values()))
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    by_hand.training_step(chosen).loss.backward()
    optimizer.step()
    for ours, theirs in zip(learner.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    # Statistics are those of the tasks trained on: candidates leave no trace in them.
    for ours, theirs in zip(learner.buffers(), by_hand.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_the_counts_are_those_of_the_chosen_tasks(tiny):
    learner = build("protonet")
    source = open_episodes(tiny, "train", seed=1)
    sampler = Chooses(n_classes=12, n_way=N_WAY, seed=2)
    optimizer = torch.optim.SGD(learner.float().parameters(), lr=0.1)
    step = TrainingStep(learner, sampler, source, optimizer, n_shot=1, n_query=2, n_tasks=4)
    step(0)
    drawn = sampler.taught[0].flatten()
    assert torch.equal(step.class_counts, torch.bincount(drawn, minlength=12))


class ChoosesTooFew(Chooses):
    positions = (5, 0)


class HasTooFew(Chooses):
    def n_candidates(self, n_tasks):
        return n_tasks - 1


def test_pools_of_another_form_are_refused(tiny):
    with pytest.raises(ArgumentError, match=r"what choose\(\) returns must have the shape 4"):
        train(build("protonet"), tiny, ChoosesTooFew)
    with pytest.raises(ArgumentError, match="n_candidates must be"):
        train(build("protonet"), tiny, HasTooFew)


def test_nothing_is_computed_for_a_sampler_without_hooks(tiny, monkeypatch):
    for name in ("per_task_outcome", "score_tasks", "select_tasks", "task_cross_entropies"):
        monkeypatch.setattr(step_module, name, None)
    train(build("protonet"), tiny, UniformSampler)


class RefuseHostReads(TorchDispatchMode):
    """Fails where a value is read on the host, which a CUDA graph cannot hold."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        reads = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::is_nonzero")
        assert func.name() not in reads
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", WEIGHABLE)
@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        ("cvar", {}),
        *(("difficulty", {"target": t, "warmup": 0}) for t in ("uniform", "hard", "curriculum")),
    ],
    ids=str,
)
def test_no_hook_reads_a_value_on_the_host(tiny, name, sampler, options):
    learner = build(name).float().train()
    episodes = open_episodes(tiny, "train", seed=1).draw(
        torch.tensor([[0, 1, 2], [3, 4, 5]]), n_shot=N_SHOT, n_query=N_QUERY
    )
    sampler = build_sampler(sampler, n_classes=12, n_way=N_WAY, seed=0, **options)
    with RefuseHostReads():
        if hasattr(sampler, "weigh"):
            losses = step_module.per_task_outcome(learner, episodes).losses
            (sampler.weigh(losses.detach()) * losses).mean().backward()
        else:
            with torch.no_grad():
                scores = step_module.score_tasks(learner, episodes)
            step_module.select_tasks(episodes, sampler.choose(episodes.class_ids, scores, 1))


# Whole runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", ["protonet", "maml"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("difficulty", {"warmup": 2}),
        ("difficulty", {"target": "curriculum", "warmup": 0}),
        ("cvar", {}),
    ],
    ids=str,
)
def test_a_run_is_resumed_bit_by_bit(build_trainer, same, outcome, learner, name, options):
    def make(seed):
        sampler = build_sampler(name, n_classes=12, n_way=N_WAY, seed=seed, **options)
        model = build(learner).float()
        return build_trainer(learner=model, sampler=sampler, seed=seed, validate=False, n_tasks=2)

    whole, first, second = make(0), make(0), make(5)
    whole.fit(10)
    first.fit(4)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.fit(10)
    assert same(outcome(whole), outcome(second))


@pytest.mark.parametrize("sampler", ["difficulty", "cvar"])
def test_a_run_differs_from_a_uniform_one(build_trainer, sampler, same):
    ends = []
    for name in (sampler, "uniform"):
        options = {"warmup": 0} if name == "difficulty" else {}
        made = build_sampler(name, n_classes=12, n_way=N_WAY, seed=0, **options)
        trainer = build_trainer(sampler=made, validate=False, n_tasks=2)
        trainer.fit(5)
        ends.append(trainer.learner.state_dict())
    assert not same(*ends)
