"""A simulated learner on clean and dirty pools, and the evidence by hand."""

import itertools
import math

import pytest
import torch

from adaptask.conformance import check_sampler
from adaptask.errors import StateError
from adaptask.samplers import LearnableSampler, UniformSampler

N_WAY, N_QUERY = 5, 5


class Learner:
    """A learner of which only the answers exist.

    The logit of a query for its own class is the skill of that class, which grows over time, and
    for each other class the similarity of the two; noise is on all, some of it in common to a
    class's queries, as that of a single support image.

    Args:
        skills: The final skill of every class; 0 for a class of random images.
        similar: {pair: similarity}; a pair with a similarity as large as its skills is one class.
    """

    def __init__(self, skills, similar=None, *, slowness=300, seed=0):
        self.skills = torch.tensor(skills)
        self.similar = torch.zeros(len(skills), len(skills))
        for (i, j), value in (similar or {}).items():
            self.similar[i, j] = self.similar[j, i] = value
        self.slowness, self.random, self.time = slowness, torch.Generator().manual_seed(seed), 0

    def answer(self, class_ids):
        self.time += 1
        progress = 1 - math.exp(-self.time / self.slowness)
        n_tasks = len(class_ids)
        labels = torch.arange(N_WAY).repeat_interleave(N_QUERY)
        logits = self.similar[class_ids[:, :, None], class_ids[:, None, :]]
        logits = progress * (logits + torch.diag_embed(self.skills[class_ids]))
        logits = logits[:, labels]
        support = torch.randn(n_tasks, 1, N_WAY, generator=self.random)
        queries = torch.randn(n_tasks, N_WAY * N_QUERY, N_WAY, generator=self.random)
        return (logits + support + queries).softmax(-1), labels


def train(sampler, learner, n_steps, watch=lambda step: None):
    """Return how often each class was drawn in the second half."""
    counts = torch.zeros(sampler.n_classes)
    for step in range(n_steps):
        class_ids = sampler.sample(1)
        sampler.update(class_ids, *learner.answer(class_ids))
        counts += (step >= n_steps // 2) * torch.bincount(
            class_ids.flatten(), minlength=sampler.n_classes
        )
        watch(step)
    return counts / counts.sum()


# In the end from 98 to 47 % right, in uniform tasks.
CLEAN = [5.0, 4.0, 3.0, 3.0, 2.5, 2.5, 2.0, 2.0, 2.0, 1.5, 1.5, 1.2]


@pytest.mark.parametrize("seed", range(2))
def test_on_a_clean_pool_nothing_is_ever_hopeless(seed):
    """Also with hard classes and two that are much alike, from the first step on."""
    sampler = LearnableSampler(n_classes=12, n_way=N_WAY, seed=seed)
    learner = Learner(CLEAN, {(2, 3): 1.5, (7, 8): 1.0}, seed=seed)

    def watch(step):
        assert not sampler.hopeless.any()

    train(sampler, learner, 2_000, watch)
    # It has drawn the tasks that the uniform sampler draws, and goes on so.
    uniform = UniformSampler(n_classes=12, n_way=N_WAY, seed=seed)
    for _ in range(2_000):
        uniform.sample(1)
    assert torch.equal(sampler.sample(1_000), uniform.sample(1_000))
    sets = torch.combinations(torch.arange(12), N_WAY)
    uniform = torch.full((len(sets),), 1 / len(sets), dtype=torch.float64)
    torch.testing.assert_close(sampler.log_prob(sets).exp(), uniform)


@pytest.mark.parametrize("seed", range(3))
def test_hard_classes_are_suspect_but_not_hopeless(seed):
    """As far below the others as classes of random images, but told apart from each other."""
    sampler = LearnableSampler(n_classes=20, n_way=N_WAY, seed=seed)

    def watch(step):
        assert not sampler.hopeless.any()

    train(sampler, Learner(14 * [5.0] + 6 * [0.8], seed=seed), 3_000, watch)
    assert not sampler.suspect[:14].any()
    assert int(sampler.suspect[14:].sum()) >= 4
    assert float(sampler.pool_evidence) < 0


