"""Feedback takes effect at a fixed distance, whatever the order in which it comes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptask.errors import ArgumentError, StateError
from adaptask.integrations.pending import PendingTasks
from adaptask.samplers import build_sampler

WAY = 3


class Recorder:
    """A sampler that remembers what it was asked and told, in order."""

    n_classes, n_way = 9, WAY

    def __init__(self):
        self.events = []

    def sample(self, n_tasks):
        self.events.append("draw")
        return torch.rand(n_tasks, self.n_classes).topk(WAY).indices

    def update(self, class_ids, probabilities, labels):
        self.events.append([int(value) for value in probabilities[:, 0, 0]])

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def mark(*numbers):
    """Feedback that can be told from other feedback."""
    return torch.stack([torch.full((WAY, WAY), float(n)) for n in numbers])


LABELS = torch.arange(WAY)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), lag=st.integers(0, 4), tasks=st.integers(1, 3))
def test_a_batch_is_learned_from_when_lag_further_ones_are_drawn(data, lag, tasks):
    sampler = Recorder()
    pending = PendingTasks(sampler, tasks_per_batch=tasks, lag=lag)
    expected, answered = [], set()
    for number in range(8):
        due = number - 1 - lag
        told = [t for t in range(due * tasks, due * tasks + tasks) if t in answered]
        expected += [told, "draw"] if due >= 0 and told else ["draw"]
        pending.draw()
        window = range(max(0, number - lag) * tasks, (number + 1) * tasks)
        free = [task for task in window if task not in answered]
        chosen = data.draw(st.lists(st.sampled_from(free), unique=True) if free else st.just([]))
        for task in chosen:
            pending.answer([task], mark(task), LABELS[None])
        answered |= set(chosen)
    assert sampler.events == expected
    report = pending.report
    assert report.n_drawn == 8 * tasks
    assert report.n_applied == sum(len(told) for told in expected if told != "draw")
    assert report.n_drawn == report.n_applied + report.n_missed + report.n_waiting
    assert report.largest_delay <= lag


@pytest.mark.filterwarnings("ignore:no feedback came")
def test_tasks_that_are_never_answered_are_let_go():
    pending = PendingTasks(Recorder(), tasks_per_batch=2, lag=3)
    for _ in range(500):
        pending.draw()
        assert len(pending.since(0)) <= 4
    assert pending.report.n_missed == 2 * (500 - 4)


@pytest.mark.parametrize(
    ("task_ids", "message"),
    [
        ([5, 99], "task 99 has not been drawn; task ids go from 0 to 9"),
        ([5, -1], "task -1 has not been drawn"),
        ([5, 0], "task 0 comes too late, or twice: with lag=2 .* 4 batches were drawn after it"),
        ([5, 6], "task 6 came before; it is applied once"),
        ([5, 5], "must be distinct"),
    ],
)
def test_feedback_on_other_tasks_is_refused_and_nothing_of_it_is_kept(task_ids, message):
    pending = PendingTasks(Recorder(), tasks_per_batch=2, lag=2)
    for _ in range(5):
        pending.draw()
    pending.answer([6], mark(6), LABELS[None])
    with pytest.raises(ArgumentError, match=message):
        pending.answer(task_ids, mark(*task_ids), LABELS.expand(2, -1))
    pending.answer([5], mark(5), LABELS[None])
    pending.flush()
    assert pending.sampler.events[5:] == [[5], [6]]


def test_a_sampler_that_refuses_leaves_everything_in_place():
    pending = PendingTasks(Recorder(), tasks_per_batch=1, lag=0)
    pending.draw()
    pending.answer([0], mark(0), LABELS[None])
    update = pending.sampler.update

    def refuse(*_):
        raise ArgumentError("no")

    pending.sampler.update = refuse
    with pytest.raises(ArgumentError, match="no"):
        pending.draw()
    pending.sampler.update = update
    pending.draw()
    assert pending.sampler.events == ["draw", [0], "draw"]


def test_the_oldest_task_of_some_classes_is_found():
    pending = PendingTasks(Recorder(), tasks_per_batch=1, lag=5)
    pending.sampler.sample = lambda n: torch.tensor([[4, 2, 0]])
    pending.draw(), pending.draw()
    assert pending.find([4, 2, 0]) == 0
    pending.answer([0], mark(0), LABELS[None])
    assert pending.find([4, 2, 0]) == 1
    assert pending.find([0, 2, 4]) is None


def test_a_state_that_is_kept_in_memory_is_not_written_to():
    first, second = (PendingTasks(Recorder(), tasks_per_batch=2, lag=2) for _ in range(2))
    first.draw()
    first.answer([0], mark(0), LABELS[None])
    second.load_state_dict(first.state_dict())
    first.answer([1], mark(1), LABELS[None])
    second.answer([1], mark(7), LABELS[None])
    for pending, expected in ((first, [0, 1]), (second, [0, 7])):
        pending.flush()
        assert pending.sampler.events[-1] == expected


@pytest.mark.parametrize("part", ["batches", "counts", "n_batches", "sampler"])
def test_a_state_of_something_else_is_refused_and_changes_nothing(part):
    pending = PendingTasks(build_sampler("gcp", n_classes=9, n_way=WAY), tasks_per_batch=2, lag=2)
    pending.draw()
    before = (pending.n_batches, pending.since(0)[0].class_ids)
    with pytest.raises(StateError, match="no state of tasks"):
        pending.load_state_dict({k: v for k, v in pending.state_dict().items() if k != part})
    assert (pending.n_batches, pending.since(0)[0].class_ids) == before


def test_a_state_whose_batches_have_other_fields_is_refused_and_changes_nothing():
    first, second = (PendingTasks(Recorder(), tasks_per_batch=2, lag=2) for _ in range(2))
    first.draw()
    state = first.state_dict()
    state["batches"][0]["answered"] = state["batches"][0].pop("feedback")
    with pytest.raises(StateError, match="another version of adaptask"):
        second.load_state_dict(state)
    assert second.n_batches == 0


@pytest.mark.parametrize(
    "damage",
    [
        {"n_batches": 5},
        {"n_batches": None},
        {"last_answered": "1"},
        {"counts": [0, None, 0]},
        {"sampler": None},
        {"number": 7},
        {"class_ids": torch.zeros(2, WAY + 1, dtype=torch.int64)},
        {"class_ids": None},
        {"feedback": [None]},
        {"feedback": [("a", "b"), None]},
    ],
    ids=str,
)
def test_a_damaged_state_is_refused_before_the_sampler_is_restored(damage):
    first, second = (
        PendingTasks(
            build_sampler("gcp", n_classes=9, n_way=WAY, seed=seed), tasks_per_batch=2, lag=2
        )
        for seed in range(2)
    )
    first.draw()
    state = first.state_dict()
    for part in (state, state["batches"][0]):
        part.update({key: value for key, value in damage.items() if key in part})
    twin = second.sampler.fork(1)
    with pytest.raises(StateError, match="no state of tasks, or it is damaged"):
        second.load_state_dict(state)
    assert second.n_batches == 0
    assert torch.equal(second.sampler.sample(5), twin.sample(5))
