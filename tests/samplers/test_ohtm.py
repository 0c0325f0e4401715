"""The buffer of OHTM against a plain transcription with dictionaries, and its draws."""

import pytest
import torch

from adaptask.conformance import check_sampler
from adaptask.errors import ArgumentError, StateError
from adaptask.samplers import OHTMSampler


class Transcription:
    """{set of classes: score}, sorted and cut off after each update."""

    def __init__(self, size):
        self.size, self.scores = size, {}

    def update(self, class_ids, probabilities, labels):
        new = {}
        for ids, probs, answers in zip(class_ids, probabilities, labels, strict=True):
            right = [row[y] for row, y in zip(probs.tolist(), answers.tolist(), strict=True)]
            new.setdefault(tuple(sorted(ids.tolist())), []).append(sum(right) / len(right))
        self.scores |= {task: sum(scores) / len(scores) for task, scores in new.items()}
        hardest = sorted(self.scores.items(), key=lambda item: item[1])[: self.size]
        self.scores = dict(hardest)


def taught(tools, sampler, n_updates=20, n_tasks=6):
    truth = Transcription(sampler.buffer_size)
    for seed in range(n_updates):
        feedback = tools.feedback(n_tasks, sampler.n_way, sampler.n_classes, seed=seed)
        sampler.update(*feedback)
        truth.update(*feedback)
    return truth


def check_buffer(sampler, truth):
    n_filled = int(sampler.scores.isfinite().sum())
    tasks = [tuple(row) for row in sampler.hardest_tasks.tolist()][:n_filled]
    assert tasks == list(truth.scores)
    torch.testing.assert_close(sampler.scores[:n_filled], torch.tensor(list(truth.scores.values())))


@pytest.mark.parametrize("buffer_size", [1, 7, 50])
@pytest.mark.parametrize("n_classes", [5, 12])  # with five classes sets come back all the time
def test_the_buffer_holds_the_hardest_tasks(tools, n_classes, buffer_size):
    sampler = OHTMSampler(n_classes=n_classes, n_way=3, buffer_size=buffer_size)
    check_buffer(sampler, taught(tools, sampler))


def test_the_buffer_is_the_same_on_a_device_and_refused_tasks_stay_out(tools, as_on_a_device):
    sampler = OHTMSampler(n_classes=6, n_way=3, buffer_size=9)
    truth = taught(tools, sampler)
    class_ids, probabilities, labels = tools.feedback(4, 3, 6, seed=99)
    # A refused task stands there as 0, 1 and 2. Here is a real one of these, the hardest of all.
    class_ids[2] = torch.tensor([2, 0, 1])
    probabilities[2] = 0.01 + 0.97 * torch.eye(3)[(labels[2] + 1) % 3]
    probabilities[1, 0] = torch.nan
    sampler.update(class_ids, probabilities, labels)
    truth.update(*(part[[0, 2, 3]] for part in (class_ids, probabilities, labels)))
    check_buffer(sampler, truth)
    sampler.update(class_ids[1:2], probabilities[1:2], labels[1:2])
    assert sampler.n_updates == 21
    with pytest.raises(ArgumentError, match="2 entries"):
        sampler.check()


@pytest.mark.parametrize("batch", [1, 2, 5, 8])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_the_share_of_mined_tasks_is_exact_in_any_batch(tools, batch, share):
    sampler = OHTMSampler(n_classes=60, n_way=5, share=share, warmup=0)
    truth = taught(tools, sampler)
    drawn = torch.cat([sampler.sample(batch) for _ in range(40 // batch)])
    mined = [tuple(row) in truth.scores for row in drawn.sort(-1).values.tolist()]
    assert sum(mined) == share * 40
    halves = [sum(mined[i : i + 4]) for i in range(0, 40, 4)]
    assert set(halves) == {int(share * 4)}


def test_no_task_of_the_buffer_comes_twice_before_all_came_once(tools):
    sampler = OHTMSampler(n_classes=60, n_way=5, share=1.0, buffer_size=10, warmup=0)
    taught(tools, sampler)
    rows = [tuple(row) for row in sampler.sample(20).tolist()]
    assert len(set(rows[:10])) == len(set(rows[10:])) == 10


def test_tasks_are_uniform_until_the_warm_up_is_over(tools):
    sampler = OHTMSampler(n_classes=60, n_way=5, share=1.0, warmup=3)
    truth = taught(tools, sampler, n_updates=2)
    drawn = sampler.sample(50).sort(-1).values.tolist()
    assert not any(tuple(row) in truth.scores for row in drawn)
    sampler.update(*tools.feedback(2, 5, 60, seed=7))
    kept = sampler.hardest_tasks.tolist()
    assert all(row in kept for row in sampler.sample(50).sort(-1).values.tolist())


def test_a_task_that_was_learned_leaves_the_buffer():
    sampler = OHTMSampler(n_classes=9, n_way=2, buffer_size=1)
    labels = torch.tensor([0, 1])
    even, sure = torch.full((1, 2, 2), 0.5), torch.eye(2)[None] * 0.98 + 0.01
    sampler.update(torch.tensor([[3, 1]]), even, labels)
    sampler.update(torch.tensor([[4, 5]]), 0.5 * (even + sure), labels)
    assert sampler.hardest_tasks.tolist() == [[1, 3]]
    sampler.update(torch.tensor([[1, 3]]), sure, labels)  # in another order: the same task
    sampler.update(torch.tensor([[4, 5]]), 0.5 * (even + sure), labels)
    assert sampler.hardest_tasks.tolist() == [[4, 5]]


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("buffer_size", [8, 50])  # full, and half empty
def test_the_laws_hold_once_the_buffer_is_used(share, buffer_size):
    check_sampler(
        lambda seed: OHTMSampler(
            n_classes=9, n_way=3, share=share, buffer_size=buffer_size, warmup=0, seed=seed
        )
    )


def test_a_damaged_state_is_refused():
    sampler = OHTMSampler(n_classes=9, n_way=3)
    state = sampler.state_dict()
    state["hardest_tasks"] = state["hardest_tasks"] + 8
    with pytest.raises(StateError, match="damaged"):
        sampler.load_state_dict(state)
