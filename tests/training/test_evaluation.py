"""Evaluation against computations by hand, and what it must leave alone."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from adaptask.backbones import build_backbone
from adaptask.data import EpisodeSource, ImageSet, open_episodes
from adaptask.errors import ArgumentError, DataError, TrainingError
from adaptask.learners import LEARNERS, ProtoNet, build_learner
from adaptask.learners.base import EmbeddingLearner
from adaptask.report.statistics import hardest_tenth
from adaptask.training import evaluation
from adaptask.training.evaluation import Evaluation, Evaluator, _default_batch

COUNTS = [9, 8, 12, 10]
WISH = {"n_episodes": 30, "n_way": 3, "n_shot": 2, "n_query": 4, "seed": 3}


@pytest.fixture(scope="module")
def image_set():
    generator = torch.Generator().manual_seed(0)
    starts = torch.tensor([0, *COUNTS]).cumsum(0)
    images = torch.randint(256, (int(starts[-1]), 1, 3, 3), generator=generator, dtype=torch.uint8)
    return ImageSet("toy", "val", images, tuple("abcd"), starts)


@pytest.fixture
def source(image_set):
    return EpisodeSource(image_set)


class NearestPixels(nn.Module):
    """Logits are minus the squared distance to the mean support image of each class."""

    def forward(self, episodes):
        n_way = episodes.class_ids.shape[1]
        support = episodes.support_images.flatten(2)
        means = support.unflatten(1, (n_way, -1)).mean(2)
        return -torch.cdist(episodes.query_images.flatten(2), means).square()


def oracle(episodes):
    return one_hot(episodes.query_labels, episodes.class_ids.shape[1]).float()


def test_nearest_pixels_agrees_with_a_computation_by_hand(source, image_set):
    evaluator = Evaluator(source, **WISH)
    found = evaluator(NearestPixels())
    images = image_set.images.numpy().reshape(len(image_set.images), -1).astype(float) / 255
    accuracies, losses = [], []
    for rows in evaluator.plan.image_ids.tolist():
        means = [np.mean([images[i] for i in row[:2]], axis=0) for row in rows]
        right = []
        for label, row in enumerate(rows):
            for i in row[2:]:
                distances = [np.sum((images[i] - mean) ** 2) for mean in means]
                right.append(np.argmin(distances) == label)
                losses.append(distances[label] + math.log(sum(math.exp(-d) for d in distances)))
        accuracies.append(sum(right) / 12)
    assert found.accuracies.dtype == torch.float64
    assert found.accuracies.tolist() == pytest.approx(accuracies)
    assert np.std(accuracies) > 0
    assert found.accuracy == pytest.approx(np.mean(accuracies))
    assert found.interval == pytest.approx(1.96 * np.std(accuracies, ddof=1) / math.sqrt(30))
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert found.n_episodes == 30


def test_always_right_always_wrong_and_no_opinion(source):
    evaluator = Evaluator(source, **WISH)
    right, wrong = evaluator(oracle), evaluator(lambda episodes: -oracle(episodes))
    none = evaluator(lambda episodes: torch.zeros_like(oracle(episodes)))
    assert (right.accuracy, right.interval) == (1, 0)
    assert right.loss == pytest.approx(math.log(math.e + 2) - 1)
    assert wrong.accuracy == 0
    assert none.accuracy == pytest.approx(1 / 3)
    assert none.loss == pytest.approx(math.log(3))


def test_every_learner_is_given_the_same_episodes_each_time(source):
    seen = []

    def watch(episodes):
        seen.append(episodes)
        return oracle(episodes)

    evaluator = Evaluator(source, **WISH, tasks_per_batch=30)
    evaluator(watch)
    source.draw(torch.tensor([[0, 1]]), n_shot=1, n_query=1)
    torch.rand(5)
    evaluator(NearestPixels())
    evaluator(watch)
    Evaluator(source, **WISH, tasks_per_batch=30)(watch)
    Evaluator(source, **WISH | {"seed": 4}, tasks_per_batch=30)(watch)
    for other in seen[1:3]:
        assert torch.equal(seen[0].support_images, other.support_images)
        assert torch.equal(seen[0].query_images, other.query_images)
    assert not torch.equal(seen[0].query_images, seen[3].query_images)


@pytest.mark.parametrize("tasks_per_batch", [1, 7, 30, 1000])
def test_the_size_of_the_batches_does_not_matter(source, tasks_per_batch):
    whole = Evaluator(source, **WISH)(NearestPixels())
    parts = Evaluator(source, **WISH, tasks_per_batch=tasks_per_batch)(NearestPixels())
    assert torch.equal(whole.accuracies, parts.accuracies)
    assert whole.loss == pytest.approx(parts.loss, rel=1e-6)


@pytest.mark.parametrize(("size", "expected"), [(3, 364), (28, 4), (84, 1)])
def test_the_default_batch_is_of_a_reasonable_size(size, expected):
    images = torch.zeros(40, 3, size, size, dtype=torch.uint8)
    image_set = ImageSet("toy", "val", images, ("a", "b"), torch.tensor([0, 20, 40]))
    evaluator = Evaluator(EpisodeSource(image_set), n_way=2, n_shot=5, n_query=15, n_episodes=1000)
    assert evaluator.tasks_per_batch == expected
    assert expected * 40 * size * size <= 2**17 or expected == 1


@pytest.mark.parametrize(
    ("n_episodes", "expected"),
    # 39 of them fit. Batches of one size where that wastes less than half of the room.
    [(200, 25), (1000, 25), (600, 30), (39, 39), (7, 7), (74, 37), (41, 39), (202, 39)],
)
def test_on_an_accelerator_batches_are_alike_where_they_can_be(n_episodes, expected):
    images = SimpleNamespace(images=torch.empty(1, 3, 32, 32))
    source = SimpleNamespace(image_set=images, device=torch.device("cuda"))
    assert _default_batch(source, n_episodes, 105) == expected


class Chance(nn.Module):
    """Is right with a chance that differs between episodes; on average with 0.6."""

    def forward(self, episodes):
        n_way = episodes.class_ids.shape[1]
        chance = 0.2 + 0.8 * torch.rand(len(episodes.class_ids), 1)
        is_right = torch.rand(episodes.query_labels.shape) < chance
        answers = torch.where(is_right, episodes.query_labels, (episodes.query_labels + 1) % n_way)
        return one_hot(answers, n_way).float()


def test_the_interval_covers_the_truth_95_times_in_a_hundred(source):
    repeats, covered = 600, 0
    for seed in range(repeats):
        found = Evaluator(source, **WISH | {"n_episodes": 100, "seed": seed})(Chance())
        covered += abs(found.accuracy - 0.6) <= found.interval
    # Three standard deviations of a binomial variable with 0.95.
    assert abs(covered / repeats - 0.95) < 3 * math.sqrt(0.95 * 0.05 / repeats)


def test_a_learner_with_random_parts_gives_the_same_twice_and_disturbs_nothing(source):
    evaluator = Evaluator(source, **WISH)
    torch.manual_seed(17)
    before = torch.get_rng_state()
    first = evaluator(Chance())
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(9)
    assert torch.equal(first.accuracies, evaluator(Chance()).accuracies)
    assert len(first.accuracies.unique()) > 3


class Watchful(nn.Module):
    """Notes in what state it is called."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.BatchNorm1d(2)
        self.body = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
        self.frozen.eval()
        self.seen = []

    def forward(self, episodes):
        modes = [module.training for module in self.modules()]
        self.seen.append((any(modes), torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return oracle(episodes)


@pytest.mark.parametrize("fails", [False, True])
def test_the_learner_computes_in_eval_mode_and_every_part_gets_its_own_mode_back(source, fails):
    learner = Watchful()
    learner.train()
    learner.frozen.eval()
    before = {name: module.training for name, module in learner.named_modules()}
    assert len(set(before.values())) == 2
    evaluator = Evaluator(source, **WISH)
    if fails:
        learner.forward = lambda episodes: 1 / 0
        with pytest.raises(ZeroDivisionError):
            evaluator(learner)
    else:
        evaluator(learner)
        assert set(learner.seen) == {(False, False, False)}
    assert {name: module.training for name, module in learner.named_modules()} == before
    assert torch.is_grad_enabled()


def test_a_learner_may_take_gradients_of_its_own(source):
    weights = torch.tensor([2.0])

    def adapting(episodes):
        gradient = torch.func.grad(lambda w: (w**2).sum())(weights)
        return oracle(episodes) * gradient

    found = Evaluator(source, **WISH)(adapting)
    assert found.loss == pytest.approx(math.log(math.exp(4) + 2) - 4)


def test_bfloat16_is_used_inside_the_learner_and_scores_are_summed_exactly(source):
    learner = nn.Linear(9, 9, bias=False)
    dtypes = []

    def project(episodes):
        projected = learner(episodes.query_images.flatten(2))
        dtypes.append(projected.dtype)
        return oracle(episodes).to(projected.dtype) * 3

    found = Evaluator(source, **WISH, precision="bfloat16")(project)
    assert set(dtypes) == {torch.bfloat16}
    assert found.loss == pytest.approx(math.log(math.exp(3) + 2) - 3, rel=1e-6)
    Evaluator(source, **WISH)(project)
    assert dtypes[-1] == torch.float32


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        (lambda e: oracle(e)[..., :2], r"here \(30, 12, 3\); got shape \(30, 12, 2\)"),
        (lambda e: oracle(e).flatten(0, 1), r"got shape \(360, 3\)"),
        (lambda e: None, "got NoneType"),
    ],
)
def test_logits_of_the_wrong_shape_are_refused(source, learner, message):
    with pytest.raises(ArgumentError, match=message):
        Evaluator(source, **WISH)(learner)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused_with_the_episode_named(source, value):
    evaluator = Evaluator(source, **WISH, tasks_per_batch=10)
    n_calls = []

    def spoil(episodes):
        n_calls.append(1)
        query_logits = oracle(episodes)
        if len(n_calls) > 1:
            query_logits[4, 11, 2] = value
        return query_logits

    classes = ", ".join(map(str, evaluator.plan.class_ids[14].tolist()))
    message = f"in 2 of 30 evaluation episodes, first in episode 14 with the classes {classes}"
    with pytest.raises(TrainingError, match=message):
        evaluator(spoil)


