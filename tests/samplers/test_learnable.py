"""A simulated learner on clean and dirty pools, and the averages by hand."""

import itertools
import math

import pytest
import torch

from adaptask.conformance import check_sampler
from adaptask.errors import StateError
from adaptask.samplers import LearnableSampler

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
        assert not sampler.classes.hopeless.any()
        assert not sampler.pairs.hopeless.any()

    train(sampler, learner, 2_000, watch)
    sets = torch.combinations(torch.arange(12), N_WAY)
    uniform = torch.full((len(sets),), 1 / len(sets), dtype=torch.float64)
    torch.testing.assert_close(sampler.log_prob(sets).exp(), uniform)


def test_a_learner_that_learns_nothing_tells_nothing():
    sampler = LearnableSampler(n_classes=12, n_way=N_WAY)
    train(sampler, Learner(12 * [0.0]), 1_000)
    assert not sampler.classes.hopeless.any()
    assert not sampler.pairs.hopeless.any()


@pytest.mark.parametrize("n_dirty", [8, 12])
def test_classes_of_random_images_are_found_and_drawn_less(n_dirty):
    """Of 20 classes; with 8 the pool is dirty to 40 %, with 12 to 60 %. Hard classes stay."""
    skills = [*(8 * CLEAN)[: 20 - n_dirty], *(n_dirty * [0.0])]
    sampler = LearnableSampler(n_classes=20, n_way=N_WAY)
    shares = train(sampler, Learner(skills), 3_000)
    assert sampler.classes.hopeless.nonzero()[:, 0].tolist() == list(range(20 - n_dirty, 20))
    assert float(shares[20 - n_dirty :].max()) < 0.2 * float(shares[: 20 - n_dirty].min())
    clean = sampler.pairs.hopeless[: 20 - n_dirty, : 20 - n_dirty]
    assert not clean.any()


def test_duplicates_are_kept_apart_and_both_are_drawn():
    skills = [*CLEAN, 3.0, 3.0, 2.0, 2.0]
    learner = Learner(skills, {(12, 13): 3.0, (14, 15): 2.0, (2, 3): 1.5})
    sampler = LearnableSampler(n_classes=16, n_way=N_WAY)
    shares = train(sampler, learner, 3_000)
    pairs = sampler.pairs.hopeless.triu().nonzero().tolist()
    assert pairs == [[12, 13], [14, 15]]
    assert not sampler.classes.hopeless.any()
    assert torch.equal(sampler.pairs.hopeless, sampler.pairs.hopeless.mT)
    drawn = sampler.sample(5_000)
    meet = (drawn == 12).any(-1) & (drawn == 13).any(-1)
    assert float(meet.float().mean()) < 0.1 * (5 * 4) / (16 * 15)
    assert float(shares[12:].min()) > 0.8 / 16


def test_an_error_is_corrected():
    """A class that becomes learnable after all gets its weight back."""
    skills = [*CLEAN, 0.0]
    sampler, learner = LearnableSampler(n_classes=13, n_way=N_WAY, floor=0.2), Learner(skills)
    train(sampler, learner, 2_000)
    assert sampler.classes.hopeless.tolist() == 12 * [False] + [True]
    learner.skills[12] = 3.0
    train(sampler, learner, 2_000)
    assert not sampler.classes.hopeless.any()


def with_hopeless(classes, pairs, **settings):
    sampler = LearnableSampler(n_classes=7, n_way=3, **settings)
    sampler.classes.hopeless[classes] = True
    for i, j in pairs:
        sampler.pairs.hopeless[i, j] = sampler.pairs.hopeless[j, i] = True
    return sampler