def test_a_learner_that_learns_nothing_tells_nothing():
    sampler = LearnableSampler(n_classes=12, n_way=N_WAY)
    train(sampler, Learner(12 * [0.0]), 1_000)
    assert not sampler.hopeless.any()


@pytest.mark.parametrize("n_dirty", [8, 12])
def test_classes_of_random_images_are_found_and_drawn_less(n_dirty):
    """Of 20 classes; with 8 the pool is dirty to 40 %, with 12 to 60 %."""
    skills = [*(8 * CLEAN)[: 20 - n_dirty], *(n_dirty * [0.0])]
    sampler = LearnableSampler(n_classes=20, n_way=N_WAY)
    shares = train(sampler, Learner(skills), 3_000)
    assert sampler.hopeless[20 - n_dirty :].all()
    # Those that are learned well stay; the hardest of a dirty pool may be drawn less, too.
    assert not sampler.hopeless[:5].any()
    assert float(shares[20 - n_dirty :].max()) < 0.2 * float(shares[:5].min())


def test_one_class_of_random_images_has_no_other_to_be_confused_with():
    sampler = LearnableSampler(n_classes=13, n_way=N_WAY)
    train(sampler, Learner([*CLEAN, 0.0]), 2_000)
    assert bool(sampler.suspect[12])
    assert not sampler.hopeless.any()


def test_an_error_is_corrected():
    """A class that becomes learnable after all gets its weight back."""
    skills = [*(10 * [3.0]), *(6 * [0.0])]
    sampler, learner = LearnableSampler(n_classes=16, n_way=N_WAY, floor=0.2), Learner(skills)
    train(sampler, learner, 2_000)
    assert sampler.hopeless.tolist() == 10 * [False] + 6 * [True]
    learner.skills[15] = 3.0
    train(sampler, learner, 2_000)
    assert sampler.hopeless.tolist() == 10 * [False] + 5 * [True] + [False]


def test_a_learner_that_collapses_and_recovers_leaves_nothing_hopeless():
    sampler, learner = LearnableSampler(n_classes=10, n_way=N_WAY), Learner(10 * [3.0])
    train(sampler, learner, 1_500)
    learner.skills = torch.zeros(10)
    train(sampler, learner, 1_000)
    assert sampler.hopeless.all()
    learner.skills = torch.full((10,), 3.0)
    train(sampler, learner, 2_000)
    assert not sampler.hopeless.any()


@pytest.mark.parametrize("floor", [0.05, 0.5, 1.0])
def test_dirty_classes_are_found_whatever_their_weight(floor):
    sampler = LearnableSampler(n_classes=20, n_way=N_WAY, floor=floor)
    train(sampler, Learner([*(2 * CLEAN)[:8], *(12 * [0.0])]), 3_000)
    assert sampler.hopeless.tolist() == 8 * [False] + 12 * [True]


def with_hopeless(classes, **settings):
    sampler = LearnableSampler(n_classes=7, n_way=3, **settings)
    sampler.evidence[classes] = sampler.pool_evidence[()] = sampler.min_evidence + 1
    assert sampler.hopeless.nonzero()[:, 0].tolist() == classes
    return sampler


def test_draws_and_log_prob_follow_the_weights_in_all_orders(tools):
    sampler = with_hopeless([2, 5], floor=0.2)
    weights = [0.2 if c in (2, 5) else 1.0 for c in range(7)]
    probs = dict.fromkeys(itertools.combinations(range(7), 3), 0.0)
    for order in itertools.permutations(range(7), 3):
        left, p = sum(weights), 1.0
        for c in order:
            p *= weights[c] / left
            left -= weights[c]
        probs[tuple(sorted(order))] += p
    found = sampler.log_prob(torch.tensor(list(probs))).exp()
    torch.testing.assert_close(found, torch.tensor([*probs.values()], dtype=torch.float64))
    assert tools.chi_square_p_value(sampler.sample(30_000), probs) > 1e-4