def test_a_probability_of_zero_is_no_error(source):
    found = Evaluator(source, **WISH)(lambda e: oracle(e).log())
    assert (found.accuracy, found.loss) == (1, 0)


def test_a_learner_on_another_device_is_refused(source):
    with pytest.raises(ArgumentError, match=r"must be on cpu.*on meta. Move it with learner.to"):
        Evaluator(source, **WISH)(nn.Linear(2, 2, device="meta"))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"n_way": 5}, ArgumentError, "between 2 and 4"),
        ({"n_episodes": 1}, ArgumentError, "n_episodes must be at least 2; got 1"),
        ({"tasks_per_batch": 0}, ArgumentError, "tasks_per_batch must be at least 1"),
        ({"precision": "half"}, ArgumentError, "one of float32, bfloat16; got 'half'"),
        ({"n_query": 15}, DataError, "class 'b' of toy"),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused_at_once(source, changes, error, message):
    with pytest.raises(error, match=message):
        Evaluator(source, **WISH | changes)


def test_the_confusion_counts_every_query_of_a_class_where_it_was_classified(source):
    evaluator = Evaluator(source, **WISH, tasks_per_batch=7)

    def next_class(episodes):
        """Every query is taken for the next class of its task."""
        n_way = episodes.class_ids.shape[1]
        return one_hot((episodes.query_labels + 1) % n_way, n_way).float()

    expected = np.zeros((4, 4), int)
    for task in evaluator.plan.class_ids.tolist():
        for i, true in enumerate(task):
            expected[true, task[(i + 1) % 3]] += 4
    np.testing.assert_array_equal(evaluator(next_class).confusion, expected)
    right = evaluator(oracle).confusion
    np.testing.assert_array_equal(right, np.diag(expected.sum(axis=1)))
    found = evaluator(NearestPixels())
    assert found.confusion.sum() == 30 * 12
    assert found.confusion.diag().sum() / (30 * 12) == pytest.approx(found.accuracy)