def test_draws_and_log_prob_follow_the_weights_in_all_orders(tools):
    sampler = with_hopeless([2, 5], [(0, 1), (1, 3), (2, 4)], floor=0.2)
    weights = [0.2 if c in (2, 5) else 1.0 for c in range(7)]
    apart = {frozenset(pair) for pair in [(0, 1), (1, 3), (2, 4)]}
    probs = dict.fromkeys(itertools.combinations(range(7), 3), 0.0)
    for order in itertools.permutations(range(7), 3):
        p = 1.0
        for k in range(3):
            left = {
                c: weights[c] * math.prod(0.2 for j in order[:k] if {c, j} in apart)
                for c in range(7)
                if c not in order[:k]
            }
            p *= left[order[k]] / sum(left.values())
        probs[tuple(sorted(order))] += p
    found = sampler.log_prob(torch.tensor(list(probs))).exp()
    torch.testing.assert_close(found, torch.tensor([*probs.values()], dtype=torch.float64))
    assert tools.chi_square_p_value(sampler.sample(30_000), probs) > 1e-4


def test_with_a_floor_of_zero_hopeless_classes_come_only_if_nothing_else_is_left():
    sampler = with_hopeless([0, 1, 2], [], floor=0.0)
    assert (sampler.sample(2_000) >= 3).all()
    sampler = with_hopeless([0, 1, 2, 3, 4], [], floor=0.0)
    assert ((sampler.sample(500) >= 5).sum(-1) == 2).all()


def test_averages_by_hand(tools):
    sampler = LearnableSampler(n_classes=6, n_way=3)
    sums, counts, pair_sums, pair_counts = {}, {}, {}, {}
    for seed in range(15):
        ids, probs, labels = tools.feedback(1, 3, 6, seed=seed)
        sampler.update(ids, probs, labels)
        confusion = [[0.0] * 3 for _ in range(3)]
        for row, y in zip(probs[0].tolist(), labels[0].tolist(), strict=True):
            for c in range(3):
                confusion[y][c] += row[c] / 3
        names = ids[0].tolist()
        for y, name in enumerate(names):
            sums[name] = sums.get(name, 0) + (confusion[y][y] - 1 / 3) / (2 / 3)
            counts[name] = counts.get(name, 0) + 1
        for a, b in itertools.combinations(range(3), 2):
            key = tuple(sorted((names[a], names[b])))
            wrong = confusion[a][b] + confusion[b][a]
            share = wrong / (wrong + confusion[a][a] + confusion[b][b])
            pair_sums[key] = pair_sums.get(key, 0) + 1 - 2 * share
            pair_counts[key] = pair_counts.get(key, 0) + 1
    for name, total in sums.items():
        assert int(sampler.classes.visits[name]) == counts[name]
        assert math.isclose(float(sampler.classes.scores[name]), total / counts[name], abs_tol=1e-5)
    for (i, j), total in pair_sums.items():
        assert int(sampler.pairs.visits[i, j]) == pair_counts[i, j]
        mean = total / pair_counts[i, j]
        assert math.isclose(float(sampler.pairs.scores[i, j]), mean, abs_tol=1e-5)


def test_refused_tasks_change_nothing_on_a_device(tools, as_on_a_device):
    sampler, other = (LearnableSampler(n_classes=9, n_way=3) for _ in range(2))
    feedback = tools.feedback(5, 3, 9)
    other.update(*(part[1:] for part in feedback))
    feedback[1][0, 0] = torch.nan
    sampler.update(*feedback)
    buffers = dict(other.named_buffers())
    for name, values in sampler.named_buffers():
        if name != "_refusals":
            assert torch.equal(values, buffers[name]), name


def test_the_laws_hold_without_pairs_and_with_few_visits():
    for settings in ({"watch_pairs": False}, {"min_visits": 1, "threshold": 1.0}):
        check_sampler(
            lambda seed, settings=settings: LearnableSampler(
                n_classes=9, n_way=3, seed=seed, **settings
            )
        )


def test_a_damaged_state_is_refused():
    sampler = LearnableSampler(n_classes=9, n_way=3)
    state = sampler.state_dict()
    state["classes.mean"] = torch.tensor(math.nan)
    with pytest.raises(StateError, match="damaged"):
        sampler.load_state_dict(state)