def test_with_a_floor_of_zero_hopeless_classes_come_only_if_nothing_else_is_left():
    sampler = with_hopeless([0, 1, 2], floor=0.0)
    assert (sampler.sample(2_000) >= 3).all()
    sampler = with_hopeless([0, 1, 2, 3, 4], floor=0.0)
    assert ((sampler.sample(500) >= 5).sum(-1) == 2).all()


def log_ratio(values, limit, variance):
    """The log-likelihood ratio of a mean of 0 to one of twice the limit."""
    against, in_favor = (
        sum(-((v - mean) ** 2) / (2 * variance) for v in values) for mean in (0.0, 2 * limit)
    )
    return against - in_favor


def test_scores_and_evidence_by_hand(tools):
    sampler = LearnableSampler(n_classes=6, n_way=3, min_evidence=1e4)
    sampler.averages[0] = 0.2
    sampler.evidence[:4] = 1e4 + 1  # suspects
    ids, probs, labels = tools.feedback(2, 3, 6, seed=0)
    ids = torch.tensor([[0, 1, 4], [3, 0, 5]])
    scores, pairs = {}, []
    for names, p, y in zip(ids.tolist(), probs.double(), labels, strict=True):
        confusion = [p[y == k].mean(0).tolist() for k in range(3)]
        for i, name in enumerate(names):
            apart = {j: confusion[i][i] - confusion[j][i] for j in range(3) if j != i}
            scores.setdefault(name, []).append(sum(apart.values()) / 2)
            pairs += [d for j, d in apart.items() if name < 4 and names[j] < 4]
    assert len(pairs) == 4
    before = sampler.evidence.tolist()
    sampler.update(ids, probs, labels)
    for name in range(6):
        values = scores.get(name, [])
        assert int(sampler.visits[name]) == len(values)
        mean = sum(values) / max(1, len(values))
        assert math.isclose(float(sampler.scores[name]), mean, abs_tol=1e-5)
        gained = float(sampler.evidence[name]) - before[name]
        expected = log_ratio(values, 0.5 * 0.2, 1.0)
        assert math.isclose(gained, expected, abs_tol=1e-5 if name > 3 else 2e-3)
    expected = log_ratio(pairs, 0.08 * 0.2, 1.0)
    assert math.isclose(float(sampler.pool_evidence), expected, abs_tol=1e-5)


def test_evidence_is_bounded():
    sampler = LearnableSampler(n_classes=20, n_way=N_WAY, min_evidence=5.0)
    reached = []

    def watch(step):
        both = torch.cat((sampler.evidence, sampler.pool_evidence[None]))
        assert float(both.abs().max()) <= 8.0
        reached.append(float(sampler.pool_evidence))

    train(sampler, Learner([*CLEAN, *(8 * [0.0])]), 3_000, watch)
    assert max(reached) > 5.0
    assert (float(sampler.evidence.min()), float(sampler.evidence.max())) == (-8.0, 8.0)


def test_refused_tasks_change_nothing_on_a_device(tools, as_on_a_device):
    sampler, other = (LearnableSampler(n_classes=9, n_way=3) for _ in range(2))
    for one in (sampler, other):
        one.evidence.fill_(4.0)
    feedback = tools.feedback(5, 3, 9)
    other.update(*(part[1:] for part in feedback))
    feedback[1][0, 0] = torch.nan
    sampler.update(*feedback)
    buffers = dict(other.named_buffers())
    for name, values in sampler.named_buffers():
        if name != "_refusals":
            assert torch.equal(values, buffers[name]), name


def test_the_laws_hold_if_every_class_is_suspect_at_once():
    settings = {"min_evidence": 0.0, "threshold": 1.0}
    check_sampler(lambda seed: LearnableSampler(n_classes=9, n_way=3, seed=seed, **settings))


def test_a_damaged_state_is_refused():
    sampler = LearnableSampler(n_classes=9, n_way=3)
    for name, value in (
        ("averages", [math.nan] * 3),
        ("averages", [0.0, -1.0, 1.0]),
        ("visits", [-1] * 9),
        ("n_updates", -3),
    ):
        state = sampler.state_dict()
        state[name] = torch.tensor(value)
        with pytest.raises(StateError, match="damaged"):
            sampler.load_state_dict(state)
