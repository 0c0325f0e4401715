"""The step against the same thing written out by hand."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from adaptask.backbones import build_backbone
from adaptask.data import open_episodes
from adaptask.errors import ArgumentError, TrainingError
from adaptask.interfaces import Episodes, Outcome
from adaptask.learners import build_learner
from adaptask.samplers import build_sampler
from adaptask.training import Trainer
from adaptask.training.step import TrainingStep


def parts(tiny, *, norm="batch", sampler="gcp"):
    torch.manual_seed(0)
    backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=4, norm=norm)
    learner = build_learner("protonet", backbone=backbone)
    source = open_episodes(tiny, "train", seed=1)
    return learner, build_sampler(sampler, n_classes=12, n_way=3, seed=2), source


def sgd(learner):
    return torch.optim.SGD(learner.parameters(), lr=0.1)


def test_steps_equal_a_loop_written_out(tiny):
    learner, sampler, source = parts(tiny)
    step = TrainingStep(learner, sampler, source, sgd(learner), n_shot=2, n_query=3, n_tasks=4)
    for i in range(5):
        step(i)

    learner2, sampler2, source2 = parts(tiny)
    optimizer = sgd(learner2)
    losses, right = [], []
    for _ in range(5):
        class_ids = sampler2.sample(4)
        episodes = source2.draw(class_ids, n_shot=2, n_query=3)
        logits = learner2(episodes)
        loss = cross_entropy(logits.flatten(0, 1), episodes.query_labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sampler2.update(class_ids, logits.detach().softmax(-1), episodes.query_labels)
        losses.append(loss.item())
        right.append((logits.argmax(-1) == episodes.query_labels).float().mean().item())

    for ours, theirs in zip(learner.parameters(), learner2.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(sampler.log_potentials, sampler2.log_potentials)
    assert sampler.log_potentials.triu(1).any()
    metrics = step.metrics.pop_means()
    assert metrics["loss"] == pytest.approx(sum(losses) / 5)
    assert metrics["accuracy"] == pytest.approx(sum(right) / 5)
    assert step.metrics.pop_means() == {}


class FixedSource:
    """Gives a class the same images every time, so that parts of a step can be told apart."""

    device = torch.device("cpu")

    def draw(self, class_ids, *, n_shot, n_query):
        n_way = class_ids.shape[1]
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(12, n_shot + n_query, 1, 16, 16, generator=generator).double()
        drawn = images[class_ids]
        labels = torch.arange(n_way)[:, None]
        return Episodes(
            class_ids=class_ids,
            support_images=drawn[:, :, :n_shot].flatten(1, 2),
            support_labels=labels.expand(len(class_ids), n_way, n_shot).flatten(1),
            query_images=drawn[:, :, n_shot:].flatten(1, 2),
            query_labels=labels.expand(len(class_ids), n_way, n_query).flatten(1),
        )


@pytest.mark.parametrize("accumulate", [2, 3, 6])
def test_a_step_in_parts_is_the_whole_step(tiny, accumulate):
    # With the statistics of each task by itself: those of the batch do depend on the parts.
    results = []
    for n_parts in (1, accumulate):
        learner, sampler, _ = parts(tiny, norm="task")
        learner.double()
        step = TrainingStep(
            learner,
            sampler,
            FixedSource(),
            sgd(learner),
            n_shot=1,
            n_query=2,
            n_tasks=6,
            accumulate=n_parts,
        )
        for i in range(3):
            step(i)
        weights = torch.cat([p.detach().flatten() for p in learner.parameters()])
        results.append((weights, sampler.log_potentials, step.metrics.pop_means()["loss"]))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-12)
    torch.testing.assert_close(results[0][1], results[1][1])
    assert results[0][2] == pytest.approx(results[1][2])


def test_parts_must_be_equal(tiny):
    learner, sampler, source = parts(tiny)
    with pytest.raises(ArgumentError, match="multiple of accumulate, 3"):
        TrainingStep(
            learner,
            sampler,
            source,
            sgd(learner),
            n_shot=1,
            n_query=2,
            n_tasks=4,
            accumulate=3,
        )


def test_the_gradient_is_clipped_and_keeps_its_direction(tiny):
    moves = []
    for clip_norm in (None, 1e-3):
        learner, sampler, source = parts(tiny)
        optimizer = torch.optim.SGD(learner.parameters(), lr=1.0)
        before = [p.detach().clone() for p in learner.parameters()]
        TrainingStep(
            learner,
            sampler,
            source,
            optimizer,
            n_shot=1,
            n_query=3,
            n_tasks=1,
            clip_norm=clip_norm,
        )(0)
        after = learner.parameters()
        moves.append(torch.cat([(a - b).flatten() for a, b in zip(after, before, strict=True)]))
    free, clipped = (move.detach() for move in moves)
    assert free.norm() > 1e-2
    assert clipped.norm() == pytest.approx(1e-3, rel=1e-3)
    assert torch.cosine_similarity(free, clipped, dim=0) == pytest.approx(1, abs=1e-4)


def test_in_bfloat16_the_weights_stay_float32_and_the_loss_stays_near(tiny):
    losses = {}
    for precision in ("float32", "bfloat16"):
        learner, sampler, source = parts(tiny)
        step = TrainingStep(
            learner,
            sampler,
            source,
            sgd(learner),
            n_shot=1,
            n_query=3,
            n_tasks=2,
            precision=precision,
        )
        step(0)
        losses[precision] = step.metrics.pop_means()["loss"]
        assert {p.dtype for p in learner.parameters()} == {torch.float32}
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.05)


class PlainModule(nn.Module):
    """Has `forward` and nothing else."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.001))

    def forward(self, episodes):
        support = episodes.support_images.flatten(2)
        return -self.scale * torch.cdist(episodes.query_images.flatten(2), support)