def test_an_evaluation_reads_as_papers_write_it():
    evaluation = Evaluation(accuracies=torch.tensor([0.5, 0.7]).double(), loss=1.0)
    assert evaluation.interval == pytest.approx(1.96 * 0.1)
    assert str(evaluation) == "60.00 ± 19.60 %"


@pytest.mark.parametrize("n_episodes", [2, 10, 11, 95, 1000])
def test_the_hardest_tenth_is_what_a_report_makes_of_the_same_accuracies(n_episodes):
    accuracies = torch.randint(6, (n_episodes,), generator=torch.Generator().manual_seed(0)) / 5
    evaluation = Evaluation(accuracies=accuracies.double(), loss=1.0)
    found = evaluation.summary()["hardest_tenth"]
    assert found == evaluation.hardest_tenth == hardest_tenth(evaluation.accuracies.numpy())
    assert found <= evaluation.accuracy


def test_tasks_within_groups_have_classes_of_one_group_each(image_set):
    groups = ("left", "right", "left", "right")
    source = EpisodeSource(replace(image_set, groups=groups))
    wish = {"n_way": 2, "n_shot": 1, "n_query": 2, "n_episodes": 20}
    evaluator = Evaluator(source, **wish, tasks="within-group")
    assert all(first % 2 == second % 2 for first, second in evaluator.plan.class_ids.tolist())
    assert evaluator(NearestPixels()).record()["tasks"] == "within-group"
    assert Evaluator(source, **wish)(NearestPixels()).tasks == "uniform"


