"""Class features in a training step: what the sampler is given, and what stays as it was."""

import copy
import inspect
import json

import pytest
import torch
from torch import nn

from adaptask.backbones import build_backbone
from adaptask.data import open_episodes
from adaptask.errors import ArgumentError
from adaptask.interfaces import Outcome
from adaptask.learners import LEARNERS, Ensemble, build_learner
from adaptask.samplers import UniformSampler
from adaptask.training import Trainer
from adaptask.training import step as step_module
from adaptask.training.step import TrainingStep

INNER_LOOP = ("maml", "maml++", "reptile")
N_WAY, N_SHOT, N_QUERY = 3, 2, 3


class Listens(UniformSampler):
    """Draws uniformly, and keeps the features that it is given."""

    uses_class_features = True

    def __init__(self, **settings):
        super().__init__(**settings)
        self.heard = []

    def update(self, class_ids, probabilities, labels, *, class_features=None):
        super().update(class_ids, probabilities, labels, class_features=class_features)
        self.heard.append(class_features)


class Keeps:
    """A source that keeps the episodes it has drawn."""

    def __init__(self, source):
        self.source, self.device, self.drawn = source, source.device, []

    def draw(self, class_ids, **sizes):
        self.drawn.append(self.source.draw(class_ids, **sizes))
        return self.drawn[-1]


def build(name, **options):
    torch.manual_seed(0)
    if name == "relationnet":
        options = {"n_pooled": 2, **options}
    backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=4, **options)
    taken = inspect.signature(LEARNERS[name]).parameters
    needed = {key: n for key, n in (("n_way", N_WAY), ("n_classes", 12)) if key in taken}
    return build_learner(name, backbone=backbone, **needed)


def train(learner, tiny, n_steps=1, sampler=Listens, lr=0.1, **settings):
    """Return sampler and source after some steps."""
    sampler = sampler(n_classes=12, n_way=N_WAY, seed=2)
    source = Keeps(open_episodes(tiny, "train", seed=1))
    optimizer = torch.optim.SGD(learner.parameters(), lr=lr)
    settings = {"n_shot": N_SHOT, "n_query": N_QUERY, "n_tasks": 4, **settings}
    step = TrainingStep(learner, sampler, source, optimizer, **settings)
    learner.train()
    for number in range(n_steps):
        if hasattr(learner, "begin_step"):
            learner.begin_step(number, 10)
        step(number)
    return sampler, source


def means_by_hand(features, labels):
    """Means over the images of each class, one image after the other."""
    means = torch.zeros(len(features), N_WAY, features[0][0].numel(), dtype=torch.float64)
    for task in range(len(features)):
        for position in range(N_WAY):
            own = [
                vector.flatten().double()
                for vector, label in zip(features[task], labels[task].tolist(), strict=True)
                if label == position
            ]
            means[task, position] = sum(own) / len(own)
    return means.float()


@torch.no_grad()
def features_by_hand(name, learner, episodes):
    """Features and labels of a step, from the weights before it, by the backbone alone."""
    learner = copy.deepcopy(learner)
    if name in INNER_LOOP:  # before adaptation, each task normalized by itself
        tasks = [learner.backbone(images.unsqueeze(0))[0] for images in episodes.support_images]
        return torch.stack(tasks), episodes.support_labels
    learner.backbone.train()
    images = torch.cat((episodes.support_images, episodes.query_images), 1)
    embed = learner.backbone.feature_maps if name == "relationnet" else learner.backbone
    return embed(images), torch.cat((episodes.support_labels, episodes.query_labels), 1)


@pytest.mark.parametrize("mean_pool", [False, True])
@pytest.mark.parametrize("name", LEARNERS)
def test_the_sampler_gets_the_means_of_the_features_of_each_class(tiny, name, mean_pool):
    learner = build(name, mean_pool=mean_pool)
    before = copy.deepcopy(learner)
    sampler, source = train(learner, tiny)
    (heard,), (episodes,) = sampler.heard, source.drawn
    assert heard.dtype == torch.float32
    assert not heard.requires_grad
    assert heard.shape == (4, N_WAY, learner.n_features)
    expected = means_by_hand(*features_by_hand(name, before, episodes))
    torch.testing.assert_close(heard, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LEARNERS)