def test_any_module_with_a_forward_is_trained(tiny):
    _, sampler, source = parts(tiny)
    learner = PlainModule()
    step = TrainingStep(learner, sampler, source, sgd(learner), n_shot=1, n_query=3, n_tasks=2)
    step(0)
    assert learner.scale.item() > 0.001
    assert step.metrics.pop_means()["loss"] < math.log(3) + 0.01


class Diverges(nn.Module):
    """Has a loss that is no number for the second task of every part."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def training_step(self, episodes):
        n_tasks, n_query = episodes.query_labels.shape
        logits = torch.zeros(n_tasks, n_query, episodes.class_ids.shape[1])
        logits[1] = torch.nan
        return Outcome(loss=self.weight * logits.sum(), query_logits=logits)


def test_a_loss_that_is_no_number_stops_before_anything_is_learned(tiny):
    _, sampler, source = parts(tiny)
    learner = Diverges()
    expected = copy.deepcopy(sampler).sample(3)[1].tolist()
    step = TrainingStep(learner, sampler, source, sgd(learner), n_shot=1, n_query=3, n_tasks=3)
    before = sampler.log_potentials.clone()
    with pytest.raises(TrainingError) as error:
        step(41)
    assert "step 42" in str(error.value)
    assert ", ".join(f"train-{i}" for i in expected) in str(error.value)
    assert learner.weight == 1
    assert torch.equal(sampler.log_potentials, before)


def test_a_training_step_must_return_an_outcome(tiny):
    _, sampler, source = parts(tiny)
    learner = Diverges()
    learner.training_step = lambda episodes: learner.weight * 2  # as a LightningModule does
    step = TrainingStep(learner, sampler, source, sgd(learner), n_shot=1, n_query=1, n_tasks=2)
    with pytest.raises(ArgumentError, match=r"training_step of .* Diverges .*Outcome.* a Tensor"):
        step(0)


@pytest.mark.parametrize(
    "bad",
    [{"n_tasks": 0}, {"n_shot": 0}, {"n_query": 1.5}, {"clip_norm": -1.0}, {"precision": "half"}],
)
def test_bad_settings_are_refused(tiny, bad):
    learner, sampler, source = parts(tiny)
    settings = {"n_shot": 1, "n_query": 1, "n_tasks": 1, **bad}
    with pytest.raises(ArgumentError, match=next(iter(bad))):
        TrainingStep(learner, sampler, source, sgd(learner), **settings)


class Spoils(nn.Module):
    """Normalizes its images, and returns logits that are not finite from the second call on."""

    def __init__(self, learner):
        super().__init__()
        self.learner, self.n_calls = learner, 0

    def forward(self, episodes):
        self.n_calls += 1
        if self.n_calls == 1:
            return self.learner(episodes)
        spoiled = replace(episodes, query_images=episodes.query_images * torch.inf)
        return self.learner(spoiled)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loss_that_is_not_finite_leaves_no_trace_but_in_the_random_streams(
    tiny, same, accumulate
):
    learner, sampler, source = parts(tiny)
    spoils = Spoils(learner)
    assert list(spoils.buffers())
    step = TrainingStep(
        spoils,
        sampler,
        source,
        sgd(spoils),
        n_shot=1,
        n_query=2,
        n_tasks=2,
        accumulate=accumulate,
    )
    if accumulate == 1:
        step(0)  # the second part of a step that has two is the first that is spoiled

    def state():
        return copy.deepcopy(
            {
                "learner": dict(spoils.state_dict()),
                "potentials": sampler.log_potentials,
                "metrics": step.metrics.sums,
                "counts": step.class_counts,
            }
        )

    before = state()
    with pytest.raises(TrainingError, match="not finite"):
        step(1)
    assert same(state(), before)


@pytest.mark.parametrize(
    ("drawn", "got"),
    [
        (torch.tensor([[0, 1, 2]]), r"\(1, 3\)"),
        (torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]]), r"\(2, 4\)"),
        (torch.tensor([0, 1, 2]), r"\(3,\)"),
        ([[0, 1, 2], [3, 4, 5]], "list"),
    ],
    ids=str,
)
def test_a_sampler_must_draw_what_it_is_asked_for(tiny, monkeypatch, drawn, got):
    learner, sampler, source = parts(tiny)
    step = TrainingStep(learner, sampler, source, sgd(learner), n_shot=1, n_query=2, n_tasks=2)
    monkeypatch.setattr(sampler, "sample", lambda n_tasks: drawn)
    message = rf"sample\(2\) of GCPSampler must return a tensor of classes, 2 x 3; got {got}"
    with pytest.raises(ArgumentError, match=message):
        step(0)


@pytest.mark.parametrize("n_classes", [9, 15])
def test_a_sampler_for_another_number_of_classes_is_refused(tiny, n_classes):
    learner, _, source = parts(tiny)
    sampler = build_sampler("gcp", n_classes=n_classes, n_way=3, seed=2)
    message = f"chooses from {n_classes} classes, and the source has 12. Build .* n_classes=12"
    with pytest.raises(ArgumentError, match=message):
        Trainer(learner, sampler, source)