EMBEDDING_LEARNERS = [name for name, cls in LEARNERS.items() if issubclass(cls, EmbeddingLearner)]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", EMBEDDING_LEARNERS)
def test_features_computed_once_score_as_those_of_every_episode(name, precision, monkeypatch):
    torch.manual_seed(0)
    backbone = build_backbone("conv4", image_shape=(1, 28, 28), filters=4, n_pooled=2)
    heads = {"anil": {"n_way": 10}, "classifier": {"n_classes": 60}}
    learner = build_learner(name, backbone=backbone, **heads.get(name, {}))
    source = open_episodes("glyphs", "test")
    wish = {"n_way": 10, "n_shot": 2, "n_query": 5, "n_episodes": 60, "precision": precision}
    n_images = []
    convolve = backbone.blocks[0].forward

    def count(images, *others):
        n_images.append(len(images))
        return convolve(images, *others)

    monkeypatch.setattr(backbone.blocks[0], "forward", count)
    once = Evaluator(source, **wish)(learner)
    n_once = sum(n_images)
    monkeypatch.setattr(evaluation, "_MOST_FEATURE_BYTES", 0)
    each = Evaluator(source, **wish)(learner)
    # Every image once, and two parts again to see that it may be; and 60 * 70 images.
    assert n_once < 3000
    assert sum(n_images) - n_once > 4200
    # Rounding may turn a query that lies between two classes.
    tolerance = 1e-3 if precision == "float32" else 2e-2
    assert (once.accuracies - each.accuracies).abs().mean() < tolerance
    assert once.loss == pytest.approx(each.loss, rel=tolerance)
    assert torch.equal(once.confusion.sum(1), each.confusion.sum(1))


class PixelsLessTheirMean(nn.Module):
    """A backbone whose features are the pixels, less a share of their mean over all images."""

    def __init__(self, share):
        super().__init__()
        self.share = share
        self.n_images = []

    def forward(self, images):
        self.n_images.append(images.shape[1])
        features = images.flatten(2)
        return features - self.share * features.mean(1, keepdim=True)


def test_an_image_is_embedded_once_where_its_features_are_its_own(source):
    own, shared = PixelsLessTheirMean(0), PixelsLessTheirMean(0.5)
    evaluator = Evaluator(source, **WISH, tasks_per_batch=1)
    seen = []
    by_pixels = evaluator(NearestPixels())
    found = evaluator(ProtoNet(backbone=own), lambda *progress: seen.append(progress))
    # 39 images in three parts of 13, for episodes of 18; the first part is embedded three times.
    assert own.n_images == [13] * 5
    assert torch.equal(found.accuracies, by_pixels.accuracies)
    assert found.loss == pytest.approx(by_pixels.loss, rel=1e-5)
    assert torch.equal(found.confusion, by_pixels.confusion)
    assert seen == [(0, 30), (9, 30), (19, 30), (29, 30), (30, 30)]
    # Distances do not change with the mean, but an image has no features of its own.
    assert evaluator(ProtoNet(backbone=shared)).loss == pytest.approx(by_pixels.loss, rel=1e-5)
    assert shared.n_images == [13] * 3 + [18] * 30


def test_every_episode_embeds_its_own_images_where_that_is_less_work_or_must_be(source):
    class Reversed(ProtoNet):
        def forward(self, episodes):
            return super().forward(episodes).flip(-1)

    backbone = PixelsLessTheirMean(0)
    Evaluator(source, **WISH | {"n_episodes": 3})(ProtoNet(backbone=backbone))
    assert backbone.n_images == [18]
    backbone.n_images.clear()
    right = Evaluator(source, **WISH)(ProtoNet(backbone=backbone))
    wrong = Evaluator(source, **WISH)(Reversed(backbone=backbone))
    assert backbone.n_images == [39] * 3 + [18]
    assert wrong.accuracy < right.accuracy


def test_a_backbone_that_is_retrained_is_embedded_with_its_new_weights(source):
    backbone = PixelsLessTheirMean(0)
    scale = nn.Sequential(backbone, nn.Linear(9, 9, bias=False))
    evaluator, learner = Evaluator(source, **WISH), ProtoNet(backbone=scale)
    before = evaluator(learner)
    with torch.no_grad():
        scale[1].weight.mul_(2)
    after = evaluator(learner)
    assert after.loss != before.loss
    assert Evaluator(source, **WISH)(learner).loss == after.loss


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, and this machine has none"
)
def test_on_a_gpu_random_parts_repeat_and_the_random_state_is_left_alone(image_set):
    source = EpisodeSource(image_set, device="cuda")

    def noisy(episodes):
        return torch.randn(*episodes.query_labels.shape, 3, device=episodes.query_labels.device)

    evaluator = Evaluator(source, **WISH)
    before = torch.cuda.get_rng_state()
    first = evaluator(noisy)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    torch.rand(9, device="cuda")
    assert torch.equal(first.accuracies, evaluator(noisy).accuracies)
    assert len(first.accuracies.unique()) > 3