def test_features_change_nothing_else(tiny, name, same):
    ends = []
    for sampler in (Listens, UniformSampler):
        learner = build(name)
        torch.manual_seed(7)
        train(learner, tiny, n_steps=3, sampler=sampler)
        assert all(module.training for module in learner.modules())
        ends.append((learner.state_dict(), torch.get_rng_state()))
    assert same(*ends)


def test_nothing_is_computed_for_a_sampler_that_uses_none(tiny, monkeypatch):
    monkeypatch.setattr(step_module, "class_means", None)
    monkeypatch.setattr(step_module, "embed_support", None)
    for name in ("protonet", "maml"):
        train(build(name), tiny, sampler=UniformSampler)


@pytest.mark.parametrize("name", ["protonet", "maml"])
def test_a_step_in_parts_gives_the_features_of_all_tasks_in_order(tiny, name):
    # Parts draw other images; a learner that has seen them tells which.
    whole, parts = build(name, norm="task"), build(name, norm="task")
    sampler, source = train(parts, tiny, accumulate=2, lr=0.0)
    (heard,), (first, second) = sampler.heard, source.drawn
    for part, episodes in zip(heard.chunk(2), (first, second), strict=True):
        expected = means_by_hand(*features_by_hand(name, whole, episodes))
        torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-5)


def test_queries_in_any_order_count_for_their_class():
    features = torch.randn(2, 9, 4, dtype=torch.float64)
    labels = [torch.tensor([[0, 1, 2], [2, 0, 1]]), torch.tensor([[1, 1, 0, 2, 2, 0]] * 2)]
    expected = means_by_hand(features, torch.cat(labels, 1))
    torch.testing.assert_close(step_module.class_means(features, labels, 3), expected)


# Learners of others -------------------------------------------------------------------------------


class Plain(nn.Module):
    """A learner with a backbone from elsewhere, which takes images without tasks."""

    n_features = 8

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Flatten(), nn.Linear(256, 8), nn.BatchNorm1d(8), nn.Dropout()
        )

    def forward(self, episodes):
        support, query = (
            self.backbone(images.flatten(0, 1)).unflatten(0, images.shape[:2])
            for images in (episodes.support_images, episodes.query_images)
        )
        return query @ support.unflatten(1, (N_WAY, -1)).mean(2).mT


def test_a_module_with_a_backbone_is_embedded_without_a_trace(tiny, same):
    ends = []
    for sampler in (Listens, UniformSampler):
        torch.manual_seed(3)
        learner = Plain()
        train(learner, tiny, n_steps=2, sampler=sampler)
        ends.append((learner.state_dict(), torch.get_rng_state()))
    assert same(*ends)


def test_the_extra_pass_is_in_evaluation_mode(tiny):
    learner = Plain()
    sampler, source = train(learner, tiny, lr=0.0)
    episodes = source.drawn[0]
    images = episodes.support_images
    features = learner.eval().backbone(images.flatten(0, 1)).unflatten(0, images.shape[:2])
    expected = means_by_hand(features.detach(), episodes.support_labels)
    torch.testing.assert_close(sampler.heard[0], expected, rtol=1e-4, atol=1e-5)


class Overrides(LEARNERS["protonet"]):
    """An embedding learner with a forward pass of its own."""

    def forward(self, episodes):
        return 2 * super().forward(episodes)


def test_a_forward_pass_of_its_own_is_the_one_that_is_trained(tiny):
    learner = Overrides(backbone=build("protonet").backbone)
    episodes = open_episodes(tiny, "train", seed=1).draw(
        torch.tensor([[0, 1, 2]]), n_shot=N_SHOT, n_query=N_QUERY
    )
    outcome = learner.training_step(episodes)
    assert outcome.features is None
    torch.testing.assert_close(outcome.query_logits, learner(episodes).detach())
    sampler, _ = train(learner, tiny)
    assert sampler.heard[0].shape == (4, N_WAY, learner.n_features)


class NoFeatures(nn.Module):
    def forward(self, episodes):
        return torch.zeros(*episodes.query_labels.shape, N_WAY)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (NoFeatures, "Listens learns from class features.* the learner NoFeatures has none"),
        (
            lambda: Ensemble(learner=build("protonet"), states=[build("protonet").state_dict()]),
            "the learner Ensemble has none",
        ),
        (
            lambda: build_learner("protonet", backbone=nn.Flatten(2)),
            "Use a backbone that has n_features",
        ),
    ],
)
def test_a_learner_without_features_is_refused_before_training(tiny, make, message):
    source = open_episodes(tiny, "train", seed=1)
    learner = make()
    learner.register_parameter("weight", nn.Parameter(torch.zeros(1)))
    with pytest.raises(ArgumentError, match=message):
        Trainer(learner, Listens(n_classes=12, n_way=N_WAY), source)
    Trainer(learner, UniformSampler(n_classes=12, n_way=N_WAY), source)


def test_a_sampler_for_another_number_of_features_is_refused(tiny, crowded_sampler):
    source = open_episodes(tiny, "train", seed=1)
    sampler = crowded_sampler(n_classes=12, n_way=N_WAY, n_features=5)
    with pytest.raises(ArgumentError, match=r"built for the 4 features of the learner; got .*=5"):
        Trainer(build("protonet"), sampler, source)


class Says(NoFeatures):
    """Says that it has features, and gives what it is told to give."""

    n_features = 7

    def __init__(self, features):
        super().__init__()
        self.features, self.weight = features, nn.Parameter(torch.zeros(1))

    def training_step(self, episodes):
        loss = self.weight.square().sum()
        return Outcome(loss=loss, query_logits=self(episodes), features=self.features)


def test_features_of_another_form_are_refused(tiny):
    for shape in [(4, 7, 7), (3, 6, 7), (3, 15, 7), (4, 15), (4,)]:
        with pytest.raises(ArgumentError, match=r"must be those of the support images.*here 4 x"):
            train(Says(torch.zeros(shape)), tiny)
    with pytest.raises(ArgumentError, match="Says must give its features to the sampler"):
        train(Says(None), tiny)


def test_a_learner_may_give_those_of_the_support_set_alone(tiny):
    features = torch.randn(4, 6, 7, requires_grad=True)
    sampler, source = train(Says(features), tiny)
    expected = means_by_hand(features.detach(), source.drawn[0].support_labels)
    torch.testing.assert_close(sampler.heard[0], expected)
    assert not sampler.heard[0].requires_grad


# Whole runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["protonet", "maml"])
def test_a_run_with_features_is_resumed_bit_by_bit(
    build_trainer, crowded_sampler, name, same, outcome
):
    def make(seed):
        settings = {"n_classes": 12, "n_way": N_WAY, "n_features": 4}
        sampler = crowded_sampler(**settings, strength=10.0, seed=seed)
        return build_trainer(learner=build(name), sampler=sampler, seed=seed, validate=False)

    whole, first, second = make(0), make(0), make(5)
    whole.fit(10)
    first.fit(4)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.fit(10)
    assert whole.sampler.sums.any()
    assert same(outcome(whole), outcome(second))


def test_the_number_of_features_is_no_option_of_a_run(build_trainer, crowded_sampler, tmp_path):
    sampler = crowded_sampler(n_classes=12, n_way=N_WAY, n_features=4)
    trainer = build_trainer(learner=build("protonet"), sampler=sampler, folder=tmp_path / "run")
    trainer.fit(2)
    written = json.loads((tmp_path / "run" / "run.json").read_text())["sampler"]
    assert written == {"name": written["name"], "strength": 1.0}
